// SPDX-License-Identifier: Apache-2.0
// Embedding and loss over a vocabulary that is cut over ranks.
#include "intra/model/vocab.h"

#include <math.h>
#include <string.h>

static bool cut(const struct intra_model *m) { return intra_mesh_tp(m->mesh) > 1; }

// This rank's row of token id, or -1.
static int32_t row_of(const struct intra_tensor *t, int32_t id) {
    return id >= t->row0 && id < t->row0 + t->rows ? id - t->row0 : -1;
}

// A run of positions whose tokens belong to this rank, with their rows.
enum { RUN = 256 };
struct run {
    int from, n;
    int32_t rows[RUN];
};

static bool next_run(const struct intra_tensor *t, const int32_t *tokens, int n, struct run *r) {
    int at = r->from + r->n;
    while (at < n && row_of(t, tokens[at]) < 0)
        at++;
    r->from = at;
    for (r->n = 0; r->n < RUN && at < n; at++, r->n++) {
        int32_t row = row_of(t, tokens[at]);
        if (row < 0)
            break;
        r->rows[r->n] = row;
    }
    return r->n > 0;
}

void intra_vocab_embed(struct kern *K, struct intra_model *m, float *out, const int32_t *tokens,
                       int n) {
    int d = m->c.d_model;
    if (!cut(m)) {
        K->ops->embed_fwd(K, out, intra_param(m, m->embed), tokens, n, d);
        return;
    }
    K->ops->zero(K, out, (size_t)n * d);
    for (struct run r = {0}; next_run(m->embed, tokens, n, &r);)
        K->ops->embed_fwd(K, out + (size_t)r.from * d, intra_param(m, m->embed), r.rows, r.n, d);
}

void intra_vocab_embed_bwd(struct kern *K, struct intra_model *m, const float *dout,
                           const int32_t *tokens, int n) {
    int d = m->c.d_model;
    float *grad = intra_grad(m, m->embed);
    if (!cut(m)) {
        K->ops->embed_bwd(K, grad, dout, tokens, n, d, m->c.vocab);
        return;
    }
    for (struct run r = {0}; next_run(m->embed, tokens, n, &r);)
        K->ops->embed_bwd(K, grad, dout + (size_t)r.from * d, r.rows, r.n, d, m->local.vocab);
}

// ---- output layer -------------------------------------------------------------------------------

// A block of positions: this rank's logits, and what it must know of the other ranks' logits.
struct block {
    const struct kern_head *h;
    const struct intra_tensor *w;
    const int32_t *targets;
    float *z;                     // (n, V of this rank)
    float max[INTRA_VOCAB_ROWS];  // of all logits
    double sum[INTRA_VOCAB_ROWS]; // of exp(z - max): of this rank, then summed over ranks
    double at[INTRA_VOCAB_ROWS];  // the target's logit, 0 if another rank has it; then summed, too
};

size_t intra_vocab_scratch(const struct intra_model *m) {
    return cut(m) && intra_model_last(m) ? (size_t)INTRA_VOCAB_ROWS * (size_t)m->local.vocab : 0;
}

static void row_max(void *arg, size_t i) {
    struct block *b = arg;
    const float *z = b->z + i * (size_t)b->h->V;
    float max = z[0];
    for (int k = 1; k < b->h->V; k++)
        max = z[k] > max ? z[k] : max;
    b->max[i] = max;
}

static void row_exp(void *arg, size_t i) {
    struct block *b = arg;
    float *z = b->z + i * (size_t)b->h->V;
    int32_t row = b->targets[i] == KERN_IGNORE ? -1 : row_of(b->w, b->targets[i]);
    b->at[i] = row < 0 ? 0 : (double)z[row];
    double sum = 0;
    for (int k = 0; k < b->h->V; k++) {
        z[k] = expf(z[k] - b->max[i]);
        sum += (double)z[k];
    }
    b->sum[i] = sum;
}

// z becomes the gradient: probabilities times grad_scale, minus grad_scale at the target.
static void row_grad(void *arg, size_t i) {
    struct block *b = arg;
    float *z = b->z + i * (size_t)b->h->V;
    int32_t target = b->targets[i], row = target == KERN_IGNORE ? -1 : row_of(b->w, target);
    float scale = target == KERN_IGNORE ? 0 : (float)((double)b->h->grad_scale / b->sum[i]);
    for (int k = 0; k < b->h->V; k++)
        z[k] *= scale;
    if (row >= 0)
        z[row] -= b->h->grad_scale;
}

static void reduce(struct intra_model *m, void *x, size_t n, enum intra_comm_type t,
                   enum intra_comm_op op) {
    struct intra_comm *tp = m->mesh->tp;
    if (m->failed == NEB_OK)
        intra_model_keep_failure(m, tp->ops->all_reduce(tp, x, n, t, op));
}

static double head_block(struct kern *K, struct intra_model *m, struct block *b, int from, int n,
                         int64_t *count) {
    const struct kern_head *h = b->h;
    const float *x = h->x + (size_t)from * h->d;
    double loss = 0;
    b->targets = h->targets + from;
    K->ops->gemm(K, KERN_N, KERN_T, n, h->V, h->d, 1, x, h->d, h->w, h->d, 0, b->z, h->V);
    kern_pool_run(K->pool, (size_t)n, row_max, b);
    reduce(m, b->max, (size_t)n, INTRA_COMM_F32, INTRA_COMM_MAX);
    kern_pool_run(K->pool, (size_t)n, row_exp, b);
    reduce(m, b->sum, (size_t)n, INTRA_COMM_F64, INTRA_COMM_SUM);
    reduce(m, b->at, (size_t)n, INTRA_COMM_F64, INTRA_COMM_SUM);
    for (int i = 0; i < n; i++) {
        bool counts = b->targets[i] != KERN_IGNORE;
        double l = counts ? (double)b->max[i] + log(b->sum[i]) - b->at[i] : 0;
        if (h->losses)
            h->losses[from + i] = (float)l;
        loss += l;
        *count += counts;
    }
    if (h->dx || h->dw)
        kern_pool_run(K->pool, (size_t)n, row_grad, b);
    K->ops->linear_bwd(K, h->dx ? h->dx + (size_t)from * h->d : NULL, h->dw, b->z, h->V, x, h->w, n,
                       h->V, h->d);
    return loss;
}

double intra_vocab_head(struct kern *K, struct intra_model *m, const struct kern_head *h,
                        float *scratch, int64_t *count) {
    if (!cut(m))
        return K->ops->head_loss(K, h, count);
    struct block b = {.h = h, .w = m->head, .z = scratch};
    double loss = 0;
    *count = 0;
    for (int from = 0; from < h->n; from += INTRA_VOCAB_ROWS) {
        int n = h->n - from < INTRA_VOCAB_ROWS ? h->n - from : INTRA_VOCAB_ROWS;
        loss += head_block(K, m, &b, from, n, count);
    }
    return loss;
}
