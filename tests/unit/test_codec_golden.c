// SPDX-License-Identifier: Apache-2.0
// The frame format is stable: stored frames of every codec decode to the same bits, and today's
// encoders give the same codes. tests/golden/codec has a file for each format of the table. The
// frames are also the corpus of tests/fuzz/fuzz_frame.c. For a new codec, or after a deliberate
// change, run `NEBULA_WRITE_CORPUS=1 unit_codec_golden` and copy the lines that it prints.
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "compress/ops.h"
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

enum { N_MAX = 16385, FILES_MAX = 32 };

struct golden { // a line of tests/golden/codec/NAME, for each format of the table
    char file[32], codec[32];
    size_t n;
    int zstd_level;
    unsigned seed;             // of the elements
    unsigned long long lo, hi; // digest of the decoded elements
};

static struct cmp_work *W;

static void corpus_path(const char *name, char *out) {
    char file[64];
    snprintf(file, sizeof file, "tests/fuzz/corpus/frame/%s", name);
    testing_source(file, out);
}

// only exact arithmetic, so that the input is the same on every machine
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
    fill(x, g->n, g->seed);
    assert_int_equal(cmp_codec_parse(g->codec, &codec), NEB_OK);
    codec.zstd_level = g->zstd_level;
    assert_int_equal(cmp_encode(W, &codec, x, g->n, out), NEB_OK);
}

// Reads the lines of one format. Returns their number.
static size_t read_goldens(const struct cmp_codec_ops *ops, struct golden out[FILES_MAX]) {
    char name[64], path[NEB_PATH_MAX], line[160];
    size_t n = 0;
    snprintf(name, sizeof name, "tests/golden/codec/%s", ops->name);
    testing_source(name, path);
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("codec %s has no file %s", ops->name, name);
    while (fgets(line, sizeof line, f)) {
        struct golden *g = &out[n];
        if (line[0] == '#')
            continue;
        assert_true(n < FILES_MAX);
        assert_int_equal(sscanf(line, "%31s %31s %zu %d %u %llx %llx", g->file, g->codec, &g->n,
                                &g->zstd_level, &g->seed, &g->lo, &g->hi),
                         7);
        assert_true(g->n <= N_MAX);
        n++;
    }
    (void)fclose(f);
    return n;
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
    assert_int_equal(cmp_update_add(W, b, &shapes[0], &codec, &(struct cmp_source){.x = x}, counts),
                     NEB_OK);
    assert_int_equal(cmp_codec_parse("int4", &codec), NEB_OK);
    assert_int_equal(cmp_update_add(W, b, &shapes[1], &codec, &(struct cmp_source){.x = x}, NULL),
                     NEB_OK);
}

static void write_corpus(void) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    for (int k = 0; cmp_codecs[k]; k++) {
        struct golden goldens[FILES_MAX];
        size_t n = read_goldens(cmp_codecs[k], goldens);
        printf("%s\n", cmp_codecs[k]->name);
        for (const struct golden *g = goldens; g < goldens + n; g++) {
            neb_buf_clear(&b);
            encode(g, &b);
            struct kern_digest d = digest_of_frame(&b, g->n);
            corpus_path(g->file, path);
            assert_int_equal(neb_fs_write(path, b.p, b.len, 0644), NEB_OK);
            printf("%-12s %-14s %6zu %d %3u  %016llx %016llx\n", g->file, g->codec, g->n,
                   g->zstd_level, g->seed, (unsigned long long)d.lo, (unsigned long long)d.hi);
        }
    }
    neb_buf_clear(&b);
    build_update(&b);
    corpus_path("update", path);
    assert_int_equal(neb_fs_write(path, b.p, b.len, 0644), NEB_OK);
    neb_buf_free(&b);
}

static void check_golden(const struct golden *g) {
    char path[NEB_PATH_MAX];
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

static void test_stored_frames_decode_to_the_same_bits(void **state) {
    (void)state;
    for (int k = 0; cmp_codecs[k]; k++) {
        struct golden goldens[FILES_MAX];
        size_t n = read_goldens(cmp_codecs[k], goldens);
        bool plain = false;
        for (size_t i = 0; i < n; i++) {
            struct cmp_codec c;
            assert_int_equal(cmp_codec_parse(goldens[i].codec, &c), NEB_OK);
            assert_ptr_equal(cmp_ops(&c), cmp_codecs[k]);
            plain = plain || (goldens[i].zstd_level == 0 && goldens[i].n > 0);
            check_golden(&goldens[i]);
        }
        assert_true(plain); // the bytes of every format are pinned
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
