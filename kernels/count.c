// SPDX-License-Identifier: Apache-2.0
#include "kernels/count.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, ATTN_BLOCK = 64 };

struct counting {
    struct kern K;
    struct kern_ops ops;
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

static void release_pinned(struct kern *K, void *p) {
    (void)K;
    free(p);
}

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
    (void)t, (void)out, (void)ldo, (void)lse, (void)q, (void)ldq, (void)k, (void)ldk;
    (void)v, (void)ldv;
    kern_counts(K)->flops += kern_attn_flops(s);
}

static void attn_bwd(struct kern *K, enum kern_type t, const struct kern_attn *s, void *dq,
                     void *dk, void *dv, const void *dout, const void *out, int ldo,
                     const float *lse, const void *q, int ldq, const void *k, int ldk,
                     const void *v, int ldv, float *delta, const float *cos_sin) {
    (void)dq, (void)dk, (void)dv, (void)dout, (void)delta, (void)cos_sin, (void)lse, (void)out;
    (void)t, (void)ldo, (void)q, (void)ldq, (void)k, (void)ldk, (void)v, (void)ldv;
    kern_counts(K)->flops += KERN_ATTN_BACKWARD * kern_attn_flops(s);
}

// The product, and in backward those of dx and dw.
static void head_loss(struct kern *K, enum kern_type t, const struct kern_head *h,
                      const struct kern_soft *soft) {
    (void)t, (void)soft;
    product(K, h->n, h->V, (double)h->d * (!h->dx ? 1 : h->dw ? 3 : 2));
}

static void sample_rows(struct kern *K, enum kern_type t, const struct kern_rows *r,
                        const double *u, int32_t *ids) {
    (void)t, (void)u, (void)ids;
    product(K, r->n, r->V, r->d);
}

static void label_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, int k,
                       float temperature, int32_t *ids, float *logp, float *tail) {
    (void)t, (void)k, (void)temperature, (void)ids, (void)logp, (void)tail;
    product(K, r->n, r->V, r->d);
}

// ---- the device ---------------------------------------------------------------------------------

static uintptr_t nothing(void) { return 0; }

void kern_count_nothing(void *table, size_t bytes) {
    uintptr_t (*op)(void) = nothing;
    for (size_t at = 0; at < bytes; at += sizeof op)
        memcpy((char *)table + at, &op, sizeof op);
}

static void destroy(struct kern *K) { free(K->ctx); }

enum neb_status kern_counting_create(size_t total_bytes, struct kern **out) {
    struct counting *c = calloc(1, sizeof *c);
    if (!c)
        return neb_fail(NEB_ERR_NOMEM, "out of memory counting a device's memory");
    kern_count_nothing(&c->ops, sizeof c->ops);
    c->ops.name = "counting";
    c->ops.alloc = count_alloc;
    c->ops.release = count_release;
    c->ops.alloc_pinned = alloc_pinned;
    c->ops.release_pinned = release_pinned;
    c->ops.gemm = gemm;
    c->ops.linear_bwd = linear_bwd;
    c->ops.attn_fwd = attn_fwd;
    c->ops.attn_bwd = attn_bwd;
    c->ops.head_loss = head_loss;
    c->ops.sample_rows = sample_rows;
    c->ops.label_rows = label_rows;
    c->ops.destroy = destroy;
    c->K = (struct kern){.ops = &c->ops,
                         .count = 1,
                         .name = "a counting device",
                         .total_bytes = total_bytes,
                         .tensor_cores_bf16 = true,
                         .norm_most = INT_MAX,
                         .ctx = c};
    *out = &c->K;
    return NEB_OK;
}
