// SPDX-License-Identifier: Apache-2.0
// Codecs on the emulated device against the CPU: the same frames byte by byte, the same floats bit
// by bit, the same verdict on damaged frames.
#include "agent/base/rng.h"
#include "compress/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

kern_device_opener kern_cuda_open;

struct both {
    struct kern *D;
    struct cmp_device *c;
    struct cmp_work *w;
    float *x, *out; // on the device
};
enum { MOST = 40000 };

static void open_both(struct both *b) {
    char text[256];
    void *p, *q;
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION, 0, &b->D, text, sizeof text), NEB_OK);
    assert_int_equal(cmp_device_create(b->D, &b->c), NEB_OK);
    assert_int_equal(cmp_work_create(&b->w), NEB_OK);
    assert_int_equal(b->D->ops->alloc(b->D, MOST * 4, &p), NEB_OK);
    assert_int_equal(b->D->ops->alloc(b->D, MOST * 4, &q), NEB_OK);
    b->x = p;
    b->out = q;
}
static void close_both(struct both *b) {
    b->D->ops->release(b->D, b->x);
    b->D->ops->release(b->D, b->out);
    cmp_work_destroy(&b->w);
    cmp_device_destroy(&b->c);
    assert_null(b->c);
    kern_destroy(&b->D);
}

// Every codec of the table, then odd blocks and chunks. A NULL ends the list.
static const char *name_of(int i) {
    static const char *const odd[] = {"int8:77",         "int4:64",   "int4:9", "int2:130",
                                      "topk:1000/65536", "topk:1/64", NULL};
    const unsigned all = CMP_BENCHED | CMP_PLANNED | CMP_LEVEL;
    int n = 0;
    while (n <= i && cmp_variant(n, all))
        n++;
    return n > i ? cmp_variant(i, all)->name : odd[i - n];
}

static const size_t sizes[] = {0, 1, 100, 128, 1023, 1024, 4095, 16384, 39999};

static float *values(struct neb_rng *r, size_t n) {
    float *x = calloc(n + 1, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = neb_rng_below(r, 50) ? 0.01f * neb_rng_normal(r) : neb_rng_normal(r);
    return x;
}

static void test_same_frames(void **state) {
    (void)state;
    struct both b = {0};
    struct neb_buf mine = {0}, theirs = {0};
    struct neb_rng r = neb_rng_make(31, 1);
    open_both(&b);
    for (int i = 0; name_of(i); i++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            struct cmp_codec codec;
            size_t n = sizes[k];
            float *x = values(&r, n), *want = calloc(n + 1, 4), *got = calloc(n + 1, 4);
            assert_int_equal(cmp_codec_parse(name_of(i), &codec), NEB_OK);
            neb_buf_clear(&mine);
            neb_buf_clear(&theirs);
            b.D->ops->upload(b.D, b.x, x, n * 4);
            assert_int_equal(cmp_encode(b.w, &codec, x, n, &theirs), NEB_OK);
            assert_int_equal(cmp_device_encode(b.c, b.w, &codec, b.x, n, &mine), NEB_OK);
            if (mine.len != theirs.len || memcmp(mine.p, theirs.p, mine.len))
                fail_msg("%s of %zu elements: another frame than the processor's", name_of(i), n);
            assert_int_equal(cmp_decode(b.w, mine.p, mine.len, want, n), NEB_OK);
            assert_int_equal(cmp_device_decode(b.c, b.w, mine.p, mine.len, b.out, n), NEB_OK);
            b.D->ops->download(b.D, got, b.out, n * 4);
            assert_int_equal(b.D->ops->finish(b.D), NEB_OK);
            assert_memory_equal(got, want, n * 4);
            if (n) { // values that are not finite are refused
                x[neb_rng_below(&r, n)] = NAN;
                b.D->ops->upload(b.D, b.x, x, n * 4);
                assert_int_equal(cmp_device_encode(b.c, b.w, &codec, b.x, n, &mine),
                                 NEB_ERR_INVALID);
            }
            free(x);
            free(want);
            free(got);
        }
    neb_buf_free(&mine);
    neb_buf_free(&theirs);
    close_both(&b);
}

static void test_damaged_frames(void **state) {
    (void)state;
    enum { N = 20000, TRIES = 40 };
    struct both b = {0};
    struct neb_buf frame = {0};
    struct neb_rng r = neb_rng_make(32, 1);
    float *want = calloc(N, 4), *got = calloc(N, 4);
    int refused = 0, taken = 0;
    assert_true(want && got);
    open_both(&b);
    for (int i = 0; name_of(i); i++) {
        struct cmp_codec codec;
        float *x = values(&r, N);
        assert_int_equal(cmp_codec_parse(name_of(i), &codec), NEB_OK);
        codec.zstd_level = 0; // no compression, so that damage reaches the codes
        neb_buf_clear(&frame);
        assert_int_equal(cmp_encode(b.w, &codec, x, N, &frame), NEB_OK);
        for (int t = 0; t < TRIES; t++) {
            size_t at = neb_rng_below(&r, t % 4 ? frame.len : 60), len = frame.len;
            uint8_t was = frame.p[at];
            frame.p[at] ^= (uint8_t)(1 + neb_rng_below(&r, 255));
            if (t % 10 == 9)
                len = neb_rng_below(&r, frame.len);
            enum neb_status cpu = cmp_decode(b.w, frame.p, len, want, N),
                            dev = cmp_device_decode(b.c, b.w, frame.p, len, b.out, N);
            assert_int_equal(cpu, dev);
            if (cpu == NEB_OK) {
                b.D->ops->download(b.D, got, b.out, N * 4);
                assert_int_equal(b.D->ops->finish(b.D), NEB_OK);
                assert_memory_equal(got, want, N * 4);
            }
            taken += cpu == NEB_OK;
            refused += cpu != NEB_OK;
            frame.p[at] = was;
        }
        free(x);
    }
    assert_true(taken > 20 && refused > 20);
    neb_buf_free(&frame);
    free(want);
    free(got);
    close_both(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_frames),
        cmocka_unit_test(test_damaged_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
