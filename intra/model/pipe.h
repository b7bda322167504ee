// SPDX-License-Identifier: Apache-2.0
// Runs micro-batches through the stages of a pipeline: exchanges data with the neighbours, and
// calls the engine that computes. A step's micro-batches are collected first, then run in the order
// of pipe_schedule.h.
#ifndef INTRA_PIPE_H
#define INTRA_PIPE_H
#include "intra/model/batch.h"
#include "intra/model/model.h"

enum intra_pipe_way { INTRA_PIPE_DOWN, INTRA_PIPE_UP }; // the stream; its gradient

// Computes a stage (intra_device_pipe). A slot is a micro-batch in flight, below
// intra_pipe_in_flight. Buffers are in the memory that the pipe's
// communicators take.
struct intra_pipe_engine {
    void *ctx; // of the implementation
    // Half a pass on what was received: forward, or after it backward. Forward of the first stage
    // begins with tokens, of the others with the stream; backward of the last stage begins with its
    // loss, of the others with the gradient of their output. Both may run on after they return. The
    // loss stays on the device.
    void (*forward)(void *ctx, int slot, const struct intra_batch *b, float grad_scale,
                    int64_t *count);
    void (*backward)(void *ctx, int slot, const struct intra_batch *b);
    // Of the last stage, after a pass is complete.
    enum neb_status (*pick)(void *ctx, const struct intra_picks *p);
    // room: where to receive. came: hands the received floats to the slot's next half pass.
    void *(*room)(void *ctx, int slot, enum intra_pipe_way way);
    void (*came)(void *ctx, enum intra_pipe_way way, size_t floats);
    // The output of the slot's last half pass, complete, in a buffer that stays unchanged until the
    // next call.
    const void *(*leaving)(void *ctx, int slot, enum intra_pipe_way way, size_t floats);
    void (*destroy)(void *ctx);
};

struct intra_pipe;
// For at most `micros` micro-batches of at most B * T tokens per step, over mesh->down and mesh->up. m and
// mesh are borrowed. The pipe takes the engine and destroys it, also if this fails (NEB_ERR_NOMEM).
NEB_MUST_CHECK enum neb_status intra_pipe_create(struct intra_model *m,
                                                 const struct intra_mesh *mesh,
                                                 const struct intra_pipe_engine *engine, int B,
                                                 int T, int32_t micros, struct intra_pipe **out);
void intra_pipe_destroy(struct intra_pipe **p);
// Copies tokens, targets and prefixes for the run. A teacher's labels and the picks (NULL: none) are
// borrowed until it is over. All stages add the same.
void intra_pipe_add(struct intra_pipe *p, const struct intra_batch *b,
                    const struct intra_picks *picks);
// Forward and backward of all that was added. The last stage adds to count. Collective over the
// stages; a failure is kept in m->failed and ends the run.
void intra_pipe_run(struct intra_pipe *p, float grad_scale, int64_t *count);
// Forward only, of one batch.
void intra_pipe_eval(struct intra_pipe *p, const struct intra_batch *b,
                     const struct intra_picks *picks, int64_t *count);

#endif
