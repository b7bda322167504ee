// SPDX-License-Identifier: Apache-2.0
// A loop on the emulated device, for tests: memory there, and steps that its own stream runs later.
// $ATTACH_CUDA is the emulated runtime: the file that libnebula loads as its kernels. Emulated
// memory is the host's, so the loop's op may change it when the stream runs the op.
#ifndef TESTS_LOOP_DEVICE_H
#define TESTS_LOOP_DEVICE_H
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loop_device {
    void *stream;
    int (*alloc)(void **out, size_t bytes);
    int (*create)(void **out, unsigned flags);
    int (*synchronize)(void *stream);
    int (*query)(void *stream);
    int (*enqueue)(void *stream, void (*run)(const void *job), const void *job, size_t bytes);
    long (*blocked)(void);
};

static inline void loop_device_open(struct loop_device *d) {
    const struct {
        const char *name;
        void *at; // address of a function pointer
    } calls[] = {{"cudaMalloc", &d->alloc},
                 {"cudaStreamCreateWithFlags", &d->create},
                 {"cudaStreamSynchronize", &d->synchronize},
                 {"cudaStreamQuery", &d->query},
                 {"emu_enqueue", &d->enqueue},
                 {"emu_blocked", &d->blocked}};
    const char *path = getenv("ATTACH_CUDA");
    void *so = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *at = so ? dlsym(so, calls[i].name) : NULL;
        if (!at) {
            fprintf(stderr, "ATTACH_CUDA: no %s: %s\n", calls[i].name, dlerror());
            exit(2);
        }
        memcpy(calls[i].at, &at, sizeof at);
    }
    if (d->create(&d->stream, 1))
        exit(2);
}

#endif
