// SPDX-License-Identifier: Apache-2.0
// The first round of a job, before the honest workers have attached. The honest gates do not know
// yet what an update holds. Mallory is faster and sends an update of another shape. If the gates
// judged it at once, it would be committed, and no cluster could apply it.
#define HOSTILE_ORDER ANNA, BERT, MALLORY
#include "tests/security/hostile_fixture.h"

static int open_early(void **state) {
    awaits = true;
    return open_sites(state);
}

static bool arrived(const struct site *x) { // mallory's update of round 0
    struct inter_key k = {.member = MALLORY};
    struct inter_manifest m;
    memcpy(k.job, job, sizeof job);
    return inter_ledger_get_manifest(inter_service_ledger(x->s), &k, &m) == NEB_OK &&
           inter_ledger_part_has(inter_service_ledger(x->s), &m.key,
                                 inter_chunks(m.bytes, m.chunk_bytes) - 1);
}

static void other_shape(enum kind kind) {
    submit(&sites[MALLORY], kind);
    UNTIL(arrived(&sites[ANNA]) && arrived(&sites[BERT]));
    go_for(NEB_S);
    for (int k = ANNA; k <= BERT; k++) {
        assert_int_equal(sites[k].faults[INTER_FAULT_REFUSED], 0); // not judged yet
        assert_int_equal(sites[k].commits, 0);
    }
    tell_shape(&sites[ANNA]);
    tell_shape(&sites[BERT]);
    honest_round();
    const struct inter_entry *e = entry_of(&sites[ANNA].last, MALLORY);
    assert_true(!e || e->verdict == INTER_REJECTED);
    UNTIL(sites[ANNA].faults[INTER_FAULT_REFUSED] && sites[BERT].faults[INTER_FAULT_REFUSED]);
    honest_round();
    expect_sound(&sites[ANNA]);
}

static void test_other_shape(void **state) {
    (void)state;
    other_shape(TRANSPOSED);
}
static void test_too_many(void **state) {
    (void)state;
    other_shape(TOO_MANY);
}

// A member whose worker is late does not vote, but follows the others' commits. It votes once its
// worker has attached.
static void test_late_worker(void **state) {
    (void)state;
    tell_shape(&sites[ANNA]);
    submit(&sites[MALLORY], GOOD);
    submit(&sites[ANNA], GOOD);
    UNTIL(sites[ANNA].commits == 1 && sites[BERT].commits == 1 && sites[MALLORY].commits == 1);
    for (uint8_t i = 0; i < sites[BERT].last.n_accepts; i++)
        assert_int_not_equal(sites[BERT].last.accepts[i].member, BERT);
    inter_service_destroy(&sites[MALLORY].s); // now a commit needs bert's vote
    submit(&sites[ANNA], GOOD);
    go_for(3 * NEB_S);
    assert_int_equal(sites[ANNA].commits, 1);
    tell_shape(&sites[BERT]);
    submit(&sites[BERT], GOOD);
    UNTIL(sites[ANNA].commits == 2 && sites[BERT].commits == 2);
    expect_sound(&sites[BERT]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_other_shape, open_early, close_sites),
        cmocka_unit_test_setup_teardown(test_too_many, open_early, close_sites),
        cmocka_unit_test_setup_teardown(test_late_worker, open_early, close_sites)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
