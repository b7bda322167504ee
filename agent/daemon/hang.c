// SPDX-License-Identifier: Apache-2.0
// Workers that hang: a stopped rank, a dead node, a receive that never ends. None of these ends a
// process. So a worker sends, before each piece of work, how long that may take (worker_heartbeat).
// If it is silent for longer, it is killed with all its ranks and restarts from its checkpoint,
// like a crashed one.
#include "agent/base/log.h"
#include "agent/daemon/state.h"
#include "agent/proc/launch.h"

#include <signal.h>

static const neb_ns kill_after = 10 * NEB_S, // SIGKILL follows after this time
    // a longer gap between two checks shows that this agent itself was stopped
    own_absence = 5 * NEB_S;

void daemon_worker_retry(struct daemon *d, struct agent_jobrun *j, const char *why) {
    daemon_report_fault(d, j, why);
    daemon_worker_kill(j);
}

void daemon_worker_kill(struct agent_jobrun *j) {
    j->killed_at = neb_now();
    agent_child_signal(&j->worker, j->kill_signal);
    agent_child_signal(&j->worker,
                       SIGCONT); // a stopped launcher takes no other signal until it continues
}

static void look(struct daemon *d, struct agent_jobrun *j) {
    char text[160];
    neb_ns now = neb_now();
    double silent_s = neb_seconds(now - j->heartbeat_at);
    if (silent_s <= j->allow_s || j->queues)
        return;
    snprintf(text, sizeof text,
             j->reported ? "the worker hangs: it has not exited %.0f s after its report, and the "
                           "limit is %.0f s; it is killed"
                         : "the worker hangs: it has been silent for %.0f s, and the limit is %.0f "
                           "s; it is killed",
             silent_s, j->allow_s);
    daemon_worker_retry(d, j, text);
}

// A job of another member that waits for ever (for absent clusters, a trainer, or hosts) would hold
// its resources here for ever.
static void look_for_progress(struct daemon *d, struct agent_jobrun *j) {
    char text[256];
    double idle_s = neb_seconds(neb_now() - j->progress_at);
    if (j->state != AGENT_JOB_RUNNING || j->job.clusters[j->self].witness || j->reported ||
        !(j->terms.idle_s > 0) || idle_s <= j->terms.idle_s)
        return;
    snprintf(text, sizeof text,
             "no step was made here for %.4g hours, and the policy of this site allows %.4g "
             "(hours_without_progress): the job stops here, with its checkpoint; nebula resume "
             "continues it",
             idle_s / 3600, j->terms.idle_s / 3600);
    daemon_job_give_up(d, j, text);
}

void daemon_look_for_hangs(struct daemon *d) {
    neb_ns now = neb_now(), absent = now - d->looked_at;
    bool blind = d->looked_at && absent > own_absence;
    d->looked_at = now;
    for (int i = 0; i < AGENT_JOBS_MAX; i++) {
        struct agent_jobrun *j = &d->jobs[i];
        if (j->used && blind)
            j->progress_at += absent;
        if (j->used)
            look_for_progress(d, j);
        if (!j->used || !j->worker.pid)
            continue;
        if (j->killed_at) {
            if (now - j->killed_at > kill_after)
                agent_child_signal(&j->worker, SIGKILL);
            continue;
        }
        if (j->job.mode != AGENT_MODE_REPLICAS || !(j->job.hang_after_s > 0))
            continue;
        if (blind)
            j->heartbeat_at = now;
        look(d, j);
    }
}
