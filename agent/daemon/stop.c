// SPDX-License-Identifier: Apache-2.0
// How long an agent that is asked to end, by a reboot or the end of an allocation, waits for the
// checkpoints of its workers. The same for a job that stops.
//
//     asked ── the worker's step ── checkpoint: bytes move ──────────── durable, report ── end
//          │                      │
//          └─ up to a minute ─────┴─ while bytes move, and up to a minute after the last byte
//                                    (all within --stop-within)
//
// If hang_after_s is longer than a minute, it replaces the minute. A worker reports in its
// heartbeats whether bytes move (worker_report_moves). The service manager is asked to wait too, so
// that its own limit (TimeoutStopSec) counts only for an agent that moves nothing.
#include "agent/base/log.h"
#include "agent/daemon/state.h"
#include "agent/daemon/status.h"
#include "agent/show/progress.h"

#include <signal.h>

static const neb_ns patience = 60 * NEB_S,
                    again = 5 * NEB_S; // one signal to a process group may arrive twice

static neb_ns idle_of(const struct agent_jobrun *j) {
    neb_ns said = (neb_ns)((double)j->job.hang_after_s * (double)NEB_S);
    return said > patience ? said : patience;
}

static neb_ns within(const struct daemon *d) {
    return d->c->stop_within ? d->c->stop_within : AGENT_STOP_WITHIN_S * NEB_S;
}

// A signal within seconds of the first counts as the same request. So does the first signal from
// the parent process: a script that passes the signal on, or nebula pretrain, which got it from the
// terminal as this agent did.
void daemon_stop(struct daemon *d, bool from_parent) {
    neb_ns now = neb_now();
    bool same = now - d->stop_at <= again || (from_parent && !d->parent_told);
    d->parent_told |= from_parent;
    if (d->stopping && !same && daemon_busy(d)) {
        neb_warn("second request to end: unfinished checkpoints are abandoned, and jobs continue "
                 "from the previous ones");
        d->stop_now = true;
    }
    d->stop_at = d->stopping ? d->stop_at : now;
    d->stopping = true;
    agent_notify("STOPPING=1");
    // A reboot, the end of an allocation or Ctrl-C ends the agent, not its jobs: nebula stop stops
    // jobs.
    EACH_JOB (d, j)
        daemon_job_event(d, j, AGENT_EV_AGENT_ENDS, NULL);
}

// The time from which on nothing has moved, counted from the request to end.
static neb_ns last_sign(const struct daemon *d, const struct agent_jobrun *j) {
    return j->worker.moved_at > d->stop_at ? j->worker.moved_at : d->stop_at;
}

bool daemon_stop_waits(struct daemon *d) {
    neb_ns now = neb_now();
    bool late = now - d->stop_at > within(d), waits = false;
    EACH_JOB (d, j) {
        if (d->stop_now || !agent_job_active(j->state))
            continue;
        bool idle = now - last_sign(d, j) > idle_of(j);
        if (!late && !idle) {
            waits = true;
            continue;
        }
        if (!j->worker.given_up)
            neb_warn(late ? "job %s: its checkpoint was not complete %.0f s after the agent was "
                            "asked to end (--stop-within); it continues from the previous one"
                          : "job %s: no byte of its checkpoint has moved for %.0f s; it continues "
                            "from the previous one",
                     j->job.name, neb_seconds(late ? within(d) : idle_of(j)));
        j->worker.given_up = true;
    }
    return waits;
}

void daemon_say_left(struct daemon *d, struct agent_jobrun *j) {
    char text[160], left[32];
    neb_ns now = neb_now();
    bool moves = now - j->worker.moved_at < daemon_left_every;
    agent_timer_set(&j->timers, AGENT_TIMER_LEFT, now + (moves ? daemon_left_every : NEB_S));
    if (!moves)
        return;
    if (j->worker.left)
        snprintf(text, sizeof text, "stops: %s of its checkpoint are still to be written",
                 agent_human_bytes((double)j->worker.left, left, sizeof left));
    else
        snprintf(text, sizeof text, "stops: its checkpoint is being written");
    neb_info("job %s %s", j->job.name, text);
    daemon_note(d, j, text);
}

void daemon_extend_stop(struct daemon *d) {
    neb_ns now = neb_now(), longest = 0;
    char text[64];
    EACH_JOB (d, j) {
        neb_ns until = last_sign(d, j) + idle_of(j);
        longest = agent_job_stops(j->state) && until > longest ? until : longest;
    }
    if (!d->stopping || longest <= now)
        return;
    neb_ns end = d->stop_at + within(d), wait = (longest < end ? longest : end) - now;
    if (wait <= 0)
        return;
    snprintf(text, sizeof text, "EXTEND_TIMEOUT_USEC=%lld",
             (long long)((wait + 20 * NEB_S) / NEB_US)); // time to end the workers that remain
    agent_notify(text);
}
