// SPDX-License-Identifier: Apache-2.0
// Which pairs of signed statements prove equivocation, and which do not. Also their bytes, and
// promises in records.
#include "inter/record/evidence.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct inter_statement said(enum inter_statement_kind kind, uint32_t round, uint32_t term,
                                   uint64_t epoch, uint8_t value) {
    struct inter_statement s = {
        .kind = kind,
        .job = {5},
        .fragment = 2,
        .term = term,
        .promise = {.member = 3, .term = term, .epoch = epoch, .round = round}};
    if (kind == INTER_STATEMENT_ACCEPT)
        memset(s.promise.vote_hash, value, INTER_SHA_BYTES);
    memset(s.promise.sig, 0x77, sizeof s.promise.sig);
    return s;
}

static struct inter_statement promise(uint32_t round, uint32_t term, uint64_t epoch, bool voted,
                                      uint32_t vote_term, uint8_t value) {
    struct inter_statement s = said(INTER_STATEMENT_PROMISE, round, term, epoch, 0);
    s.promise.voted = voted;
    s.promise.vote_term = vote_term;
    if (voted)
        memset(s.promise.vote_hash, value, INTER_SHA_BYTES);
    return s;
}

static bool both_ways(struct inter_statement a, struct inter_statement b) {
    assert_int_equal(inter_statements_conflict(&a, &b), inter_statements_conflict(&b, &a));
    return inter_statements_conflict(&a, &b);
}

static void test_votes(void **state) {
    (void)state;
    struct inter_statement a = said(INTER_STATEMENT_ACCEPT, 7, 4, 1, 'x'), b = a;
    assert_false(both_ways(a, b));
    b.promise.vote_hash[31] ^= 1;
    assert_true(both_ways(a, b));
    b.term = 5; // under a later leader
    assert_false(both_ways(a, b));
    b.term = 4, b.promise.round = 8;
    assert_false(both_ways(a, b));
    b.promise.round = 7, b.promise.epoch = 2; // there is a new disk between the two
    assert_false(both_ways(a, b));
    b.promise.epoch = 1, b.promise.member = 2;
    assert_false(both_ways(a, b));
    b.promise.member = 3, b.fragment = 1;
    assert_false(both_ways(a, b));
    b.fragment = 2, b.job[0] = 6;
    assert_false(both_ways(a, b));
}

static void test_promises(void **state) {
    (void)state;
    struct inter_statement vote = said(INTER_STATEMENT_ACCEPT, 7, 4, 1, 'x');
    const struct {
        uint32_t round, term;
        uint64_t epoch;
        bool voted;
        uint32_t vote_term;
        uint8_t value;
        bool conflicts;
    } rows[] = {
        {7, 5, 1, false, 0, 0, true},   // reports no vote
        {6, 5, 1, false, 0, 0, true},   // does not report the round either
        {7, 5, 1, true, 3, 'y', true},  // reports an older vote only
        {7, 5, 1, true, 4, 'y', true},  // reports another value
        {7, 5, 1, true, 4, 'x', false}, // reports this vote
        {7, 9, 1, true, 8, 'y', false}, // reports a later vote
        {8, 5, 1, false, 0, 0, false},  // the round is over
        {7, 4, 1, false, 0, 0, false},  // made before the vote
        {7, 3, 1, false, 0, 0, false},  {7, 5, 2, false, 0, 0, false}, // a new disk
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(both_ways(promise(rows[i].round, rows[i].term, rows[i].epoch,
                                           rows[i].voted, rows[i].vote_term, rows[i].value),
                                   vote),
                         rows[i].conflicts);
    assert_false(
        // a repeated promise
        both_ways(promise(7, 5, 1, false, 0, 0), promise(7, 5, 1, true, 4, 'x')));
}

static struct inter_manifest update(uint8_t digest) {
    struct inter_manifest m = {
        .key = {.job = {5}, .round = 7, .fragment = 2, .member = 3, .attempt = 4},
        .bytes = 1000,
        .chunk_bytes = INTER_CHUNK_MIN,
        .tokens = 9,
        .step = 20};
    memset(m.sha256, digest, sizeof m.sha256);
    return m;
}

static void test_updates(void **state) {
    (void)state;
    struct inter_manifest x = update(1), y = update(2);
    assert_true(both_ways(inter_statement_of_update(&x), inter_statement_of_update(&y)));
    y.key.attempt++;
    assert_false(both_ways(inter_statement_of_update(&x), inter_statement_of_update(&y)));
    y = update(1);
    assert_false(both_ways(inter_statement_of_update(&x), inter_statement_of_update(&y)));
    y.tokens++; // the same bytes with another weight
    assert_true(both_ways(inter_statement_of_update(&x), inter_statement_of_update(&y)));
    assert_false(
        both_ways(inter_statement_of_update(&x), said(INTER_STATEMENT_ACCEPT, 7, 4, 1, 'x')));
}

static struct inter_record a_record(uint32_t term, uint8_t previous) {
    struct inter_record r = {.job = {5},
                             .round = 7,
                             .fragment = 2,
                             .term = term,
                             .leader = 1,
                             .eta = 0.9f,
                             .n = 1,
                             .entries = {{.member = 0, .bytes = 1, .clip = 1}},
                             .n_accepts = 2,
                             .accepts = {{.member = 1, .epoch = 6}, {.member = 2, .epoch = 7}},
                             .n_promises = 2,
                             .promises = {{.member = 0, .term = term, .epoch = 5, .round = 7},
                                          {.member = 2, .term = term, .epoch = 7, .round = 7}}};
    memset(r.previous, previous, sizeof r.previous);
    return r;
}

static void test_found_in_records(void **state) {
    (void)state;
    struct inter_evidence found[NEB_MEMBERS_MAX];
    struct inter_record x = a_record(4, 1), y = a_record(4, 2);
    assert_int_equal(inter_evidence_find(&x, &x, found), 0);
    assert_int_equal(inter_evidence_find(&x, &y, found), 2); // members 1 and 2 voted for both
    assert_int_equal(inter_evidence_member(&found[0]), 1);
    assert_int_equal(inter_evidence_member(&found[1]), 2);
    y = a_record(9, 2); // for term 9, member 2 promised that it had not voted
    assert_int_equal(inter_evidence_find(&x, &y, found), 1);
    assert_int_equal(inter_evidence_member(&found[0]), 2);
}

static void test_bytes(void **state) {
    (void)state;
    struct inter_manifest x = update(1), y = update(2);
    memset(x.sig, 0x11, sizeof x.sig);
    const struct inter_evidence all[] = {
        {said(INTER_STATEMENT_ACCEPT, 7, 4, 1, 'x'), said(INTER_STATEMENT_ACCEPT, 7, 4, 1, 'y')},
        {said(INTER_STATEMENT_ACCEPT, 7, 4, 1, 'x'), promise(7, 5, 1, true, 3, 'y')},
        {inter_statement_of_update(&x), inter_statement_of_update(&y)},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct neb_buf b = {0}, again = {0};
        struct inter_evidence got;
        char text[256];
        inter_evidence_put(&b, &all[i]);
        struct neb_rd r = neb_rd_make(b.p, b.len);
        assert_true(inter_evidence_get(&r, &got) && neb_rd_done(&r));
        inter_evidence_put(&again, &got);
        assert_int_equal(again.len, b.len);
        assert_memory_equal(again.p, b.p, b.len);
        inter_evidence_text(&got, text, sizeof text);
        assert_non_null(strstr(text, "round 7 of fragment 2"));
        // a copy of the exact size, so that a sanitizer sees an overread
        for (size_t n = 0; n < b.len; n++) {
            uint8_t *cut = malloc(n + 1);
            assert_non_null(cut);
            memcpy(cut, b.p, n);
            r = neb_rd_make(cut, n);
            assert_false(inter_evidence_get(&r, &got));
            free(cut);
        }
        neb_buf_free(&b);
        neb_buf_free(&again);
    }
    for (uint32_t beyond = 0; beyond < 2; beyond++) { // a term above the largest is refused
        const struct inter_evidence e = {
            said(INTER_STATEMENT_ACCEPT, 7, INTER_TERM_MAX + beyond, 1, 'x'),
            said(INTER_STATEMENT_ACCEPT, 7, INTER_TERM_MAX + beyond, 1, 'y')};
        struct neb_buf b = {0};
        struct inter_evidence got;
        inter_evidence_put(&b, &e);
        struct neb_rd r = neb_rd_make(b.p, b.len);
        assert_int_equal(inter_evidence_get(&r, &got), !beyond);
        neb_buf_free(&b);
    }
}

static void test_promises_in_a_record(void **state) {
    (void)state;
    struct inter_record r = a_record(9, 1), got;
    struct neb_buf b = {0}, again = {0};
    r.promises[1].voted = true;
    r.promises[1].vote_term = 3;
    memset(r.promises[1].vote_hash, 0xee, INTER_SHA_BYTES);
    memset(r.promises[1].sig, 0x22, INTER_SIG_BYTES);
    inter_record_put(&b, &r);
    struct neb_rd in = neb_rd_make(b.p, b.len);
    assert_true(inter_record_get(&in, &got) && neb_rd_done(&in));
    inter_record_put(&again, &got);
    assert_int_equal(again.len, b.len);
    assert_memory_equal(again.p, b.p, b.len);
    for (size_t n = 0; n < b.len; n++) {
        in = neb_rd_make(b.p, n);
        assert_false(inter_record_get(&in, &got) && neb_rd_done(&in));
    }
    // without promises a record is shorter by exactly their bytes
    size_t with = b.len;
    r.n_promises = 0;
    neb_buf_clear(&b);
    inter_record_put(&b, &r);
    assert_int_equal(b.len + 1 + 2 * (1 + 4 + 8 + 4 + 1 + 4 + 32 + 64), with);
    neb_buf_free(&b);
    neb_buf_free(&again);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_votes),   cmocka_unit_test(test_promises),
        cmocka_unit_test(test_updates), cmocka_unit_test(test_found_in_records),
        cmocka_unit_test(test_bytes),   cmocka_unit_test(test_promises_in_a_record)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
