// SPDX-License-Identifier: Apache-2.0
// What a stream of either emulated runtime begins with: the kernels' (runtime.c over emu.cc) and NCCL's (nccl_runtime.c) are in objects of
// their own, which know no names of each other, and yet NCCL's operations go into the kernels' stream. So that stream brings its calls along.
#ifndef EMU_STREAM_H
#define EMU_STREAM_H
#include <stddef.h>

struct emu_stream_head { // all NULL: a stream of NCCL's own
    // Puts an operation behind what is there, and returns its place; 0: not allowed now. run: as far as it gets, which is called again until
    // it says 1: done, and op is gone.
    size_t (*push)(void *stream, int (*run)(void *op), void *op);
    // Runs up to that place, as far as it gets without waiting; 1: it has passed it.
    int (*passed)(void *stream, size_t position);
    int (*busy)(void *stream); // something in it has yet to run
    // A device does not wait for its host: somebody asks again and again for something else, and time goes by.
    void (*goes_on)(void *stream);
};

#endif
