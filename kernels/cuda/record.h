// SPDX-License-Identifier: Apache-2.0
// A part of a stream as CUDA graphs, so that one call enqueues what took hundreds
// (kern_ops.record).
#ifndef KERN_CUDA_RECORD_H
#define KERN_CUDA_RECORD_H
#include "kernels/device.h"

#include <cuda_runtime_api.h>

struct kern_cu_recorder {
    cudaStream_t s;
    bool on;                   // between begin and end
    bool capturing;            // the stream is in capture mode
    bool failed;               // nothing more is recorded
    struct kern_cu_tape *tape; // so far
    char why[KERN_WHY_MAX];
};

// Makes the recording fail: nothing more is recorded. The first reason is kept. Call it only while
// `on`.
void kern_cu_record_fail(struct kern_cu_recorder *r, const char *what, const char *why);

void kern_cu_record_begin(struct kern_cu_recorder *r, cudaStream_t s);
// The host cannot wait inside a graph. So one graph ends before a mark, and the next begins after
// it.
void kern_cu_record_mark(struct kern_cu_recorder *r, int slot);
// Leaves capture mode in any case. Returns NULL if the recording failed; r->why has the reason.
struct kern_graph *kern_cu_record_end(struct kern_cu_recorder *r);

// Enqueues the parts of g and the marks between them. marks: the device's. Returns the first error.
cudaError_t kern_cu_replay(const struct kern_graph *g, cudaStream_t s, const cudaEvent_t *marks);
void kern_cu_graph_destroy(struct kern_graph *g); // the stream must have passed g

#endif
