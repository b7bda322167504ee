// SPDX-License-Identifier: Apache-2.0
// compress/check.h: an update that arrives in pieces gets the same verdict and statistics as in one
// piece. The norm equals that of a plain loop over codes and scales. An update that passes can be
// decoded.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "compress/check.h"
#include "compress/ops.h"
#include "kernels/exact.h"
#include "kernels/quant.h"
#include "tests/quant_reference.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(x) assert_int_equal((x), NEB_OK)

static struct cmp_work *W;
static struct cmp_check *C;
static const char *const codecs[] = {"fp32",   "bf16",         "int8",         "int8:100",
                                     "int4",   "int4:65",      "int3",         "int2:16",
                                     "int4:9", "topk:64/4096", "topk:8/300:4", "topk:3/64"};
enum { CODECS = sizeof codecs / sizeof *codecs, UNITS = 4 };
static const struct cmp_unit_shape shapes[UNITS] = {
    {0, 50, 8, true}, {3, 1, 77, false}, {4, 3, 6001, true}, {9, 1, 1, false}};

static void update_of(const char *codec, uint32_t units, uint64_t seed, struct neb_buf *b) {
    struct neb_rng r = neb_rng_make(seed, 0);
    struct cmp_codec c;
    OK(cmp_codec_parse(codec, &c));
    c.zstd_level = 1;
    cmp_update_begin(b, units);
    for (uint32_t u = 0; u < units; u++) {
        size_t n = (size_t)shapes[u].rows * shapes[u].cols;
        float *x = malloc(n * sizeof *x);
        uint64_t counts[50];
        for (size_t i = 0; i < n; i++) {
            float z = neb_rng_normal(&r);
            x[i] = 1e-3f * z * fabsf(z) * (float)(1 + i % 7);
        }
        for (size_t i = 0; i < 50; i++)
            counts[i] = i % 3 ? 0 : i * 100;
        OK(cmp_update_add(W, b, &shapes[u], &c, &(struct cmp_source){.x = x},
                          shapes[u].counts ? counts : NULL));
        free(x);
    }
}

static bool same(const struct cmp_update_stats *a, const struct cmp_update_stats *b) {
    return a->units == b->units && a->elements == b->elements && a->counts == b->counts &&
           !memcmp(&a->norm, &b->norm, sizeof a->norm) && !memcmp(a->shapes, b->shapes, 32);
}

// The piece is copied to a block of its exact size, so that a sanitizer sees an overread.
static void feed(const uint8_t *p, size_t n, enum neb_status *st) {
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, p, n);
    *st = cmp_check_feed(C, copy, n);
    free(copy);
}

// Cut at random places; step 0: at `first` only.
static enum neb_status in_pieces(const struct neb_buf *b, size_t first, struct neb_rng *r,
                                 uint32_t step, struct cmp_update_stats *out) {
    enum neb_status st = NEB_OK;
    cmp_check_begin(C, UINT64_MAX);
    feed(b->p, first, &st);
    for (size_t at = first; at < b->len;) {
        size_t n = step ? 1 + neb_rng_below(r, step) : b->len - at;
        n = n < b->len - at ? n : b->len - at;
        feed(b->p + at, n, &st);
        at += n;
    }
    enum neb_status end = cmp_check_end(C, out);
    assert_true(st == NEB_OK || end == st);
    return end;
}

static void test_every_cut(void **state) {
    (void)state;
    for (size_t k = 0; k < CODECS; k++) {
        struct neb_buf b = {0};
        struct cmp_update_stats whole, cut;
        update_of(codecs[k], 2, k, &b);
        OK(cmp_update_check_max(W, b.p, b.len, UINT64_MAX, &whole));
        assert_int_equal(whole.elements, 477);
        for (size_t at = 0; at <= b.len; at++) {
            OK(in_pieces(&b, at, NULL, 0, &cut));
            assert_true(same(&whole, &cut));
        }
        neb_buf_free(&b);
    }
}

static void test_random_pieces(void **state) {
    (void)state;
    struct neb_rng r = neb_rng_make(7, 0);
    for (size_t k = 0; k < CODECS; k++) {
        struct neb_buf b = {0};
        struct cmp_update_stats whole, cut;
        uint8_t want[32];
        update_of(codecs[k], UNITS, k, &b);
        OK(cmp_update_check_max(W, b.p, b.len, UINT64_MAX, &whole));
        cmp_shapes_hash(shapes, UNITS, want);
        assert_memory_equal(whole.shapes, want, sizeof want);
        for (uint32_t step = 1; step < 1 << 14; step *= 3) {
            OK(in_pieces(&b, 0, &r, step, &cut));
            assert_true(same(&whole, &cut));
        }
        neb_buf_free(&b);
    }
}

// The definition: for each block (sum of q^2) * scale^2, summed in order of the blocks.
static double blocks_norm2(const uint8_t *frame, size_t len) {
    struct cmp_frame_info info;
    struct cmp_frame h;
    struct neb_buf s[CMP_STREAMS_MAX] = {{0}};
    double sum = 0;
    OK(cmp_frame_peek(frame, len, &info));
    OK(cmp_frame_open(W, frame, len, info.n, &h, s));
    int8_t *q = malloc(h.n + 1);
    if (cmp_codec_code_bytes(&h.codec) < 1)
        assert_true(reference_unpack4(q, s[1].p, h.n));
    else
        memcpy(q, s[1].p, h.n);
    for (size_t at = 0; at < h.n; at += h.codec.block) {
        uint64_t squares = 0;
        for (size_t i = at; i < h.n && i < at + h.codec.block; i++)
            squares += (uint64_t)(q[i] * q[i]);
        double scale = (double)kern_scale_value(s[0].p[at / h.codec.block], h.top);
        sum += (double)squares * (scale * scale);
    }
    free(q);
    neb_buf_free(&s[0]);
    neb_buf_free(&s[1]);
    return sum;
}

static void test_norm(void **state) {
    (void)state;
    for (size_t k = 0; k < CODECS; k++) {
        struct neb_buf b = {0};
        struct cmp_update_stats stats;
        struct cmp_update_unit units[UNITS];
        double exact = 0, floats = 0;
        bool blocks = !strncmp(codecs[k], "int", 3);
        update_of(codecs[k], UNITS, 50 + k, &b);
        OK(cmp_update_check_max(W, b.p, b.len, UINT64_MAX, &stats));
        OK(cmp_update_open(b.p, b.len, shapes, UNITS, units));
        for (int u = 0; u < UNITS; u++) {
            size_t n = (size_t)shapes[u].rows * shapes[u].cols;
            float *x = malloc(n * sizeof *x);
            OK(cmp_decode(W, units[u].frame, units[u].frame_len, x, n));
            for (size_t i = 0; i < n; i++)
                floats += (double)x[i] * (double)x[i];
            free(x);
        }
        assert_true(fabs(stats.norm - sqrt(floats)) <= 1e-6 * sqrt(floats));
        if (blocks) { // all units add to one sum in order, so one unit alone is compared
            neb_buf_clear(&b);
            update_of(codecs[k], 1, 50 + k, &b);
            OK(cmp_update_check_max(W, b.p, b.len, UINT64_MAX, &stats));
            OK(cmp_update_open(b.p, b.len, shapes, 1, units));
            exact = sqrt(blocks_norm2(units[0].frame, units[0].frame_len));
            assert_memory_equal(&exact, &stats.norm, sizeof exact);
        }
        neb_buf_free(&b);
    }
}

// With any bit altered, the verdict is the same in one piece and in many. An update that passes can
// be decoded.
static void test_altered(void **state) {
    (void)state;
    struct neb_rng r = neb_rng_make(11, 0);
    neb_log_set_sink(testing_drop, NULL);
    for (size_t k = 0; k < CODECS; k++) {
        struct neb_buf b = {0};
        update_of(codecs[k], 2, k, &b);
        for (size_t bit = 0; bit < 8 * b.len; bit += 1 + bit % 3) {
            struct cmp_update_stats whole, cut;
            struct cmp_update_unit units[2];
            float x[400];
            uint32_t counts[50];
            b.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
            enum neb_status st = cmp_update_check_max(W, b.p, b.len, UINT64_MAX, &whole);
            assert_int_equal(in_pieces(&b, 0, &r, 40, &cut), st);
            if (st == NEB_OK) {
                assert_true(same(&whole, &cut));
                if (cmp_update_open(b.p, b.len, shapes, 2, units) == NEB_OK) {
                    OK(cmp_decode(W, units[0].frame, units[0].frame_len, x, 400));
                    OK(cmp_decode(W, units[1].frame, units[1].frame_len, x, 77));
                    OK(cmp_update_counts(W, &units[0], 50, counts));
                }
            }
            b.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        for (size_t cut = 0; cut < b.len; cut++) {
            struct cmp_update_stats stats;
            cmp_check_begin(C, UINT64_MAX);
            enum neb_status st;
            feed(b.p, cut, &st);
            OK(st); // no error so far
            assert_int_equal(cmp_check_end(C, &stats), NEB_ERR_FORMAT);
        }
        neb_buf_u8(&b, 0);
        struct cmp_update_stats stats;
        assert_int_equal(in_pieces(&b, 0, &r, 100, &stats), NEB_ERR_FORMAT);
        neb_buf_free(&b);
    }
    neb_log_set_sink(NULL, NULL);
}

// The limit counts the claimed elements of all units, and is checked before a unit is unpacked.
static void test_element_limit(void **state) {
    (void)state;
    struct neb_buf b = {0};
    struct cmp_update_stats stats;
    update_of("int4", UNITS, 1, &b);
    uint64_t all = 50 * 8 + 77 + 3 * 6001 + 1;
    OK(cmp_update_check_max(W, b.p, b.len, all, &stats));
    assert_int_equal(stats.elements, all);
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(cmp_update_check_max(W, b.p, b.len, all - 1, &stats), NEB_ERR_FORMAT);
    neb_log_set_sink(NULL, NULL);
    // an error does not affect the next update
    OK(cmp_update_check_max(W, b.p, b.len, all, &stats));
    assert_true(cmp_check_is_update(b.p, 4) && !cmp_check_is_update(b.p, 3));
    b.p[0] ^= 1;
    assert_false(cmp_check_is_update(b.p, b.len));
    neb_buf_free(&b);
}

// A unit without rows or columns is refused by its header in every reader: it adds no elements, but
// its row counts could fill 16 MiB.
static void test_no_empty_units(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {
        {CMP_ROWS_MAX, 0}, {0, 8}, {0, 0}, {CMP_ROWS_MAX + 1, 1}, {CMP_ROWS_MAX, 2}};
    const int32_t owner = 0;
    neb_log_set_sink(testing_drop, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct neb_buf b = {0}, frame = {0}, out = {0};
        struct cmp_unit_shape shape = {0, sizes[i][0], sizes[i][1], true};
        struct cmp_update_unit unit;
        struct cmp_update_stats stats;
        struct cmp_codec c;
        uint32_t n;
        OK(cmp_codec_parse("int8", &c));
        OK(cmp_encode(W, &c, NULL, 0, &frame));
        cmp_update_begin(&b, 1);
        neb_buf_u32(&b, 0);
        neb_buf_u32(&b, shape.rows);
        neb_buf_u32(&b, shape.cols);
        neb_buf_u32(&b, 1); // the length of the row counts
        cmp_check_begin(C, UINT64_MAX);
        assert_int_equal(cmp_check_feed(C, b.p, b.len),
                         NEB_ERR_FORMAT); // none of the counts has arrived
        assert_int_equal(cmp_check_end(C, &stats), NEB_ERR_FORMAT);
        neb_buf_u8(&b, 0);
        neb_buf_u32(&b, (uint32_t)frame.len);
        neb_buf_add(&b, frame.p, frame.len);
        assert_int_equal(cmp_update_open(b.p, b.len, &shape, 1, &unit), NEB_ERR_FORMAT);
        assert_int_equal(cmp_update_shapes(b.p, b.len, &shape, 1, &n), NEB_ERR_FORMAT);
        assert_int_equal(cmp_update_cut(b.p, b.len, &owner, 1, 0, &out), NEB_ERR_FORMAT);
        assert_int_equal(cmp_update_join(&(struct cmp_update_piece){b.p, b.len}, 1, &out),
                         NEB_ERR_FORMAT);
        neb_buf_free(&b);
        neb_buf_free(&frame);
        neb_buf_free(&out);
    }
    neb_log_set_sink(NULL, NULL);
}

// Two zstd frames in a row unpack to the right size, but no encoder writes them: they are refused.
static void test_one_zstd_frame(void **state) {
    (void)state;
    enum { N = 4096 };
    struct neb_buf b = {0}, two = {0};
    struct cmp_update_stats stats;
    const uint8_t high[N] = {0};
    uint8_t packed[2][ZSTD_COMPRESSBOUND(N)];
    size_t half = ZSTD_compress(packed[0], sizeof packed[0], high, N / 2, 1),
           full = ZSTD_compress(packed[1], sizeof packed[1], high, N, 1);
    struct cmp_frame h = {.n = N};
    OK(cmp_codec_parse("int8", &h.codec));
    neb_log_set_sink(testing_drop, NULL);
    for (int frames = 1; frames <= 2; frames++) {
        neb_buf_clear(&b);
        neb_buf_clear(&two);
        cmp_frame_put(&two, &h);
        neb_buf_u8(&two, 0); // scales, not compressed
        neb_buf_u32(&two, N / 128);
        neb_buf_u32(&two, N / 128);
        neb_buf_add(&two, high, N / 128);
        neb_buf_u8(&two, 1);
        neb_buf_u32(&two, N);
        neb_buf_u32(&two, (uint32_t)(frames == 1 ? full : 2 * half));
        for (int i = 0; i < frames; i++)
            neb_buf_add(&two, packed[frames == 1], frames == 1 ? full : half);
        cmp_update_begin(&b, 1);
        neb_buf_u32(&b, 0);
        neb_buf_u32(&b, 1);
        neb_buf_u32(&b, N);
        neb_buf_u32(&b, 0);
        neb_buf_u32(&b, (uint32_t)two.len);
        neb_buf_add(&b, two.p, two.len);
        assert_int_equal(cmp_update_check_max(W, b.p, b.len, UINT64_MAX, &stats),
                         frames == 1 ? NEB_OK : NEB_ERR_FORMAT);
    }
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&b);
    neb_buf_free(&two);
}

static int set_up(void **state) {
    (void)state;
    return cmp_work_create(&W) == NEB_OK && cmp_check_create(&C) == NEB_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    cmp_work_destroy(&W);
    cmp_check_destroy(&C);
    return 0;
}

// Vectors (norms, biases) stay dense; matrices become sparse if they have a quarter of a chunk or
// more.
static void test_vectors_stay_dense(void **state) {
    (void)state;
    enum { N = 8192 };
    static const struct {
        struct cmp_unit_shape shape;
        bool sparse;
    } cases[] = {{{0, N, 1, false}, false},
                 {{0, 1, N, false}, false},
                 {{0, 2, N / 2, false}, true},
                 {{0, 64, 16, false}, true},
                 {{0, 63, 16, false}, false}};
    static float x[N];
    struct cmp_codec c;
    OK(cmp_codec_parse("topk:64/4096", &c));
    for (size_t i = 0; i < N; i++)
        x[i] = (float)(i % 37) - 18;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct neb_buf b = {0};
        struct cmp_update_unit u;
        struct cmp_frame_info info;
        cmp_update_begin(&b, 1);
        OK(cmp_update_add(W, &b, &cases[i].shape, &c, &(struct cmp_source){.x = x}, NULL));
        OK(cmp_update_open(b.p, b.len, &cases[i].shape, 1, &u));
        OK(cmp_frame_peek(u.frame, u.frame_len, &info));
        assert_int_equal(cmp_codec_sparse(&info.codec), cases[i].sparse);
        neb_buf_free(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut),      cmocka_unit_test(test_random_pieces),
        cmocka_unit_test(test_norm),           cmocka_unit_test(test_altered),
        cmocka_unit_test(test_element_limit),  cmocka_unit_test(test_no_empty_units),
        cmocka_unit_test(test_one_zstd_frame), cmocka_unit_test(test_vectors_stay_dense)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
