// SPDX-License-Identifier: Apache-2.0
// When a link is too slow for a member that catches up (agent/daemon/judge.h).
#include "agent/daemon/judge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct agent_join begun = {.since = 100 * NEB_S, .recv_bytes = 1000000, .lag = 12};

static void test_slower_than_commits(void **state) {
    (void)state;
    char text[512];
    // in 10 s, 1 MB arrived and 10 rounds of 0.2 MB were committed
    struct agent_join_verdict v = agent_join_judge(&begun, 110 * NEB_S, 2000000, 22, 200000);
    assert_true(v.too_slow && v.rounds == 10);
    assert_true(v.brings_bps == 0.8e6 && v.needs_bps == 1.6e6);
    agent_join_explain(&v, 200000, text, sizeof text);
    assert_non_null(strstr(text, "carries 0.800 Mbit/s"));
    assert_non_null(strstr(text, "need 1.600 Mbit/s"));
}

static void test_fast_enough(void **state) {
    (void)state;
    // 3 MB arrived for 2 MB of commits
    assert_false(agent_join_judge(&begun, 110 * NEB_S, 4000000, 22, 200000).too_slow);
    // no commit
    assert_false(agent_join_judge(&begun, 110 * NEB_S, 2000000, 12, 200000).too_slow);
    // it caught up
    assert_false(agent_join_judge(&begun, 110 * NEB_S, 2000000, 5, 200000).too_slow);
}

static void test_proves_nothing(void **state) {
    (void)state;
    struct agent_join none = {0}, unknown = begun;
    // the position of the other members was not known, so their progress is not known either
    unknown.lag = 0;
    assert_false(agent_join_judge(&none, 110 * NEB_S, 2000000, 22, 200000).too_slow);
    assert_false(agent_join_judge(&unknown, 110 * NEB_S, 2000000, 22, 200000).too_slow);
    // only 3 s have passed
    assert_false(agent_join_judge(&begun, 103 * NEB_S, 1100000, 22, 200000).too_slow);
    // only two rounds
    assert_false(agent_join_judge(&begun, 110 * NEB_S, 2000000, 14, 900000).too_slow);
    // the connections are new
    assert_false(agent_join_judge(&begun, 110 * NEB_S, 500000, 22, 200000).too_slow);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slower_than_commits),
                                       cmocka_unit_test(test_fast_enough),
                                       cmocka_unit_test(test_proves_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
