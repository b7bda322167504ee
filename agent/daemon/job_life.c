// SPDX-License-Identifier: Apache-2.0
// Carries out what the table of a job's life (life.h) says.
#include "agent/base/log.h"
#include "agent/daemon/attach.h"
#include "agent/daemon/lines.h"
#include "agent/daemon/state.h"
#include "agent/daemon/sums.h"
#include "agent/exchange/exchange.h"

#include <signal.h>
#include <string.h>

struct agent_jobrun *daemon_next_job(const struct daemon *d, const struct agent_jobrun *j) {
    const struct agent_jobrun *end = d->jobs + AGENT_JOBS_MAX;
    for (j = j ? j + 1 : d->jobs; j < end && j->state == AGENT_JOB_NONE;)
        j++;
    return j < end ? (struct agent_jobrun *)(uintptr_t)j : NULL;
}

struct agent_jobrun *daemon_job(struct daemon *d, const char *hex) {
    EACH_JOB (d, j)
        if (hex && !strcmp(j->hex, hex))
            return j;
    return NULL;
}

struct agent_jobrun *daemon_job_by_id(struct daemon *d, const uint8_t id[AGENT_JOB_ID_BYTES]) {
    char hex[2 * AGENT_JOB_ID_BYTES + 1];
    neb_hex(id, AGENT_JOB_ID_BYTES, hex);
    return daemon_job(d, hex);
}

bool daemon_busy(const struct daemon *d) {
    EACH_JOB (d, j)
        if (agent_job_active(j->state))
            return true;
    return false;
}

void daemon_job_save(struct daemon *d, struct agent_jobrun *j) {
    struct agent_job_record r = {
        .spec = j->spec, .adopted = j->adopted, .wan = daemon_wan_bytes(d, j), .run = j->run};
    memcpy(r.hex, j->hex, sizeof r.hex);
    snprintf(r.home, sizeof r.home, "%s", j->local ? "" : j->owner);
    snprintf(r.sig, sizeof r.sig, "%s", j->sig);
    snprintf(r.state, sizeof r.state, "%s", agent_job_stored(j->state));
    for (int k = 0; k < j->job.n_clusters; k++)
        if (j->had[k] && (r.had || (r.had = json_object())))
            json_object_set_new(r.had, j->job.clusters[k].name, json_integer(j->had[k]));
    j->had_due = false;
    d->aside_due = true;
    if (agent_jobs_put(inter_service_ledger(d->service), &r, NULL) != NEB_OK)
        neb_warn("the state of job %s could not be stored", j->job.name);
    json_decref(r.had);
}

void daemon_job_forget(struct daemon *d, struct agent_jobrun *j) {
    daemon_gpus_back(d, j);
    if (j->had_due && d->service)
        daemon_job_save(d, j);
    if (d->service)
        daemon_store_lines(d, j);
    if (j->federated && d->service)
        inter_service_job_close(d->service, j->id);
    if (d->service &&
        inter_streams_close(inter_service_streams(d->service), j->id, false) != NEB_OK)
        neb_warn("streams of job %s could not be closed", j->job.name);
    if (d->service)
        inter_service_limit(d->service, j->id, NULL, false);
    d->sums_refused += agent_sums_refused(j->sums);
    agent_sums_close(&j->sums);
    daemon_ranks_end(j);
    agent_tensors_clear(&j->tensors.list);
    agent_lines_destroy(&j->lines);
    json_decref(j->spec);
    json_decref(j->report);
    for (int i = 0; i < j->job.n_clusters; i++)
        json_decref(j->others[i]);
    agent_credential_destroy(&j->worker.credential);
    *j = (struct agent_jobrun){0};
    if (d->ipc)
        daemon_workers_admit(d);
}

static enum agent_job_event said(const struct agent_jobrun *j) {
    return json_string_value(json_object_get(j->report, "error")) ? AGENT_EV_SAID_ERROR
           : json_is_true(json_object_get(j->report, "stopped"))  ? AGENT_EV_SAID_STOPPED
                                                                  : AGENT_EV_SAID_DONE;
}

static void keep_report(struct daemon *d, struct agent_jobrun *j, json_t *report) {
    json_decref(j->report);
    j->report = json_incref(report);
    daemon_publish_report(d, j, json_incref(report));
}

void daemon_witness_report(struct daemon *d, struct agent_jobrun *j, bool stopped) {
    json_t *report =
        json_pack("{s:s,s:b,s:b}", "name", daemon_name(d), "witness", true, "stopped", stopped);
    if (j->state == AGENT_JOB_SUSPENDING) // it continues: this report is not its last
        j->report = json_incref(report);
    else
        keep_report(d, j, report);
    json_decref(report);
    daemon_job_event(d, j, said(j), NULL);
}

// Tells the worker to stop. If there is none, the job ends here, or the next worker is started at
// once so that it writes a checkpoint and reports.
static void tell_stop(struct daemon *d, struct agent_jobrun *j) {
    agent_timer_set(&j->timers, AGENT_TIMER_LEFT, neb_now() + daemon_left_every);
    if (j->worker.client.len)
        daemon_send(d, &j->worker.client, json_pack("{s:s}", "ev", "stop"));
    else if (agent_attach_waits(j))
        daemon_job_alone(d, j, "stopped while no trainer was attached");
    else if (j->worker.queues &&
             j->worker.child.pid) // it cannot get messages yet: it ends with its launcher
        agent_child_signal(&j->worker.child, SIGTERM);
    else if (agent_timer_at(&j->timers, AGENT_TIMER_START) && (d->stopping || j->report))
        daemon_job_alone(d, j, "stopped while its worker waited for a restart");
    else if (agent_timer_at(&j->timers, AGENT_TIMER_START))
        agent_timer_set(&j->timers, AGENT_TIMER_START, neb_now());
    else if (j->job.clusters[j->self].witness && j->report) // its failure
        daemon_job_event(d, j, said(j), NULL);
    else if (j->job.clusters[j->self].witness) // it has nothing to save
        daemon_witness_report(d, j, true);
}

// Its rounds stay open: a member that was away may ask for the last ones.
static void end(struct daemon *d, struct agent_jobrun *j) {
    const char *error = json_string_value(json_object_get(j->report, "error"));
    daemon_gpus_back(d, j);
    j->timers = (struct agent_timers){0};
    j->worker.unstarted[0] = 0;
    daemon_job_save(d, j);
    if (j->federated && j->state == AGENT_JOB_SUSPENDED)
        inter_service_job_leave(d->service, j->id); // the others need not wait
    else if (j->federated && j->state == AGENT_JOB_FAILED)
        inter_service_job_idle(d->service, j->id);
    inter_service_limit(d->service, j->id, NULL, false);
    j->over_at = neb_now();
    d->ended_due = true;
    if (error && j->state == AGENT_JOB_FAILED)
        neb_warn("job %s: failed: %s", j->job.name, error);
    else
        neb_info("job %s: %s", j->job.name,
                 j->state != AGENT_JOB_SUSPENDED ? agent_job_shown(j->state)
                 : j->report
                     ? "suspended after a checkpoint; continues when the agent is back"
                     : "suspended; continues from its last checkpoint when the agent is back");
}

static void act(struct daemon *d, struct agent_jobrun *j, enum agent_job_action a, json_t *report) {
    switch (a) {
    case AGENT_ACT_SAVE: daemon_job_save(d, j); break;
    case AGENT_ACT_REPORT: keep_report(d, j, report); break;
    case AGENT_ACT_TELL: tell_stop(d, j); break;
    case AGENT_ACT_RESTART: daemon_worker_restart(d, j); break;
    case AGENT_ACT_END: end(d, j); break;
    case AGENT_ACT_AGAIN: agent_timer_set(&j->timers, AGENT_TIMER_AGAIN, neb_now()); break;
    case AGENT_ACT_NOT_AGAIN: agent_timer_clear(&j->timers, AGENT_TIMER_AGAIN); break;
    case AGENT_ACT_RESUME: daemon_job_resume_again(d, j); break;
    case AGENT_ACT_NONE: break;
    }
}

void daemon_job_event(struct daemon *d, struct agent_jobrun *j, enum agent_job_event e,
                      json_t *report) {
    struct agent_life_step step = agent_life(j->state, e);
    if (step.never)
        neb_warn("job %s: event %d in state %d is ignored", j->job.name, (int)e, (int)j->state);
    j->state = step.next;
    for (int i = 0; step.actions[i] != AGENT_ACT_NONE; i++)
        act(d, j, step.actions[i], report);
    json_decref(report);
}

static json_t *failure(const struct daemon *d, const char *text) {
    return json_pack("{s:s,s:s}", "name", daemon_name(d), "error", text);
}

void daemon_job_fail(struct daemon *d, struct agent_jobrun *j, const char *text) {
    daemon_job_event(d, j, AGENT_EV_FAIL, failure(d, text));
}

void daemon_job_leave(struct daemon *d, struct agent_jobrun *j, const char *text) {
    json_t *report = failure(d, text);
    json_object_set_new(report, "refused", json_true());
    daemon_report_fault(d, j, text);
    daemon_job_event(d, j, AGENT_EV_FAIL, report);
}

void daemon_job_give_up(struct daemon *d, struct agent_jobrun *j, const char *text) {
    daemon_report_fault(d, j, text);
    daemon_job_fail(d, j, text);
}

void daemon_job_worn(struct daemon *d, struct agent_jobrun *j, const char *text) {
    daemon_job_event(d, j, AGENT_EV_WORN, failure(d, text));
}

void daemon_job_alone(struct daemon *d, struct agent_jobrun *j, const char *why) {
    if (j->report) // its failure
        daemon_job_event(d, j, said(j), NULL);
    else
        daemon_job_event(d, j, AGENT_EV_ALONE, failure(d, why));
}

bool daemon_job_said(struct daemon *d, struct agent_jobrun *j) {
    if (j->report)
        daemon_job_event(d, j, said(j), NULL);
    return j->report;
}

static void on_again(struct daemon *d, struct agent_jobrun *j) {
    daemon_job_event(d, j, AGENT_EV_AGAIN, NULL);
}

// A job of another member that waits for ever (for absent clusters, a trainer, or hosts) would hold
// its resources here for ever.
static void on_idle(struct daemon *d, struct agent_jobrun *j) {
    char text[256];
    if (j->state != AGENT_JOB_RUNNING || j->job.clusters[j->self].witness || j->report)
        return;
    snprintf(text, sizeof text,
             "no step was made here for %.4g hours, and the policy of this site allows %.4g "
             "(hours_without_progress): the job stops here, with its checkpoint; nebula resume "
             "continues it",
             j->terms.idle_s / 3600, j->terms.idle_s / 3600);
    daemon_job_give_up(d, j, text);
}

void daemon_job_timers(struct daemon *d, struct agent_jobrun *j) {
    static void (*const due[AGENT_TIMERS])(struct daemon *, struct agent_jobrun *) = {
        [AGENT_TIMER_AGAIN] = on_again,
        [AGENT_TIMER_START] = daemon_worker_due,
        [AGENT_TIMER_EXIT] = daemon_worker_ended,
        [AGENT_TIMER_SILENT] = daemon_worker_silent,
        [AGENT_TIMER_KILL] = daemon_worker_survives,
        [AGENT_TIMER_IDLE] = on_idle,
        [AGENT_TIMER_LEFT] = daemon_say_left,
        [AGENT_TIMER_BEHIND] = daemon_ask_snapshot,
    };
    enum agent_timer what;
    while (agent_timer_take(&j->timers, neb_now(), &what))
        due[what](d, j);
}

void daemon_job_moved(struct agent_jobrun *j) {
    if (j->terms.idle_s > 0)
        agent_timer_set(&j->timers, AGENT_TIMER_IDLE, neb_now() + daemon_span(j->terms.idle_s));
    else
        agent_timer_clear(&j->timers, AGENT_TIMER_IDLE);
}
