// SPDX-License-Identifier: Apache-2.0
// The op matrix: every op on every instruction set of this machine against the reference, within a
// bound per op. The bits are the same with one thread and with three. No op writes outside its
// outputs.
#include "agent/base/rng.h"
#include "kernels/cpu.h"

#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 24, BUFS_MAX = 16, DIMS = 9 };
static const uint32_t GUARD_BITS = 0x7fc0beef; // a NaN: reading it shows in the result

// The arrays of one run. Inputs and outputs lie between guards; outputs are compared.
struct run {
    struct kern *K;
    struct neb_rng rng;
    const int *d;
    int n_bufs;
    struct {
        float *base;
        size_t n;
        bool out;
    } bufs[BUFS_MAX];
};

static float *buf(struct run *r, size_t n, bool out) {
    float *base = malloc((n + 2 * GUARD) * sizeof *base);
    assert_non_null(base);
    assert_true(r->n_bufs < BUFS_MAX);
    for (size_t i = 0; i < n + 2 * GUARD; i++)
        memcpy(base + i, &GUARD_BITS,
               4); // outputs that are not added to must be written completely
    r->bufs[r->n_bufs].base = base;
    r->bufs[r->n_bufs].n = n;
    r->bufs[r->n_bufs++].out = out;
    return base + GUARD;
}
static float *input(struct run *r, size_t n, float size) {
    float *p = buf(r, n, false);
    for (size_t i = 0; i < n; i++)
        p[i] = size * neb_rng_normal(&r->rng);
    return p;
}
static float *written(struct run *r, size_t n) { return buf(r, n, true); }
static float *added(struct run *r, size_t n) {
    float *p = written(r, n);
    for (size_t i = 0; i < n; i++)
        p[i] = neb_rng_normal(&r->rng);
    return p;
}
static int32_t *ids(struct run *r, int n, int V) {
    int32_t *p = (int32_t *)(void *)buf(r, (size_t)n, false);
    for (int i = 0; i < n; i++)
        p[i] = (int32_t)neb_rng_below(&r->rng, (uint64_t)V);
    return p;
}

static void op_gemm(struct run *r) { // m n k ta tb beta/8 pad bias
    const int *d = r->d;
    enum kern_trans ta = d[3] ? KERN_T : KERN_N, tb = d[4] ? KERN_T : KERN_N;
    int lda = (ta ? d[0] : d[2]) + d[6], ldb = (tb ? d[2] : d[1]) + d[6], ldc = d[1] + d[6];
    float *a = input(r, (size_t)(ta ? d[2] : d[0]) * lda, 1),
          *b = input(r, (size_t)(tb ? d[1] : d[2]) * ldb, 1);
    float *c = d[5] ? added(r, (size_t)d[0] * ldc) : written(r, (size_t)d[0] * ldc);
    for (int i = 0; d[6] && i < d[0]; i++) // the gap between rows must not change
        for (int j = d[1]; j < ldc; j++)
            c[i * ldc + j] = 5;
    r->K->ops->gemm(r->K, &(struct kern_gemm){.ta = ta,
                                              .tb = tb,
                                              .m = d[0],
                                              .n = d[1],
                                              .k = d[2],
                                              .alpha = 0.5f,
                                              .a = a,
                                              .lda = lda,
                                              .b = b,
                                              .ldb = ldb,
                                              .beta = (float)d[5] / 8,
                                              .c = c,
                                              .ldc = ldc,
                                              .bias = d[7] ? input(r, (size_t)d[1], 3) : NULL});
}
static void op_symmetric(struct run *r) { // n k ta pad
    const int *d = r->d;
    enum kern_trans ta = d[2] ? KERN_T : KERN_N;
    int ld = (ta ? d[0] : d[1]) + d[3], ldc = d[0] + d[3];
    float *a = input(r, (size_t)(ta ? d[1] : d[0]) * (size_t)ld, 1),
          *c = added(r, (size_t)d[0] * (size_t)ldc);
    for (int i = 0; i < d[0]; i++)
        for (int j = 0; j < i; j++)
            c[j * ldc + i] = c[i * ldc + j];
    r->K->ops->gemm(r->K, &(struct kern_gemm){.ta = ta,
                                              .tb = ta ? KERN_N : KERN_T,
                                              .m = d[0],
                                              .n = d[0],
                                              .k = d[1],
                                              .alpha = 0.5f,
                                              .beta = 0.75f,
                                              .a = a,
                                              .lda = ld,
                                              .b = a,
                                              .ldb = ld,
                                              .c = c,
                                              .ldc = ldc,
                                              .symmetric = true});
}
static void op_embed_fwd(struct run *r) { // n d V elsewhere
    const int *d = r->d;
    float *table = input(r, (size_t)d[2] * d[1], 1);
    int32_t *at = ids(r, d[0], d[2]);
    for (int i = 0; d[3] && i < d[0]; i += d[3])
        at[i] = -1;
    r->K->ops->embed_fwd(r->K, KERN_F32, written(r, (size_t)d[0] * d[1]), table, at, d[0], d[1]);
}
static void op_embed_bwd(struct run *r) { // n d V elsewhere
    const int *d = r->d;
    size_t n = (size_t)d[0];
    float *dout = input(r, n * d[1], 1);
    int32_t *at = ids(r, d[0], d[2]), *room = ids(r, 3 * d[0] + 2, 1), *next = ids(r, d[2], 1);
    struct kern_buckets b = {
        .ids = room, .start = room + n, .rows = room + 2 * n + 1, .used = room + 3 * n + 1};
    for (size_t i = 0; d[3] && i < n; i += (size_t)d[3])
        at[i] = -1;
    kern_buckets_fill(&b, at, d[0], next);
    r->K->ops->embed_bwd(r->K, added(r, (size_t)d[2] * d[1]), dout, &b, d[0], d[1]);
}
static void op_rms_fwd(struct run *r) { // n d residual in-place
    const int *d = r->d;
    size_t n = (size_t)d[0] * d[1];
    float *x = input(r, n, 2), *res = d[2] ? input(r, n, 1) : NULL, *w = input(r, (size_t)d[1], 1),
          *h = written(r, n);
    if (d[3])
        memcpy(h, x, n * sizeof *x);
    r->K->ops->rmsnorm_fwd(r->K, KERN_F32, KERN_F32, written(r, n), written(r, (size_t)d[0]), h,
                           d[3] ? h : x, res, w, d[0], d[1], 1e-5f);
}
static void op_rms_bwd(struct run *r) { // n d frozen also_t
    const int *d = r->d;
    size_t n = (size_t)d[0] * d[1];
    float *dy = input(r, n, 1), *h = input(r, n, 1), *w = input(r, (size_t)d[1], 1),
          *rstd = input(r, (size_t)d[0], 1);
    float *dh = added(r, n);
    for (int i = 0; i < d[0]; i++)
        rstd[i] = 0.5f + fabsf(rstd[i]);
    r->K->ops->rmsnorm_bwd(r->K, KERN_F32, dh, d[3] ? written(r, n) : NULL,
                           d[2] ? NULL : added(r, (size_t)d[1]), dy, h, w, rstd, d[0], d[1]);
}
static void op_rope(struct run *r) { // n T heads head_dim inverse pad
    const int *d = r->d;
    int ld = d[2] * d[3] + d[5];
    float *cs = input(r, (size_t)d[1] * d[3], 1), *x = added(r, (size_t)d[0] * ld);
    kern_rope_table(cs, d[1], d[3], 10000, NULL);
    r->K->ops->rope(r->K, KERN_F32, x, ld, cs, d[0], d[1], d[2], d[3], d[4] != 0);
}
static void op_swiglu_fwd(struct run *r) {
    const int *d = r->d;
    float *gu = input(r, 2 * (size_t)d[0] * d[1], 8);
    r->K->ops->swiglu_fwd(r->K, KERN_F32, written(r, (size_t)d[0] * d[1]), gu, d[0], d[1]);
}
static void op_swiglu_bwd(struct run *r) { // n f in-place
    const int *d = r->d;
    float *dy = input(r, (size_t)d[0] * d[1], 1), *gu = input(r, 2 * (size_t)d[0] * d[1], 8);
    float *out = written(r, 2 * (size_t)d[0] * d[1]);
    if (d[2])
        memcpy(out, gu, 2 * (size_t)d[0] * d[1] * sizeof *gu);
    r->K->ops->swiglu_bwd(r->K, KERN_F32, out, dy, d[2] ? out : gu, d[0], d[1]);
}
static void op_bias_fwd(struct run *r) {
    float *b = input(r, (size_t)r->d[1], 1);
    r->K->ops->bias_fwd(r->K, KERN_F32, added(r, (size_t)r->d[0] * r->d[1]), b, r->d[0], r->d[1]);
}
static void op_bias_bwd(struct run *r) {
    float *dy = input(r, (size_t)r->d[0] * r->d[1], 1);
    r->K->ops->bias_bwd(r->K, KERN_F32, added(r, (size_t)r->d[1]), dy, r->d[0], r->d[1]);
}

// B T heads kv_heads head_dim mask size pad rope: q, k and v are slices of one row as in the model
static struct kern_attn attn_shape(struct run *r) {
    const int *d = r->d;
    int32_t *prefix = ids(r, d[0], d[1] + 1);
    return (struct kern_attn){.B = d[0],
                              .T = d[1],
                              .n_heads = d[2],
                              .n_kv_heads = d[3],
                              .head_dim = d[4],
                              .mask = (enum kern_mask)d[5],
                              .prefix_len = prefix};
}
static void op_attn_fwd(struct run *r) {
    const int *d = r->d;
    struct kern_attn s = attn_shape(r);
    int ld = (d[2] + 2 * d[3]) * d[4] + d[7], ldo = d[2] * d[4];
    size_t rows = (size_t)d[0] * d[1];
    float *qkv = input(r, rows * ld, (float)d[6]), *k = qkv + d[2] * d[4], *v = k + d[3] * d[4];
    float *out = written(r, rows * ldo), *lse = written(r, rows * d[2]);
    r->K->ops->attn_fwd(r->K, KERN_F32, &s, out, ldo, lse, qkv, ld, k, ld, v, ld);
}
// Puts several positions, copies a slot, adds one position to some slots and attends from there.
static void op_cache(struct run *r) { // B T heads kv head_dim longest pad
    const int *d = r->d;
    int B = d[0], width = d[3] * d[4], ld = 2 * width + d[2] * d[4] + d[6], ldo = d[2] * d[4];
    size_t room = (size_t)(B + 1) * (size_t)d[5] * (size_t)width;
    int32_t *at = ids(r, B, 1), *slot = ids(r, B, 1), *pair = ids(r, 2, 1);
    struct kern_cache c = {d[2], d[3], d[4], d[5], added(r, room), added(r, room)};
    float *first = input(r, (size_t)(B * d[1]) * (size_t)ld, 1),
          *next = input(r, (size_t)B * (size_t)ld, 1), *out = written(r, (size_t)B * (size_t)ldo);
    const struct kern_ops *K = r->K->ops;
    for (int b = 0; b < B; b++)
        slot[b] = B - b;
    K->cache_put(r->K, KERN_F32, &c, B, d[1], slot, at, first, first + width, ld);
    for (int b = 0; b < B; b++)
        at[b] = (d[1] + b * (d[5] - d[1]) / B) % d[5];
    pair[0] = slot[0];
    slot[0] = pair[1] = 0; // the sequence goes on in another slot
    K->cache_copy(r->K, KERN_F32, &c, pair, 1, at[0]);
    K->cache_put(r->K, KERN_F32, &c, B, 1, slot, at, next, next + width, ld);
    K->cache_attn(r->K, KERN_F32, &c, B, slot, at, out, ldo, next + 2 * width, ld);
}
static void op_attn_bwd(struct run *r) {
    const int *d = r->d;
    struct kern_attn s = attn_shape(r);
    int ld = (d[2] + 2 * d[3]) * d[4] + d[7], ldo = d[2] * d[4];
    size_t rows = (size_t)d[0] * d[1];
    float *qkv = input(r, rows * ld, (float)d[6]), *k = qkv + d[2] * d[4], *v = k + d[3] * d[4];
    float *out = buf(r, rows * ldo, false), *lse = buf(r, rows * d[2], false),
          *dout = input(r, rows * ldo, 1);
    float *delta = written(r, rows * d[2]), *g = added(r, rows * ld);
    struct kern *ref = NULL; // all use these forward results, so that only backward is compared
    assert_int_equal(kern_ref_create(&ref), NEB_OK);
    ref->ops->attn_fwd(ref, KERN_F32, &s, out, ldo, lse, qkv, ld, k, ld, v, ld);
    kern_destroy(&ref);
    float *cs = d[8] ? input(r, (size_t)d[1] * d[4], 1) : NULL;
    if (cs)
        kern_rope_table(cs, d[1], d[4], 10000, NULL);
    r->K->ops->attn_bwd(r->K, KERN_F32, &s, g, g + d[2] * d[4], g + (d[2] + d[3]) * d[4], dout, out,
                        ldo, lse, qkv, ld, k, ld, v, ld, delta, cs);
}

// Makes a teacher's labels of n rows from random numbers in logp: k of V classes, or all with k 0.
static void teach(struct run *r, size_t n, size_t V, size_t k, const int32_t *t, int32_t *named,
                  float *logp, float *tail) {
    size_t wide = k ? k : V;
    for (size_t i = 0; i < n; i++) {
        double all = 0, rest = k ? neb_rng_unit(&r->rng) : 0;
        for (size_t j = 0; k && j < k; j++) // distinct
            named[i * k + j] = (int32_t)(((size_t)t[i] + j * (V / k)) % V);
        for (size_t j = 0; j < wide; j++)
            all += exp((double)logp[i * wide + j]);
        for (size_t j = 0; j < wide; j++)
            logp[i * wide + j] = (float)((double)logp[i * wide + j] + log((1 - rest) / all));
        tail[i] = (float)rest;
    }
}

// n d V ignored(%) grads(bits: 1 dx, 2 dw, 4 losses); with a teacher k(0: all) temperature(%)
// lambda(%)
static void head(struct run *r, bool taught) {
    const int *d = r->d;
    size_t n = (size_t)d[0], V = (size_t)d[2], k = (size_t)d[5], wide = k ? k : V;
    const float by = 0.7f;
    double total = 3;
    struct kern_head h = {.n = d[0], .d = d[1], .V = d[2], .grad_scale = &by, .total = &total};
    int32_t *t = ids(r, d[0], d[2]), *named = taught && k ? ids(r, (int)(n * k), d[2]) : NULL;
    float *logp = taught ? input(r, n * wide, 2) : NULL, *tail = taught ? input(r, n, 0) : NULL,
          *sum = written(r, 1);
    if (taught)
        teach(r, n, V, k, t, named, logp, tail);
    for (size_t i = 0; i < n; i++)
        if ((int)neb_rng_below(&r->rng, 100) < d[3])
            t[i] = KERN_IGNORE;
    h.targets = t;
    h.x = input(r, n * (size_t)d[1], 1);
    h.w = input(r, V * (size_t)d[1], taught ? 0.5f : 1);
    h.dx = d[4] & 1 ? written(r, n * (size_t)d[1]) : NULL;
    h.dw = d[4] & 2 ? added(r, V * (size_t)d[1]) : NULL;
    h.losses = d[4] & 4 ? written(r, n) : NULL;
    const struct kern_soft soft = {d[5], (float)d[7] / 100, (float)d[6] / 100, named, logp, tail};
    r->K->ops->head_loss(r->K, KERN_F32, &h, taught ? &soft : NULL);
    sum[0] = (float)total;
}
static void op_head(struct run *r) { head(r, false); }
static void op_distill(struct run *r) { head(r, true); }

// The three steps of one rank, with the results of its own columns; with k also a teacher.
static void op_vocab(struct run *r) { // n columns V row0 learn k temperature(%)
    const int *d = r->d;
    size_t n = (size_t)d[0], k = (size_t)d[5], n_sums = k ? KERN_VOCAB_SOFT * n : 2 * n;
    const float by = 0.7f;
    double total = 3, *sums = calloc(n_sums, sizeof *sums);
    assert_non_null(sums);
    struct kern_vocab v = {.n = d[0],
                           .V = d[1],
                           .targets = ids(r, d[0], d[2]),
                           .row0 = d[3],
                           .max = written(r, n),
                           .sums = sums,
                           .grad_scale = &by,
                           .learn = d[4] != 0,
                           .losses = written(r, n),
                           .total = &total};
    int32_t *t = (int32_t *)(uintptr_t)v.targets, *named = k ? ids(r, (int)(n * k), d[2]) : NULL;
    float *logp = k ? input(r, n * k, 2) : NULL, *tail = k ? input(r, n, 0) : NULL;
    const struct kern_soft soft = {(int)k, 0.6f, (float)d[6] / 100, named, logp, tail};
    if (k) {
        teach(r, n, (size_t)d[2], k, t, named, logp, tail);
        v.soft = &soft;
    }
    for (size_t i = 0; i < n; i += 3) {
        t[i] = KERN_IGNORE;
        for (size_t j = 0; j < k; j++) // not read
            named[i * k + j] = -7;
    }
    float *z = added(r, n * (size_t)kern_logits_ld(d[1])), *sum = written(r, 1 + n_sums);
    v.logits = z;
    for (size_t i = 0; i < n; i++) // the gap after a row is scratch
        for (int c = d[1]; c < kern_logits_ld(d[1]); c++)
            z[i * (size_t)kern_logits_ld(d[1]) + (size_t)c] = 0;
    r->K->ops->vocab_max(r->K, KERN_F32, &v);
    r->K->ops->vocab_sum(r->K, KERN_F32, &v);
    for (size_t i = 0; i < n_sums; i++)
        sum[1 + i] = (float)sums[i];
    r->K->ops->vocab_loss(r->K, KERN_F32, &v);
    sum[0] = (float)total;
    if (!v.learn) // undefined
        memset(z, 0, n * (size_t)kern_logits_ld(d[1]) * sizeof *z);
    free(sums);
}

static void op_rtd(struct run *r) { // n d ignored(%) learn
    const int *d = r->d;
    size_t n = (size_t)d[0], width = (size_t)d[1];
    const float by = 0.7f;
    double total = 3;
    int32_t *labels = ids(r, d[0], 2);
    for (size_t i = 0; i < n; i++)
        if ((int)neb_rng_below(&r->rng, 100) < d[2])
            labels[i] = KERN_IGNORE;
    struct kern_rtd h = {.n = d[0],
                         .d = d[1],
                         .x = input(r, n * width, 1),
                         .w = input(r, width, 0.3f),
                         .b = input(r, 1, 1),
                         .labels = labels,
                         .grad_scale = &by,
                         .dx = d[3] ? written(r, n * width) : NULL,
                         .dw = d[3] ? added(r, width) : NULL,
                         .db = d[3] ? added(r, 1) : NULL,
                         .scores = written(r, n),
                         .losses = written(r, n),
                         .total = &total};
    float *sum = written(r, 1);
    r->K->ops->rtd_loss(r->K, KERN_F32, &h);
    sum[0] = (float)total;
}

// Draws and labels at some rows, some of them twice.
static void op_picks(struct run *r) { // n d V k(0: all)
    const int *d = r->d;
    size_t n = (size_t)d[0], V = (size_t)d[2], k = (size_t)d[3];
    struct kern_rows q = {.n = d[0],
                          .d = d[1],
                          .V = d[2],
                          .x = input(r, (n + 3) * (size_t)d[1], 1),
                          .at = ids(r, d[0], d[0] + 3),
                          .w = input(r, V * (size_t)d[1], 0.5f)};
    double *u = calloc(n, sizeof *u);
    int32_t *id = calloc(n * (k + 1), sizeof *id);
    assert_true(u && id);
    for (size_t i = 0; i < n; i++)
        u[i] = i % 5 == 1 ? 0 : neb_rng_unit(&r->rng);
    float *drawn = written(r, n), *logp = written(r, n * (k ? k : V)),
          *tail = k ? written(r, n) : NULL, *named = written(r, n * k);
    q.log_sums = k ? written(r, n) : NULL;
    r->K->ops->sample_rows(r->K, KERN_F32, &q, 0.7f, u, id);
    for (size_t i = 0; i < n; i++)
        drawn[i] = (float)id[i];
    r->K->ops->label_rows(r->K, KERN_F32, &q, d[3], 2, id, logp, tail);
    for (size_t i = 0; i < n * k; i++)
        named[i] = (float)id[i];
    free(u);
    free(id);
}

static void op_linear_bwd(struct run *r) { // n out in grads(bits: 1 dx, 2 dw, 4 db)
    const int *d = r->d;
    size_t n = (size_t)d[0], out = (size_t)d[1], in = (size_t)d[2];
    struct kern_linear_bwd l = {.n = d[0], .out = d[1], .in = d[2], .ld = d[1]};
    l.dy = input(r, n * out, 1);
    l.x = input(r, n * in, 1);
    l.w = input(r, out * in, 1);
    l.dx = d[3] & 1 ? written(r, n * in) : NULL;
    l.dw = d[3] & 2 ? added(r, out * in) : NULL;
    l.db = d[3] & 4 ? added(r, out) : NULL;
    r->K->ops->linear_bwd(r->K, &l);
}

// Several tensors as chunks.
static void op_update(struct run *r) { // tensors size
    enum { TENSORS = 4, CHUNKS = 16 };
    struct kern_chunk chunks[CHUNKS];
    int32_t first[TENSORS + 1] = {0}, k = 0;
    size_t size = (size_t)r->d[1], n = size * (size_t)r->d[0];
    float *g = added(r, n), *p = added(r, n), *m = added(r, n), *v = added(r, n),
          *factors = input(r, TENSORS, 1), *norms = written(r, TENSORS);
    double sums[TENSORS] = {0};
    for (int i = 0; i < r->d[0]; i++) {
        for (size_t at = 0; at < size; at += KERN_CHUNK, k++)
            chunks[k] = (struct kern_chunk){
                .param_at = (size_t)i * size + at,
                .grad_at = (size_t)i * size + at,
                .moment_at = (size_t)i * size + at,
                .n = (uint32_t)(size - at < KERN_CHUNK ? size - at : KERN_CHUNK),
                .tensor = i,
                .decay = i % 2 == 0,
                .momentum = i % 3 == 1};
        first[i + 1] = k;
    }
    for (size_t i = 0; i < n; i++)
        v[i] *= v[i];
    r->K->ops->sumsq(r->K, chunks, k, first, r->d[0], g, sums);
    for (int i = 0; i < TENSORS; i++)
        norms[i] = (float)sums[i];
    r->K->ops->adamw(r->K, KERN_F32,
                     &(struct kern_update){.c = {.lr = 1e-2f,
                                                 .beta1 = 0.9f,
                                                 .beta2 = 0.95f,
                                                 .eps = 1e-8f,
                                                 .weight_decay = 0.1f,
                                                 .bias1 = 1 - 0.9f * 0.9f,
                                                 .bias2 = 1 - 0.95f * 0.95f,
                                                 .momentum = 0.9f},
                                           .chunks = chunks,
                                           .n_chunks = k,
                                           .factors = factors,
                                           .params = p,
                                           .grads = g,
                                           .m = m,
                                           .v = v});
}
static void op_matrix(struct run *r) { // rows cols gap
    const int *d = r->d;
    int ld = d[1] + d[2];
    size_t n = (size_t)d[0] * (size_t)d[1];
    double sum = 3.7;
    float *x = added(r, (size_t)d[0] * (size_t)ld), *rate = input(r, 2, 1);
    r->K->ops->normalise(r->K, KERN_F32, x, ld, input(r, n, 1), d[0], d[1], &sum);
    r->K->ops->matrix_step(r->K, KERN_F32,
                           &(struct kern_matrix_step){.p = added(r, n),
                                                      .x = x,
                                                      .ldx = ld,
                                                      .rows = d[0],
                                                      .cols = d[1],
                                                      .rate = rate,
                                                      .scale = 0.3f});
}
static void op_flat(struct run *r) {
    size_t n = (size_t)r->d[0];
    float *x = input(r, n, 1), *a = added(r, n), *s = added(r, n), *z = added(r, n),
          *c = written(r, n), *t = written(r, n);
    r->K->ops->add(r->K, a, x, n);
    r->K->ops->scale(r->K, s, -1.5f, n);
    r->K->ops->zero(r->K, z, n * sizeof *z);
    r->K->ops->copy(r->K, c, x, n * sizeof *c);
    r->K->ops->cast(r->K, KERN_F32, t, x, n);
}

static const struct op_case {
    const char *name;
    void (*run)(struct run *r);
    double bound; // largest |difference| / (1 + largest |value|) of an output
    int d[DIMS];
} cases[] = {
    {"gemm", op_gemm, 2e-6, {1, 1, 1}},
    {"gemm", op_gemm, 2e-6, {7, 5, 3, 0, 0, 0, 3}},
    {"gemm", op_gemm, 4e-6, {65, 129, 33, 0, 1, 8, 2}},
    {"symmetric gemm", op_symmetric, 4e-6, {1, 1, 0, 0}},
    {"symmetric gemm", op_symmetric, 4e-6, {67, 131, 1, 3}},
    {"symmetric gemm", op_symmetric, 4e-6, {301, 40, 0, 2}},
    {"symmetric gemm", op_symmetric, 4e-6, {1030, 9, 1, 0}},
    {"gemm", op_gemm, 4e-6, {129, 31, 257, 1, 0, 8, 0}},
    {"gemm", op_gemm, 4e-6, {33, 17, 65, 1, 1, 4, 1}},
    {"gemm several tiles", op_gemm, 4e-6, {401, 389, 223, 0, 1, 0, 5}},
    {"gemm several tiles", op_gemm, 4e-6, {390, 260, 401, 1, 0, 8, 0}},
    {"gemm with a bias", op_gemm, 4e-6, {65, 129, 33, 0, 1, 0, 2, 1}},
    {"gemm k=0", op_gemm, 1e-7, {5, 6, 0, 0, 0, 4, 0}},
    {"gemm one row", op_gemm, 4e-6, {1, 1000, 64, 0, 1, 0, 0}},
    {"embed_fwd", op_embed_fwd, 0, {37, 67, 11}},
    {"embed_fwd", op_embed_fwd, 0, {37, 67, 11, 3}},
    {"embed_bwd", op_embed_bwd, 0, {300, 150, 7}},
    {"embed_bwd", op_embed_bwd, 0, {300, 150, 7, 4}},
    {"embed_bwd", op_embed_bwd, 0, {1, 1, 1}},
    {"rmsnorm_fwd", op_rms_fwd, 2e-6, {1, 1, 0, 0}},
    {"rmsnorm_fwd", op_rms_fwd, 2e-6, {9, 63, 1, 0}},
    {"rmsnorm_fwd", op_rms_fwd, 2e-6, {130, 256, 1, 1}},
    {"rmsnorm_fwd", op_rms_fwd, 2e-6, {5, 1031, 0, 1}},
    {"rmsnorm_bwd", op_rms_bwd, 5e-6, {1, 3, 0}},
    {"rmsnorm_bwd", op_rms_bwd, 5e-6, {700, 129, 0}},
    {"rmsnorm_bwd", op_rms_bwd, 5e-6, {65, 256, 1}},
    {"rmsnorm_bwd", op_rms_bwd, 5e-6, {65, 256, 0, 1}},
    {"rope", op_rope, 1e-6, {6, 3, 1, 2, 0, 1}},
    {"rope", op_rope, 1e-6, {40, 13, 3, 34, 0, 7}},
    {"rope inverse", op_rope, 1e-6, {130, 65, 4, 64, 1, 0}},
    {"swiglu_fwd", op_swiglu_fwd, 1e-6, {3, 1}},
    {"swiglu_fwd", op_swiglu_fwd, 1e-6, {33, 171}},
    {"swiglu_bwd", op_swiglu_bwd, 2e-6, {17, 45, 0}},
    {"swiglu_bwd in place", op_swiglu_bwd, 2e-6, {70, 344, 1}},
    {"bias_fwd", op_bias_fwd, 0, {67, 133}},
    {"bias_bwd", op_bias_bwd, 5e-6, {1000, 37}},
    {"bias_bwd", op_bias_bwd, 5e-6, {1, 5}},
#define ATTN(...)                                                                                  \
    {"attn_fwd", op_attn_fwd, 4e-6, {__VA_ARGS__}}, {                                              \
        "attn_bwd", op_attn_bwd, 2e-5, { __VA_ARGS__ }                                             \
    }
    ATTN(1, 1, 1, 1, 2, KERN_MASK_CAUSAL, 1, 0),
    ATTN(2, 7, 2, 1, 6, KERN_MASK_CAUSAL, 1, 3),
    ATTN(1, 64, 2, 2, 32, KERN_MASK_CAUSAL, 1, 0),
    ATTN(2, 65, 4, 2, 18, KERN_MASK_CAUSAL, 2, 0),
    ATTN(1, 200, 4, 1, 64, KERN_MASK_CAUSAL, 1, 5),
    ATTN(1, 150, 1, 1, 128, KERN_MASK_BIDIRECTIONAL, 1, 0),
    ATTN(3, 63, 2, 1, 30, KERN_MASK_BIDIRECTIONAL, 3, 1),
    ATTN(3, 140, 2, 2, 16, KERN_MASK_PREFIX, 2, 0),
    ATTN(5, 33, 3, 3, 10, KERN_MASK_PREFIX, 1, 0),
    ATTN(1, 70, 1, 1, 256, KERN_MASK_CAUSAL, 1, 0),
    {"cache", op_cache, 4e-6, {1, 1, 1, 1, 2, 2, 0}},
    {"cache", op_cache, 4e-6, {3, 5, 4, 2, 18, 70, 3}},
    {"cache", op_cache, 4e-6, {2, 130, 6, 1, 64, 200, 0}},
    {"attn_bwd before rope", op_attn_bwd, 2e-5, {2, 65, 4, 2, 18, KERN_MASK_CAUSAL, 2, 3, 1}},
    {"attn_fwd, large scores", op_attn_fwd, 1e-4, {1, 129, 2, 1, 16, KERN_MASK_CAUSAL, 30, 0}},
    {"head_loss", op_head, 1e-5, {1, 3, 2, 0, 7}},
    {"head_loss", op_head, 1e-5, {77, 33, 501, 0, 7}},
    {"head_loss", op_head, 1e-5, {301, 16, 5003, 0, 7}},
    {"head_loss some ignored", op_head, 1e-5, {333, 24, 4099, 40, 7}},
    {"head_loss all ignored", op_head, 0, {20, 8, 50, 100, 7}},
    {"head_loss frozen weight", op_head, 1e-5, {50, 31, 100, 15, 5}},
    {"distill", op_distill, 2e-5, {1, 3, 8, 0, 7, 4, 100, 50}},
    {"distill", op_distill, 2e-5, {77, 33, 501, 20, 7, 8, 200, 70}},
    {"distill k 64", op_distill, 2e-5, {301, 16, 5003, 0, 7, 64, 100, 100}},
    {"distill lambda 0", op_distill, 2e-5, {40, 16, 203, 10, 7, 8, 300, 0}},
    {"distill all logits", op_distill, 2e-5, {77, 33, 501, 20, 7, 0, 200, 70}},
    {"distill all logits", op_distill, 2e-5, {33, 24, 4099, 0, 5, 0, 100, 100}},
    {"distill only loss", op_distill, 2e-5, {50, 31, 2100, 0, 0, 16, 150, 30}},
    {"distill all ignored", op_distill, 0, {20, 8, 50, 101, 7, 4, 100, 50}},
    {"head_loss only loss", op_head, 1e-5, {50, 31, 2100, 15, 0}},
    {"vocab", op_vocab, 1e-5, {5, 1, 3, 1, 1}},
    {"vocab", op_vocab, 1e-5, {37, 501, 1100, 400, 1}},
    {"vocab only loss", op_vocab, 1e-5, {20, 77, 100, 23, 0}},
    {"vocab, teacher", op_vocab, 1e-5, {37, 501, 1100, 400, 1, 16, 250}},
    {"vocab, teacher of all", op_vocab, 1e-5, {11, 40, 40, 0, 1, 5, 100}},
    {"vocab, teacher, only loss", op_vocab, 1e-5, {20, 77, 100, 23, 0, 64, 150}},
    {"rtd", op_rtd, 1e-5, {1, 3, 0, 1}},
    {"rtd", op_rtd, 1e-5, {333, 37, 20, 1}},
    {"rtd only loss", op_rtd, 1e-5, {130, 24, 0, 0}},
    {"draws, labels", op_picks, 1e-5, {1, 3, 5, 1}},
    {"draws, labels", op_picks, 1e-5, {300, 16, 201, 7}},
    {"draws, all labels", op_picks, 1e-5, {40, 9, 67, 0}},
    {"linear_bwd", op_linear_bwd, 4e-6, {65, 33, 129, 7}},
    {"linear_bwd", op_linear_bwd, 4e-6, {130, 48, 31, 5}},
    {"linear_bwd", op_linear_bwd, 4e-6, {7, 5, 3, 2}},
    {"sumsq, adamw", op_update, 4e-6, {1, 1}},
    {"sumsq, adamw", op_update, 4e-6, {4, 9001}},
    {"sumsq, adamw", op_update, 4e-6, {2, 40009}},
    {"normalise, matrix_step", op_matrix, 1e-6, {1, 1}},
    {"normalise, matrix_step", op_matrix, 1e-6, {5, 37, 3}},
    {"normalise, matrix_step", op_matrix, 1e-6, {301, 129}},
    {"add, scale, zero, copy, cast", op_flat, 1e-6, {3}},
    {"add, scale, zero, copy, cast", op_flat, 1e-6, {70001}},
};

static void run_case(struct run *r, const struct op_case *c, struct kern *K) {
    *r = (struct run){.K = K, .rng = neb_rng_make(11, 4), .d = c->d};
    c->run(r);
    for (int i = 0; i < r->n_bufs; i++)
        for (size_t j = 0; j < GUARD; j++) {
            assert_memory_equal(r->bufs[i].base + j, &GUARD_BITS, 4);
            assert_memory_equal(r->bufs[i].base + GUARD + r->bufs[i].n + j, &GUARD_BITS, 4);
        }
}
static void run_free(struct run *r) {
    for (int i = 0; i < r->n_bufs; i++)
        free(r->bufs[i].base);
}

static double distance(const struct run *a, const struct run *b, int i) {
    double far = 0, size = 0;
    const float *x = a->bufs[i].base + GUARD, *y = b->bufs[i].base + GUARD;
    for (size_t j = 0; j < a->bufs[i].n; j++) {
        if (x[j] != x[j] || y[j] != y[j])
            return INFINITY;
        far = fmax(far, fabs((double)x[j] - (double)y[j]));
        size = fmax(size, fabs((double)x[j]));
    }
    return far / (1 + size);
}

static void compare(const struct op_case *c, const char *isa, const struct run *want,
                    const struct run *got) {
    for (int i = 0; i < want->n_bufs; i++) {
        double far = distance(want, got, i);
        if (want->bufs[i].out && !(far <= c->bound))
            fail_msg("%s (%d %d %d %d %d %d %d %d) on %s: array %d is off by %g, allowed %g",
                     c->name, c->d[0], c->d[1], c->d[2], c->d[3], c->d[4], c->d[5], c->d[6],
                     c->d[7], isa, i, far, c->bound);
        if (!want->bufs[i].out) // inputs must not change
            assert_memory_equal(want->bufs[i].base + GUARD, got->bufs[i].base + GUARD,
                                want->bufs[i].n * 4);
    }
}

static const char *const isas[] = {"sse2", "avx2", "avx512"};

static void test_matrix(void **state) {
    (void)state;
    struct kern *ref = NULL;
    int tables = 0;
    assert_int_equal(kern_ref_create(&ref), NEB_OK);
    for (size_t s = 0; s < 3; s++) {
        struct kern *one = NULL, *three = NULL;
        if (!cpu_isa_find(isas[s])) {
            print_message("%s: not on this machine\n", isas[s]);
            continue;
        }
        tables++;
        assert_int_equal(cpu_create_isa(isas[s], 1, &one), NEB_OK);
        assert_int_equal(cpu_create_isa(isas[s], 3, &three), NEB_OK);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct run want, a, b;
            run_case(&want, &cases[i], ref);
            run_case(&a, &cases[i], one);
            run_case(&b, &cases[i], three);
            compare(&cases[i], isas[s], &want, &a);
            for (int j = 0; j < a.n_bufs; j++)
                if (memcmp(a.bufs[j].base, b.bufs[j].base, (a.bufs[j].n + 2 * GUARD) * 4))
                    fail_msg("%s on %s: one and three threads differ in array %d", cases[i].name,
                             isas[s], j);
            run_free(&want);
            run_free(&a);
            run_free(&b);
        }
        kern_destroy(&one);
        kern_destroy(&three);
    }
    assert_true(tables >= 1);
    kern_destroy(&ref);
}

// Several threads, more than there are processors, share one key-value head. Each block of keys is
// still added in a fixed order.
static void test_attn_turns(void **state) {
    (void)state;
    const struct op_case shapes[] = {ATTN(1, 500, 6, 1, 16, KERN_MASK_CAUSAL, 1, 0),
                                     ATTN(5, 270, 4, 2, 8, KERN_MASK_PREFIX, 1, 0),
                                     ATTN(1, 330, 3, 1, 24, KERN_MASK_BIDIRECTIONAL, 1, 0)};
    struct kern *one = NULL, *nine = NULL;
    assert_int_equal(cpu_create_isa(NULL, 1, &one), NEB_OK);
    assert_int_equal(cpu_create_isa(NULL, 9, &nine), NEB_OK);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct run want, got;
        run_case(&want, &shapes[i], one);
        for (int again = 0; again < 5; again++) {
            run_case(&got, &shapes[i], nine);
            for (int j = 0; j < got.n_bufs; j++)
                assert_memory_equal(want.bufs[j].base, got.bufs[j].base,
                                    (got.bufs[j].n + 2 * GUARD) * 4);
            run_free(&got);
        }
        run_free(&want);
    }
    kern_destroy(&one);
    kern_destroy(&nine);
}

static void test_exp(void **state) {
    (void)state;
    enum { N = 20011 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = -87.0f + 175.0f * (float)i / (float)(N - 1);
    for (size_t s = 0; s < 3; s++) {
        const struct cpu_isa *v = cpu_isa_find(isas[s]);
        if (!v)
            continue;
        v->exp(y, x, N);
        double worst = 0;
        for (int i = 0; i < N; i++)
            worst = fmax(worst, fabs((double)y[i] / exp((double)x[i]) - 1) * 0x1p23);
        print_message("exp on %s: at most %.2f ulp\n", isas[s], worst);
        assert_true(worst < 2.0);
        float edge[] = {-INFINITY, -87.5f, 0.0f, -0.0f, 88.0f, 1000.0f, INFINITY, NAN}, e[8];
        v->exp(e, edge, 8);
        assert_true(e[0] == 0 && e[1] == 0 && e[2] == 1 && e[3] == 1 && e[4] == e[5] &&
                    e[5] == e[6] && e[7] != e[7]);
    }
}

// A NaN among the logits or scores must reach the loss, not vanish in a maximum.
static void test_nan_is_seen(void **state) {
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        const struct cpu_isa *v = cpu_isa_find(isas[s]);
        for (int at = 0; v && at < 40; at++) {
            float z[40] = {0}, max;
            z[at] = NAN;
            double sum = v->exp_row(z, 40, &max);
            assert_true(sum != sum);
        }
    }
}

static void test_isa_choice(void **state) {
    (void)state;
    struct kern *K = NULL;
    setenv("NEBULA_ISA", "sse2", 1);
    assert_string_equal(kern_cpu_isa(), "sse2");
    setenv("NEBULA_ISA", "mmx", 1);
    assert_int_equal(kern_cpu_create(1, &K), NEB_ERR_UNSUPPORTED);
    assert_null(K);
    unsetenv("NEBULA_ISA");
    assert_non_null(cpu_isa_find(kern_cpu_isa()));
    assert_int_equal(kern_cpu_create(-1, &K), NEB_ERR_INVALID);
    assert_null(K);
}

struct count {
    int hits[1000];
};
static void count_task(void *arg, size_t i) { ((struct count *)arg)->hits[i]++; }
static void test_pool(void **state) {
    (void)state;
    struct kern_pool *p = NULL;
    assert_int_equal(kern_pool_create(4, &p), NEB_OK);
    assert_int_equal(kern_pool_threads(p), 4);
    for (size_t n = 0; n < 1000; n += 37) { // every task runs once, for any number
        struct count c = {0};
        kern_pool_run(p, n, count_task, &c);
        for (size_t i = 0; i < 1000; i++)
            assert_int_equal(c.hits[i], i < n);
    }
    kern_pool_destroy(&p);
    assert_null(p);
    kern_pool_destroy(&p);
    assert_int_equal(kern_pool_create(KERN_POOL_THREADS_MAX + 1, &p), NEB_ERR_INVALID);
    assert_null(p);
}

// Processes divide the processors that they may use, not all processors of the machine.
static void test_share(void **state) {
    (void)state;
    cpu_set_t before, first;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(kern_pool_share(1), CPU_COUNT(&before));
    assert_int_equal(kern_pool_share(CPU_COUNT(&before)), 1);
    assert_int_equal(kern_pool_share(2 * CPU_COUNT(&before)), 1);
    CPU_ZERO(&first);
    for (size_t i = 0; i < CPU_SETSIZE && !CPU_COUNT(&first); i++)
        if (CPU_ISSET(i, &before))
            CPU_SET(i, &first);
    assert_int_equal(sched_setaffinity(0, sizeof first, &first), 0);
    assert_int_equal(kern_pool_share(1), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrix),     cmocka_unit_test(test_attn_turns),
        cmocka_unit_test(test_exp),        cmocka_unit_test(test_nan_is_seen),
        cmocka_unit_test(test_isa_choice), cmocka_unit_test(test_pool),
        cmocka_unit_test(test_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
