// SPDX-License-Identifier: Apache-2.0
// agent/train/label_request: a student's request survives the round trip. It refuses a step that is
// not due, a batch outside the job, ids outside the vocabulary, and cut bytes.
#include "agent/base/fs.h"
#include "agent/job/label_request.h"
#include "kernels/kern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 192, SEQ = 48, VOCAB = 400, EOS = 3 };
static const struct agent_request_limits limits = {VOCAB, EOS, SEQ, TOKENS};

struct world {
    struct cmp_tokens *t;
    struct intra_pair_batch b, back;
    int32_t *ids;
    struct neb_buf out;
};

// Three sequences: lengths of prefix and targets.
static const int32_t lengths[3][2] = {{5, 9}, {1, 1}, {20, 12}};

static void fill(struct intra_pair_batch *b) {
    b->B = 3;
    b->T = 31;
    b->n_targets = 0;
    for (int32_t i = 0; i < b->B; i++) {
        int32_t prefix = lengths[i][0], all = prefix + lengths[i][1];
        b->prefix[i] = prefix;
        for (int32_t t = 0; t < b->T; t++) {
            bool wanted = t >= prefix - 1 && t < all - 1;
            b->tokens[i * b->T + t] = t < all - 1 ? (7 * i + t) % VOCAB : EOS;
            b->targets[i * b->T + t] =
                wanted ? (t == all - 2 ? EOS : (7 * i + t + 1) % VOCAB) : KERN_IGNORE;
            b->n_targets += wanted;
        }
    }
}

static int setup(void **state) {
    const struct intra_pairs_config c = {.seq_len = SEQ, .tokens = TOKENS};
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    assert_int_equal(cmp_tokens_create(&w->t), NEB_OK);
    assert_int_equal(intra_pair_batch_create(&c, &w->b), NEB_OK);
    assert_int_equal(intra_pair_batch_create(&c, &w->back), NEB_OK);
    w->ids = calloc(agent_request_ids(&limits), sizeof *w->ids);
    assert_non_null(w->ids);
    fill(&w->b);
    agent_request_begin(7, &w->out);
    assert_int_equal(agent_request_add(w->t, &limits, &w->b, w->ids, &w->out), NEB_OK);
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    cmp_tokens_destroy(&w->t);
    intra_pair_batch_free(&w->b);
    intra_pair_batch_free(&w->back);
    neb_buf_free(&w->out);
    free(w->ids);
    free(w);
    return 0;
}

static enum neb_status read_all(struct world *w, const struct agent_request_limits *l, int64_t due,
                                size_t n) {
    struct neb_rd r = neb_rd_make(w->out.p, n);
    enum neb_status st = agent_request_open(&r, due, 10);
    return st == NEB_OK ? agent_request_next(w->t, l, &r, w->ids, &w->back) : st;
}

static void test_round_trip(void **state) {
    struct world *w = *state;
    assert_true(w->out.len <= agent_request_most(&limits, 1));
    assert_int_equal(read_all(w, &limits, 7, w->out.len), NEB_OK);
    assert_int_equal(w->back.B, w->b.B);
    assert_int_equal(w->back.T, w->b.T);
    assert_int_equal(w->back.n_targets, w->b.n_targets);
    size_t n = sizeof *w->b.tokens * (size_t)(w->b.B * w->b.T);
    assert_memory_equal(w->back.tokens, w->b.tokens, n);
    assert_memory_equal(w->back.targets, w->b.targets, n);
    assert_memory_equal(w->back.prefix, w->b.prefix, sizeof *w->b.prefix * 3);
    if (getenv("WRITE_CORPUS"))
        assert_int_equal(neb_fs_write(getenv("WRITE_CORPUS"), w->out.p, w->out.len, 0644), NEB_OK);
}

static void test_outside_the_job(void **state) {
    struct world *w = *state;
    struct agent_request_limits l = limits;
    assert_int_equal(read_all(w, &limits, 6, w->out.len), NEB_ERR_FORMAT); // not its turn
    struct neb_rd r = neb_rd_make(w->out.p, w->out.len);
    assert_int_equal(agent_request_open(&r, 7, 7), NEB_ERR_FORMAT); // beyond the job's steps
    l.seq_len = 30; // a sequence longer than the job's
    assert_int_equal(read_all(w, &l, 7, w->out.len), NEB_ERR_FORMAT);
    l = limits;
    l.tokens = 92; // a batch larger than the job's
    assert_int_equal(read_all(w, &l, 7, w->out.len), NEB_ERR_FORMAT);
    l = limits;
    l.vocab = 40; // ids of a larger vocabulary, which take the same number of byte planes
    neb_buf_clear(&w->out);
    agent_request_begin(7, &w->out);
    struct agent_request_limits wide = limits;
    wide.vocab = 200;
    assert_int_equal(agent_request_add(w->t, &wide, &w->b, w->ids, &w->out), NEB_OK);
    assert_int_equal(read_all(w, &wide, 7, w->out.len), NEB_OK);
    assert_int_equal(read_all(w, &l, 7, w->out.len), NEB_ERR_FORMAT);
}

static void test_cut(void **state) {
    struct world *w = *state;
    for (size_t n = 0; n < w->out.len; n++)
        assert_int_equal(read_all(w, &limits, 7, n), NEB_ERR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_outside_the_job, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cut, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
