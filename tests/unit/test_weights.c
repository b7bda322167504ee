// SPDX-License-Identifier: Apache-2.0
// The weight of each update (inter/record/weights.h). A member that returns alone counts by its
// tokens since the common base. All other members count by their tokens. This holds at the ends of
// the number range too. A voter notices any other weights.
#include "inter/record/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void add(struct inter_record *r, uint8_t member, uint64_t tokens, enum inter_verdict v) {
    r->entries[r->n++] =
        (struct inter_entry){.member = member, .tokens = tokens, .verdict = (uint8_t)v, .clip = 1};
}

static struct inter_record record(uint32_t round, uint8_t members, uint8_t flags) {
    return (struct inter_record){.round = round, .n_plans = members, .flags = flags};
}

static void test_ordinary_rounds_count_tokens(void **state) {
    (void)state;
    struct inter_absence before[NEB_MEMBERS_MAX] = {{4, 0}, {1, 900}, {4, 0}};
    struct inter_record r = record(4, 3, 0);
    add(&r, 0, 100, INTER_ACCEPTED);
    add(&r, 1, 400, INTER_ACCEPTED); // late, but not away for long: its tokens carry over
    inter_weights_fill(&r, before);
    assert_true(r.entries[0].weight == 100 && r.entries[1].weight == 400);
    assert_true(r.absences[0].base == 5 && r.absences[0].others == 0);
    assert_true(r.absences[1].base == 5 && r.absences[1].others == 0);
    // the member missed this round
    assert_true(r.absences[2].base == 4 && r.absences[2].others == 500);
}

// Three equal members, one of them away for K rounds: its share is a third for any K.
static void test_lone_returner(void **state) {
    (void)state;
    for (uint32_t away = 1; away < 2000; away = 3 * away + 1) {
        struct inter_absence before[NEB_MEMBERS_MAX] = {{0}};
        for (uint32_t round = 0; round <= away; round++) {
            struct inter_record r = record(round, 3, round == away ? INTER_MERGE : 0);
            add(&r, 0, 1000, INTER_ACCEPTED);
            add(&r, 1, 1000, INTER_ACCEPTED);
            if (round == away)
                add(&r, 2, 1000 * (away + 1), INTER_ACCEPTED);
            inter_weights_fill(&r, before);
            assert_true(inter_weights_agree(&r, before));
            for (int m = 0; m < 3; m++)
                before[m] = r.absences[m];
            if (round < away)
                continue;
            assert_true(r.entries[0].weight == 1000 && r.entries[1].weight == 1000);
            // tokens · F / (others + F) = (K+1)·1000 · 2000 / ((K+1)·2000)
            assert_true(r.entries[2].weight == 1000);
            assert_true(before[2].base == away + 1 && before[2].others == 0);
        }
    }
}

static void test_all_away_alike(void **state) {
    (void)state;
    struct inter_absence before[NEB_MEMBERS_MAX] = {{3, 0}, {3, 0}};
    struct inter_record r = record(3, 2, INTER_MERGE);
    add(&r, 0, 7000, INTER_ACCEPTED);
    add(&r, 1, 5000, INTER_ACCEPTED);
    inter_weights_fill(&r, before);
    // there is one base, so the weights are the tokens
    assert_true(r.entries[0].weight == 7000 && r.entries[1].weight == 5000);
}

static void test_rejected_and_empty(void **state) {
    (void)state;
    struct inter_absence before[NEB_MEMBERS_MAX] = {{9, 0}, {2, 5000}, {9, 0}, {1, 8000}};
    struct inter_record r = record(9, 4, INTER_MERGE);
    add(&r, 0, 0, INTER_ACCEPTED); // a last update without tokens sets no base
    add(&r, 1, 600, INTER_ACCEPTED);
    add(&r, 2, 100, INTER_REJECTED);
    inter_weights_fill(&r, before);
    assert_true(r.entries[0].weight == 0 && r.entries[1].weight == 600);
    // its absence starts again from here
    assert_true(r.absences[2].base == 10 && r.absences[2].others == 0);
    // A rejected update does not count as progress of any member.
    assert_true(r.absences[3].base == 1 && r.absences[3].others == 8600);
}

static void test_ends_of_the_range(void **state) {
    (void)state;
    struct inter_absence before[NEB_MEMBERS_MAX] = {{7, 0}, {1, INTER_OTHERS_MAX}, {1, 5}};
    struct inter_record r = record(7, 3, INTER_MERGE);
    add(&r, 0, INTER_TOKENS_MAX - 1, INTER_ACCEPTED);
    add(&r, 1, INTER_TOKENS_MAX - 1, INTER_ACCEPTED);
    add(&r, 2, 1, INTER_ACCEPTED);
    inter_weights_fill(&r, before);
    assert_true(r.entries[1].weight > 0 && r.entries[1].weight <= INTER_TOKENS_MAX >> 4);
    assert_true(r.entries[2].weight == 1); // never 0
    struct inter_record next = record(8, 3, 0);
    add(&next, 0, INTER_TOKENS_MAX - 1, INTER_ACCEPTED);
    struct inter_absence full[NEB_MEMBERS_MAX] = {{8, 0}, {1, INTER_OTHERS_MAX}, {8, 0}};
    inter_weights_fill(&next, full);
    assert_true(next.absences[1].others == INTER_OTHERS_MAX); // sums saturate and do not wrap
}

static void test_a_voter_finds_other_answers(void **state) {
    (void)state;
    struct inter_absence before[NEB_MEMBERS_MAX] = {{5, 0}, {1, 4000}, {5, 0}};
    struct inter_record r = record(5, 3, INTER_MERGE), x;
    add(&r, 0, 1000, INTER_ACCEPTED);
    add(&r, 1, 5000, INTER_ACCEPTED);
    inter_weights_fill(&r, before);
    assert_true(inter_weights_agree(&r, before) && r.entries[1].weight == 1000);
    x = r, x.entries[1].weight = 5000;
    assert_false(inter_weights_agree(&x, before));
    x = r, x.entries[0].weight = 1;
    assert_false(inter_weights_agree(&x, before));
    x = r, x.absences[2].others++;
    assert_false(inter_weights_agree(&x, before));
    x = r, x.absences[1].base--;
    assert_false(inter_weights_agree(&x, before));
    x = r, x.flags = 0;
    assert_false(inter_weights_agree(&x, before));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ordinary_rounds_count_tokens),
                                       cmocka_unit_test(test_lone_returner),
                                       cmocka_unit_test(test_all_away_alike),
                                       cmocka_unit_test(test_rejected_and_empty),
                                       cmocka_unit_test(test_ends_of_the_range),
                                       cmocka_unit_test(test_a_voter_finds_other_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
