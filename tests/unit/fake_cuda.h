// SPDX-License-Identifier: Apache-2.0
// A CUDA driver for test_lib_copy.c: a library that calls itself libcuda.so.1, with the dozen calls that agent/lib/copy.c makes, as strict as
// their manual, and no copy before the device was waited for. "Device memory" is host memory that is known by its address.
#ifndef TESTS_FAKE_CUDA_H
#define TESTS_FAKE_CUDA_H
#include <stddef.h>

enum fake_kind {
    FAKE_OF_CONTEXT, // cuMemAlloc
    FAKE_OF_DEVICE,  // cuMemAllocAsync, cuMemMap: of no context
    FAKE_PINNED      // cuMemHostAlloc
};
void fake_cuda_add(void *p, size_t bytes, enum fake_kind kind, int device);
void fake_cuda_forget(void *p);
void fake_cuda_make_current(int device); // another context than the primary one; below 0: none
// What is current: 0 nothing, 1 + d the context of fake_cuda_make_current, 101 + d the primary one.
int fake_cuda_current(void);
int fake_cuda_held(int device);        // times that the primary context is retained
void fake_cuda_fail(const char *name); // the call of this name fails with 999; NULL: none

#endif
