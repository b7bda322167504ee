// SPDX-License-Identifier: Apache-2.0
// Runs the schedule of a pipeline stage and sends data to its neighbours.
#include "intra/model/pipe.h"
#include "intra/model/pipe_schedule.h"
#include "intra/model/rows.h"

#include <stdlib.h>
#include <string.h>

// One direction. The communicator owns an outgoing buffer until its send is complete.
struct lane {
    struct intra_comm *comm;
    struct intra_comm_send sending;
};

struct intra_pipe {
    struct intra_model *m;
    struct intra_pipe_engine e;
    int stage, stages;
    size_t room; // tokens of a micro-batch
    int32_t micros, added, in_flight;
    struct intra_pipe_op *ops; // (2 * micros)
    struct micro {
        struct intra_batch b;
        const struct intra_picks *picks; // NULL: none
    } * all;                             // (micros)
    int32_t *tokens;                     // (micros, 3, room) of `all`: tokens, targets, prefixes
    struct lane lanes[2];                // by enum intra_pipe_way
};

// Floats that cross a stage boundary for b sequences: each tensor-parallel rank sends its own rows
// to its counterpart.
static size_t pipe_floats(const struct intra_model *m, int b, int T) {
    return (size_t)intra_rows_of(m, b * T).own * (size_t)m->c.d_model;
}

enum neb_status intra_pipe_create(struct intra_model *m, const struct intra_mesh *mesh,
                                  const struct intra_pipe_engine *engine, int B, int T,
                                  int32_t micros, struct intra_pipe **out) {
    struct intra_pipe *p = calloc(1, sizeof *p);
    if (!p) {
        engine->destroy(engine->ctx);
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a pipeline");
    }
    *p = (struct intra_pipe){.m = m,
                             .e = *engine,
                             .room = (size_t)B * (size_t)T,
                             .stage = intra_mesh_pp_rank(mesh),
                             .stages = intra_mesh_pp(mesh),
                             .micros = micros,
                             .lanes = {{.comm = mesh->down}, {.comm = mesh->up}}};
    p->in_flight = intra_pipe_in_flight(p->stage, p->stages, micros);
    p->ops = calloc(2 * (size_t)micros, sizeof *p->ops);
    p->all = calloc((size_t)micros, sizeof *p->all);
    p->tokens = calloc((size_t)micros * 3 * p->room, sizeof *p->tokens);
    if (p->ops && p->all && p->tokens) {
        *out = p;
        return NEB_OK;
    }
    intra_pipe_destroy(&p);
    return neb_fail(NEB_ERR_NOMEM, "out of memory for %d micro-batches of %d x %d tokens", micros,
                    B, T);
}

void intra_pipe_destroy(struct intra_pipe **pp) {
    struct intra_pipe *p = *pp;
    if (!p)
        return;
    p->e.destroy(p->e.ctx);
    free(p->ops);
    free(p->all);
    free(p->tokens);
    free(p);
    *pp = NULL;
}

void intra_pipe_add(struct intra_pipe *p, const struct intra_batch *b,
                    const struct intra_picks *picks) {
    size_t n = (size_t)b->B * (size_t)b->T;
    NEB_ASSERT(p->added < p->micros && n <= p->room);
    int32_t *tokens = p->tokens + (size_t)p->added * 3 * p->room, *targets = tokens + p->room,
            *prefix = targets + p->room;
    struct micro *x = &p->all[p->added++];
    *x = (struct micro){*b, picks};
    memcpy(tokens, b->tokens, n * sizeof *tokens);
    memcpy(targets, b->targets, n * sizeof *targets);
    x->b.tokens = tokens;
    x->b.targets = targets;
    if (b->prefix) {
        memcpy(prefix, b->prefix, (size_t)b->B * sizeof *prefix);
        x->b.prefix = prefix;
    }
}

// Sends to stage `to`, after the previous send of this direction has released its buffer.
static void send(struct intra_pipe *p, int slot, enum intra_pipe_way way, size_t n, int to,
                 int tag) {
    struct lane *l = &p->lanes[way];
    struct intra_comm *c = l->comm;
    if (p->m->failed == NEB_OK)
        intra_model_keep_failure(p->m, c->ops->wait(c, &l->sending));
    if (p->m->failed != NEB_OK)
        return;
    const void *x = p->e.leaving(p->e.ctx, slot, way, n);
    if (p->m->failed == NEB_OK)
        intra_model_keep_failure(p->m, c->ops->send(c, x, n * sizeof(float), to, tag, &l->sending));
}

static void receive(struct intra_pipe *p, int slot, enum intra_pipe_way way, size_t n, int from,
                    int tag) {
    struct intra_comm *c = p->lanes[way].comm;
    void *x = p->e.room(p->e.ctx, slot, way);
    if (p->m->failed == NEB_OK)
        intra_model_keep_failure(p->m, c->ops->recv(c, x, n * sizeof(float), from, tag));
    if (p->m->failed == NEB_OK)
        p->e.came(p->e.ctx, way, n);
}

static void finish(struct intra_pipe *p) {
    for (int i = 0; i < 2; i++)
        if (p->m->failed == NEB_OK)
            intra_model_keep_failure(
                p->m, p->lanes[i].comm->ops->wait(p->lanes[i].comm, &p->lanes[i].sending));
}

static void forward(struct intra_pipe *p, int slot, const struct intra_batch *b, int tag,
                    float grad_scale, int64_t *count) {
    size_t n = pipe_floats(p->m, b->B, b->T);
    if (p->stage > 0)
        receive(p, slot, INTRA_PIPE_DOWN, n, p->stage - 1, tag);
    if (p->m->failed != NEB_OK)
        return;
    p->e.forward(p->e.ctx, slot, b, grad_scale, count);
    if (p->stage < p->stages - 1)
        send(p, slot, INTRA_PIPE_DOWN, n, p->stage + 1, tag);
}

// Gradients cross a stage boundary only if something below it learns.
static void backward(struct intra_pipe *p, int slot, const struct intra_batch *b, int tag) {
    struct intra_model *m = p->m;
    size_t n = pipe_floats(m, b->B, b->T);
    int32_t end = m->layer0 + m->local.n_layers;
    if (m->low >= end && p->stage < p->stages - 1)
        return;
    if (p->stage < p->stages - 1)
        receive(p, slot, INTRA_PIPE_UP, n, p->stage + 1, tag);
    if (m->failed != NEB_OK)
        return;
    p->e.backward(p->e.ctx, slot, b);
    if (p->stage > 0 && m->low < m->layer0)
        send(p, slot, INTRA_PIPE_UP, n, p->stage - 1, tag);
}

// The last stage makes them while the final hidden states of their pass are there.
static void pick(struct intra_pipe *p, const struct intra_picks *picks) {
    if (picks && p->stage == p->stages - 1 && p->m->failed == NEB_OK)
        intra_model_keep_failure(p->m, p->e.pick(p->e.ctx, picks));
}

void intra_pipe_run(struct intra_pipe *p, float grad_scale, int64_t *count) {
    int32_t micros = p->added;
    p->added = 0;
    if (!micros)
        return;
    intra_pipe_schedule(p->stage, p->stages, micros, p->ops);
    for (int32_t i = 0; i < 2 * micros && p->m->failed == NEB_OK; i++) {
        const struct intra_pipe_op *op = &p->ops[i];
        const struct micro *x = &p->all[op->micro];
        int slot = op->micro % p->in_flight;
        if (op->backward) {
            backward(p, slot, &x->b, op->micro);
            pick(p, x->picks);
        } else {
            forward(p, slot, &x->b, op->micro, grad_scale, count);
        }
    }
    finish(p);
}

void intra_pipe_eval(struct intra_pipe *p, const struct intra_batch *b,
                     const struct intra_picks *picks, int64_t *count) {
    NEB_ASSERT(p->added == 0);
    forward(p, 0, b, 0, 0, count);
    pick(p, picks);
    finish(p);
}
