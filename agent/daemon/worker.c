// SPDX-License-Identifier: Apache-2.0
// Workers of jobs: their keys and devices, what follows when one ends, and when the next is
// started.
//
//     ended         restarted at once, then after 3 s, 15 s, from the last checkpoint
//                   (three times without progress)
//     not started   for lack of memory, processes, descriptors or space: tried again after
//                   1, 2, 4, ... 60 s (START_TRIES times)
//     silent        killed with all its ranks, and then restarted as if it had ended. A stopped
//                   rank, a dead node or a receive that never ends does not end a process, so a
//                   worker sends, before each piece of work, how long that may take
//                   (agent/exchange/exchange.h).
#include "agent/base/log.h"
#include "agent/daemon/attach.h"
#include "agent/daemon/state.h"
#include "agent/exchange/exchange.h"
#include "agent/proc/launch.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// About five minutes: what the worker lacks may be held by something that ends.
enum { START_TRIES = 10 };
static const neb_ns start_longest = 60 * NEB_S;
static const neb_ns kill_after = 10 * NEB_S;   // SIGKILL follows after this time
static const neb_ns report_within = 2 * NEB_S; // a report may arrive after the exit

void daemon_workers_admit(struct daemon *d) {
    uint8_t keys[AGENT_JOBS_MAX][AGENT_IPC_KEY];
    size_t n = 0;
    EACH_JOB (d, j)
        if (j->worker.credential)
            memcpy(keys[n++], agent_credential_remote(j->worker.credential)->public, AGENT_IPC_KEY);
    agent_ipc_remote_admit(d->ipc, (const uint8_t(*)[AGENT_IPC_KEY])keys, n);
}

// GPUs of the agent's own host: other launchers have hosts of their own.
static void choose_gpus(struct daemon *d, struct agent_jobrun *j, char text[AGENT_GPUS_TEXT]) {
    const struct agent_cluster *c = &j->job.clusters[j->self];
    daemon_gpus_back(d, j);
    if (c->launcher == AGENT_LAUNCHER_LOCAL && c->device != AGENT_DEVICE_CPU &&
        agent_job_takes_devices(&j->job))
        j->worker.gpus = agent_gpus_take(&d->gpus, agent_cluster_ranks(c));
    agent_gpus_text(&d->gpus, j->worker.gpus, text);
    if (j->worker.gpus)
        neb_info("job %s: its worker has GPUs %s, of %d", j->job.name, text, d->gpus.n);
}

void daemon_gpus_back(struct daemon *d, struct agent_jobrun *j) {
    agent_gpus_give_back(&d->gpus, j->worker.gpus);
    j->worker.gpus = 0;
}

static enum neb_status start_worker(struct daemon *d, struct agent_jobrun *j) {
    char log[NEB_PATH_MAX];
    memset(j->rounds.wants, 0, sizeof j->rounds.wants);
    j->rounds.undelivered = 0;
    NEB_TRY(agent_self_path(d->exe, sizeof d->exe)); // it may have been replaced or removed
    NEB_TRY(neb_fs_mkdirs(j->dir, 0700));
    NEB_TRY(neb_path(log, sizeof log, j->dir, "worker.log"));
    agent_credential_destroy(&j->worker.credential);
    NEB_TRY(agent_credential_create(sec_vault_key(d->vault), j->id, &j->worker.credential));
    agent_credential_reach(j->worker.credential, d->ipc);
    daemon_workers_admit(d);
    if (agent_attach_waits(j)) {
        NEB_TRY(agent_credential_leave(j->worker.credential, j->dir));
        neb_info("job %s waits for a trainer: NEBULA_AGENT=%s NEBULA_JOB=%s", j->job.name,
                 d->socket_path, j->hex);
        return NEB_OK;
    }
    struct agent_launch launch;
    char gpus[AGENT_GPUS_TEXT];
    choose_gpus(d, j, gpus);
    NEB_TRY(agent_launch_worker(&j->job.clusters[j->self], d->c->workers != NULL, d->exe,
                                d->socket_path, j->hex, j->dir, gpus, &launch));
    j->worker.client = (struct agent_ipc_client){0};
    j->worker.progress = false;
    j->worker.kill_signal = launch.kill;
    j->worker.queues = launch.queues;
    j->worker.allow_s = EXCHANGE_HANG_OTHER * (double)j->job.hang_after_s;
    int fd = -1;
    if (j->job.clusters[j->self].launcher == AGENT_LAUNCHER_LOCAL)
        NEB_TRY(agent_credential_pipe(j->worker.credential, &fd));
    else // a launcher with its own network
        NEB_TRY(agent_credential_offer(j->worker.credential, j->dir, &fd));
    enum neb_status st = agent_child_start_fed(&j->worker.child, "worker", launch.argv, log, fd);
    close(fd);
    daemon_worker_heard(j);
    return st;
}

void daemon_worker_replace(struct daemon *d, struct agent_jobrun *j) {
    if (j->worker.child.pid) {
        j->worker.replaced = true;
        daemon_worker_kill(j);
    } else if (j->worker.client.len && agent_attach_waits(j)) {
        j->worker.replaced = true;
        daemon_send(d, &j->worker.client, json_pack("{s:s}", "ev", "again"));
        daemon_report_fault(
            d, j,
            "the attached trainer is asked to attach again, with another state of its "
            "parameters; until then this cluster takes no part");
    }
}

// True: a worker runs, is tried again later, or is no longer needed. False: *cause says why there
// will be none.
static bool start_or_wait(struct daemon *d, struct agent_jobrun *j, char *cause, size_t cap) {
    enum neb_status st = start_worker(d, j);
    j->worker.unstarted[0] = 0;
    if (st == NEB_OK) {
        j->worker.failed_starts = 0;
        return true;
    }
    daemon_gpus_back(d, j);
    neb_last_error(cause, cap);
    if (agent_job_stops(j->state)) {
        daemon_job_alone(
            d, j,
            "stopped while no worker could be started: it continues from its last checkpoint");
        return true;
    }
    bool passes = st == NEB_ERR_IO || st == NEB_ERR_NOMEM || st == NEB_ERR_NOSPC;
    if (!passes || j->worker.failed_starts >= START_TRIES)
        return false;
    neb_ns wait = NEB_S << j->worker.failed_starts++;
    wait = wait < start_longest ? wait : start_longest;
    agent_timer_set(&j->timers, AGENT_TIMER_START, neb_now() + wait);
    snprintf(j->worker.unstarted, sizeof j->worker.unstarted,
             "its worker cannot be started now (%s): trying again in %.0f s", cause,
             neb_seconds(wait));
    daemon_report_fault(d, j, j->worker.unstarted);
    return true;
}

// cause: why none can be started; "": a worker has ended and is not restarted.
static void give_up(struct daemon *d, struct agent_jobrun *j, const char *cause) {
    char reason[96], text[NEB_PATH_MAX + 512], logs[NEB_PATH_MAX + 64];
    if (cause[0]) {
        snprintf(text, sizeof text, "its worker cannot be started: %s", cause);
    } else {
        agent_launch_logs(agent_cluster_ranks(&j->job.clusters[j->self]), j->dir, logs,
                          sizeof logs);
        snprintf(text, sizeof text, "worker ended (%s); see %s",
                 agent_child_reason(j->worker.end_status, reason, sizeof reason), logs);
    }
    daemon_job_worn(d, j, text);
}

enum neb_status daemon_worker_begin(struct daemon *d, struct agent_jobrun *j, bool waits) {
    char cause[256] = "";
    if (!waits)
        return start_worker(d, j);
    return start_or_wait(d, j, cause, sizeof cause) ? NEB_OK : neb_fail(NEB_ERR_STATE, "%s", cause);
}

void daemon_worker_due(struct daemon *d, struct agent_jobrun *j) {
    char cause[256] = "";
    if (!start_or_wait(d, j, cause, sizeof cause))
        give_up(d, j, cause);
}

void daemon_worker_look(struct agent_jobrun *j) {
    if (j->worker.child.pid && agent_credential_answer(j->worker.credential, j->dir) != NEB_OK)
        daemon_worker_kill(j); // another one is then started
    if (!agent_child_ended(&j->worker.child, &j->worker.end_status))
        return;
    // A worker that exited has sent its report, even after an error; it may still be in flight.
    bool waits = WIFEXITED(j->worker.end_status) && !j->report;
    agent_timer_clear(&j->timers, AGENT_TIMER_SILENT);
    agent_timer_clear(&j->timers, AGENT_TIMER_KILL);
    agent_timer_set(&j->timers, AGENT_TIMER_EXIT, neb_now() + (waits ? report_within : 0));
}

// The cause may last a moment: a device that is being released, another process that uses the
// memory.
static neb_ns restart_wait(const struct agent_jobrun *j, int restart) {
    if (restart <= 1 || agent_job_stops(j->state) || agent_attach_waits(j))
        return 0;
    return restart == 2 ? 3 * NEB_S : 15 * NEB_S;
}

// What follows for the job when its worker has ended without a report.
static void crashed(struct daemon *d, struct agent_jobrun *j) {
    char reason[96];
    agent_child_reason(j->worker.end_status, reason, sizeof reason);
    if (j->worker.progress)
        j->worker.restarts = 0;
    if (j->worker.queues && agent_job_stops(j->state))
        daemon_job_alone(d, j, "stopped while its launcher waited for hosts");
    else if (d->stopping && j->state == AGENT_JOB_STOPPING) // a user had stopped it before
        daemon_job_alone(
            d, j, "stopped before its checkpoint was complete: it continues from the previous one");
    else if (j->state != AGENT_JOB_SUSPENDING && !j->worker.replaced &&
             j->worker.restarts >= AGENT_RESTARTS_MAX)
        give_up(d, j, "");
    else {
        // At the end of an allocation all processes get the signal at once, and a launcher may end
        // its ranks before they have written a checkpoint.
        if (j->state == AGENT_JOB_SUSPENDING)
            neb_warn("worker of job %s ended (%s) before its checkpoint was complete: it continues "
                     "from the previous one",
                     j->job.name, reason);
        daemon_job_event(d, j, AGENT_EV_CRASHED, NULL);
    }
}

void daemon_worker_ended(struct daemon *d, struct agent_jobrun *j) {
    daemon_gpus_back(d, j);
    daemon_ranks_end(j);
    if (!j->report && inter_streams_detach(d->streams.streams, j->id) != NEB_OK)
        neb_warn("the streams of job %s could not be told that the worker is gone", j->job.name);
    if (!agent_attach_waits(j)) {
        // the client is gone, and its keys must open nothing any more
        j->worker.client = (struct agent_ipc_client){0};
        agent_credential_destroy(&j->worker.credential);
        daemon_workers_admit(d);
    }
    if (!daemon_job_said(d, j))
        crashed(d, j);
}

// A stopping job is restarted too, so that it writes a checkpoint and reports.
void daemon_worker_restart(struct daemon *d, struct agent_jobrun *j) {
    char reason[96], when[32] = "", text[192];
    neb_ns wait = 0;
    if (!j->worker.replaced) {
        wait = restart_wait(j, ++j->worker.restarts);
        if (wait)
            snprintf(when, sizeof when, " in %.0f s", neb_seconds(wait));
        agent_child_reason(j->worker.end_status, reason, sizeof reason);
        neb_warn("worker of job %s ended (%s); restart %d of %d from its last checkpoint%s",
                 j->job.name, reason, j->worker.restarts, AGENT_RESTARTS_MAX, when);
        snprintf(text, sizeof text, "worker ended (%s); it is started again%s", reason, when);
        daemon_note_fault(d, j, text);
    }
    if (!daemon_ledger_behind_done(d, j))
        return;
    j->worker.replaced = false;
    agent_timer_set(&j->timers, AGENT_TIMER_START, neb_now() + wait);
}

void daemon_worker_heard(struct agent_jobrun *j) {
    bool watched = j->worker.child.pid && !agent_timer_at(&j->timers, AGENT_TIMER_KILL) &&
                   !agent_timer_at(&j->timers, AGENT_TIMER_EXIT) && !j->worker.queues &&
                   j->job.hang_after_s > 0;
    if (watched)
        agent_timer_set(&j->timers, AGENT_TIMER_SILENT, neb_now() + daemon_span(j->worker.allow_s));
}

void daemon_worker_silent(struct daemon *d, struct agent_jobrun *j) {
    char text[160];
    snprintf(text, sizeof text,
             j->report ? "the worker hangs: it has not exited %.0f s after its report, and the "
                         "limit is %.0f s; it is killed"
                       : "the worker hangs: it has been silent for %.0f s, and the limit is %.0f "
                         "s; it is killed",
             j->worker.allow_s, j->worker.allow_s);
    daemon_worker_retry(d, j, text);
}

void daemon_worker_retry(struct daemon *d, struct agent_jobrun *j, const char *why) {
    daemon_report_fault(d, j, why);
    daemon_worker_kill(j);
}

void daemon_worker_kill(struct agent_jobrun *j) {
    agent_timer_clear(&j->timers, AGENT_TIMER_SILENT);
    if (!agent_timer_at(&j->timers, AGENT_TIMER_KILL)) // a second call does not postpone it
        agent_timer_set(&j->timers, AGENT_TIMER_KILL, neb_now() + kill_after);
    agent_child_signal(&j->worker.child, j->worker.kill_signal);
    // a stopped launcher takes no other signal until it continues
    agent_child_signal(&j->worker.child, SIGCONT);
}

void daemon_worker_survives(struct daemon *d, struct agent_jobrun *j) {
    (void)d;
    agent_child_signal(&j->worker.child, SIGKILL);
    agent_timer_set(&j->timers, AGENT_TIMER_KILL, neb_now() + NEB_S);
}
