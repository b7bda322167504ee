// SPDX-License-Identifier: Apache-2.0
// agent/schedule: when fragments are sent and merged, driven as a worker drives it.
#include "agent/exchange/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_EVENTS = 400 };

struct event {
    char kind; // 's'end, 'm'erge, 'x' missed, 'w'ait
    int32_t f;
    int64_t step;
};

struct run {
    struct agent_schedule s;
    struct agent_fragment frag[8];
    int64_t miss[8];
    struct event log[MAX_EVENTS];
    size_t n;
};

static void add(struct run *r, char kind, int32_t f, int64_t step) {
    assert_true(r->n < MAX_EVENTS);
    r->log[r->n++] = (struct event){kind, f, step};
}

static void start(struct run *r, int64_t steps, int32_t interval, int32_t overlap,
                  int32_t fragments) {
    memset(r, 0, sizeof *r);
    r->s = (struct agent_schedule){
        .steps = steps, .interval = interval, .overlap = overlap, .fragments = fragments};
    for (int f = 0; f < 8; f++)
        r->frag[f].send_step = r->miss[f] = -1;
}

// One step boundary. `down`: no commit arrives. Otherwise a commit arrives as soon as the schedule
// waits for it.
static bool boundary(struct run *r, int64_t step, bool down) {
    for (int32_t f = 0; f < r->s.fragments; f++) {
        struct agent_fragment *g = &r->frag[f];
        for (;;) {
            enum agent_decision d =
                agent_schedule_decide(&r->s, r->frag, f, step, !down, r->miss[f]);
            if (d == AGENT_GO_ON)
                break;
            if (d == AGENT_SEND) {
                assert_false(g->in_flight);
                g->in_flight = true;
                g->sent_final = step == r->s.steps;
                g->send_step = step;
                g->merge_step = step + r->s.overlap;
                add(r, 's', f, step);
            } else if (d == AGENT_MERGE) {
                g->in_flight = g->arrived = false;
                g->round++;
                g->missed = 0;
                g->merged_step = step;
                g->finished = g->sent_final;
                add(r, 'm', f, step);
            } else if (d == AGENT_MISS) {
                g->missed++;
                r->miss[f] = step;
                add(r, 'x', f, step);
            } else {
                if (down) {
                    add(r, 'w', f, step);
                    return false;
                }
                g->arrived = true;
            }
        }
    }
    return true;
}

static void expect(const struct run *r, const char *text) {
    char got[4096] = "";
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        n += (size_t)snprintf(got + n, sizeof got - n, "%s%c%d@%lld", i ? " " : "", r->log[i].kind,
                              r->log[i].f, (long long)r->log[i].step);
    assert_string_equal(got, text);
}

static void test_one_fragment(void **state) {
    (void)state;
    struct run r;
    start(&r, 25, 10, 0, 1);
    for (int64_t step = 0; step <= 25; step++)
        assert_true(boundary(&r, step, false));
    expect(&r, "s0@10 m0@10 s0@20 m0@20 s0@25 m0@25");
    assert_true(agent_schedule_finished(&r.s, r.frag));
}

static void test_overlap_and_fragments(void **state) {
    (void)state;
    struct run r;
    start(&r, 20, 8, 3, 2); // offsets 0 and 4
    for (int64_t step = 0; step <= 20; step++)
        assert_true(boundary(&r, step, false));
    // At step 20 fragment 1 sends its due update as its last one. Fragment 0 was merged at 19, and
    // its last update is sent too.
    expect(&r, "s1@4 m1@7 s0@8 m0@11 s1@12 m1@15 s0@16 m0@19 s0@20 m0@20 s1@20 m1@20");
}

static void test_in_flight_at_the_end_is_drained_twice(void **state) {
    (void)state;
    struct run r;
    start(&r, 11, 10, 5, 1);
    for (int64_t step = 0; step <= 11; step++)
        assert_true(boundary(&r, step, false));
    expect(&r, "s0@10 m0@11 s0@11 m0@11");
}

// Exchanges come every 4 steps up to step 12, then every 10; fragment 1 is half an interval after
// fragment 0.
static void test_early_steps_have_their_own_interval(void **state) {
    (void)state;
    struct run r;
    start(&r, 40, 10, 1, 2);
    r.s.early_interval = 4;
    r.s.early_steps = 12;
    const int64_t due[2][6] = {{4, 8, 12, 22, 32, 40}, {2, 6, 10, 17, 27, 37}};
    size_t n[2] = {0, 0};
    for (int64_t step = 0; step <= 40; step++)
        boundary(&r, step, false);
    for (size_t i = 0; i < r.n; i++)
        if (r.log[i].kind == 's' && n[r.log[i].f] < 6) {
            assert_int_equal(r.log[i].step, due[r.log[i].f][n[r.log[i].f]]);
            n[r.log[i].f]++;
        } else {
            assert_true(r.log[i].kind != 'x');
        }
    assert_true(n[0] == 6 && n[1] == 6);
}

// agent_schedule_sends() gives the number of updates that are really sent.
static void test_count_of_sends(void **state) {
    (void)state;
    struct run r;
    for (int32_t interval = 1; interval < 14; interval += 3)
        for (int32_t fragments = 1; fragments <= 8 && fragments <= interval; fragments++)
            for (int64_t steps = 1; steps < 90; steps += 4)
                for (int64_t early = 0; early <= 2 * interval; early += interval) {
                    int64_t n = 0;
                    start(&r, steps, early ? interval + 3 : interval, interval / 2, fragments);
                    r.s.early_interval = interval;
                    r.s.early_steps = early;
                    for (int32_t f = 0; f < fragments; f++)
                        r.s.every[f] = (int32_t)(steps + f * 5) % 4;
                    for (int64_t step = 0; step <= steps; step++)
                        assert_true(boundary(&r, step, false));
                    for (size_t i = 0; i < r.n; i++) {
                        n += r.log[i].kind == 's';
                        assert_int_not_equal(r.log[i].kind, 'x');
                    }
                    assert_true(agent_schedule_finished(&r.s, r.frag));
                    assert_int_equal(agent_schedule_sends(&r.s), n);
                }
}

static void test_outage_counts_missed_intervals(void **state) {
    (void)state;
    struct run r;
    start(&r, 60, 10, 2, 1);
    for (int64_t step = 0; step <= 60; step++)
        assert_true(boundary(&r, step, step >= 10 && step < 45));
    expect(&r, "s0@10 x0@20 x0@30 x0@40 m0@45 s0@50 m0@52 s0@60 m0@60");
    start(&r, 12, 10, 0, 1);
    for (int64_t step = 0; step < 12; step++)
        assert_true(boundary(&r, step, step >= 5));
    assert_false(boundary(&r, 12, true)); // the end waits for the peer, however long it is away
    expect(&r, "s0@10 w0@12");
    assert_false(agent_schedule_finished(&r.s, r.frag));
}

// Each fragment misses all intervals that passed, whether its update is in flight or waits for that
// of another fragment.
static void test_outage_of_fragments(void **state) {
    (void)state;
    for (int32_t fragments = 1; fragments <= 8; fragments *= 2)
        for (int64_t down = 40; down < 60; down++) {
            static struct run r;
            start(&r, 400, 16, 3, fragments);
            for (int64_t step = 0; step <= down + 160; step++)
                boundary(&r, step, step >= down && step < down + 160);
            uint32_t missed[8] = {0};
            for (size_t i = 0; i < r.n; i++)
                missed[r.log[i].f] += r.log[i].kind == 'x';
            for (int32_t f = 0; f < fragments; f++)
                assert_in_range(missed[f], 160 / 16 - 2, 160 / 16);
        }
}

// A group with `every: K` is due in each K-th cycle, and the common order knows it.
static void test_groups_have_intervals_of_their_own(void **state) {
    (void)state;
    struct run r;
    start(&r, 65, 10, 2, 2);
    r.s.every[1] = 3;
    for (int64_t step = 0; step <= 65; step++)
        assert_true(boundary(&r, step, false));
    expect(&r, "s0@10 m0@12 s0@20 m0@22 s1@25 m1@27 s0@30 m0@32 s0@40 m0@42 s0@50 m0@52 s1@55 "
               "m1@57 s0@60 m0@62 s0@65 m0@65 s1@65 m1@65");
    start(&r, 45, 10, 0, 2); // the first fragment ends a cycle: at 20 and 40
    r.s.every[0] = 2;
    for (int64_t step = 0; step <= 45; step++)
        assert_true(boundary(&r, step, false));
    expect(&r, "s1@5 m1@5 s1@15 m1@15 s0@20 m0@20 s1@25 m1@25 s1@35 m1@35 s0@40 m0@40 s0@45 m0@45 "
               "s1@45 m1@45");
}

// Cycles go on where an interval changes: what was due two cycles later still is.
static void test_cycles_go_on_in_a_new_interval(void **state) {
    (void)state;
    struct agent_schedule s = {.steps = 1000, .interval = 10, .fragments = 2, .every = {1, 4}};
    assert_true(agent_schedule_due(&s, 1, 35) && !agent_schedule_due(&s, 1, 45));
    agent_schedule_change(&s, 20, 30); // two of four cycles are over
    assert_int_equal(s.base_cycles, 2);
    assert_false(agent_schedule_due(&s, 1, 35));
    assert_true(agent_schedule_due(&s, 1, 65) && !agent_schedule_due(&s, 1, 95));
    agent_schedule_change(&s, 80, 20); // the first fragment's update was late in the second cycle
    assert_int_equal(s.base_cycles, 4);
    for (int64_t step = 81; step < 150; step++)
        assert_false(agent_schedule_due(&s, 1, step));
    assert_true(agent_schedule_due(&s, 1, 150));
    s = (struct agent_schedule){.steps = 1000, .interval = 10, .fragments = 1, .every = {3}};
    s.early_interval = 5;
    s.early_steps = 20; // four cycles, then five more in 30 steps
    assert_true(agent_schedule_due(&s, 0, 15) && !agent_schedule_due(&s, 0, 30));
    assert_true(agent_schedule_due(&s, 0, 40) && agent_schedule_due(&s, 0, 70));
}

// ---- two members ----

enum { ROUNDS_MAX = 512, MEMBER_STEPS = 300, GROUPS = 3 };

struct pair {
    struct run m[2];
    bool final[2][GROUPS][ROUNDS_MAX]; // member, fragment, round: its update was its last
    int64_t at[2];
};

// What member i does about fragment f. False: it waits.
static bool act(struct pair *p, int i, int32_t f, bool *moved) {
    struct run *r = &p->m[i];
    struct agent_fragment *g = &r->frag[f];
    const struct agent_fragment *o = &p->m[1 - i].frag[f];
    enum agent_decision d;
    while ((d = agent_schedule_decide(&r->s, r->frag, f, p->at[i], true, r->miss[f])) !=
           AGENT_GO_ON) {
        if (d == AGENT_SEND) {
            assert_true(g->round < ROUNDS_MAX);
            g->in_flight = true;
            p->final[i][f][g->round] = g->sent_final = p->at[i] == r->s.steps;
            g->send_step = p->at[i];
            g->merge_step = p->at[i] + r->s.overlap;
        } else if (d == AGENT_MERGE) {
            g->finished = p->final[0][f][g->round] && p->final[1][f][g->round];
            g->in_flight = g->arrived = false;
            g->round++;
        } else if (d == AGENT_MISS) {
            r->miss[f] = p->at[i];
        } else if (o->round > g->round || (o->round == g->round && o->in_flight)) {
            g->arrived = true; // the other member has sent it too
        } else {
            return false;
        }
        *moved = true;
    }
    return true;
}

// Whatever one member waits for, the other sends next: both finish.
static void finish_both(struct pair *p) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < 2; i++) {
            bool ready = true;
            // Waiting for one fragment does not keep the other from being sent.
            for (int32_t f = 0; f < p->m[i].s.fragments; f++)
                ready = act(p, i, f, &moved) && ready;
            if (ready && p->at[i] < p->m[i].s.steps) {
                p->at[i]++;
                moved = true;
            }
        }
    }
    for (int i = 0; i < 2; i++)
        if (!agent_schedule_finished(&p->m[i].s, p->m[i].frag))
            fail_msg("every %d %d %d: member %d stands at step %lld of %lld", p->m[i].s.every[0],
                     p->m[i].s.every[1], p->m[i].s.every[2], i, (long long)p->at[i],
                     (long long)p->m[i].s.steps);
}

// Members whose steps are far apart, with all triples of K.
static void test_unaligned_members_never_wait_for_each_other_in_a_circle(void **state) {
    (void)state;
    static struct pair p;
    static const int32_t every[] = {1, 2, 3, 8};
    static const int64_t lead[] = {0, 1, 20, 87, 260};
    for (int k = 0; k < 4 * 4 * 4 * 5; k++) {
        memset(&p, 0, sizeof p);
        p.at[1] = lead[k / 64];
        for (int i = 0; i < 2; i++) {
            start(&p.m[i], MEMBER_STEPS, 20, 3, GROUPS);
            for (int32_t f = 0; f < GROUPS; f++)
                p.m[i].s.every[f] = every[f == 0 ? k % 4 : f == 1 ? k / 4 % 4 : k / 16 % 4];
        }
        finish_both(&p);
    }
}

// A new interval starts with a send of the first fragment; the other fragments follow in between.
static void test_interval_changes(void **state) {
    (void)state;
    struct agent_schedule s = {.steps = 1000,
                               .interval = 20,
                               .overlap = 2,
                               .fragments = 2,
                               .early_interval = 10,
                               .early_steps = 0};
    assert_true(agent_schedule_due(&s, 0, 40) && agent_schedule_due(&s, 1, 50) &&
                !agent_schedule_due(&s, 0, 50));
    agent_schedule_change(&s, 45, 20); // the same interval again: no send moves
    assert_true(agent_schedule_due(&s, 0, 60) && !agent_schedule_due(&s, 0, 65));
    agent_schedule_change(&s, 60, 30);
    assert_true(agent_schedule_due(&s, 1, 75) && agent_schedule_due(&s, 0, 90) &&
                agent_schedule_due(&s, 1, 105));
    for (int64_t step = 61; step < 75; step++)
        assert_false(agent_schedule_due(&s, 0, step) || agent_schedule_due(&s, 1, step));
    s.early_steps = 200; // the early steps have their own interval
    assert_true(agent_schedule_due(&s, 0, 100) && agent_schedule_due(&s, 0, 110));
}

// After a snapshot a member is at the step at which its previous incarnation last sent. It sends
// only after it has learned something.
static void test_nothing_learned_since_a_snapshot(void **state) {
    (void)state;
    struct run r;
    start(&r, 100, 10, 0, 2);
    for (int f = 0; f < 2; f++)
        r.frag[f].round = 3, r.frag[f].committed_step = r.frag[f].merged_step = 30;
    for (int64_t step = 30; step <= 40; step++)
        assert_true(boundary(&r, step, false));
    assert_true(r.n >= 2);
    assert_true(r.log[0].kind == 's' && r.log[0].f == 1 && r.log[0].step == 35);
    start(&r, 30, 10, 0, 1); // at the end it sends anyway, as its last update
    r.frag[0].committed_step = r.frag[0].merged_step = 30;
    assert_true(boundary(&r, 30, false));
    assert_true(r.log[0].kind == 's' && r.log[0].step == 30 && r.frag[0].finished);
}

// The smallest number of steps between two sends of a fragment, as a worker makes them.
static int64_t least_of(struct run *r) {
    int64_t last[8] = {0}, least = r->s.steps;
    for (int64_t step = 0; step <= r->s.steps; step++)
        assert_true(boundary(r, step, false));
    for (size_t i = 0; i < r->n; i++) {
        const struct event *e = &r->log[i];
        if (e->kind != 's')
            continue;
        if (e->step > last[e->f] && e->step - last[e->f] < least)
            least = e->step - last[e->f];
        last[e->f] = e->step;
    }
    return least;
}

static void test_fewest_steps_of_an_update(void **state) {
    (void)state;
    for (int32_t interval = 1; interval <= 12; interval++)
        for (int32_t fragments = 1; fragments <= 4 && fragments <= interval; fragments++)
            for (int64_t steps = 1; steps <= 40; steps++)
                for (int32_t e = 0; e <= 6; e++) {
                    struct run r;
                    if (e && e < fragments)
                        continue;
                    start(&r, steps, interval, 0, fragments);
                    r.s.early_interval = e ? e : 10;
                    r.s.early_steps = e * 3;
                    for (int32_t f = 0; f < fragments; f++)
                        r.s.every[f] = (int32_t)(steps + f) % 5;
                    int64_t expected = agent_schedule_least(&r.s), is = least_of(&r);
                    if (expected != is)
                        fail_msg("H %d, P %d, %lld steps, early %d: %lld, expected %lld", interval,
                                 fragments, (long long)steps, e, (long long)expected,
                                 (long long)is);
                }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interval_changes),
        cmocka_unit_test(test_groups_have_intervals_of_their_own),
        cmocka_unit_test(test_cycles_go_on_in_a_new_interval),
        cmocka_unit_test(test_one_fragment),
        cmocka_unit_test(test_count_of_sends),
        cmocka_unit_test(test_overlap_and_fragments),
        cmocka_unit_test(test_in_flight_at_the_end_is_drained_twice),
        cmocka_unit_test(test_early_steps_have_their_own_interval),
        cmocka_unit_test(test_outage_counts_missed_intervals),
        cmocka_unit_test(test_outage_of_fragments),
        cmocka_unit_test(test_nothing_learned_since_a_snapshot),
        cmocka_unit_test(test_fewest_steps_of_an_update),
        cmocka_unit_test(test_unaligned_members_never_wait_for_each_other_in_a_circle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
