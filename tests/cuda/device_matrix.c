// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_matrix.h"
#include "tests/cuda/device_arrays.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIMS = 9 };

// ---- the ops: the comment after each names its dimensions d[] ----

static void op_gemm(struct run *r) { // m n k ta tb beta/8 pad out_fp32
    const int *d = r->d;
    enum kern_trans ta = d[3] ? KERN_T : KERN_N, tb = d[4] ? KERN_T : KERN_N;
    enum kern_type tc = d[7] ? KERN_F32 : r->t;
    int lda = (ta ? d[0] : d[2]) + d[6], ldb = (tb ? d[2] : d[1]) + d[6], ldc = d[1] + d[6];
    struct array *a = input(r, r->t, (size_t)(ta ? d[2] : d[0]) * lda, 1),
                 *b = input(r, r->t, (size_t)(tb ? d[1] : d[2]) * ldb, 1),
                 *c = added(r, tc, (size_t)d[0] * ldc);
    r->ref->ops->gemm(r->ref, &(struct kern_gemm){.ta = ta,
                                                  .tb = tb,
                                                  .m = d[0],
                                                  .n = d[1],
                                                  .k = d[2],
                                                  .alpha = 0.5f,
                                                  .a = a->host,
                                                  .lda = lda,
                                                  .b = b->host,
                                                  .ldb = ldb,
                                                  .beta = (float)d[5] / 8,
                                                  .c = c->host,
                                                  .ldc = ldc});
    r->D->ops->gemm(r->D, &(struct kern_gemm){.t = r->t,
                                              .tc = tc,
                                              .ta = ta,
                                              .tb = tb,
                                              .m = d[0],
                                              .n = d[1],
                                              .k = d[2],
                                              .alpha = 0.5f,
                                              .a = dev(a),
                                              .lda = lda,
                                              .b = dev(b),
                                              .ldb = ldb,
                                              .beta = (float)d[5] / 8,
                                              .c = dev(c),
                                              .ldc = ldc});
}
static void op_gemm_bias(struct run *r) { // m n k
    const int *d = r->d;
    struct array *a = input(r, r->t, (size_t)d[0] * d[2], 1),
                 *b = input(r, r->t, (size_t)d[1] * d[2], 1),
                 *bias = input(r, r->t, (size_t)d[1], 3),
                 *c = written(r, r->t, (size_t)d[0] * d[1]);
    r->ref->ops->gemm(r->ref, &(struct kern_gemm){.tb = KERN_T,
                                                  .m = d[0],
                                                  .n = d[1],
                                                  .k = d[2],
                                                  .alpha = 1,
                                                  .a = a->host,
                                                  .lda = d[2],
                                                  .b = b->host,
                                                  .ldb = d[2],
                                                  .c = c->host,
                                                  .ldc = d[1]});
    r->ref->ops->bias_fwd(r->ref, KERN_F32, c->host, bias->host, d[0], d[1]);
    r->D->ops->gemm(r->D, &(struct kern_gemm){.t = r->t,
                                              .tc = r->t,
                                              .tb = KERN_T,
                                              .m = d[0],
                                              .n = d[1],
                                              .k = d[2],
                                              .alpha = 1,
                                              .a = dev(a),
                                              .lda = d[2],
                                              .b = dev(b),
                                              .ldb = d[2],
                                              .c = dev(c),
                                              .ldc = d[1],
                                              .bias = dev(bias)});
}
// Gradients of a linear layer. Without dw, the bias may be the only output.
static void op_linear_bwd(struct run *r) { // out in n frozen also_dx fp32_dx
    const int *d = r->d;
    size_t out = (size_t)d[0], in = (size_t)d[1], n = (size_t)d[2];
    enum kern_type tx = d[5] ? KERN_F32 : r->t;
    struct array *dy = input(r, r->t, n * out, 1), *x = input(r, r->t, n * in, 1),
                 *w = input(r, r->t, out * in, 1), *dw = d[3] ? NULL : added(r, KERN_F32, out * in),
                 *db = added(r, KERN_F32, out), *dx = d[4] ? written(r, tx, n * in) : NULL;
    struct kern_linear_bwd host = {.n = d[2],
                                   .out = d[0],
                                   .in = d[1],
                                   .dy = dy->host,
                                   .ld = d[0],
                                   .x = x->host,
                                   .w = w->host,
                                   .dx = dx ? dx->host : NULL,
                                   .dw = dw ? dw->host : NULL,
                                   .db = db->host},
                           on = {.t = r->t,
                                 .tx = tx,
                                 .n = d[2],
                                 .out = d[0],
                                 .in = d[1],
                                 .dy = dev(dy),
                                 .ld = d[0],
                                 .x = dev(x),
                                 .w = dev(w),
                                 .dx = dev(dx),
                                 .dw = dev(dw),
                                 .db = dev(db)};
    r->ref->ops->linear_bwd(r->ref, &host);
    r->D->ops->linear_bwd(r->D, &on);
}
static void op_cast(struct run *r) {
    size_t n = (size_t)r->d[0];
    struct array *x = input(r, KERN_F32, n, 1), *y = written(r, r->t, n);
    for (size_t i = 0; i < n; i++)
        y->host[i] = round_to(r->t, x->host[i]);
    r->D->ops->cast(r->D, r->t, dev(y), dev(x), n);
}
static void op_embed_fwd(struct run *r) { // n d V elsewhere
    const int *d = r->d;
    int32_t *at = ids(r, d[0], d[2]);
    size_t width = (size_t)d[1];
    for (int i = 0; d[3] && i < d[0]; i += d[3])
        at[i] = -1;
    struct array *table = input(r, r->t, (size_t)d[2] * width, 1),
                 *y = written(r, r->t, (size_t)d[0] * width), *i = ints(r, at, (size_t)d[0]);
    r->ref->ops->embed_fwd(r->ref, KERN_F32, y->host, table->host, at, d[0], d[1]);
    r->D->ops->embed_fwd(r->D, r->t, dev(y), dev(table), dev(i), d[0], d[1]);
}
static void op_embed_bwd(struct run *r) { // n d V elsewhere
    const int *d = r->d;
    size_t n = (size_t)d[0];
    int32_t *at = ids(r, d[0], d[2]), *next = device_case_host(&r->k, (size_t)d[2] * 4),
            *room = device_case_host(&r->k, (3 * n + 2) * 4);
    struct kern_buckets b = {
        .ids = room, .start = room + n, .rows = room + 2 * n + 1, .used = room + 3 * n + 1};
    for (size_t k = 0; d[3] && k < n; k += (size_t)d[3])
        at[k] = -1;
    kern_buckets_fill(&b, at, d[0], next);
    struct array *dout = input(r, KERN_F32, n * d[1], 1),
                 *table = added(r, KERN_F32, (size_t)d[2] * d[1]), *i = ints(r, room, 3 * n + 2);
    r->ref->ops->embed_bwd(r->ref, table->host, dout->host, &b, d[0], d[1]);
    int32_t *on = dev(i);
    r->D->ops->embed_bwd(
        r->D, dev(table), dev(dout),
        &(struct kern_buckets){
            .used = on + 3 * n + 1, .ids = on, .start = on + n, .rows = on + 2 * n + 1},
        d[0], d[1]);
}
static void op_rms_fwd(struct run *r) { // n d residual (2: fp32) in-place
    const int *d = r->d;
    size_t n = (size_t)d[0] * d[1];
    enum kern_type tr = d[2] == 2 ? KERN_F32 : r->t;
    struct array *x = d[3] ? NULL : input(r, KERN_F32, n, 2),
                 *res = d[2] ? input(r, tr, n, 1) : NULL, *w = input(r, KERN_F32, (size_t)d[1], 1),
                 *h = d[3] ? added(r, KERN_F32, n) : written(r, KERN_F32, n),
                 *y = written(r, r->t, n), *rstd = written(r, KERN_F32, (size_t)d[0]);
    x = d[3] ? h : x;
    r->D->ops->rmsnorm_fwd(r->D, r->t, tr, dev(y), dev(rstd), dev(h), dev(x), dev(res), dev(w),
                           d[0], d[1], 1e-5f);
    r->ref->ops->rmsnorm_fwd(r->ref, KERN_F32, KERN_F32, y->host, rstd->host, h->host, x->host,
                             res ? res->host : NULL, w->host, d[0], d[1], 1e-5f);
}
static void op_rms_bwd(struct run *r) { // n d frozen also_t
    const int *d = r->d;
    size_t n = (size_t)d[0] * d[1];
    struct array *dy = input(r, r->t, n, 1), *h = input(r, KERN_F32, n, 1),
                 *w = input(r, KERN_F32, (size_t)d[1], 1), *dh = added(r, KERN_F32, n),
                 *dw = d[2] ? NULL : added(r, KERN_F32, (size_t)d[1]),
                 *dt = d[3] ? written(r, r->t, n) : NULL,
                 *rstd = array(r, KERN_F32, (size_t)d[0], false);
    for (int i = 0; i < d[0]; i++)
        rstd->host[i] = 0.5f + fabsf(neb_rng_normal(&r->rng));
    to_device(r, rstd);
    r->ref->ops->rmsnorm_bwd(r->ref, KERN_F32, dh->host, NULL, dw ? dw->host : NULL, dy->host,
                             h->host, w->host, rstd->host, d[0], d[1]);
    for (size_t i = 0; dt && i < n; i++)
        dt->host[i] = dh->host[i];
    r->D->ops->rmsnorm_bwd(r->D, r->t, dev(dh), dev(dt), dev(dw), dev(dy), dev(h), dev(w),
                           dev(rstd), d[0], d[1]);
}
static void op_rope(struct run *r) { // n T heads head_dim inverse pad
    const int *d = r->d;
    int ld = d[2] * d[3] + d[5];
    struct array *cs = array(r, KERN_F32, (size_t)d[1] * d[3], false),
                 *x = added(r, r->t, (size_t)d[0] * ld);
    kern_rope_table(cs->host, d[1], d[3], 10000, NULL);
    to_device(r, cs);
    r->ref->ops->rope(r->ref, KERN_F32, x->host, ld, cs->host, d[0], d[1], d[2], d[3], d[4] != 0);
    r->D->ops->rope(r->D, r->t, dev(x), ld, dev(cs), d[0], d[1], d[2], d[3], d[4] != 0);
}
static void op_swiglu_fwd(struct run *r) { // n f
    const int *d = r->d;
    struct array *gu = input(r, r->t, 2 * (size_t)d[0] * d[1], 4),
                 *y = written(r, r->t, (size_t)d[0] * d[1]);
    r->ref->ops->swiglu_fwd(r->ref, KERN_F32, y->host, gu->host, d[0], d[1]);
    r->D->ops->swiglu_fwd(r->D, r->t, dev(y), dev(gu), d[0], d[1]);
}
static void op_swiglu_bwd(struct run *r) { // n f in-place
    const int *d = r->d;
    size_t n = 2 * (size_t)d[0] * d[1];
    struct array *dy = input(r, r->t, n / 2, 1),
                 *gu = d[2] ? added(r, r->t, n) : input(r, r->t, n, 4),
                 *out = d[2] ? gu : written(r, r->t, n);
    r->ref->ops->swiglu_bwd(r->ref, KERN_F32, out->host, dy->host, gu->host, d[0], d[1]);
    r->D->ops->swiglu_bwd(r->D, r->t, dev(out), dev(dy), dev(gu), d[0], d[1]);
}
static void op_bias(struct run *r) { // n d
    const int *d = r->d;
    struct array *b = input(r, KERN_F32, (size_t)d[1], 1), *x = added(r, r->t, (size_t)d[0] * d[1]);
    r->ref->ops->bias_fwd(r->ref, KERN_F32, x->host, b->host, d[0], d[1]);
    r->D->ops->bias_fwd(r->D, r->t, dev(x), dev(b), d[0], d[1]);
}
static void op_bias_bwd(struct run *r) {
    const int *d = r->d;
    struct array *dy = input(r, r->t, (size_t)d[0] * d[1], 1),
                 *db = added(r, KERN_F32, (size_t)d[1]);
    r->ref->ops->bias_bwd(r->ref, KERN_F32, db->host, dy->host, d[0], d[1]);
    r->D->ops->bias_bwd(r->D, r->t, dev(db), dev(dy), d[0], d[1]);
}

// B T heads kv_heads head_dim mask size pad: q, k and v are slices of one row as in the model
struct attn_case {
    struct kern_attn s, on; // on: with the prefix lengths on the device
    int32_t *prefix;
    int ld, ldo;
    size_t rows, q, k; // elements before k and v in a row
    struct array *qkv;
};
static struct attn_case attn_case(struct run *r) {
    const int *d = r->d;
    struct attn_case c = {.prefix = ids(r, d[0], d[1] + 1)};
    c.s = (struct kern_attn){.B = d[0],
                             .T = d[1],
                             .n_heads = d[2],
                             .n_kv_heads = d[3],
                             .head_dim = d[4],
                             .mask = (enum kern_mask)d[5],
                             .prefix_len = c.prefix};
    c.on = c.s;
    c.on.prefix_len = dev(ints(r, c.prefix, (size_t)d[0]));
    c.ld = (d[2] + 2 * d[3]) * d[4] + d[7];
    c.ldo = d[2] * d[4];
    c.rows = (size_t)d[0] * d[1];
    c.q = (size_t)d[2] * d[4];
    c.k = c.q + (size_t)d[3] * d[4];
    c.qkv = input(r, r->t, c.rows * c.ld, (float)d[6]);
    return c;
}
static void *part(const struct array *a, size_t elements) {
    return (char *)dev(a) + elements * kern_type_bytes(a->t);
}
static void op_attn_fwd(struct run *r) {
    struct attn_case c = attn_case(r);
    struct array *out = written(r, r->t, c.rows * c.ldo),
                 *lse = written(r, KERN_F32, c.rows * c.s.n_heads);
    float *h = c.qkv->host;
    r->ref->ops->attn_fwd(r->ref, KERN_F32, &c.s, out->host, c.ldo, lse->host, h, c.ld, h + c.q,
                          c.ld, h + c.k, c.ld);
    r->D->ops->attn_fwd(r->D, r->t, &c.on, dev(out), c.ldo, dev(lse), dev(c.qkv), c.ld,
                        part(c.qkv, c.q), c.ld, part(c.qkv, c.k), c.ld);
}
// Puts several positions, copies a slot, adds one position to some slots and attends from there.
static void op_cache(struct run *r) { // B T heads kv head_dim longest pad
    const int *d = r->d;
    int B = d[0], width = d[3] * d[4], ld = 2 * width + d[2] * d[4] + d[6], ldo = d[2] * d[4];
    size_t room = (size_t)(B + 1) * (size_t)d[5] * (size_t)width;
    int32_t *slot = ids(r, B, 1), *at = ids(r, B, 1), *moved = ids(r, B, 1), pair[2] = {B, 0};
    struct array *k = added(r, r->t, room), *v = added(r, r->t, room),
                 *first = input(r, r->t, (size_t)(B * d[1]) * (size_t)ld, 1),
                 *next = input(r, r->t, (size_t)B * (size_t)ld, 1),
                 *out = written(r, r->t, (size_t)B * (size_t)ldo);
    for (int b = 0; b < B; b++) {
        slot[b] = B - b;
        moved[b] = b ? slot[b] : 0; // the first sequence goes on in another slot
    }
    struct array *slots = ints(r, slot, (size_t)B), *zeros = ints(r, at, (size_t)B),
                 *pairs = ints(r, pair, 2), *later = ints(r, moved, (size_t)B);
    struct kern_cache host = {d[2], d[3], d[4], d[5], k->host, v->host},
                      on = {d[2], d[3], d[4], d[5], dev(k), dev(v)};
    const struct kern_ops *R = r->ref->ops, *D = r->D->ops;
    R->cache_put(r->ref, KERN_F32, &host, B, d[1], slot, at, first->host, first->host + width, ld);
    D->cache_put(r->D, r->t, &on, B, d[1], dev(slots), dev(zeros), dev(first),
                 part(first, (size_t)width), ld);
    for (int b = 0; b < B; b++)
        at[b] = (d[1] + b * (d[5] - d[1]) / B) % d[5];
    struct array *ends = ints(r, at, (size_t)B);
    R->cache_copy(r->ref, KERN_F32, &host, pair, 1, at[0]);
    D->cache_copy(r->D, r->t, &on, dev(pairs), 1, at[0]);
    R->cache_put(r->ref, KERN_F32, &host, B, 1, moved, at, next->host, next->host + width, ld);
    D->cache_put(r->D, r->t, &on, B, 1, dev(later), dev(ends), dev(next), part(next, (size_t)width),
                 ld);
    R->cache_attn(r->ref, KERN_F32, &host, B, moved, at, out->host, ldo, next->host + 2 * width,
                  ld);
    D->cache_attn(r->D, r->t, &on, B, dev(later), dev(ends), dev(out), ldo,
                  part(next, 2 * (size_t)width), ld);
}
static void op_attn_bwd(struct run *r) {
    struct attn_case c = attn_case(r);
    struct array *dout = input(r, r->t, c.rows * c.ldo, 1),
                 *out = array(r, r->t, c.rows * c.ldo, false),
                 *lse = array(r, KERN_F32, c.rows * c.s.n_heads, false),
                 *delta = written(r, KERN_F32, c.rows * c.s.n_heads),
                 *g = added(r, r->t, c.rows * c.ld);
    float *h = c.qkv->host;
    r->ref->ops->attn_fwd(r->ref, KERN_F32, &c.s, out->host, c.ldo, lse->host, h, c.ld, h + c.q,
                          c.ld, h + c.k, c.ld);
    for (size_t i = 0; i < out->n; i++)
        out->host[i] = round_to(r->t, out->host[i]);
    to_device(r, out);
    to_device(r, lse);
    r->ref->ops->attn_bwd(r->ref, KERN_F32, &c.s, g->host, g->host + c.q, g->host + c.k, dout->host,
                          out->host, c.ldo, lse->host, h, c.ld, h + c.q, c.ld, h + c.k, c.ld,
                          delta->host, NULL);
    struct array *cs = NULL;
    if (r->d[8]) {
        r->shift = 0;
        cs = array(r, KERN_F32, (size_t)c.s.T * c.s.head_dim, false);
        kern_rope_table(cs->host, c.s.T, c.s.head_dim, 10000, NULL);
        to_device(r, cs);
        r->ref->ops->rope(r->ref, KERN_F32, g->host, c.ld, cs->host, (int)c.rows, c.s.T,
                          c.s.n_heads + c.s.n_kv_heads, c.s.head_dim, true);
    }
    r->D->ops->attn_bwd(r->D, r->t, &c.on, dev(g), part(g, c.q), part(g, c.k), dev(dout), dev(out),
                        c.ldo, dev(lse), dev(c.qkv), c.ld, part(c.qkv, c.q), c.ld, part(c.qkv, c.k),
                        c.ld, dev(delta), dev(cs));
}

// Returns how many bytes in the gaps between rows are not 0.
static float gaps(struct run *r, const struct array *z, size_t rows, size_t V) {
    size_t item = kern_type_bytes(r->t), ld = (size_t)kern_logits_ld((int)V);
    unsigned char *at = device_case_host(&r->k, z->n * item);
    float left = 0;
    r->D->ops->download(r->D, at, dev(z), z->n * item);
    device_case_wait(&r->k);
    for (size_t i = 0; i < rows; i++)
        for (size_t k = (i * ld + V) * item; k < (i + 1) * ld * item; k++)
            left += at[k] != 0;
    return left;
}

static void op_head(struct run *r) { // n d V ignored(%) frozen rows learn
    const int *d = r->d;
    size_t n = (size_t)d[0];
    int32_t *t = ids(r, d[0], d[2]);
    for (int i = 0; i < d[0]; i++)
        if ((int)neb_rng_below(&r->rng, 100) < d[3])
            t[i] = KERN_IGNORE;
    // Logits have a model's size, about 3: bf16 rounds values near 50 by up to an eighth, and exp
    // multiplies that.
    float size = fminf(1, 3 / sqrtf((float)d[1]));
    struct array *x = input(r, r->t, n * d[1], 1), *w = input(r, r->t, (size_t)d[2] * d[1], size),
                 *dx = d[6] ? written(r, r->t, n * d[1]) : NULL,
                 *dw = d[6] && !d[4] ? added(r, KERN_F32, (size_t)d[2] * d[1]) : NULL,
                 *losses = written(r, KERN_F32, n), *targets = ints(r, t, n), *by = number(r, 0.7f);
    r->shift = 0;
    struct array *total = array(r, KERN_F32, 2, false), // a double
        *logits = array(r, r->t, (size_t)d[5] * (size_t)kern_logits_ld(d[2]), false);
    double begin = 3, sum;
    memcpy(total->host, &begin, 8);
    to_device(r, total);
    for (size_t i = 0; i < logits->n; i++)
        logits->host[i] = NAN; // gaps between rows must not matter
    to_device(r, logits);
    const float host_by = 0.7f;
    double want = begin;
    struct kern_head h = {.n = d[0],
                          .d = d[1],
                          .V = d[2],
                          .x = x->host,
                          .w = w->host,
                          .targets = t,
                          .grad_scale = &host_by,
                          .dx = dx ? dx->host : NULL,
                          .dw = dw ? dw->host : NULL,
                          .losses = losses->host,
                          .total = &want};
    r->ref->ops->head_loss(r->ref, KERN_F32, &h, NULL);
    h.x = dev(x);
    h.w = dev(w);
    h.targets = dev(targets);
    h.grad_scale = dev(by);
    h.dx = dev(dx);
    h.dw = dev(dw);
    h.logits = dev(logits);
    h.rows = d[5];
    h.losses = dev(losses);
    h.total = dev(total);
    r->D->ops->head_loss(r->D, r->t, &h, NULL);
    r->D->ops->download(r->D, &sum, dev(total), sizeof sum);
    device_case_wait(&r->k);
    verdict(r, (float)sum, (float)want); // the sum of the losses
    verdict(r, d[6] ? gaps(r, logits, (size_t)(d[0] < d[5] ? d[0] : d[5]), (size_t)d[2]) : 0, 0);
}

// One rank's columns of logits. The test itself makes the results of the two reductions: first the
// maxima, then the sums. Loss and gradient follow.
static void op_vocab(struct run *r) { // n columns V row0 learn
    const int *d = r->d;
    size_t n = (size_t)d[0], cols = (size_t)d[1], V = (size_t)d[2], row0 = (size_t)d[3],
           ld = (size_t)kern_logits_ld(d[1]);
    int32_t *t = ids(r, d[0], d[2]);
    float *whole = device_case_host(&r->k, n * V * sizeof *whole);
    neb_rng_normals(&r->rng, whole, n * V);
    for (size_t i = 0; i < n * V; i++)
        whole[i] = round_to(r->t, 3 * whole[i]);
    for (size_t i = 0; i < n; i += 4)
        t[i] = i % 8 ? KERN_IGNORE : (int32_t)(row0 + i % cols);
    r->shift = 0;
    struct array *z = added(r, r->t, n * ld), *max = written(r, KERN_F32, n),
                 *sums = array(r, KERN_F32, 4 * n, false), *losses = written(r, KERN_F32, n),
                 *top = input(r, KERN_F32, n, 1), *all = array(r, KERN_F32, 4 * n, false),
                 *seen = written(r, KERN_F32, 2 * n), *total = array(r, KERN_F32, 2, false),
                 *targets = ints(r, t, n), *by = number(r, 0.7f);
    double *whole_sums = device_case_host(&r->k, 2 * n * sizeof *whole_sums);
    to_device(r, sums);
    for (size_t i = 0; i < n; i++) { // values beyond the columns must not matter
        for (size_t k = 0; k < ld; k++)
            z->host[i * ld + k] = k < cols ? whole[i * V + row0 + k] : 1024;
    }
    to_device(r, z);
    for (size_t i = 0; i < n; i++) {
        const float *row = whole + i * V;
        double sum = 0, here = 0;
        float largest = row[0];
        bool counts = t[i] != KERN_IGNORE;
        max->host[i] = row[row0];
        for (size_t k = 0; k < V; k++)
            largest = fmaxf(largest, row[k]);
        for (size_t k = 0; k < V; k++) {
            double e = exp((double)row[k] - (double)largest);
            bool mine = k >= row0 && k < row0 + cols;
            sum += e;
            here += mine ? e : 0;
            max->host[i] = mine ? fmaxf(max->host[i], row[k]) : max->host[i];
        }
        size_t at = counts ? (size_t)t[i] : V;
        seen->host[i] = (float)here;
        seen->host[n + i] = at >= row0 && at < row0 + cols ? row[at] : 0;
        top->host[i] = largest;
        whole_sums[i] = sum;
        whole_sums[n + i] = counts ? (double)row[at] : 0;
        losses->host[i] = counts ? (float)((double)largest + log(sum) - whole_sums[n + i]) : 0;
        for (size_t k = 0; d[4] && k < ld; k++) {
            double e = exp((double)row[row0 + (k < cols ? k : 0)] - (double)largest) / sum;
            z->host[i * ld + k] =
                counts && k < cols ? round_to(r->t, 0.7f * (float)(e - (row0 + k == at))) : 0;
        }
    }
    to_device(r, top);
    memcpy(all->host, whole_sums, 2 * n * sizeof *whole_sums);
    to_device(r, all);
    to_device(r, total);
    struct kern_vocab v = {.logits = dev(z),
                           .n = d[0],
                           .V = d[1],
                           .targets = dev(targets),
                           .row0 = d[3],
                           .max = dev(max),
                           .grad_scale = dev(by),
                           .learn = d[4] != 0,
                           .losses = dev(losses),
                           .total = dev(total)};
    r->D->ops->vocab_max(r->D, r->t, &v);
    v.max = dev(top);
    v.sums = dev(sums);
    r->D->ops->vocab_sum(r->D, r->t, &v);
    double *got = device_case_host(&r->k, 2 * n * sizeof *got);
    r->D->ops->download(r->D, got, dev(sums), 2 * n * sizeof *got);
    device_case_wait(&r->k);
    struct array *sums_host = array(r, KERN_F32, 2 * n, false);
    for (size_t i = 0; i < 2 * n; i++)
        sums_host->host[i] = (float)got[i];
    to_device(r, sums_host);
    r->D->ops->copy(r->D, dev(seen), dev(sums_host), 2 * n * sizeof(float));
    v.sums = dev(all);
    r->D->ops->vocab_loss(r->D, r->t, &v);
}

// Several tensors with gaps between them, as chunks.
static void op_update(struct run *r) { // tensors size unaligned part
    const int *d = r->d;
    enum { T_MAX = 8 };
    size_t n = 0, sizes[T_MAX];
    struct kern_chunk chunks[256] = {0};
    int32_t first[T_MAX + 1], n_chunks = 0;
    for (int i = 0; i < d[0]; i++) {
        sizes[i] = (size_t)d[1] * (i + 1) + (d[2] ? i : 0);
        first[i] = n_chunks;
        for (size_t at = 0; at < sizes[i]; at += KERN_CHUNK)
            chunks[n_chunks++] = (struct kern_chunk){
                .param_at = n + at + (d[2] ? 1 : 0),
                .grad_at = n + at,
                .moment_at = n + at - (d[3] ? (size_t)d[1] : 0),
                .n = (uint32_t)(sizes[i] - at < KERN_CHUNK ? sizes[i] - at : KERN_CHUNK),
                .tensor = i,
                .decay = i % 2 == 0,
                .momentum = i % 3 == 1};
        n += sizes[i];
    }
    first[d[0]] = n_chunks;
    // a part of the gradients, as with ZeRO-1: all tensors but the first, and moments only for them
    size_t from = d[3] ? sizes[0] : 0;
    r->shift = 0;
    struct array *p = added(r, KERN_F32, n + 1), *g = added(r, KERN_F32, n),
                 *m = added(r, KERN_F32, n - from), *v = added(r, KERN_F32, n - from),
                 *work = added(r, r->t, n + 1), *factors = input(r, KERN_F32, T_MAX, 1),
                 *on = ints(r, (int32_t *)(void *)chunks, sizeof chunks / 4),
                 *starts = ints(r, first, T_MAX + 1), *sums = array(r, KERN_F32, 2 * T_MAX, false);
    for (size_t i = 0; i < n - from; i++)
        v->host[i] *= v->host[i];
    to_device(r, v);
    struct kern_adamw c = {.lr = 1e-2f,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .weight_decay = 0.1f,
                           .bias1 = 1 - 0.9f * 0.9f,
                           .bias2 = 1 - 0.95f * 0.95f,
                           .momentum = 0.9f};
    double got[T_MAX];
    memset(sums->host, 0, 2 * T_MAX * sizeof(float));
    to_device(r, sums);
    r->D->ops->sumsq(r->D, dev(on), n_chunks, dev(starts), d[0], dev(g), dev(sums));
    r->D->ops->download(r->D, got, dev(sums), (size_t)d[0] * sizeof *got);
    device_case_wait(&r->k);
    struct array *norms = array(r, KERN_F32, T_MAX, true);
    memset(norms->host, 0, T_MAX * 4);
    for (int i = 0; i < d[0]; i++)
        norms->host[i] = (float)got[i];
    to_device(r, norms);
    double want[T_MAX] = {0};
    r->ref->ops->sumsq(r->ref, chunks, n_chunks, first, d[0], g->host, want);
    for (int i = 0; i < d[0]; i++)
        norms->host[i] = (float)want[i];
    int skipped = d[3] ? first[1] : 0;
    struct kern_update host = {.c = c,
                               .chunks = chunks + skipped,
                               .n_chunks = n_chunks - skipped,
                               .factors = factors->host,
                               .params = p->host,
                               .grads = g->host,
                               .m = m->host,
                               .v = v->host},
                       on_device = host;
    on_device.chunks = (struct kern_chunk *)dev(on) + skipped;
    on_device.factors = dev(factors);
    on_device.params = dev(p);
    on_device.grads = dev(g);
    on_device.m = dev(m);
    on_device.v = dev(v);
    on_device.working = kern_on_host(r->D) ? NULL : dev(work);
    work->out = on_device.working;
    r->ref->ops->adamw(r->ref, KERN_F32, &host);
    for (int i = skipped; i < n_chunks; i++)
        if (!chunks[i].momentum)
            memcpy(work->host + chunks[i].param_at, p->host + chunks[i].param_at, chunks[i].n * 4);
    r->D->ops->adamw(r->D, r->t, &on_device);
}
static void op_matrix(struct run *r) { // rows cols gap
    const int *d = r->d;
    int ld = d[1] + d[2];
    size_t n = (size_t)d[0] * (size_t)d[1];
    double sum = 3.7;
    struct array *g = input(r, KERN_F32, n, 1), *x = added(r, r->t, (size_t)d[0] * (size_t)ld),
                 *y = input(r, r->t, (size_t)d[0] * (size_t)ld, 1), *p = added(r, KERN_F32, n),
                 *work = added(r, r->t, n), *rate = input(r, KERN_F32, 2, 1),
                 *sums = array(r, KERN_F32, 2, false);
    struct kern_matrix_step on = {.p = p->host,
                                  .x = y->host,
                                  .ldx = ld,
                                  .rows = d[0],
                                  .cols = d[1],
                                  .rate = rate->host,
                                  .scale = 0.3f};
    memcpy(sums->host, &sum, sizeof sum);
    to_device(r, sums);
    r->ref->ops->normalise(r->ref, KERN_F32, x->host, ld, g->host, d[0], d[1], &sum);
    r->ref->ops->matrix_step(r->ref, KERN_F32, &on);
    r->D->ops->normalise(r->D, r->t, dev(x), ld, dev(g), d[0], d[1], dev(sums));
    on.p = dev(p);
    on.x = dev(y);
    on.rate = dev(rate);
    on.working = kern_on_host(r->D) ? NULL : dev(work);
    work->out = on.working;
    if (on.working)
        memcpy(work->host, p->host, n * sizeof(float));
    r->D->ops->matrix_step(r->D, r->t, &on);
}
static void op_flat(struct run *r) {
    size_t n = (size_t)r->d[0];
    struct array *x = input(r, KERN_F32, n, 1), *a = added(r, KERN_F32, n),
                 *s = added(r, KERN_F32, n), *z = added(r, KERN_F32, n),
                 *c = written(r, KERN_F32, n);
    r->ref->ops->add(r->ref, a->host, x->host, n);
    r->ref->ops->scale(r->ref, s->host, -1.5f, n);
    memset(z->host, 0, n * 4);
    memcpy(c->host, x->host, n * 4);
    r->D->ops->add(r->D, dev(a), dev(x), n);
    r->D->ops->scale(r->D, dev(s), -1.5f, n);
    r->D->ops->zero(r->D, dev(z), n * 4);
    r->D->ops->copy(r->D, dev(c), dev(x), n * 4);
}

static const struct op_case {
    const char *name;
    void (*run)(struct run *r);
    // fp32, bf16: bound of |difference| / (1 + largest |value|); negative: not for this type
    double bound[2];
    bool large;
    int d[DIMS]; // the last one: elements by which arrays are unaligned
} cases[] = {
#define GEMM(large, ...)                                                                           \
    {                                                                                              \
        "gemm", op_gemm, {1e-5, 6e-3}, large, { __VA_ARGS__ }                                      \
    }
    GEMM(false, 1, 1, 1),
    GEMM(false, 7, 5, 3, 0, 0, 0, 3),
    GEMM(false, 65, 129, 33, 0, 1, 8, 2),
    GEMM(false, 40, 31, 57, 1, 0, 8, 0, 1),
    GEMM(false, 33, 17, 65, 1, 1, 4, 1),
    GEMM(false, 64, 96, 32, 0, 1, 0, 0),
    GEMM(true, 512, 2304, 768, 0, 1, 0, 0),
    GEMM(true, 768, 2304, 1024, 1, 0, 8, 0, 1),
    GEMM(true, 300, 1000, 1001, 0, 0, 0, 8),
    {"gemm + bias", op_gemm_bias, {1e-5, 6e-3}, false, {9, 24, 16}},
    {"gemm + bias", op_gemm_bias, {1e-5, 6e-3}, true, {129, 2304, 768}},
    {"linear_bwd", op_linear_bwd, {1e-5, 1e-5}, false, {24, 9, 16}},
    {"linear_bwd", op_linear_bwd, {1e-5, 6e-3}, false, {7, 33, 65, 0, 1}},
    {"linear_bwd", op_linear_bwd, {1e-5, 1e-5}, false, {40, 24, 65, 0, 1, 1}},
    {"linear_bwd frozen", op_linear_bwd, {1e-5, 6e-3}, false, {40, 24, 65, 1, 1}},
    {"linear_bwd", op_linear_bwd, {1e-5, 1e-5}, false, {96, 64, 129}},
    {"linear_bwd", op_linear_bwd, {2e-5, 2e-5}, true, {1152, 896, 2048}},
    {"cast", op_cast, {0, 0}, false, {1003}},
    {"cast", op_cast, {0, 0}, false, {4096}},
    {"embed_fwd", op_embed_fwd, {0, 0}, false, {37, 67, 11}},
    {"embed_fwd", op_embed_fwd, {0, 0}, false, {9, 64, 5}},
    {"embed_fwd some elsewhere", op_embed_fwd, {0, 0}, false, {31, 20, 9, 3}},
    {"embed_bwd", op_embed_bwd, {0, -1}, false, {300, 150, 40}},
    {"embed_bwd frequent", op_embed_bwd, {2e-6, -1}, false, {300, 150, 7}},
    {"embed_bwd frequent", op_embed_bwd, {2e-6, -1}, false, {70, 300, 2}},
    {"embed_bwd frequent", op_embed_bwd, {5e-6, -1}, true, {4096, 768, 20}},
    {"embed_bwd", op_embed_bwd, {0, -1}, false, {1, 1, 1}},
    {"embed_bwd some elsewhere", op_embed_bwd, {0, -1}, false, {40, 33, 9, 3}},
    {"embed_bwd all elsewhere", op_embed_bwd, {0, -1}, false, {12, 8, 9, 1}},
    {"embed_bwd", op_embed_bwd, {0, -1}, true, {4096, 768, 50257}},
    {"rmsnorm_fwd", op_rms_fwd, {2e-6, 5e-3}, false, {1, 1, 0, 0}},
    {"rmsnorm_fwd", op_rms_fwd, {2e-6, 5e-3}, false, {9, 63, 1, 0}},
    {"rmsnorm_fwd", op_rms_fwd, {2e-6, 5e-3}, false, {17, 256, 1, 1}},
    {"rmsnorm_fwd", op_rms_fwd, {2e-6, 5e-3}, false, {5, 132, 0, 1, 0, 0, 0, 0, 1}},
    {"rmsnorm_fwd", op_rms_fwd, {2e-6, 5e-3}, false, {11, 260, 2, 0}},
    {"rmsnorm_fwd", op_rms_fwd, {2e-6, 5e-3}, false, {11, 65, 2, 1}},
    {"rmsnorm_fwd", op_rms_fwd, {2e-6, 5e-3}, false, {6, 132, 2, 0, 0, 0, 0, 0, 1}},
    {"rmsnorm_fwd", op_rms_fwd, {2e-6, 5e-3}, true, {1000, 4096, 1, 0}},
    {"rmsnorm_bwd", op_rms_bwd, {1e-5, 5e-3}, false, {1, 3, 0, 0}},
    {"rmsnorm_bwd", op_rms_bwd, {1e-5, 5e-3}, false, {300, 129, 0, 1}},
    {"rmsnorm_bwd", op_rms_bwd, {1e-5, 5e-3}, false, {65, 256, 1, 1}},
    {"rmsnorm_bwd", op_rms_bwd, {1e-5, 5e-3}, false, {70, 128, 0, 1, 0, 0, 0, 0, 1}},
    {"rmsnorm_bwd", op_rms_bwd, {1e-5, 5e-3}, false, {13, 900, 0, 1}},
    {"rmsnorm_bwd", op_rms_bwd, {1e-5, 5e-3}, false, {12, 1028, 1, 1}},
    {"rmsnorm_bwd", op_rms_bwd, {1e-5, 5e-3}, false, {3, 13000, 0, 0}},
    {"rmsnorm_bwd", op_rms_bwd, {2e-5, 5e-3}, true, {5000, 1024, 0, 1}},
    {"rope", op_rope, {1e-6, 5e-3}, false, {6, 3, 1, 2, 0, 1}},
    {"rope", op_rope, {1e-6, 5e-3}, false, {40, 13, 3, 34, 0, 7}},
    {"rope inverse", op_rope, {1e-6, 5e-3}, false, {70, 35, 4, 64, 1, 0}},
    {"swiglu_fwd", op_swiglu_fwd, {1e-6, 5e-3}, false, {3, 1}},
    {"swiglu_fwd", op_swiglu_fwd, {1e-6, 5e-3}, false, {33, 171}},
    {"swiglu_fwd", op_swiglu_fwd, {1e-6, 5e-3}, false, {33, 176}},
    {"swiglu_bwd", op_swiglu_bwd, {2e-6, 5e-3}, false, {17, 45, 0}},
    {"swiglu_bwd in place", op_swiglu_bwd, {2e-6, 5e-3}, false, {31, 344, 1}},
    {"bias_fwd", op_bias, {1e-6, 5e-3}, false, {67, 133}},
    {"bias_bwd", op_bias_bwd, {1e-5, 1e-5}, false, {1000, 37}},
    {"bias_bwd", op_bias_bwd, {1e-5, 1e-5}, false, {1, 5}},
#define ATTN(large, ...)                                                                           \
    {"attn_fwd", op_attn_fwd, {4e-6, 1e-2}, large, {__VA_ARGS__}}, {                               \
        "attn_bwd", op_attn_bwd, {2e-5, 1e-2}, large, { __VA_ARGS__ }                              \
    }
    ATTN(false, 1, 1, 1, 1, 2, KERN_MASK_CAUSAL, 1, 0),
    ATTN(false, 2, 7, 2, 1, 6, KERN_MASK_CAUSAL, 1, 3),
    ATTN(false, 1, 64, 2, 2, 32, KERN_MASK_CAUSAL, 1, 0),
    ATTN(false, 2, 65, 4, 2, 18, KERN_MASK_CAUSAL, 2, 0),
    ATTN(false, 1, 130, 2, 1, 64, KERN_MASK_CAUSAL, 1, 8),
    ATTN(false, 1, 70, 2, 1, 64, KERN_MASK_CAUSAL, 1, 5),
    ATTN(false, 2, 130, 2, 1, 64, KERN_MASK_PREFIX, 1, 0),
    ATTN(false, 1, 129, 1, 1, 64, KERN_MASK_BIDIRECTIONAL, 1, 0),
    ATTN(false, 1, 260, 1, 1, 64, KERN_MASK_CAUSAL, 1, 0),
    ATTN(false, 1, 100, 1, 1, 128, KERN_MASK_BIDIRECTIONAL, 1, 0),
    ATTN(false, 1, 1, 2, 1, 128, KERN_MASK_CAUSAL, 1, 0),
    ATTN(false, 1, 64, 1, 1, 128, KERN_MASK_CAUSAL, 1, 8),
    ATTN(false, 1, 70, 2, 1, 128, KERN_MASK_CAUSAL, 1, 5),
    ATTN(false, 2, 130, 2, 1, 128, KERN_MASK_PREFIX, 1, 0),
    ATTN(false, 1, 258, 1, 1, 128, KERN_MASK_CAUSAL, 1, 0),
    ATTN(false, 2, 63, 2, 1, 32, KERN_MASK_BIDIRECTIONAL, 1, 0),
    ATTN(false, 2, 130, 2, 2, 32, KERN_MASK_PREFIX, 2, 0),
    ATTN(false, 4, 33, 3, 3, 10, KERN_MASK_PREFIX, 1, 0),
    ATTN(false, 2, 129, 1, 1, 96, KERN_MASK_PREFIX, 1, 8),
    ATTN(false, 1, 40, 1, 1, 256, KERN_MASK_CAUSAL, 1, 0),
    ATTN(false, 1, 1, 2, 1, 64, KERN_MASK_CAUSAL, 1, 0),
    ATTN(true, 2, 300, 4, 2, 128, KERN_MASK_CAUSAL, 1, 0),
    ATTN(true, 2, 513, 8, 2, 128, KERN_MASK_PREFIX, 1, 8),
    ATTN(true, 1, 1030, 2, 1, 128, KERN_MASK_CAUSAL, 1, 0),
    ATTN(true, 1, 700, 2, 2, 128, KERN_MASK_BIDIRECTIONAL, 1, 0),
    ATTN(true, 2, 300, 4, 2, 96, KERN_MASK_CAUSAL, 1, 0),
    ATTN(true, 2, 513, 3, 1, 64, KERN_MASK_PREFIX, 1, 0),
#define ATTN_ROPE(large, ...)                                                                      \
    {                                                                                              \
        "attn_bwd and rope", op_attn_bwd, {2e-5, 1e-2}, large, { __VA_ARGS__, 1 }                  \
    }
    ATTN_ROPE(false, 2, 65, 4, 2, 18, KERN_MASK_CAUSAL, 2, 0),
    ATTN_ROPE(false, 1, 70, 4, 1, 64, KERN_MASK_CAUSAL, 1, 8),
    ATTN_ROPE(false, 2, 70, 2, 2, 32, KERN_MASK_PREFIX, 2, 0),
    ATTN_ROPE(false, 1, 131, 2, 1, 96, KERN_MASK_PREFIX, 1, 8),
    ATTN_ROPE(false, 1, 100, 1, 1, 128, KERN_MASK_BIDIRECTIONAL, 1, 0),
    ATTN_ROPE(false, 1, 130, 2, 1, 128, KERN_MASK_CAUSAL, 1, 8),
    ATTN_ROPE(true, 2, 513, 4, 2, 128, KERN_MASK_PREFIX, 1, 0),
    ATTN_ROPE(true, 2, 513, 3, 1, 64, KERN_MASK_PREFIX, 1, 0),
#define CACHE(large, ...)                                                                          \
    {                                                                                              \
        "cache_put, _copy, _attn", op_cache, {4e-6, 1e-2}, large, { __VA_ARGS__ }                  \
    }
    CACHE(false, 1, 1, 1, 1, 2, 2, 0),
    CACHE(false, 3, 5, 4, 2, 18, 70, 3),
    CACHE(false, 2, 33, 6, 1, 64, 60, 0),
    CACHE(false, 2, 3, 2, 2, 256, 20, 5),
    CACHE(true, 40, 200, 16, 4, 128, 700, 0),
    {"attn_fwd, large scores",
     op_attn_fwd,
     {1e-4, 2e-2},
     false,
     {1, 129, 2, 1, 32, KERN_MASK_CAUSAL, 8, 0}},
    {"attn_fwd, large scores",
     op_attn_fwd,
     {1e-4, 1e-2},
     false,
     {1, 130, 2, 1, 128, KERN_MASK_CAUSAL, 8, 0}},
    {"attn_bwd, large scores",
     op_attn_bwd,
     {1e-4, 1e-2},
     false,
     {1, 130, 1, 1, 128, KERN_MASK_PREFIX, 4, 0}},
    {"head_loss", op_head, {1e-5, 1e-2}, false, {1, 3, 2, 0, 0, 4, 1}},
    {"head_loss", op_head, {1e-5, 1e-2}, false, {37, 33, 501, 0, 0, 16, 1}},
    {"head_loss", op_head, {1e-5, 1e-2}, false, {30, 16, 1003, 0, 0, 30, 1}},
    {"head_loss kept", op_head, {1e-5, 1e-2}, false, {5, 16, 9001, 20, 0, 5, 1}},
    {"head_loss half kept",
     op_head,
     {3e-5, 1e-2},
     false,
     {3, 8, 60004, 0, 0, 2, 1}}, // sums over 60,004 values
    {"head_loss some ignored", op_head, {1e-5, 1e-2}, false, {50, 24, 512, 40, 0, 20, 1}},
    {"head_loss all ignored", op_head, {1e-7, 1e-7}, false, {20, 8, 50, 100, 0, 7, 1}},
    {"head_loss frozen weight", op_head, {1e-5, 1e-2}, false, {50, 31, 100, 15, 1, 64, 1}},
    {"head_loss only loss", op_head, {1e-5, 1e-2}, false, {50, 31, 600, 15, 0, 11, 0}},
    // sums over 50,257 values
    {"head_loss", op_head, {3e-5, 1e-2}, true, {700, 64, 50257, 10, 0, 256, 1}},
    {"distill_loss", op_distill, {1e-5, 1e-2}, false, {1, 3, 2, 0, 0, 4, 1, 1}},
    {"distill_loss, all named", op_distill, {1e-5, 1e-2}, false, {5, 4, 7, 0, 0, 4, 1, 7}},
    {"distill_loss", op_distill, {1e-5, 1e-2}, false, {37, 33, 501, 20, 0, 16, 1, 5}},
    {"distill_loss", op_distill, {1e-5, 1e-2}, false, {30, 16, 1003, 0, 0, 30, 1, 64}},
    {"distill_loss kept", op_distill, {1e-5, 1e-2}, false, {5, 16, 9001, 20, 0, 5, 1, 33}},
    {"distill_loss half kept", op_distill, {3e-5, 1e-2}, false, {3, 8, 60004, 0, 0, 2, 1, 63}},
    {"distill_loss all ignored", op_distill, {1e-7, 1e-7}, false, {20, 8, 50, 100, 0, 7, 1, 3}},
    {"distill_loss frozen weight", op_distill, {1e-5, 1e-2}, false, {50, 31, 100, 15, 1, 64, 1, 9}},
    {"distill_loss only loss", op_distill, {1e-5, 1e-2}, false, {50, 31, 600, 15, 0, 11, 0, 16}},
    {"distill_loss", op_distill, {3e-5, 1e-2}, true, {150, 64, 50257, 10, 0, 64, 1, 16}},
    {"rtd_loss", op_rtd, {1e-5, 1e-2}, false, {1, 1, 0, 0, 1}},
    {"rtd_loss", op_rtd, {1e-5, 1e-2}, false, {37, 33, 20, 0, 1}},
    {"rtd_loss", op_rtd, {1e-5, 1e-2}, false, {1000, 132, 10, 0, 1}},
    {"rtd_loss unaligned", op_rtd, {1e-5, 1e-2}, false, {67, 128, 10, 0, 1, 0, 0, 0, 1}},
    {"rtd_loss, large scores", op_rtd, {1e-5, 1e-2}, false, {41, 300, 0, 0, 1, 30}},
    {"rtd_loss all ignored", op_rtd, {1e-7, 1e-7}, false, {20, 8, 100, 0, 1}},
    {"rtd_loss frozen weight", op_rtd, {1e-5, 1e-2}, false, {50, 31, 15, 1, 1}},
    {"rtd_loss only loss", op_rtd, {1e-5, 1e-2}, false, {50, 64, 15, 0, 0}},
    {"rtd_loss", op_rtd, {2e-5, 1e-2}, true, {32768, 768, 0, 0, 1}},
    {"label_rows", op_labels, {1e-5, 1e-5}, false, {1, 1, 1, 1, 3, 1}},
    {"label_rows", op_labels, {1e-5, 1e-5}, false, {9, 5, 67, 4, 3, 64}},
    {"label_rows", op_labels, {1e-5, 1e-5}, false, {7, 33, 2501, 5, 3, 16}},
    {"label_rows", op_labels, {1e-5, 1e-5}, false, {5, 16, 9001, 2, 3, 63}},
    {"label_rows, nearly certain", op_labels, {1e-5, 1e-5}, false, {6, 8, 1003, 6, 40, 7}},
    {"label_rows, many ties", op_labels, {1e-5, 1e-5}, false, {9, 3, 4099, 4, 0, 33}},
    {"label_rows, few logits", op_labels, {1e-5, 1e-5}, false, {5, 1, 5000, 5, 0, 16}},
    {"label_rows, few NaNs", op_labels, {1e-5, 1e-5}, false, {5, 4, 1000, 5, 0, 64, 99}},
    {"label_rows, many NaNs", op_labels, {1e-5, 1e-5}, false, {4, 4, 2001, 3, 0, 64, 2}},
    {"label_rows, all NaN", op_labels, {1e-5, 1e-5}, false, {2, 4, 2001, 2, 0, 5, 1}},
    {"label_rows unaligned", op_labels, {1e-5, 1e-5}, false, {5, 16, 1003, 2, 3, 9, 0, 0, 1}},
    {"label_rows", op_labels, {1e-5, 1e-5}, true, {100, 64, 50257, 64, 3, 16}},
    {"sample_rows", op_sample, {1e-5, 1e-5}, false, {5, 1, 1, 5, 3}},
    {"sample_rows", op_sample, {1e-5, 1e-5}, false, {20, 9, 67, 6, 3}},
    {"sample_rows", op_sample, {1e-5, 1e-5}, false, {21, 16, 2501, 21, 3}},
    {"sample_rows", op_sample, {1e-5, 1e-5}, false, {10, 16, 9002, 3, 2}},
    {"sample_rows, nearly certain", op_sample, {1e-5, 1e-5}, false, {21, 8, 1003, 8, 100}},
    {"sample_rows, many ties", op_sample, {1e-5, 1e-5}, false, {21, 2, 1500, 8, 0}},
    {"sample_rows unaligned", op_sample, {1e-5, 1e-5}, false, {21, 16, 1003, 8, 3, 0, 0, 0, 1}},
    {"sample_rows", op_sample, {1e-5, 1e-5}, true, {100, 64, 50257, 64, 3}},
    {"vocab", op_vocab, {1e-5, 1e-2}, false, {5, 1, 3, 1, 1}},
    {"vocab", op_vocab, {1e-5, 1e-2}, false, {37, 501, 1100, 400, 1}},
    {"vocab", op_vocab, {1e-5, 1e-2}, false, {9, 2000, 2500, 0, 1}},
    {"vocab, teacher", op_vocab_soft, {2e-5, 2e-2}, false, {5, 7, 30, 9, 1, 2}},
    {"vocab, teacher", op_vocab_soft, {2e-5, 2e-2}, false, {37, 501, 1100, 400, 1, 16}},
    {"vocab, teacher, only loss", op_vocab_soft, {2e-5, 2e-2}, false, {12, 77, 130, 23, 0, 63}},
    {"vocab only loss", op_vocab, {1e-5, 1e-2}, false, {20, 77, 100, 23, 0}},
    {"vocab", op_vocab, {1e-5, 1e-2}, true, {300, 12565, 50257, 12565, 1}},
    {"norms, AdamW", op_update, {4e-6, 5e-3}, false, {1, 1, 0}},
    {"norms, AdamW", op_update, {4e-6, 5e-3}, false, {5, 1000, 0}},
    {"norms, AdamW unaligned", op_update, {4e-6, 5e-3}, false, {4, 9001, 1}},
    {"norms, AdamW", op_update, {4e-6, 5e-3}, false, {2, 20000, 0}},
    {"norms, AdamW of a part", op_update, {4e-6, 5e-3}, false, {3, 17000, 0, 1}},
    {"norms, AdamW of a part", op_update, {4e-6, 5e-3}, false, {3, 1004, 1, 1}},
    {"normalise, matrix_step", op_matrix, {1e-6, 1e-2}, false, {5, 37, 3}},
    {"normalise, matrix_step", op_matrix, {1e-6, 1e-2}, false, {70, 300}},
    {"add, scale, zero, copy", op_flat, {1e-7, -1}, false, {70001}},
};

static double distance(const struct array *a) {
    double far = 0, size = 0;
    for (size_t j = 0; j < a->n; j++) {
        if (a->host[j] != a->host[j] || a->got[j] != a->got[j])
            return INFINITY;
        far = fmax(far, fabs((double)a->host[j] - (double)a->got[j]));
        size = fmax(size, fabs((double)a->host[j]));
    }
    return far / (1 + size);
}

static void shape_text(const int *d, char *out, size_t cap) {
    size_t at = 0;
    int last = DIMS - 1;
    while (last > 0 && !d[last])
        last--;
    for (int i = 0; i <= last && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%d", i ? " " : "", d[i]);
}

static void run_and_collect(void *ctx) {
    struct run *r = ctx;
    r->D = r->k.D;
    r->op->run(r);
    collect(r);
}

static bool run_case(struct device_checks *all, struct kern *ref, const struct op_case *c,
                     enum kern_type t) {
    struct run r = {.op = c,
                    .ref = ref,
                    .rng = neb_rng_make(11, 4),
                    .t = t,
                    .d = c->d,
                    .shift = c->d[DIMS - 1]};
    const char *type = t ? "bf16" : "fp32";
    double worst = 0;
    char shape[80];
    bool ran = device_case_run(&r.k, all, run_and_collect, &r);
    for (int i = 0; ran && i < r.n; i++)
        if (r.a[i].out)
            worst = fmax(worst, distance(&r.a[i]));
    bool good = ran && r.whole && worst <= c->bound[t];
    device_case_end(&r.k, ran);
    shape_text(c->d, shape, sizeof shape);
    if (!ran)
        printf("%s (%s) in %s: the device failed\n", c->name, shape, type);
    else if (!good)
        printf("%s (%s) in %s: off by %g, allowed %g%s\n", c->name, shape, type, worst, c->bound[t],
               r.whole ? "" : "; wrote outside of an array");
    if (all->report && !ran)
        fprintf(all->report, "| %s | %s | %s | | | **failed** |\n", c->name, shape, type);
    else if (all->report)
        fprintf(all->report, "| %s | %s | %s | %.2g | %.2g | %s |\n", c->name, shape, type, worst,
                c->bound[t], good ? "ok" : "**wrong**");
    return good;
}

int device_matrix_run(struct device_checks *c, int *n) {
    struct kern *ref = NULL;
    int failed = 0;
    *n = 0;
    if (kern_ref_create(&ref) != NEB_OK)
        return 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int t = 0; t < 2; t++) {
            bool attn = !strncmp(cases[i].name, "attn", 4);
            if ((cases[i].large && !c->large) || cases[i].bound[t] < 0 ||
                (t && c->D && kern_on_host(c->D)) || (c->no_attention && attn) ||
                (c->per_card && !(attn && t)) || !device_case_due(c))
                continue;
            failed += !run_case(c, ref, &cases[i], (enum kern_type)t);
            ++*n;
        }
    kern_destroy(&ref);
    return failed;
}
