// SPDX-License-Identifier: Apache-2.0
// Stream capture and graphs of the emulated runtime, as in CUDA's manual: an op on a capturing
// stream does not run. It becomes a node, with its arguments at the call. Launching the graph
// enqueues all nodes. What the manual forbids or calls unsafe spoils the capture (every further
// call on the stream fails, and its end gives no graph):
// - allocating, freeing, waiting for any stream or event
// - transfers of memory that is not pinned
// - launching a graph, or beginning a second capture
// emu_graph_fails: the call of this file, from 1, counted down, that runs out of memory; 0: none.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "tests/cuda/emu/emu_queue.h"

struct emu_graph {
    std::vector<std::function<void()>> nodes;
};
struct emu_graph_exec {
    std::vector<std::function<void()>> nodes;
    int under_way; // launched, but not run yet
};

static struct {
    emu_graph *into; // NULL: no capture
    cudaStream_t stream;
    bool spoilt;
} capture;

extern "C" {
int emu_graph_fails;
int emu_graph_launches; // since the start of the process

static bool fails() { return emu_graph_fails > 0 && --emu_graph_fails == 0; }

int emu_capturing(void) { return capture.into != nullptr; }
cudaError_t emu_forbidden(void) {
    if (!capture.into)
        return cudaSuccess;
    capture.spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    if (capture.into)
        return emu_forbidden();
    if (!s || mode != cudaStreamCaptureModeThreadLocal) // the legacy stream cannot be captured
        return cudaErrorStreamCaptureUnsupported;
    if (fails())
        return cudaErrorMemoryAllocation;
    capture.into = new emu_graph;
    capture.stream = s;
    capture.spoilt = false;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
    emu_graph *g = capture.into;
    *out = nullptr;
    if (!g || s != capture.stream)
        return cudaErrorInvalidValue;
    capture.into = nullptr;
    if (!capture.spoilt && !fails()) {
        *out = g;
        return cudaSuccess;
    }
    delete g;
    return cudaErrorStreamCaptureInvalidated;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n) {
    *n = g->nodes.size();
    return nodes ? cudaErrorInvalidValue : fails() ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags) {
    *out = nullptr;
    if (flags || fails())
        return flags ? cudaErrorInvalidValue : cudaErrorMemoryAllocation;
    *out = new emu_graph_exec{g->nodes, 0};
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    delete g;
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
    return capture.into ? emu_forbidden() : fails() ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) {
    if (capture.into)
        return emu_forbidden();
    x->under_way++;
    emu_graph_launches++;
    return emu::enqueue(s, [x] {
        for (const auto &node : x->nodes)
            node();
        x->under_way--;
    });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) {
    if (x->under_way) {
        fprintf(stderr, "an emulated graph is destroyed that has yet to run\n");
        abort();
    }
    delete x;
    return cudaSuccess;
}
} // extern "C"

bool emu::captures(cudaStream_t s) { return capture.into && s == capture.stream; }
cudaError_t emu::note(std::function<void()> job) {
    if (capture.spoilt)
        return cudaErrorStreamCaptureInvalidated;
    capture.into->nodes.push_back(std::move(job));
    return cudaSuccess;
}
