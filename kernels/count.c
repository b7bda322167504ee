// SPDX-License-Identifier: Apache-2.0
#include "kernels/count.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, ATTN_BLOCK = 64 };

struct counting {
    struct kern_device D;
    struct kern_device_ops ops;
    struct kern_counts n;
};
struct piece { // what stands for a piece of device memory
    size_t bytes;
    char unused[ALIGN - sizeof(size_t)];
};

struct kern_counts *kern_device_counts(const struct kern_device *D) {
    return &((struct counting *)D->ctx)->n;
}

// ---- memory -------------------------------------------------------------------------------------

static enum neb_status count_alloc(struct kern_device *D, size_t bytes, void **out) {
    struct kern_counts *n = kern_device_counts(D);
    struct piece *p = aligned_alloc(ALIGN, sizeof *p);
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory counting a device's memory");
    p->bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    n->bytes += p->bytes;
    n->peak = n->bytes > n->peak ? n->bytes : n->peak;
    *out = p;
    return NEB_OK;
}

static void count_release(struct kern_device *D, void *p) {
    if (p)
        kern_device_counts(D)->bytes -= ((struct piece *)p)->bytes;
    free(p);
}

static enum neb_status alloc_pinned(struct kern_device *D, size_t bytes, void **out) {
    *out = calloc(1, bytes + 1);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory counting for %s", D->name);
}

static void release_pinned(struct kern_device *D, void *p) {
    (void)D;
    free(p);
}

// ---- arithmetic ---------------------------------------------------------------------------------

static void product(struct kern_device *D, double m, double n, double k) {
    kern_device_counts(D)->flops += 2 * m * n * k;
}

double kern_attn_flops(const struct kern_attn *s) {
    double blocks = (s->T + ATTN_BLOCK) / 2.0,
           keys = s->mask == KERN_MASK_BIDIRECTIONAL || blocks > s->T ? s->T : blocks;
    return 4.0 * s->B * s->T * keys * s->n_heads * s->head_dim;
}

static void gemm(struct kern_device *D, enum kern_type t, enum kern_type tc, enum kern_trans ta,
                 enum kern_trans tb, int m, int n, int k, float alpha, const void *a, int lda,
                 const void *b, int ldb, float beta, void *c, int ldc, const void *bias) {
    (void)t, (void)tc, (void)ta, (void)tb, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb;
    (void)beta, (void)c, (void)ldc, (void)bias;
    product(D, m, n, k);
}

static void gemm_grads(struct kern_device *D, enum kern_type t, int m, int n, int k, const void *dy,
                       const void *x, int ldx, float *dw, float *db) {
    (void)t, (void)dy, (void)x, (void)ldx, (void)dw, (void)db;
    product(D, m, n, k);
}

static void attn_fwd(struct kern_device *D, enum kern_type t, const struct kern_attn *s, void *out,
                     int ldo, float *lse, const void *q, int ldq, const void *k, int ldk,
                     const void *v, int ldv) {
    (void)t, (void)out, (void)ldo, (void)lse, (void)q, (void)ldq, (void)k, (void)ldk;
    (void)v, (void)ldv;
    kern_device_counts(D)->flops += kern_attn_flops(s);
}

static void attn_bwd(struct kern_device *D, enum kern_type t, const struct kern_attn *s, void *dq,
                     void *dk, void *dv, const void *dout, const void *out, int ldo,
                     const float *lse, const void *q, int ldq, const void *k, int ldk,
                     const void *v, int ldv, float *delta, const float *cos_sin) {
    (void)dq, (void)dk, (void)dv, (void)dout, (void)delta, (void)cos_sin, (void)lse, (void)out;
    (void)t, (void)ldo, (void)q, (void)ldq, (void)k, (void)ldk, (void)v, (void)ldv;
    kern_device_counts(D)->flops += KERN_ATTN_BACKWARD * kern_attn_flops(s);
}

// The product, and in backward those of dx and dw.
static void head_loss(struct kern_device *D, enum kern_type t, const struct kern_device_head *h) {
    (void)t;
    product(D, h->n, h->V, (double)h->d * (!h->learn ? 1 : h->dw ? 3 : 2));
}

static void distill_loss(struct kern_device *D, enum kern_type t, const struct kern_device_head *h,
                         const struct kern_device_soft *s) {
    (void)s;
    head_loss(D, t, h);
}

static void sample_rows(struct kern_device *D, enum kern_type t, const struct kern_device_rows *r,
                        const float *u, int32_t *ids) {
    (void)t, (void)u, (void)ids;
    product(D, r->n, r->V, r->d);
}

static void label_rows(struct kern_device *D, enum kern_type t, const struct kern_device_rows *r,
                       int k, float temperature, int32_t *ids, float *logp, float *tail) {
    (void)t, (void)k, (void)temperature, (void)ids, (void)logp, (void)tail;
    product(D, r->n, r->V, r->d);
}

// ---- the device ---------------------------------------------------------------------------------

static uintptr_t nothing(void) { return 0; }

void kern_count_nothing(void *table, size_t bytes) {
    uintptr_t (*op)(void) = nothing;
    for (size_t at = 0; at < bytes; at += sizeof op)
        memcpy((char *)table + at, &op, sizeof op);
}

static void destroy(struct kern_device *D) { free(D->ctx); }

enum neb_status kern_device_counting(size_t total_bytes, struct kern_device **out) {
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
    c->ops.gemm_grads = gemm_grads;
    c->ops.attn_fwd = attn_fwd;
    c->ops.attn_bwd = attn_bwd;
    c->ops.head_loss = head_loss;
    c->ops.distill_loss = distill_loss;
    c->ops.sample_rows = sample_rows;
    c->ops.label_rows = label_rows;
    c->ops.destroy = destroy;
    c->D = (struct kern_device){.ops = &c->ops,
                                .count = 1,
                                .name = "a counting device",
                                .total_bytes = total_bytes,
                                .tensor_cores_bf16 = true,
                                .norm_most = INT_MAX,
                                .ctx = c};
    *out = &c->D;
    return NEB_OK;
}
