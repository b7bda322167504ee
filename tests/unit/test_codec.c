// SPDX-License-Identifier: Apache-2.0
// compress/: round trips of every codec within its error bound, sizes, refusals; quantisers on
// denormals and extremes.
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "compress/update.h"
#include "kernels/quant.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct cmp_work *W;
static float heavy(struct neb_rng *r) { // heavy-tailed, like pseudo-gradients
    float z = neb_rng_normal(r);
    return 1e-3f * z * fabsf(z);
}

static void fill(float *x, size_t n, uint64_t seed) {
    struct neb_rng r = neb_rng_make(seed, 1);
    for (size_t i = 0; i < n; i++)
        x[i] = heavy(&r);
}

static double relative_error(const float *x, const float *y, size_t n) {
    double e = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)y[i];
        e += d * d;
        s += (double)x[i] * (double)x[i];
    }
    return s > 0 ? sqrt(e / s) : sqrt(e);
}

static void test_round_trips(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double max_error, max_bits; // bits are checked only for the largest n
    } cases[] = {{"fp32", 0, 32.1},
                 {"bf16", 0.003, 16.1},
                 {"int8", 0.02, 7.5},
                 {"int4", 0.25, 3.4},
                 {"int4:32", 0.25, 4},
                 {"int4:33", 0.25, 4},
                 {"int4:5000", 0.7, 4},
                 {"int3", 0.45, 2.2},
                 {"int2", 0.75, 1.6},
                 {"topk:64/4096", 0.95, 0.16},
                 {"topk:256/4096", 0.85, 0.6},
                 {"topk:64/4096:4", 0.95, 0.19}};
    static const size_t sizes[] = {0,    1,    2,    3,     127,   128,   129,
                                   1023, 1024, 4095, 16384, 16385, 300001};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            struct cmp_codec codec;
            struct neb_buf frame = {0};
            size_t n = sizes[k];
            float *x = malloc((n + 1) * sizeof *x), *y = malloc((n + 1) * sizeof *y);
            fill(x, n, k);
            y[n] = 42; // a sentinel behind the output
            assert_int_equal(cmp_codec_parse(cases[c].name, &codec), NEB_OK);
            assert_int_equal(cmp_encode(W, &codec, x, n, &frame), NEB_OK);
            assert_int_equal(cmp_decode(W, frame.p, frame.len, y, n), NEB_OK);
            double e = relative_error(x, y, n), bits = n ? 8.0 * (double)frame.len / (double)n : 0;
            if (e > cases[c].max_error || y[n] != 42 || (n > 300000 && bits > cases[c].max_bits))
                fail_msg("%s, n %zu: error %g (at most %g), %g bits", cases[c].name, n, e,
                         cases[c].max_error, bits);
            if (frame.len > cmp_codec_bytes_max(&codec, n, 1))
                fail_msg("%s, n %zu: %zu bytes", cases[c].name, n, frame.len);
            struct cmp_frame_info info;
            assert_int_equal(cmp_frame_peek(frame.p, frame.len, &info), NEB_OK);
            assert_int_equal(info.n, n);
            free(x);
            free(y);
            neb_buf_free(&frame);
        }
}

// topk:64/4096 with 2-bit values takes at most 0.150 bits per parameter, everything included.
static void test_sparse_payload(void **state) {
    (void)state;
    enum { UNITS = 4, UNIT = 1 << 20 };
    struct cmp_codec codec;
    struct neb_buf update = {0};
    float *x = malloc(UNIT * sizeof *x);
    assert_non_null(x);
    assert_int_equal(cmp_codec_parse("topk:64/4096", &codec), NEB_OK);
    cmp_update_begin(&update, UNITS);
    for (uint32_t i = 0; i < UNITS; i++) {
        const struct cmp_unit_shape shape = {i, 1024, UNIT / 1024, false};
        fill(x, UNIT, i);
        assert_int_equal(
            cmp_update_add(W, &update, &shape, &codec, &(struct cmp_source){.x = x}, NULL), NEB_OK);
    }
    double bits = 8.0 * (double)update.len / UNITS / UNIT;
    if (bits > 0.150)
        fail_msg("topk:64/4096 takes %.4f bits a parameter", bits);
    neb_buf_free(&update);
    free(x);
}

static void test_extremes(void **state) {
    (void)state;
    static const float x[] = {0,      -0.0f, 1e-45f, -1e-40f,       1.17549435e-38f, 3e38f,
                              -3e38f, 1,     -1,     1e-30f,        65504,           7,
                              0.5f,   2.5f,  -2.5f,  3.40282347e38f};
    static const char *const names[] = {"fp32",   "bf16",       "int8:8",
                                        "int4:8", "topk:64/64", "topk:64/64:4"};
    enum { N = sizeof x / sizeof x[0] };
    for (size_t c = 0; c < sizeof names / sizeof names[0]; c++) {
        struct cmp_codec codec;
        struct neb_buf frame = {0};
        float y[N];
        assert_int_equal(cmp_codec_parse(names[c], &codec), NEB_OK);
        assert_int_equal(cmp_encode(W, &codec, x, N, &frame), NEB_OK);
        assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_OK);
        if (!strcmp(names[c], "fp32"))
            assert_memory_equal(x, y, sizeof x);
        for (size_t i = 0; i < N; i++)
            assert_true(isfinite(y[i]));
        neb_buf_free(&frame);
    }
    // the scale grid is monotone, and every scale maps to its own code
    for (int b = 1; b < 256; b++)
        for (int top = -90; top <= 120; top += 35) {
            float s = kern_scale_value((uint8_t)b, top);
            assert_true(isnormal(s) && (b == 1 || s > kern_scale_value((uint8_t)(b - 1), top)));
            assert_int_equal(kern_scale_code(s, top), b);
        }
}

static void test_nan_is_refused(void **state) {
    (void)state;
    float x[300] = {0};
    struct cmp_codec codec;
    struct neb_buf frame = {0};
    neb_log_set_sink(testing_drop, NULL);
    for (int i = 0; i < 2; i++) {
        x[257] = i ? INFINITY : NAN;
        assert_int_equal(cmp_codec_parse("int4", &codec), NEB_OK);
        assert_int_equal(cmp_encode(W, &codec, x, 300, &frame), NEB_ERR_INVALID);
    }
    x[257] = 1; // from a peer: fp32 with a NaN inside
    assert_int_equal(cmp_codec_parse("fp32", &codec), NEB_OK);
    codec.zstd_level = 0;
    neb_buf_clear(&frame);
    assert_int_equal(cmp_encode(W, &codec, x, 300, &frame), NEB_OK);
    frame.p[frame.len - 2] = 0xff;
    frame.p[frame.len - 1] = 0x7f;
    float y[300];
    assert_int_equal(cmp_decode(W, frame.p, frame.len, y, 300), NEB_ERR_FORMAT);
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&frame);
}

static void put_mag(uint8_t *p, uint32_t bits) { // the upper half of an f32
    p[0] = (uint8_t)(bits >> 16);
    p[1] = (uint8_t)(bits >> 24);
}

// Headers that no encoder writes are refused: another length, a codebook out of order, not finite,
// or too large for its scale.
static void test_hostile_headers_are_refused(void **state) {
    (void)state;
    enum { N = 20000, TOP_AT = 3, MAGS_AT = 10 }; // n takes three bytes, chunk two, k one
    static float x[N], y[N];
    static const float mags[][2] = {{2, 1}, {NAN, 1}, {1, NAN}, {-1, 1}, {1, INFINITY}, {1, 2000}};
    struct cmp_codec codec;
    struct neb_buf frame = {0};
    fill(x, N, 3);
    assert_int_equal(cmp_codec_parse("topk:64/4096", &codec), NEB_OK);
    assert_int_equal(cmp_encode(W, &codec, x, N, &frame), NEB_OK);
    assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_OK);
    neb_log_set_sink(testing_drop, NULL);
    uint8_t kept[26];
    memcpy(kept, frame.p, sizeof kept);
    for (size_t i = 0; i < sizeof mags / sizeof mags[0]; i++) {
        for (int k = 0; k < 2; k++) {
            uint32_t u;
            memcpy(&u, &mags[i][k], sizeof u);
            put_mag(frame.p + MAGS_AT + 2 * k, u);
        }
        assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_ERR_FORMAT);
    }
    memcpy(frame.p, kept, sizeof kept);
    put_mag(frame.p + MAGS_AT + 2, 0x44800000u); // 1024, with the largest exponent
    frame.p[TOP_AT] = 120;
    assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_ERR_FORMAT);
    memcpy(frame.p, kept, sizeof kept);
    static const uint8_t lengths[] = {0, 1, 12, 14, 39, 40, 255}; // of the head; 13 is right
    for (size_t i = 0; i < sizeof lengths; i++) {
        frame.p[0] = lengths[i];
        assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_ERR_FORMAT);
    }
    memcpy(frame.p, kept, sizeof kept);
    assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_OK);
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&frame);
}

// The same for 4-bit values, with eight magnitudes, and for the header's byte of bits.
static void test_hostile_wide_codebooks_are_refused(void **state) {
    (void)state;
    enum { N = 20000, BITS_AT = 2, MAGS_AT = 10 };
    static float x[N], y[N];
    struct cmp_codec codec;
    struct neb_buf frame = {0};
    uint8_t kept[MAGS_AT + 16];
    fill(x, N, 3);
    assert_int_equal(cmp_codec_parse("topk:64/4096:4", &codec), NEB_OK);
    assert_int_equal(cmp_encode(W, &codec, x, N, &frame), NEB_OK);
    assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_OK);
    memcpy(kept, frame.p, sizeof kept);
    neb_log_set_sink(testing_drop, NULL);
    static const float bad[] = {NAN, -1, INFINITY, 2000, -INFINITY};
    for (size_t i = 0; i < 8; i++)
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            uint32_t u;
            memcpy(&u, &bad[k], sizeof u);
            put_mag(frame.p + MAGS_AT + 2 * i, u);
            assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_ERR_FORMAT);
            memcpy(frame.p, kept, sizeof kept);
        }
    for (size_t i = 0; i + 1 < 8; i++) { // two swapped neighbours
        uint8_t *p = frame.p + MAGS_AT + 2 * i;
        memcpy(p, kept + MAGS_AT + 2 * (i + 1), 2);
        memcpy(p + 2, kept + MAGS_AT + 2 * i, 2);
        assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_ERR_FORMAT);
        memcpy(frame.p, kept, sizeof kept);
    }
    for (int bits = 0; bits < 256; bits++) {
        frame.p[BITS_AT] = (uint8_t)bits;
        assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N),
                         bits == 4 ? NEB_OK : NEB_ERR_FORMAT);
    }
    frame.p[BITS_AT] = 4;
    assert_int_equal(cmp_codec_parse("int4", &codec), NEB_OK); // no other codec sets this byte
    neb_buf_clear(&frame);
    assert_int_equal(cmp_encode(W, &codec, x, N, &frame), NEB_OK);
    frame.p[BITS_AT] = 4;
    assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_ERR_FORMAT);
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&frame);
}

// Streams are refused if they claim too few or too many bytes, are cut, or unpack to more than they
// claim; also indices outside their chunk and codes that no encoder writes.
static void test_hostile_streams_are_refused(void **state) {
    (void)state;
    enum { N = 16384 };
    static const char *const names[] = {"int4", "int8", "topk:16/256", "topk:16/256:4"};
    static float x[N], y[N + 1];
    struct neb_buf frame = {0};
    struct cmp_codec codec;
    fill(x, N, 9);
    neb_log_set_sink(testing_drop, NULL);
    for (size_t c = 0; c < sizeof names / sizeof *names; c++) {
        size_t chunks = c < 2 ? N / 128 : N / 256;
        assert_int_equal(cmp_codec_parse(names[c], &codec), NEB_OK);
        codec.zstd_level = 0;
        neb_buf_clear(&frame);
        assert_int_equal(cmp_encode(W, &codec, x, N, &frame), NEB_OK);
        // Scales: raw, of a size that follows from the head. Codes: likewise. Gaps: of any size.
        uint8_t *scales = frame.p + 1 + frame.p[0], *codes = scales + 1 + chunks, kept[4];
        static const uint8_t heads[] = {0, 5 << 2, 63 << 2, 3 | 1 << 2, 1 | 1 << 2, 2 | 1 << 2};
        for (size_t k = 0; k < sizeof heads; k++) // no width, too wide, no such stage, other stages
            for (int i = 0; i < 2; i++) {
                uint8_t *at = i ? codes : scales, head = *at;
                *at = heads[k];
                assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_ERR_FORMAT);
                *at = head;
            }
        memcpy(kept, codes, sizeof kept);
        static const uint16_t sizes[] = {0, 1, 1000, 0x7fff, 0xffff};
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes && c >= 2; k++) {
            codes[1] = (uint8_t)sizes[k], codes[2] = (uint8_t)(sizes[k] >> 8);
            assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_ERR_FORMAT);
            memcpy(codes, kept, sizeof kept);
        }
        uint8_t *second = codes + (c < 2 ? 1 : 3); // codes; gaps
        uint8_t was = *second;
        *second = c == 0 ? 0x08 : c == 1 ? 0x80 : 254; // gaps: the last index then leaves the chunk
        assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_ERR_FORMAT);
        *second = was;
        assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_OK);
        assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N + 1), NEB_ERR_FORMAT);
    }
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&frame);
}

static void test_topk_is_exact_and_breaks_ties_low(void **state) {
    (void)state;
    enum { N = 3000 };
    static float x[N];
    static uint32_t scratch[2 * N];
    uint16_t idx[N];
    struct neb_rng r = neb_rng_make(11, 0);
    for (int round = 0; round < 40; round++) {
        size_t n = 1 + neb_rng_below(&r, N), k = 1 + neb_rng_below(&r, n);
        for (size_t i = 0; i < n; i++) // few distinct values, so many ties
            x[i] = (float)((int)neb_rng_below(&r, 9) - 4) * (round % 2 ? 1.0f : heavy(&r));
        kern_topk(idx, x, n, k, scratch);
        // i must be chosen if and only if fewer than k elements beat it
        for (size_t i = 0; i < n; i++) {
            size_t better = 0;
            bool chosen = false;
            for (size_t j = 0; j < n; j++)
                better += fabsf(x[j]) > fabsf(x[i]) || (fabsf(x[j]) == fabsf(x[i]) && j < i);
            for (size_t j = 0; j < k; j++)
                chosen |= idx[j] == i;
            assert_true(chosen == (better < k));
            if (n > 400 && i > 200)
                break;
        }
        for (size_t j = 1; j < k; j++)
            assert_true(idx[j] > idx[j - 1]);
    }
}

static void test_names(void **state) {
    (void)state;
    static const char *const good[] = {"fp32",        "bf16",          "int8",    "int4",
                                       "int4:64",     "int3",          "int2:64", "topk:64/4096",
                                       "topk:16/256", "topk:64/4096:4"};
    static const char *const bad[] = {"",
                                      "int5",
                                      "int4:",
                                      "int4:4",
                                      "int4:64x",
                                      "topk:0/64",
                                      "topk:65/64",
                                      "topk:64",
                                      "topk:1/100000",
                                      "topk:64/4096:3",
                                      "topk:64/4096:",
                                      "topk:64/4096:44"};
    struct cmp_codec c;
    char name[32];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(cmp_codec_parse(good[i], &c), NEB_OK);
        cmp_codec_name(&c, name, sizeof name);
        assert_string_equal(name, good[i]);
    }
    neb_log_set_sink(testing_drop, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(cmp_codec_parse(bad[i], &c), NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
}

static void test_counts(void **state) {
    (void)state;
    uint32_t last = 0;
    for (int c = 1; c <= 231; c++) {
        uint32_t v = cmp_count_value((uint8_t)c);
        assert_true(v > last);
        assert_int_equal(cmp_count_code(v), c);
        last = v;
    }
    struct neb_rng r = neb_rng_make(1, 1);
    for (int i = 0; i < 10000; i++) {
        uint64_t n = neb_rng_u64(&r) >> (33 + neb_rng_below(&r, 30));
        double v = cmp_count_value(cmp_count_code(n));
        assert_true(fabs(v - (double)n) <= (double)n / 16);
    }
    assert_int_equal(cmp_count_code(UINT64_MAX), 231);
}

static void test_update_shapes(void **state) {
    (void)state;
    struct cmp_unit_shape shapes[2] = {{0, 50, 8, true}, {3, 1, 77, false}};
    struct cmp_update_unit units[2];
    struct cmp_update_stats stats;
    struct cmp_codec codec;
    struct neb_buf b = {0};
    float x[400], y[77];
    uint64_t counts[50];
    uint32_t got[50];
    fill(x, 400, 3);
    fill(y, 77, 4);
    for (int i = 0; i < 50; i++)
        counts[i] = i % 3 ? 0 : (uint64_t)i * 100;
    assert_int_equal(cmp_codec_parse("int8", &codec), NEB_OK);
    cmp_update_begin(&b, 2);
    assert_int_equal(
        cmp_update_add(W, &b, &shapes[0], &codec, &(struct cmp_source){.x = x}, counts), NEB_OK);
    assert_int_equal(cmp_update_add(W, &b, &shapes[1], &codec, &(struct cmp_source){.x = y}, NULL),
                     NEB_OK);
    assert_int_equal(cmp_update_open(b.p, b.len, shapes, 2, units), NEB_OK);
    assert_int_equal(cmp_update_counts(W, &units[0], 50, got), NEB_OK);
    for (int i = 0; i < 50; i++)
        assert_int_equal(got[i], cmp_count_value(cmp_count_code(counts[i])));
    assert_int_equal(cmp_update_check_max(W, b.p, b.len, UINT64_MAX, &stats), NEB_OK);
    assert_int_equal(stats.elements, 477);
    assert_true(stats.norm > 0);
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(cmp_update_check_max(W, b.p, b.len, 477, &stats), NEB_OK);
    assert_int_equal(cmp_update_check_max(W, b.p, b.len, 476, &stats), NEB_ERR_FORMAT);
    shapes[1].cols = 78; // another model than the sender's
    assert_int_equal(cmp_update_open(b.p, b.len, shapes, 2, units), NEB_ERR_FORMAT);
    for (size_t cut = 0; cut < b.len; cut++) {
        // exact size: a sanitizer sees an overread
        uint8_t *copy = malloc(cut ? cut : 1);
        memcpy(copy, b.p, cut);
        assert_int_equal(cmp_update_check_max(W, copy, cut, UINT64_MAX, &stats), NEB_ERR_FORMAT);
        free(copy);
    }
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&b);
}

// Units of a few hundred bytes that claim 16M zeros each are refused by their headers, before any
// is unpacked.
static void test_size_bomb_is_refused_unopened(void **state) {
    (void)state;
    enum { UNITS = 500, SIDE = 4096 };
    const struct cmp_unit_shape shape = {0, SIDE, SIDE, false};
    struct cmp_codec codec;
    struct cmp_update_stats stats;
    struct neb_buf one = {0}, bomb = {0};
    float *zeros = calloc((size_t)SIDE * SIDE, sizeof *zeros);
    assert_non_null(zeros);
    assert_int_equal(cmp_codec_parse("int4", &codec), NEB_OK);
    assert_int_equal(
        cmp_update_add(W, &one, &shape, &codec, &(struct cmp_source){.x = zeros}, NULL), NEB_OK);
    cmp_update_begin(&bomb, UNITS);
    for (int i = 0; i < UNITS; i++)
        neb_buf_add(&bomb, one.p, one.len);
    assert_true(bomb.len < 1 << 20);
    neb_log_set_sink(testing_drop, NULL);
    neb_ns start = neb_now();
    assert_int_equal(cmp_update_check_max(W, bomb.p, bomb.len, (uint64_t)SIDE * SIDE, &stats),
                     NEB_ERR_FORMAT);
    assert_true(neb_now() - start < NEB_S); // unpacking all would take several seconds
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&one);
    neb_buf_free(&bomb);
    free(zeros);
}

static int set_up(void **state) {
    (void)state;
    return cmp_work_create(&W) == NEB_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    cmp_work_destroy(&W);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_sparse_payload),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_nan_is_refused),
        cmocka_unit_test(test_hostile_headers_are_refused),
        cmocka_unit_test(test_hostile_wide_codebooks_are_refused),
        cmocka_unit_test(test_hostile_streams_are_refused),
        cmocka_unit_test(test_topk_is_exact_and_breaks_ties_low),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_update_shapes),
        cmocka_unit_test(test_size_bomb_is_refused_unopened),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
