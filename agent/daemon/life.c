// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/life.h"
#include "agent/base/status.h"

struct cell {
    bool listed; // false: nothing happens; a free entry gets no such event
    struct agent_life_step step;
};

#define ON(event, next, ...) [AGENT_EV_##event] = {true, {AGENT_JOB_##next, {__VA_ARGS__}, false}}
#define NEVER(event, state)  [AGENT_EV_##event] = {true, {AGENT_JOB_##state, {0}, true}}

#define NOTHING   AGENT_ACT_NONE
#define SAVE      AGENT_ACT_SAVE
#define REPORT    AGENT_ACT_REPORT
#define TELL      AGENT_ACT_TELL
#define RESTART   AGENT_ACT_RESTART
#define END       AGENT_ACT_END
#define AGAIN     AGENT_ACT_AGAIN
#define NOT_AGAIN AGENT_ACT_NOT_AGAIN
#define RESUME    AGENT_ACT_RESUME

#define ACTIVE(state) NEVER(START, state), NEVER(REOPEN, state), NEVER(AGAIN, state)

// An ended job starts anew through NONE: its entry is cleared first. An attached trainer may report
// again after the end; that changes nothing.
#define ENDED(state)                                                                               \
    NEVER(START, state), NEVER(REOPEN, state), NEVER(RESUME, state), ON(STOP, state, NOT_AGAIN),   \
        ON(AGENT_ENDS, state, NOT_AGAIN), ON(FAIL, state, REPORT), ON(LATER, SUSPENDED, SAVE)

static const struct cell table[AGENT_JOB_STATES][AGENT_EV_N] = {
    [AGENT_JOB_NONE] = {ON(START, RUNNING, NOTHING), ON(REOPEN, REOPENED, NOTHING)},
    [AGENT_JOB_RUNNING] = {ACTIVE(RUNNING), ON(STOP, STOPPING, SAVE, TELL),
                           ON(ASKED, STOPPING, SAVE, TELL),
                           // the ledger still says "running": also if the agent dies meanwhile
                           ON(AGENT_ENDS, SUSPENDING, TELL), NEVER(LATER, RUNNING),
                           ON(FAIL, FAILING, REPORT, SAVE, TELL), NEVER(ALONE, RUNNING),
                           ON(CRASHED, RUNNING, RESTART), ON(WORN, FAILED, REPORT, END),
                           ON(SAID_DONE, DONE, END), ON(SAID_STOPPED, STOPPED, END),
                           ON(SAID_ERROR, FAILED, END)},
    [AGENT_JOB_STOPPING] = {ACTIVE(STOPPING), ON(RESUME, RESUMING, SAVE),
                            ON(LATER, SUSPENDING, SAVE), ON(FAIL, FAILING, REPORT),
                            ON(ALONE, STOPPED, REPORT, END), ON(CRASHED, STOPPING, RESTART),
                            ON(WORN, FAILED, REPORT, END), ON(SAID_DONE, DONE, END),
                            ON(SAID_STOPPED, STOPPED, END), ON(SAID_ERROR, FAILED, END)},
    // A failure is published. Whether the job is failed is decided at its end: the worker may still
    // report that it stopped after a checkpoint, and the next start then tries again.
    [AGENT_JOB_SUSPENDING] = {ACTIVE(SUSPENDING), ON(ASKED, STOPPING, SAVE),
                              NEVER(RESUME, SUSPENDING), ON(LATER, SUSPENDING, SAVE),
                              ON(FAIL, SUSPENDING, REPORT), ON(ALONE, SUSPENDED, END),
                              ON(CRASHED, SUSPENDED, END), ON(WORN, FAILED, REPORT, END),
                              ON(SAID_DONE, DONE, END), ON(SAID_STOPPED, SUSPENDED, END),
                              ON(SAID_ERROR, FAILED, END)},
    [AGENT_JOB_RESUMING] = {ACTIVE(RESUMING), ON(STOP, STOPPING, SAVE), ON(ASKED, STOPPING, SAVE),
                            ON(AGENT_ENDS, SUSPENDING, NOTHING), NEVER(LATER, RESUMING),
                            ON(FAIL, FAILING, REPORT, SAVE), ON(ALONE, STOPPED, REPORT, END, AGAIN),
                            ON(CRASHED, RESUMING, RESTART), ON(WORN, FAILED, REPORT, END, AGAIN),
                            ON(SAID_DONE, DONE, END, AGAIN), ON(SAID_STOPPED, STOPPED, END, AGAIN),
                            ON(SAID_ERROR, FAILED, END, AGAIN)},
    // its report is there, so that a worker that ends says something
    [AGENT_JOB_FAILING] = {ACTIVE(FAILING), ON(RESUME, RESUMING, SAVE), ON(LATER, SUSPENDING, SAVE),
                           ON(FAIL, FAILING, REPORT), NEVER(ALONE, FAILING),
                           NEVER(CRASHED, FAILING), ON(WORN, FAILED, REPORT, END),
                           ON(SAID_DONE, FAILED, END), ON(SAID_STOPPED, FAILED, END),
                           ON(SAID_ERROR, FAILED, END)},
    [AGENT_JOB_DONE] = {ENDED(DONE), ON(ASKED, DONE, NOT_AGAIN), ON(AGAIN, DONE, RESUME)},
    [AGENT_JOB_STOPPED] = {ENDED(STOPPED), ON(ASKED, STOPPED, NOT_AGAIN),
                           ON(AGAIN, STOPPED, RESUME)},
    [AGENT_JOB_FAILED] = {ENDED(FAILED), ON(ASKED, FAILED, NOT_AGAIN), ON(AGAIN, FAILED, RESUME)},
    [AGENT_JOB_SUSPENDED] = {ENDED(SUSPENDED), ON(ASKED, STOPPED, SAVE), NEVER(AGAIN, SUSPENDED)},
    [AGENT_JOB_REOPENED] = {ENDED(REOPENED), ON(ASKED, REOPENED, NOTHING), NEVER(AGAIN, REOPENED)},
};

struct agent_life_step agent_life(enum agent_job_state s, enum agent_job_event e) {
    NEB_ASSERT(s < AGENT_JOB_STATES && e < AGENT_EV_N);
    const struct cell *c = &table[s][e];
    return c->listed ? c->step : (struct agent_life_step){.next = s, .never = s == AGENT_JOB_NONE};
}

static const struct {
    const char *stored, *shown, *phase;
} names[AGENT_JOB_STATES] = {
    [AGENT_JOB_NONE] = {"", "", ""},
    [AGENT_JOB_RUNNING] = {"running", "running", "running"},
    [AGENT_JOB_STOPPING] = {"stopping", "stopping", "stopping"},
    [AGENT_JOB_SUSPENDING] = {"running", "stopping", "stopping"},
    [AGENT_JOB_RESUMING] = {"running", "stopping", "stopping"},
    [AGENT_JOB_FAILING] = {"stopping", "stopping", "stopping"},
    [AGENT_JOB_DONE] = {"done", "done", "ended"},
    [AGENT_JOB_STOPPED] = {"stopped", "stopped", "ended"},
    [AGENT_JOB_FAILED] = {"failed", "failed", "ended"},
    [AGENT_JOB_SUSPENDED] = {"running", "suspended", "ended"},
    [AGENT_JOB_REOPENED] = {"done", "done", "ended"},
};
const char *agent_job_stored(enum agent_job_state s) { return names[s].stored; }
const char *agent_job_shown(enum agent_job_state s) { return names[s].shown; }
const char *agent_job_phase(enum agent_job_state s) { return names[s].phase; }

static int find(const struct agent_timers *t, enum agent_timer what) {
    int i = 0;
    while (i < t->n && t->list[i].what != what)
        i++;
    return i;
}

void agent_timer_set(struct agent_timers *t, enum agent_timer what, neb_ns at) {
    int i = find(t, what);
    t->n += i == t->n;
    t->list[i].at = at;
    t->list[i].what = what;
}

void agent_timer_clear(struct agent_timers *t, enum agent_timer what) {
    int i = find(t, what);
    if (i < t->n)
        t->list[i] = t->list[--t->n];
}

neb_ns agent_timer_at(const struct agent_timers *t, enum agent_timer what) {
    int i = find(t, what);
    return i < t->n ? t->list[i].at : 0;
}

bool agent_timer_take(struct agent_timers *t, neb_ns now_ns, enum agent_timer *what) {
    int first = 0;
    for (int i = 1; i < t->n; i++)
        first = t->list[i].at < t->list[first].at ? i : first;
    if (!t->n || t->list[first].at > now_ns)
        return false;
    *what = t->list[first].what;
    t->list[first] = t->list[--t->n];
    return true;
}
