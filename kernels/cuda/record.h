// SPDX-License-Identifier: Apache-2.0
// A stretch of a stream as CUDA graphs, so that one call enqueues what took hundreds (kern_device_ops.record).
#ifndef KERN_CUDA_RECORD_H
#define KERN_CUDA_RECORD_H
#include "kernels/device.h"

#include <cuda_runtime_api.h>

struct kern_cu_recorder {
    cudaStream_t s;
    bool on;                   // between begin and end
    bool capturing;            // the stream is in capture mode
    bool failed;               // then nothing more is recorded
    struct kern_cu_tape *tape; // so far
    char why[KERN_WHY_MAX];
};

// Nothing is recorded from here on; the first reason is kept. Only while `on`.
void kern_cu_record_fail(struct kern_cu_recorder *r, const char *what, const char *why);

void kern_cu_record_begin(struct kern_cu_recorder *r, cudaStream_t s);
// A mark cannot be in a graph that the host would wait inside of: one graph ends before it, the next begins behind it.
void kern_cu_record_mark(struct kern_cu_recorder *r, int slot);
// Leaves capture mode, whatever happened. NULL: it failed, and r->why says how.
struct kern_graph *kern_cu_record_end(struct kern_cu_recorder *r);

// Enqueues, with the marks between; marks: the device's. What the first failing call said.
cudaError_t kern_cu_replay(const struct kern_graph *g, cudaStream_t s, const cudaEvent_t *marks);
void kern_cu_graph_destroy(struct kern_graph *g); // which the stream has passed

#endif
