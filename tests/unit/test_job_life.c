// SPDX-License-Identifier: Apache-2.0
// The life of a job at an agent: every pair of state and event (agent/daemon/life.h).
#include "agent/daemon/life.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const states[AGENT_JOB_STATES] = {"none",    "run",    "stop",    "suspend",
                                                     "resume",  "fail",   "done",    "over",
                                                     "failed!", "asleep", "reopened"};

// The state after each event; "-": it cannot occur; "": nothing changes.
static const struct row {
    const char *event, *next[AGENT_JOB_STATES];
} expected[AGENT_EV_N] = {
    // none, run, stop, suspend, resume, fail, done, over, failed!, asleep, reopened
    {"start", {"run", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"}},
    {"reopen", {"reopened", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"}},
    {"stop", {"-", "stop", "", "", "stop", "", "", "", "", "", ""}},
    {"asked", {"-", "stop", "", "stop", "stop", "", "", "", "", "over", ""}},
    {"agent ends", {"-", "suspend", "", "", "suspend", "", "", "", "", "", ""}},
    {"resume", {"-", "", "resume", "-", "", "resume", "-", "-", "-", "-", "-"}},
    {"later",
     {"-", "-", "suspend", "", "-", "suspend", "asleep", "asleep", "asleep", "", "asleep"}},
    {"fail", {"-", "fail", "fail", "", "fail", "", "", "", "", "", ""}},
    {"alone", {"-", "-", "over", "asleep", "over", "-", "", "", "", "", ""}},
    {"crashed", {"-", "", "", "asleep", "", "-", "", "", "", "", ""}},
    {"worn", {"-", "failed!", "failed!", "failed!", "failed!", "failed!", "", "", "", "", ""}},
    {"said done", {"-", "done", "done", "done", "done", "failed!", "", "", "", "", ""}},
    {"said stopped", {"-", "over", "over", "asleep", "over", "failed!", "", "", "", "", ""}},
    {"said error",
     {"-", "failed!", "failed!", "failed!", "failed!", "failed!", "", "", "", "", ""}},
    {"again", {"-", "-", "-", "-", "-", "-", "", "", "", "-", "-"}},
};

static bool has(const struct agent_life_step *x, enum agent_job_action a) {
    bool found = false;
    for (int i = 0; i < AGENT_LIFE_ACTIONS; i++)
        found |= x->actions[i] == a;
    return found;
}

static void each_pair(void check(enum agent_job_state s, enum agent_job_event e,
                                 struct agent_life_step x)) {
    for (enum agent_job_state s = 0; s < AGENT_JOB_STATES; s++)
        for (enum agent_job_event e = 0; e < AGENT_EV_N; e++)
            check(s, e, agent_life(s, e));
}

static void is_as_drawn(enum agent_job_state s, enum agent_job_event e, struct agent_life_step x) {
    const char *want = expected[e].next[s];
    print_message("%s in %s: %s\n", expected[e].event, states[s], states[x.next]);
    assert_int_equal(x.never, !strcmp(want, "-"));
    assert_string_equal(states[x.next], *want && *want != '-' ? want : states[s]);
}

static void test_next_states(void **state) {
    (void)state;
    each_pair(is_as_drawn);
}

static void has_fitting_actions(enum agent_job_state s, enum agent_job_event e,
                                struct agent_life_step x) {
    bool ends = agent_job_active(s) && agent_job_ended(x.next);
    print_message("%s in %s: %s\n", expected[e].event, states[s], states[x.next]);
    if (x.never)
        assert_int_equal(x.actions[0], AGENT_ACT_NONE);
    assert_int_equal(has(&x, AGENT_ACT_END), ends);
    // the ledger follows the state; START saves only once the job's rounds and worker exist
    if (strcmp(agent_job_stored(s), agent_job_stored(x.next)) != 0 && s != AGENT_JOB_NONE)
        assert_true(ends || has(&x, AGENT_ACT_SAVE));
    // the worker is told once
    assert_int_equal(has(&x, AGENT_ACT_TELL), s == AGENT_JOB_RUNNING && agent_job_stops(x.next));
    assert_int_equal(has(&x, AGENT_ACT_AGAIN), s == AGENT_JOB_RESUMING && ends);
    // every failure is published. So is the end of a job without a worker, unless it continues
    bool fails = e == AGENT_EV_FAIL || e == AGENT_EV_WORN ||
                 (e == AGENT_EV_ALONE && s != AGENT_JOB_SUSPENDING);
    bool hears = !x.never && (agent_job_active(s) || e == AGENT_EV_FAIL);
    assert_int_equal(has(&x, AGENT_ACT_REPORT), fails && hears);
    bool done = false;
    for (int i = 0; i <= AGENT_LIFE_ACTIONS; i++) { // the action that raises events comes last
        enum agent_job_action a = x.actions[i];
        if (done)
            assert_int_equal(a, AGENT_ACT_NONE);
        done |= a == AGENT_ACT_NONE || a == AGENT_ACT_TELL || a == AGENT_ACT_RESTART ||
                a == AGENT_ACT_RESUME;
    }
    assert_true(done || x.actions[AGENT_LIFE_ACTIONS] == AGENT_ACT_NONE);
}

static void test_actions(void **state) {
    (void)state;
    each_pair(has_fitting_actions);
}

// What the daemon knows beside the state of the job.
struct world {
    enum agent_job_state s;
    bool ending;   // the agent was asked to end
    bool again;    // the timer AGAIN is set
    bool reported; // a report of this run is there
};

// True if the daemon raises the event in this state. For such an event the table never says "cannot
// occur".
static bool is_raised(const struct world *w, enum agent_job_event e) {
    bool there = w->s != AGENT_JOB_NONE, active = agent_job_active(w->s);
    switch (e) {
    case AGENT_EV_START: return !there && !w->ending;
    case AGENT_EV_REOPEN: return !there;
    case AGENT_EV_RESUME: return active && !w->ending;
    case AGENT_EV_LATER: return there && w->ending;
    case AGENT_EV_ALONE: return agent_job_stops(w->s) && !w->reported;
    case AGENT_EV_CRASHED: return active && !w->reported;
    case AGENT_EV_SAID_DONE:
    case AGENT_EV_SAID_STOPPED:
    case AGENT_EV_SAID_ERROR: return active && w->reported;
    case AGENT_EV_AGAIN: return w->again;
    default: return there;
    }
}

static struct world after(struct world w, enum agent_job_event e) {
    struct agent_life_step x = agent_life(w.s, e);
    assert_false(x.never);
    w.ending |= e == AGENT_EV_AGENT_ENDS;
    w.again = (w.again && !has(&x, AGENT_ACT_NOT_AGAIN) && e != AGENT_EV_AGAIN) ||
              has(&x, AGENT_ACT_AGAIN);
    w.reported |= has(&x, AGENT_ACT_REPORT);
    w.s = x.next;
    return w;
}

static size_t index_of(const struct world *w) {
    return (((size_t)w->s * 2 + w->ending) * 2 + w->again) * 2 + w->reported;
}

// Walks through everything that can happen, from a free entry on.
static void test_every_way(void **state) {
    (void)state;
    static struct world todo[AGENT_JOB_STATES * 8 * (AGENT_EV_N + 1)];
    bool seen[AGENT_JOB_STATES * 8] = {false}, reached[AGENT_JOB_STATES] = {false};
    size_t n = 0;
    todo[n++] = (struct world){.s = AGENT_JOB_NONE};
    todo[n++] = (struct world){.s = AGENT_JOB_NONE, .ending = true};
    while (n) {
        struct world w = todo[--n];
        if (seen[index_of(&w)])
            continue;
        seen[index_of(&w)] = reached[w.s] = true;
        // an agent that ends starts nothing and waits for all that run
        if (w.ending)
            assert_true(w.s != AGENT_JOB_RUNNING && w.s != AGENT_JOB_RESUMING && !w.again);
        else
            assert_true(w.s != AGENT_JOB_SUSPENDING && w.s != AGENT_JOB_SUSPENDED);
        assert_true(!w.again || agent_job_ended(w.s));
        for (enum agent_job_event e = 0; e < AGENT_EV_N; e++)
            if (is_raised(&w, e))
                todo[n++] = after(w, e);
        if (agent_job_active(w.s) && !w.reported) { // the worker reports
            w.reported = true;
            todo[n++] = w;
        }
    }
    for (int s = 0; s < AGENT_JOB_STATES; s++)
        assert_true(reached[s]);
}

static void test_names(void **state) {
    (void)state;
    assert_string_equal(agent_job_stored(AGENT_JOB_SUSPENDING), "running");
    assert_string_equal(agent_job_stored(AGENT_JOB_FAILING), "stopping");
    assert_string_equal(agent_job_shown(AGENT_JOB_RESUMING), "stopping");
    assert_string_equal(agent_job_shown(AGENT_JOB_SUSPENDED), "suspended");
    assert_string_equal(agent_job_shown(AGENT_JOB_REOPENED), "done");
    assert_string_equal(agent_job_phase(AGENT_JOB_SUSPENDED), "ended");
    assert_string_equal(agent_job_phase(AGENT_JOB_FAILING), "stopping");
}

static void test_timers(void **state) {
    (void)state;
    struct agent_timers t = {0};
    enum agent_timer what;
    assert_false(agent_timer_take(&t, NEB_S, &what));
    for (int i = 0; i < AGENT_TIMERS; i++)
        agent_timer_set(&t, (enum agent_timer)i, (AGENT_TIMERS - i) * NEB_S);
    agent_timer_set(&t, AGENT_TIMER_AGAIN, 3 * NEB_S / 2); // moved
    assert_int_equal(t.n, AGENT_TIMERS);
    assert_int_equal(agent_timer_at(&t, AGENT_TIMER_AGAIN), 3 * NEB_S / 2);
    agent_timer_clear(&t, AGENT_TIMER_BEHIND);
    agent_timer_clear(&t, AGENT_TIMER_BEHIND);
    assert_int_equal(agent_timer_at(&t, AGENT_TIMER_BEHIND), 0);
    assert_false(agent_timer_take(&t, NEB_S, &what));
    assert_true(agent_timer_take(&t, 2 * NEB_S, &what));
    assert_int_equal(what, AGENT_TIMER_AGAIN);
    assert_true(agent_timer_take(&t, 2 * NEB_S, &what));
    assert_int_equal(what, AGENT_TIMER_LEFT);
    assert_false(agent_timer_take(&t, 2 * NEB_S, &what));
    assert_int_equal(t.n, AGENT_TIMERS - 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_next_states), cmocka_unit_test(test_actions),
        cmocka_unit_test(test_every_way),   cmocka_unit_test(test_names),
        cmocka_unit_test(test_timers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
