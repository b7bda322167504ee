// SPDX-License-Identifier: Apache-2.0
// Token frames decode to the tokens that were encoded, and are small enough. Damaged frames are
// refused.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "compress/replaced.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// Replaces a share `p` of the masked positions, with ids as frequent as words are (Zipf).
static uint32_t draw(struct neb_rng *r, uint32_t masked, double p, int32_t vocab, int32_t *index,
                     int32_t *ids) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < masked; i++)
        if (neb_rng_unit(r) < p) {
            index[n] = (int32_t)i;
            ids[n++] = (int32_t)(pow((double)vocab, neb_rng_unit(r)) - 1);
        }
    return n;
}

static void round_trip(struct cmp_tokens *t, uint32_t masked, double p, int32_t vocab,
                       uint64_t seed) {
    struct neb_rng r = neb_rng_make(seed, 3);
    struct neb_buf b = {0};
    uint32_t back;
    int32_t *x = calloc(4 * (size_t)masked + 4, sizeof *x), *index = x, *ids = x + masked,
            *index2 = ids + masked, *ids2 = index2 + masked;
    uint32_t n = draw(&r, masked, p, vocab, index, ids);
    assert_int_equal(cmp_replaced_encode(t, masked, index, ids, n, vocab, &b), NEB_OK);
    struct neb_rd in = neb_rd_make(b.p, b.len), skip = in;
    assert_int_equal(cmp_replaced_decode(t, &in, masked, vocab, index2, ids2, &back), NEB_OK);
    assert_true(neb_rd_done(&in));
    assert_int_equal(cmp_replaced_skip(&skip, vocab), NEB_OK);
    assert_true(neb_rd_done(&skip));
    assert_int_equal(back, n);
    assert_memory_equal(index, index2, n * sizeof *index);
    assert_memory_equal(ids, ids2, n * sizeof *ids);
    free(x);
    neb_buf_free(&b);
}

static void test_round_trips(void **state) {
    (void)state;
    struct cmp_tokens *t = NULL;
    static const int32_t vocabs[] = {2, 256, 257, 4096, 65536, 65537, 1 << 24};
    static const double shares[] = {0, 0.001, 0.01, 0.7, 1};
    assert_int_equal(cmp_tokens_create(&t), NEB_OK);
    for (size_t v = 0; v < sizeof vocabs / sizeof vocabs[0]; v++)
        for (size_t p = 0; p < sizeof shares / sizeof shares[0]; p++)
            for (uint32_t masked = 0; masked < 5000; masked = 3 * masked + 1)
                round_trip(t, masked, shares[p], vocabs[v], v * 100 + p);
    cmp_tokens_destroy(&t);
}

// A step of 4,096 tokens, 15 % of them masked, nine in ten of these replaced.
static void test_cost(void **state) {
    (void)state;
    enum { TOKENS = 4096, MASKED = 614, VOCAB = 8192 };
    struct cmp_tokens *t = NULL;
    struct neb_rng r = neb_rng_make(1, 1);
    struct neb_buf b = {0};
    int32_t index[MASKED], ids[MASKED], *text = calloc(TOKENS, sizeof *text);
    assert_int_equal(cmp_tokens_create(&t), NEB_OK);
    uint32_t n = draw(&r, MASKED, 0.9, VOCAB, index, ids);
    assert_int_equal(cmp_replaced_encode(t, MASKED, index, ids, n, VOCAB, &b), NEB_OK);
    double bytes = (double)b.len / TOKENS;
    print_message("replacements: %.3f bytes a token\n", bytes);
    assert_true(bytes < 0.30); // a job may use 0.35 bits together with the bytes around a frame
    neb_buf_clear(&b);
    for (int i = 0; i < TOKENS; i++)
        text[i] = (int32_t)(pow(VOCAB, neb_rng_unit(&r)) - 1);
    assert_int_equal(cmp_text_encode(t, text, TOKENS, VOCAB, &b), NEB_OK);
    print_message("text: %.3f bytes a token\n", (double)b.len / TOKENS);
    assert_true((double)b.len / TOKENS < 1.7);
    free(text);
    neb_buf_free(&b);
    cmp_tokens_destroy(&t);
}

static void test_refused(void **state) {
    (void)state;
    struct cmp_tokens *t = NULL;
    int32_t index[4] = {0, 1, 4, 9}, ids[4] = {5, 6, 7, 8}, x[100], y[100];
    struct neb_buf b = {0};
    struct neb_rd r;
    uint32_t n;
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(cmp_tokens_create(&t), NEB_OK);
    assert_int_equal(cmp_replaced_encode(t, 10, index, ids, 4, 300, &b), NEB_OK);
    for (size_t cut = 0; cut < b.len; cut++) {
        r = neb_rd_make(b.p, cut);
        assert_int_equal(cmp_replaced_decode(t, &r, 10, 300, x, y, &n), NEB_ERR_FORMAT);
    }
    r = neb_rd_make(b.p, b.len);
    assert_int_equal(cmp_replaced_decode(t, &r, 11, 300, x, y, &n), NEB_ERR_FORMAT); // another mask
    r = neb_rd_make(b.p, b.len);
    // A smaller vocabulary that still holds all ids.
    assert_int_equal(cmp_replaced_decode(t, &r, 10, 258, x, y, &n), NEB_OK);
    neb_buf_clear(&b);
    ids[2] = 299;
    assert_int_equal(cmp_replaced_encode(t, 10, index, ids, 4, 300, &b), NEB_OK);
    r = neb_rd_make(b.p, b.len);
    // An id beyond the vocabulary.
    assert_int_equal(cmp_replaced_decode(t, &r, 10, 299, x, y, &n), NEB_ERR_FORMAT);
    neb_buf_clear(&b);
    assert_int_equal(cmp_text_encode(t, ids, 4, 300, &b), NEB_OK);
    r = neb_rd_make(b.p, b.len);
    assert_int_equal(cmp_text_decode(t, &r, 300, x, 5), NEB_ERR_FORMAT);
    neb_buf_free(&b);
    cmp_tokens_destroy(&t);
    neb_log_set_sink(NULL, NULL);
}

// Writes seed frames for tests/fuzz/fuzz_replaced.c if WRITE_CORPUS names a folder.
static void write_corpus(void) {
    const char *dir = getenv("WRITE_CORPUS");
    static const char *const names[] = {"none", "few", "many", "all", "text"};
    static const double shares[] = {0, 0.02, 0.7, 1, 0};
    struct cmp_tokens *t = NULL;
    struct neb_rng r = neb_rng_make(4, 4);
    int32_t index[300], ids[300];
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    if (!dir)
        return;
    assert_int_equal(cmp_tokens_create(&t), NEB_OK);
    for (int i = 0; i < 5; i++) {
        neb_buf_clear(&b);
        uint32_t n = draw(&r, i == 4 ? 300 : 200, i == 4 ? 1 : shares[i], 5000, index, ids);
        assert_int_equal(i == 4 ? cmp_text_encode(t, ids, 300, 5000, &b)
                                : cmp_replaced_encode(t, 200, index, ids, n, 5000, &b),
                         NEB_OK);
        assert_int_equal(neb_path(path, sizeof path, dir, names[i]), NEB_OK);
        assert_int_equal(neb_fs_write(path, b.p, b.len, 0644), NEB_OK);
    }
    neb_buf_free(&b);
    cmp_tokens_destroy(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trips),
                                       cmocka_unit_test(test_cost), cmocka_unit_test(test_refused)};
    write_corpus();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
