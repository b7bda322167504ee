// SPDX-License-Identifier: Apache-2.0
// A step cut for replicas: every sequence, label and pick comes to exactly one replica, at its own
// place, and the results return to where they were asked.
#include "intra/train/step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MICROS = 3, N = 64, K = 2 };

struct micro {
    int32_t tokens[N], targets[N], prefix[N], ids[N * K], at[N], drawn[N], drawn_ids[N * K];
    float logp[N * K], tail[N], drawn_logp[N * K], drawn_tail[N];
    double u[N];
    struct kern_soft soft;
    struct intra_batch b;
    struct intra_picks picks;
};

// A token says where it is: micro-batch, sequence, position. So do labels, by their token.
static void fill(struct micro *m, int number, int B, int T, enum intra_pick_kind kind) {
    memset(m, 0, sizeof *m);
    m->soft = (struct kern_soft){
        .k = K, .lambda = 0.5f, .temperature = 2, .ids = m->ids, .logp = m->logp, .tail = m->tail};
    m->b = (struct intra_batch){.tokens = m->tokens,
                                .targets = m->targets,
                                .B = B,
                                .T = T,
                                .prefix = m->prefix,
                                .teacher = &m->soft};
    m->picks = (struct intra_picks){.kind = kind,
                                    .at = m->at,
                                    .n_ids = 100,
                                    .u = kind == INTRA_PICK_DRAWS ? m->u : NULL,
                                    .k = K,
                                    .temperature = 3,
                                    .ids = m->drawn_ids,
                                    .logp = m->drawn_logp,
                                    .tail = m->drawn_tail};
    for (int i = 0; i < B * T; i++) {
        m->tokens[i] = 1000 * number + i;
        m->targets[i] = i % 3 == 1 ? KERN_IGNORE : m->tokens[i] + 1;
        m->ids[i * K] = m->tokens[i];
        m->ids[i * K + 1] = -m->tokens[i];
        m->logp[i * K] = m->tail[i] = (float)m->tokens[i];
        if (i % 2)
            continue;
        m->u[m->picks.n] = (double)m->tokens[i];
        m->at[m->picks.n++] = i;
    }
    for (int i = 0; i < B; i++)
        m->prefix[i] = number + i;
}

static void check(const struct intra_step_piece *x, int *seen) {
    int32_t pick = 0;
    for (int i = 0; i < x->b.B * x->b.T; i++) {
        int32_t id = x->b.tokens[i];
        bool wanted = id % 1000 % 3 != 1;
        seen[id]++;
        assert_int_equal(x->b.targets[i], wanted ? id + 1 : KERN_IGNORE);
        if (wanted) {
            assert_int_equal(x->b.teacher->ids[i * K], id);
            assert_int_equal(x->b.teacher->ids[i * K + 1], -id);
            assert_true(x->b.teacher->logp[i * K] == (float)id);
            assert_true(x->b.teacher->tail[i] == (float)id);
        }
        if (pick < x->picks.n && x->picks.at[pick] == i) {
            assert_int_equal(id % 1000 % 2, 0);
            if (x->picks.u)
                assert_true(x->picks.u[pick] == (double)id);
            int wide = x->picks.kind == INTRA_PICK_LABELS ? K : 1;
            for (int k = 0; k < wide; k++) // the results
                x->picks.ids[pick * wide + k] = id + k;
            x->picks.tail[pick] = (float)id;
            pick++;
        }
    }
    assert_int_equal(pick, x->picks.n);
}

// Runs one step on `ways` replicas, each with its own copy. Returns the pieces of all.
static int run(int32_t ways, int32_t how, enum intra_pick_kind kind, const int *B, const int *T) {
    enum { micros = MICROS };
    struct intra_step rank0 = {0};
    struct micro *m = calloc((size_t)micros, sizeof *m);
    int seen[1000 * MICROS] = {0}, pieces = 0;
    assert_non_null(m);
    for (int again = 0; again < 2; again++) { // memory is used again
        memset(seen, 0, sizeof seen);
        pieces = 0;
        intra_step_begin(&rank0);
        for (int32_t i = 0; i < micros; i++) {
            fill(&m[i], i, B[i], T[i], kind);
            assert_int_equal(intra_step_add(&rank0, &m[i].b, &m[i].picks), NEB_OK);
        }
        for (int32_t r = ways - 1; r >= 0; r--) { // rank 0 is of replica 0
            struct intra_step copy = {0}, *s = r ? &copy : &rank0;
            if (r)
                neb_buf_add(&copy.bytes, rank0.bytes.p, rank0.bytes.len);
            assert_int_equal(intra_step_cut(s, ways, r, how, true), NEB_OK);
            for (int32_t i = 0; i < s->n_pieces; i++)
                if (s->pieces[i].b.tokens[0] || s->pieces[i].b.targets[0] != KERN_IGNORE)
                    check(&s->pieces[i], seen);
            pieces += s->n_pieces;
            assert_int_equal(intra_step_pack(s), NEB_OK);
            if (r)
                assert_int_equal(intra_step_cut(&rank0, ways, 0, how, true), NEB_OK);
            assert_int_equal(intra_step_result_bytes(&rank0, r), s->results.len);
            intra_step_take(&rank0, r, s->results.p);
            intra_step_free(&copy);
        }
        for (int32_t i = 0; i < micros; i++)
            for (int32_t p = 0; p < m[i].picks.n; p++) {
                int32_t id = m[i].tokens[m[i].at[p]];
                bool labels = kind == INTRA_PICK_LABELS;
                assert_int_equal(m[i].drawn_ids[labels ? p * K + 1 : p], labels ? id + 1 : id);
                if (labels)
                    assert_true(m[i].drawn_tail[p] == (float)id);
            }
    }
    for (int32_t i = 0; i < micros; i++)
        for (int k = 0; k < B[i] * T[i]; k++)
            assert_int_equal(seen[1000 * i + k], 1);
    intra_step_free(&rank0);
    free(m);
    return pieces;
}

static void test_by_micro_batches(void **state) {
    (void)state;
    const int B[] = {3, 1, 5}, T[] = {4, 9, 2};
    for (int kind = INTRA_PICK_DRAWS; kind <= INTRA_PICK_LABELS; kind++) {
        enum intra_pick_kind k = (enum intra_pick_kind)kind;
        assert_int_equal(run(1, INTRA_STEP_WHOLE, k, B, T), 3);
        assert_int_equal(run(3, INTRA_STEP_WHOLE, k, B, T), 3);
        assert_int_equal(run(3, INTRA_STEP_PARTS, k, B, T), 9);
        assert_int_equal(run(2, INTRA_STEP_WHOLE, k, B, T), 6); // no equal number of whole ones
        assert_int_equal(run(4, INTRA_STEP_WHOLE, k, B, T), 12);
    }
}

// Pieces of one size go over the ends of micro-batches.
static void test_equal_pieces(void **state) {
    (void)state;
    enum { SEQS = 4, T = 2 };
    struct intra_step s = {0};
    int32_t tokens[3][SEQS * T], at = 0;
    for (int32_t i = 0; i < 3; i++) {
        for (int k = 0; k < SEQS * T; k++)
            tokens[i][k] = at++;
        struct intra_batch b = {.tokens = tokens[i], .targets = tokens[i], .B = SEQS, .T = T};
        assert_int_equal(intra_step_add(&s, &b, NULL), NEB_OK);
    }
    assert_int_equal(intra_step_cut(&s, 2, 1, 3, true), NEB_OK);
    assert_int_equal(s.n_pieces, 2);
    for (int p = 0; p < 2; p++)
        for (int k = 0; k < 3 * T; k++)
            assert_int_equal(s.pieces[p].b.tokens[k], (2 * p + 1) * 3 * T + k);
    assert_null(s.pieces[0].b.prefix);
    intra_step_free(&s);
}

// A replica without a sequence still gets a pass, but for nothing else than learning.
static void test_nothing_to_do(void **state) {
    (void)state;
    struct intra_step s = {0};
    struct micro m;
    fill(&m, 1, 1, 5, INTRA_PICK_DRAWS);
    assert_int_equal(intra_step_add(&s, &m.b, &m.picks), NEB_OK);
    assert_int_equal(intra_step_cut(&s, 2, 0, INTRA_STEP_WHOLE, false), NEB_OK);
    assert_int_equal(s.n_pieces, 0);
    assert_int_equal(intra_step_cut(&s, 2, 0, INTRA_STEP_WHOLE, true), NEB_OK);
    assert_int_equal(s.n_pieces, 1);
    assert_int_equal(s.pieces[0].picks.n, 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(s.pieces[0].b.targets[i], KERN_IGNORE);
    assert_int_equal(intra_step_result_bytes(&s, 0), 0);
    intra_step_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_micro_batches),
                                       cmocka_unit_test(test_equal_pieces),
                                       cmocka_unit_test(test_nothing_to_do)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
