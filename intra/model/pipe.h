// SPDX-License-Identifier: Apache-2.0
// Micro-batches through the stages of a pipeline: the exchange with the neighbours, and who computes in between. A step's
// micro-batches are collected first, then run in the order of pipe_schedule.h.
#ifndef INTRA_PIPE_H
#define INTRA_PIPE_H
#include "intra/model/model.h"

enum intra_pipe_way { INTRA_PIPE_DOWN, INTRA_PIPE_UP }; // the stream, or its gradient

// What computes a stage: the CPU (intra_pipe_cpu_create), or a device (device.h). Slots are the micro-batches in flight,
// below intra_pipe_in_flight. Buffers are in whatever memory the pipe's communicators take.
struct intra_pipe_engine {
    void *ctx; // the implementation's
    // Half-passes as intra_model_forward and _backward, of what came in. With a device the loss may stay there, and both may
    // go on while the caller does.
    void (*forward)(void *ctx, int slot, const int32_t *tokens, const int32_t *targets, int b,
                    float grad_scale, double *loss, int64_t *count);
    void (*backward)(void *ctx, int slot, const int32_t *tokens);
    // Where `floats` may be received now; afterwards `came` hands them over to the slot's next half-pass.
    void *(*room)(void *ctx, int slot, enum intra_pipe_way way);
    void (*came)(void *ctx, enum intra_pipe_way way, size_t floats);
    // What the last half-pass of the slot passes on, complete, in a buffer that stays as it is until the next call.
    const void *(*leaving)(void *ctx, int slot, enum intra_pipe_way way, size_t floats);
    void (*destroy)(void *ctx);
};
// With forward.c. m and first (activations, used for one of the micro-batches in flight) are borrowed; B and T those of first.
NEB_MUST_CHECK enum neb_status intra_pipe_cpu_create(struct kern *K, struct intra_model *m,
                                                     struct intra_acts *first, int B, int T,
                                                     int32_t micros, struct intra_pipe_engine *out);
// Floats that cross a border with b sequences: tensor-parallel ranks pass on their own rows, each to its like.
size_t intra_pipe_floats(const struct intra_model *m, int b, int T);

struct intra_pipe;
// For at most `micros` micro-batches of (B, T) tokens a step, over mesh->down and mesh->up. m and mesh are borrowed; the engine is
// the pipe's to destroy, also after a failure.
NEB_MUST_CHECK enum neb_status intra_pipe_create(struct intra_model *m,
                                                 const struct intra_mesh *mesh,
                                                 const struct intra_pipe_engine *engine, int B,
                                                 int T, int32_t micros, struct intra_pipe **out);
void intra_pipe_destroy(struct intra_pipe **p);
// Keeps a copy of tokens and targets (B, T) for the run. All stages add the same.
void intra_pipe_add(struct intra_pipe *p, const int32_t *tokens, const int32_t *targets);
// Forward and backward of all that was added. The last stage adds to loss and count, the others do not. Collective over
// the stages; failures are kept in m->failed and end the run.
void intra_pipe_run(struct intra_pipe *p, float grad_scale, double *loss, int64_t *count);
// Forward only, of one batch of b <= B sequences.
void intra_pipe_eval(struct intra_pipe *p, const int32_t *tokens, const int32_t *targets, int b,
                     double *loss, int64_t *count);

#endif
