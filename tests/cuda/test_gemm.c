// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/gemm.c over the emulated cuBLASLt: more products than it keeps plans of, all transpositions and types, gaps between rows,
// operands and biases of every alignment; sums along with a product, and sums over k that bf16 could not hold; what it says when there is no
// kernel, and what it does where there is one that is not launched.
#include "kernels/cuda/gemm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PRODUCTS = 300, ROOM = 1 << 15 };

// Small whole numbers: every sum is exact, in bf16 too.
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

// Operands begin so many elements into their arrays. No two have the same numbers, so that none is taken for the other.
struct shifts {
    int a, b, c, bias;
};
static char *room;        // four arrays
static const char *wrong; // of kern_cu_gemm_create

// p without its pointers; what it gives beside a plain product.
static void check(struct kern_cu_gemm *g, struct kern_cu_product p, bool has_bias,
                  struct shifts s) {
    size_t item = kern_type_bytes(p.t);
    char *a = room + (size_t)s.a * item, *b = room + ROOM + (size_t)s.b * item,
         *c = room + 2 * ROOM + (size_t)s.c * kern_type_bytes(p.tc),
         *bias = room + 3 * ROOM + (size_t)s.bias * item;
    for (size_t k = 0; k < 500; k++) {
        put(p.t, a, k, number(k, 0));
        put(p.t, b, k, number(k, 1));
        put(p.t, bias, k, number(k, 2 + s.bias));
        put(p.tc, c, k, p.beta != 0 ? number(k, 3) : NAN);
    }
    p.a = a;
    p.b = b;
    p.c = c;
    p.bias = has_bias ? bias : NULL;
    assert_null(kern_cu_gemm_run(g, &p, NULL, false));
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    for (int row = 0; row < p.m; row++)
        for (int col = 0; col < p.ldc; col++) {
            size_t at = (size_t)row * p.ldc + col;
            float was = p.beta != 0 ? number(at, 3) : 0, sum = p.beta * was, got = get(p.tc, c, at);
            if (col >= p.n) { // a gap: untouched
                assert_true(p.beta != 0 ? got == was : isnan(got));
                continue;
            }
            for (int k = 0; k < p.k; k++)
                sum += get(p.t, a, p.ta ? (size_t)k * p.lda + row : (size_t)row * p.lda + k) *
                       get(p.t, b, p.tb ? (size_t)col * p.ldb + k : (size_t)k * p.ldb + col);
            assert_true(got == sum + (has_bias ? number((size_t)col, 2 + s.bias) : 0));
        }
}

static void one(struct kern_cu_gemm *g, int i) {
    enum kern_type t = i % 2 ? KERN_BF16 : KERN_F32, tc = i % 4 == 1 ? KERN_F32 : t;
    bool has_bias = i % 3 == 0 && tc == t;
    struct kern_cu_product p = {.t = t,
                                .tc = tc,
                                .ta = i / 4 % 2 ? KERN_T : KERN_N,
                                .tb = i / 8 % 2 ? KERN_T : KERN_N,
                                .m = 1 + i % 7,
                                .n = 1 + i % 11,
                                .k = 1 + i % 13,
                                .alpha = 1,
                                .beta = has_bias ? 0 : (float)(i % 3)};
    p.lda = (p.ta ? p.m : p.k) + i % 5;
    p.ldb = (p.tb ? p.k : p.n) + i / 16 % 5;
    p.ldc = p.n + i / 32 % 5;
    check(g, p, has_bias, (struct shifts){i % 3, i % 4, i % 5, i % 6});
}

// A plan is taken again only for what it was made for: one shape, and one thing after the other that differs.
static void test_plans(void **state) {
    (void)state;
    struct kern_cu_gemm *g = NULL;
    const struct kern_cu_product p = {.t = KERN_BF16,
                                      .tc = KERN_BF16,
                                      .m = 4,
                                      .n = 4,
                                      .k = 4,
                                      .lda = 4,
                                      .ldb = 4,
                                      .ldc = 4,
                                      .alpha = 1};
    struct kern_cu_product q;
    void *at;
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    assert_int_equal(cudaMalloc(&at, 4 * ROOM), cudaSuccess);
    room = at;
    for (int pass = 0; pass < 2; pass++) {
        check(g, p, false, (struct shifts){0});
        q = p, q.tc = KERN_F32;
        check(g, q, false, (struct shifts){0});
        q = p, q.t = q.tc = KERN_F32;
        check(g, q, false, (struct shifts){0});
        q = p, q.ta = KERN_T;
        check(g, q, false, (struct shifts){0});
        q = p, q.tb = KERN_T;
        check(g, q, false, (struct shifts){0});
        q = p, q.beta = 1;
        check(g, q, false, (struct shifts){0});
        q = p, q.lda = 5;
        check(g, q, false, (struct shifts){0});
        q = p, q.ldb = 5;
        check(g, q, false, (struct shifts){0});
        q = p, q.ldc = 5;
        check(g, q, false, (struct shifts){0});
        for (int shift = 0; shift < 3; shift++) {
            check(g, p, true, (struct shifts){.bias = shift});
            check(g, p, false, (struct shifts){.a = shift});
            check(g, p, false, (struct shifts){.b = shift});
            check(g, p, false, (struct shifts){.c = shift});
        }
        check(g, p, true, (struct shifts){.bias = 128}); // aligned as the first, and elsewhere
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
    // the second finds plans, and makes those anew that had to go
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < PRODUCTS; i++)
            one(g, i);
    assert_int_equal(cudaFree(at), cudaSuccess);
    kern_cu_gemm_destroy(&g);
    assert_null(g);
    kern_cu_gemm_destroy(&g); // nothing there: nothing happens
}

// dy^T x, with the sums of dy's columns beside it: written, whatever alpha and beta do to the product; operands and sums of every alignment.
static void sums(struct kern_cu_gemm *g, enum kern_type t, enum kern_type tc, int beta, int ta,
                 struct shifts s) {
    enum { M = 5, N = 6, N_K = 9 };
    struct kern_cu_product p = {.t = t,
                                .tc = tc,
                                .ta = ta ? KERN_T : KERN_N,
                                .m = M,
                                .n = N,
                                .k = N_K,
                                .lda = ta ? M + 1 : N_K + 1,
                                .ldb = N,
                                .ldc = N,
                                .alpha = 1,
                                .beta = (float)beta};
    size_t item = kern_type_bytes(t), out = kern_type_bytes(tc);
    char *a = room + (size_t)s.a * item, *b = room + ROOM + (size_t)s.b * item,
         *c = room + 2 * ROOM + (size_t)s.c * out, *at = room + 3 * ROOM + (size_t)s.bias * out;
    for (size_t k = 0; k < 100; k++) {
        put(t, a, k, number(k, 0));
        put(t, b, k, number(k, 1));
        put(tc, c, k, beta ? number(k, 3) : NAN);
        put(tc, at, k, NAN);
    }
    p.a = a;
    p.b = b;
    p.c = c;
    p.sums = at;
    assert_true(kern_cu_gemm_takes(g, &p));
    assert_true(kern_cu_gemm_knows(g, &p));
    assert_null(kern_cu_gemm_run(g, &p, NULL, false));
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    for (int row = 0; row < M; row++) {
        float all = 0;
        for (int k = 0; k < N_K; k++)
            all += get(t, a, ta ? (size_t)(k * p.lda + row) : (size_t)(row * p.lda + k));
        assert_true(get(tc, at, (size_t)row) == all);
        for (int col = 0; col < N; col++) {
            float sum = beta ? number((size_t)(row * N + col), 3) : 0;
            for (int k = 0; k < N_K; k++)
                sum += get(t, a, ta ? (size_t)(k * p.lda + row) : (size_t)(row * p.lda + k)) *
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

// Where the library has no such kernel, it is asked once; the product itself goes on.
static void test_no_sums(void **state) {
    (void)state;
    struct kern_cu_gemm *g = NULL;
    float x[64] = {0}, s[4];
    struct kern_cu_product p = {.ta = KERN_T,
                                .m = 4,
                                .n = 4,
                                .k = 4,
                                .lda = 4,
                                .ldb = 4,
                                .ldc = 4,
                                .alpha = 1,
                                .beta = 1,
                                .a = x,
                                .b = x + 16,
                                .c = x + 32,
                                .sums = s};
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    assert_false(kern_cu_gemm_knows(g, &p));
    setenv("EMU_NO_SUMS", "1", 1);
    assert_false(kern_cu_gemm_takes(g, &p));
    assert_ptr_equal(kern_cu_gemm_run(g, &p, NULL, false), kern_cu_gemm_no_sums);
    unsetenv("EMU_NO_SUMS");
    assert_true(kern_cu_gemm_knows(g, &p));
    assert_false(kern_cu_gemm_takes(g, &p)); // the answer of then
    p.sums = NULL;
    assert_true(kern_cu_gemm_takes(g, &p));
    assert_null(kern_cu_gemm_run(g, &p, NULL, false));
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    kern_cu_gemm_destroy(&g);
}

// The library has no kernel, and says so in the result: ours gives the same numbers, whatever the shape and alignment.
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
    struct kern_cu_product large = {.t = KERN_BF16,
                                    .tc = KERN_F32,
                                    .m = 19,
                                    .n = 21,
                                    .k = 23,
                                    .lda = 23,
                                    .ldb = 21,
                                    .ldc = 21,
                                    .alpha = 1,
                                    .beta = 1};
    check(g, large, false, (struct shifts){1, 1, 1, 0});
    assert_false(kern_cu_gemm_takes(g, &large)); // of these pointers: 0
    unsetenv("EMU_NO_PRODUCTS");
    assert_int_equal(cudaFree(at), cudaSuccess);
    kern_cu_gemm_destroy(&g);
}

// What a kernel was found for, and is not launched: the same numbers by ours, and nobody asks the library again. With sums the product
// goes on without; while a stream is captured nothing is taken in its place.
static void test_not_launched(void **state) {
    struct kern_cu_gemm *g = NULL;
    void *at;
    float x[64] = {0}, s[4];
    const struct kern_cu_product q = {.ta = KERN_T,
                                      .m = 4,
                                      .n = 4,
                                      .k = 4,
                                      .lda = 4,
                                      .ldb = 4,
                                      .ldc = 4,
                                      .alpha = 1,
                                      .beta = 1,
                                      .a = x,
                                      .b = x + 16,
                                      .c = x + 32};
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
        assert_non_null(strstr(kern_cu_gemm_run(g, &p, NULL, true), text)); // captured: no other
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
    // Any other status may come after something was enqueued.
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    setenv("EMU_LAUNCH", "13", 1);
    assert_string_equal(kern_cu_gemm_run(g, &p, NULL, false),
                        "a product by cuBLASLt failed (status 13)");
    unsetenv("EMU_LAUNCH");
    assert_true(kern_cu_gemm_takes(g, &p));
    kern_cu_gemm_destroy(&g);
}

// 256 + 1 is 256 in bf16, which a sum in two parts must not meet: 256 + 1 - 256 + 0.
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
        struct kern_cu_product p = {.t = KERN_BF16,
                                    .tc = tc ? KERN_BF16 : KERN_F32,
                                    .m = 1,
                                    .n = 1,
                                    .k = 4,
                                    .lda = 4,
                                    .ldb = 1,
                                    .ldc = 1,
                                    .alpha = 1,
                                    .a = a,
                                    .b = b,
                                    .c = c};
        assert_true(kern_cu_gemm_takes(g, &p));
        assert_null(kern_cu_gemm_run(g, &p, NULL, false));
        assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
        assert_true(get(p.tc, c, 0) == 1);
    }
    kern_cu_gemm_destroy(&g);
}

static void test_refusals(void **state) {
    (void)state;
    struct kern_cu_gemm *g = NULL;
    float x[64] = {0};
    assert_int_equal(kern_cu_gemm_create(&g, &wrong), NEB_OK);
    struct kern_cu_product p = {
        .m = 4, .n = 4, .lda = 4, .ldb = 4, .ldc = 4, .a = x, .b = x, .c = x};
    assert_non_null(kern_cu_gemm_run(g, &p, NULL, false)); // over nothing
    p.n = 0;
    assert_null(kern_cu_gemm_run(g, &p, NULL, false)); // nothing to do
    p.n = p.k = 4;
    p.tc = KERN_BF16; // of fp32: there is no such product
    for (int i = 0; i < 2; i++)
        assert_string_equal(kern_cu_gemm_run(g, &p, NULL, false),
                            "no kernel takes this product (status 1)");
    p.tc = KERN_F32;
    p.ldc = 3; // columns that overlap
    assert_non_null(kern_cu_gemm_run(g, &p, NULL, false));
    p.ldc = 4;
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
