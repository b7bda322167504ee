// SPDX-License-Identifier: Apache-2.0
// Which members compute their parameters again (agent/daemon/judge.h).
#include "agent/daemon/judge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

// Members 0, 1, ... with these digests.
static struct agent_divergence of(int self, int contributors, int n, const uint64_t digests[]) {
    struct inter_record r = {.n = (uint8_t)n};
    for (uint8_t i = 0; i < n; i++)
        r.entries[i] = (struct inter_entry){.member = i, .digest = {digests[i], 1}};
    return agent_divergence_of(&r, self, contributors);
}

static void test_majority(void **state) {
    (void)state;
    const uint64_t one[] = {7, 8, 7};
    assert_false(of(0, 3, 3, one).own);
    assert_true(of(0, 3, 3, one).others);
    assert_true(of(1, 3, 3, one).own);
    assert_true(of(1, 5, 3, one).own); // two members against one, whichever is missing
    assert_false(of(1, 3, 3, one).all);
    const uint64_t none[] = {7, 8, 9};
    assert_true(of(2, 3, 3, none).own && of(2, 3, 3, none).all);
    assert_false(of(4, 5, 3, one).own); // member 4 is not in the record
}

// Two clusters cannot know which one is wrong: both compute again.
static void test_two_members(void **state) {
    (void)state;
    const uint64_t apart[] = {7, 8};
    assert_true(of(0, 2, 2, apart).own && of(1, 2, 2, apart).own && of(0, 2, 2, apart).all);
    const uint64_t same[] = {7, 7};
    assert_false(of(0, 2, 2, same).own || of(0, 2, 2, same).all);
}

// A Byzantine leader may list only one member beside itself at a time. Two members of five decide
// nothing.
static void test_pairs_of_five(void **state) {
    (void)state;
    const uint64_t pair[] = {7, 8}, four[] = {7, 7, 8, 8};
    assert_false(of(0, 5, 2, pair).own || of(0, 5, 2, pair).others);
    assert_false(of(0, 5, 4, four).own);
    assert_true(of(0, 4, 4, four).own && of(3, 4, 4, four).own); // all members are in the record
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_majority),
                                       cmocka_unit_test(test_two_members),
                                       cmocka_unit_test(test_pairs_of_five)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
