// SPDX-License-Identifier: Apache-2.0
// A pipeline stage on the CPU: activations for each micro-batch in flight, computed by forward.c.
#include "intra/model/pipe.h"
#include "intra/model/pipe_schedule.h"

#include <stdlib.h>

struct cpu {
    struct kern *K;
    struct intra_model *m;
    int B, T;
    int32_t n_acts;
    struct intra_acts **acts; // (n_acts) the first is the caller's
    float *leaving[2];        // by way: this rank's rows of B * T
};

static void forward(void *ctx, int slot, const int32_t *tokens, const int32_t *targets, int b,
                    float grad_scale, double *loss, int64_t *count) {
    struct cpu *c = ctx;
    intra_model_forward(c->K, c->m, c->acts[slot], tokens, targets, b, c->T, grad_scale, loss,
                        count);
}

static void backward(void *ctx, int slot, const int32_t *tokens) {
    struct cpu *c = ctx;
    intra_model_backward(c->K, c->m, c->acts[slot], tokens, c->B, c->T);
}

static void *room(void *ctx, int slot, enum intra_pipe_way way) {
    struct cpu *c = ctx;
    return way == INTRA_PIPE_DOWN ? intra_acts_in(c->acts[slot]) : intra_acts_grad(c->acts[slot]);
}

static void came(void *ctx, enum intra_pipe_way way, size_t floats) {
    (void)ctx, (void)way, (void)floats; // received in place: the next half pass reads it there
}

// A copy, because the next half pass may overwrite the original during the send.
static const void *leaving(void *ctx, int slot, enum intra_pipe_way way, size_t floats) {
    struct cpu *c = ctx;
    struct intra_acts *a = c->acts[slot];
    c->K->ops->zero(c->K, c->leaving[way], floats);
    c->K->ops->add(c->K, c->leaving[way],
                   way == INTRA_PIPE_DOWN ? intra_acts_out(a) : intra_acts_grad(a), floats);
    return c->leaving[way];
}

static void destroy(void *ctx) {
    struct cpu *c = ctx;
    for (int32_t i = 1; c->acts && i < c->n_acts; i++)
        intra_acts_destroy(&c->acts[i]);
    free(c->acts);
    free(c->leaving[0]);
    free(c->leaving[1]);
    free(c);
}

enum neb_status intra_pipe_cpu_create(struct kern *K, struct intra_model *m,
                                      struct intra_acts *first, int B, int T, int32_t micros,
                                      struct intra_pipe_engine *out) {
    enum neb_status st = NEB_OK;
    struct cpu *c = calloc(1, sizeof *c);
    size_t floats = intra_pipe_floats(m, B, T) + 1; // plus one: a rank may have no rows
    if (!c)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a pipeline");
    *c = (struct cpu){.K = K, .m = m, .B = B, .T = T};
    c->n_acts = intra_pipe_in_flight(intra_mesh_pp_rank(m->mesh), intra_mesh_pp(m->mesh), micros);
    c->acts = calloc((size_t)c->n_acts, sizeof *c->acts);
    for (int i = 0; i < 2; i++)
        c->leaving[i] = calloc(floats, sizeof(float));
    if (!c->acts || !c->leaving[0] || !c->leaving[1]) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for %d micro-batches in flight", c->n_acts);
        goto fail;
    }
    c->acts[0] = first;
    for (int32_t i = 1; i < c->n_acts; i++)
        NEB_TRY_GOTO(intra_acts_create_shared(m, first, &c->acts[i]), fail);
    *out = (struct intra_pipe_engine){.ctx = c,
                                      .forward = forward,
                                      .backward = backward,
                                      .room = room,
                                      .came = came,
                                      .leaving = leaving,
                                      .destroy = destroy};
    return NEB_OK;
fail:
    destroy(c);
    return st;
}
