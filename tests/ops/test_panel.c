// SPDX-License-Identifier: Apache-2.0
// Blocks and products of kernels/panel.h: every implementation against the definition in plain C,
// with all edges, all forms and all ways to write. AMX also with emulated tiles (tiles.h), on any
// processor with AVX-512.
#include "agent/base/memory.h"
#include "agent/base/rng.h"
#include "kernels/bf16.h"
#include "kernels/cpu.h"

#include <math.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include "tests/ops/tiles.h" // comes before the next lines, so that its own includes stay unchanged
#ifdef __clang__
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#endif
#define panel_amx panel_amx_emulated
#include "kernels/panel_amx.c"
#undef panel_amx
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
extern const struct panel_isa panel_amx;
#else
#include "kernels/panel.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#endif

enum { GUARD = 64 };

static const struct panel_isa *way(int i) {
    const struct panel_isa *v = NULL;
#if defined(__x86_64__)
    bool bf16 = cpu_isa_find("avx512") && __builtin_cpu_supports("avx512bf16");
    switch (i) {
    case 0: v = bf16 ? &panel_avx512 : NULL; break;
    case 1: v = bf16 ? &panel_amx_emulated : NULL; break;
    case 2: v = bf16 && panel_amx_here() ? &panel_amx : NULL; break;
    default: break;
    }
#endif
    (void)i;
    return v;
}

static float *fill(struct neb_rng *r, size_t n) {
    float *x = neb_large_alloc((n + 16) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = neb_rng_normal(r);
    return x;
}

static void test_definition(void **state) { // positions of elements, by hand
    (void)state;
    float x[PANEL_SIDE * 40];
    uint16_t block[PANEL_BLOCK];
    for (int i = 0; i < PANEL_SIDE * 40; i++)
        x[i] = (float)(i % 256); // exact
    panel_plain.pack(block, PANEL_A, x, 40, false, 16, 32);
    assert_int_equal(block[3 * 32 + 5], kern_bf16_of(x[3 * 40 + 5]));
    panel_plain.pack(block, PANEL_B, x, 40, false, 16, 32); // side 3, depth 5: pair 2, its second
    assert_int_equal(block[(2 * 16 + 3) * 2 + 1], kern_bf16_of(x[3 * 40 + 5]));
    panel_plain.pack(block, PANEL_B, x, 40, true, 16, 16); // side 5, depth 3
    assert_int_equal(block[(1 * 16 + 5) * 2 + 1], kern_bf16_of(x[3 * 40 + 5]));
    assert_int_equal(block[8 * 32], 0); // outside
}

static void test_pack(void **state) {
    (void)state;
    enum { LD = 37 };
    struct neb_rng r = neb_rng_make(1, 1);
    for (int w = 0; w < 3; w++) {
        const struct panel_isa *v = way(w);
        for (int side = 1; v && side <= PANEL_SIDE; side++)
            for (int depth = 1; depth <= PANEL_DEPTH; depth++)
                for (int how = 0; how < 4; how++) {
                    bool across = how & 1;
                    enum panel_form form = how & 2 ? PANEL_B : PANEL_A;
                    size_t n = (size_t)((across ? depth : side) - 1) * LD +
                               (size_t)(across ? side : depth); // exact size
                    float *x = malloc(n * sizeof *x);
                    uint16_t want[PANEL_BLOCK], got[PANEL_BLOCK + GUARD];
                    assert_non_null(x);
                    for (size_t i = 0; i < n; i++)
                        x[i] = neb_rng_normal(&r);
                    x[n - 1] = side == 7 ? -INFINITY : side == 8 ? NAN : -0.0f;
                    memset(got, 0xab, sizeof got);
                    panel_plain.pack(want, form, x, LD, across, side, depth);
                    v->pack(got, form, x, LD, across, side, depth);
                    if (memcmp(want, got, sizeof want))
                        fail_msg("%s: side %d, depth %d, form %d, across %d", v->name, side, depth,
                                 form, across);
                    for (int i = 0; i < GUARD; i++)
                        assert_int_equal(got[PANEL_BLOCK + i], 0xabab);
                    free(x);
                }
    }
}

static uint16_t *panels_of(struct neb_rng *r, int side, int depth, size_t *next) {
    size_t panels = ((size_t)side + PANEL_SIDE - 1) / PANEL_SIDE;
    *next = (size_t)depth * PANEL_BLOCK + PANEL_BLOCK; // more than needed
    uint16_t *p = neb_large_alloc(panels * *next * sizeof *p);
    assert_non_null(p);
    // elements outside the side are not zero: they must not be used
    for (size_t i = 0; i < panels * *next; i++)
        p[i] = kern_bf16_of(neb_rng_normal(r));
    return p;
}

static void one_product(const struct panel_isa *v, struct neb_rng *r, int rows, int cols, int depth,
                        enum panel_how how, float alpha) {
    size_t ldc = ((size_t)cols + 31) / 16 * 16, n = (size_t)rows * ldc;
    struct panel_mul m = {
        .depth = depth, .rows = rows, .cols = cols, .alpha = alpha, .ldc = ldc, .how = how};
    uint16_t *a = panels_of(r, rows, depth, &m.a_next), *b = panels_of(r, cols, depth, &m.b_next);
    float *want = fill(r, n), *got = fill(r, n);
    memcpy(got, want, n * sizeof *got);
    m.a = a;
    m.b = b;
    m.c = want;
    panel_plain.mul(&m);
    m.c = got;
    v->mul(&m);
    double bound = 2e-6 * depth * PANEL_DEPTH; // sums of numbers of about 1, in another order
    for (size_t i = 0; i < n; i++) {
        bool inside = i % ldc < (size_t)cols;
        if (inside ? !(fabs((double)want[i] - (double)got[i]) <= bound) : want[i] != got[i])
            fail_msg("%s, %d x %d x %d, way %d: element %zu, %zu is %g, not %g", v->name, rows,
                     cols, depth * PANEL_DEPTH, (int)how, i / ldc, i % ldc, (double)got[i],
                     (double)want[i]);
    }
    free(a);
    free(b);
    free(want);
    free(got);
}

static void test_mul(void **state) {
    (void)state;
    static const int sides[] = {1, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32, 33, 47, 48, 49, 64, 65, 97};
    enum { N = sizeof sides / sizeof *sides };
    struct neb_rng r = neb_rng_make(2, 2);
    for (int w = 0; w < 3; w++)
        for (int i = 0; way(w) && i < N; i++)
            for (int j = 0; j < N; j++)
                for (int how = PANEL_STORE; how <= PANEL_STREAM; how++)
                    one_product(way(w), &r, sides[i], sides[j], 1 + (i + j) % 3,
                                (enum panel_how)how, (i + 2 * j) % 5 == 2 ? -0.5f : 1);
}

// A part of c has the same bits as in the full product.
static void test_parts(void **state) {
    (void)state;
    enum { M = 61, N = 111, LD = 112, DEPTH = 3 };
    struct neb_rng r = neb_rng_make(3, 3);
    for (int w = 0; w < 3; w++)
        for (int how = PANEL_STORE; way(w) && how <= PANEL_ADD; how++) {
            struct panel_mul m = {.depth = DEPTH,
                                  .rows = M,
                                  .cols = N,
                                  .alpha = 1,
                                  .ldc = LD,
                                  .how = (enum panel_how)how};
            uint16_t *a = panels_of(&r, M, DEPTH, &m.a_next),
                     *b = panels_of(&r, N, DEPTH, &m.b_next);
            float *whole = fill(&r, M * LD), *parts = fill(&r, M * LD);
            memcpy(parts, whole, M * LD * sizeof *parts);
            m.a = a;
            m.b = b;
            m.c = whole;
            way(w)->mul(&m);
            for (int row = 0; row < M; row += 16)
                for (int col = 0; col < N; col += 16) {
                    struct panel_mul p = m;
                    p.a = a + (size_t)row / 16 * m.a_next;
                    p.b = b + (size_t)col / 16 * m.b_next;
                    p.c = parts + row * LD + col;
                    p.rows = M - row < 16 ? M - row : 16;
                    p.cols = N - col < 16 ? N - col : 16;
                    way(w)->mul(&p);
                }
            assert_memory_equal(whole, parts, M * LD * sizeof *parts);
            free(a);
            free(b);
            free(whole);
            free(parts);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_mul),
        cmocka_unit_test(test_parts),
    };
    for (int i = 0; i < 3; i++)
        print_message("%s: %s\n", ((const char *[]){"AVX-512", "AMX, emulated", "AMX"})[i],
                      way(i) ? "tested" : "not in this processor");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
