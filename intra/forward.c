// One pass over a batch: forward, loss, and backward. The residual stream h is the spine; each block reads it through
// a norm and adds to it twice:
//
//     h1 = h + r           y1 = norm1(h1)     qkv = y1 Wqkv^T (+ b), rotary     att = attention(qkv)
//     r' = att Wo^T        h2 = h1 + r'       y2 = norm2(h2)                    gu = y2 Wgu^T
//     act = silu(g) * u    r = act Wdown^T    (added by the next block's norm1, or by the final norm)
//
// Backward walks the same lines upwards and stops below the lowest layer that has something to learn. With recompute
// only h1 of every block is kept; the rest of a block is computed again before its backward.
//
// With tensor parallelism a rank has some heads and some columns of gu and act, so what o and down add to the stream, and
// in backward the gradients of y1 and y2, are sums over ranks: four all-reduces of (n, d) a block. A pipeline stage runs
// its own blocks; stream and gradient come from and go to its neighbours (pipe.c).
#include "intra/vocab.h"

#include <stdlib.h>
#include <string.h>

struct block_acts {
    float *h1, *y1, *rstd1; // (n, d) (n, d) (n)
    float *qkv;             // (n, (H+2G)*D) after rotary
    float *att, *lse;       // (n, H*D) (B, H, T)
    float *h2, *y2, *rstd2; // (n, d) (n, d) (n)
    float *gu, *act;        // (n, 2f) (n, f)
};

struct intra_acts {
    int B, T;
    bool backward, recompute;
    struct block_acts *blocks;         // (local.n_layers)
    float *r;                          // (n, d) what a block adds
    float *hf, *yf, *rstdf;            // final norm
    float *lora;                       // (n, rank)
    float *logits;                     // some rows, with a vocabulary cut over ranks
    float *dh, *dy;                    // (n, d)
    float *dqkv, *datt, *delta, *dact; // backward scratch
    float *dlora;
    float *arena;
    size_t bytes; // of the arena
    struct intra_acts *first; // whose scratch this is: itself, or the first of those in flight
    struct intra_acts
        *holds; // of the first: whose last block is in the shared block, with recompute
};

// Two passes over the same list: the first adds up the size, the second hands out pointers.
struct carve {
    float *base;
    size_t used;
};

static void take(struct carve *c, float **p, size_t n) {
    if (c->base)
        *p = c->base + c->used;
    c->used += (n + 15) / 16 * 16;
}

static void carve_block(struct carve *c, struct block_acts *b, const struct intra_model_config *m,
                        size_t n, bool spine_only) {
    size_t d = (size_t)m->d_model, qkv = (size_t)(m->n_heads + 2 * m->n_kv_heads) * m->head_dim,
           f = (size_t)m->d_ff;
    if (spine_only) {
        take(c, &b->h1, n * d);
        return;
    }
    take(c, &b->y1, n * d);
    take(c, &b->rstd1, n);
    take(c, &b->qkv, n * qkv);
    take(c, &b->att, n * (size_t)m->n_heads * m->head_dim);
    take(c, &b->lse, n * (size_t)m->n_heads);
    take(c, &b->h2, n * d);
    take(c, &b->y2, n * d);
    take(c, &b->rstd2, n);
    take(c, &b->gu, n * 2 * f);
    take(c, &b->act, n * f);
}

static void carve_scratch(struct carve *c, struct intra_acts *a, const struct intra_model *m) {
    size_t n = (size_t)a->B * a->T, d = (size_t)m->c.d_model, rank = (size_t)m->trainable.lora_rank;
    const struct intra_model_config *part = &m->local;
    take(c, &a->r, n * d);
    take(c, &a->hf, n * d);
    take(c, &a->yf, n * d);
    take(c, &a->rstdf, n);
    take(c, &a->lora, n * rank);
    take(c, &a->logits, intra_vocab_scratch(m));
    if (!a->backward)
        return;
    take(c, &a->dh, n * d);
    take(c, &a->dy, n * d);
    take(c, &a->dqkv, n * (size_t)(part->n_heads + 2 * part->n_kv_heads) * part->head_dim);
    take(c, &a->datt, n * (size_t)part->n_heads * part->head_dim);
    take(c, &a->delta, n * (size_t)part->n_heads);
    take(c, &a->dact, n * (size_t)part->d_ff);
    take(c, &a->dlora, n * rank);
}

static void carve_all(struct carve *c, struct intra_acts *a, const struct intra_model *m) {
    size_t n = (size_t)a->B * a->T;
    bool keep = a->backward && !a->recompute, own = a->first == a;
    for (int32_t l = 0; l < m->local.n_layers; l++) {
        struct block_acts *b = &a->blocks[l];
        if (a->backward || l == 0)
            carve_block(c, b, &m->local, n, true);
        else
            b->h1 = a->blocks[0].h1;
        if (keep || (l == 0 && own)) {
            carve_block(c, b, &m->local, n, false);
        } else {
            float *h1 = b->h1;
            *b = a->first->blocks[0];
            b->h1 = h1;
        }
    }
    if (own)
        carve_scratch(c, a, m);
}

// Scratch of another: all pointers but what is a's own.
static void share_scratch(struct intra_acts *a, const struct intra_acts *first) {
    struct intra_acts own = *a;
    *a = *first;
    a->blocks = own.blocks;
    a->arena = NULL;
    a->holds = NULL;
}

static enum neb_status make(const struct intra_model *m, struct intra_acts *first, int B, int T,
                            bool backward, bool recompute, struct intra_acts **out) {
    struct intra_acts *a = calloc(1, sizeof *a);
    if (!a || !(a->blocks = calloc((size_t)m->local.n_layers, sizeof *a->blocks)))
        goto nomem;
    if (first)
        share_scratch(a, first);
    a->B = B;
    a->T = T;
    a->backward = backward;
    a->recompute = recompute;
    a->first = first ? first : a;
    struct carve c = {0};
    carve_all(&c, a, m);
    size_t total = c.used;
    a->bytes = total * sizeof(float);
    if (!(a->arena = aligned_alloc(64, total * sizeof(float))))
        goto nomem;
    memset(a->arena, 0, total * sizeof(float)); // touch the pages now, not in the first step
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
    return make(m, NULL, B, T, backward, recompute, out);
}

enum neb_status intra_acts_create_more(const struct intra_model *m, struct intra_acts *first,
                                       struct intra_acts **out) {
    NEB_ASSERT(first->first == first);
    return make(m, first, first->B, first->T, first->backward, first->recompute, out);
}

size_t intra_acts_bytes(const struct intra_acts *a) { return a->bytes; }
float *intra_acts_in(struct intra_acts *a) { return a->hf; }
float *intra_acts_out(struct intra_acts *a) { return a->r; }
float *intra_acts_grad(struct intra_acts *a) { return a->dh; }

void intra_acts_destroy(struct intra_acts **ap) {
    if (*ap) {
        free((*ap)->arena);
        free((*ap)->blocks);
    }
    free(*ap);
    *ap = NULL;
}

// y (n, out; row stride ld) = x (n, in) W^T. The adapter of each part of a fused matrix is added to its columns.
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

// dx (n, in) = dy W (dx NULL: not wanted); dW += dy^T x where the weight learns; adapters likewise.
static void linear_bwd(struct kern *K, const struct intra_model *m, const struct intra_acts *a,
                       float *dx, const float *dy, int ld, const float *x, int n, int out, int in,
                       const struct intra_tensor *w, const struct intra_lora_pair *lora,
                       int parts) {
    if (w->trainable)
        K->ops->gemm(K, KERN_T, KERN_N, out, in, n, 1, dy, ld, x, in, 1, intra_grad(m, w), in);
    if (dx)
        K->ops->gemm(K, KERN_N, KERN_N, n, in, out, 1, dy, ld, intra_param(m, w), in, 0, dx, in);
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
};

static struct shape shape_of(const struct intra_model *m, int B, int T) {
    const struct intra_model_config *c = &m->local;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    return (struct shape){B, T, B * T, c->d_model, q, kv, q + 2 * kv, c->d_ff};
}

static struct kern_attn attn_shape(const struct intra_model *m, const struct shape *s) {
    const struct intra_model_config *c = &m->local;
    return (struct kern_attn){s->B, s->T, c->n_heads, c->n_kv_heads, c->head_dim, c->mask, NULL};
}

// From h (and r, unless NULL) through block l; leaves what it adds in a->r. again: only what backward needs of it.
static void block_fwd(struct kern *K, struct intra_model *m, struct intra_acts *a, int32_t l,
                      const float *h, const float *r, const struct shape *s, bool again) {
    const struct intra_layer *y = &m->layers[l];
    struct block_acts *b = &a->blocks[l - m->layer0];
    K->ops->rmsnorm_fwd(K, b->y1, b->rstd1, b->h1, h, r, intra_param(m, y->norm1), s->n, s->d,
                        m->c.norm_eps);
    linear(K, m, a, b->qkv, s->qkv, b->y1, s->n, s->qkv, s->d, y->q, &y->lora[0], 3);
    if (y->q_bias)
        K->ops->bias_fwd(K, b->qkv, intra_param(m, y->q_bias), s->n, s->qkv);
    K->ops->rope(K, b->qkv, s->qkv, m->rope, s->n, s->T, m->local.n_heads + m->local.n_kv_heads,
                 m->c.head_dim, false);
    struct kern_attn at = attn_shape(m, s);
    K->ops->attn_fwd(K, &at, b->att, s->q, b->lse, b->qkv, s->qkv, b->qkv + s->q, s->qkv,
                     b->qkv + s->q + s->kv, s->qkv);
    linear(K, m, a, a->r, s->d, b->att, s->n, s->d, s->q, y->o, &y->lora[3], 1);
    intra_model_sum_tp(m, a->r, (size_t)s->n * s->d);
    K->ops->rmsnorm_fwd(K, b->y2, b->rstd2, b->h2, b->h1, a->r, intra_param(m, y->norm2), s->n,
                        s->d, m->c.norm_eps);
    linear(K, m, a, b->gu, 2 * s->f, b->y2, s->n, 2 * s->f, s->d, y->gate, &y->lora[4], 2);
    K->ops->swiglu_fwd(K, b->act, b->gu, s->n, s->f);
    if (again)
        return;
    linear(K, m, a, a->r, s->d, b->act, s->n, s->d, s->f, y->down, &y->lora[6], 1);
    intra_model_sum_tp(m, a->r, (size_t)s->n * s->d);
}

// a->dh: gradient of the stream after block l on entry, before it on return. below: something under this block learns.
static void block_bwd(struct kern *K, struct intra_model *m, struct intra_acts *a, int32_t l,
                      const struct shape *s, bool below) {
    const struct intra_layer *y = &m->layers[l];
    struct block_acts *b = &a->blocks[l - m->layer0];
    struct kern_attn at = attn_shape(m, s);
    linear_bwd(K, m, a, a->dact, a->dh, s->d, b->act, s->n, s->d, s->f, y->down, &y->lora[6], 1);
    K->ops->swiglu_bwd(K, b->gu, a->dact, b->gu, s->n, s->f); // in place: gu is not needed again
    linear_bwd(K, m, a, a->dy, b->gu, 2 * s->f, b->y2, s->n, 2 * s->f, s->d, y->gate, &y->lora[4],
               2);
    intra_model_sum_tp(m, a->dy, (size_t)s->n * s->d);
    K->ops->rmsnorm_bwd(K, a->dh, intra_grad(m, y->norm2), a->dy, b->h2, intra_param(m, y->norm2),
                        b->rstd2, s->n, s->d);
    linear_bwd(K, m, a, a->datt, a->dh, s->d, b->att, s->n, s->d, s->q, y->o, &y->lora[3], 1);
    float *dq = a->dqkv, *dk = a->dqkv + s->q, *dv = dk + s->kv;
    K->ops->attn_bwd(K, &at, dq, dk, dv, a->datt, b->att, s->q, b->lse, b->qkv, s->qkv,
                     b->qkv + s->q, s->qkv, b->qkv + s->q + s->kv, s->qkv, a->delta);
    K->ops->rope(K, a->dqkv, s->qkv, m->rope, s->n, s->T, m->local.n_heads + m->local.n_kv_heads,
                 m->c.head_dim, true);
    if (y->q_bias && y->q_bias->trainable)
        K->ops->bias_bwd(K, intra_grad(m, y->q_bias), a->dqkv, s->n, s->qkv);
    bool through = below || y->norm1->trainable;
    linear_bwd(K, m, a, through ? a->dy : NULL, a->dqkv, s->qkv, b->y1, s->n, s->qkv, s->d, y->q,
               &y->lora[0], 3);
    if (!through)
        return;
    intra_model_sum_tp(m, a->dy, (size_t)s->n * s->d);
    K->ops->rmsnorm_bwd(K, a->dh, intra_grad(m, y->norm1), a->dy, b->h1, intra_param(m, y->norm1),
                        b->rstd1, s->n, s->d);
}

// Final norm and loss.
static void head_fwd(struct kern *K, struct intra_model *m, struct intra_acts *a, const float *h,
                     const int32_t *targets, const struct shape *s, float grad_scale, double *loss,
                     int64_t *count) {
    K->ops->rmsnorm_fwd(K, a->yf, a->rstdf, a->hf, h, a->r, intra_param(m, m->norm), s->n, s->d,
                        m->c.norm_eps);
    if (!targets)
        return;
    bool learn = grad_scale > 0;
    struct kern_head head = {.n = s->n,
                             .d = s->d,
                             .V = m->local.vocab,
                             .x = a->yf,
                             .w = intra_param(m, m->head),
                             .targets = targets,
                             .grad_scale = grad_scale,
                             .dx = learn ? a->dy : NULL,
                             .dw = learn ? intra_grad(m, m->head) : NULL};
    *loss = intra_vocab_head(K, m, &head, a->logits, count);
}

void intra_model_forward(struct kern *K, struct intra_model *m, struct intra_acts *a,
                         const int32_t *tokens, const int32_t *targets, int B, int T,
                         float grad_scale, double *loss, int64_t *count) {
    NEB_ASSERT(B <= a->B && T <= m->c.max_seq && (size_t)B * T <= (size_t)a->B * a->T);
    NEB_ASSERT(grad_scale == 0 || (a->backward && m->grads));
    struct shape s = shape_of(m, B, T);
    const float *h = a->hf; // the embedding goes where the final norm writes later: free until then
    if (intra_model_first(m))
        intra_vocab_embed(K, m, a->hf, tokens, s.n);
    int32_t end = m->layer0 + m->local.n_layers;
    for (int32_t l = m->layer0; l < end; l++) {
        block_fwd(K, m, a, l, h, l > m->layer0 ? a->r : NULL, &s, false);
        h = a->blocks[l - m->layer0].h2;
    }
    a->first->holds = a;
    if (intra_model_last(m)) {
        head_fwd(K, m, a, h, targets, &s, grad_scale, loss, count);
    } else {
        K->ops->add(K, a->r, h, (size_t)s.n * s.d);
        *loss = 0;
        *count = 0;
    }
}

void intra_model_backward(struct kern *K, struct intra_model *m, struct intra_acts *a,
                          const int32_t *tokens, int B, int T) {
    struct shape s = shape_of(m, B, T);
    int32_t end = m->layer0 + m->local.n_layers;
    if (intra_model_last(m)) {
        K->ops->zero(K, a->dh, (size_t)s.n * s.d);
        K->ops->rmsnorm_bwd(K, a->dh, intra_grad(m, m->norm), a->dy, a->hf, intra_param(m, m->norm),
                            a->rstdf, s.n, s.d);
    }
    for (int32_t l = end - 1; l >= m->layer0 && l >= m->low; l--) {
        if (a->recompute &&
            (l < end - 1 || a->first->holds != a)) // else the block's are still there
            block_fwd(K, m, a, l, a->blocks[l - m->layer0].h1, NULL, &s, true);
        a->first->holds = NULL;
        block_bwd(K, m, a, l, &s, m->low < l);
    }
    if (intra_model_first(m) && m->embed->trainable)
        intra_vocab_embed_bwd(K, m, a->dh, tokens, s.n);
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
