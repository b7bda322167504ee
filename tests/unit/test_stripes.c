// SPDX-License-Identifier: Apache-2.0
// inter/stripes against links whose rate depends on the number of connections, in virtual time.
#include "inter/link/stripes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static neb_ns queue; // added to the round trip time

// Runs for `seconds`; the link carries `each` bit/s for each connection, at most `all`.
static void run(struct inter_stripes *s, neb_ns *now, double seconds, double each, double all,
                bool busy) {
    const neb_ns step = 50 * NEB_MS;
    for (neb_ns end = *now + (neb_ns)(seconds * 1e9); *now < end; *now += step) {
        double bps = each * s->use < all ? each * s->use : all;
        inter_stripes_step(s, *now, (uint64_t)(bps / 8 * neb_seconds(step)), busy,
                           100 * NEB_MS + queue);
        assert_in_range(s->use, 1, s->max);
    }
}

static void test_as_many_as_help(void **state) {
    (void)state;
    const struct {
        double each, all;
        uint32_t least, most;
    } links[] = {
        {9e6, 100e6, 16, 16}, // CUBIC under loss: 8 connections would carry 72 Mbit/s, 16 carry all
        {85e6, 94e6, 1, 2},   // BBR
        {1e6, 1e9, 32, 32},   // never enough
    };
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
        struct inter_stripes s;
        neb_ns now = NEB_S;
        inter_stripes_init(&s, 2, 32, false);
        run(&s, &now, 30, links[i].each, links[i].all, true);
        assert_in_range(s.use, links[i].least, links[i].most);
        run(&s, &now, 20, links[i].each, links[i].all, true);
        assert_in_range(s.use, links[i].least, links[i].most); // and the number stays there
    }
}

static void test_learns_of_a_change(void **state) {
    (void)state;
    struct inter_stripes s;
    neb_ns now = NEB_S;
    inter_stripes_init(&s, 2, 32, false);
    run(&s, &now, 20, 90e6, 100e6, true);
    assert_in_range(s.use, 1, 2);
    run(&s, &now, 30, 5e6, 100e6, true); // losses begin: the old number no longer suffices
    assert_true(s.use >= 16);
}

// On a full link each trial costs some seconds. So trials get rarer, down to one in a quarter of an
// hour. A change makes them frequent again.
static void test_trials_get_rare(void **state) {
    (void)state;
    struct inter_stripes s;
    neb_ns now = NEB_S;
    int trials = 0, early = 0;
    inter_stripes_init(&s, 8, 32, false);
    for (int second = 0; second < 4 * 3600; second++) {
        uint32_t was = s.use;
        run(&s, &now, 1, 90e6, 100e6, true);
        trials += s.use > was;
        early += s.use > was && second < 600;
    }
    assert_in_range(early, 3, 5);
    assert_in_range(trials, 14, 20);
    run(&s, &now, 60, 5e6, 60e6, true); // a fall of the rate starts a trial soon
    assert_int_equal(s.use, 16);
    trials = 0;
    for (int second = 0; second < 600; second++) {
        uint32_t was = s.use;
        run(&s, &now, 1, 5e6, 60e6, true);
        trials += s.use > was;
    }
    assert_in_range(trials, 3, 5); // and then as often as at first
}

// If connections have not reached their rate yet, their rate is no baseline for more connections.
static void test_slow_start(void **state) {
    (void)state;
    struct inter_stripes s;
    neb_ns now = NEB_S;
    inter_stripes_init(&s, 8, 32, false);
    run(&s, &now, 0.9, 1e6, 100e6, true); // the rate is not reached yet
    run(&s, &now, 30, 90e6, 100e6, true);
    assert_int_equal(s.use, 8);
}

// A link starts with one connection. The first 32 KiB show whether the path is slow, or whether its
// window must still grow or a segment was lost. Idle time decides nothing.
static void test_start_with_one(void **state) {
    (void)state;
    const struct {
        double bps, seconds;
        uint32_t use, open;
    } paths[] = {
        {64e3, 1, 1, 8}, {64e3, 5, 1, 1}, {300e3, 1, 8, 8}, {1e6, 1, 8, 8}, {1e9, 0.1, 8, 8}};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct inter_stripes s;
        neb_ns now = NEB_S;
        inter_stripes_init(&s, 8, 32, true);
        run(&s, &now, 100, 0, 0, false);
        assert_int_equal(s.use, 1);
        run(&s, &now, paths[i].seconds, paths[i].bps, paths[i].bps, true);
        assert_int_equal(s.use, paths[i].use);
        assert_int_equal(inter_stripes_open(&s), paths[i].open);
        assert_int_equal(inter_stripes_room(&s, 64 << 20), paths[i].use == 1 ? 64 << 10 : 64 << 20);
    }
    // A first segment was lost for seconds. Then other numbers are tried at once, and not after the
    // minute that a likely number gets.
    struct inter_stripes s;
    neb_ns now = NEB_S;
    inter_stripes_init(&s, 8, 32, true);
    run(&s, &now, 4, 0, 0, true);
    assert_int_equal(s.use, 1);
    run(&s, &now, 30, 0.3e6, 3e6, true); // under losses: more connections than on a slow link
    assert_true(s.use >= 8);
    assert_int_equal(inter_stripes_room(&s, 64 << 20), 64 << 20);
    // Data that crosses at once never waits, and a trickle proves nothing.
    inter_stripes_init(&s, 8, 32, true);
    run(&s, &now, 60, 16e3, 16e3, false);
    assert_int_equal(s.use, 1);
    run(&s, &now, 2, 2e6, 2e6, false);
    assert_int_equal(s.use, 8);
}

// A number that is likely to suffice is left alone for a minute, then tested like any other.
static void test_likely_number(void **state) {
    (void)state;
    struct inter_stripes s;
    neb_ns now = NEB_S;
    inter_stripes_init(&s, 8, 32, true);
    run(&s, &now, 59, 1e6, 1e9, true);
    assert_int_equal(s.use, 8);
    run(&s, &now, 30, 1e6, 1e9, true);
    assert_int_equal(s.use, 32);
    now = NEB_S;
    inter_stripes_init(&s, 8, 32, true);
    run(&s, &now, 30, 9e6, 70e6, true);
    run(&s, &now, 20, 4e6, 70e6, true); // the link changed: a trial at once
    assert_int_equal(s.use, 16);
}

// A full link whose losses come in bursts: in some seconds it carries a third less. More
// connections only queue there, and chance must rarely look like a gain.
static void test_bursts_are_no_gain(void **state) {
    (void)state;
    int misled = 0;
    for (uint32_t seed = 1; seed <= 200; seed++) {
        struct inter_stripes s;
        neb_ns now = NEB_S;
        uint32_t random = seed;
        inter_stripes_init(&s, 8, 32, false);
        double use = 0;
        for (int second = 0; second < 180; second++) {
            random = random * 1664525 + 1013904223; // Numerical Recipes' generator
            double burst = (double)(random >> 8) / (1 << 24);
            run(&s, &now, 1, 9e6, 19e6 * (1 - burst * burst / 3), true);
            use += second >= 60 && s.use > 8;
        }
        misled += use > 60; // half of the time after the first minute
    }
    if (misled > 20)
        fail_msg("%d of 200 links took more connections than fill them", misled);
}

// With 2 Mbit/s and 100 ms, 25 KB are in flight. Many connections lose the bytes that they queue,
// and a few fill the link.
static void test_slow_link(void **state) {
    (void)state;
    for (int likely = 0; likely < 2; likely++) {
        struct inter_stripes s;
        neb_ns now = NEB_S;
        inter_stripes_init(&s, likely ? 8 : 16, 32, likely);
        run(&s, &now, 1, 0, 0, false);
        for (int second = 0; second < 600; second++) {
            queue = s.use > 4 ? 400 * NEB_MS : 0;
            run(&s, &now, 1, 2e6, s.use > 4 ? 1.2e6 : 1.9e6, true);
        }
        queue = 0;
        assert_in_range(s.use, 1, 4);
    }
    // Under losses each connection carries an eighth of the link, however little is in flight. Many
    // connections are needed, and a trial with fewer is taken back.
    struct inter_stripes s;
    neb_ns now = NEB_S;
    int less = 0;
    inter_stripes_init(&s, 16, 32, false);
    run(&s, &now, 1, 0, 0, false);
    queue = 100 * NEB_MS;
    for (int second = 0; second < 600; second++) {
        run(&s, &now, 1, 0.15e6, 1.9e6, true);
        less += s.use < 16;
    }
    queue = 0;
    assert_in_range(less, 1, 30);
    assert_int_equal(s.use, 16);
}

// Idle time does not count as a measurement. Short transfers together give one.
static void test_pauses(void **state) {
    (void)state;
    struct inter_stripes s;
    neb_ns now = NEB_S;
    inter_stripes_init(&s, 2, 32, false);
    run(&s, &now, 1, 9e6, 100e6, true);
    assert_int_equal(s.use, 2);
    run(&s, &now, 100, 9e6, 100e6, false);
    assert_int_equal(s.use, 2);
    for (int i = 0; i < 100; i++) {
        run(&s, &now, 0.5, 9e6, 100e6, true);
        run(&s, &now, 30, 0, 0, false);
    }
    assert_true(s.use >= 8);
}

static void test_bounds(void **state) {
    (void)state;
    struct inter_stripes s;
    neb_ns now = NEB_S;
    inter_stripes_init(&s, 3, 3, false); // fixed by the operator
    run(&s, &now, 60, 1e6, 1e9, true);
    assert_int_equal(s.use, 3);
    inter_stripes_init(&s, 40, 32, false);
    assert_int_equal(s.use, 32);
    inter_stripes_init(&s, 0, 32, false);
    assert_int_equal(s.use, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_many_as_help), cmocka_unit_test(test_learns_of_a_change),
        cmocka_unit_test(test_trials_get_rare), cmocka_unit_test(test_slow_start),
        cmocka_unit_test(test_likely_number),   cmocka_unit_test(test_start_with_one),
        cmocka_unit_test(test_slow_link),       cmocka_unit_test(test_bursts_are_no_gain),
        cmocka_unit_test(test_pauses),          cmocka_unit_test(test_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
