#include "intra/pipe.h"
#include "intra/pipe_schedule.h"
#include "intra/seqpar.h"

#include <stdlib.h>
#include <string.h>

// One direction: stream down, or gradient up. The buffer belongs to the communicator while a send is under way.
struct lane {
    struct intra_comm *comm;
    struct intra_comm_send sending;
    float *buffer; // (this rank's rows of B * T, d)
};

struct intra_pipe {
    struct intra_model *m;
    int B, T, stage, stages;
    int32_t micros, added, n_acts;
    struct intra_acts **acts;  // (n_acts) the first is the caller's
    struct intra_pipe_op *ops; // (2 * micros)
    int32_t *tokens, *targets; // (micros, B, T)
    struct lane down, up;
};

// Floats that cross a border with b sequences: tensor-parallel ranks pass on their own rows, each to its like.
static size_t stream(const struct intra_pipe *p, int b) {
    return (size_t)intra_rows_of(p->m, b * p->T).own * (size_t)p->m->c.d_model;
}

enum neb_status intra_pipe_create(struct intra_model *m, struct intra_acts *first, int B, int T,
                                  int32_t micros, struct intra_pipe **out) {
    enum neb_status st = NEB_OK;
    struct intra_pipe *p = calloc(1, sizeof *p);
    size_t n = (size_t)B * (size_t)T;
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a pipeline");
    p->m = m;
    p->B = B;
    p->T = T;
    p->stage = intra_mesh_pp_rank(m->mesh);
    p->stages = intra_mesh_pp(m->mesh);
    p->micros = micros;
    p->n_acts = intra_pipe_in_flight(p->stage, p->stages, micros);
    p->down.comm = m->mesh->down;
    p->up.comm = m->mesh->up;
    p->acts = calloc((size_t)p->n_acts, sizeof *p->acts);
    p->ops = calloc(2 * (size_t)micros, sizeof *p->ops);
    p->tokens = calloc((size_t)micros * n, sizeof *p->tokens);
    p->targets = calloc((size_t)micros * n, sizeof *p->targets);
    p->down.buffer = calloc(stream(p, B) + 1, sizeof(float)); // a rank may have no rows
    p->up.buffer = calloc(stream(p, B) + 1, sizeof(float));
    if (!p->acts || !p->ops || !p->tokens || !p->targets || !p->down.buffer || !p->up.buffer) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for %d micro-batches of %d x %d tokens", micros,
                      B, T);
        goto fail;
    }
    p->acts[0] = first;
    for (int32_t i = 1; i < p->n_acts; i++)
        NEB_TRY_GOTO(intra_acts_create_more(m, first, &p->acts[i]), fail);
    *out = p;
    return NEB_OK;
fail:
    intra_pipe_destroy(&p);
    return st;
}

void intra_pipe_destroy(struct intra_pipe **pp) {
    struct intra_pipe *p = *pp;
    if (!p)
        return;
    for (int32_t i = 1; p->acts && i < p->n_acts; i++)
        intra_acts_destroy(&p->acts[i]);
    free(p->acts);
    free(p->ops);
    free(p->tokens);
    free(p->targets);
    free(p->down.buffer);
    free(p->up.buffer);
    free(p);
    *pp = NULL;
}

void intra_pipe_add(struct intra_pipe *p, const int32_t *tokens, const int32_t *targets) {
    size_t n = (size_t)p->B * (size_t)p->T, at = n * (size_t)p->added;
    NEB_ASSERT(p->added < p->micros);
    memcpy(p->tokens + at, tokens, n * sizeof *tokens);
    memcpy(p->targets + at, targets, n * sizeof *targets);
    p->added++;
}

// x (n) to stage `to`, by way of the lane's buffer once that is free again.
static void send(struct intra_pipe *p, struct kern *K, struct lane *l, const float *x, size_t n,
                 int to, int tag) {
    struct intra_comm *c = l->comm;
    if (p->m->failed == NEB_OK)
        intra_model_keep(p->m, c->ops->wait(c, &l->sending));
    if (p->m->failed != NEB_OK)
        return;
    K->ops->zero(K, l->buffer, n);
    K->ops->add(K, l->buffer, x, n);
    intra_model_keep(p->m, c->ops->send(c, l->buffer, n * sizeof *x, to, tag, &l->sending));
}

static void receive(struct intra_pipe *p, struct lane *l, float *x, size_t n, int from, int tag) {
    struct intra_comm *c = l->comm;
    if (p->m->failed == NEB_OK)
        intra_model_keep(p->m, c->ops->recv(c, x, n * sizeof *x, from, tag));
}

static void finish(struct intra_pipe *p) {
    struct lane *lanes[] = {&p->down, &p->up};
    for (int i = 0; i < 2; i++)
        if (p->m->failed == NEB_OK)
            intra_model_keep(p->m, lanes[i]->comm->ops->wait(lanes[i]->comm, &lanes[i]->sending));
}

static void forward(struct intra_pipe *p, struct kern *K, struct intra_acts *a,
                    const int32_t *tokens, const int32_t *targets, int b, int tag, float grad_scale,
                    double *loss, int64_t *count) {
    size_t n = stream(p, b);
    double l = 0;
    int64_t k = 0;
    if (p->stage > 0)
        receive(p, &p->down, intra_acts_in(a), n, p->stage - 1, tag);
    if (p->m->failed != NEB_OK)
        return;
    intra_model_forward(K, p->m, a, tokens, targets, b, p->T, grad_scale, &l, &k);
    if (p->stage < p->stages - 1)
        send(p, K, &p->down, intra_acts_out(a), n, p->stage + 1, tag);
    *loss += l;
    *count += k;
}

// Gradients cross a border only where something below it learns.
static void backward(struct intra_pipe *p, struct kern *K, struct intra_acts *a,
                     const int32_t *tokens, int tag) {
    struct intra_model *m = p->m;
    size_t n = stream(p, p->B);
    int32_t end = m->layer0 + m->local.n_layers;
    if (m->low >= end && p->stage < p->stages - 1)
        return;
    if (p->stage < p->stages - 1)
        receive(p, &p->up, intra_acts_grad(a), n, p->stage + 1, tag);
    if (m->failed != NEB_OK)
        return;
    intra_model_backward(K, m, a, tokens, p->B, p->T);
    if (p->stage > 0 && m->low < m->layer0)
        send(p, K, &p->up, intra_acts_grad(a), n, p->stage - 1, tag);
}

void intra_pipe_run(struct intra_pipe *p, struct kern *K, float grad_scale, double *loss,
                    int64_t *count) {
    int32_t micros = p->added;
    size_t n = (size_t)p->B * (size_t)p->T;
    p->added = 0;
    if (!micros)
        return;
    intra_pipe_schedule(p->stage, p->stages, micros, p->ops);
    for (int32_t i = 0; i < 2 * micros && p->m->failed == NEB_OK; i++) {
        const struct intra_pipe_op *op = &p->ops[i];
        struct intra_acts *a = p->acts[op->micro % p->n_acts];
        size_t at = n * (size_t)op->micro;
        if (op->backward)
            backward(p, K, a, p->tokens + at, op->micro);
        else
            forward(p, K, a, p->tokens + at, p->targets + at, p->B, op->micro, grad_scale, loss,
                    count);
    }
    finish(p);
}

void intra_pipe_eval(struct intra_pipe *p, struct kern *K, const int32_t *tokens,
                     const int32_t *targets, int b, double *loss, int64_t *count) {
    NEB_ASSERT(p->added == 0);
    forward(p, K, p->acts[0], tokens, targets, b, 0, 0, loss, count);
    finish(p);
}
