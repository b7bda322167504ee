// SPDX-License-Identifier: Apache-2.0
// The op matrix: every op on every instruction set of this machine against the reference, within a
// bound per op; the same bits with one thread and with three; no writes outside the outputs.
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

enum { GUARD = 24, BUFS_MAX = 16, DIMS = 8 };
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

static void op_gemm(struct run *r) { // m n k ta tb beta/8 pad
    const int *d = r->d;
    enum kern_trans ta = d[3] ? KERN_T : KERN_N, tb = d[4] ? KERN_T : KERN_N;
    int lda = (ta ? d[0] : d[2]) + d[6], ldb = (tb ? d[2] : d[1]) + d[6], ldc = d[1] + d[6];
    float *a = input(r, (size_t)(ta ? d[2] : d[0]) * lda, 1),
          *b = input(r, (size_t)(tb ? d[1] : d[2]) * ldb, 1);
    float *c = d[5] ? added(r, (size_t)d[0] * ldc) : written(r, (size_t)d[0] * ldc);
    for (int i = 0; d[6] && i < d[0]; i++) // the gap between rows must not change
        for (int j = d[1]; j < ldc; j++)
            c[i * ldc + j] = 5;
    r->K->ops->gemm(r->K, ta, tb, d[0], d[1], d[2], 0.5f, a, lda, b, ldb, (float)d[5] / 8, c, ldc);
}
static void op_embed_fwd(struct run *r) {
    const int *d = r->d;
    float *table = input(r, (size_t)d[2] * d[1], 1);
    r->K->ops->embed_fwd(r->K, written(r, (size_t)d[0] * d[1]), table, ids(r, d[0], d[2]), d[0],
                         d[1]);
}
static void op_embed_bwd(struct run *r) {
    const int *d = r->d;
    float *dout = input(r, (size_t)d[0] * d[1], 1);
    r->K->ops->embed_bwd(r->K, added(r, (size_t)d[2] * d[1]), dout, ids(r, d[0], d[2]), d[0], d[1],
                         d[2]);
}
static void op_rms_fwd(struct run *r) { // n d residual in-place
    const int *d = r->d;
    size_t n = (size_t)d[0] * d[1];
    float *x = input(r, n, 2), *res = d[2] ? input(r, n, 1) : NULL, *w = input(r, (size_t)d[1], 1),
          *h = written(r, n);
    if (d[3])
        memcpy(h, x, n * sizeof *x);
    r->K->ops->rmsnorm_fwd(r->K, written(r, n), written(r, (size_t)d[0]), h, d[3] ? h : x, res, w,
                           d[0], d[1], 1e-5f);
}
static void op_rms_bwd(struct run *r) { // n d frozen
    const int *d = r->d;
    size_t n = (size_t)d[0] * d[1];
    float *dy = input(r, n, 1), *h = input(r, n, 1), *w = input(r, (size_t)d[1], 1),
          *rstd = input(r, (size_t)d[0], 1);
    float *dh = added(r, n);
    for (int i = 0; i < d[0]; i++)
        rstd[i] = 0.5f + fabsf(rstd[i]);
    r->K->ops->rmsnorm_bwd(r->K, dh, d[2] ? NULL : added(r, (size_t)d[1]), dy, h, w, rstd, d[0],
                           d[1]);
}
static void op_rope(struct run *r) { // n T heads head_dim inverse pad
    const int *d = r->d;
    int ld = d[2] * d[3] + d[5];
    float *cs = input(r, (size_t)d[1] * d[3], 1), *x = added(r, (size_t)d[0] * ld);
    kern_rope_table(cs, d[1], d[3], 10000, NULL);
    r->K->ops->rope(r->K, x, ld, cs, d[0], d[1], d[2], d[3], d[4] != 0);
}
static void op_swiglu_fwd(struct run *r) {
    const int *d = r->d;
    float *gu = input(r, 2 * (size_t)d[0] * d[1], 8);
    r->K->ops->swiglu_fwd(r->K, written(r, (size_t)d[0] * d[1]), gu, d[0], d[1]);
}
static void op_swiglu_bwd(struct run *r) { // n f in-place
    const int *d = r->d;
    float *dy = input(r, (size_t)d[0] * d[1], 1), *gu = input(r, 2 * (size_t)d[0] * d[1], 8);
    float *out = written(r, 2 * (size_t)d[0] * d[1]);
    if (d[2])
        memcpy(out, gu, 2 * (size_t)d[0] * d[1] * sizeof *gu);
    r->K->ops->swiglu_bwd(r->K, out, dy, d[2] ? out : gu, d[0], d[1]);
}
static void op_bias_fwd(struct run *r) {
    float *b = input(r, (size_t)r->d[1], 1);
    r->K->ops->bias_fwd(r->K, added(r, (size_t)r->d[0] * r->d[1]), b, r->d[0], r->d[1]);
}
static void op_bias_bwd(struct run *r) {
    float *dy = input(r, (size_t)r->d[0] * r->d[1], 1);
    r->K->ops->bias_bwd(r->K, added(r, (size_t)r->d[1]), dy, r->d[0], r->d[1]);
}

// B T heads kv_heads head_dim mask size pad: q, k and v are slices of one row as in the model
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
    r->K->ops->attn_fwd(r->K, &s, out, ldo, lse, qkv, ld, k, ld, v, ld);
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
    ref->ops->attn_fwd(ref, &s, out, ldo, lse, qkv, ld, k, ld, v, ld);
    kern_destroy(&ref);
    r->K->ops->attn_bwd(r->K, &s, g, g + d[2] * d[4], g + (d[2] + d[3]) * d[4], dout, out, ldo, lse,
                        qkv, ld, k, ld, v, ld, delta);
}

static void op_head(struct run *r) { // n d V ignored(%) grads(bits: 1 dx, 2 dw, 4 losses)
    const int *d = r->d;
    struct kern_head h = {.n = d[0], .d = d[1], .V = d[2], .grad_scale = 0.7f};
    h.x = input(r, (size_t)d[0] * d[1], 1);
    h.w = input(r, (size_t)d[2] * d[1], 1);
    int32_t *t = ids(r, d[0], d[2]);
    for (int i = 0; i < d[0]; i++)
        if ((int)neb_rng_below(&r->rng, 100) < d[3])
            t[i] = KERN_IGNORE;
    h.targets = t;
    h.dx = d[4] & 1 ? written(r, (size_t)d[0] * d[1]) : NULL;
    h.dw = d[4] & 2 ? added(r, (size_t)d[2] * d[1]) : NULL;
    h.losses = d[4] & 4 ? written(r, (size_t)d[0]) : NULL;
    float *total = written(r, 2);
    int64_t counted = -1;
    total[0] = (float)r->K->ops->head_loss(r->K, &h, &counted);
    total[1] = (float)counted;
}
static void op_adamw(struct run *r) {
    size_t n = (size_t)r->d[0];
    struct kern_adamw c = {.lr = 1e-2f,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .weight_decay = 0.1f,
                           .bias1 = 1 - 0.9f * 0.9f,
                           .bias2 = 1 - 0.95f * 0.95f,
                           .grad_scale = 0.25f};
    float *g = input(r, n, 1), *p = added(r, n), *m = added(r, n), *v = added(r, n);
    for (size_t i = 0; i < n; i++)
        v[i] *= v[i];
    r->K->ops->adamw(r->K, &c, p, g, m, v, n);
}
static void op_flat(struct run *r) {
    size_t n = (size_t)r->d[0];
    float *x = input(r, n, 1), *sum = written(r, 1), *a = added(r, n), *s = added(r, n),
          *z = added(r, n);
    sum[0] = (float)r->K->ops->sumsq(r->K, x, n);
    r->K->ops->add(r->K, a, x, n);
    r->K->ops->scale(r->K, s, -1.5f, n);
    r->K->ops->zero(r->K, z, n);
}

// n d V k(0: all) temperature(%) lambda(%) grads(bits as in op_head) ignored(%)
static void op_distill(struct run *r) {
    const int *d = r->d;
    size_t n = (size_t)d[0], V = (size_t)d[2], k = (size_t)d[3], wide = k ? k : V;
    struct kern_head h = {.n = d[0], .d = d[1], .V = d[2], .grad_scale = 0.7f};
    double ce = 0, kl = 0;
    int64_t counted;
    int32_t *targets = ids(r, d[0], d[2]), *named = k ? ids(r, (int)(n * k), d[2]) : NULL;
    float *logp = input(r, n * wide, 2), *tail = input(r, n, 0), *total = written(r, 3);
    h.x = input(r, n * (size_t)d[1], 1);
    h.w = input(r, V * (size_t)d[1], 0.5f);
    for (size_t i = 0; i < n; i++) {
        double sum = 0, rest = k ? neb_rng_unit(&r->rng) : 0;
        for (size_t j = 0; k && j < k; j++) // distinct
            named[i * k + j] = (int32_t)(((size_t)targets[i] + j * (V / k)) % V);
        for (size_t j = 0; j < wide; j++)
            sum += exp((double)logp[i * wide + j]);
        for (size_t j = 0; j < wide; j++)
            logp[i * wide + j] = (float)((double)logp[i * wide + j] + log((1 - rest) / sum));
        tail[i] = (float)rest;
        if ((int)neb_rng_below(&r->rng, 100) < d[7])
            targets[i] = KERN_IGNORE;
    }
    h.targets = targets;
    h.dx = d[6] & 1 ? written(r, n * (size_t)d[1]) : NULL;
    h.dw = d[6] & 2 ? added(r, V * (size_t)d[1]) : NULL;
    h.losses = d[6] & 4 ? written(r, n) : NULL;
    struct kern_soft s = {d[3], (float)d[5] / 100, (float)d[4] / 100, named, logp, tail, &ce, &kl};
    total[0] = (float)r->K->ops->distill(r->K, &h, &s, &counted);
    total[1] = (float)ce;
    total[2] = (float)kl;
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
    {"gemm", op_gemm, 4e-6, {129, 31, 257, 1, 0, 8, 0}},
    {"gemm", op_gemm, 4e-6, {33, 17, 65, 1, 1, 4, 1}},
    {"gemm several tiles", op_gemm, 4e-6, {401, 389, 223, 0, 1, 0, 5}},
    {"gemm several tiles", op_gemm, 4e-6, {390, 260, 401, 1, 0, 8, 0}},
    {"gemm k=0", op_gemm, 1e-7, {5, 6, 0, 0, 0, 4, 0}},
    {"gemm one row", op_gemm, 4e-6, {1, 1000, 64, 0, 1, 0, 0}},
    {"embed_fwd", op_embed_fwd, 0, {37, 67, 11}},
    {"embed_bwd", op_embed_bwd, 0, {300, 150, 7}},
    {"embed_bwd", op_embed_bwd, 0, {1, 1, 1}},
    {"rmsnorm_fwd", op_rms_fwd, 2e-6, {1, 1, 0, 0}},
    {"rmsnorm_fwd", op_rms_fwd, 2e-6, {9, 63, 1, 0}},
    {"rmsnorm_fwd", op_rms_fwd, 2e-6, {130, 256, 1, 1}},
    {"rmsnorm_fwd", op_rms_fwd, 2e-6, {5, 1031, 0, 1}},
    {"rmsnorm_bwd", op_rms_bwd, 5e-6, {1, 3, 0}},
    {"rmsnorm_bwd", op_rms_bwd, 5e-6, {700, 129, 0}},
    {"rmsnorm_bwd", op_rms_bwd, 5e-6, {65, 256, 1}},
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
    {"attn_fwd, large scores", op_attn_fwd, 1e-4, {1, 129, 2, 1, 16, KERN_MASK_CAUSAL, 30, 0}},
    {"head_loss", op_head, 1e-5, {1, 3, 2, 0, 7}},
    {"head_loss", op_head, 1e-5, {77, 33, 501, 0, 7}},
    {"head_loss", op_head, 1e-5, {301, 16, 5003, 0, 7}},
    {"head_loss some ignored", op_head, 1e-5, {333, 24, 4099, 40, 7}},
    {"head_loss all ignored", op_head, 0, {20, 8, 50, 100, 7}},
    {"head_loss frozen weight", op_head, 1e-5, {50, 31, 100, 15, 5}},
    {"distill", op_distill, 2e-5, {1, 3, 8, 4, 100, 50, 7, 0}},
    {"distill", op_distill, 2e-5, {77, 33, 501, 8, 200, 70, 7, 20}},
    {"distill k 64", op_distill, 2e-5, {301, 16, 5003, 64, 100, 100, 7, 0}},
    {"distill lambda 0", op_distill, 2e-5, {40, 16, 203, 8, 300, 0, 7, 10}},
    {"distill all logits", op_distill, 2e-5, {77, 33, 501, 0, 200, 70, 7, 20}},
    {"distill all logits", op_distill, 2e-5, {33, 24, 4099, 0, 100, 100, 5, 0}},
    {"distill only loss", op_distill, 2e-5, {50, 31, 2100, 16, 150, 30, 0, 0}},
    {"distill all ignored", op_distill, 0, {20, 8, 50, 4, 100, 50, 7, 101}},
    {"head_loss only loss", op_head, 1e-5, {50, 31, 2100, 15, 0}},
    {"adamw", op_adamw, 2e-6, {1}},
    {"adamw", op_adamw, 2e-6, {40009}},
    {"sumsq, add, scale, zero", op_flat, 1e-6, {3}},
    {"sumsq, add, scale, zero", op_flat, 1e-6, {70001}},
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

// Several threads, more than processors, share one key-value head: each block of keys is added in a
// fixed order.
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

// Processes divide the processors that they may use, not all of the machine's.
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
