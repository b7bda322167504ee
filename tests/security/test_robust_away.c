// SPDX-License-Identifier: Apache-2.0
// Rounds that need a number of updates (`robust`, or commit_all) while a member is away. They wait,
// and the status names that member. They continue when it is back, or when a list removes it. (Of
// three members `robust` needs all three.)
#define HOSTILE_ORDER ANNA, BERT, MALLORY // mallory is only away here
#include "tests/security/hostile_fixture.h"

static int open_robust(void **state) {
    robust = true;
    return open_sites(state);
}
static int open_all(void **state) {
    wants_all = true;
    return open_sites(state);
}

static uint64_t waits(int who) {
    struct inter_job_status st;
    assert_true(inter_service_job_status(sites[who].s, job, &st));
    return mset_bits(st.waits);
}

static void away(void) {
    all_three();
    UNTIL(!waits(ANNA) && !waits(BERT));
    inter_service_destroy(&sites[MALLORY].s);
    submit(&sites[ANNA], GOOD);
    submit(&sites[BERT], GOOD);
    UNTIL(waits(ANNA) == 1u << MALLORY && waits(BERT) == 1u << MALLORY);
    go_for(3 * NEB_S); // longer than the grace
    assert_int_equal(sites[ANNA].commits, 1);
}

static void test_back(void **state) {
    (void)state;
    away();
    start(&sites[MALLORY]);
    open_job(&sites[MALLORY]);
    submit(&sites[MALLORY], GOOD);
    UNTIL(sites[ANNA].commits == 2 && sites[BERT].commits == 2);
    assert_int_equal(sites[ANNA].last.n, SITES);
    UNTIL(!waits(ANNA) && !waits(BERT));
    assert_int_equal(sites[ANNA].faults[INTER_FAULT_DENIED], 0);
}

static void test_revoked(void **state) {
    (void)state;
    away();
    // The leader gets the list first. The other member still waits for three updates, and does not
    // vote for a record of two.
    inter_service_job_gone(sites[ANNA].s, job, mset_of(MALLORY));
    assert_int_equal(waits(ANNA), 0);
    go_for(3 * NEB_S);
    assert_int_equal(sites[ANNA].commits, robust ? 1 : 2);
    inter_service_job_gone(sites[BERT].s, job, mset_of(MALLORY));
    UNTIL(sites[ANNA].commits == 2 && sites[BERT].commits == 2);
    assert_int_equal(sites[ANNA].last.n, 2);
    honest_round();
    expect_sound(&sites[BERT]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_back, open_robust, close_sites),
        cmocka_unit_test_setup_teardown(test_revoked, open_robust, close_sites),
        cmocka_unit_test_setup_teardown(test_back, open_all, close_sites),
        cmocka_unit_test_setup_teardown(test_revoked, open_all, close_sites)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
