// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/gemm.c over the emulated cuBLASLt. The cases: more products than it caches plans
// for, all transpositions and types, gaps between rows, all alignments, sums along with a product,
// sums over k that would overflow bf16. Also its messages without a kernel, and its fallback when a
// kernel is not launched.
#include "kernels/cuda/gemm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PRODUCTS = 300, ROOM = 1 << 15 };

// Small integers: every sum is exact, also in bf16.
static float number(size_t i, int seed) { return (float)((int)((i * 7 + (size_t)seed) % 5) - 2); }

static void put(enum kern_type t, char *at, size_t i, float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if (t == KERN_BF16) {
        uint16_t half = (uint16_t)(u >> 16);
        memcpy(at + 2 * i, &half, 2);
    } else {
        memcpy(at + 4 * i, &u, 4);
    }
}
static float get(enum kern_type t, const char *at, size_t i) {
    uint32_t u = 0;
    float f;
    if (t == KERN_BF16) {
        memcpy((char *)&u + 2, at + 2 * i, 2);
    } else {
        memcpy(&u, at + 4 * i, 4);
    }
    memcpy(&f, &u, 4);
    return f;
}

// Operands start that many elements into their arrays. All elements differ, so a mix-up is seen.
struct shifts {
    int a, b, c, bias;
};
static char *room;        // four arrays
static const char *wrong; // text of kern_cu_gemm_create

// p without its pointers; extra: the outputs besides the product.
static void check(struct kern_cu_gemm *g, struct kern_cu_product p, bool has_bias,
                  struct shifts s) {
    size_t item = kern_type_bytes(p.g.t);
    char *a = room + (size_t)s.a * item, *b = room + ROOM + (size_t)s.b * item,
         *c = room + 2 * ROOM + (size_t)s.c * kern_type_bytes(p.g.tc),
         *bias = room + 3 * ROOM + (size_t)s.bias * item;
    for (size_t k = 0; k < 500; k++) {
        put(p.g.t, a, k, number(k, 0));
        put(p.g.t, b, k, number(k, 1));
        put(p.g.t, bias, k, number(k, 2 + s.bias));
        put(p.g.tc, c, k, p.g.beta != 0 ? number(k, 3) : NAN);
    }
    p.g.a = a;
    p.g.b = b;
    p.g.c = c;
    p.g.bias = has_bias ? bias : NULL;
    assert_null(kern_cu_gemm_run(g, &p, NULL, false));
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    for (int row = 0; row < p.g.m; row++)
        for (int col = 0; col < p.g.ldc; col++) {
            size_t at = (size_t)row * p.g.ldc + col;
            float was = p.g.beta != 0 ? number(at, 3) : 0, sum = p.g.beta * was,
                  got = get(p.g.tc, c, at);
            if (col >= p.g.n) { // a gap must not change
                assert_true(p.g.beta != 0 ? got == was : isnan(got));
                continue;
            }
            for (int k = 0; k < p.g.k; k++)
                sum +=
                    get(p.g.t, a, p.g.ta ? (size_t)k * p.g.lda + row : (size_t)row * p.g.lda + k) *
                    get(p.g.t, b, p.g.tb ? (size_t)col * p.g.ldb + k : (size_t)k * p.g.ldb + col);
            assert_true(got == sum + (has_bias ? number((size_t)col, 2 + s.bias) : 0));
        }
}

static void one(struct kern_cu_gemm *g, int i) {
    enum kern_type t = i % 2 ? KERN_BF16 : KERN_F32, tc = i % 4 == 1 ? KERN_F32 : t;
    bool has_bias = i % 3 == 0 && tc == t;
    struct kern_cu_product p = {.g.t = t,
                                .g.tc = tc,
                                .g.ta = i / 4 % 2 ? KERN_T : KERN_N,
                                .g.tb = i / 8 % 2 ? KERN_T : KERN_N,
                                .g.m = 1 + i % 7,
                                .g.n = 1 + i % 11,
                                .g.k = 1 + i % 13,
                                .g.alpha = 1,
                                .g.beta = has_bias ? 0 : (float)(i % 3)};
    p.g.lda = (p.g.ta ? p.g.m : p.g.k) + i % 5;
    p.g.ldb = (p.g.tb ? p.g.k : p.g.n) + i / 16 % 5;
    p.g.ldc = p.g.n + i / 32 % 5;
    check(g, p, has_bias, (struct shifts){i % 3, i % 4, i % 5, i % 6});
}

// A plan is reused only for its own product: checks one shape, then shapes with one difference
// each.
static void test_plans(void **state) {
    (void)state;
    struct kern_cu_gemm *g = NULL;
    const struct kern_cu_product p = {.g.t = KERN_BF16,
                                      .g.tc = KERN_BF16,
                                      .g.m = 4,
                                      .g.n = 4,
                                      .g.k = 4,
                                      .g.lda = 4,
                                      .g.ldb = 4,
                                      .g.ldc = 4,
                                      .g.alpha = 1};
    struct kern_cu_product q;
    void *at;
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    assert_int_equal(cudaMalloc(&at, 4 * ROOM), cudaSuccess);
    room = at;
    for (int pass = 0; pass < 2; pass++) {
        check(g, p, false, (struct shifts){0});
        q = p, q.g.tc = KERN_F32;
        check(g, q, false, (struct shifts){0});
        q = p, q.g.t = q.g.tc = KERN_F32;
        check(g, q, false, (struct shifts){0});
        q = p, q.g.ta = KERN_T;
        check(g, q, false, (struct shifts){0});
        q = p, q.g.tb = KERN_T;
        check(g, q, false, (struct shifts){0});
        q = p, q.g.beta = 1;
        check(g, q, false, (struct shifts){0});
        q = p, q.g.lda = 5;
        check(g, q, false, (struct shifts){0});
        q = p, q.g.ldb = 5;
        check(g, q, false, (struct shifts){0});
        q = p, q.g.ldc = 5;
        check(g, q, false, (struct shifts){0});
        for (int shift = 0; shift < 3; shift++) {
            check(g, p, true, (struct shifts){.bias = shift});
            check(g, p, false, (struct shifts){.a = shift});
            check(g, p, false, (struct shifts){.b = shift});
            check(g, p, false, (struct shifts){.c = shift});
        }
        check(g, p, true, (struct shifts){.bias = 128}); // same alignment, other address
    }
    assert_int_equal(cudaFree(at), cudaSuccess);
    kern_cu_gemm_destroy(&g);
}

static void test_products(void **state) {
    (void)state;
    struct kern_cu_gemm *g = NULL;
    void *at;
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    assert_int_equal(cudaMalloc(&at, 4 * ROOM), cudaSuccess);
    room = at;
    // the second pass finds plans again, and makes plans that were evicted
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < PRODUCTS; i++)
            one(g, i);
    assert_int_equal(cudaFree(at), cudaSuccess);
    kern_cu_gemm_destroy(&g);
    assert_null(g);
    kern_cu_gemm_destroy(&g); // NULL-safe
}

// dy^T x with the column sums of dy. The sums are written, independent of alpha and beta. Operands
// and sums have every alignment.
static void sums(struct kern_cu_gemm *g, enum kern_type t, enum kern_type tc, int beta, int ta,
                 struct shifts s) {
    enum { M = 5, N = 6, N_K = 9 };
    struct kern_cu_product p = {.g.t = t,
                                .g.tc = tc,
                                .g.ta = ta ? KERN_T : KERN_N,
                                .g.m = M,
                                .g.n = N,
                                .g.k = N_K,
                                .g.lda = ta ? M + 1 : N_K + 1,
                                .g.ldb = N,
                                .g.ldc = N,
                                .g.alpha = 1,
                                .g.beta = (float)beta};
    size_t item = kern_type_bytes(t), out = kern_type_bytes(tc);
    char *a = room + (size_t)s.a * item, *b = room + ROOM + (size_t)s.b * item,
         *c = room + 2 * ROOM + (size_t)s.c * out, *at = room + 3 * ROOM + (size_t)s.bias * out;
    for (size_t k = 0; k < 100; k++) {
        put(t, a, k, number(k, 0));
        put(t, b, k, number(k, 1));
        put(tc, c, k, beta ? number(k, 3) : NAN);
        put(tc, at, k, NAN);
    }
    p.g.a = a;
    p.g.b = b;
    p.g.c = c;
    p.sums = at;
    assert_true(kern_cu_gemm_takes(g, &p));
    assert_true(kern_cu_gemm_knows(g, &p));
    assert_null(kern_cu_gemm_run(g, &p, NULL, false));
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    for (int row = 0; row < M; row++) {
        float all = 0;
        for (int k = 0; k < N_K; k++)
            all += get(t, a, ta ? (size_t)(k * p.g.lda + row) : (size_t)(row * p.g.lda + k));
        assert_true(get(tc, at, (size_t)row) == all);
        for (int col = 0; col < N; col++) {
            float sum = beta ? number((size_t)(row * N + col), 3) : 0;
            for (int k = 0; k < N_K; k++)
                sum += get(t, a, ta ? (size_t)(k * p.g.lda + row) : (size_t)(row * p.g.lda + k)) *
                       get(t, b, (size_t)(k * N + col));
            assert_true(get(tc, c, (size_t)(row * N + col)) == sum);
        }
    }
    assert_true(isnan(get(tc, at, M)));
}

static void test_sums(void **state) {
    (void)state;
    struct kern_cu_gemm *g = NULL;
    void *at;
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    assert_int_equal(cudaMalloc(&at, 4 * ROOM), cudaSuccess);
    room = at;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 4 * 3 * 4; i++) {
            enum kern_type t = i % 2 ? KERN_BF16 : KERN_F32;
            struct shifts s = {0};
            *(int *[]){&s.a, &s.b, &s.c, &s.bias}[i / 4 % 4] = i / 16;
            sums(g, t, i % 4 == 3 ? t : KERN_F32, i % 3 != 0, i % 5 != 0, s);
        }
    assert_int_equal(cudaFree(at), cudaSuccess);
    kern_cu_gemm_destroy(&g);
}

// If the library has no such kernel, it is asked only once. The product still works.
static void test_no_sums(void **state) {
    (void)state;
    struct kern_cu_gemm *g = NULL;
    float x[64] = {0}, s[4];
    struct kern_cu_product p = {.g.ta = KERN_T,
                                .g.m = 4,
                                .g.n = 4,
                                .g.k = 4,
                                .g.lda = 4,
                                .g.ldb = 4,
                                .g.ldc = 4,
                                .g.alpha = 1,
                                .g.beta = 1,
                                .g.a = x,
                                .g.b = x + 16,
                                .g.c = x + 32,
                                .sums = s};
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    assert_false(kern_cu_gemm_knows(g, &p));
    setenv("EMU_NO_SUMS", "1", 1);
    assert_false(kern_cu_gemm_takes(g, &p));
    assert_ptr_equal(kern_cu_gemm_run(g, &p, NULL, false), kern_cu_gemm_no_sums);
    unsetenv("EMU_NO_SUMS");
    assert_true(kern_cu_gemm_knows(g, &p));
    assert_false(kern_cu_gemm_takes(g, &p)); // the cached answer
    p.sums = NULL;
    assert_true(kern_cu_gemm_takes(g, &p));
    assert_null(kern_cu_gemm_run(g, &p, NULL, false));
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    kern_cu_gemm_destroy(&g);
}

// The library reports that it has no kernel: ours gives the same numbers for every shape and
// alignment.
static void test_no_products(void **state) {
    (void)state;
    struct kern_cu_gemm *g = NULL;
    void *at;
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    assert_int_equal(cudaMalloc(&at, 4 * ROOM), cudaSuccess);
    room = at;
    setenv("EMU_NO_PRODUCTS", "1", 1);
    for (int i = 0; i < PRODUCTS; i++)
        one(g, i);
    struct kern_cu_product large = {.g.t = KERN_BF16,
                                    .g.tc = KERN_F32,
                                    .g.m = 19,
                                    .g.n = 21,
                                    .g.k = 23,
                                    .g.lda = 23,
                                    .g.ldb = 21,
                                    .g.ldc = 21,
                                    .g.alpha = 1,
                                    .g.beta = 1};
    check(g, large, false, (struct shifts){1, 1, 1, 0});
    assert_false(kern_cu_gemm_takes(g, &large)); // the pointers are 0
    unsetenv("EMU_NO_PRODUCTS");
    assert_int_equal(cudaFree(at), cudaSuccess);
    kern_cu_gemm_destroy(&g);
}

// A kernel was found but is not launched: ours gives the same numbers, and the library is not asked
// again. A product with sums runs without them; during a capture there is no fallback.
static void test_not_launched(void **state) {
    struct kern_cu_gemm *g = NULL;
    void *at;
    float x[64] = {0}, s[4];
    const struct kern_cu_product q = {.g.ta = KERN_T,
                                      .g.m = 4,
                                      .g.n = 4,
                                      .g.k = 4,
                                      .g.lda = 4,
                                      .g.ldb = 4,
                                      .g.ldc = 4,
                                      .g.alpha = 1,
                                      .g.beta = 1,
                                      .g.a = x,
                                      .g.b = x + 16,
                                      .g.c = x + 32};
    struct kern_cu_product p = q;
    (void)state;
    for (int status = 7; status <= 15; status += 8) {
        char text[8];
        assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
        assert_int_equal(cudaMalloc(&at, 4 * ROOM), cudaSuccess);
        room = at;
        snprintf(text, sizeof text, "%d", status);
        setenv("EMU_LAUNCH", text, 1);
        for (int i = 0; i < PRODUCTS; i++)
            one(g, i);
        p.sums = s;
        assert_true(kern_cu_gemm_takes(g, &p));
        assert_non_null(strstr(kern_cu_gemm_run(g, &p, NULL, true), text)); // captured: no fallback
        assert_true(kern_cu_gemm_takes(g, &p));
        assert_ptr_equal(kern_cu_gemm_run(g, &p, NULL, false), kern_cu_gemm_no_sums);
        unsetenv("EMU_LAUNCH");
        assert_false(kern_cu_gemm_takes(g, &p));
        assert_ptr_equal(kern_cu_gemm_run(g, &p, NULL, true), kern_cu_gemm_no_sums);
        p = q;
        assert_null(kern_cu_gemm_run(g, &p, NULL, false));
        assert_int_equal(cudaFree(at), cudaSuccess);
        kern_cu_gemm_destroy(&g);
    }
    // After any other status something may already be enqueued.
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    setenv("EMU_LAUNCH", "13", 1);
    assert_string_equal(kern_cu_gemm_run(g, &p, NULL, false),
                        "a product by cuBLASLt failed (status 13)");
    unsetenv("EMU_LAUNCH");
    assert_true(kern_cu_gemm_takes(g, &p));
    kern_cu_gemm_destroy(&g);
}

// 256 + 1 rounds to 256 in bf16: partial sums in bf16 would make 256 + 1 - 256 + 0 wrong.
static void test_sums_in_fp32(void **state) {
    static const float row[] = {256, 1, -256, 0};
    struct kern_cu_gemm *g = NULL;
    _Alignas(16) char a[16], b[16], c[16];
    (void)state;
    for (size_t k = 0; k < 4; k++) {
        put(KERN_BF16, a, k, row[k]);
        put(KERN_BF16, b, k, 1);
    }
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    for (int tc = 0; tc < 2; tc++) {
        struct kern_cu_product p = {.g.t = KERN_BF16,
                                    .g.tc = tc ? KERN_BF16 : KERN_F32,
                                    .g.m = 1,
                                    .g.n = 1,
                                    .g.k = 4,
                                    .g.lda = 4,
                                    .g.ldb = 1,
                                    .g.ldc = 1,
                                    .g.alpha = 1,
                                    .g.a = a,
                                    .g.b = b,
                                    .g.c = c};
        assert_true(kern_cu_gemm_takes(g, &p));
        assert_null(kern_cu_gemm_run(g, &p, NULL, false));
        assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
        assert_true(get(p.g.tc, c, 0) == 1);
    }
    kern_cu_gemm_destroy(&g);
}

static void test_refusals(void **state) {
    (void)state;
    struct kern_cu_gemm *g = NULL;
    float x[64] = {0};
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    struct kern_cu_product p = {
        .g.m = 4, .g.n = 4, .g.lda = 4, .g.ldb = 4, .g.ldc = 4, .g.a = x, .g.b = x, .g.c = x};
    assert_non_null(kern_cu_gemm_run(g, &p, NULL, false)); // k is 0
    p.g.n = 0;
    assert_null(kern_cu_gemm_run(g, &p, NULL, false)); // an empty product
    p.g.n = p.g.k = 4;
    p.g.tc = KERN_BF16; // no such product from fp32
    for (int i = 0; i < 2; i++)
        assert_string_equal(kern_cu_gemm_run(g, &p, NULL, false),
                            "no kernel takes this product (status 1)");
    p.g.tc = KERN_F32;
    p.g.ldc = 3; // columns that overlap
    assert_non_null(kern_cu_gemm_run(g, &p, NULL, false));
    p.g.ldc = 4;
    assert_null(kern_cu_gemm_run(g, &p, NULL, false));
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    kern_cu_gemm_destroy(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),     cmocka_unit_test(test_plans),
        cmocka_unit_test(test_sums),         cmocka_unit_test(test_no_sums),
        cmocka_unit_test(test_no_products),  cmocka_unit_test(test_not_launched),
        cmocka_unit_test(test_sums_in_fp32), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
