// SPDX-License-Identifier: Apache-2.0
// Capture: between cudaStreamBeginCapture and cudaStreamEndCapture the stream does not run what is
// enqueued. It notes kernels, copies and fills with their arguments, one after the other, as a
// graph. Calls that wait or allocate are illegal meanwhile and spoil the capture. In thread-local
// mode only those of this thread do.
//
//     record        mark k          record_end
//       │  kernels    │   kernels     │
//       └── graph 0 ──┴─── graph 1 ───┘      replay: launch graph 0, record event k, launch graph 1
#include "kernels/cuda/record.h"

#include <stdio.h>
#include <stdlib.h>

enum { PARTS_MOST = KERN_MARKS + 1, NO_MARK = -1 };

struct kern_cu_tape {
    struct kern_graph head; // the caller's handle
    struct {
        cudaGraphExec_t run; // NULL: no operation lies between two marks
        int mark;            // recorded after run
    } part[PARTS_MOST];
};
static struct kern_cu_tape *tape_of(struct kern_graph *g) { return g->ctx; }

void kern_cu_record_fail(struct kern_cu_recorder *r, const char *what, const char *why) {
    if (!r->failed)
        snprintf(r->why, sizeof r->why, "%s: %s", what, why);
    r->failed = true;
}

static bool check(struct kern_cu_recorder *r, cudaError_t e, const char *what) {
    if (e != cudaSuccess)
        kern_cu_record_fail(r, what, cudaGetErrorString(e));
    return e == cudaSuccess;
}

static void capture(struct kern_cu_recorder *r) {
    r->capturing =
        !r->failed && check(r, cudaStreamBeginCapture(r->s, cudaStreamCaptureModeThreadLocal),
                            "beginning a capture");
}

void kern_cu_record_begin(struct kern_cu_recorder *r, cudaStream_t s) {
    *r = (struct kern_cu_recorder){.s = s, .on = true};
    r->tape = calloc(1, sizeof *r->tape);
    if (!r->tape)
        kern_cu_record_fail(r, "recording", "out of host memory");
    capture(r);
}

// Makes what was captured the next part. It is uploaded at once, so that a replay cannot lack
// memory.
static void part(struct kern_cu_recorder *r, int mark) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t run = NULL;
    size_t nodes = 0;
    if (!r->capturing)
        return;
    r->capturing = false;
    check(r, cudaStreamEndCapture(r->s, &graph), "ending a capture");
    if (!r->failed && r->tape->head.parts == PARTS_MOST)
        kern_cu_record_fail(r, "recording", "too many marks");
    if (!r->failed)
        check(r, cudaGraphGetNodes(graph, NULL, &nodes), "counting what was captured");
    if (!r->failed && nodes > 0 && check(r, cudaGraphInstantiate(&run, graph, 0), "making a graph"))
        check(r, cudaGraphUpload(run, r->s), "uploading a graph");
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (run && r->failed) {
        (void)cudaGraphExecDestroy(run);
        run = NULL;
    }
    if (r->failed)
        return;
    struct kern_graph *head = &r->tape->head;
    r->tape->part[head->parts].run = run;
    r->tape->part[head->parts].mark = mark;
    head->parts++;
    head->ops += (int)nodes;
}

void kern_cu_record_mark(struct kern_cu_recorder *r, int slot) {
    part(r, slot);
    capture(r);
}

struct kern_graph *kern_cu_record_end(struct kern_cu_recorder *r) {
    struct kern_graph *g = NULL;
    part(r, NO_MARK);
    r->on = false;
    (void)cudaGetLastError(); // otherwise the next launch would report an error
    if (r->tape) {
        g = &r->tape->head;
        g->ctx = r->tape;
    }
    if (g && r->failed) {
        (void)cudaStreamSynchronize(r->s); // uploads may still run
        kern_cu_graph_destroy(g);
        g = NULL;
    }
    r->tape = NULL;
    return g;
}

cudaError_t kern_cu_replay(const struct kern_graph *g, cudaStream_t s, const cudaEvent_t *marks) {
    const struct kern_cu_tape *t = g->ctx;
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < g->parts && e == cudaSuccess; i++) {
        if (t->part[i].run)
            e = cudaGraphLaunch(t->part[i].run, s);
        if (e == cudaSuccess && t->part[i].mark != NO_MARK)
            e = cudaEventRecord(marks[t->part[i].mark], s);
    }
    return e;
}

void kern_cu_graph_destroy(struct kern_graph *g) {
    struct kern_cu_tape *t = tape_of(g);
    for (int i = 0; i < g->parts; i++)
        if (t->part[i].run)
            (void)cudaGraphExecDestroy(t->part[i].run);
    free(t);
}
