// SPDX-License-Identifier: Apache-2.0
#include "kernels/count.h"

#include <limits.h>
#include <stdlib.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" // ops that do nothing use none

enum { ALIGN = 256, ATTN_BLOCK = 64 };

struct counting {
    struct kern K;
    struct kern_counts n;
};
struct piece { // what stands for a piece of device memory
    size_t bytes;
    char unused[ALIGN - sizeof(size_t)];
};

struct kern_counts *kern_counts(const struct kern *K) {
    return &((struct counting *)K->ctx)->n;
}

// ---- memory -------------------------------------------------------------------------------------

static enum neb_status count_alloc(struct kern *K, size_t bytes, void **out) {
    struct kern_counts *n = kern_counts(K);
    struct piece *p = aligned_alloc(ALIGN, sizeof *p);
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory counting a device's memory");
    p->bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    n->bytes += p->bytes;
    n->peak = n->bytes > n->peak ? n->bytes : n->peak;
    *out = p;
    return NEB_OK;
}

static void count_release(struct kern *K, void *p) {
    if (p)
        kern_counts(K)->bytes -= ((struct piece *)p)->bytes;
    free(p);
}

static enum neb_status alloc_pinned(struct kern *K, size_t bytes, void **out) {
    *out = calloc(1, bytes + 1);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory counting for %s", K->name);
}

static void release_pinned(struct kern *K, void *p) { free(p); }

// ---- arithmetic ---------------------------------------------------------------------------------

static void product(struct kern *K, double m, double n, double k) {
    kern_counts(K)->flops += 2 * m * n * k;
}

double kern_attn_flops(const struct kern_attn *s) {
    double blocks = (s->T + ATTN_BLOCK) / 2.0,
           keys = s->mask == KERN_MASK_BIDIRECTIONAL || blocks > s->T ? s->T : blocks;
    return 4.0 * s->B * s->T * keys * s->n_heads * s->head_dim;
}

static void gemm(struct kern *K, const struct kern_gemm *g) { product(K, g->m, g->n, g->k); }

static void linear_bwd(struct kern *K, const struct kern_linear_bwd *l) {
    product(K, l->n, l->out, (double)l->in * ((l->dx != NULL) + (l->dw != NULL)));
}

static void attn_fwd(struct kern *K, enum kern_type t, const struct kern_attn *s, void *out,
                     int ldo, float *lse, const void *q, int ldq, const void *k, int ldk,
                     const void *v, int ldv) {
    kern_counts(K)->flops += kern_attn_flops(s);
}

static void attn_bwd(struct kern *K, enum kern_type t, const struct kern_attn *s, void *dq,
                     void *dk, void *dv, const void *dout, const void *out, int ldo,
                     const float *lse, const void *q, int ldq, const void *k, int ldk,
                     const void *v, int ldv, float *delta, const float *cos_sin) {
    kern_counts(K)->flops += KERN_ATTN_BACKWARD * kern_attn_flops(s);
}

// The product, and in backward those of dx and dw.
static void head_loss(struct kern *K, enum kern_type t, const struct kern_head *h,
                      const struct kern_soft *soft) {
    product(K, h->n, h->V, (double)h->d * (!h->dx ? 1 : h->dw ? 3 : 2));
}

static void sample_rows(struct kern *K, enum kern_type t, const struct kern_rows *r,
                        float temperature, const double *u, int32_t *ids) {
    product(K, r->n, r->V, r->d);
}

static void label_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, int k,
                       float temperature, int32_t *ids, float *logp, float *tail) {
    product(K, r->n, r->V, r->d);
}

// ---- the device ---------------------------------------------------------------------------------

// Ops of training that neither allocate nor count.
#define IDLE_OPS(X)                                                                                \
    X(upload, void *dst, const void *src, size_t bytes)                                            \
    X(download, void *dst, const void *src, size_t bytes)                                          \
    X(copy, void *dst, const void *src, size_t bytes)                                              \
    X(zero, void *p, size_t bytes)                                                                 \
    X(mark, int slot)                                                                              \
    X(wait, int slot)                                                                              \
    X(cast, enum kern_type t, void *out, const float *x, size_t n)                                 \
    X(embed_fwd, enum kern_type t, void *out, const void *table, const int32_t *ids, int n, int d) \
    X(embed_bwd, float *dtable, const float *dout, const struct kern_buckets *b, int n, int d)     \
    X(rmsnorm_fwd, enum kern_type t, enum kern_type tr, void *y, float *rstd, float *h,            \
      const float *x, const void *r, const float *w, int n, int d, float eps)                      \
    X(rmsnorm_bwd, enum kern_type t, float *dh, void *dh_t, float *dw, const void *dy,             \
      const float *h, const float *w, const float *rstd, int n, int d)                             \
    X(rope, enum kern_type t, void *x, int ld, const float *cos_sin, int n, int T, int heads,      \
      int head_dim, bool inverse)                                                                  \
    X(cache_put, enum kern_type t, const struct kern_cache *c, int B, int T, const int32_t *slot,  \
      const int32_t *at, const void *k, const void *v, int ld)                                     \
    X(cache_copy, enum kern_type t, const struct kern_cache *c, const int32_t *pairs, int m,       \
      int n)                                                                                       \
    X(cache_attn, enum kern_type t, const struct kern_cache *c, int B, const int32_t *slot,        \
      const int32_t *at, void *out, int ldo, const void *q, int ldq)                               \
    X(swiglu_fwd, enum kern_type t, void *y, const void *gu, int n, int f)                         \
    X(swiglu_bwd, enum kern_type t, void *dgu, const void *dy, const void *gu, int n, int f)       \
    X(bias_fwd, enum kern_type t, void *x, const float *b, int n, int d)                           \
    X(bias_bwd, enum kern_type t, float *db, const void *dy, int n, int d)                         \
    X(vocab_max, enum kern_type t, const struct kern_vocab *v)                                     \
    X(vocab_sum, enum kern_type t, const struct kern_vocab *v)                                     \
    X(vocab_loss, enum kern_type t, const struct kern_vocab *v)                                    \
    X(rtd_loss, enum kern_type t, const struct kern_rtd *h)                                        \
    X(sumsq, const struct kern_chunk *chunks, int n_chunks, const int32_t *first, int tensors,     \
      const float *grads, double *sums)                                                            \
    X(adamw, enum kern_type t, const struct kern_update *u)                                        \
    X(normalise, enum kern_type t, void *x, int ldx, const float *g, int rows, int cols,           \
      const double *sumsq)                                                                         \
    X(matrix_step, enum kern_type t, const struct kern_matrix_step *s)                             \
    X(scale, float *y, float a, size_t n)                                                          \
    X(add, float *y, const float *x, size_t n)

#define IDLE_OP(name, ...)                                                                         \
    static void name(struct kern *K, __VA_ARGS__) {}
#define IDLE_ROW(name, ...) .name = name,
IDLE_OPS(IDLE_OP)

static size_t free_bytes(struct kern *K) { return 0; }
static void *queue(struct kern *K) { return NULL; }
static double elapsed_ms(struct kern *K, int from, int to) { return 0; }
static enum neb_status finish(struct kern *K) { return NEB_OK; }

static void destroy(struct kern *K) { free(K->ctx); }

static const struct kern_ops counting_ops = {.name = "counting",
                                             .destroy = destroy,
                                             .alloc = count_alloc,
                                             .release = count_release,
                                             .alloc_pinned = alloc_pinned,
                                             .release_pinned = release_pinned,
                                             .free_bytes = free_bytes,
                                             .elapsed_ms = elapsed_ms,
                                             .queue = queue,
                                             .finish = finish,
                                             .gemm = gemm,
                                             .linear_bwd = linear_bwd,
                                             .attn_fwd = attn_fwd,
                                             .attn_bwd = attn_bwd,
                                             .head_loss = head_loss,
                                             .sample_rows = sample_rows,
                                             .label_rows = label_rows,
                                             IDLE_OPS(IDLE_ROW)};

enum neb_status kern_counting_create(size_t total_bytes, struct kern **out) {
    struct counting *c = calloc(1, sizeof *c);
    if (!c)
        return neb_fail(NEB_ERR_NOMEM, "out of memory counting a device's memory");
    c->K = (struct kern){.ops = &counting_ops,
                         .count = 1,
                         .name = "a counting device",
                         .total_bytes = total_bytes,
                         .tensor_cores_bf16 = true,
                         .norm_most = INT_MAX,
                         .ctx = c};
    *out = &c->K;
    return NEB_OK;
}
