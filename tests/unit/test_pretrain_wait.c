// SPDX-License-Identifier: Apache-2.0
// agent/pretrain_wait: how long a run waits for the report of a cluster that may be dead, in
// virtual time.
#include "agent/cli/pretrain_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct run *r;
static neb_ns now;

static int begin(void **state) {
    (void)state;
    r = calloc(1, sizeof *r);
    r->expected = r->job.n_clusters = 3;
    for (int i = 0; i < 3; i++)
        snprintf(r->job.clusters[i].name, sizeof r->job.clusters[i].name, "%c", "abc"[i]);
    r->o.report_within_s = 600;
    r->heard = now = 1000 * NEB_S;
    return 0;
}

static int end(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++)
        json_decref(r->reports[i]);
    free(r);
    return 0;
}

static void report(int i) { r->reports[i] = json_object(); }

// Seconds until the wait ends, at most `most`. linked: clusters whose links are up.
static int waits(int most, int linked, bool agent_answers) {
    bool enough = false;
    for (int s = 0; s < most; s++, now += NEB_S) {
        if (agent_answers)
            r->heard = now;
        for (int i = 0; i < 3; i++)
            if (linked >> i & 1)
                pretrain_reached(r, i, now);
        assert_int_equal(pretrain_wait_step(r, now, &enough), NEB_OK);
        if (enough)
            return s;
    }
    return most;
}

static void test_dead_cluster(void **state) {
    (void)state;
    assert_int_equal(waits(5000, 0, true), 5000); // nobody has reported
    report(0);
    report(1);
    assert_int_equal(waits(5000, 4, true), 5000); // c is slow, but its link is up
    assert_int_equal(mset_bits(r->missing), 0);
    int s = waits(5000, 0, true);
    assert_in_range(s, 599, 601);
    assert_int_equal(mset_bits(r->missing), 4);
}

static void test_counts_from_the_first_report(void **state) {
    (void)state;
    now += 5000 * NEB_S; // c has been away for long, as a cluster may be while others train
    report(0);
    assert_int_equal(waits(5000, 2, true), 5000); // b has a link
    report(1);
    bool enough = false;
    assert_int_equal(pretrain_wait_step(r, now, &enough), NEB_OK);
    assert_true(enough); // c has been away long enough
}

static void test_comes_back(void **state) {
    (void)state;
    report(0);
    report(1);
    assert_int_equal(waits(590, 0, true), 590);
    assert_int_equal(waits(1, 4, true), 1); // its link is up for a second
    assert_in_range(waits(5000, 0, true), 598, 601);
    // A late report within the limit: nothing is missing.
    r->missing = mset_from_bits(0);
    report(2);
    bool enough = false;
    assert_int_equal(pretrain_wait_step(r, now, &enough), NEB_OK);
    assert_false(enough);
    assert_int_equal(mset_bits(r->missing), 0);
}

// The agent that answers the command has no link to its own cluster. Its answers are the sign of
// life.
static void test_cluster_of_the_asked_agent(void **state) {
    (void)state;
    report(1);
    report(2);
    assert_int_equal(waits(3000, 0, true), 3000);
    assert_in_range(waits(3000, 0, false), 598, 601);
    assert_int_equal(mset_bits(r->missing), 1);
}

static void test_not_while_stopping(void **state) {
    (void)state;
    report(0);
    r->stop_sent = now; // pretrain_stop.c has its own limit
    assert_int_equal(waits(3000, 0, true), 3000);
    r->stop_sent = 0;
    r->gone = mset_from_bits(6); // the command does not wait for removed members
    assert_int_equal(waits(3000, 0, true), 3000);
    assert_int_equal(mset_bits(r->missing), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_dead_cluster, begin, end),
        cmocka_unit_test_setup_teardown(test_counts_from_the_first_report, begin, end),
        cmocka_unit_test_setup_teardown(test_comes_back, begin, end),
        cmocka_unit_test_setup_teardown(test_cluster_of_the_asked_agent, begin, end),
        cmocka_unit_test_setup_teardown(test_not_while_stopping, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
