// SPDX-License-Identifier: Apache-2.0
// The block quantiser in one pass gives the same bits as its parts called in turn (pseudo-gradient,
// largest value, scale byte, codes, packing). The cases: all block lengths and levels, values from
// all corners of the format, and scales beyond both ends of the scale byte's range.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "compress/codec.h"
#include "compress/reader.h"
#include "kernels/blocks.h"
#include "kernels/exact.h"
#include "kernels/quant.h"
#include "tests/quant_reference.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 3000, GUARD = 64 };

struct data {
    float theta[N], theta_m[N], e[N];
};

struct result {
    float u[N + GUARD], sent[N + GUARD];
    uint8_t scales[N + GUARD], codes[N + GUARD];
    int top;
    bool finite;
};

struct shape {
    size_t n, block;
    int levels;
    bool four;
};

// kind 0: usual values; 1: the full exponent range; 2: most blocks are zero; 3: all values are
// tiny; 4: all are huge.
static float value(struct neb_rng *r, int kind, size_t i) {
    float z = neb_rng_normal(r);
    if (kind == 1)
        return ldexpf(z, (int)(i / 100 * 37 % 270) - 145);
    if (kind == 2)
        return i / 300 % 3 ? (i % 2 ? 0.0f : -0.0f) : z;
    return kind == 3   ? ldexpf(z, -140)
           : kind == 4 ? ldexpf(z > 3 ? 3 : z, 124)
                       : 1e-3f * z * fabsf(z);
}

static void fill(struct data *d, struct neb_rng *r, int kind) {
    for (size_t i = 0; i < N; i++) {
        d->theta[i] = value(r, kind, i);
        d->theta_m[i] = kind == 4 ? d->theta[i] * 0.5f : value(r, kind, i);
        d->e[i] = kind == 4 ? 0 : value(r, kind, i);
    }
}

static void in_parts(const struct data *d, const struct shape *s, float beta, struct result *o) {
    static int8_t codes[N];
    memcpy(o->u, d->e, sizeof d->e);
    kern_exact_pseudo_gradient(o->u, d->theta, d->theta_m, beta, s->n);
    memcpy(o->sent, d->theta_m, s->n * sizeof(float));
    float max = kern_absmax(o->u, s->n, &o->finite);
    o->top = max > 0 ? kern_scale_top(max, s->levels) : 0;
    for (size_t at = 0, b = 0; at < s->n; at += s->block, b++) {
        size_t len = s->n - at < s->block ? s->n - at : s->block;
        bool ignored;
        float most = kern_absmax(o->u + at, len, &ignored), rms = kern_rms(o->u + at, len);
        float step = s->levels == 1 && rms > 0 && rms < most
                         ? rms
                         : most / (s->levels == 6 ? 5.5f : (float)s->levels);
        o->scales[b] = kern_scale_code(step, o->top);
        reference_quantise(codes + at, o->u + at, kern_scale_value(o->scales[b], o->top), s->levels,
                           len);
    }
    if (s->four)
        reference_pack4(o->codes, codes, s->n);
    else
        memcpy(o->codes, codes, s->n);
}

// learned: the frame comes from θ, θ_m and e; else from the u that in_parts has left.
static void in_one(const struct data *d, const struct shape *s, float beta, bool learned, bool keep,
                   const float *u, struct result *o) {
    static uint16_t steps[N];
    static int8_t room[2 * N];
    struct kern_blocks b = {.n = s->n,
                            .block = s->block,
                            .levels = s->levels,
                            .four = s->four,
                            .steps = steps,
                            .room = room,
                            .scales = o->scales,
                            .codes = o->codes};
    if (learned) {
        memcpy(o->u, d->e, sizeof d->e);
        b.u = o->u, b.theta = d->theta, b.theta_m = d->theta_m, b.beta = beta;
        b.sent = keep ? o->sent : NULL;
    } else {
        b.x = u;
    }
    o->top = kern_blocks_encode(&b, &o->finite);
}

static void compare(const struct shape *s, const struct result *want, const struct result *got,
                    bool learned, bool keep, int kind) {
    size_t blocks = (s->n + s->block - 1) / s->block, bytes = s->four ? (s->n + 1) / 2 : s->n;
    const char *what = NULL;
    assert_true(got->finite && want->finite);
    if (got->top != want->top)
        what = "top";
    else if (memcmp(want->scales, got->scales, blocks))
        what = "scales";
    else if (memcmp(want->codes, got->codes, bytes))
        what = "codes";
    else if (learned && memcmp(want->u, got->u, s->n * sizeof(float)))
        what = "u";
    else if (keep && memcmp(want->sent, got->sent, s->n * sizeof(float)))
        what = "sent";
    if (what)
        fail_msg("%zu elements, blocks of %zu, %d levels, values of kind %d: %s differ", s->n,
                 s->block, s->levels, kind, what);
    for (size_t i = 0; i < GUARD; i++)
        assert_true(got->scales[N + i] == 0xa5 && got->codes[N + i] == 0xa5);
}

static void test_one_pass_gives_the_same_bits(void **state) {
    (void)state;
    static struct data d;
    static struct result want, got;
    static const size_t blocks[] = {8, 9, 33, 64, 127, 128, 129, 1000};
    static const int levels[] = {6, 7, 3, 1, 127};
    struct neb_rng r = neb_rng_make(21, 0);
    unsigned was = kern_exact_enter();
    for (int round = 0; round < 900; round++) {
        int kind = round % 5;
        struct shape s = {.n = round < 40 ? (size_t)round : neb_rng_below(&r, N + 1),
                          .block = blocks[neb_rng_below(&r, 8)],
                          .levels = levels[neb_rng_below(&r, 5)]};
        s.four = s.levels < 8;
        if (round % 3 == 0)
            s.block = 128;
        fill(&d, &r, kind);
        float beta = round % 2 ? 1 : 0.9f;
        in_parts(&d, &s, beta, &want);
        for (int how = 0; how < 3; how++) {
            memset(&got, 0xa5, sizeof got);
            in_one(&d, &s, beta, how > 0, how > 1, want.u, &got);
            compare(&s, &want, &got, how > 0, how > 1, kind);
        }
    }
    kern_exact_leave(was);
}

static void test_nonfinite_is_reported(void **state) {
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    static struct data d;
    static struct result got;
    struct neb_rng r = neb_rng_make(4, 0);
    for (size_t i = 0; i < 4; i++)
        for (size_t at = 0; at < 300; at += 41) {
            struct shape s = {300, i % 2 ? 128 : 33, 6, true};
            fill(&d, &r, 0);
            d.theta[at] = bad[i];
            in_one(&d, &s, 1, true, false, NULL, &got);
            assert_false(got.finite);
        }
}

// For every codec, encoding with feedback gives the frame of u, and leaves u and sent as expected.
static void test_feedback_frames(void **state) {
    (void)state;
    enum { MANY = 40000 };
    static const char *const names[] = {"fp32", "bf16",         "int8",          "int4",   "int3",
                                        "int2", "topk:64/4096", "topk:16/512:4", "int4:33"};
    float *theta = calloc(MANY, 4), *theta_m = calloc(MANY, 4), *u = calloc(MANY, 4),
          *v = calloc(MANY, 4), *sent = calloc(MANY, 4);
    struct neb_buf a = {0}, b = {0};
    struct neb_rng r = neb_rng_make(8, 0);
    struct cmp_work *w;
    struct cmp_codec codec;
    assert_true(theta && theta_m && u && v && sent);
    assert_int_equal(cmp_work_create(&w), NEB_OK);
    for (size_t c = 0; c < sizeof names / sizeof *names; c++) {
        size_t n = c % 2 ? MANY : MANY - 4097;
        for (size_t i = 0; i < MANY; i++) {
            theta[i] = neb_rng_normal(&r);
            theta_m[i] = theta[i] + 1e-3f * neb_rng_normal(&r);
            u[i] = v[i] = 1e-4f * neb_rng_normal(&r);
        }
        assert_int_equal(cmp_codec_parse(names[c], &codec), NEB_OK);
        kern_exact_pseudo_gradient(v, theta, theta_m, 0.5f, n);
        neb_buf_clear(&a);
        neb_buf_clear(&b);
        struct cmp_feedback f = {u, theta, theta_m, sent, 0.5f};
        assert_int_equal(cmp_encode(w, &codec, v, n, &a), NEB_OK);
        assert_int_equal(cmp_encode_feedback(w, &codec, &f, n, &b), NEB_OK);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.p, b.p, a.len);
        assert_memory_equal(u, v, n * 4);
        assert_memory_equal(sent, theta_m, n * 4);
        theta[n - 1] = INFINITY;
        neb_log_set_sink(testing_drop, NULL);
        assert_int_equal(cmp_encode_feedback(w, &codec, &f, n, &b), NEB_ERR_INVALID);
        neb_log_set_sink(NULL, NULL);
    }
    cmp_work_destroy(&w);
    neb_buf_free(&a);
    neb_buf_free(&b);
    free(theta);
    free(theta_m);
    free(u);
    free(v);
    free(sent);
}

// Reading a frame in strips gives the elements of a full decode, and refuses what the decode
// refuses.
static void test_strips_equal_full_decode(void **state) {
    (void)state;
    enum { MANY = 30001 };
    static const char *const names[] = {"fp32",         "bf16",         "int8",    "int8:77",
                                        "int4",         "int3",         "int4:33", "int4:64",
                                        "topk:64/4096", "topk:16/512:4"};
    static const size_t sizes[] = {0, 1, 127, 129, 4096, 16384, MANY};
    float *x = calloc(MANY, 4), *whole = calloc(MANY, 4), *strip = calloc(MANY + 1, 4);
    struct neb_buf frame = {0};
    struct neb_rng r = neb_rng_make(17, 0);
    struct cmp_work *w;
    struct cmp_reader *reader;
    struct cmp_codec codec;
    assert_true(x && whole && strip);
    assert_int_equal(cmp_work_create(&w), NEB_OK);
    assert_int_equal(cmp_reader_create(&reader), NEB_OK);
    neb_log_set_sink(testing_drop, NULL);
    for (size_t c = 0; c < sizeof names / sizeof *names; c++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            size_t n = sizes[k];
            for (size_t i = 0; i < n; i++)
                x[i] = value(&r, 0, i);
            assert_int_equal(cmp_codec_parse(names[c], &codec), NEB_OK);
            neb_buf_clear(&frame);
            assert_int_equal(cmp_encode(w, &codec, x, n, &frame), NEB_OK);
            assert_int_equal(cmp_decode(w, frame.p, frame.len, whole, n), NEB_OK);
            assert_int_equal(cmp_reader_open(reader, w, frame.p, frame.len, n), NEB_OK);
            for (int tries = 0; tries < 30; tries++) {
                size_t at = neb_rng_below(&r, n + 1), len = neb_rng_below(&r, n - at + 1);
                if (tries % 3 == 0)
                    at = at / 128 * 128;
                strip[len] = 42;
                cmp_reader_read(reader, at, strip, len);
                if ((len && memcmp(strip, whole + at, len * 4)) || strip[len] != 42)
                    fail_msg("%s, %zu of %zu elements from %zu differ", names[c], len, n, at);
            }
            // a damaged frame: both readers refuse it, or both read the same
            for (int tries = 0; tries < 40 && n > 1; tries++) {
                size_t where = neb_rng_below(&r, frame.len);
                uint8_t was = frame.p[where];
                frame.p[where] ^= (uint8_t)(1u << neb_rng_below(&r, 8));
                enum neb_status st = cmp_decode(w, frame.p, frame.len, whole, n);
                assert_int_equal(cmp_reader_open(reader, w, frame.p, frame.len, n), st);
                if (st == NEB_OK) {
                    cmp_reader_read(reader, 0, strip, n);
                    assert_memory_equal(strip, whole, n * 4);
                }
                frame.p[where] = was;
            }
            assert_int_equal(cmp_reader_open(reader, w, frame.p, frame.len, n + 1), NEB_ERR_FORMAT);
        }
    neb_log_set_sink(NULL, NULL);
    cmp_reader_destroy(&reader);
    assert_null(reader);
    cmp_work_destroy(&w);
    neb_buf_free(&frame);
    free(x);
    free(whole);
    free(strip);
}

// The fast decoders against reference_unpack4 and kern_dequantise. They must find a code out of
// range anywhere.
static void test_decoders_give_the_same_bits(void **state) {
    (void)state;
    enum { BLOCKS = 70, MANY = BLOCKS * 128 };
    static uint8_t packed[MANY / 2 + 1], scales[BLOCKS];
    static int8_t codes[MANY], expanded[MANY];
    static float want[MANY], got[MANY];
    struct neb_rng r = neb_rng_make(6, 0);
    for (int round = 0; round < 60; round++) {
        int top = (int)neb_rng_below(&r, 200) - 90;
        bool four = round % 2;
        for (size_t i = 0; i < MANY; i++)
            codes[i] = (int8_t)((int)neb_rng_below(&r, four ? 15 : 255) - (four ? 7 : 127));
        for (size_t b = 0; b < BLOCKS; b++) {
            scales[b] = (uint8_t)neb_rng_below(&r, 256);
            kern_dequantise(want + b * 128, codes + b * 128, kern_scale_value(scales[b], top), 128);
        }
        if (four) {
            reference_pack4(packed, codes, MANY);
            kern_expand4(expanded, packed, MANY / 2);
            assert_memory_equal(expanded, codes, MANY);
        }
        kern_blocks_decode(got, scales, four ? packed : (uint8_t *)codes, MANY, four, top);
        assert_memory_equal(got, want, sizeof got);
        if (!four)
            continue;
        size_t n = MANY - neb_rng_below(&r, 300), at = neb_rng_below(&r, n / 2);
        reference_pack4(packed, codes, n);
        assert_true(kern_check4(packed, n) && reference_unpack4(expanded, packed, n));
        uint8_t was = packed[at];
        packed[at] &= round % 4 == 1 ? 0x0f : 0xf0;
        assert_false(kern_check4(packed, n) || reference_unpack4(expanded, packed, n));
        packed[at] = was;
        if (n % 2) {
            packed[n / 2] = (uint8_t)((packed[n / 2] & 15) | 7 << 4);
            assert_false(kern_check4(packed, n));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strips_equal_full_decode),
        cmocka_unit_test(test_decoders_give_the_same_bits),
        cmocka_unit_test(test_one_pass_gives_the_same_bits),
        cmocka_unit_test(test_nonfinite_is_reported),
        cmocka_unit_test(test_feedback_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
