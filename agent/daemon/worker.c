// SPDX-License-Identifier: Apache-2.0
// Workers of jobs: their keys and devices, what follows when one ends, and when the next is
// started.
//
//     ended         restarted at once, then after 3 s, 15 s, from the last checkpoint
//                   (three times without progress)
//     not started   for lack of memory, processes, descriptors or space: tried again after
//                   1, 2, 4, ... 60 s (START_TRIES times)
#include "agent/base/log.h"
#include "agent/daemon/attach.h"
#include "agent/daemon/state.h"
#include "agent/exchange/exchange.h"
#include "agent/proc/launch.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

// About five minutes: what the worker lacks may be held by something that ends.
enum { START_TRIES = 10 };
static const neb_ns start_longest = 60 * NEB_S;

void daemon_workers_admit(struct daemon *d, const struct agent_jobrun *starting) {
    uint8_t keys[AGENT_JOBS_MAX + 1][AGENT_IPC_KEY];
    size_t n = 0;
    for (int i = -1; i < AGENT_JOBS_MAX; i++) {
        const struct agent_jobrun *j = i < 0 ? starting : &d->jobs[i];
        if (j && j->credential && (i < 0 || (j->used && j != starting)))
            memcpy(keys[n++], agent_credential_remote(j->credential)->public, AGENT_IPC_KEY);
    }
    agent_ipc_remote_admit(d->ipc, (const uint8_t(*)[AGENT_IPC_KEY])keys, n);
}

// GPUs of the agent's own host: other launchers have hosts of their own.
static void choose_gpus(struct daemon *d, struct agent_jobrun *j, char text[AGENT_GPUS_TEXT]) {
    const struct agent_cluster *c = &j->job.clusters[j->self];
    daemon_gpus_back(d, j);
    if (c->launcher == AGENT_LAUNCHER_LOCAL && c->device != AGENT_DEVICE_CPU &&
        agent_job_takes_devices(&j->job))
        j->gpus = agent_gpus_take(&d->gpus, agent_cluster_ranks(c));
    agent_gpus_text(&d->gpus, j->gpus, text);
    if (j->gpus)
        neb_info("job %s: its worker has GPUs %s, of %d", j->job.name, text, d->gpus.n);
}

void daemon_gpus_back(struct daemon *d, struct agent_jobrun *j) {
    agent_gpus_give_back(&d->gpus, j->gpus);
    j->gpus = 0;
}

enum neb_status daemon_worker_start(struct daemon *d, struct agent_jobrun *j) {
    char dir[NEB_PATH_MAX], log[NEB_PATH_MAX];
    daemon_job_dir(d, j, dir, sizeof dir);
    memset(j->wants, 0, sizeof j->wants);
    j->undelivered = 0;
    NEB_TRY(agent_self_path(d->exe, sizeof d->exe)); // it may have been replaced or removed
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(neb_path(log, sizeof log, dir, "worker.log"));
    agent_credential_destroy(&j->credential);
    NEB_TRY(agent_credential_create(sec_vault_key(d->vault), j->id, &j->credential));
    agent_credential_reach(j->credential, d->ipc);
    daemon_workers_admit(d, j);
    if (agent_attach_waits(j)) {
        NEB_TRY(agent_credential_leave(j->credential, dir));
        neb_info("job %s waits for a trainer: NEBULA_AGENT=%s NEBULA_JOB=%s", j->job.name,
                 d->socket_path, j->hex);
        return NEB_OK;
    }
    struct agent_launch launch;
    char gpus[AGENT_GPUS_TEXT];
    choose_gpus(d, j, gpus);
    NEB_TRY(agent_launch_worker(&j->job.clusters[j->self], d->c->workers != NULL, d->exe,
                                d->socket_path, j->hex, dir, gpus, &launch));
    j->client = (struct agent_ipc_client){0};
    j->progress = false;
    j->heartbeat_at = neb_now();
    j->killed_at = 0;
    j->kill_signal = launch.kill;
    j->queues = launch.queues;
    j->allow_s = EXCHANGE_HANG_OTHER * (double)j->job.hang_after_s;
    int fd = -1;
    if (j->job.clusters[j->self].launcher == AGENT_LAUNCHER_LOCAL)
        NEB_TRY(agent_credential_pipe(j->credential, &fd));
    else // a launcher with its own network
        NEB_TRY(agent_credential_offer(j->credential, dir, &fd));
    enum neb_status st = agent_child_start_fed(&j->worker, "worker", launch.argv, log, fd);
    close(fd);
    return st;
}

void daemon_worker_replace(struct daemon *d, struct agent_jobrun *j) {
    if (j->worker.pid) {
        j->replaced = true;
        daemon_worker_kill(j);
    } else if (j->client.len && agent_attach_waits(j)) {
        j->replaced = true;
        daemon_send(d, &j->client, json_pack("{s:s}", "ev", "again"));
        daemon_report_fault(
            d, j,
            "the attached trainer is asked to attach again, with another state of its "
            "parameters; until then this cluster takes no part");
    }
}

// True: a worker runs, is tried again later, or is no longer needed. False: *cause says why there
// will be none.
static bool start_or_wait(struct daemon *d, struct agent_jobrun *j, char *cause, size_t cap) {
    enum neb_status st = daemon_worker_start(d, j);
    j->unstarted[0] = 0;
    if (st == NEB_OK) {
        j->failed_starts = 0;
        return true;
    }
    daemon_gpus_back(d, j);
    neb_last_error(cause, cap);
    if (j->state == AGENT_JOB_STOPPING) {
        daemon_job_end_untrained(
            d, j,
            "stopped while no worker could be started: it continues from its last checkpoint");
        return true;
    }
    bool passes = st == NEB_ERR_IO || st == NEB_ERR_NOMEM || st == NEB_ERR_NOSPC;
    if (!passes || j->failed_starts >= START_TRIES)
        return false;
    neb_ns wait = NEB_S << j->failed_starts++;
    wait = wait < start_longest ? wait : start_longest;
    j->retry_at = neb_now() + wait;
    snprintf(j->unstarted, sizeof j->unstarted,
             "its worker cannot be started now (%s): trying again in %.0f s", cause,
             neb_seconds(wait));
    daemon_report_fault(d, j, j->unstarted);
    return true;
}

// cause: why none can be started; "": a worker has ended and is not restarted.
static void give_up(struct daemon *d, struct agent_jobrun *j, const char *cause) {
    char reason[96], text[NEB_PATH_MAX + 512], dir[NEB_PATH_MAX], logs[NEB_PATH_MAX + 64];
    if (cause[0]) {
        snprintf(text, sizeof text, "its worker cannot be started: %s", cause);
    } else {
        daemon_job_dir(d, j, dir, sizeof dir);
        agent_launch_logs(agent_cluster_ranks(&j->job.clusters[j->self]), dir, logs, sizeof logs);
        snprintf(text, sizeof text, "worker ended (%s); see %s",
                 agent_child_reason(j->end_status, reason, sizeof reason), logs);
    }
    daemon_job_fail(d, j, text);
    daemon_job_end(d, j, "failed");
}

enum neb_status daemon_worker_begin(struct daemon *d, struct agent_jobrun *j, bool waits) {
    char cause[256] = "";
    if (!waits)
        return daemon_worker_start(d, j);
    return start_or_wait(d, j, cause, sizeof cause) ? NEB_OK : neb_fail(NEB_ERR_STATE, "%s", cause);
}

void daemon_worker_due(struct daemon *d, struct agent_jobrun *j) {
    char cause[256] = "", dir[NEB_PATH_MAX];
    daemon_job_dir(d, j, dir, sizeof dir);
    if (j->worker.pid && agent_credential_answer(j->credential, dir) != NEB_OK)
        daemon_worker_kill(j); // another one is then started
    if (!j->retry_at || neb_now() < j->retry_at)
        return;
    j->retry_at = 0;
    if (!start_or_wait(d, j, cause, sizeof cause))
        give_up(d, j, cause);
}

// The cause may last a moment: a device that is being released, another process that uses the
// memory.
static neb_ns restart_wait(const struct agent_jobrun *j, int restart) {
    if (restart <= 1 || j->state == AGENT_JOB_STOPPING || agent_attach_waits(j))
        return 0;
    return restart == 2 ? 3 * NEB_S : 15 * NEB_S;
}

void daemon_worker_ended(struct daemon *d, struct agent_jobrun *j, int status) {
    char reason[96], when[32] = "", text[192];
    daemon_gpus_back(d, j);
    j->end_status = status;
    if (!j->reported && inter_streams_detach(d->streams.streams, j->id) != NEB_OK)
        neb_warn("the streams of job %s could not be told that the worker is gone", j->job.name);
    if (!agent_attach_waits(j)) {
        // the client is gone, and its keys must open nothing any more
        j->client = (struct agent_ipc_client){0};
        agent_credential_destroy(&j->credential);
        daemon_workers_admit(d, NULL);
    }
    agent_child_reason(status, reason, sizeof reason);
    if (j->reported) {
        const char *error = json_string_value(json_object_get(j->report, "error"));
        daemon_job_end(d, j,
                       error                                                 ? "failed"
                       : json_is_true(json_object_get(j->report, "stopped")) ? "stopped"
                                                                             : "done");
        return;
    }
    if (j->queues && j->state == AGENT_JOB_STOPPING) {
        daemon_job_end_untrained(d, j, "stopped while its launcher waited for hosts");
        return;
    }
    if (j->progress)
        j->restarts = 0;
    // a user had stopped it before
    if (d->stopping && j->state == AGENT_JOB_STOPPING && !j->suspended) {
        daemon_job_end_untrained(
            d, j, "stopped before its checkpoint was complete: it continues from the previous one");
        return;
    }
    if (d->stopping && j->suspended) {
        // At the end of an allocation all processes get the signal at once, and a launcher may end
        // its ranks before they have written a checkpoint.
        neb_warn("worker of job %s ended (%s) before its checkpoint was complete: it continues "
                 "from the previous one",
                 j->job.name, reason);
        daemon_job_end(d, j, "stopped");
        return;
    }
    // A stopping job is restarted too, so that it writes a checkpoint and reports.
    if (j->state == AGENT_JOB_ENDED || d->stopping ||
        (!j->replaced && j->restarts >= AGENT_RESTARTS_MAX)) {
        give_up(d, j, "");
        return;
    }
    neb_ns wait = 0;
    if (!j->replaced) {
        wait = restart_wait(j, ++j->restarts);
        if (wait)
            snprintf(when, sizeof when, " in %.0f s", neb_seconds(wait));
        neb_warn("worker of job %s ended (%s); restart %d of %d from its last checkpoint%s",
                 j->job.name, reason, j->restarts, AGENT_RESTARTS_MAX, when);
        snprintf(text, sizeof text, "worker ended (%s); it is started again%s", reason, when);
        daemon_note_fault(d, j, text);
    }
    if (!daemon_ledger_behind_done(d, j))
        return;
    j->replaced = false;
    j->retry_at = neb_now() + wait;
    daemon_worker_due(d, j);
}
