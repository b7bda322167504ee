// Products in bf16 (kernels/cpu_bf16.c): rounding, and every product against the reference that rounds its operands likewise, for
// the two ways to compute them; the same bits with one thread and with three; parameters of which a copy is kept.
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

// NULL: not on this machine
static struct kern *make(bool rounded, int threads) {
    struct kern *K = NULL;
    assert_int_equal(kern_cpu_create(threads, &K), NEB_OK);
    assert_string_equal(kern_cpu_products(K), "fp32");
    unsetenv("NEBULA_BF16");
    if (rounded)
        setenv("NEBULA_BF16", "rounded", 1);
    neb_log_set_sink(swallow, NULL);
    enum neb_status st = kern_cpu_bf16(K);
    neb_log_set_sink(NULL, NULL);
    unsetenv("NEBULA_BF16");
    if (st == NEB_OK) {
        assert_memory_equal(kern_cpu_products(K), rounded ? "bf16, rounded" : "bf16 by oneDNN", 13);
        assert_int_equal(kern_cpu_bf16(K), NEB_OK); // it stays
        return K;
    }
    char why[1024];
    neb_last_error(why, sizeof why);
    assert_false(rounded);
    assert_int_equal(st, NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(why, "precision bf16 on processors: "));
    assert_non_null(strstr(why, "set precision: fp32"));
    assert_string_equal(kern_cpu_products(K), "fp32"); // as it was
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
    enum { N = sizeof cases / sizeof *cases };
    static const char *const isas[] = {"sse2", "avx2", "avx512"};
    float x[5 * N], y[5 * N];
    uint16_t h[5 * N];
    for (int i = 0; i < 5 * N; i++) // more than any vector, and a rest
        memcpy(&x[i], &cases[i % N].from, 4);
    for (size_t s = 0; s < 3; s++) {
        const struct cpu_isa *v = cpu_isa_find(isas[s]);
        for (int n = 5 * N - 7; v && n <= 5 * N; n++) {
            memset(h, 0xab, sizeof h);
            v->to_bf16(h, x, (size_t)n);
            v->round_bf16(y, x, (size_t)n);
            for (int i = 0; i < 5 * N; i++) {
                uint32_t bits;
                memcpy(&bits, &y[i], 4);
                assert_int_equal(h[i], i < n ? cases[i % N].to : 0xabab);
                assert_true(i >= n || bits == (uint32_t)cases[i % N].to << 16);
            }
        }
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

// Rounding is the reference's, so what is left is the order of fp32 sums: as for products in fp32.
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
    for (int j = 0; j < m && products[i].beta == 0; j++) // written, not added to
        for (int l = 0; l < n; l++)
            c[0][j * ldc + l] = NAN;
    for (int j = 1; j < 3; j++) {
        c[j] = malloc((n_c + 1) * sizeof **c);
        assert_non_null(c[j]);
        memcpy(c[j], c[0], n_c * sizeof **c);
    }
    struct kern *all[] = {ref, one, three};
    for (int j = 0; j < 3; j++)
        all[j]->ops->gemm(all[j], ta, tb, m, n, k, products[i].alpha, a, lda, b, ldb,
                          products[i].beta, c[j], ldc);
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

// dx and dW of one call; with none, one or the other wanted; the weight with and without a copy of it.
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
        ref->ops->linear_bwd(ref, want_x ? dx : NULL, want_w ? dw : NULL, dy, ld, x, w, n, out, in);
        K->ops->linear_bwd(K, want_x ? dx2 : NULL, want_w ? dw2 : NULL, dy, ld, x, w, n, out, in);
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

// A logit's gradient is rounded before its products: one bf16 step where both sides of a tie are taken.
static void one_head(struct kern *ref, struct kern *K, int n, int d, int V) {
    struct neb_rng r = neb_rng_make(9, (uint64_t)n);
    size_t n_x = (size_t)n * (size_t)d, n_w = (size_t)V * (size_t)d;
    float *x = fill(&r, n_x, 1), *w = fill(&r, n_w, 0.3f);
    int32_t *targets = malloc((size_t)n * sizeof *targets);
    float *dx[2], *dw[2];
    double loss[2];
    int64_t counted[2];
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
                              .grad_scale = 1,
                              .dx = dx[i],
                              .dw = dw[i]};
        loss[i] = now->ops->head_loss(now, &h, &counted[i]);
    }
    assert_int_equal(counted[0], counted[1]);
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

// What was copied may change once it does not rest; a copy of other parameters is not taken for these.
static void parameters_change(struct kern *ref, struct kern *K) {
    enum { S = 48, N = S * S };
    struct neb_rng r = neb_rng_make(3, 3);
    float *w = fill(&r, 3 * N, 1), *x = fill(&r, N, 1), *y = fill(&r, N, 1), *want = fill(&r, N, 1);
    for (int turn = 0; turn < 5; turn++) {
        float *now = w + (turn == 4   ? 2 * N
                          : turn == 2 ? N / 2
                                      : 0); // 2: across its end; 4: beyond
        if (turn == 1)
            K->ops->weights(K, NULL, 0);
        if (turn == 0 || turn == 2)
            K->ops->weights(K, w, N);
        if (turn == 3)
            K->ops->weights(K, w, N - 1); // one short
        if (turn == 1)
            w[5] += 3;
        K->ops->gemm(K, KERN_N, KERN_T, S, S, S, 1, x, S, now, S, 0, y, S);
        ref->ops->gemm(ref, KERN_N, KERN_T, S, S, S, 1, x, S, now, S, 0, want, S);
        if (!(distance(want, y, N) <= BOUND))
            fail_msg("turn %d in %s: off by %g", turn, kern_cpu_products(K), distance(want, y, N));
    }
    K->ops->weights(K, w, N); // and the copy is what is read
    w[5] += 3;
    K->ops->gemm(K, KERN_N, KERN_T, S, S, S, 1, x, S, w, S, 0, y, S);
    ref->ops->gemm(ref, KERN_N, KERN_T, S, S, S, 1, x, S, w, S, 0, want, S);
    assert_true(distance(want, y, N) > 0.1);
    K->ops->weights(K, NULL, 0);
    free(w);
    free(x);
    free(y);
    free(want);
}

static void run(bool rounded) {
    struct kern *ref = NULL, *fp32 = NULL, *one = make(rounded, 1), *three;
    if (!one)
        skip();
    three = make(rounded, 3);
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
    double gain = kern_cpu_bf16_gain(one);
    assert_true(gain > 0.01 && gain < 100);
    print_message("%s: a product of 384 is %.2f times as fast as in fp32\n", kern_cpu_products(one),
                  gain);
    kern_destroy(&one);
    kern_destroy(&three);
    kern_destroy(&fp32);
    kern_destroy(&ref);
}
static void test_rounded(void **state) {
    (void)state;
    run(true);
}
static void test_processor(void **state) {
    (void)state;
    run(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounding),
                                       cmocka_unit_test(test_rounded),
                                       cmocka_unit_test(test_processor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
