// SPDX-License-Identifier: Apache-2.0
// Products in bf16 (kernels/cpu_bf16.c). The tests: rounding; every product, computed every way,
// against a reference that rounds its operands in the same way; the same bits with one thread and
// with three; copies of parameters.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "kernels/bf16.h"
#include "kernels/cpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void swallow(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level, (void)text;
}

// The ways that NEBULA_BF16 can ask for, and the machine's default.
enum way { PLAIN, PROCESSOR };
static const struct {
    const char *asked, *name; // the start of its name
    bool anywhere;
} ways[] = {
    {"plain", "bf16 by plain C", true}, {NULL, "bf16 by A", false}, // AVX-512, AMX
};

// NULL: not on this machine
static struct kern *make(enum way way, int threads) {
    struct kern *K = NULL;
    assert_int_equal(kern_cpu_create(threads, &K), NEB_OK);
    assert_string_equal(kern_cpu_products(K), "fp32");
    unsetenv("NEBULA_BF16");
    if (ways[way].asked)
        setenv("NEBULA_BF16", ways[way].asked, 1);
    neb_log_set_sink(swallow, NULL);
    enum neb_status st = kern_cpu_bf16(K);
    neb_log_set_sink(NULL, NULL);
    unsetenv("NEBULA_BF16");
    if (st == NEB_OK) {
        assert_memory_equal(kern_cpu_products(K), ways[way].name, strlen(ways[way].name));
        assert_int_equal(kern_cpu_bf16(K), NEB_OK); // a second call changes nothing
        return K;
    }
    char why[1024];
    neb_last_error(why, sizeof why);
    assert_false(ways[way].anywhere);
    assert_int_equal(st, NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(why, "precision bf16 on processors: "));
    assert_non_null(strstr(why, "set precision: fp32"));
    assert_string_equal(kern_cpu_products(K), "fp32"); // unchanged
    kern_destroy(&K);
    print_message("%s\n", why);
    return NULL;
}

static void test_rounding(void **state) {
    (void)state;
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
        {0x3f807fff, 0x3f80}, {0x80000000, 0x8000}, {0x00000001, 0x0000}, {0x00008001, 0x0001},
        {0x7f7fffff, 0x7f80}, {0xff7f8000, 0xff80}, {0x7f7f7fff, 0x7f7f}, {0x7f800000, 0x7f80},
        {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, {0x7fffffff, 0x7fff}, {0xffffffff, 0xffff},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float x, y;
        uint32_t bits;
        memcpy(&x, &cases[i].from, 4);
        y = kern_bf16_round(x);
        memcpy(&bits, &y, 4);
        assert_int_equal(kern_bf16_of(x), cases[i].to);
        assert_true(bits == (uint32_t)cases[i].to << 16);
    }
}

static float *fill(struct neb_rng *r, size_t n, float size) {
    float *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = size * neb_rng_normal(r);
    return x;
}

static double distance(const float *x, const float *y, size_t n) {
    double far = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        if (x[i] != x[i] || y[i] != y[i])
            return INFINITY;
        far = fmax(far, fabs((double)x[i] - (double)y[i]));
        size = fmax(size, fabs((double)x[i]));
    }
    return far / (1 + size);
}

// Both sides round in the same way, so the results differ only by the order of fp32 sums.
static const double BOUND = 4e-6;

static const struct {
    int m, n, k, pad;
    float alpha, beta;
} products[] = {
    {16, 16, 16, 0, 1, 0},         {17, 19, 23, 3, 0.5f, 0},   {65, 129, 33, 2, 1, 1},
    {129, 31, 257, 0, 1, 1},       {33, 17, 65, 1, 2, 0.5f},   {401, 389, 223, 5, 1, 0},
    {390, 260, 401, 0, 1, 1},      {700, 96, 64, 0, 0.25f, 1}, {64, 1000, 48, 7, 1, 0},
    {128, 172, 512, 0, 1, 0.125f}, {15, 64, 64, 0, 1, 0},      {64, 7, 64, 0, 1, 1},
    {64, 64, 1, 0, 1, 1}, // in fp32
    {40, 30, 0, 0, 1, 0.5f},
};

static void one_product(struct kern *ref, struct kern *one, struct kern *three, size_t i,
                        enum kern_trans ta, enum kern_trans tb) {
    struct neb_rng r = neb_rng_make(7, i);
    int m = products[i].m, n = products[i].n, k = products[i].k, pad = products[i].pad,
        lda = (ta ? m : k) + pad, ldb = (tb ? k : n) + pad, ldc = n + pad;
    size_t n_c = (size_t)m * (size_t)ldc;
    float *a = fill(&r, (size_t)(ta ? k : m) * (size_t)lda, 1),
          *b = fill(&r, (size_t)(tb ? n : k) * (size_t)ldb, 1), *c[3];
    c[0] = fill(&r, n_c, 1);
    // beta is 0: the op writes, and does not add
    for (int j = 0; j < m && products[i].beta == 0; j++)
        for (int l = 0; l < n; l++)
            c[0][j * ldc + l] = NAN;
    for (int j = 1; j < 3; j++) {
        c[j] = malloc((n_c + 1) * sizeof **c);
        assert_non_null(c[j]);
        memcpy(c[j], c[0], n_c * sizeof **c);
    }
    struct kern *all[] = {ref, one, three};
    for (int j = 0; j < 3; j++)
        all[j]->ops->gemm(all[j], &(struct kern_gemm){.ta = ta,
                                                      .tb = tb,
                                                      .m = m,
                                                      .n = n,
                                                      .k = k,
                                                      .alpha = products[i].alpha,
                                                      .a = a,
                                                      .lda = lda,
                                                      .b = b,
                                                      .ldb = ldb,
                                                      .beta = products[i].beta,
                                                      .c = c[j],
                                                      .ldc = ldc});
    double far = distance(c[0], c[1], n_c);
    if (!(far <= BOUND))
        fail_msg("%d x %d x %d%s%s in %s is off by %g, allowed %g", m, n, k, ta ? " T" : " N",
                 tb ? "T" : "N", kern_cpu_products(one), far, BOUND);
    if (memcmp(c[1], c[2], n_c * sizeof **c))
        fail_msg("%d x %d x %d: one and three threads differ", m, n, k);
    free(a);
    free(b);
    for (int j = 0; j < 3; j++)
        free(c[j]);
}

// dx and dW in one call. None, one or both are wanted, and the weight is with and without a copy.
static void one_backward(struct kern *ref, struct kern *K, int n, int out, int in, int pad) {
    struct neb_rng r = neb_rng_make(8, (uint64_t)n);
    int ld = out + pad;
    size_t n_w = (size_t)out * (size_t)in, n_x = (size_t)n * (size_t)in;
    float *params = fill(&r, n_w + 77, 1), *w = params + 40, *x = fill(&r, n_x, 1),
          *dy = fill(&r, (size_t)n * (size_t)ld, 1), *dw = fill(&r, n_w, 1),
          *dw2 = malloc(n_w * sizeof *dw), *dx = fill(&r, n_x, 1), *dx2 = fill(&r, n_x, 1);
    for (int what = 0; what < 8; what++) {
        bool want_w = what & 1, want_x = what & 2, kept = what & 4;
        memcpy(dw2, dw, n_w * sizeof *dw);
        memcpy(dx2, dx, n_x * sizeof *dx);
        K->ops->weights(K, params, kept ? n_w + 77 : 0);
        ref->ops->linear_bwd(ref, &(struct kern_linear_bwd){.n = n,
                                                            .out = out,
                                                            .in = in,
                                                            .dy = dy,
                                                            .ld = ld,
                                                            .x = x,
                                                            .w = w,
                                                            .dx = want_x ? dx : NULL,
                                                            .dw = want_w ? dw : NULL});
        K->ops->linear_bwd(K, &(struct kern_linear_bwd){.n = n,
                                                        .out = out,
                                                        .in = in,
                                                        .dy = dy,
                                                        .ld = ld,
                                                        .x = x,
                                                        .w = w,
                                                        .dx = want_x ? dx2 : NULL,
                                                        .dw = want_w ? dw2 : NULL});
        if (!(distance(dw, dw2, n_w) <= BOUND) || !(distance(dx, dx2, n_x) <= BOUND))
            fail_msg("backward of %d x %d x %d, %d, in %s: dW is off by %g, dx by %g, allowed %g",
                     n, out, in, what, kern_cpu_products(K), distance(dw, dw2, n_w),
                     distance(dx, dx2, n_x), BOUND);
    }
    K->ops->weights(K, NULL, 0);
    float *all[] = {params, x, dy, dw, dw2, dx, dx2};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

// One product is written past the caches, and the sum of one takes several parts.
static void large_products(struct kern *fp32, struct kern *K) {
    static const struct { int m, n, k; } shapes[] = {{1040, 2064, 32}, {48, 40, 9000}};
    struct neb_rng r = neb_rng_make(4, 4);
    for (size_t s = 0; s < 2; s++) {
        int m = shapes[s].m, n = shapes[s].n, k = shapes[s].k;
        size_t n_a = (size_t)m * (size_t)k, n_b = (size_t)n * (size_t)k,
               n_c = (size_t)m * (size_t)n;
        float *a = fill(&r, n_a, 1), *b = fill(&r, n_b, 1), *c[2];
        for (size_t i = 0; i < n_a; i++)
            a[i] = kern_bf16_round(a[i]); // so products in fp32 are the definition
        for (size_t i = 0; i < n_b; i++)
            b[i] = kern_bf16_round(b[i]);
        for (int i = 0; i < 2; i++) {
            struct kern *now = i ? K : fp32;
            c[i] = aligned_alloc(64, (n_c + 15) / 16 * 64);
            assert_non_null(c[i]);
            for (size_t j = 0; j < n_c; j++)
                c[i][j] = NAN;
            now->ops->gemm(now, &(struct kern_gemm){.tb = KERN_T,
                                                    .m = m,
                                                    .n = n,
                                                    .k = k,
                                                    .alpha = 1,
                                                    .a = a,
                                                    .lda = k,
                                                    .b = b,
                                                    .ldb = k,
                                                    .c = c[i],
                                                    .ldc = n});
        }
        double far = distance(c[0], c[1], n_c);
        if (!(far <= BOUND))
            fail_msg("%d x %d x %d in %s: off by %g", m, n, k, kern_cpu_products(K), far);
        free(a);
        free(b);
        free(c[0]);
        free(c[1]);
    }
}

// A logit's gradient is rounded before its products. A tie may be rounded up or down, so they may
// differ by one bf16 step.
static void one_head(struct kern *ref, struct kern *K, int n, int d, int V) {
    struct neb_rng r = neb_rng_make(9, (uint64_t)n);
    size_t n_x = (size_t)n * (size_t)d, n_w = (size_t)V * (size_t)d;
    float *x = fill(&r, n_x, 1), *w = fill(&r, n_w, 0.3f);
    int32_t *targets = malloc((size_t)n * sizeof *targets);
    float *dx[2], *dw[2];
    double loss[2];
    const float by = 1;
    for (int i = 0; i < n; i++)
        targets[i] = i % 9 == 4 ? KERN_IGNORE : (int32_t)neb_rng_below(&r, (uint64_t)V);
    for (int i = 0; i < 2; i++) {
        struct kern *now = i ? K : ref;
        dx[i] = calloc(n_x, sizeof **dx);
        dw[i] = calloc(n_w, sizeof **dw);
        struct kern_head h = {.n = n,
                              .d = d,
                              .V = V,
                              .x = x,
                              .w = w,
                              .targets = targets,
                              .grad_scale = &by,
                              .total = &loss[i],
                              .dx = dx[i],
                              .dw = dw[i]};
        loss[i] = 0;
        now->ops->head_loss(now, KERN_F32, &h, NULL);
    }
    assert_true(fabs(loss[0] - loss[1]) < 1e-5 * loss[0]);
    double far = fmax(distance(dx[0], dx[1], n_x), distance(dw[0], dw[1], n_w));
    if (!(far <= 1.0 / 512))
        fail_msg("output layer %d x %d x %d in %s: off by %g", n, d, V, kern_cpu_products(K), far);
    for (int i = 0; i < 2; i++) {
        free(dx[i]);
        free(dw[i]);
    }
    free(x);
    free(w);
    free(targets);
}

// Parameters may change after weights(NULL) withdraws them. No other parameters use their copy.
static void parameters_change(struct kern *ref, struct kern *K) {
    enum { S = 48, N = S * S };
    struct neb_rng r = neb_rng_make(3, 3);
    float *w = fill(&r, 3 * N, 1), *x = fill(&r, N, 1), *y = fill(&r, N, 1), *want = fill(&r, N, 1);
    for (int turn = 0; turn < 5; turn++) {
        float *now = w + (turn == 4   ? 2 * N
                          : turn == 2 ? N / 2
                                      : 0); // turn 2: across the end of the copy; turn 4: beyond it
        if (turn == 1)
            K->ops->weights(K, NULL, 0);
        if (turn == 0 || turn == 2)
            K->ops->weights(K, w, N);
        if (turn == 3)
            K->ops->weights(K, w, N - 1); // one too short
        if (turn == 1)
            w[5] += 3;
        K->ops->gemm(K, &(struct kern_gemm){.tb = KERN_T,
                                            .m = S,
                                            .n = S,
                                            .k = S,
                                            .alpha = 1,
                                            .a = x,
                                            .lda = S,
                                            .b = now,
                                            .ldb = S,
                                            .c = y,
                                            .ldc = S});
        ref->ops->gemm(ref, &(struct kern_gemm){.tb = KERN_T,
                                                .m = S,
                                                .n = S,
                                                .k = S,
                                                .alpha = 1,
                                                .a = x,
                                                .lda = S,
                                                .b = now,
                                                .ldb = S,
                                                .c = want,
                                                .ldc = S});
        if (!(distance(want, y, N) <= BOUND))
            fail_msg("turn %d in %s: off by %g", turn, kern_cpu_products(K), distance(want, y, N));
    }
    // products read the copy, which is made at once or by the first product
    K->ops->weights(K, w, N);
    K->ops->gemm(K, &(struct kern_gemm){.tb = KERN_T,
                                        .m = S,
                                        .n = S,
                                        .k = S,
                                        .alpha = 1,
                                        .a = x,
                                        .lda = S,
                                        .b = w,
                                        .ldb = S,
                                        .c = y,
                                        .ldc = S});
    w[5] += 3;
    K->ops->gemm(K, &(struct kern_gemm){.tb = KERN_T,
                                        .m = S,
                                        .n = S,
                                        .k = S,
                                        .alpha = 1,
                                        .a = x,
                                        .lda = S,
                                        .b = w,
                                        .ldb = S,
                                        .c = y,
                                        .ldc = S});
    ref->ops->gemm(ref, &(struct kern_gemm){.tb = KERN_T,
                                            .m = S,
                                            .n = S,
                                            .k = S,
                                            .alpha = 1,
                                            .a = x,
                                            .lda = S,
                                            .b = w,
                                            .ldb = S,
                                            .c = want,
                                            .ldc = S});
    assert_true(distance(want, y, N) > 0.1);
    K->ops->weights(K, NULL, 0);
    free(w);
    free(x);
    free(y);
    free(want);
}

// Attention: o, dq, dk, dv against fp32, and against plain C, which rounds at the same places.
enum { OUTS = 4 };
static void attention_of(struct kern *K, const struct kern_attn *s, const float *in, float **out) {
    size_t rows = (size_t)s->B * (size_t)s->T, q = (size_t)(s->n_heads * s->head_dim),
           kv = (size_t)(s->n_kv_heads * s->head_dim), ld = q + 2 * kv + 5;
    size_t heads = rows * (size_t)s->n_heads, pad = ld * rows;
    float *lse = calloc(2 * heads, sizeof *lse), *g = malloc(pad * sizeof *g),
          *o = malloc(rows * q * sizeof *o);
    assert_true(lse && g && o);
    for (size_t i = 0; i < pad; i++)
        g[i] = NAN;
    const float *d_o = in + pad;
    K->ops->attn_fwd(K, KERN_F32, s, o, (int)q, lse, in, (int)ld, in + q, (int)ld, in + q + kv,
                     (int)ld);
    K->ops->attn_bwd(K, KERN_F32, s, g, g + q, g + q + kv, d_o, o, (int)q, lse, in, (int)ld, in + q,
                     (int)ld, in + q + kv, (int)ld, lse + heads, NULL);
    out[0] = o;
    for (size_t r = 0; r < rows; r++) {
        for (int i = 0; i < 5; i++)
            assert_true(isnan(g[r * ld + q + 2 * kv + (size_t)i])); // columns of another tensor
        for (int k = 1; k < OUTS; k++) {
            size_t n = k == 1 ? q : kv, from = k == 1 ? 0 : k == 2 ? q : q + kv;
            if (r == 0)
                out[k] = malloc(rows * n * sizeof **out);
            assert_non_null(out[k]);
            memcpy(out[k] + r * n, g + r * ld + from, n * sizeof **out);
        }
    }
    free(lse);
    free(g);
}

static void attention(struct kern *fp32, struct kern *plain, struct kern *one, struct kern *three) {
    const struct kern_attn shapes[] = {
        {2, 64, 2, 2, 32, KERN_MASK_CAUSAL, NULL},
        {1, 200, 4, 2, 64, KERN_MASK_CAUSAL, NULL},
        {2, 129, 2, 1, 48, KERN_MASK_BIDIRECTIONAL, NULL},
        {3, 97, 2, 2, 24, KERN_MASK_PREFIX, (const int32_t[]){0, 97, 41}},
        {1, 17, 1, 1, 16, KERN_MASK_CAUSAL, NULL},
        {1, 150, 1, 1, 128, KERN_MASK_PREFIX, (const int32_t[]){70}},
        {2, 40, 3, 1, 256, KERN_MASK_BIDIRECTIONAL, NULL},
        {2, 15, 2, 2, 32, KERN_MASK_CAUSAL, NULL}, // in fp32
        {2, 64, 2, 2, 8, KERN_MASK_CAUSAL, NULL},
    };
    struct neb_rng r = neb_rng_make(5, 5);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct kern_attn *s = &shapes[i];
        size_t rows = (size_t)s->B * (size_t)s->T, q = (size_t)(s->n_heads * s->head_dim),
               kv = (size_t)(s->n_kv_heads * s->head_dim), n = rows * (2 * q + 2 * kv + 5);
        float *in = fill(&r, n, 1), *out[4][OUTS];
        struct kern *all[] = {fp32, plain, one, three};
        for (int k = 0; k < 4; k++)
            attention_of(all[k], s, in, out[k]);
        for (int o = 0; o < OUTS; o++) {
            size_t len = rows * (o < 2 ? q : kv) * sizeof(float);
            double far = distance(out[0][o], out[2][o], len / sizeof(float)),
                   apart = distance(out[1][o], out[2][o], len / sizeof(float));
            bool exact = s->T < KERN_BF16_LEAST || s->head_dim < KERN_BF16_LEAST;
            if (!(far <= (exact ? BOUND : 1.0 / 128)) || !(apart <= 1.0 / 2048))
                fail_msg("attention %zu in %s: output %d is off by %g, from plain C by %g", i,
                         kern_cpu_products(one), o, far, apart);
            assert_true(exact || memcmp(out[0][o], out[2][o], len) != 0); // it ran in bf16
            assert_memory_equal(out[2][o], out[3][o], len);
        }
        for (int k = 0; k < 4; k++)
            for (int o = 0; o < OUTS; o++)
                free(out[k][o]);
        free(in);
    }
}

static void run(enum way way) {
    struct kern *ref = NULL, *fp32 = NULL, *one = make(way, 1), *three;
    if (!one)
        skip();
    three = make(way, 3);
    assert_int_equal(kern_ref_create(&fp32), NEB_OK);
    assert_int_equal(kern_ref_create(&ref), NEB_OK);
    kern_ref_bf16(ref);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        int m = products[i].m, n = products[i].n, k = products[i].k,
            least = m < n ? (m < k ? m : k) : (n < k ? n : k);
        for (int t = 0; t < 4; t++)
            one_product(least < KERN_BF16_LEAST ? fp32 : ref, one, three, i,
                        t & 1 ? KERN_T : KERN_N, t & 2 ? KERN_T : KERN_N);
    }
    one_backward(ref, one, 16, 16, 16, 0);
    one_backward(ref, one, 65, 33, 47, 3);
    one_backward(ref, three, 513, 130, 71, 1);
    one_backward(ref, three, 300, 512, 256, 0);
    one_head(ref, one, 144, 24, 203);
    one_head(ref, three, 577, 33, 501);
    parameters_change(ref, three);
    struct kern *fast = NULL; // the reference would take minutes
    assert_int_equal(kern_cpu_create(1, &fast), NEB_OK);
    large_products(fast, three);
    struct kern *plain = make(PLAIN, 1);
    attention(fast, plain, one, three);
    kern_destroy(&plain);
    kern_destroy(&fast);
    double gain = kern_cpu_bf16_gain(one);
    assert_true(gain > 0 && gain < 100);
    print_message("%s: a product of 384 is %.2f times as fast as in fp32\n", kern_cpu_products(one),
                  gain);
    kern_destroy(&one);
    kern_destroy(&three);
    kern_destroy(&fp32);
    kern_destroy(&ref);
}
static void test_plain(void **state) {
    (void)state;
    run(PLAIN);
}
static void test_processor(void **state) {
    (void)state;
    run(PROCESSOR);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounding),
                                       cmocka_unit_test(test_plain),
                                       cmocka_unit_test(test_processor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
