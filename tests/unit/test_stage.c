// SPDX-License-Identifier: Apache-2.0
// The last stage of 8-bit codes is the one that saves most. It decodes to the same elements, and
// refuses hostile bodies.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "compress/check.h"
#include "compress/frame.h"
#include "kernels/blocks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 100001, BLOCKS = (N + 127) / 128, WIDTH = 3, STREAM = 1 + WIDTH };
enum { RAW, ZSTD, NIBBLES, ADAPTIVE };
static struct cmp_work *W;
static float x[N], y[N], z[N];

static void swallow(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level, (void)text;
}

static size_t size_at(const uint8_t *p, int width) {
    size_t n = 0;
    for (int i = 0; i < width; i++)
        n |= (size_t)p[i] << 8 * i;
    return n;
}
static void put_size(uint8_t *p, size_t n) {
    for (int i = 0; i < WIDTH; i++)
        p[i] = (uint8_t)(n >> 8 * i);
}

static uint8_t *scales_of(const struct neb_buf *frame) { // the head of the first stream
    return frame->p + 1 + frame->p[0];
}
static uint8_t *codes_of(const struct neb_buf *frame) { // the head of the second stream
    uint8_t *p = scales_of(frame);
    size_t packed = *p & 3 ? size_at(p + 1, *p >> 2) : BLOCKS;
    return p + cmp_stage_head_bytes(*p, true) + packed;
}
static int stage_of(const uint8_t *stream) { return *stream & 3; }
static void set_stage(uint8_t *stream, int stage) { *stream = (uint8_t)((*stream & ~3) | stage); }

static void encode(size_t n, int level, struct neb_buf *out) {
    struct cmp_codec codec;
    assert_int_equal(cmp_codec_parse("int8", &codec), NEB_OK);
    codec.zstd_level = level;
    neb_buf_clear(out);
    assert_int_equal(cmp_encode(W, &codec, x, n, out), NEB_OK);
}

static void heavy(size_t n) {
    struct neb_rng r = neb_rng_make(3, 1);
    for (size_t i = 0; i < n; i++) {
        float g = neb_rng_normal(&r);
        x[i] = g * fabsf(g);
    }
}

static void test_planes_join_to_the_codes(void **state) {
    (void)state;
    uint8_t codes[257] = {0}, low[129], high[129], back[258];
    for (size_t n = 0; n <= 257; n++) {
        for (size_t i = 0; i < n; i++)
            codes[i] = (uint8_t)(i + n);
        back[n] = 0xa5;
        kern_split8(low, high, codes, n);
        kern_join8(back, low, high, n);
        assert_memory_equal(back, codes, n);
        assert_int_equal(back[n], 0xa5);
        for (size_t i = 0; i < n; i++) // small codes of either sign: high nibble 0
            if ((int8_t)codes[i] >= -8 && (int8_t)codes[i] < 8)
                assert_int_equal(high[i / 2] >> 4 * (i % 2) & 15, 0);
    }
}

// One case for each stage: codes that are equally frequent, rows of zeros, heavy tails.
static void test_the_stage_follows_the_codes(void **state) {
    (void)state;
    struct neb_buf frame = {0}, plain = {0};
    for (int stage = RAW; stage <= NIBBLES; stage++) {
        struct neb_rng r = neb_rng_make(7, 0);
        heavy(N);
        for (size_t i = 0; i < N; i++) {
            if (stage == RAW)
                x[i] = (float)neb_rng_below(&r, 2001) - 1000.0f;
            if (stage == ZSTD && i / 1024 % 4)
                x[i] = 0;
        }
        encode(N, 1, &frame);
        encode(N, 0, &plain);
        assert_int_equal(stage_of(codes_of(&frame)), stage);
        assert_int_equal(stage_of(codes_of(&plain)), RAW);
        assert_true(stage == RAW || frame.len < plain.len);
        assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_OK);
        assert_int_equal(cmp_decode(W, plain.p, plain.len, z, N), NEB_OK);
        assert_memory_equal(y, z, sizeof y);
    }
    neb_buf_free(&frame);
    neb_buf_free(&plain);
}

static void refused(const struct neb_buf *frame, size_t n) {
    assert_int_equal(cmp_decode(W, frame->p, frame->len, y, n), NEB_ERR_FORMAT);
}

static void test_hostile_nibbles_are_refused(void **state) {
    (void)state;
    struct neb_buf frame = {0};
    heavy(N);
    encode(N, 1, &frame);
    uint8_t *codes = codes_of(&frame), *low = codes + STREAM;
    const size_t half = (N + 1) / 2, len = size_at(codes + 1, WIDTH);
    assert_int_equal(stage_of(codes), NIBBLES);
    neb_log_set_sink(swallow, NULL);
    low[half - 1] |= 0x10; // the unused half byte after the odd last code
    refused(&frame, N);
    low[half - 1] &= 0x0f;
    frame.p[0]++; // the length of the head
    refused(&frame, N);
    frame.p[0]--;
    for (size_t n = 0; n < half + 20; n += 1 + n / 3) { // too short for both planes
        put_size(codes + 1, n);
        struct neb_buf cut = {.p = frame.p, .len = (size_t)(low - frame.p) + n};
        refused(&cut, N);
    }
    put_size(codes + 1, len);
    for (size_t k = 0; k < 12; k++) { // magic, descriptor and sizes of the zstd frame
        low[half + k] ^= 0x55;
        enum neb_status st = cmp_decode(W, frame.p, frame.len, y, N);
        assert_true(st == NEB_OK || st == NEB_ERR_FORMAT);
        assert_true(k >= 4 || st == NEB_ERR_FORMAT);
        low[half + k] ^= 0x55;
    }
    set_stage(codes, ZSTD); // the wrong stage
    refused(&frame, N);
    set_stage(codes, NIBBLES);
    assert_int_equal(cmp_decode(W, frame.p, frame.len, y, N), NEB_OK);
    // 4-bit codes and scales have no such stage.
    set_stage(scales_of(&frame), NIBBLES);
    refused(&frame, N);
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&frame);
}

// No encoder writes code -128.
static void test_code_out_of_range_is_refused(void **state) {
    (void)state;
    struct neb_buf frame = {0};
    heavy(N);
    encode(N, 1, &frame);
    uint8_t *low = codes_of(&frame) + STREAM;
    neb_log_set_sink(swallow, NULL);
    bool seen = false;
    assert_int_equal(cmp_decode(W, frame.p, frame.len, z, N), NEB_OK);
    // With a low nibble of 8, the code is -128 if the high nibble puts it into [-136, -120].
    for (size_t i = 0; i < N / 2 && !seen; i++) {
        uint8_t was = low[i];
        low[i] = (uint8_t)((was & 0xf0) | 8);
        seen = cmp_decode(W, frame.p, frame.len, y, N) == NEB_ERR_FORMAT;
        low[i] = was;
    }
    neb_log_set_sink(NULL, NULL);
    assert_true(seen);
    neb_buf_free(&frame);
}

// The gate's check gets the same numbers from the nibble stage as from plain codes. The pieces may
// have any size.
static void test_the_gate_reads_nibbles(void **state) {
    (void)state;
    static const struct cmp_unit_shape shape = {0, 1, N, false};
    struct cmp_update_stats stats[2];
    struct cmp_check *check;
    struct neb_buf b = {0};
    struct cmp_codec codec;
    assert_int_equal(cmp_check_create(&check), NEB_OK);
    heavy(N);
    assert_int_equal(cmp_codec_parse("int8", &codec), NEB_OK);
    for (int level = 0; level < 2; level++) {
        codec.zstd_level = level;
        cmp_update_begin(&b, 1);
        assert_int_equal(cmp_update_add(W, &b, &shape, &codec, &(struct cmp_source){.x = x}, NULL),
                         NEB_OK);
        for (size_t piece = 1; piece < 4 * N; piece = 5 * piece + 2) {
            cmp_check_begin(check, N);
            for (size_t at = 0; at < b.len; at += piece)
                assert_int_equal(
                    cmp_check_feed(check, b.p + at, b.len - at < piece ? b.len - at : piece),
                    NEB_OK);
            assert_int_equal(cmp_check_end(check, &stats[level]), NEB_OK);
            assert_true(stats[level].elements == N && stats[level].norm == stats[0].norm);
        }
        if (level == 0)
            neb_buf_clear(&b);
    }
    assert_true(stats[0].norm > 0);
    neb_log_set_sink(swallow, NULL);
    // heads of the update and of its unit, no counts, the frame's long length
    size_t frame = 8 + 1 + b.p[8] + 2 + 6;
    struct neb_buf inside = {.p = b.p + frame, .len = b.len - frame};
    assert_int_equal(cmp_decode(W, inside.p, inside.len, y, N), NEB_OK);
    for (int scales = 0; scales < 2; scales++) {
        uint8_t *at = scales ? scales_of(&inside) : inside.p, was = *at;
        *at = (uint8_t)(scales ? (was & ~3) | NIBBLES : was + 1);
        cmp_check_begin(check, N);
        assert_int_equal(cmp_check_feed(check, b.p, b.len), NEB_ERR_FORMAT);
        assert_int_equal(cmp_check_end(check, &stats[1]), NEB_ERR_FORMAT);
        *at = was;
    }
    neb_log_set_sink(NULL, NULL);
    cmp_check_destroy(&check);
    neb_buf_free(&b);
}

// The symbols of a stream as the coder expects them; the share of ones falls with `rare`.
static void symbols(uint8_t *p, size_t n, unsigned rare, uint64_t seed) {
    struct neb_rng r = neb_rng_make(seed, 9);
    for (size_t i = 0; i < n; i++) {
        p[i] = 0;
        for (unsigned k = 0; k < 8; k++)
            p[i] |= (uint8_t)(!neb_rng_below(&r, rare) << k);
    }
}

static void test_the_adaptive_coder_returns_every_byte(void **state) {
    (void)state;
    static uint8_t p[CMP_ADAPTIVE_MOST], q[CMP_ADAPTIVE_MOST + 1];
    static const struct cmp_adaptive models[] = {{2, 0}, {4, 0},   {8, 0},
                                                 {8, 1}, {8, 156}, {8, UINT16_MAX}};
    struct neb_buf b = {0};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t n = 0; n <= CMP_ADAPTIVE_MOST; n = 3 * n + 1 + i)
            for (unsigned rare = 1; rare < 300; rare = 2 * rare + 1) {
                symbols(p, n, rare, n + rare);
                neb_buf_clear(&b);
                neb_buf_u8(&b, 7); // what was there stays
                assert_int_equal(cmp_adaptive_put(&models[i], p, n, &b), NEB_OK);
                assert_true(b.p[0] == 7 && b.len - 1 <= cmp_adaptive_bound(n));
                q[n] = 0xa5;
                assert_true(cmp_adaptive_get(&models[i], q, n, b.p + 1, b.len - 1));
                assert_memory_equal(q, p, n);
                assert_int_equal(q[n], 0xa5);
                size_t len = b.len - 1; // hostile bytes decode to something, within its place
                for (size_t at = 1; at < b.len; at += 1 + b.len / 3)
                    b.p[at] ^= 0x55;
                (void)cmp_adaptive_get(&models[i], q, n, b.p + 1, len);
                assert_int_equal(q[n], 0xa5);
                assert_non_null(neb_buf_grow(&b, cmp_adaptive_bound(n))); // more than it reads
                assert_false(cmp_adaptive_get(&models[i], q, n, b.p + 1, b.len - 1));
            }
    neb_buf_free(&b);
}

// Close to the entropy: geometric gaps, and codes of three levels.
static void test_short_streams_are_near_their_entropy(void **state) {
    (void)state;
    enum { LEN = 2000 };
    struct neb_rng r = neb_rng_make(5, 5);
    struct neb_buf b = {0};
    uint8_t p[LEN];
    for (size_t i = 0; i < LEN; i++) { // gaps of mean 31, 6.4 bits each
        p[i] = 0;
        while (p[i] < 254 && neb_rng_below(&r, 32))
            p[i]++;
    }
    assert_int_equal(cmp_adaptive_put(&(struct cmp_adaptive){8, 31}, p, LEN, &b), NEB_OK);
    assert_in_range(b.len, 6.1 * LEN / 8, 6.6 * LEN / 8);
    symbols(p, LEN, 8, 1); // bits that are 1 in an eighth of the cases, 0.54 bits each
    neb_buf_clear(&b);
    assert_int_equal(cmp_adaptive_put(&(struct cmp_adaptive){4, 0}, p, LEN, &b), NEB_OK);
    assert_in_range(b.len, 0.53 * LEN, 0.58 * LEN);
    neb_buf_free(&b);
}

// Every kind of short stream takes the adaptive stage, and a stream that does not is stored as it
// is.
static void test_short_streams_are_adaptive(void **state) {
    (void)state;
    static const char *const codecs[] = {"int8", "int4", "topk:26/4096"};
    struct neb_buf frame = {0};
    struct cmp_codec codec;
    heavy(8192);
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        assert_int_equal(cmp_codec_parse(codecs[i], &codec), NEB_OK);
        neb_buf_clear(&frame);
        assert_int_equal(cmp_encode(W, &codec, x, 8000, &frame), NEB_OK);
        assert_int_equal(stage_of(i == 2 ? scales_of(&frame) + 3 : codes_of(&frame)), ADAPTIVE);
        assert_int_equal(cmp_decode(W, frame.p, frame.len, y, 8000), NEB_OK);
    }
    neb_log_set_sink(swallow, NULL);
    encode(CMP_ADAPTIVE_MOST + 1, 1, &frame); // a long stream must not claim the stage
    set_stage(codes_of(&frame), ADAPTIVE);
    refused(&frame, CMP_ADAPTIVE_MOST + 1);
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&frame);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planes_join_to_the_codes),
        cmocka_unit_test(test_the_stage_follows_the_codes),
        cmocka_unit_test(test_hostile_nibbles_are_refused),
        cmocka_unit_test(test_code_out_of_range_is_refused),
        cmocka_unit_test(test_the_gate_reads_nibbles),
        cmocka_unit_test(test_the_adaptive_coder_returns_every_byte),
        cmocka_unit_test(test_short_streams_are_near_their_entropy),
        cmocka_unit_test(test_short_streams_are_adaptive),
    };
    if (cmp_work_create(&W) != NEB_OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    cmp_work_destroy(&W);
    return rc;
}
