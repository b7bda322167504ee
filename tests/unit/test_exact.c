// SPDX-License-Identifier: Apache-2.0
// The exact path gives the same bits on every processor. The loops of kernels/exact.c and
// kernels/quant.c are compiled as scalar C, for AVX2 with FMA, and for AVX-512. All equal the
// version that the library chooses: on denormals, signed zeros, extremes, all alignments, odd
// sizes, and under any rounding state of the caller.
#include "agent/base/rng.h"
#include "compress/codec.h"
#include "kernels/blocks.h"
#include "kernels/clones.h"
#include "kernels/exact.h"
#include "kernels/quant.h"
#include "kernels/scale.h"
#include "tests/quant_reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct table {
    float (*absmax)(const float *x, size_t n, bool *finite);
    float (*rms)(const float *x, size_t n);
    void (*dequantise)(float *out, const int8_t *codes, float scale, size_t n);
    void (*split)(uint8_t *high, uint8_t *low, const float *x, size_t n);
    void (*join)(float *out, const uint8_t *high, const uint8_t *low, size_t n);
    void (*topk)(uint16_t *idx, const float *x, size_t n, size_t k, uint32_t *scratch);
    int (*blocks)(const struct kern_blocks *b, bool *finite);
    bool (*squares)(uint32_t *sums, const uint8_t *codes, size_t blocks, bool four);
    void (*add_scaled)(float *acc, const float *x, float w, size_t n);
    void (*add_rows)(float *acc, const float *x, const float *w, size_t rows, size_t cols);
    void (*step)(float *theta, float *v, const float *delta, float eta, float mu, size_t n);
    void (*gradient)(float *u, const float *theta, const float *theta_m, float beta, size_t n);
    void (*residual)(float *u, const float *d, size_t n);
    void (*rebase)(float *theta_m, const float *theta, const float *sent, size_t n);
    struct kern_digest (*digest)(const float *theta, const float *v, uint64_t first, size_t n);
};
#define EXACT_TABLE                                                                                \
    {                                                                                              \
        kern_absmax, kern_rms, kern_dequantise, kern_bf16_split, kern_bf16_join, kern_topk,        \
            kern_blocks_encode, kern_blocks_squares, kern_exact_add_scaled, kern_exact_add_rows,   \
            kern_exact_outer_step, kern_exact_pseudo_gradient, kern_exact_residual,                \
            kern_exact_rebase, kern_digest_part                                                    \
    }
static const struct table library = EXACT_TABLE;

#undef KERN_CLONES
#if defined(__clang__)
#define KERN_CLONES __attribute__((optnone))
#else
#define KERN_CLONES __attribute__((optimize("O1", "no-tree-vectorize")))
#endif
#define VARIANT plain
#include "tests/unit/exact_variant.inc"

#if defined(__x86_64__)
#define KERN_CLONES __attribute__((target("avx2,fma,bmi2,f16c")))
#define VARIANT     avx2
#include "tests/unit/exact_variant.inc"
#define KERN_CLONES                                                                                \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512cd,fma,bmi2,f16c")))
#define VARIANT avx512
#include "tests/unit/exact_variant.inc"
#endif

enum { N = 4200, OUT = 4 * N, MARGIN = 64 };

// All bytes that the functions write for one input. They are compared.
struct output {
    float f[OUT];
    uint8_t bytes[OUT];
    size_t nf, nb;
};

static float *copy_to(struct output *o, const float *x, size_t n) {
    float *at = o->f + o->nf;
    if (n)
        memcpy(at, x, n * sizeof *x);
    o->nf += n;
    return at;
}

static void add_bytes(struct output *o, const void *p, size_t n) {
    assert_true(o->nb + n <= sizeof o->bytes);
    if (n)
        memcpy(o->bytes + o->nb, p, n);
    o->nb += n;
}

static void run_arithmetic(const struct table *t, const float *a, const float *b, const float *c,
                           size_t n, struct output *o) {
    o->nf = o->nb = 0;
    unsigned was = kern_exact_enter();
    t->add_scaled(copy_to(o, a, n), b, 0.3f, n);
    float *theta = copy_to(o, a, n), *v = copy_to(o, b, n);
    t->step(theta, v, c, 0.9f, 0.6f, n);
    t->residual(copy_to(o, a, n), b, n);
    struct kern_digest d = t->digest(theta, v, 12345678901ull, n);
    add_bytes(o, &d, sizeof d);
    kern_exact_leave(was);
}

static void run_moves(const struct table *t, const float *a, const float *b, const float *c,
                      size_t n, struct output *o) {
    o->nf = o->nb = 0;
    size_t cols = n / 3;
    t->gradient(copy_to(o, a, n), b, c, 0.95f, n);
    t->rebase(copy_to(o, a, n), b, c, n);
    t->add_rows(copy_to(o, a, n), b, c, 3, cols);
}

static void run_codes(const struct table *t, const float *x, int qmax, float scale, size_t n,
                      struct output *o) {
    static int8_t codes[N];
    static uint8_t high[N], low[N];
    o->nf = o->nb = 0;
    unsigned was = kern_exact_enter();
    bool finite;
    float max = t->absmax(x, n, &finite);
    add_bytes(o, &max, sizeof max);
    add_bytes(o, &finite, sizeof finite);
    static float tame[N]; // its squares stay in range, so that the sum is compared too
    for (size_t i = 0; i < n; i++)
        tame[i] = fabsf(x[i]) < 1e12f ? x[i] : 1.5f;
    float rms[2] = {n ? t->rms(tame, n) : 0, n ? t->rms(x, n) : 0};
    add_bytes(o, rms, sizeof rms);
    reference_quantise(codes, x, scale, qmax, n);
    t->dequantise(copy_to(o, x, n), codes, scale, n);
    t->split(high, low, x, n);
    add_bytes(o, high, n);
    add_bytes(o, low, n);
    t->join(copy_to(o, x, n), high, low, n);
    kern_exact_leave(was);
}

static void run_topk(const struct table *t, const float *x, size_t k, size_t n, struct output *o) {
    static uint16_t idx[N];
    static uint32_t scratch[2 * N];
    o->nf = o->nb = 0;
    t->topk(idx, x, n, k, scratch);
    add_bytes(o, idx, k * sizeof *idx);
}

static void run_blocks(const struct table *t, const float *a, const float *b, const float *c,
                       size_t block, size_t n, struct output *o) {
    static const int levels[] = {6, 1, 127};
    static uint8_t scales[N], codes[N];
    static uint16_t steps[N];
    static int8_t room[2 * N];
    o->nf = o->nb = 0;
    unsigned was = kern_exact_enter();
    for (int k = 0; k < 3; k++) {
        struct kern_blocks s = {.theta = b,
                                .theta_m = c,
                                .beta = 0.9f,
                                .n = n,
                                .block = block,
                                .levels = levels[k],
                                .four = k < 2,
                                .steps = steps,
                                .room = room,
                                .scales = scales,
                                .codes = codes};
        bool finite;
        s.u = copy_to(o, a, n);
        int top = t->blocks(&s, &finite);
        add_bytes(o, &top, sizeof top);
        add_bytes(o, scales, finite ? (n + block - 1) / block : 0);
        add_bytes(o, codes, finite ? s.four ? (n + 1) / 2 : n : 0);
        uint32_t sums[N / KERN_DEFAULT_BLOCK + 1];
        // values of arbitrary codes
        bool good = t->squares(sums, codes, n / KERN_DEFAULT_BLOCK, s.four);
        add_bytes(o, &good, sizeof good);
        add_bytes(o, sums, n / KERN_DEFAULT_BLOCK * sizeof *sums);
    }
    kern_exact_leave(was);
}

static float strange(struct neb_rng *r) { // finite, from all corners of the format
    static const uint32_t corners[] = {
        0,           0x80000000u, 1,           0x80000001u, 0x007fffffu, 0x00800000u, 0x80800000u,
        0x7f7fffffu, 0xff7fffffu, 0x3f800000u, 0xbf800000u, 0x33800000u, 0x7f7f8000u, 0x3f000000u};
    uint64_t kind = neb_rng_below(r, 8);
    uint32_t u = kind == 0   ? corners[neb_rng_below(r, sizeof corners / sizeof *corners)]
                 : kind == 1 ? (uint32_t)neb_rng_below(r, 1 << 23) | (uint32_t)neb_rng_below(r, 2)
                                                                         << 31 // denormal
                 : kind == 2 ? (uint32_t)neb_rng_u64(r)
                             : 0;
    float f;
    if (kind > 2)
        return ldexpf(neb_rng_normal(r), (int)neb_rng_below(r, 12) - 6);
    if ((u & 0x7f800000u) == 0x7f800000u)
        u &= 0xbfffffffu;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void compare(const char *variant, const char *what, size_t n, const struct output *a,
                    const struct output *b) {
    assert_true(a->nf == b->nf && a->nb == b->nb);
    if (memcmp(a->f, b->f, a->nf * sizeof(float)) || memcmp(a->bytes, b->bytes, a->nb))
        fail_msg("%s: %s of %zu elements differs from the library", variant, what, n);
}

static void compare_variant(const char *name, const struct table *t) {
    static float a[N + MARGIN], b[N + MARGIN], c[N + MARGIN];
    static struct output lib, var;
    struct neb_rng r = neb_rng_make(77, 0);
    for (int round = 0; round < 400; round++) {
        size_t n = round < 80 ? (size_t)round : neb_rng_below(&r, round % 40 ? 700 : N),
               at = neb_rng_below(&r, MARGIN);
        for (size_t i = 0; i < n; i++) {
            a[at + i] = strange(&r);
            b[at + i] = strange(&r);
            c[at + i] = strange(&r);
        }
        const float *x = a + at, *y = b + at, *z = c + at;
        run_arithmetic(&library, x, y, z, n, &lib);
        run_arithmetic(t, x, y, z, n, &var);
        compare(name, "sum, step, residual, digest", n, &lib, &var);
        run_moves(&library, x, y, z, n, &lib);
        run_moves(t, x, y, z, n, &var);
        compare(name, "pseudo-gradient, rebase, rows", n, &lib, &var);
        for (int qmax = 7; qmax <= 127; qmax += 120)
            for (int top = -90; top <= 120; top += 30) {
                float scale = kern_scale_value((uint8_t)neb_rng_below(&r, 256), top);
                run_codes(&library, x, qmax, scale, n, &lib);
                run_codes(t, x, qmax, scale, n, &var);
                compare(name, "codes", n, &lib, &var);
            }
        size_t block = round % 2 ? 128 : 8 + neb_rng_below(&r, 200);
        run_blocks(&library, x, y, z, block, n, &lib);
        run_blocks(t, x, y, z, block, n, &var);
        compare(name, "codes of what was learned", n, &lib, &var);
        size_t k = n ? 1 + neb_rng_below(&r, n) : 0;
        run_topk(&library, x, k, n, &lib);
        run_topk(t, x, k, n, &var);
        compare(name, "top-k", n, &lib, &var);
    }
}

static void test_plain(void **state) {
    (void)state;
    compare_variant("plain C", &plain_table);
}

static void test_avx2(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        compare_variant("AVX2", &avx2_table);
    else
#endif
        skip();
}

static void test_avx512(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        compare_variant("AVX-512", &avx512_table);
    else
#endif
        skip();
}

// All NaNs give one digest, because processors make different NaNs. This digest differs from that
// of any number or infinity.
static void digest_nans(const struct table *t) {
    static const uint32_t nans[] = {0xffc00000, 0x7fc00000, 0x7fffffff, 0x7f800001, 0xff800001};
    enum { M = 37 };
    float theta[M], v[M];
    for (size_t i = 0; i < M; i++)
        theta[i] = v[i] = (float)i;
    const struct kern_digest number = t->digest(theta, v, 3, M);
    for (size_t at = 0; at < M; at++)
        for (int which = 0; which < 2; which++) {
            float *x = which ? &v[at] : &theta[at], was = *x;
            struct kern_digest d[2];
            for (size_t k = 0; k < sizeof nans / sizeof *nans; k++) {
                memcpy(x, &nans[k], sizeof *x);
                d[k > 0] = t->digest(theta, v, 3, M);
                assert_true(d[k > 0].lo == d[0].lo && d[k > 0].hi == d[0].hi);
            }
            assert_true(d[0].lo != number.lo && d[0].hi != number.hi);
            for (int sign = -1; sign < 2; sign += 2) {
                *x = (float)sign * INFINITY;
                d[1] = t->digest(theta, v, 3, M);
                assert_true(d[1].lo != d[0].lo && d[1].hi != d[0].hi);
            }
            *x = was;
        }
}
static void test_digest_nans(void **state) {
    (void)state;
    digest_nans(&library);
    digest_nans(&plain_table);
}

// A caller that rounds upwards and flushes denormals changes no bit, and finds its state unchanged.
static void test_rounding_state_of_the_caller(void **state) {
    (void)state;
#if defined(__x86_64__)
    enum { UP_FLUSH = 0x1f80 | 0x4000 | 0x8000 | 0x0040, M = 20000, MAGS_AT = 10 };
    static const char *const names[] = {"fp32", "bf16", "int8", "int4", "topk:64/4096"};
    static const uint8_t denormal[] = {0x12, 0, 0x13, 0}; // a codebook
    static float x[M], y[2][M];
    struct cmp_work *w;
    struct neb_rng r = neb_rng_make(5, 5);
    assert_int_equal(cmp_work_create(&w), NEB_OK);
    for (size_t i = 0; i < M; i++)
        x[i] = ldexpf(neb_rng_normal(&r), i / 4096 % 2 ? -130 : -10); // some chunks are denormal
    for (size_t c = 0; c < sizeof names / sizeof *names; c++) {
        struct cmp_codec codec;
        struct neb_buf frame[2] = {{0}, {0}};
        assert_int_equal(cmp_codec_parse(names[c], &codec), NEB_OK);
        for (int flush = 0; flush < 2; flush++) {
            unsigned was = _mm_getcsr();
            if (flush)
                _mm_setcsr(UP_FLUSH);
            enum neb_status st = cmp_encode(w, &codec, x, M, &frame[flush]);
            // a denormal codebook is legal and must decode to the same values everywhere
            if (flush && cmp_codec_density(&codec) < 1)
                memcpy(frame[flush].p + MAGS_AT, denormal, sizeof denormal);
            if (st == NEB_OK)
                st = cmp_decode(w, frame[flush].p, frame[flush].len, y[flush], M);
            unsigned after = _mm_getcsr();
            _mm_setcsr(was);
            assert_int_equal(st, NEB_OK);
            // all of the state, except sticky exception flags
            assert_int_equal(after & ~0x3fu, flush ? UP_FLUSH : was & ~0x3fu);
        }
        if (cmp_codec_density(&codec) < 1) {
            memcpy(frame[0].p + MAGS_AT, denormal, sizeof denormal);
            assert_int_equal(cmp_decode(w, frame[0].p, frame[0].len, y[0], M), NEB_OK);
            size_t nonzero = 0;
            for (size_t i = 0; i < M; i++)
                nonzero += y[0][i] != 0;
            assert_true(nonzero > 0);
        }
        assert_int_equal(frame[0].len, frame[1].len);
        assert_memory_equal(frame[0].p, frame[1].p, frame[0].len);
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        neb_buf_free(&frame[0]);
        neb_buf_free(&frame[1]);
    }
    cmp_work_destroy(&w);
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest_nans),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_avx2),
        cmocka_unit_test(test_avx512),
        cmocka_unit_test(test_rounding_state_of_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
