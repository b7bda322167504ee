// SPDX-License-Identifier: Apache-2.0
// The life of a job at one agent: a table of states and events, and a list of timers. Pure: no
// clock, no I/O. job_life.c and worker.c find the events and carry out the actions.
//
//     NONE ──START──► RUNNING ──STOP, ASKED──► STOPPING ──┐   ALONE, SAID_*   ┌──► STOPPED
//       │                │ ├────AGENT_ENDS───► SUSPENDING ─┤                   ├──► SUSPENDED
//       │                │ └────FAIL─────────► FAILING ────┼──────────────────►├──► FAILED
//       │                │    (STOPPING, FAILING ──RESUME──► RESUMING)         └──► DONE
//       │                └──SAID_*, WORN──► DONE, STOPPED, FAILED
//       └──REOPEN──► REOPENED
//
// In the five states from STOPPING to FAILING the worker writes a checkpoint, reports and exits. A
// worker that ends without a report (CRASHED) is started again, except by an agent that ends. A
// worker that ends after its report gives SAID_DONE, SAID_STOPPED or SAID_ERROR, by what the report
// says; a failure that the agent itself reported (FAIL) counts as SAID_ERROR.
//
//     state       in the ledger   shown as    what follows its end
//     RUNNING     running         running     -
//     STOPPING    stopping        stopping    it stays stopped
//     SUSPENDING  running         stopping    the next start of the agent continues it
//     RESUMING    running         stopping    it starts again at once (timer AGAIN)
//     FAILING     stopping        stopping    its error was reported; it stays failed
//     SUSPENDED   running         suspended   as SUSPENDING
//     REOPENED    done            done        only its rounds are open: it ended before this agent
//                                             started, and a cluster that was away asks for them
//
// Only an agent that ends has jobs in SUSPENDING, and it has none in RUNNING or RESUMING.
#ifndef AGENT_LIFE_H
#define AGENT_LIFE_H
#include "agent/base/clock.h"

#include <stdbool.h>

enum agent_job_state {
    AGENT_JOB_NONE, // a free entry
    AGENT_JOB_RUNNING,
    AGENT_JOB_STOPPING,
    AGENT_JOB_SUSPENDING,
    AGENT_JOB_RESUMING,
    AGENT_JOB_FAILING,
    AGENT_JOB_DONE,
    AGENT_JOB_STOPPED,
    AGENT_JOB_FAILED,
    AGENT_JOB_SUSPENDED,
    AGENT_JOB_REOPENED,
    AGENT_JOB_STATES
};

enum agent_job_event {
    AGENT_EV_START,        // the job is taken on
    AGENT_EV_REOPEN,       // only its rounds are opened
    AGENT_EV_STOP,         // this agent stops it: too few members, or contradicting member lists
    AGENT_EV_ASKED,        // a user stops it, here or at another cluster
    AGENT_EV_AGENT_ENDS,   // the agent was asked to end
    AGENT_EV_RESUME,       // a member resumes it, or submits it again
    AGENT_EV_LATER,        // the same, at an agent that ends
    AGENT_EV_FAIL,         // an error found here ends it
    AGENT_EV_ALONE,        // it stops, and no worker is there to save and report
    AGENT_EV_CRASHED,      // the worker has ended without a report
    AGENT_EV_WORN,         // no further worker can be started
    AGENT_EV_SAID_DONE,    // the worker has ended; its report says that the job is done,
    AGENT_EV_SAID_STOPPED, // that it stopped after a checkpoint,
    AGENT_EV_SAID_ERROR,   // or an error
    AGENT_EV_AGAIN,        // the timer of the same name
    AGENT_EV_N
};

enum agent_job_action {
    AGENT_ACT_NONE,
    AGENT_ACT_SAVE,      // write the state to the ledger
    AGENT_ACT_REPORT,    // keep and publish the report that came with the event
    AGENT_ACT_TELL,      // tell the worker to stop; without one, raise ALONE or SAID_*
    AGENT_ACT_RESTART,   // start the next worker
    AGENT_ACT_END,       // free what the job holds, save, tell the rounds
    AGENT_ACT_AGAIN,     // set the timer AGAIN
    AGENT_ACT_NOT_AGAIN, // clear it
    AGENT_ACT_RESUME,    // resume the ended job
};

enum { AGENT_LIFE_ACTIONS = 3 };
struct agent_life_step {
    enum agent_job_state next;
    // In order, after the change of state; AGENT_ACT_NONE ends the list. TELL, RESTART and RESUME
    // can raise further events, so each is the last of its list.
    enum agent_job_action actions[AGENT_LIFE_ACTIONS + 1];
    // The event cannot occur in this state. Nothing happens if it does.
    bool never;
};
struct agent_life_step agent_life(enum agent_job_state s, enum agent_job_event e);

// A worker may still have to save and report: STOPPING to FAILING.
static inline bool agent_job_stops(enum agent_job_state s) {
    return s >= AGENT_JOB_STOPPING && s <= AGENT_JOB_FAILING;
}
// Only its rounds are still open: DONE to REOPENED.
static inline bool agent_job_ended(enum agent_job_state s) { return s >= AGENT_JOB_DONE; }
static inline bool agent_job_active(enum agent_job_state s) {
    return s == AGENT_JOB_RUNNING || agent_job_stops(s);
}
const char *agent_job_stored(enum agent_job_state s); // its name in the ledger
// "running" or "stopping"; of an ended job "done", "stopped", "failed" or "suspended".
const char *agent_job_shown(enum agent_job_state s);
const char *agent_job_phase(enum agent_job_state s); // "running", "stopping" or "ended"

// What an entry waits for.
enum agent_timer {
    AGENT_TIMER_AGAIN,  // raises AGENT_EV_AGAIN
    AGENT_TIMER_START,  // start the worker
    AGENT_TIMER_EXIT,   // the worker has exited, and its report had time to arrive
    AGENT_TIMER_SILENT, // the worker hangs
    AGENT_TIMER_KILL,   // the killed worker still lives: SIGKILL
    AGENT_TIMER_IDLE,   // no step for as long as the site's policy allows
    AGENT_TIMER_LEFT,   // say how much of the checkpoint is left
    AGENT_TIMER_BEHIND, // the worker waits for a snapshot: ask for one
    AGENT_TIMERS
};

struct agent_timers { // all zero: empty
    int n;
    struct {
        neb_ns at;
        enum agent_timer what;
    } list[AGENT_TIMERS]; // at most one of each kind
};
void agent_timer_set(struct agent_timers *t, enum agent_timer what, neb_ns at); // or moves it
void agent_timer_clear(struct agent_timers *t, enum agent_timer what);
// When it is due; 0: it is not set.
neb_ns agent_timer_at(const struct agent_timers *t, enum agent_timer what);
// Takes the earliest timer that is due. False: none is.
bool agent_timer_take(struct agent_timers *t, neb_ns now_ns, enum agent_timer *what);

#endif
