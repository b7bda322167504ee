// SPDX-License-Identifier: Apache-2.0
// One pass over a batch: forward, loss and backward. Each block reads the residual stream h through
// a norm and adds to it twice:
//
//     h1 = h + r           y1 = norm1(h1)     qkv = y1 Wqkv^T (+ b), rotary    att = attention(qkv)
//     r' = att Wo^T        h2 = h1 + r'       y2 = norm2(h2)                    gu = y2 Wgu^T
//     act = silu(g) * u    r = act Wdown^T    (added by the next norm1, or the final norm)
//
// Backward goes through the same lines in reverse and stops below the lowest layer that learns.
// With recompute only h1 of each block is kept; the rest is computed again before the block's
// backward.
//
// With tensor parallelism a rank has some heads, some columns of gu and act, and some rows of the
// norms and the stream (seqpar.h). y1 and y2 are gathered before the products. The outputs of o and
// down, and in backward the gradients of y1 and y2, are summed into the rows of their rank. A
// pipeline stage runs its own blocks and exchanges its rows of stream and gradient with its
// neighbours (pipe.c).
#include "agent/base/memory.h"
#include "intra/model/rtd_head.h"
#include "intra/model/seqpar.h"
#include "intra/model/vocab.h"

#include <stdlib.h>
#include <string.h>

struct block_acts {
    float *h1, *rstd1; // (own, d) (own)
    float *y1, *y2;    // (n, d); with tensor parallelism both are intra_acts.y
    float *qkv;        // (n, (H+2G)*D) after rotary
    float *att, *lse;  // (n, H*D) (B, H, T)
    float *h2, *rstd2; // (own, d) (own)
    float *gu, *act;   // (n, 2f) (n, f)
};

struct intra_acts {
    int B, T;
    bool backward, recompute;
    bool kept;                 // forward only, but every block keeps its activations
    struct block_acts *blocks; // (local.n_layers)
    float *r; // (n, d) what a block adds; the embedding at first; in backward the gathered gradient
    float *y; // (n, d) with tensor parallelism: gathered rows after a norm
    float *out; // (own, d) part of r: the stream after this stage's blocks, from the last forward
    float *hf, *yf, *rstdf; // final norm: (own, d) (n, d) (own); hf is also a stage's input
    float *lora;            // (n, rank)
    float *logits;          // some rows; only with a vocabulary cut over ranks
    float *scores;          // (n) of a discriminator
    float *dh, *dy;         // (own, d) (n, d)
    float *dqkv, *datt, *delta, *dact; // backward scratch
    float *dlora;
    float *arena;
    const int32_t *prefix;           // (B) or NULL
    const struct kern_soft *teacher; // or NULL
    size_t bytes;                    // size of the arena
    struct intra_acts *first; // owner of the scratch: itself, or the first of those in flight
    // in `first`, with recompute: the activations whose last block is in the shared block
    struct intra_acts *holds;
};

// carve_all runs twice: without a base it adds up the size, then it sets the pointers.
struct carve {
    float *base;
    size_t used;
};

static void take(struct carve *c, float **p, size_t n) {
    if (c->base)
        *p = c->base + c->used;
    c->used += (n + 15) / 16 * 16;
}

// each: rows of the stream per rank. spine_only: h1 alone.
static void carve_block(struct carve *c, struct block_acts *b, const struct intra_acts *a,
                        const struct intra_model *model, size_t each, bool spine_only) {
    const struct intra_model_config *m = &model->local;
    size_t n = (size_t)a->B * a->T, d = (size_t)m->d_model, f = (size_t)m->d_ff,
           qkv = (size_t)(m->n_heads + 2 * m->n_kv_heads) * m->head_dim;
    bool gathered = intra_mesh_tp(model->mesh) > 1;
    if (spine_only) {
        take(c, &b->h1, each * d);
        return;
    }
    take(c, &b->y1, gathered ? 0 : n * d);
    take(c, &b->rstd1, each);
    take(c, &b->qkv, n * qkv);
    take(c, &b->att, n * (size_t)m->n_heads * m->head_dim);
    take(c, &b->lse, n * (size_t)m->n_heads);
    take(c, &b->h2, each * d);
    take(c, &b->y2, gathered ? 0 : n * d);
    take(c, &b->rstd2, each);
    take(c, &b->gu, n * 2 * f);
    take(c, &b->act, n * f);
    if (gathered)
        b->y1 = b->y2 = a->first->y;
}

static void carve_scratch(struct carve *c, struct intra_acts *a, const struct intra_model *m,
                          size_t each) {
    size_t n = (size_t)a->B * a->T, d = (size_t)m->c.d_model, rank = (size_t)m->trainable.lora_rank,
           room = intra_rows_room(m, n);
    const struct intra_model_config *part = &m->local;
    take(c, &a->r, room * d);
    take(c, &a->y, intra_mesh_tp(m->mesh) > 1 ? room * d : 0);
    take(c, &a->hf, each * d);
    take(c, &a->yf, room * d);
    take(c, &a->rstdf, each);
    take(c, &a->lora, n * rank);
    take(c, &a->logits, intra_vocab_scratch(m));
    take(c, &a->scores, m->rtd_weight ? n : 0);
    if (!a->backward)
        return;
    take(c, &a->dh, each * d);
    take(c, &a->dy, room * d);
    take(c, &a->dqkv, n * (size_t)(part->n_heads + 2 * part->n_kv_heads) * part->head_dim);
    take(c, &a->datt, n * (size_t)part->n_heads * part->head_dim);
    take(c, &a->delta, n * (size_t)part->n_heads);
    take(c, &a->dact, n * (size_t)part->d_ff);
    take(c, &a->dlora, n * rank);
}

static void carve_all(struct carve *c, struct intra_acts *a, const struct intra_model *m) {
    size_t each = (size_t)intra_rows_of(m, a->B * a->T).each;
    bool keep = a->kept || (a->backward && !a->recompute), own = a->first == a;
    if (own) // before the blocks, which point into the scratch
        carve_scratch(c, a, m, each);
    for (int32_t l = 0; l < m->local.n_layers; l++) {
        struct block_acts *b = &a->blocks[l];
        if (a->backward || a->kept || l == 0)
            carve_block(c, b, a, m, each, true);
        else
            b->h1 = a->blocks[0].h1;
        if (keep || (l == 0 && own)) {
            carve_block(c, b, a, m, each, false);
        } else {
            float *h1 = b->h1;
            *b = a->first->blocks[0];
            b->h1 = h1;
        }
    }
}

// Takes the scratch pointers of `first`; a keeps its own blocks.
static void share_scratch(struct intra_acts *a, const struct intra_acts *first) {
    struct intra_acts own = *a;
    *a = *first;
    a->blocks = own.blocks;
    a->arena = NULL;
    a->holds = NULL;
}

static enum neb_status make(const struct intra_model *m, struct intra_acts *first, int B, int T,
                            bool backward, bool recompute, bool kept, struct intra_acts **out) {
    struct intra_acts *a = calloc(1, sizeof *a);
    if (!a || !(a->blocks = calloc((size_t)m->local.n_layers, sizeof *a->blocks)))
        goto nomem;
    if (first)
        share_scratch(a, first);
    a->B = B;
    a->T = T;
    a->backward = backward;
    a->recompute = recompute;
    a->kept = kept;
    a->first = first ? first : a;
    struct carve c = {0};
    carve_all(&c, a, m);
    size_t total = c.used;
    a->bytes = total * sizeof(float);
    if (!(a->arena = neb_large_zeroed(total * sizeof(float))))
        goto nomem;
    c = (struct carve){.base = a->arena};
    carve_all(&c, a, m);
    *out = a;
    return NEB_OK;
nomem:
    intra_acts_destroy(&a);
    return neb_fail(
        NEB_ERR_NOMEM,
        "out of memory for activations of %d x %d tokens; lower data.batch or set recompute: true",
        B, T);
}

enum neb_status intra_acts_create(const struct intra_model *m, int B, int T, bool backward,
                                  bool recompute, struct intra_acts **out) {
    NEB_ASSERT(B > 0 && T > 0);
    if (T > m->c.max_seq)
        return neb_fail(NEB_ERR_INVALID,
                        "sequence of %d tokens is longer than the model's max_seq %d", T,
                        m->c.max_seq);
    return make(m, NULL, B, T, backward, recompute, false, out);
}

enum neb_status intra_acts_create_kept(const struct intra_model *m, int B, int T,
                                       struct intra_acts **out) {
    NEB_ASSERT(B > 0 && T > 0 && T <= m->c.max_seq);
    return make(m, NULL, B, T, false, false, true, out);
}

const float *intra_acts_qkv(const struct intra_acts *a, int32_t l) {
    NEB_ASSERT(a->kept);
    return a->blocks[l].qkv;
}

enum neb_status intra_acts_create_shared(const struct intra_model *m, struct intra_acts *first,
                                         struct intra_acts **out) {
    NEB_ASSERT(first->first == first);
    return make(m, first, first->B, first->T, first->backward, first->recompute, first->kept, out);
}

size_t intra_acts_bytes(const struct intra_acts *a) { return a->bytes; }
float *intra_acts_in(struct intra_acts *a) { return a->hf; }
float *intra_acts_out(struct intra_acts *a) { return a->out; }
float *intra_acts_grad(struct intra_acts *a) { return a->dh; }
void intra_acts_prefix(struct intra_acts *a, const int32_t *lengths) { a->prefix = lengths; }
void intra_acts_teacher(struct intra_acts *a, const struct kern_soft *teacher) {
    a->teacher = teacher;
}
const float *intra_acts_hidden(const struct intra_acts *a) { return a->yf; }
const float *intra_acts_scores(const struct intra_acts *a) { return a->scores; }

void intra_acts_destroy(struct intra_acts **ap) {
    if (*ap) {
        free((*ap)->arena);
        free((*ap)->blocks);
    }
    free(*ap);
    *ap = NULL;
}

// y (n, out; row stride ld) = x (n, in) W^T. The adapter of each part of a fused matrix is added to
// its columns.
static void linear(struct kern *K, const struct intra_model *m, const struct intra_acts *a,
                   float *y, int ld, const float *x, int n, int out, int in,
                   const struct intra_tensor *w, const struct intra_lora_pair *lora, int parts) {
    K->ops->gemm(K, KERN_N, KERN_T, n, out, in, 1, x, in, intra_param(m, w), in, 0, y, ld);
    float scale =
        m->trainable.lora_rank ? m->trainable.lora_alpha / (float)m->trainable.lora_rank : 0;
    int col = 0;
    for (int i = 0; i < parts; i++) {
        int rank = m->trainable.lora_rank, rows = w[i].rows;
        if (lora[i].a) {
            K->ops->gemm(K, KERN_N, KERN_T, n, rank, in, 1, x, in, intra_param(m, lora[i].a), in, 0,
                         a->lora, rank);
            K->ops->gemm(K, KERN_N, KERN_T, n, rows, rank, scale, a->lora, rank,
                         intra_param(m, lora[i].b), rank, 1, y + col, ld);
        }
        col += rows;
    }
}

// dx (n, in) = dy W, unless dx is NULL. dW += dy^T x if the weight learns. The same for adapters.
static void linear_bwd(struct kern *K, const struct intra_model *m, const struct intra_acts *a,
                       float *dx, const float *dy, int ld, const float *x, int n, int out, int in,
                       const struct intra_tensor *w, const struct intra_lora_pair *lora,
                       int parts) {
    K->ops->linear_bwd(K, dx, w->trainable ? intra_grad(m, w) : NULL, dy, ld, x, intra_param(m, w),
                       n, out, in);
    float scale =
        m->trainable.lora_rank ? m->trainable.lora_alpha / (float)m->trainable.lora_rank : 0;
    int col = 0, rank = m->trainable.lora_rank;
    for (int i = 0; i < parts; i++) {
        const struct intra_lora_pair *p = &lora[i];
        int rows = w[i].rows;
        if (p->a) {
            K->ops->gemm(K, KERN_N, KERN_T, n, rank, in, 1, x, in, intra_param(m, p->a), in, 0,
                         a->lora, rank);
            K->ops->gemm(K, KERN_T, KERN_N, rows, rank, n, scale, dy + col, ld, a->lora, rank, 1,
                         intra_grad(m, p->b), rank);
            K->ops->gemm(K, KERN_N, KERN_N, n, rank, rows, scale, dy + col, ld,
                         intra_param(m, p->b), rank, 0, a->dlora, rank);
            K->ops->gemm(K, KERN_T, KERN_N, rank, in, n, 1, a->dlora, rank, x, in, 1,
                         intra_grad(m, p->a), in);
            if (dx)
                K->ops->gemm(K, KERN_N, KERN_N, n, in, rank, 1, a->dlora, rank,
                             intra_param(m, p->a), in, 1, dx, in);
        }
        col += rows;
    }
}

struct shape { // sizes of one pass
    int B, T, n, d, q, kv, qkv, f;
    struct intra_rows rows; // of the stream
};

static struct shape shape_of(const struct intra_model *m, int B, int T) {
    const struct intra_model_config *c = &m->local;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    return (struct shape){
        B, T, B * T, c->d_model, q, kv, q + 2 * kv, c->d_ff, intra_rows_of(m, B * T)};
}

static struct kern_attn attn_shape(const struct intra_model *m, const struct intra_acts *a,
                                   const struct shape *s) {
    const struct intra_model_config *c = &m->local;
    bool causal = c->mask == KERN_MASK_PREFIX && !a->prefix;
    return (struct kern_attn){s->B,          s->T,        c->n_heads,
                              c->n_kv_heads, c->head_dim, causal ? KERN_MASK_CAUSAL : c->mask,
                              a->prefix};
}

// y (n, d) = norm of the stream h + r; the sum goes to `sum`. r NULL: norm of h.
static void norm_fwd(struct kern *K, struct intra_model *m, float *y, float *rstd, float *sum,
                     const float *h, const float *r, const struct intra_tensor *gain,
                     const struct shape *s) {
    if (s->rows.own > 0)
        K->ops->rmsnorm_fwd(K, intra_rows_own(m, &s->rows, y), rstd, sum, h, r,
                            intra_param(m, gain), s->rows.own, s->d, m->c.norm_eps);
    intra_rows_gather(m, &s->rows, y);
}

// True if the backward of a linear layer reads its input.
static bool reads_input(const struct intra_tensor *w, const struct intra_lora_pair *lora,
                        int parts) {
    bool any = w->trainable;
    for (int i = 0; i < parts; i++)
        any = any || lora[i].a;
    return any;
}

// Computes y again; with tensor parallelism it is not kept.
static void norm_again(struct kern *K, struct intra_model *m, float *y, float *rstd, float *h,
                       const struct intra_tensor *gain, const struct shape *s) {
    if (intra_mesh_tp(m->mesh) > 1)
        norm_fwd(K, m, y, rstd, h, h, NULL, gain, s);
}

// a->dh += gradient of a norm's input. a->dy: gradient of its output, at this rank's rows.
static void norm_bwd(struct kern *K, struct intra_model *m, const struct intra_acts *a,
                     const float *h, const float *rstd, const struct intra_tensor *gain,
                     const struct shape *s) {
    if (s->rows.own > 0)
        K->ops->rmsnorm_bwd(K, a->dh, intra_grad(m, gain), intra_rows_own(m, &s->rows, a->dy), h,
                            intra_param(m, gain), rstd, s->rows.own, s->d);
}

// All rows of the stream's gradient.
static const float *gather_dh(struct kern *K, struct intra_model *m, const struct intra_acts *a,
                              const struct shape *s) {
    if (intra_mesh_tp(m->mesh) == 1)
        return a->dh;
    intra_rows_gather_from(K, m, &s->rows, a->dh, a->r);
    return a->r;
}

// Runs block l on h + r (r may be NULL) and leaves what it adds in a->r. again: recompute, which
// stops at what backward needs.
static void block_fwd(struct kern *K, struct intra_model *m, struct intra_acts *a, int32_t l,
                      const float *h, const float *r, const struct shape *s, bool again) {
    const struct intra_layer *y = &m->layers[l];
    struct block_acts *b = &a->blocks[l - m->layer0];
    norm_fwd(K, m, b->y1, b->rstd1, b->h1, h, r, y->norm1, s);
    linear(K, m, a, b->qkv, s->qkv, b->y1, s->n, s->qkv, s->d, y->q, &y->lora[0], 3);
    if (y->q_bias)
        K->ops->bias_fwd(K, b->qkv, intra_param(m, y->q_bias), s->n, s->qkv);
    K->ops->rope(K, b->qkv, s->qkv, m->rope, s->n, s->T, m->local.n_heads + m->local.n_kv_heads,
                 m->c.head_dim, false);
    struct kern_attn at = attn_shape(m, a, s);
    K->ops->attn_fwd(K, &at, b->att, s->q, b->lse, b->qkv, s->qkv, b->qkv + s->q, s->qkv,
                     b->qkv + s->q + s->kv, s->qkv);
    linear(K, m, a, a->r, s->d, b->att, s->n, s->d, s->q, y->o, &y->lora[3], 1);
    intra_rows_reduce_scatter(m, &s->rows, a->r);
    norm_fwd(K, m, b->y2, b->rstd2, b->h2, b->h1, intra_rows_own(m, &s->rows, a->r), y->norm2, s);
    linear(K, m, a, b->gu, 2 * s->f, b->y2, s->n, 2 * s->f, s->d, y->gate, &y->lora[4], 2);
    K->ops->swiglu_fwd(K, b->act, b->gu, s->n, s->f);
    if (again)
        return;
    linear(K, m, a, a->r, s->d, b->act, s->n, s->d, s->f, y->down, &y->lora[6], 1);
    intra_rows_reduce_scatter(m, &s->rows, a->r);
}

// a->dh: on entry the gradient of the stream after block l, on return that before it. below:
// something below this block learns. again: the block was recomputed just now, so y2 is still
// valid.
static void block_bwd(struct kern *K, struct intra_model *m, struct intra_acts *a, int32_t l,
                      const struct shape *s, bool below, bool again) {
    const struct intra_layer *y = &m->layers[l];
    struct block_acts *b = &a->blocks[l - m->layer0];
    struct kern_attn at = attn_shape(m, a, s);
    linear_bwd(K, m, a, a->dact, gather_dh(K, m, a, s), s->d, b->act, s->n, s->d, s->f, y->down,
               &y->lora[6], 1);
    K->ops->swiglu_bwd(K, b->gu, a->dact, b->gu, s->n, s->f); // in place: gu is not needed any more
    if (!again && reads_input(y->gate, &y->lora[4], 2))
        norm_again(K, m, b->y2, b->rstd2, b->h2, y->norm2, s);
    linear_bwd(K, m, a, a->dy, b->gu, 2 * s->f, b->y2, s->n, 2 * s->f, s->d, y->gate, &y->lora[4],
               2);
    intra_rows_reduce_scatter(m, &s->rows, a->dy);
    norm_bwd(K, m, a, b->h2, b->rstd2, y->norm2, s);
    linear_bwd(K, m, a, a->datt, gather_dh(K, m, a, s), s->d, b->att, s->n, s->d, s->q, y->o,
               &y->lora[3], 1);
    float *dq = a->dqkv, *dk = a->dqkv + s->q, *dv = dk + s->kv;
    K->ops->attn_bwd(K, &at, dq, dk, dv, a->datt, b->att, s->q, b->lse, b->qkv, s->qkv,
                     b->qkv + s->q, s->qkv, b->qkv + s->q + s->kv, s->qkv, a->delta);
    K->ops->rope(K, a->dqkv, s->qkv, m->rope, s->n, s->T, m->local.n_heads + m->local.n_kv_heads,
                 m->c.head_dim, true);
    if (y->q_bias && y->q_bias->trainable)
        K->ops->bias_bwd(K, intra_grad(m, y->q_bias), a->dqkv, s->n, s->qkv);
    bool through = below || y->norm1->trainable;
    if (reads_input(y->q, &y->lora[0], 3))
        norm_again(K, m, b->y1, b->rstd1, b->h1, y->norm1, s);
    linear_bwd(K, m, a, through ? a->dy : NULL, a->dqkv, s->qkv, b->y1, s->n, s->qkv, s->d, y->q,
               &y->lora[0], 3);
    if (!through)
        return;
    intra_rows_reduce_scatter(m, &s->rows, a->dy);
    norm_bwd(K, m, a, b->h1, b->rstd1, y->norm1, s);
}

static void head_fwd(struct kern *K, struct intra_model *m, struct intra_acts *a, const float *h,
                     const int32_t *targets, const struct shape *s, float grad_scale, double *loss,
                     int64_t *count) {
    norm_fwd(K, m, a->yf, a->rstdf, a->hf, h, intra_rows_own(m, &s->rows, a->r), m->norm, s);
    if (!targets)
        return;
    bool learn = grad_scale > 0;
    if (m->rtd_weight) {
        struct intra_rtd_head rtd = {.n = s->n,
                                     .d = s->d,
                                     .x = a->yf,
                                     .w = intra_param(m, m->rtd_weight),
                                     .b = intra_param(m, m->rtd_bias)[0],
                                     .labels = targets,
                                     .scores = a->scores,
                                     .grad_scale = grad_scale,
                                     .dx = learn ? a->dy : NULL,
                                     .dw = learn ? intra_grad(m, m->rtd_weight) : NULL,
                                     .db = learn ? intra_grad(m, m->rtd_bias) : NULL};
        *loss = intra_rtd_head(K, &rtd, count);
        return;
    }
    struct kern_head head = {.n = s->n,
                             .d = s->d,
                             .V = m->local.vocab,
                             .x = a->yf,
                             .w = intra_param(m, m->head),
                             .targets = targets,
                             .grad_scale = grad_scale,
                             .dx = learn ? a->dy : NULL,
                             .dw = learn ? intra_grad(m, m->head) : NULL};
    if (a->teacher) {
        NEB_ASSERT(K->ops->distill && intra_mesh_tp(m->mesh) == 1);
        *loss = K->ops->distill(K, &head, a->teacher, count);
        return;
    }
    *loss = intra_vocab_head(K, m, &head, a->logits, count);
    if (learn)
        intra_rows_reduce_scatter(m, &s->rows, a->dy);
}

void intra_model_forward(struct kern *K, struct intra_model *m, struct intra_acts *a,
                         const int32_t *tokens, const int32_t *targets, int B, int T,
                         float grad_scale, double *loss, int64_t *count) {
    NEB_ASSERT(T <= m->c.max_seq && (size_t)B * T <= (size_t)a->B * a->T);
    NEB_ASSERT(grad_scale == 0 || (a->backward && m->grads));
    struct shape s = shape_of(m, B, T);
    float *added = intra_rows_own(m, &s.rows, a->r);
    const float *h = a->hf;
    // a->r holds the embedding; the first block reads it before it writes there
    if (intra_model_first(m)) {
        intra_vocab_embed(K, m, a->r, tokens, s.n);
        intra_rows_reduce_scatter(m, &s.rows, a->r);
        h = added;
    }
    int32_t end = m->layer0 + m->local.n_layers;
    for (int32_t l = m->layer0; l < end; l++) {
        block_fwd(K, m, a, l, h, l > m->layer0 ? added : NULL, &s, false);
        h = a->blocks[l - m->layer0].h2;
    }
    a->out = added;
    a->first->holds = a;
    if (intra_model_last(m)) {
        head_fwd(K, m, a, h, targets, &s, grad_scale, loss, count);
    } else {
        K->ops->add(K, a->out, h, (size_t)s.rows.own * (size_t)s.d);
        *loss = 0;
        *count = 0;
    }
}

void intra_model_backward(struct kern *K, struct intra_model *m, struct intra_acts *a,
                          const int32_t *tokens, int B, int T) {
    struct shape s = shape_of(m, B, T);
    int32_t end = m->layer0 + m->local.n_layers;
    if (intra_model_last(m)) {
        K->ops->zero(K, a->dh, (size_t)s.rows.own * (size_t)s.d);
        norm_bwd(K, m, a, a->hf, a->rstdf, m->norm, &s);
    }
    for (int32_t l = end - 1; l >= m->layer0 && l >= m->low; l--) {
        // otherwise this block's activations are still valid
        bool again = a->recompute && (l < end - 1 || a->first->holds != a);
        if (again)
            block_fwd(K, m, a, l, a->blocks[l - m->layer0].h1, NULL, &s, true);
        a->first->holds = NULL;
        block_bwd(K, m, a, l, &s, m->low < l, again);
    }
    if (intra_model_first(m) && m->embed->trainable)
        intra_vocab_embed_bwd(K, m, gather_dh(K, m, a, &s), tokens, s.n);
}

void intra_model_pass(struct kern *K, struct intra_model *m, struct intra_acts *a,
                      const int32_t *tokens, const int32_t *targets, int B, int T, float grad_scale,
                      double *loss, int64_t *count) {
    NEB_ASSERT(intra_mesh_pp(m->mesh) == 1);
    intra_model_forward(K, m, a, tokens, targets, B, T, grad_scale, loss, count);
    if (targets && grad_scale > 0)
        intra_model_backward(K, m, a, tokens, B, T);
}

void intra_model_logits(struct kern *K, const struct intra_model *m, const struct intra_acts *a,
                        int row, float *out) {
    NEB_ASSERT(!m->mesh);
    K->ops->gemm(K, KERN_N, KERN_T, 1, m->c.vocab, m->c.d_model, 1,
                 a->yf + (size_t)row * m->c.d_model, m->c.d_model, intra_param(m, m->head),
                 m->c.d_model, 0, out, m->c.vocab);
}
