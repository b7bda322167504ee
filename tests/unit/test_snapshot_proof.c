// SPDX-License-Identifier: Apache-2.0
// Whether a fetched state is the state that the other members have (agent/daemon/judge.h). The
// digests that members report decide (inter/round/node.h).
#include "agent/daemon/judge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { A = 1, B = 2, C = 4, D = 8, E = 16 }; // clusters; B is this one

static enum agent_proof_verdict judge(uint16_t same, uint16_t other, uint16_t others,
                                      uint16_t giver) {
    struct inter_digests said = {mset_from_bits(same), mset_from_bits(other)};
    return agent_proof_judge(&said, mset_from_bits(others), mset_from_bits(giver));
}

static enum agent_proof_verdict look(struct agent_proof *p, const struct inter_digests *said,
                                     uint16_t others, neb_ns now) {
    return agent_proof_look(p, said, mset_from_bits(others), mset_from_bits(B), now);
}

static void test_two_clusters(void **state) {
    (void)state;
    assert_int_equal(judge(0, 0, 0, A), AGENT_PROOF_CONFIRMED);
    assert_int_equal(judge(0, A, 0, A), AGENT_PROOF_CONFIRMED);
    assert_int_equal(judge(0, 0, A, 0), AGENT_PROOF_CONFIRMED); // a part was here before
}

static void test_three_clusters(void **state) {
    (void)state;
    assert_int_equal(judge(0, 0, C, A), AGENT_PROOF_WAITS);
    assert_int_equal(judge(A, 0, C, A), AGENT_PROOF_WAITS); // the giver confirms only its own state
    assert_int_equal(judge(A | C, 0, C, A), AGENT_PROOF_CONFIRMED);
    assert_int_equal(judge(C, 0, C, A), AGENT_PROOF_CONFIRMED);
    // The giver trains with the state of the other members, but has given another one.
    assert_int_equal(judge(0, A | C, C, A), AGENT_PROOF_REFUTED);
    assert_int_equal(judge(0, A, C, A), AGENT_PROOF_REFUTED);
    // One member against one. Neither is more credible. The other member may have disagreed only to
    // be asked next.
    assert_int_equal(judge(0, C, C, A), AGENT_PROOF_DISPUTED);
    assert_int_equal(judge(A, C, C, A), AGENT_PROOF_DISPUTED);
    // The giver's earlier report, from before it recomputed its parameters, does not count.
    assert_int_equal(judge(C, A, C, A), AGENT_PROOF_CONFIRMED);
}

static void test_five_clusters(void **state) {
    (void)state;
    const uint16_t others = C | D | E;
    assert_int_equal(judge(A | C, 0, others, A), AGENT_PROOF_CONFIRMED);
    assert_int_equal(judge(A, C, others, A), AGENT_PROOF_WAITS);
    assert_int_equal(judge(A, C | D, others, A), AGENT_PROOF_REFUTED);
    assert_int_equal(judge(A | E, C | D, others, A), AGENT_PROOF_DISPUTED);
    assert_int_equal(judge(A | E | D, C, others, A), AGENT_PROOF_CONFIRMED);
    assert_int_equal(judge(A | E, C, others, A), AGENT_PROOF_CONFIRMED);
    assert_int_equal(judge(E, A | C, others, A), AGENT_PROOF_REFUTED);
}

// Several members gave parts. So one of the members that agree may have invented a part.
static void test_giver_not_known(void **state) {
    (void)state;
    const uint16_t all = A | C | D;
    assert_int_equal(judge(0, 0, all, 0), AGENT_PROOF_WAITS);
    assert_int_equal(judge(A, 0, all, 0), AGENT_PROOF_WAITS);
    assert_int_equal(judge(A | C, 0, all, 0), AGENT_PROOF_CONFIRMED);
    assert_int_equal(judge(0, A, all, 0), AGENT_PROOF_WAITS);
    assert_int_equal(judge(0, all, all, 0), AGENT_PROOF_REFUTED);
    assert_int_equal(judge(A, C, A | C, 0), AGENT_PROOF_DISPUTED);
}

static void test_fragments(void **state) {
    (void)state;
    struct inter_snapshot *s = calloc(1, sizeof *s);
    struct inter_digests said[INTER_FRAGMENTS_MAX] = {{{0}, {0}}};
    struct agent_proof p;
    assert_non_null(s);
    s->fragments = 4;
    s->parts[3].round = 9; // after its last round
    s->parts[3].last.n = 2;
    s->parts[3].last.entries[0].flags = s->parts[3].last.entries[1].flags = INTER_FINAL;
    s->parts[0].round = 4;
    s->parts[2] = (struct inter_snapshot_part){.round = 5, .digest = {6, 7}};
    agent_proof_begin(&p, s, mset_from_bits(A), NEB_S);
    assert_int_equal(p.open, 5); // the second fragment is empty, and the fourth is finished
    assert_int_equal(p.parts[2].round, 5);
    assert_int_equal(p.parts[2].digest[1], 7);
    said[0].same = mset_from_bits(C);
    assert_int_equal(look(&p, said, C, NEB_S), AGENT_PROOF_WAITS);
    assert_int_equal(p.open, 4);
    said[2].other = mset_from_bits(A | C);
    assert_int_equal(look(&p, said, C, NEB_S), AGENT_PROOF_REFUTED);
    said[2] = (struct inter_digests){.same = mset_from_bits(C)};
    assert_int_equal(look(&p, said, C, NEB_S), AGENT_PROOF_CONFIRMED);
    assert_int_equal(p.open, 0);
    free(s);
}

// The third member missed that round. This member did not miss it, and had the same state before
// its disk was lost.
static void test_own_digest(void **state) {
    (void)state;
    struct inter_digests said[INTER_FRAGMENTS_MAX] = {{.same = mset_from_bits(A | B)}};
    struct agent_proof p = {.open = 1, .giver = mset_from_bits(A), .since = NEB_S};
    assert_int_equal(look(&p, said, C, NEB_S), AGENT_PROOF_CONFIRMED);
    p.open = 1;
    said[0] = (struct inter_digests){.same = mset_from_bits(A),
                                     .other = mset_from_bits(B)}; // its own memory may have failed
    assert_int_equal(look(&p, said, C, NEB_S), AGENT_PROOF_WAITS);
    assert_int_equal(look(&p, said, C, NEB_S + 2 * agent_proof_patience), AGENT_PROOF_LATE);
    said[0] = (struct inter_digests){.same = mset_from_bits(B), .other = mset_from_bits(C)};
    assert_int_equal(look(&p, said, C, NEB_S), AGENT_PROOF_CONFIRMED);
}

static void test_timeout(void **state) {
    (void)state;
    struct inter_digests said[INTER_FRAGMENTS_MAX] = {{{0}, {0}}};
    struct agent_proof p = {.open = 1, .giver = mset_from_bits(A), .since = NEB_S};
    const neb_ns late = 2 * NEB_S + agent_proof_patience;
    assert_int_equal(look(&p, said, C | D, late - 2 * NEB_S), AGENT_PROOF_WAITS);
    assert_int_equal(look(&p, said, C | D, late), AGENT_PROOF_LATE);
    said[0].other = mset_from_bits(C); // D is silent, and C disagrees: the state is not used
    assert_int_equal(look(&p, said, C | D, late), AGENT_PROOF_DISPUTED);
    p.begun = true; // late: this is reported only once
    said[0].other = mset_from_bits(0);
    assert_int_equal(look(&p, said, C | D, 2 * late), AGENT_PROOF_WAITS);
}

static void test_records(void **state) {
    (void)state;
    struct inter_record r = {.n = 3};
    struct inter_digests said;
    r.entries[0] = (struct inter_entry){.member = 0, .digest = {7, 8}};
    r.entries[1] = (struct inter_entry){.member = 2, .digest = {7, 9}};
    r.entries[2] = (struct inter_entry){.member = 3, .digest = {7, 8}};
    inter_record_digests(&r, (const uint64_t[]){7, 8}, &said);
    assert_int_equal(mset_bits(said.same), A | D);
    assert_int_equal(mset_bits(said.other), C);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_clusters),  cmocka_unit_test(test_three_clusters),
        cmocka_unit_test(test_five_clusters), cmocka_unit_test(test_giver_not_known),
        cmocka_unit_test(test_fragments),     cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_own_digest),    cmocka_unit_test(test_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
