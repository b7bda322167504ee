// Workers that hang: a rank that was stopped, a node that died, a receive that never ends. None of these ends a process, so the
// worker says before whatever it does how long that may take (worker_beat); one that says nothing for longer is ended, with all
// its ranks, and begins again from its checkpoint as a crashed one does.
#include "agent/base/log.h"
#include "agent/daemon_state.h"
#include "agent/launch.h"

#include <signal.h>

static const neb_ns kill_after = 10 * NEB_S, // of a worker that was told to end
    own_absence = 5 * NEB_S;                 // between two looks: this agent was stopped itself

void daemon_worker_again(struct daemon *d, struct agent_jobrun *j, const char *why) {
    daemon_say_fault(d, j, why);
    j->hung_at = neb_now();
    // A launcher ends its ranks at SIGTERM, stopped ones too. A process that is itself stopped takes no SIGTERM before it goes on; a worker
    // that the agent has started itself takes none at all.
    agent_child_signal(&j->worker, agent_launch_own(&j->job.clusters[j->self]) ? SIGKILL : SIGTERM);
    agent_child_signal(&j->worker, SIGCONT);
}

static void look(struct daemon *d, struct agent_jobrun *j) {
    char text[160];
    neb_ns now = neb_now();
    double silent_s = neb_seconds(now - j->beat_at);
    if (j->hung_at) {
        if (now - j->hung_at > kill_after)
            agent_child_signal(&j->worker, SIGKILL);
        return;
    }
    if (silent_s <= j->allow_s || j->queues)
        return;
    snprintf(text, sizeof text,
             j->reported ? "the worker hangs: %.0f s after its report, %.0f s at most were to be "
                           "expected, it is still there; it is ended"
                         : "the worker hangs: nothing was heard of it for %.0f s, where %.0f s "
                           "were to be expected at most; it is ended",
             silent_s, j->allow_s);
    daemon_worker_again(d, j, text);
}

void daemon_look_for_hangs(struct daemon *d) {
    neb_ns now = neb_now(), absent = now - d->looked_at;
    bool blind = d->looked_at && absent > own_absence;
    d->looked_at = now;
    for (int i = 0; i < AGENT_JOBS_MAX; i++) {
        struct agent_jobrun *j = &d->jobs[i];
        if (!j->used || !j->worker.pid || j->job.mode != AGENT_MODE_REPLICAS ||
            !(j->job.hang_after_s > 0))
            continue;
        if (blind)
            j->beat_at = now;
        look(d, j);
    }
}
