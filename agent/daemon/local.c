// SPDX-License-Identifier: Apache-2.0
// Requests on agent.sock from nebula's commands and from workers. daemon_on_local at the end
// dispatches them.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/plain.h"
#include "agent/daemon/attach.h"
#include "agent/daemon/late.h"
#include "agent/daemon/snapshot.h"
#include "agent/daemon/state.h"
#include "agent/daemon/sums.h"
#include "agent/exchange/exchange.h"
#include "agent/job/id.h"
#include "agent/job/json.h"
#include "agent/proc/credential.h"

#include <string.h>

static bool watches(const struct agent_jobrun *j, const struct agent_ipc_client *from) {
    bool found = false;
    for (int i = 0; i < AGENT_WATCHERS_MAX; i++)
        found |= agent_ipc_same(&j->watchers[i], from);
    return found;
}

// Sends lines that came while nobody followed. They stay if the command is gone already.
static void tell_late(struct daemon *d, struct agent_jobrun *j,
                      const struct agent_ipc_client *from) {
    enum { AT_ONCE = 256 };
    json_t *late = agent_late_read(j->dir);
    size_t n = json_array_size(late);
    bool taken = late != NULL;
    for (size_t i = 0; i < n && taken; i += AT_ONCE) {
        json_t *some = json_array();
        for (size_t k = i; k < n && k < i + AT_ONCE; k++)
            json_array_append(some, json_array_get(late, k));
        taken =
            agent_ipc_send(d->ipc, from,
                           json_pack("{s:s,s:s,s:o}", "ev", "lines", "job", j->hex, "lines", some),
                           NULL, 0) == NEB_OK;
    }
    if (taken)
        agent_late_drop(j->dir);
    json_decref(late);
}

// Sends a new watcher the reports so far, and why there is no worker, which was perhaps reported
// before it watched.
static void add_watcher(struct daemon *d, struct agent_jobrun *j,
                        const struct agent_ipc_client *from) {
    tell_late(d, j, from); // before the reports: a watcher that has all of them ends
    if (j->worker.unstarted[0] && !watches(j, from))
        daemon_send(d, from,
                    json_pack("{s:s,s:s,s:{s:s,s:s,s:s}}", "ev", "line", "job", j->hex, "line",
                              "kind", "fault", "cluster", daemon_name(d), "text",
                              j->worker.unstarted));
    for (int i = 0; i < AGENT_WATCHERS_MAX && !watches(j, from); i++)
        if (!j->watchers[i].len)
            j->watchers[i] = *from;
    for (int i = 0; i < j->job.n_clusters; i++) {
        json_t *report = i == j->self ? j->report : j->others[i];
        if (report)
            daemon_send(
                d, from,
                json_pack("{s:s,s:s,s:O}", "ev", "report", "job", j->hex, "report", report));
    }
    daemon_send_members(d, j, from);
}

// A command has not heard of its job for a while: this agent may have been restarted meanwhile.
static void on_follow(struct daemon *d, const struct agent_ipc_client *from,
                      struct agent_ipc_msg *m) {
    const char *hex = agent_ipc_str(m, "job", ""), *state = "unknown";
    struct agent_jobrun *j = daemon_job(d, hex);
    struct agent_job_record r = {.spec = NULL};
    if (j && j->state != AGENT_JOB_REOPENED) {
        add_watcher(d, j, from);
        state = agent_job_phase(j->state);
    } else if (daemon_job_recall(d, hex, &r) == NEB_OK)
        state = r.state;
    daemon_send(d, from, json_pack("{s:s,s:s,s:s}", "ev", "follows", "job", hex, "state", state));
    agent_job_record_clear(&r);
}

static int64_t next_run(const struct agent_jobrun *j) {
    int64_t now = neb_wall_now() / NEB_MS;
    return now > j->run ? now : j->run + 1;
}

// The id belongs to another member's job, or was made in another federation.
static void refuse_id(struct daemon *d, const struct agent_ipc_client *from, const char *said,
                      const json_t *spec) {
    char why[512];
    struct agent_job_record known;
    bool is_known = daemon_job_recall(d, said, &known) == NEB_OK;
    if (!is_known || daemon_job_is_same(d, &known, spec, UINT32_MAX, why, sizeof why))
        snprintf(why, sizeof why,
                 "the id %.8s does not belong to this specification, submitted by agent \"%s\" in "
                 "its present federation: start a new run, with another --out",
                 said, daemon_name(d));
    agent_job_record_clear(&known);
    daemon_answer(d, from, false, why);
}

// Sends a message to the other clusters of the job, and owns it. False: there are none, because one
// process does everything.
static bool post_others(struct daemon *d, const struct agent_jobrun *j, enum agent_message kind,
                        json_t *body) {
    bool others = j->job.n_clusters > 1 && j->job.sync.scheme != AGENT_SCHEME_SYNCHRONOUS;
    for (int i = 0; others && i < j->job.n_clusters; i++)
        if (i != j->self)
            daemon_post(d, j->peers[i], kind, json_incref(body), true);
    json_decref(body);
    return others;
}

static void on_submit_job(struct daemon *d, const struct agent_ipc_client *from,
                          struct agent_ipc_msg *m) {
    char why[512], hex[2 * AGENT_JOB_ID_BYTES + 1];
    const char *said = agent_ipc_str(m, "id", ""); // "": a new job without an id
    json_t *spec = json_object_get(m->head, "spec");
    struct agent_job_record known;
    uint8_t id[AGENT_JOB_ID_BYTES];
    if (agent_job_id(daemon_federation(d), daemon_name(d), spec, id) != NEB_OK) {
        daemon_answer(d, from, false, "the agent has no memory left");
        return;
    }
    neb_hex(id, sizeof id, hex);
    if (*said && strcmp(said, hex)) {
        refuse_id(d, from, said, spec);
        return;
    }
    const struct agent_jobrun *runs = daemon_job(d, hex);
    if (d->stopping) {
        daemon_answer(d, from, false, "the agent is ending: submit the job when it is back");
        return;
    }
    if (runs && agent_job_stops(runs->state)) {
        daemon_answer(d, from, false,
                      "the job is still stopping: its checkpoint is being written (nebula status); "
                      "submit it again once it has stopped");
        return;
    }
    bool is_new = daemon_job_recall(d, hex, &known) != NEB_OK,
         ok = is_new || daemon_job_is_same(d, &known, spec, UINT32_MAX, why, sizeof why);
    agent_job_record_clear(&known);
    struct agent_jobrun *j =
        ok ? daemon_job_accept(d, hex, spec, UINT32_MAX, why, sizeof why) : NULL;
    if (!j) {
        daemon_answer(d, from, false, why);
        return;
    }
    j->local = true;
    daemon_job_resumed(d, j, next_run(j));
    daemon_send(d, from,
                json_pack("{s:s,s:b,s:s,s:s}", "ev", "answer", "ok", 1, "text", j->hex, "name",
                          daemon_name(d))); // the cluster whose models are here
    add_watcher(d, j, from);
    post_others(d, j, AGENT_MSG_JOB, daemon_signed_job(d, j));
    daemon_say_had(d, j, UINT32_MAX);
}

static json_t *suspects(const struct agent_jobrun *j) {
    json_t *a = json_array();
    for (int f = 0; f < agent_job_fragments(&j->job); f++)
        json_array_append_new(a, json_integer((json_int_t)j->doubt.suspect[f]));
    return a;
}

// Further ones are in nebula status.
void daemon_count_stranger(struct daemon *d, const char *what) {
    if (d->strangers++ == 0)
        neb_warn("%s: refused; further ones are counted", what);
}

// Finds a job for a waiting trainer. Trainers ask again and again, so the policy is read at most
// once a second; if it cannot be read, it lists nobody.
static void on_attachable(struct daemon *d, const struct agent_ipc_client *from,
                          const struct agent_ipc_msg *m) {
    neb_ns now = neb_now();
    if (!d->policy.read_at || now - d->policy.read_at > NEB_S) {
        d->policy.read_at = now;
        if (agent_policy_load(d->c->home, &d->policy.is) != NEB_OK)
            d->policy.is = agent_policy_none();
    }
    EACH_JOB (d, run)
        run->attach.listed = agent_policy_attaches(&d->policy.is, run->owner);
    json_t *answer = agent_attach_find(d->jobs, m);
    struct agent_jobrun *j =
        daemon_job(d, json_string_value(json_object_get(answer, "passed_over")));
    if (j && !j->attach.told)
        neb_warn("%s", json_string_value(json_object_get(answer, "text")));
    if (j)
        j->attach.told = true;
    daemon_send(d, from, answer);
}

static void on_attach(struct daemon *d, const struct agent_ipc_client *from,
                      struct agent_ipc_msg *m) {
    struct agent_jobrun *j = daemon_job(d, agent_ipc_str(m, "job", NULL));
    if (!j || agent_job_ended(j->state)) {
        daemon_answer(d, from, false, "no such job");
        return;
    }
    bool changed;
    char why[512];
    if (m->n_parts != 1 ||
        !agent_credential_is(j->worker.credential, m->parts[0].p, m->parts[0].len)) {
        daemon_count_stranger(d,
                              "a local process without the credentials of a job's worker tried to "
                              "attach as its worker");
        snprintf(why, sizeof why, "not the credentials of this job's worker");
        if (agent_attach_waits(j))
            snprintf(why, sizeof why,
                     "not the credentials of this job's trainer: %.400s/trainer.key was changed; "
                     "start the agent again, which reads it",
                     j->dir);
        daemon_answer(d, from, false, why);
        return;
    }
    bool foreign = agent_attach_waits(j);
    if (!agent_ipc_speaks_ours(m, foreign ? "trainer's libnebula" : "worker", why, sizeof why)) {
        daemon_report_fault(d, j, why);
        daemon_answer(d, from, false, why);
        return;
    }
    if (!agent_attach_admit(j, from, m, why, sizeof why)) {
        daemon_answer(d, from, false, why);
        return;
    }
    if (agent_attach_waits(j) && !daemon_ledger_behind_done(d, j)) {
        daemon_answer(d, from, false, "the job has failed");
        return;
    }
    j->worker.client = *from;
    j->worker.queues = false;
    daemon_worker_heard(j);
    memset(j->rounds.wants, 0, sizeof j->rounds.wants); // the worker will send what it waits for
    j->rounds.undelivered = 0;
    if (agent_attach_waits(j)) { // it starts with the present state
        j->worker.replaced = false;
        daemon_ranks_begin(d, j, m);
    }
    if (from->remote) {
        agent_ipc_remote_welcome(d->ipc, from);
        neb_info("job %s: rank 0 runs on another host, %s", j->job.name, from->address);
    }
    struct agent_ipc_part parts[2] = {0}, *seal = &parts[0], *sums;
    // built-in workers get their credentials through their pipe
    seal->p = agent_credential_bytes(j->worker.credential, &seal->len);
    sums = &parts[agent_attach_waits(j)];
    sums->p = agent_sums_keys(j->sums, &sums->len);
    json_t *head = json_pack(
        "{s:s,s:O,s:i,s:s,s:b,s:o,s:o,s:b}", "ev", "job", "spec", j->spec, "cluster", j->self,
        "dir", j->dir, "stop", agent_job_stops(j->state), "suspect", suspects(j), "taken",
        agent_snapshot_mask(j->doubt.taken, agent_job_fragments(&j->job)), "sums", sums->len != 0);
    json_t *alive = daemon_take_alive(d, j, &changed);
    json_object_update(head, alive);
    json_decref(alive);
    size_t n_parts = (size_t)(sums - parts) + (sums->len != 0);
    if (agent_ipc_send(d->ipc, from, head, parts, n_parts) != NEB_OK)
        neb_debug("a worker is gone");
}

void daemon_note_step(struct agent_jobrun *j, int64_t step) {
    if (step <= j->worker.newest_step)
        return;
    j->worker.newest_step = step;
    daemon_job_moved(j);
}

static void on_metrics(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    json_t *line = json_incref(json_object_get(m->head, "line"));
    if (!json_is_object(line)) {
        json_decref(line);
        return;
    }
    json_object_set_new(line, "cluster", json_string(daemon_name(d)));
    agent_disclosed_take(&j->disclosed, line);
    const char *kind = json_string_value(json_object_get(line, "kind"));
    const json_t *step = json_object_get(line, "step");
    bool saved = kind && !strcmp(kind, "checkpoint"); // its step is an earlier one
    int64_t *far = saved ? &j->worker.saved_step : &j->worker.farthest,
            at = json_integer_value(step);
    if (json_is_integer(step) && !saved)
        j->worker.last_step = at;
    j->worker.progress |= at > *far;
    *far = at > *far ? at : *far;
    daemon_note_step(j, saved ? 0 : at);
    daemon_publish_line(d, j, line);
}

static void on_report(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    json_t *report = json_object_get(m->head, "report");
    if (!json_is_object(report) || agent_job_ended(j->state))
        return;
    j->said.link_at = 0;
    daemon_send_link(d, j); // the last counters belong in the run's files
    struct agent_wan_bytes wan = daemon_wan_bytes(d, j);
    json_object_set_new(report, "name", json_string(daemon_name(d)));
    json_object_set_new(report, "wan_sent_bytes", json_integer((json_int_t)wan.sent));
    json_object_set_new(report, "wan_recv_bytes", json_integer((json_int_t)wan.recv));
    json_object_set_new(report, "wan_payload_bytes", json_integer((json_int_t)wan.payload));
    json_object_set_new(report, "wan_protocol_bytes",
                        json_integer((json_int_t)(wan.messages - wan.payload)));
    json_t *faults = json_object();
    for (int f = 0; f < INTER_FAULTS; f++)
        if (d->faults[f])
            json_object_set_new(faults, inter_fault_name((enum inter_fault)f),
                                json_integer((json_int_t)d->faults[f]));
    json_object_set_new(report, "faults", faults);
    if (j->linked && j->job.mode != AGENT_MODE_REPLICAS)
        json_object_set_new(report, "streams", agent_streams_report(&d->streams, j));
    json_object_set_new(report, "divergences", json_integer(j->doubt.divergences));
    // why the agent had it stop
    if (j->state != AGENT_JOB_SUSPENDING && json_object_get(j->report, "error") &&
        !json_object_get(report, "error"))
        json_object_update_missing(report, j->report);
    json_decref(j->report);
    j->report = json_incref(report);
    // the worker has only to exit, or, after an error, to finish a checkpoint
    j->worker.allow_s =
        (double)j->job.hang_after_s * (json_object_get(report, "error") ? EXCHANGE_HANG_OTHER : 2);
    daemon_worker_heard(j);
    if (agent_timer_at(&j->timers, AGENT_TIMER_EXIT)) // it waited for this report
        agent_timer_set(&j->timers, AGENT_TIMER_EXIT, neb_now());
    // a suspended job continues: this report is not its last
    if (j->state != AGENT_JOB_SUSPENDING || !json_is_true(json_object_get(report, "stopped")))
        daemon_publish_report(d, j, json_incref(report));
    else
        daemon_store_lines(d, j);
    if (agent_attach_waits(j)) // there is no process whose exit would end it
        daemon_worker_ended(d, j);
}

void daemon_trainer_left(struct daemon *d, struct agent_jobrun *j, bool said_so) {
    if (agent_job_ended(j->state) || !agent_attach_left(j, said_so))
        return;
    daemon_note_fault(d, j, "the attached trainer is gone");
    if (agent_job_stops(j->state))
        daemon_job_alone(d, j, "stopped while no trainer was attached");
}

// The job that a command names; the caller clears *out. False: the command has an answer.
static bool choose(struct daemon *d, const struct agent_ipc_client *from,
                   const struct agent_ipc_msg *m, struct agent_job_record *out) {
    char why[512];
    bool found = agent_jobs_choose(inter_service_ledger(d->service), agent_ipc_str(m, "job", ""),
                                   out, why, sizeof why) == NEB_OK;
    if (!found)
        daemon_answer(d, from, false, why);
    return found;
}

// A job that is held, or had failed before this agent started, is in the ledger only. It is stopped
// like any other.
static void give_up(struct daemon *d, const struct agent_ipc_client *from,
                    struct agent_job_record *r) {
    bool held = !strcmp(r->state, "held"), aside = held || !strcmp(r->state, "failed");
    snprintf(r->state, sizeof r->state, "stopped");
    d->aside_due = true;
    if (aside && agent_jobs_put(inter_service_ledger(d->service), r, NULL) == NEB_OK)
        daemon_answer(d, from, true,
                      held ? "it was held; now it is stopped, at this site"
                           : "it had failed; now it is stopped, at this site");
    else
        daemon_answer(d, from, false,
                      aside ? "the ledger could not be written" : "the job is not running");
}

static void on_stop_request(struct daemon *d, const struct agent_ipc_client *from,
                            struct agent_ipc_msg *m) {
    char why[512];
    struct agent_job_record r;
    if (!choose(d, from, m, &r))
        return;
    struct agent_jobrun *j = daemon_job(d, r.hex);
    if (!j)
        give_up(d, from, &r);
    agent_job_record_clear(&r);
    if (!j)
        return;
    bool over = agent_job_ended(j->state) && j->state != AGENT_JOB_SUSPENDED;
    daemon_job_stop_asked(d, j);
    bool others = post_others(d, j, AGENT_MSG_STOP, daemon_stop_message(j));
    snprintf(why, sizeof why, "it has ended here (%s)%s", agent_job_shown(j->state),
             others ? "; clusters where it still runs are asked to stop" : "");
    if (!over && j->job.clusters[j->self].witness)
        snprintf(why, sizeof why, "stopping after a checkpoint");
    else if (!over) {
        snprintf(why, sizeof why, "stopping after a checkpoint, here in %.400s/checkpoint", j->dir);
    }
    daemon_answer(d, from, !over || others, why);
}

static void on_forget_request(struct daemon *d, const struct agent_ipc_client *from,
                              struct agent_ipc_msg *m) {
    char why[512];
    struct agent_job_record r;
    if (!choose(d, from, m, &r))
        return;
    bool gone = daemon_job_forgotten(d, &r, why, sizeof why);
    if (gone) {
        neb_info("job %.8s is forgotten", r.hex);
        snprintf(why, sizeof why,
                 "forgotten: its checkpoints, updates and rounds are removed from this site");
    }
    daemon_answer(d, from, gone, why);
    agent_job_record_clear(&r);
}

// Resumes a job of any submitter that was stopped or has failed, here and at the other clusters:
// the submitter's signature is sent along. rejoin: with the others' state instead of the own one.
static void on_resume_request(struct daemon *d, const struct agent_ipc_client *from,
                              struct agent_ipc_msg *m, bool rejoin) {
    char why[512];
    struct agent_job_record r;
    if (d->stopping) {
        daemon_answer(d, from, false, "the agent is ending: try again when it is back");
        return;
    }
    if (!choose(d, from, m, &r))
        return;
    struct agent_jobrun *j = daemon_job(d, r.hex);
    bool runs = j && agent_job_active(j->state);
    if (runs || (rejoin && !daemon_job_renew(d, &r, why, sizeof why)) ||
        !daemon_job_resume(d, &r, true, why, sizeof why)) {
        daemon_answer(d, from, false, runs ? "the job is running, or still stopping" : why);
    } else if ((j = daemon_job(d, r.hex))->adopted) {
        // the other sites decide themselves: only the submitter could ask them
        daemon_job_resumed(d, j, next_run(j));
        snprintf(why, sizeof why,
                 "resumed at this site only: \"%s\", which submitted it, is no longer a member. "
                 "Each other site where it is held or stopped must resume it itself",
                 j->owner);
        daemon_answer(d, from, true, why);
    } else {
        daemon_job_resumed(d, j, next_run(j));
        json_t *body = daemon_signed_job(d, j);
        json_object_set_new(body, "resume", json_true());
        post_others(d, j, AGENT_MSG_JOB, body);
        daemon_say_had(d, j, UINT32_MAX);
        daemon_answer(d, from, true,
                      rejoin ? "resumed with the other clusters' state, which is fetched"
                             : "resumed from its last checkpoint");
    }
    agent_job_record_clear(&r);
}

static void on_list_request(struct daemon *d, const struct agent_ipc_client *from) {
    json_t *jobs = NULL, *o;
    size_t i;
    bool read = agent_jobs_list(inter_service_ledger(d->service), &jobs) == NEB_OK;
    json_array_foreach(jobs, i, o) {
        const struct agent_jobrun *j = daemon_job(d, json_string_value(json_object_get(o, "id")));
        if (!j || agent_job_ended(j->state))
            continue; // the ledger has the final counts
        struct agent_wan_bytes wan = daemon_wan_bytes(d, j);
        json_object_set_new(o, "sent_bytes", json_integer((json_int_t)wan.sent));
        json_object_set_new(o, "recv_bytes", json_integer((json_int_t)wan.recv));
    }
    if (!read)
        daemon_answer(d, from, false, "the ledger could not be read; the agent's log says why");
    else
        daemon_send(d, from, json_pack("{s:s,s:O}", "ev", "jobs", "jobs", jobs));
    json_decref(jobs);
}

static void on_heartbeat(struct agent_jobrun *j, const struct agent_ipc_msg *m) {
    json_int_t left = json_integer_value(json_object_get(m->head, "left"));
    j->worker.allow_s = json_number_value(json_object_get(m->head, "allow_s"));
    j->worker.left = left > 0 ? (uint64_t)left : 0;
    daemon_worker_heard(j);
    daemon_note_step(j, agent_ipc_int(m, "step", 0));
    if (json_is_true(json_object_get(m->head, "moves")))
        j->worker.moved_at = neb_now();
    if (neb_fault("worker.unknown"))
        j->worker.client = (struct agent_ipc_client){0};
}

// Requests of a job's worker. False: it is another request.
static bool on_worker(struct daemon *d, struct agent_jobrun *j, const char *op,
                      struct agent_ipc_msg *m) {
    daemon_worker_heard(j);
    if (!strcmp(op, "hello"))
        daemon_send_alive(d, j, true);
    else if (!strcmp(op, "heartbeat"))
        on_heartbeat(j, m);
    else if (!strcmp(op, "detach"))
        daemon_trainer_left(d, j, true);
    else if (!strcmp(op, "update") && json_is_true(json_object_get(m->head, "carried")))
        daemon_ranks_update(d, j, m);
    else if (!strcmp(op, "update"))
        daemon_on_update(d, j, m);
    else if (!strcmp(op, "shape"))
        daemon_on_shape(d, j, m);
    else if (!strcmp(op, "manifest"))
        daemon_on_manifest(d, j, m);
    else if (!strcmp(op, "ready"))
        daemon_on_ready(d, j, m);
    else if (!strcmp(op, "metrics"))
        on_metrics(d, j, m);
    else if (!strcmp(op, "report"))
        on_report(d, j, m);
    else if (!strcmp(op, "checkpoint"))
        daemon_on_checkpoint(d, j, m);
    else if (!strcmp(op, "snapshot-bad"))
        daemon_proof_bad(d, j, agent_ipc_str(m, "text", ""));
    else
        return agent_streams_request(&d->streams, j, m);
    return true;
}

// Requests of nebula's commands; false: it is none of them.
static bool on_command(struct daemon *d, const struct agent_ipc_client *from, const char *op,
                       struct agent_ipc_msg *m) {
    if (!strcmp(op, "submit"))
        on_submit_job(d, from, m);
    else if (!strcmp(op, "follow"))
        on_follow(d, from, m);
    else if (!strcmp(op, "attach"))
        on_attach(d, from, m);
    else if (!strcmp(op, "attachable"))
        on_attachable(d, from, m);
    else if (!strcmp(op, "status"))
        daemon_send(d, from, daemon_status(d));
    else if (!strcmp(op, "jobs"))
        on_list_request(d, from);
    else if (!strcmp(op, "resume") || !strcmp(op, "rejoin"))
        on_resume_request(d, from, m, !strcmp(op, "rejoin"));
    else if (!strcmp(op, "stop"))
        on_stop_request(d, from, m);
    else if (!strcmp(op, "forget"))
        on_forget_request(d, from, m);
    else
        return false;
    return true;
}

static bool is_for(const struct agent_ipc_msg *m, const struct agent_jobrun *j) {
    return !strcmp(agent_ipc_str(m, "job", ""), j->hex);
}

// Only the agent's own workers, and ranks of attached trainers, come by TCP, each with the keys of
// its job. A worker attaches to that job once, and then speaks for it on this connection. A rank
// may connect as often as it likes, but only carries parts of updates.
static bool remote_may(struct daemon *d, const struct agent_ipc_client *from,
                       const struct agent_jobrun *attached, bool attach, const char *op,
                       const struct agent_ipc_msg *m) {
    struct agent_jobrun *own = NULL;
    EACH_JOB (d, j)
        if (j->worker.credential && !memcmp(agent_credential_remote(j->worker.credential)->public,
                                            from->key, sizeof from->key))
            own = j;
    if (own && own->ranks)
        return agent_ranks_of(own->ranks, from) || (!strcmp(op, "rank") && is_for(m, own));
    if (own && !attach && own == attached)
        return true;
    if (own && attach && !own->worker.client.len && is_for(m, own))
        return true;
    if (own && own->worker.client.remote && own->worker.child.pid &&
        !agent_timer_at(&own->timers, AGENT_TIMER_KILL))
        daemon_worker_retry(
            d, own,
            "the connection with the worker on another host broke and was made again: messages may "
            "be lost, so the worker is killed and restarts from its checkpoint");
    return false;
}

// A client that has attached as the worker of a job speaks for that job on this connection, and for
// nothing else.
void daemon_on_local(struct daemon *d, const struct agent_ipc_client *from,
                     struct agent_ipc_msg *m) {
    const char *op = agent_ipc_str(m, "op", "");
    struct agent_jobrun *j = NULL;
    EACH_JOB (d, run)
        if (agent_ipc_same(&run->worker.client, from))
            j = run;
    bool attach = !strcmp(op, "attach"); // allowed again, after a restart of this agent
    if (from->remote && !remote_may(d, from, j, attach, op, m)) {
        daemon_count_stranger(d, "a worker on another host made a request that is not of its job");
        daemon_answer(d, from, false, "not allowed on this connection");
        return;
    }
    if (!j && daemon_ranks_message(d, from, op, m))
        return;
    // a worker's text reaches terminals, pages and files, as the text of a peer does
    if (j && !attach)
        agent_json_plain(m->head);
    if (j && !attach ? on_worker(d, j, op, m) : on_command(d, from, op, m))
        return;
    char what[160];
    snprintf(what, sizeof what,
             "a local process made a request that does not exist, or that only the worker of a job "
             "may make (%.40s)",
             op);
    neb_plain(what, false);
    daemon_count_stranger(d, what);
    daemon_answer(d, from, false, "unknown request");
}
