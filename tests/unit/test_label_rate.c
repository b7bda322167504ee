// SPDX-License-Identifier: Apache-2.0
// agent/train/label_rate and inter/stream/path in virtual time: a teacher faster than its student,
// a link that becomes slow and fast again, late acknowledgements.
#include "agent/train/label_rate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WINDOW = 16, ROWS = 600, K_MIN = 4, K_MAX = 64, MOST = 1 << 15 };

struct world {
    struct agent_label_rate rate;
    struct inter_stream_path *path;
    double bps;
    neb_ns now, rtt, step, line_free, student_free;
    // said_…: the numbers that the teacher knows
    uint64_t next, arrived, applied, said_have, said_applied;
    neb_ns here[MOST]; // when batch n arrives at the student
    neb_ns said_at;
    int changes, falls;
    neb_ns starved; // how long the student waited
};

static uint32_t bytes_of(int32_t k) { return (uint32_t)(ROWS * (1 + 2.3 * k)); }

static void make(struct world *w) {
    char reason[200] = "";
    struct agent_label_view v = {w->next, w->said_have, w->said_applied,
                                 inter_stream_path_measure(w->path, w->now)};
    int32_t was = w->rate.k;
    if (agent_label_rate_next(&w->rate, w->now, &v, reason, sizeof reason)) {
        assert_true(strlen(reason) > 20);
        assert_int_not_equal(was, w->rate.k);
        w->changes++;
        w->falls += w->rate.k < was;
    } else {
        assert_int_equal(was, w->rate.k);
    }
    assert_true(w->rate.k >= K_MIN && w->rate.k <= K_MAX);
    uint32_t n = bytes_of(w->rate.k);
    agent_label_rate_made(&w->rate, ROWS, n);
    inter_stream_path_sent(w->path, w->now, w->next, n);
    w->line_free = w->line_free > w->now ? w->line_free : w->now;
    w->line_free += (neb_ns)(8e9 * n / w->bps);
    assert_true(w->next < MOST);
    w->here[w->next++] = w->line_free + w->rtt / 2;
}

// Runs in steps of a millisecond.
static void run(struct world *w, double seconds) {
    for (neb_ns end = w->now + (neb_ns)(seconds * 1e9); w->now < end; w->now += NEB_MS) {
        while (w->arrived < w->next && w->here[w->arrived] <= w->now)
            w->arrived++;
        if (w->student_free <= w->now) {
            if (w->applied < w->arrived) {
                w->applied++;
                w->student_free = w->now + w->step;
            } else {
                w->starved += NEB_MS;
            }
        }
        if (w->now - w->said_at >= 150 * NEB_MS + w->rtt / 2) { // a late acknowledgement
            w->said_at = w->now;
            w->said_have = w->arrived;
            w->said_applied = w->applied;
            inter_stream_path_acked(w->path, w->now, w->said_have);
        }
        while (w->next < w->said_applied + WINDOW)
            make(w);
    }
}

static struct world *begin(int32_t k, double bps) {
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->now = NEB_S;
    w->bps = bps;
    w->rtt = 100 * NEB_MS;
    w->step = 50 * NEB_MS;
    agent_label_rate_init(&w->rate, k, K_MIN, K_MAX, WINDOW);
    assert_int_equal(inter_stream_path_create(WINDOW, &w->path), NEB_OK);
    return w;
}
static void end(struct world *w) {
    inter_stream_path_destroy(&w->path);
    free(w);
}

static void test_follows_the_link(void **state) {
    (void)state;
    struct world *w = begin(8, 20e6); // 64 labels per position need 14.2 Mbit/s, 4 labels 1.0
    run(w, 90);
    assert_int_equal(w->rate.k, K_MAX);
    assert_int_equal(w->falls, 0);
    w->bps = 2e6;
    run(w, 60);
    assert_true(w->rate.k <= 8);
    neb_ns starved = w->starved;
    run(w, 60); // k stays there, and the student has enough batches
    assert_true(w->rate.k <= 16);
    assert_true(w->starved - starved < 6 * NEB_S);
    w->bps = 50e6;
    run(w, 240);
    assert_int_equal(w->rate.k, K_MAX);
    end(w);
}

static void test_does_not_swing(void **state) {
    (void)state;
    for (double bps = 1e6; bps < 60e6; bps *= 1.7) {
        struct world *w = begin(8, bps);
        run(w, 300);
        int before = w->changes;
        neb_ns starved = w->starved;
        run(w, 600); // trials become rarer and cost little
        if (w->changes - before > 40 || w->starved - starved > 20 * NEB_S)
            fail_msg("at %.1f Mbit/s: %d changes, starved %.1f s", bps / 1e6, w->changes - before,
                     (double)(w->starved - starved) / 1e9);
        end(w);
    }
}

static void test_dead_link_and_bounds(void **state) {
    (void)state;
    struct world *w = begin(32, 20e6);
    run(w, 5);
    int32_t k = w->rate.k;
    w->bps = 100; // the link has almost no rate
    run(w, 60);
    assert_true(w->rate.k <= k); // without new batches k does not change
    assert_true(w->next <= w->said_applied + WINDOW);
    end(w);
    struct agent_label_rate fixed;
    char reason[200];
    agent_label_rate_init(&fixed, 8, 8, 8, WINDOW);
    struct agent_label_view v = {.next = 1000,
                                 .path = {.goodput_bps = 1e3, .full = true, .waited = 20 * NEB_S}};
    assert_false(agent_label_rate_next(&fixed, NEB_S, &v, reason, sizeof reason));
    assert_int_equal(fixed.k, 8);
}

static void test_path_restarts(void **state) {
    (void)state;
    struct inter_stream_path *p = NULL;
    assert_int_equal(inter_stream_path_create(4, &p), NEB_OK);
    neb_ns now = NEB_S;
    for (uint64_t i = 10; i < 14; i++)
        inter_stream_path_sent(p, now, i, 1000);
    inter_stream_path_acked(p, now + 100 * NEB_MS, 12);
    assert_true(inter_stream_path_measure(p, now + 100 * NEB_MS).waited == 0);
    // a batch without an acknowledgement gets older
    assert_true(inter_stream_path_measure(p, now + 3 * NEB_S).waited > 2 * NEB_S);
    inter_stream_path_reset(p, 12);
    assert_true(inter_stream_path_measure(p, now + 3 * NEB_S).waited == 0);
    inter_stream_path_sent(p, now + 3 * NEB_S, 12, 1000); // the batch is sent again
    // more batches than were sent, so the number is from another session
    inter_stream_path_acked(p, now + 4 * NEB_S, 99);
    inter_stream_path_sent(p, now + 5 * NEB_S, 3, 1000); // and a smaller number than before
    inter_stream_path_acked(p, now + 6 * NEB_S, 4);
    assert_true(inter_stream_path_measure(p, now + 6 * NEB_S).goodput_bps > 0);
    inter_stream_path_destroy(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_follows_the_link), cmocka_unit_test(test_does_not_swing),
        cmocka_unit_test(test_dead_link_and_bounds), cmocka_unit_test(test_path_restarts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
