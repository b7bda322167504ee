// SPDX-License-Identifier: Apache-2.0
// The frame format is stable: stored frames of every codec decode to the same bits, and today's
// encoders give the same codes. The files are also the corpus of tests/fuzz/fuzz_frame.c. After a
// deliberate change run `NEBULA_WRITE_CORPUS=1 unit_codec_golden` and copy the digests that it
// prints.
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "compress/update.h"
#include "kernels/exact.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_MAX = 16385 };

static const struct golden {
    const char *file, *codec;
    size_t n;
    int zstd_level;
    uint64_t lo, hi; // digest of the decoded elements
} goldens[] = {
    {"fp32", "fp32", 33, 0, 0x17c6b40a24229365, 0xf40a74bc84fb5adf},
    {"bf16", "bf16", 129, 0, 0xec2f05f0bf0dd83b, 0xeafe752b55afe5f6},
    {"bf16-zstd", "bf16", 1000, 1, 0xf5aa8215ae2bacaa, 0x656be07f4b3939e0},
    {"int8", "int8", 257, 0, 0xc87642cad97d2253, 0xe7673af4bca87b7c},
    {"int8-zstd", "int8", 3000, 1, 0x5555a7f8c8ab3df1, 0xbe122c46ad30ae8a},
    {"int4", "int4", 255, 0, 0x5509cb6949b32b80, 0x542d87fab3bf2992},
    {"int4-zstd", "int4:32", 2000, 1, 0xacabcd113bf4249e, 0x2bae68fc6066ad05},
    {"topk", "topk:8/512", 16384, 0, 0xda0eb3080e783a04, 0xc9078d9b360fedfa},
    {"topk-zstd", "topk:64/4096", 16385, 1, 0xe6b87f443a8bcd74, 0x7a20ee0407d3b90f},
    {"empty", "int4", 0, 1, 0x0000000000000000, 0x0000000000000000},
    {"int3", "int3", 255, 0, 0x289a3e137630ba0b, 0xcd5327410f3842f6},
    {"int2", "int2:33", 2000, 0, 0xd1700c932859a43b, 0xde3b750604898198},
    {"topk4", "topk:8/512:4", 16384, 0, 0x75b6c363f085ccca, 0xe3e6c42c69148d1b},
    {"topk4-zstd", "topk:64/4096:4", 16385, 1, 0xacd4d90619db07f8, 0x361e5c281bde8deb},
    {"int8-nibbles", "int8", 16385, 1, 0xf59c06035df95758, 0xd12c9f544a85bb57},
    {"int3-zstd", "int3", 16385, 1, 0xc51f7eaabf103aa5, 0x99080b2e4fb2915d},
};
enum { N_GOLDENS = sizeof goldens / sizeof goldens[0] };

static struct cmp_work *W;

static void corpus_path(const char *name, char *out) {
    char file[64];
    snprintf(file, sizeof file, "tests/fuzz/corpus/frame/%s", name);
    testing_source(file, out);
}

// exact arithmetic only, so that the input is the same on every machine
static void fill(float *x, size_t n, uint64_t seed) {
    struct neb_rng r = neb_rng_make(seed, 5);
    for (size_t i = 0; i < n; i++) {
        float a = (float)((int)neb_rng_below(&r, 2001) - 1000), b = (float)neb_rng_below(&r, 1000);
        x[i] = a * b * b * 0x1p-40f;
    }
}

static void encode(const struct golden *g, struct neb_buf *out) {
    static float x[N_MAX];
    struct cmp_codec codec;
    fill(x, g->n, (uint64_t)(g - goldens));
    assert_int_equal(cmp_codec_parse(g->codec, &codec), NEB_OK);
    codec.zstd_level = g->zstd_level;
    assert_int_equal(cmp_encode(W, &codec, x, g->n, out), NEB_OK);
}

static struct kern_digest digest_of_frame(const struct neb_buf *frame, size_t n) {
    static float y[N_MAX];
    assert_int_equal(cmp_decode(W, frame->p, frame->len, y, n), NEB_OK);
    return kern_digest_part(y, y, 0, n);
}

static void build_update(struct neb_buf *b) {
    static const struct cmp_unit_shape shapes[2] = {{0, 50, 8, true}, {3, 1, 77, false}};
    struct cmp_codec codec;
    float x[400];
    uint64_t counts[50];
    fill(x, 400, 99);
    for (unsigned i = 0; i < 50; i++)
        counts[i] = i % 3 ? 0 : i * 100;
    assert_int_equal(cmp_codec_parse("int8", &codec), NEB_OK);
    cmp_update_begin(b, 2);
    assert_int_equal(cmp_update_add(W, b, &shapes[0], &codec, x, counts), NEB_OK);
    assert_int_equal(cmp_codec_parse("int4", &codec), NEB_OK);
    assert_int_equal(cmp_update_add(W, b, &shapes[1], &codec, x, NULL), NEB_OK);
}

static void write_corpus(void) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    for (size_t i = 0; i < N_GOLDENS; i++) {
        neb_buf_clear(&b);
        encode(&goldens[i], &b);
        struct kern_digest d = digest_of_frame(&b, goldens[i].n);
        corpus_path(goldens[i].file, path);
        assert_int_equal(neb_fs_write(path, b.p, b.len, 0644), NEB_OK);
        printf("    {\"%s\", \"%s\", %zu, %d, 0x%016llx, 0x%016llx},\n", goldens[i].file,
               goldens[i].codec, goldens[i].n, goldens[i].zstd_level, (unsigned long long)d.lo,
               (unsigned long long)d.hi);
    }
    neb_buf_clear(&b);
    build_update(&b);
    corpus_path("update", path);
    assert_int_equal(neb_fs_write(path, b.p, b.len, 0644), NEB_OK);
    neb_buf_free(&b);
}

static void test_stored_frames_decode_to_the_same_bits(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    for (size_t i = 0; i < N_GOLDENS; i++) {
        const struct golden *g = &goldens[i];
        struct neb_buf stored = {0}, now = {0};
        corpus_path(g->file, path);
        assert_int_equal(neb_fs_read(path, 1 << 20, &stored), NEB_OK);
        struct kern_digest d = digest_of_frame(&stored, g->n);
        encode(g, &now);
        struct kern_digest e = digest_of_frame(&now, g->n);
        if (d.lo != g->lo || d.hi != g->hi || e.lo != g->lo || e.hi != g->hi)
            fail_msg("%s: digest %016llx %016llx stored, %016llx %016llx encoded now", g->file,
                     (unsigned long long)d.lo, (unsigned long long)d.hi, (unsigned long long)e.lo,
                     (unsigned long long)e.hi);
        if (g->zstd_level == 0) { // without zstd, whose versions differ, the bytes are the same
            assert_int_equal(now.len, stored.len);
            assert_memory_equal(now.p, stored.p, now.len);
        }
        neb_buf_free(&stored);
        neb_buf_free(&now);
    }
}

static void test_stored_update_opens(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    struct cmp_update_stats stats;
    corpus_path("update", path);
    assert_int_equal(neb_fs_read(path, 1 << 20, &b), NEB_OK);
    assert_int_equal(cmp_update_check_max(W, b.p, b.len, UINT64_MAX, &stats), NEB_OK);
    assert_int_equal(stats.elements, 477);
    neb_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stored_frames_decode_to_the_same_bits),
        cmocka_unit_test(test_stored_update_opens),
    };
    if (cmp_work_create(&W) != NEB_OK)
        return 1;
    if (getenv("NEBULA_WRITE_CORPUS"))
        write_corpus();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    cmp_work_destroy(&W);
    return rc;
}
