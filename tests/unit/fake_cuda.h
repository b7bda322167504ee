// SPDX-License-Identifier: Apache-2.0
// A fake CUDA driver for test_lib_copy.c: a library named libcuda.so.1 with the calls that
// agent/lib/copy.c makes. It is as strict as the CUDA manual, and refuses a copy to the host before
// a synchronize. "Device memory" is host memory that the test registers.
#ifndef TESTS_FAKE_CUDA_H
#define TESTS_FAKE_CUDA_H
#include <stddef.h>

enum fake_kind {
    FAKE_OF_CONTEXT, // cuMemAlloc
    FAKE_OF_DEVICE,  // cuMemAllocAsync, cuMemMap: belongs to no context
    FAKE_PINNED      // cuMemHostAlloc
};
void fake_cuda_add(void *p, size_t bytes, enum fake_kind kind, int device);
void fake_cuda_forget(void *p);
// makes a context current that is not the primary one; a device below 0: no context is current
void fake_cuda_make_current(int device);
// The context that is current. 0: none; 1 + d: the context of fake_cuda_make_current; 101 + d: the
// primary context.
int fake_cuda_current(void);
int fake_cuda_held(int device);        // how many times the primary context is retained
void fake_cuda_fail(const char *name); // the named call fails with 999; NULL: none fails

#endif
