// SPDX-License-Identifier: Apache-2.0
// The head of a stream of either emulated runtime. The kernels' runtime (runtime.c over emu.cc) and
// NCCL's (nccl_runtime.c) are separate objects without common names. But NCCL's ops go into the
// kernels' stream, so that stream has its functions in its head.
#ifndef EMU_STREAM_H
#define EMU_STREAM_H
#include <stddef.h>

struct emu_stream_head { // all NULL: a stream of NCCL's own
    // Enqueues an op and returns its position; 0: not allowed now. run: makes progress. It is
    // called until it returns 1; then op is done and freed.
    size_t (*push)(void *stream, int (*run)(void *op), void *op);
    // Runs up to that position as far as possible without waiting; 1: it is reached.
    int (*passed)(void *stream, size_t position);
    int (*busy)(void *stream); // an op in it has not run yet
    // Lets time pass while the host polls for something else: a device does not wait for its host.
    void (*goes_on)(void *stream);
};

#endif
