#include "agent/daemon.h"
#include "agent/attach.h"
#include "agent/base/log.h"
#include "agent/daemon_streams.h"
#include "agent/harden.h"
#include "agent/launch.h"
#include "agent/members.h"
#include "agent/policy.h"
#include "agent/renew.h"
#include "agent/measure.h"
#include "agent/tune.h"
#include "agent/snapshot.h"
#include "agent/spread.h"
#include "agent/status.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { POLL_MAX = 1100 }; // 66 a peer when all bulk connections are open
static const neb_ns telemetry_interval = NEB_S, default_overlap = 600 * NEB_S;

struct daemon {
    const struct agent_daemon_config *c;
    void *zctx;
    struct sec_identity *identity;
    struct agent_members *trust;
    struct sec_members members; // of trust, as the service has it
    bool members_due;           // trust has a newer list than the service, which only a new one can take
    struct agent_spread spread;
    struct agent_renew renew;
    neb_ns rekey_at; // our own keys were rotated: when to look for them; 0: they were not
    struct inter_service *service;
    struct agent_streams streams;
    struct agent_ipc *ipc;
    char socket_path[NEB_PATH_MAX], exe[NEB_PATH_MAX];
    int signal_fd;
    struct agent_jobrun jobs[AGENT_JOBS_MAX];
    bool up[SEC_MEMBERS_MAX];
    uint64_t faults[INTER_FAULTS];
    neb_ns next_telemetry;
    struct agent_view *view; // what status, page and metrics show
    struct agent_web *web;   // NULL: no page
    bool stopping;
    bool changes; // a peer's list was taken; acted upon outside of the service's own calls
    struct agent_members_change change;
};

static void merge_change(struct agent_members_change *all, const struct agent_members_change *c) {
    bool first = !all->changed;
    all->changed |= c->changed;
    all->revoked |= c->revoked;
    all->forked |= c->forked;
    if (c->changed && first)
        memcpy(all->rotated, c->rotated, sizeof all->rotated);
    else if (c->changed) // two versions at once: no overlap for anybody
        all->rotated[0] = 0;
}

// ---- small things ---------------------------------------------------------------------------------------------

static const char *my_name(const struct daemon *d) {
    return sec_identity_public(d->identity)->name;
}

static struct agent_jobrun *find_job(struct daemon *d, const char *hex) {
    for (int i = 0; hex && i < AGENT_JOBS_MAX; i++)
        if (d->jobs[i].used && !strcmp(d->jobs[i].hex, hex))
            return &d->jobs[i];
    return NULL;
}

static struct agent_jobrun *find_job_id(struct daemon *d, const uint8_t id[AGENT_JOB_ID_BYTES]) {
    char hex[2 * AGENT_JOB_ID_BYTES + 1];
    neb_hex(id, AGENT_JOB_ID_BYTES, hex);
    return find_job(d, hex);
}

static void job_dir(const struct daemon *d, const struct agent_jobrun *j, char *out, size_t cap) {
    if (snprintf(out, cap, "%s/jobs/%s", d->c->home, j->hex) >= (int)cap)
        out[0] = 0;
}

static void tell_client(struct daemon *d, const struct agent_ipc_client *to, json_t *head) {
    if (!to->len)
        json_decref(head);
    else if (agent_ipc_send(d->ipc, to, head, NULL, 0) != NEB_OK)
        neb_debug("a local client is gone");
}

static void answer(struct daemon *d, const struct agent_ipc_client *to, bool ok, const char *text) {
    tell_client(d, to, json_pack("{s:s,s:b,s:s}", "ev", "answer", "ok", ok, "text", text));
}

static void post(struct daemon *d, uint32_t peer, enum agent_message kind, json_t *body,
                 bool reliable) {
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (!text || !d->members.m[peer].pub.name[0]) { // revoked
        free(text);
        return;
    }
    if (!reliable)
        inter_service_tell(d->service, peer, kind, text, strlen(text));
    else if (inter_service_send(d->service, peer, kind, text, strlen(text)) != NEB_OK)
        neb_warn("a message to %s could not be stored", d->members.m[peer].pub.name);
    free(text);
}

// An event of a job for everybody who follows it: local watchers, and the agent where it was submitted.
static void publish(struct daemon *d, struct agent_jobrun *j, const char *ev, const char *key,
                    json_t *body, bool reliable) {
    const char *error = json_string_value(json_object_get(body, "error")), *who = json_string_value(json_object_get(body, "name"));
    if (!strcmp(ev, "line"))
        agent_view_line(d->view, j->hex, j->job.sync.interval, body, neb_seconds(neb_wall_now()));
    else if (error)
        agent_view_event(d->view, j->hex, who ? who : my_name(d), error, neb_seconds(neb_wall_now()));
    for (int i = 0; i < AGENT_WATCHERS_MAX; i++)
        if (j->watchers[i].len)
            tell_client(d, &j->watchers[i],
                        json_pack("{s:s,s:s,s:O}", "ev", ev, "job", j->hex, key, body));
    if (!j->local && !strcmp(ev, "line"))
        post(d, j->home, AGENT_MSG_METRICS, json_pack("{s:s,s:O}", "id", j->hex, "line", body),
             false);
    else if (!j->local && !strcmp(ev, "report"))
        post(d, j->home, AGENT_MSG_REPORT, json_pack("{s:s,s:O}", "id", j->hex, "report", body),
             reliable);
    json_decref(body);
}

// Other clusters that are heard; *expected: enough of them for a commit.
static int peers_alive(const struct daemon *d, const struct agent_jobrun *j, bool *expected) {
    struct inter_job_status st;
    int live = 0, data = 0, voters = 0;
    *expected = false;
    for (int i = 0; !j->federated && j->linked && i < j->job.n_clusters; i++) // by streams alone
        live += i != j->self && d->up[j->peers[i]];
    if (!j->federated && (*expected = live > 0))
        return live;
    if (!j->federated || !inter_service_job_status(d->service, j->id, &st))
        return 0;
    for (int i = 0; i < j->job.n_clusters; i++) {
        live += st.live >> i & 1;
        data += st.live >> i & 1 && !j->job.clusters[i].witness;
        voters += !(st.removed >> i & 1);
    }
    *expected = live > voters / 2 && data >= (voters < 2 ? 1 : 2);
    return live - 1;
}

// The disk was lost, and what the others have committed is not all here yet.
static bool catching_up(const struct daemon *d, const struct agent_jobrun *j) {
    struct inter_job_status st;
    return j->federated && inter_service_job_status(d->service, j->id, &st) && st.lost && (!st.votes || st.lag);
}

// Tells the worker when it has changed who is there.
static void tell_alive(struct daemon *d, struct agent_jobrun *j) {
    bool expected;
    int alive = peers_alive(d, j, &expected);
    bool lost = catching_up(d, j);
    if (!j->client.len || !j->linked ||
        (alive == j->told_alive && expected == j->told_expected && lost == j->told_lost))
        return;
    j->told_alive = alive;
    j->told_expected = expected;
    j->told_lost = lost;
    tell_client(d, &j->client,
                json_pack("{s:s,s:i,s:b,s:b}", "ev", "peers", "alive", alive, "expected", expected, "lost", lost));
}

static void link_totals(struct daemon *d, const struct agent_jobrun *j, uint64_t *sent,
                        uint64_t *recv) {
    struct inter_peer_stats s;
    *sent = *recv = 0;
    for (int i = 0; i < j->job.n_clusters; i++)
        if (i != j->self && inter_service_stats(d->service, j->peers[i], &s) == NEB_OK) {
            *sent += s.link.sent_bytes;
            *recv += s.link.recv_bytes;
        }
}

static void wan_bytes(struct daemon *d, const struct agent_jobrun *j, uint64_t *sent,
                      uint64_t *recv) {
    *sent = *recv = 0;
    if (!j->linked)
        return;
    link_totals(d, j, sent, recv);
    *sent += j->sent_before - j->sent_base;
    *recv += j->recv_before - j->recv_base;
}

static void save_state(struct daemon *d, struct agent_jobrun *j, const char *state) {
    uint64_t sent, recv;
    wan_bytes(d, j, &sent, &recv);
    json_t *s = json_pack("{s:s,s:I,s:I,s:s,s:s}", "state", state, "sent", (json_int_t)sent, "recv",
                          (json_int_t)recv, "home",
                          j->local ? "" : d->members.m[j->home].pub.name, "sig", j->sig);
    char *spec = json_dumps(j->spec, JSON_COMPACT), *text = json_dumps(s, JSON_COMPACT);
    if (spec && text &&
        inter_ledger_put_job(inter_service_ledger(d->service), j->id, spec, text) != NEB_OK)
        neb_warn("the state of job %s could not be stored", j->job.name);
    free(spec);
    free(text);
    json_decref(s);
}

struct recall {
    const uint8_t *id;
    uint64_t sent, recv;
    bool found;
};

static void recall_job(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                       const char *state) {
    struct recall *r = user;
    (void)spec;
    if (memcmp(id, r->id, INTER_ID_BYTES))
        return;
    json_t *s = json_loads(state, 0, NULL);
    r->found = true;
    r->sent = (uint64_t)json_integer_value(json_object_get(s, "sent"));
    r->recv = (uint64_t)json_integer_value(json_object_get(s, "recv"));
    json_decref(s);
}

// ---- jobs -----------------------------------------------------------------------------------------------------

static enum neb_status start_worker(struct daemon *d, struct agent_jobrun *j) {
    char dir[NEB_PATH_MAX], log[NEB_PATH_MAX];
    job_dir(d, j, dir, sizeof dir);
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(neb_path(log, sizeof log, dir, "worker.log"));
    if (agent_attach_waits(j)) {
        neb_info("job %s waits for a trainer: NEBULA_AGENT=%s NEBULA_JOB=%s", j->job.name, d->socket_path, j->hex);
        return NEB_OK;
    }
    struct agent_launch launch;
    NEB_TRY(
        agent_launch_worker(&j->job.clusters[j->self], d->exe, d->socket_path, j->hex, dir, &launch));
    j->client = (struct agent_ipc_client){0};
    j->step_at_start = j->last_step;
    return agent_child_start(&j->worker, "worker", launch.argv, log, NULL);
}

static void forget(struct daemon *d, struct agent_jobrun *j) {
    if (j->federated && d->service)
        inter_service_job_close(d->service, j->id);
    if (d->service && inter_streams_close(inter_service_streams(d->service), j->id, false) != NEB_OK)
        neb_warn("streams of job %s could not be closed", j->job.name);
    json_decref(j->spec);
    json_decref(j->report);
    *j = (struct agent_jobrun){0};
}

// Which member each cluster is. The job's own operator decides what runs here: unknown names are refused.
static enum neb_status map_clusters(const struct daemon *d, struct agent_jobrun *j, char *why,
                                    size_t cap) {
    j->self = -1;
    for (int i = 0; i < j->job.n_clusters; i++) {
        const char *name = j->job.clusters[i].name;
        if (!strcmp(name, my_name(d)))
            j->self = i;
        uint32_t peer = UINT32_MAX;
        for (uint32_t k = 0; k < d->members.n; k++)
            if (!strcmp(d->members.m[k].pub.name, name))
                peer = k;
        if (peer == UINT32_MAX && j->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
            continue; // the reference runs in one process: the other clusters are only its data
        if (peer == UINT32_MAX) {
            snprintf(
                why, cap,
                "cluster \"%s\" is no member known to agent \"%s\"; add it with nebula peer add",
                name, my_name(d));
            return NEB_ERR_NOT_FOUND;
        }
        j->peers[i] = peer;
    }
    if (j->self < 0) {
        snprintf(why, cap, "agent \"%s\" is none of the job's clusters", my_name(d));
        return NEB_ERR_INVALID;
    }
    return NEB_OK;
}

// The operator's word about jobs of others; read anew for each, so that a change needs no restart.
static bool policy_admits(struct daemon *d, const struct agent_jobrun *j, uint32_t home, char *why,
                          size_t cap) {
    struct agent_policy p;
    if (home == UINT32_MAX)
        return true;
    if (agent_policy_load(d->c->home, &p) != NEB_OK) {
        snprintf(why, cap, "the policy of site \"%s\" cannot be read; its agent's log says why",
                 my_name(d));
        return false;
    }
    bool ok = agent_policy_admits(&p, &j->job, j->self, d->members.m[home].pub.name, why, cap);
    if (!ok)
        neb_warn("job %s of %s refused: %s", j->job.name, d->members.m[home].pub.name, why);
    return ok;
}

// Clusters whose vote a signed membership version took: of two, the one that was given up.
static uint16_t removed_clusters(const struct daemon *d, const struct agent_jobrun *j) {
    uint16_t removed = 0;
    for (int i = 0; i < j->job.n_clusters; i++)
        if (agent_members_lost(d->trust, j->job.clusters[i].name))
            removed |= (uint16_t)(1u << i);
    return removed;
}

static enum neb_status open_rounds(struct daemon *d, struct agent_jobrun *j) {
    struct inter_job_config c = {.n_members = (uint8_t)j->job.n_clusters,
                                 .self = (uint8_t)j->self,
                                 .fragments = (uint32_t)j->job.sync.fragments,
                                 .merge_after = (uint32_t)j->job.sync.merge_after,
                                 .commit_all = j->job.sync.commit_all,
                                 .grace = (neb_ns)((double)j->job.sync.grace_s * 1e9),
                                 .eta = j->job.sync.eta,
                                 .mu = j->job.sync.mu,
                                 .robust = j->job.sync.gate == AGENT_GATE_ROBUST,
                                 .tune = agent_tune_config(&j->job)};
    memcpy(c.id, j->id, sizeof c.id);
    memcpy(c.peers, j->peers, sizeof c.peers);
    for (int i = 0; i < j->job.n_clusters; i++)
        if (j->job.clusters[i].witness)
            c.witnesses |= (uint16_t)(1u << i);
    c.removed = j->removed = removed_clusters(d, j);
    char dir[NEB_PATH_MAX];
    job_dir(d, j, dir, sizeof dir);
    NEB_TRY(agent_snapshot_install(d->service, &c, dir, j->job.clusters[j->self].witness, &j->taken));
    return inter_service_job_open(d->service, &c);
}

// The job's limit of rate; and what its earlier runs have sent and received counts too.
static enum neb_status recall_totals(struct daemon *d, struct agent_jobrun *j) {
    struct recall r = {.id = j->id};
    struct inter_rate_limit limit;
    NEB_TRY(inter_rate_limit_parse(j->job.rate_limit, &limit));
    inter_service_limit(d->service, j->id, &limit);
    NEB_TRY(inter_ledger_jobs(inter_service_ledger(d->service), recall_job, &r));
    j->sent_before = r.sent;
    j->recv_before = r.recv;
    link_totals(d, j, &j->sent_base, &j->recv_base);
    return NEB_OK;
}

// Bound into signatures of jobs. A pair without a CA has none: its sites may know different sets of others.
static const uint8_t *federation_id(const struct daemon *d) {
    static const uint8_t none[SEC_FEDERATION_BYTES];
    return agent_members_federation(d->trust) ? d->members.federation : none;
}

// {"id", "spec", "home", "sig"}: a job for another site, signed by the member that submitted it.
static json_t *signed_job(struct daemon *d, const struct agent_jobrun *j) {
    struct neb_buf b = {0};
    uint8_t sig[SEC_SIGN_BYTES];
    char hex[2 * SEC_SIGN_BYTES + 1] = "";
    if (j->local && agent_job_signed_bytes(federation_id(d), j->id, j->spec, &b) == NEB_OK &&
        sec_sign(d->identity, AGENT_CONTEXT_JOB, b.p, b.len, sig) == NEB_OK)
        neb_hex(sig, sizeof sig, hex);
    neb_buf_free(&b);
    return json_pack("{s:s,s:O,s:s,s:s}", "id", j->hex, "spec", j->spec, "home",
                     j->local ? my_name(d) : d->members.m[j->home].pub.name, "sig",
                     j->local ? hex : j->sig);
}

// Whether home (UINT32_MAX: this member) has signed this job, whoever passes it on.
static bool job_is_signed(struct daemon *d, uint32_t home, const char *id_hex, const json_t *body) {
    struct neb_buf b = {0};
    uint8_t sig[SEC_SIGN_BYTES], id[AGENT_JOB_ID_BYTES];
    const char *hex = json_string_value(json_object_get(body, "sig"));
    const struct sec_member *me = sec_members_by_name(&d->members, my_name(d));
    if (home == UINT32_MAX && me)
        home = (uint32_t)(me - d->members.m);
    bool ok = hex && neb_unhex(hex, sig, sizeof sig) && neb_unhex(id_hex, id, sizeof id) &&
              agent_job_signed_bytes(federation_id(d), id, json_object_get(body, "spec"), &b) ==
                  NEB_OK &&
              inter_service_verify(d->service, home, AGENT_CONTEXT_JOB, b.p, b.len, sig);
    neb_buf_free(&b);
    return ok;
}

// Takes a job over: from the command line (home UINT32_MAX) or from another agent.
static struct agent_jobrun *accept_job(struct daemon *d, const char *hex, json_t *spec,
                                       uint32_t home, char *why, size_t cap) {
    struct agent_jobrun *j = find_job(d, hex);
    if (j && j->state != AGENT_JOB_ENDED)
        return j; // said twice
    if (j)
        forget(d, j);
    for (int i = 0; i < AGENT_JOBS_MAX && !j; i++)
        j = d->jobs[i].used && d->jobs[i].state != AGENT_JOB_ENDED ? NULL : &d->jobs[i];
    if (!j) {
        snprintf(why, cap, "agent \"%s\" runs %d jobs already", my_name(d), AGENT_JOBS_MAX);
        return NULL;
    }
    if (j->used)
        forget(d, j);
    snprintf(why, cap, "agent \"%s\" cannot run the job; its log says why", my_name(d));
    if (!hex || !neb_unhex(hex, j->id, sizeof j->id) ||
        agent_job_from_json(spec, &j->job) != NEB_OK)
        return NULL;
    memcpy(j->hex, hex, sizeof j->hex);
    if (map_clusters(d, j, why, cap) != NEB_OK || !policy_admits(d, j, home, why, cap))
        return NULL;
    j->used = true;
    j->spec = json_incref(spec);
    j->local = home == UINT32_MAX;
    j->home = home;
    j->linked = j->job.sync.scheme == AGENT_SCHEME_FEDERATED && j->job.n_clusters > 1;
    j->federated = j->linked && j->job.mode == AGENT_MODE_REPLICAS;
    bool witness = j->job.clusters[j->self].witness;
    if ((j->linked && recall_totals(d, j) != NEB_OK) || (j->federated && open_rounds(d, j) != NEB_OK) ||
        (!witness && start_worker(d, j) != NEB_OK)) {
        char text[400];
        neb_last_error(text, sizeof text);
        snprintf(why, cap, "agent \"%s\" cannot run the job: %s", my_name(d), text);
        forget(d, j);
        return NULL;
    }
    save_state(d, j, "running");
    neb_info("job %s (%.8s) starts", j->job.name, j->hex);
    return j;
}

// Whoever submits a job hears of it, even if another one had offered it before; its signature is passed on with it.
static void took_job(struct daemon *d, struct agent_jobrun *j, uint32_t home, const char *sig) {
    j->home = home;
    snprintf(j->sig, sizeof j->sig, "%s", sig ? sig : "");
    save_state(d, j, "running");
}

static void end_job(struct daemon *d, struct agent_jobrun *j, const char *state) {
    if (j->suspended && !strcmp(state, "stopped")) { // the agent goes down: the others need not wait, and it goes on when it is back
        save_state(d, j, "running");
        if (j->federated)
            inter_service_job_leave(d->service, j->id);
        state = "suspended after a checkpoint; goes on when the agent is back";
    } else {
        save_state(d, j, state);
    }
    inter_service_limit(d->service, j->id, NULL);
    j->state = AGENT_JOB_ENDED; // its rounds stay open: a member that was away may still ask for the last of them
    neb_info("job %s: %s", j->job.name, state);
}

static void report_failure(struct daemon *d, struct agent_jobrun *j, const char *text) {
    j->reported = true;
    json_decref(j->report);
    j->report = json_pack("{s:s,s:s}", "name", my_name(d), "error", text);
    publish(d, j, "report", "report", json_incref(j->report), true);
}

static void stop_job(struct daemon *d, struct agent_jobrun *j) {
    if (j->state != AGENT_JOB_RUNNING)
        return;
    j->state = AGENT_JOB_STOPPING;
    if (j->client.len)
        tell_client(d, &j->client, json_pack("{s:s}", "ev", "stop"));
    else if (agent_attach_waits(j)) {
        report_failure(d, j, "stopped while no trainer was attached");
        end_job(d, j, "stopped");
    }
}

static void on_worker_end(struct daemon *d, struct agent_jobrun *j, int status) {
    char reason[96], text[NEB_PATH_MAX + 256], dir[NEB_PATH_MAX];
    if (!j->reported && inter_streams_detach(d->streams.streams, j->id) != NEB_OK)
        neb_warn("streams of job %s could not be told that the worker is gone", j->job.name);
    agent_child_reason(status, reason, sizeof reason);
    if (j->reported) {
        const char *error = json_string_value(json_object_get(j->report, "error"));
        end_job(d, j,
                error                                                 ? "failed"
                : json_is_true(json_object_get(j->report, "stopped")) ? "stopped"
                                                                      : "done");
        return;
    }
    if (j->last_step > j->step_at_start)
        j->restarts = 0;
    // Also while the job stops: it ends with a checkpoint and a report of its own.
    bool again = j->state != AGENT_JOB_ENDED && !d->stopping;
    if (j->replaced && again) {
        j->replaced = false;
        if (start_worker(d, j) == NEB_OK)
            return;
    }
    job_dir(d, j, dir, sizeof dir);
    if (again && j->restarts < AGENT_RESTARTS_MAX) {
        j->restarts++;
        neb_warn("worker of job %s ended (%s); restart %d of %d from its last checkpoint",
                 j->job.name, reason, j->restarts, AGENT_RESTARTS_MAX);
        publish(d, j, "line", "line",
                json_pack("{s:s,s:s,s:s}", "kind", "fault", "cluster", my_name(d), "text",
                          "worker ended; restarted"),
                false);
        if (start_worker(d, j) == NEB_OK)
            return;
    }
    snprintf(text, sizeof text, "worker ended (%s); see %s/worker.log", reason, dir);
    report_failure(d, j, text);
    end_job(d, j, "failed");
}

// ---- local clients --------------------------------------------------------------------------------------------

static void add_watcher(struct daemon *d, struct agent_jobrun *j,
                        const struct agent_ipc_client *from) {
    for (int i = 0; i < AGENT_WATCHERS_MAX; i++)
        if (!j->watchers[i].len || agent_ipc_same(&j->watchers[i], from)) {
            j->watchers[i] = *from;
            break;
        }
    if (j->report)
        tell_client(d, from,
                    json_pack("{s:s,s:s,s:O}", "ev", "report", "job", j->hex, "report", j->report));
}

static void on_submit_job(struct daemon *d, const struct agent_ipc_client *from,
                          struct agent_ipc_msg *m) {
    char why[512];
    json_t *spec = json_object_get(m->head, "spec");
    struct agent_jobrun *j =
        accept_job(d, agent_ipc_str(m, "id", NULL), spec, UINT32_MAX, why, sizeof why);
    if (!j) {
        answer(d, from, false, why);
        return;
    }
    j->local = true;
    answer(d, from, true, j->hex);
    add_watcher(d, j, from);
    if (j->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
        return; // one process does it all
    for (int i = 0; i < j->job.n_clusters; i++)
        if (i != j->self)
            post(d, j->peers[i], AGENT_MSG_JOB, signed_job(d, j), true);
}

static json_t *suspects(const struct agent_jobrun *j) {
    json_t *a = json_array();
    for (int f = 0; f < j->job.sync.fragments; f++)
        json_array_append_new(a, json_integer((json_int_t)j->suspect[f]));
    return a;
}

static void on_attach(struct daemon *d, const struct agent_ipc_client *from,
                      struct agent_ipc_msg *m) {
    char dir[NEB_PATH_MAX];
    struct agent_jobrun *j = find_job(d, agent_ipc_str(m, "job", NULL));
    if (!j || j->state == AGENT_JOB_ENDED) {
        answer(d, from, false, "no such job");
        return;
    }
    bool expected;
    char why[160];
    if (!agent_attach_admit(j, from, m, why, sizeof why)) {
        answer(d, from, false, why);
        return;
    }
    j->client = *from;
    job_dir(d, j, dir, sizeof dir);
    j->told_alive = peers_alive(d, j, &expected);
    j->told_expected = expected;
    j->told_lost = catching_up(d, j);
    tell_client(d, from,
                json_pack("{s:s,s:O,s:i,s:s,s:i,s:b,s:b,s:b,s:o,s:o}", "ev", "job", "spec", j->spec, "cluster",
                          j->self, "dir", dir, "alive", j->told_alive, "expected", expected, "stop",
                          j->state == AGENT_JOB_STOPPING, "lost", j->told_lost, "suspect",
                          suspects(j), "taken",
                          agent_snapshot_mask(j->taken, j->job.sync.fragments)));
}

static void on_update(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    struct inter_manifest mf = {
        .tokens = (uint64_t)agent_ipc_int(m, "tokens", 0),
        .step = (uint64_t)agent_ipc_int(m, "step", 0),
        .steps = (uint32_t)agent_ipc_int(m, "steps", 0),
        .missed = (uint32_t)agent_ipc_int(m, "missed", 0),
        .flags = json_is_true(json_object_get(m->head, "final")) ? INTER_FINAL : 0};
    uint8_t digest[16];
    agent_measure(d->service, j, json_object_get(m->head, "measure"), &mf.measure);
    if (m->n_parts != 1 || !neb_unhex(agent_ipc_str(m, "digest", ""), digest, sizeof digest)) {
        neb_warn("malformed update from a worker dropped");
        return;
    }
    struct neb_rd r = neb_rd_make(digest, sizeof digest);
    mf.digest[0] = neb_rd_u64(&r);
    mf.digest[1] = neb_rd_u64(&r);
    memcpy(mf.key.job, j->id, sizeof mf.key.job);
    mf.key.round = (uint32_t)agent_ipc_int(m, "round", 0);
    mf.key.fragment = (uint32_t)agent_ipc_int(m, "fragment", 0);
    mf.key.member = (uint8_t)j->self;
    mf.key.attempt = (uint32_t)agent_ipc_int(m, "again", 0) & 0xff;
    if (mf.key.fragment >= (uint32_t)j->job.sync.fragments || !j->federated) {
        neb_warn("update for fragment %u of job %s dropped", mf.key.fragment, j->job.name);
        return;
    }
    enum neb_status st = inter_service_submit(d->service, &mf, m->parts[0].p, m->parts[0].len);
    if (st != NEB_OK) {
        char text[160];
        snprintf(text, sizeof text, "update of round %u could not be stored: %s", mf.key.round,
                 neb_status_name(st));
        report_failure(d, j, text);
        stop_job(d, j);
    }
}

// The worker has merged: is the next round committed already?
static void on_ready(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    int64_t f = agent_ipc_int(m, "fragment", -1), round = agent_ipc_int(m, "round", -1);
    if (j->federated && f >= 0 && f < j->job.sync.fragments && round >= 0 &&
        inter_service_deliver(d->service, j->id, (uint32_t)f, (uint32_t)round) != NEB_OK)
        neb_warn("commit of round %lld could not be read", (long long)round);
}

static void on_metrics(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    json_t *line = json_incref(json_object_get(m->head, "line"));
    if (!json_is_object(line)) {
        json_decref(line);
        return;
    }
    json_object_set_new(line, "cluster", json_string(my_name(d)));
    json_t *step = json_object_get(line, "step");
    if (json_is_integer(step))
        j->last_step = json_integer_value(step);
    publish(d, j, "line", "line", line, false);
}

static void tell_link(struct daemon *d, struct agent_jobrun *j) {
    uint64_t sent, recv;
    double goodput = 0, rtt = 0;
    uint64_t resent = 0;
    uint32_t stripes = 0;
    bool expected;
    if (!j->linked)
        return;
    wan_bytes(d, j, &sent, &recv);
    for (int k = 0; k < j->job.n_clusters; k++) {
        struct inter_peer_stats s;
        if (k == j->self || inter_service_stats(d->service, j->peers[k], &s) != NEB_OK)
            continue;
        goodput = s.path.goodput_bps > goodput ? s.path.goodput_bps : goodput;
        rtt = neb_seconds(s.link.rtt) * 1e3;
        resent += s.path.payload_resent;
        stripes = s.link.bulk_used > stripes ? s.link.bulk_used : stripes;
    }
    publish(d, j, "line", "line",
            json_pack("{s:s,s:s,s:b,s:I,s:I,s:f,s:f,s:I,s:I}", "kind", "link", "cluster", my_name(d), "up",
                      peers_alive(d, j, &expected) == j->job.n_clusters - 1, "sent_bytes", (json_int_t)sent,
                      "recv_bytes", (json_int_t)recv, "goodput_bps", goodput, "rtt_ms", rtt, "resent_bytes",
                      (json_int_t)resent, "stripes", (json_int_t)stripes),
            false);
}

static void on_report(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    uint64_t sent, recv;
    json_t *report = json_object_get(m->head, "report");
    if (!json_is_object(report))
        return;
    tell_link(d, j); // the last counters belong into the run's files
    wan_bytes(d, j, &sent, &recv);
    json_object_set_new(report, "name", json_string(my_name(d)));
    json_object_set_new(report, "wan_sent_bytes", json_integer((json_int_t)sent));
    json_object_set_new(report, "wan_recv_bytes", json_integer((json_int_t)recv));
    json_t *faults = json_object();
    for (int f = 0; f < INTER_FAULTS; f++)
        if (d->faults[f])
            json_object_set_new(faults, inter_fault_name((enum inter_fault)f),
                                json_integer((json_int_t)d->faults[f]));
    json_object_set_new(report, "faults", faults);
    if (j->linked && !j->federated)
        json_object_set_new(report, "streams", agent_streams_report(&d->streams, j));
    json_object_set_new(report, "divergences", json_integer(j->divergences));
    json_decref(j->report);
    j->report = json_incref(report);
    j->reported = true;
    if (!j->suspended || !json_is_true(json_object_get(report, "stopped"))) // suspended: not its last word
        publish(d, j, "report", "report", json_incref(report), true);
    if (agent_attach_waits(j)) // no process of ours ends with it
        on_worker_end(d, j, 0);
}

static void on_trainer_left(struct daemon *d, struct agent_jobrun *j, bool said_so) {
    if (j->state == AGENT_JOB_ENDED || !agent_attach_left(j, said_so))
        return;
    publish(d, j, "line", "line",
            json_pack("{s:s,s:s,s:s}", "kind", "fault", "cluster", my_name(d), "text", "the attached trainer is gone"),
            false);
    if (j->state == AGENT_JOB_STOPPING) {
        report_failure(d, j, "stopped while no trainer was attached");
        end_job(d, j, "stopped");
    }
}

static void on_checkpoint(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    json_t *rounds = json_object_get(m->head, "rounds"), *r;
    size_t f;
    json_array_foreach(
        rounds, f, r) if (j->federated && json_is_integer(r) && f < (size_t)j->job.sync.fragments &&
                          inter_service_prune(d->service, j->id, (uint32_t)f,
                                              (uint32_t)json_integer_value(r)) != NEB_OK)
        neb_warn("old updates of job %s could not be removed", j->job.name);
}

static json_t *status_of(struct daemon *d) {
    json_t *root = json_pack("{s:s,s:s}", "ev", "status", "name", my_name(d)),
           *peers = json_array(), *jobs = json_array();
    for (uint32_t i = 0; i < d->members.n; i++) {
        struct inter_peer_stats s;
        if (!strcmp(d->members.m[i].pub.name, my_name(d)) || !d->members.m[i].pub.name[0] ||
            inter_service_stats(d->service, i, &s) != NEB_OK)
            continue;
        struct agent_view_rate rate =
            agent_view_rate(d->view, i, s.link.sent_bytes, s.link.recv_bytes, neb_now());
        json_array_append_new(
            peers, json_pack("{s:f,s:f,s:I,s:I,s:s,s:s,s:b,s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:s,s:f,s:I,s:I,s:I}", "tx_bps", rate.tx_bps, "rx_bps",
                             rate.rx_bps, "refused", (json_int_t)s.link.refused, "connects",
                             (json_int_t)s.link.connects, "name",
                             d->members.m[i].pub.name, "endpoint", d->members.m[i].endpoint, "up",
                             d->up[i], "since_s", neb_seconds(neb_now() - s.link.since), "rtt_ms",
                             neb_seconds(s.link.rtt) * 1e3, "goodput_bps", s.path.goodput_bps,
                             "sent_bytes", (json_int_t)s.link.sent_bytes, "recv_bytes",
                             (json_int_t)s.link.recv_bytes, "resent_bytes",
                             (json_int_t)s.path.payload_resent, "recycled",
                             (json_int_t)s.link.recycled, "congestion", s.link.congestion,
                             "clock_offset_s", neb_seconds(s.link.clock_offset), "bulk_used",
                             (json_int_t)s.link.bulk_used, "bulk_open", (json_int_t)s.link.bulk_open, "window_bytes",
                             (json_int_t)s.path.window));
    }
    for (int i = 0; i < AGENT_JOBS_MAX; i++) {
        static const char *const names[] = {"running", "stopping", "ended"};
        const struct agent_jobrun *j = &d->jobs[i];
        if (!j->used)
            continue;
        json_t *o = json_pack("{s:s,s:s,s:s,s:I,s:I}", "id", j->hex, "job", j->job.name, "state",
                              names[j->state], "step", (json_int_t)j->last_step, "steps",
                              (json_int_t)j->job.steps);
        agent_status_job(o, j, d->service, d->view);
        json_array_append_new(jobs, o);
    }
    json_object_set_new(root, "version", json_integer(1));
    json_object_set_new(root, "faults", agent_status_faults(d->faults));
    json_object_set_new(root, "events", agent_view_events(d->view));
    json_object_set_new(root, "port", json_integer(inter_service_port(d->service)));
    json_object_set_new(root, "peers", peers);
    json_object_set_new(root, "jobs", jobs);
    return root;
}

static void on_stop_request(struct daemon *d, const struct agent_ipc_client *from,
                            struct agent_ipc_msg *m) {
    struct agent_jobrun *j = find_job(d, agent_ipc_str(m, "job", NULL));
    if (!j) {
        answer(d, from, false, "no such job");
        return;
    }
    for (int i = 0; i < j->job.n_clusters; i++)
        if (i != j->self && j->job.sync.scheme != AGENT_SCHEME_SYNCHRONOUS)
            post(d, j->peers[i], AGENT_MSG_STOP, json_pack("{s:s}", "id", j->hex), true);
    stop_job(d, j);
    answer(d, from, true, "stopping after a checkpoint");
}

// Goes on with a job that was stopped or has failed, here and at the other clusters.
static void on_resume_request(struct daemon *d, const struct agent_ipc_client *from, struct agent_ipc_msg *m) {
    char hex[2 * AGENT_JOB_ID_BYTES + 1], why[512];
    json_t *spec = NULL;
    enum neb_status st = agent_jobs_find(inter_service_ledger(d->service), agent_ipc_str(m, "job", ""), hex, &spec);
    if (st != NEB_OK) {
        answer(d, from, false, st == NEB_ERR_INVALID ? "more than one job's id begins so" : "no such job; nebula jobs lists them");
        return;
    }
    struct agent_jobrun *j = find_job(d, hex);
    bool runs = j && j->state != AGENT_JOB_ENDED;
    uint32_t home = j && !j->local ? j->home : UINT32_MAX; // who submitted it keeps its reports
    if (runs || !(j = accept_job(d, hex, spec, home, why, sizeof why))) {
        answer(d, from, false, runs ? "the job runs, or is still stopping" : why);
    } else {
        for (int i = 0; i < j->job.n_clusters && j->job.sync.scheme != AGENT_SCHEME_SYNCHRONOUS; i++)
            if (i != j->self)
                post(d, j->peers[i], AGENT_MSG_JOB,
                     json_pack("{s:s,s:O,s:s}", "id", j->hex, "spec", spec, "home",
                               j->local ? my_name(d) : d->members.m[j->home].pub.name), true);
        answer(d, from, true, "resumed from its last checkpoint");
    }
    json_decref(spec);
}

static void on_list_request(struct daemon *d, const struct agent_ipc_client *from) {
    json_t *jobs = NULL;
    if (agent_jobs_list(inter_service_ledger(d->service), &jobs) != NEB_OK)
        answer(d, from, false, "the ledger could not be read; the agent's log says why");
    else
        tell_client(d, from, json_pack("{s:s,s:O}", "ev", "jobs", "jobs", jobs));
    json_decref(jobs);
}

static void on_local(struct daemon *d, const struct agent_ipc_client *from,
                     struct agent_ipc_msg *m) {
    const char *op = agent_ipc_str(m, "op", "");
    struct agent_jobrun *j = NULL;
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        if (d->jobs[i].used && agent_ipc_same(&d->jobs[i].client, from))
            j = &d->jobs[i];
    if (!strcmp(op, "submit"))
        on_submit_job(d, from, m);
    else if (!strcmp(op, "attach"))
        on_attach(d, from, m);
    else if (!strcmp(op, "attachable"))
        tell_client(d, from, agent_attach_find(d->jobs, m));
    else if (j && !strcmp(op, "hello"))
        tell_client(d, from, json_pack("{s:s}", "ev", "hello"));
    else if (j && !strcmp(op, "detach"))
        on_trainer_left(d, j, true);
    else if (!strcmp(op, "status"))
        tell_client(d, from, status_of(d));
    else if (!strcmp(op, "jobs"))
        on_list_request(d, from);
    else if (!strcmp(op, "resume"))
        on_resume_request(d, from, m);
    else if (!strcmp(op, "stop"))
        on_stop_request(d, from, m);
    else if (j && !strcmp(op, "update"))
        on_update(d, j, m);
    else if (j && !strcmp(op, "shape") && agent_ipc_int(m, "elements", 0) > 0) // what an update of this job may unpack to
        inter_service_bound(d->service, j->id, (uint64_t)agent_ipc_int(m, "elements", 0));
    else if (j && !strcmp(op, "ready"))
        on_ready(d, j, m);
    else if (j && !strcmp(op, "metrics"))
        on_metrics(d, j, m);
    else if (j && !strcmp(op, "report"))
        on_report(d, j, m);
    else if (j && !strcmp(op, "checkpoint"))
        on_checkpoint(d, j, m);
    else if (j && agent_streams_request(&d->streams, j, m))
        ; // done
    else
        answer(d, from, false, "unknown request");
}

// ---- snapshots ------------------------------------------------------------------------------------------------

static void say_fault(struct daemon *d, struct agent_jobrun *j, const char *text) {
    neb_warn("job %s: %s", j->job.name, text);
    publish(d, j, "line", "line",
            json_pack("{s:s,s:s,s:s}", "kind", "fault", "cluster", my_name(d), "text", text), false);
}

// Data members that are connected, the nearest first.
static uint32_t holders(const struct daemon *d, const struct agent_jobrun *j, uint32_t out[AGENT_CLUSTERS_MAX]) {
    double rtts[AGENT_CLUSTERS_MAX];
    uint32_t n = 0;
    for (int i = 0; i < j->job.n_clusters; i++) {
        struct inter_peer_stats s;
        if (i == j->self || j->job.clusters[i].witness || !d->up[j->peers[i]] ||
            inter_service_stats(d->service, j->peers[i], &s) != NEB_OK)
            continue;
        double rtt = neb_seconds(s.link.rtt);
        uint32_t at = n++;
        for (; at > 0 && rtts[at - 1] > rtt; at--) {
            rtts[at] = rtts[at - 1];
            out[at] = out[at - 1];
        }
        rtts[at] = rtt;
        out[at] = j->peers[i];
    }
    return n;
}

static void on_behind(void *user, const uint8_t job[INTER_ID_BYTES]) {
    struct daemon *d = user;
    struct agent_jobrun *j = find_job_id(d, job);
    struct inter_snapshot_progress p;
    uint32_t peers[AGENT_CLUSTERS_MAX], n = j ? holders(d, j, peers) : 0;
    char dir[NEB_PATH_MAX], path[NEB_PATH_MAX];
    if (!n || j->state != AGENT_JOB_RUNNING || j->replaced || inter_service_snapshot_progress(d->service, job, &p))
        return;
    job_dir(d, j, dir, sizeof dir);
    if (neb_fs_mkdirs(dir, 0700) != NEB_OK || neb_path(path, sizeof path, dir, "snapshot") != NEB_OK)
        return;
    say_fault(d, j, "too far behind for the others' ledgers; fetching a snapshot");
    if (inter_service_snapshot_fetch(d->service, job, path, peers, n, j->job.clusters[j->self].witness) != NEB_OK)
        neb_warn("job %s: no snapshot can be fetched now", j->job.name);
}

static enum neb_status on_snapshot_open(void *user, const uint8_t job[INTER_ID_BYTES],
                                        struct inter_snapshot_source *out) {
    struct daemon *d = user;
    struct agent_jobrun *j = find_job_id(d, job);
    char dir[NEB_PATH_MAX];
    if (!j || j->job.clusters[j->self].witness || j->replaced)
        return NEB_ERR_NOT_FOUND; // or its state is in doubt
    job_dir(d, j, dir, sizeof dir);
    return agent_snapshot_open(inter_service_ledger(d->service), job, dir, out);
}

static void on_snapshot_close(void *user, struct inter_snapshot_source *s) {
    (void)user;
    agent_snapshot_close(s);
}

// The job is closed and opened again on what the snapshot says; the worker begins again with it.
static void on_snapshot_done(void *user, const uint8_t job[INTER_ID_BYTES], enum neb_status st, const char *part,
                             uint64_t header_bytes) {
    struct daemon *d = user;
    struct agent_jobrun *j = find_job_id(d, job);
    char dir[NEB_PATH_MAX], text[128];
    (void)part;
    if (!j || j->state != AGENT_JOB_RUNNING)
        return;
    job_dir(d, j, dir, sizeof dir);
    if (st == NEB_OK)
        st = agent_snapshot_accept(dir, header_bytes);
    if (st == NEB_OK) {
        save_state(d, j, "running"); // with what has been sent and received so far
        inter_service_job_close(d->service, j->id);
        st = open_rounds(d, j);
        if (st != NEB_OK && open_rounds(d, j) != NEB_OK) // the snapshot is of no use; the ledger is
            neb_warn("job %s: its rounds cannot be opened again", j->job.name);
        else if (st == NEB_OK && !j->taken && agent_snapshot_useless(dir))
            st = NEB_ERR_AGAIN; // not ahead: the others write newer ones
    }
    if (st != NEB_OK) {
        snprintf(text, sizeof text, "no snapshot could be taken over (%s); it is tried again", neb_status_name(st));
        say_fault(d, j, text);
        return;
    }
    j->behind_until = 0;
    say_fault(d, j, "a snapshot is here; the worker begins again with it");
    if (j->worker.pid) {
        j->replaced = true;
        agent_child_signal(&j->worker, SIGKILL);
    }
}

// ---- other agents ---------------------------------------------------------------------------------------------

// A witness trains nothing: for it the job is over when every fragment has seen its last round.
static void witness_commit(struct daemon *d, struct agent_jobrun *j, const struct inter_record *r,
                           bool final) {
    uint64_t all = j->job.sync.fragments == 64 ? UINT64_MAX : (1ull << j->job.sync.fragments) - 1;
    j->finals |= final ? 1ull << r->fragment : 0;
    if (j->finals != all || j->state == AGENT_JOB_ENDED)
        return;
    j->reported = true;
    json_decref(j->report);
    j->report = json_pack("{s:s,s:b}", "name", my_name(d), "witness", true);
    publish(d, j, "report", "report", json_incref(j->report), true);
    end_job(d, j, "done");
}

// Whether this member's parameters differ from what most contributors had; with as many against as for it, also: both recompute.
// *others: somebody else's do.
static bool diverged(const struct inter_record *r, int self, bool *others) {
    int mine = -1, agree = 0;
    *others = false;
    for (uint8_t i = 0; i < r->n; i++)
        mine = r->entries[i].member == self ? i : mine;
    for (uint8_t i = 0; i < r->n; i++) {
        int same = 0;
        for (uint8_t k = 0; k < r->n; k++)
            same += !memcmp(r->entries[i].digest, r->entries[k].digest, sizeof r->entries[i].digest);
        *others = *others || 2 * same < r->n;
        agree = i == mine ? same : agree;
    }
    return mine >= 0 && 2 * agree <= r->n && r->n > 1;
}

// Every contributor says with its update what its parameters digested to. Who differs computes them again: from a checkpoint of
// before, with the updates of the ledger; from a snapshot when none is left.
static void check_divergence(struct daemon *d, struct agent_jobrun *j, const struct inter_record *r) {
    enum { DIVERGENCES_MAX = 3 };
    char text[256];
    bool others;
    if (!r->round || !j->federated || j->state != AGENT_JOB_RUNNING)
        return;
    bool own = diverged(r, j->self, &others);
    if (others && !own)
        say_fault(d, j, "another member's parameters differ from ours and most others'; it computes them again");
    if (!own || j->replaced || (j->suspect[r->fragment] && r->round <= j->suspect[r->fragment]))
        return;
    d->faults[INTER_FAULT_DIVERGED]++;
    j->suspect[r->fragment] = r->round;
    snprintf(text, sizeof text,
             "ERROR: after round %u of fragment %u the parameters of this cluster differ from the others' though all applied "
             "the same commits; computing them again",
             r->round - 1, r->fragment);
    say_fault(d, j, text);
    if (++j->divergences > DIVERGENCES_MAX) {
        report_failure(d, j, "its parameters differed from the others' four times: check this machine's memory and processors");
        stop_job(d, j);
        return;
    }
    if (j->worker.pid) {
        j->replaced = true;
        agent_child_signal(&j->worker, SIGKILL);
    }
}

static void on_commit(void *user, const struct inter_record *r, const struct neb_map *blobs) {
    struct daemon *d = user;
    struct agent_jobrun *j = find_job_id(d, r->job);
    struct agent_ipc_part parts[INTER_MEMBERS_MAX];
    json_t *entries = json_array();
    bool final = true, whole = true, rejected = false;
    size_t n = 0;
    for (uint8_t i = 0; i < r->n; i++) {
        const struct inter_entry *e = &r->entries[i];
        final = final && e->flags & INTER_FINAL;
        rejected |= j && e->member == j->self && e->verdict == INTER_REJECTED;
        if (e->verdict == INTER_REJECTED)
            continue;
        whole = whole && blobs[i].p;
        parts[n++] = (struct agent_ipc_part){blobs[i].p, blobs[i].len};
        json_array_append_new(entries, json_pack("{s:i,s:I,s:f}", "member", e->member, "tokens",
                                                 (json_int_t)e->tokens, "clip", (double)e->clip));
    }
    if (j && j->job.clusters[j->self].witness)
        witness_commit(d, j, r, final);
    else if (j)
        check_divergence(d, j, r);
    if (j && j->client.len && !whole) { // asked for by a worker whose checkpoints are gone
        j->behind_until = neb_now() + 5 * NEB_S;
        on_behind(d, r->job);
    }
    if (!j || !j->client.len || !whole || j->state == AGENT_JOB_ENDED) { // the worker asks again when it is back
        json_decref(entries);
        return;
    }
    json_t *head =
        json_pack("{s:s,s:I,s:I,s:I,s:f,s:f,s:b,s:b,s:b,s:o,s:o}", "ev", "commit", "cursor",
                  (json_int_t)r->cursors[j->self], "round",
                  (json_int_t)r->round, "fragment", (json_int_t)r->fragment, "eta", (double)r->eta,
                  "mu", (double)r->mu, "merge", !!(r->flags & INTER_MERGE), "final", final,
                  "rejected", rejected, "entries", entries, "plan", agent_plan_json(r, j->self));
    j->behind_until = 0;
    if (agent_ipc_send(d->ipc, &j->client, head, parts, n) != NEB_OK)
        neb_warn("commit of round %u could not be handed to the worker yet", r->round);
}

static bool known(struct daemon *d, const char *hex) {
    struct recall r = {0};
    uint8_t id[AGENT_JOB_ID_BYTES];
    r.id = id;
    return find_job(d, hex) || !neb_unhex(hex, id, sizeof id) ||
           inter_ledger_jobs(inter_service_ledger(d->service), recall_job, &r) != NEB_OK || r.found;
}

// Where a job that is offered again was submitted: here (UINT32_MAX; our disk was lost), at another member, or at the one that offers it.
static uint32_t named_home(const struct daemon *d, const json_t *body, uint32_t peer) {
    const char *name = json_string_value(json_object_get(body, "home"));
    const struct sec_member *m = name ? sec_members_by_name(&d->members, name) : NULL;
    if (name && !strcmp(name, my_name(d)))
        return UINT32_MAX;
    return m ? (uint32_t)(m - d->members.m) : peer;
}

static void on_message(void *user, uint32_t peer, uint32_t kind, const uint8_t *p, size_t n) {
    struct daemon *d = user;
    char why[512];
    struct agent_members_change change;
    if (agent_spread_message(&d->spread, peer, kind, p, n, &change)) {
        d->changes = d->changes || change.changed || change.forked;
        merge_change(&d->change, &change);
        return;
    }
    json_t *body = json_loadb((const char *)p, n, JSON_REJECT_DUPLICATES, NULL);
    const char *hex = json_string_value(json_object_get(body, "id"));
    struct agent_jobrun *j = find_job(d, hex);
    if (!d->members.m[peer].pub.name[0]) {
        json_decref(body);
        return; // revoked since it was sent
    }
    bool again = json_is_true(json_object_get(body, "again"));
    uint32_t home = again ? named_home(d, body, peer) : peer;
    if (kind == AGENT_MSG_JOB && again && hex && known(d, hex)) {
        // it runs here, or has ended here
    } else if (kind == AGENT_MSG_JOB && hex && !job_is_signed(d, home, hex, body)) {
        if (again)
            neb_debug("a job was offered again without its submitter's signature");
        else
            post(d, peer, AGENT_MSG_REFUSED,
                 json_pack("{s:s,s:s}", "id", hex, "reason",
                           "the job specification is not signed by the member that submits it"),
                 true);
    } else if (kind == AGENT_MSG_JOB && hex) {
        if (!(j = accept_job(d, hex, json_object_get(body, "spec"), home, why, sizeof why)))
            post(d, peer, AGENT_MSG_REFUSED, json_pack("{s:s,s:s}", "id", hex, "reason", why),
                 true);
        else if (!j->local)
            took_job(d, j, home, json_string_value(json_object_get(body, "sig")));
    } else if (kind == AGENT_MSG_STOP && j) {
        stop_job(d, j);
    } else if (kind == AGENT_MSG_REFUSED && j) {
        const char *reason = json_string_value(json_object_get(body, "reason"));
        publish(d, j, "report", "report",
                json_pack("{s:s,s:s}", "name", d->members.m[peer].pub.name, "error",
                          reason ? reason : "refused"),
                true);
        stop_job(d, j);
    } else if (kind == AGENT_MSG_METRICS && j && j->local) {
        json_t *line = json_object_get(body, "line");
        if (json_is_object(line)) {
            json_object_set_new(
                line, "cluster",
                json_string(d->members.m[peer].pub.name)); // who it is from is not for it to say
            publish(d, j, "line", "line", json_incref(line), false);
        }
    } else if (kind == AGENT_MSG_REPORT && j && j->local) {
        json_t *report = json_object_get(body, "report");
        if (json_is_object(report)) {
            json_object_set_new(report, "name", json_string(d->members.m[peer].pub.name));
            publish(d, j, "report", "report", json_incref(report), true);
        }
    }
    json_decref(body);
}

static void on_peer(void *user, uint32_t peer, bool up) {
    struct daemon *d = user;
    d->up[peer] = up;
    if (!d->members.m[peer].pub.name[0]) {
        neb_info("the link to a revoked member is cut");
        return;
    }
    neb_info("link to %s is %s", d->members.m[peer].pub.name, up ? "up" : "down");
    for (int i = 0; i < AGENT_JOBS_MAX; i++) {
        struct agent_jobrun *j = &d->jobs[i];
        if (!j->used || j->state == AGENT_JOB_ENDED || !j->linked)
            continue;
        tell_alive(d, j);
        for (int k = 0; up && k < j->job.n_clusters; k++) // it may have lost its disk, or not have had the job yet
            if (k != j->self && j->peers[k] == peer) {
                json_t *again = signed_job(d, j);
                json_object_set_new(again, "again", json_true());
                post(d, peer, AGENT_MSG_JOB, again, false);
            }
        char text[160];
        snprintf(text, sizeof text, "link to %s is %s", d->members.m[peer].pub.name,
                 up ? "up" : "down");
        publish(d, j, "line", "line",
                json_pack("{s:s,s:s,s:s}", "kind", "fault", "cluster", my_name(d), "text", text),
                false);
    }
}

// ---- faults ---------------------------------------------------------------------------------------------------

static void on_fault(void *user, uint32_t peer, enum inter_fault f) {
    struct daemon *d = user;
    d->faults[f]++;
    char text[96];
    snprintf(text, sizeof text, "%s message or state", inter_fault_name(f));
    if (d->faults[f] == 1 || f == INTER_FAULT_DIVERGED || f == INTER_FAULT_REFUSED) // others are counted
        agent_view_event(d->view, NULL, d->members.m[peer].pub.name, text, neb_seconds(neb_wall_now()));
    if (f == INTER_FAULT_DIVERGED)
        neb_log(NEB_LOG_ERROR, "parameters of %s differ from ours after the same commits",
                d->members.m[peer].pub.name);
    else if (f == INTER_FAULT_OUTLIER)
        neb_warn("an update of %s is more than four times as large as the median of its round",
                 d->members.m[peer].pub.name);
    else if (f == INTER_FAULT_RENEWED)
        neb_warn("%s came back with an empty ledger; its votes count again once it has caught up",
                 d->members.m[peer].pub.name);
    else if (f == INTER_FAULT_BEHIND)
        neb_debug("behind");
    else if (d->faults[f] == 1)
        neb_warn("a %s message from %s was dropped; further ones are counted", inter_fault_name(f),
                 d->members.m[peer].pub.name);
}

// ---- the loop -------------------------------------------------------------------------------------------------

static void telemetry(struct daemon *d) {
    agent_spread_stand(&d->spread, d->up);
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        if (d->jobs[i].used && d->jobs[i].state != AGENT_JOB_ENDED) {
            struct agent_jobrun *j = &d->jobs[i];
            tell_alive(d, j);
            tell_link(d, j);
            on_trainer_left(d, j, false);
            if (j->behind_until && neb_now() >= j->behind_until) {
                j->behind_until = neb_now() + 5 * NEB_S;
                on_behind(d, j->id);
            }
            if (j->state == AGENT_JOB_STOPPING && j->client.len) // until it ends
                tell_client(d, &j->client, json_pack("{s:s}", "ev", "stop"));
        }
    if (d->web)
        agent_status_publish(d->web, d->view, status_of(d));
    agent_notify("WATCHDOG=1");
}

static bool busy(const struct daemon *d) {
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        if (d->jobs[i].used && d->jobs[i].state != AGENT_JOB_ENDED)
            return true;
    return false;
}

static enum neb_status start_service(struct daemon *d) {
    d->members = *agent_members_list(d->trust);
    struct inter_service_config s = {.dir = d->c->home,
                                     .identity = d->identity,
                                     .members = &d->members,
                                     .listen = d->c->listen,
                                     .n_bulk = d->c->n_bulk,
                                     .recycle = d->c->recycle,
                                     .congestion = d->c->congestion,
                                     .limit = d->c->limit,
                                     .zmq_context = d->zctx,
                                     .callbacks = {d, on_commit, on_message, on_peer, on_fault, on_behind,
                                                   on_snapshot_open, on_snapshot_close, on_snapshot_done}};
    NEB_TRY(inter_service_create(&s, &d->service));
    d->streams = (struct agent_streams){inter_service_streams(d->service), d->ipc, d->jobs};
    agent_streams_listen(&d->streams);
    d->spread = (struct agent_spread){.members = d->trust, .service = d->service};
    return NEB_OK;
}

// Whether a job can go on after a change: its own site is on the list, and enough of its voters are.
static bool can_go_on(const struct daemon *d, const struct agent_jobrun *j) {
    const struct sec_members *l = agent_members_list(d->trust);
    int here = 0, voters = 0;
    for (int i = 0; i < j->job.n_clusters; i++) {
        bool votes = !(j->removed >> i & 1);
        voters += votes;
        here += votes && sec_members_by_name(l, j->job.clusters[i].name);
    }
    return sec_members_by_name(l, my_name(d)) && (!j->federated || here > voters / 2);
}

// What a change of the list means for one job.
static void update_job(struct daemon *d, struct agent_jobrun *j) {
    uint16_t removed = removed_clusters(d, j);
    if (j->federated && removed != j->removed) {
        j->removed = removed;
        inter_service_job_removed(d->service, j->id, removed);
        neb_warn("job %s goes on without a member that was given up by nebula promote", j->job.name);
    }
    if (j->state == AGENT_JOB_RUNNING && !can_go_on(d, j)) {
        neb_warn("job %s stops: too few of its members are left on the list", j->job.name);
        stop_job(d, j);
    }
}

// A newer member list takes effect at once, while jobs run: links of who was revoked are cut, new members are let in. Two
// lists of one version stop everything.
static enum neb_status on_members(struct daemon *d) {
    struct agent_members_change c = d->change;
    d->changes = false;
    d->change = (struct agent_members_change){.changed = false};
    if (c.forked) {
        neb_log(NEB_LOG_ERROR, "jobs stop: the CA has signed two member lists of one version");
        for (int i = 0; i < AGENT_JOBS_MAX; i++)
            if (d->jobs[i].used)
                stop_job(d, &d->jobs[i]);
    }
    if (!c.changed)
        return NEB_OK;
    agent_spread_list(&d->spread, d->up); // before anybody is cut off: who is revoked shall know
    NEB_TRY(inter_service_process(d->service));
    enum neb_status st =
        inter_service_reload(d->service, agent_members_list(d->trust),
                             c.rotated[0] ? c.rotated : NULL,
                             d->c->overlap ? d->c->overlap : default_overlap);
    d->members = *inter_service_members(d->service);
    if (st == NEB_ERR_LIMIT || !sec_members_by_name(agent_members_list(d->trust), my_name(d)))
        d->members_due = true; // when no job runs
    else if (st != NEB_OK)
        return st;
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        if (d->jobs[i].used && d->jobs[i].state != AGENT_JOB_ENDED)
            update_job(d, &d->jobs[i]);
    if (!agent_members_holds(d->trust, sec_identity_public(d->identity)))
        d->rekey_at = d->members_due ? 0 : neb_now() + NEB_S; // the others get the list first
    return NEB_OK;
}

// nebula rotate has given this member new keys: links change over to them; jobs go on.
static enum neb_status rekey(struct daemon *d) {
    struct sec_identity *next = NULL, *former = d->identity;
    if (!d->rekey_at || neb_now() < d->rekey_at)
        return NEB_OK;
    d->rekey_at = neb_now() + NEB_S;
    if (sec_identity_load(d->c->home, &next) != NEB_OK)
        return NEB_OK; // the command is at it
    if (!agent_members_holds(d->trust, sec_identity_public(next))) {
        sec_identity_destroy(&next);
        return NEB_OK;
    }
    d->rekey_at = 0;
    d->identity = next;
    enum neb_status st = inter_service_rekey(d->service, next);
    if (st == NEB_OK)
        st = agent_members_rekey(d->trust, next);
    sec_identity_destroy(&former);
    neb_info("this member's new keys are in use");
    return st;
}

static enum neb_status apply_members(struct daemon *d) {
    char why[512];
    if (!d->members_due || busy(d) || d->rekey_at)
        return NEB_OK;
    d->members_due = false;
    if (!sec_members_by_name(agent_members_list(d->trust), my_name(d)))
        return neb_fail(NEB_ERR_DENIED, "this member is no longer on the list: the agent ends");
    inter_service_destroy(&d->service);
    memset(d->up, 0, sizeof d->up);
    // ZeroMQ closes a listener in its own time; until then its port is taken
    enum neb_status st = start_service(d);
    for (int i = 0; st != NEB_OK && i < 20; i++) {
        neb_sleep(100 * NEB_MS);
        st = start_service(d);
    }
    NEB_TRY(st);
    for (int i = 0; i < AGENT_JOBS_MAX; i++) // ended jobs still name members by index
        if (d->jobs[i].used && map_clusters(d, &d->jobs[i], why, sizeof why) != NEB_OK)
            forget(d, &d->jobs[i]);
    neb_info("links use member list version %llu", (unsigned long long)d->members.version);
    return NEB_OK;
}

static void on_signal(struct daemon *d) {
    struct signalfd_siginfo info;
    while (read(d->signal_fd, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGHUP) {
            struct agent_members_change change;
            agent_members_reload(d->trust, &change);
            merge_change(&d->change, &change);
            d->changes = true;
        } else if (info.ssi_signo != SIGCHLD) {
            d->stopping = true;
            agent_notify("STOPPING=1");
            for (int i = 0; i < AGENT_JOBS_MAX; i++)
                if (d->jobs[i].used) {
                    // SIGTERM is a reboot, or the end of an allocation; SIGINT somebody who wants it to end
                    if (info.ssi_signo == SIGTERM && d->jobs[i].state == AGENT_JOB_RUNNING)
                        d->jobs[i].suspended = true;
                    stop_job(d, &d->jobs[i]);
                }
        }
}

static enum neb_status loop(struct daemon *d) {
    zmq_pollitem_t items[POLL_MAX];
    neb_ns give_up = 0;
    while (!d->stopping || (busy(d) && neb_now() < give_up)) {
        struct agent_ipc_client from;
        struct agent_ipc_msg m;
        struct agent_members_change change;
        items[0] = (zmq_pollitem_t){.socket = agent_ipc_socket(d->ipc), .events = ZMQ_POLLIN};
        items[1] = (zmq_pollitem_t){.fd = d->signal_fd, .events = ZMQ_POLLIN};
        size_t n = 2;
        if (agent_members_fd(d->trust) >= 0)
            items[n++] = (zmq_pollitem_t){.fd = agent_members_fd(d->trust), .events = ZMQ_POLLIN};
        n += inter_service_poll_items(d->service, items + n, POLL_MAX - n);
        neb_ns deadline = inter_service_next_deadline(d->service), now = neb_now();
        deadline = d->next_telemetry < deadline ? d->next_telemetry : deadline;
        long wait_ms = deadline > now ? (long)((deadline - now + NEB_MS - 1) / NEB_MS) : 0;
        if (zmq_poll(items, (int)(n < POLL_MAX ? n : POLL_MAX), wait_ms) < 0 &&
            zmq_errno() != EINTR)
            return neb_fail(NEB_ERR_IO, "poll: %s", zmq_strerror(zmq_errno()));
        on_signal(d);
        NEB_TRY(agent_members_step(d->trust, &change));
        merge_change(&d->change, &change);
        NEB_TRY(on_members(d));
        NEB_TRY(apply_members(d));
        NEB_TRY(rekey(d));
        agent_renew_step(&d->renew, d->trust);
        if (d->stopping && !give_up)
            give_up = neb_now() + 60 * NEB_S;
        for (int i = 0; i < 64; i++) { // local messages are few; a flood must not starve the links
            enum neb_status st = agent_ipc_recv(d->ipc, &from, &m);
            if (st == NEB_ERR_AGAIN)
                break;
            if (st == NEB_OK)
                on_local(d, &from, &m);
            agent_ipc_msg_clear(&m);
        }
        NEB_TRY(inter_service_process(d->service));
        for (int i = 0; i < AGENT_JOBS_MAX; i++) {
            struct agent_jobrun *j = &d->jobs[i];
            if (j->used && !j->ended_at && agent_child_ended(&j->worker, &j->end_status))
                j->ended_at = neb_now();
            // One that ended well has sent its report, which may still be on its way to us.
            if (j->ended_at && (j->end_status || j->reported || neb_now() - j->ended_at > 2 * NEB_S)) {
                j->ended_at = 0;
                on_worker_end(d, j, j->end_status);
            }
        }
        if (neb_now() >= d->next_telemetry) {
            d->next_telemetry = neb_now() + telemetry_interval;
            telemetry(d);
        }
    }
    return NEB_OK;
}

// A library's thread that started before main (OpenBLAS) blocks nothing: a signal that lands there would
// end the agent, and the signalfd would never see it. It is passed on to the thread that blocks it.
static void pass_on(int signo) {
    if (gettid() != getpid())
        tgkill(getpid(), getpid(), signo);
}

static enum neb_status take_signals(sigset_t *set) {
    static const int ours[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};
    struct sigaction sa = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    sigemptyset(set);
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        sigaddset(set, ours[i]);
        if (sigaction(ours[i], &sa, NULL) != 0)
            return neb_fail_errno("sigaction");
    }
    sigprocmask(SIG_BLOCK, set, NULL);
    return NEB_OK;
}

static enum neb_status set_up(struct daemon *d) {
    char jobs[NEB_PATH_MAX];
    sigset_t set;
    agent_harden();
    NEB_TRY(sec_init());
    NEB_TRY(agent_view_create(&d->view));
    NEB_TRY(agent_self_path(d->exe, sizeof d->exe));
    NEB_TRY(sec_identity_load(d->c->home, &d->identity));
    neb_log_set_name(my_name(d));
    NEB_TRY(agent_members_open(d->c->home, d->identity, &d->trust));
    NEB_TRY(neb_path(jobs, sizeof jobs, d->c->home, "jobs"));
    NEB_TRY(neb_fs_mkdirs(jobs, 0700));
    NEB_TRY(take_signals(&set));
    d->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (d->signal_fd < 0)
        return neb_fail_errno("signalfd");
    if (!(d->zctx = zmq_ctx_new()))
        return neb_fail(NEB_ERR_NOMEM, "cannot create a ZeroMQ context");
    NEB_TRY(start_service(d));
    if (d->c->page.listen)
        NEB_TRY(agent_web_start(&d->c->page, &d->web));
    NEB_TRY(neb_path(d->socket_path, sizeof d->socket_path, d->c->home, "agent.sock"));
    NEB_TRY(agent_ipc_listen(d->zctx, d->socket_path,
                             &d->ipc)); // last: who finds the socket finds an agent that is ready
    d->streams.ipc = d->ipc;
    return NEB_OK;
}

// Jobs that ran when this agent last went down, by a crash or a reboot, go on.
struct to_resume {
    int n;
    struct {
        char hex[2 * AGENT_JOB_ID_BYTES + 1];
        json_t *spec; // owned
        char home[SEC_NAME_MAX], sig[2 * SEC_SIGN_BYTES + 1];
    } jobs[AGENT_JOBS_MAX];
};

static void collect_running(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                            const char *state) {
    struct to_resume *t = user;
    json_t *s = json_loads(state, 0, NULL);
    const char *what = json_string_value(json_object_get(s, "state")),
               *home = json_string_value(json_object_get(s, "home")),
               *sig = json_string_value(json_object_get(s, "sig"));
    if (what && home && !strcmp(what, "running") && t->n < AGENT_JOBS_MAX) {
        neb_hex(id, INTER_ID_BYTES, t->jobs[t->n].hex);
        snprintf(t->jobs[t->n].home, sizeof t->jobs[t->n].home, "%s", home);
        snprintf(t->jobs[t->n].sig, sizeof t->jobs[t->n].sig, "%s", sig ? sig : "");
        if ((t->jobs[t->n].spec = json_loads(spec, 0, NULL)))
            t->n++;
    }
    json_decref(s);
}

static enum neb_status resume_jobs(struct daemon *d) {
    struct to_resume t = {0};
    char why[512];
    enum neb_status st =
        inter_ledger_jobs(inter_service_ledger(d->service), collect_running, &t);
    for (int i = 0; i < t.n; i++) {
        const struct sec_member *m = sec_members_by_name(&d->members, t.jobs[i].home);
        uint32_t home = m ? (uint32_t)(m - d->members.m) : UINT32_MAX;
        struct agent_jobrun *j =
            st == NEB_OK ? accept_job(d, t.jobs[i].hex, t.jobs[i].spec, home, why, sizeof why) : NULL;
        if (st == NEB_OK && !j)
            neb_log(NEB_LOG_ERROR, "job %.8s, which ran before, cannot go on: %s", t.jobs[i].hex, why);
        else if (j && !j->local)
            took_job(d, j, home, t.jobs[i].sig);
        json_decref(t.jobs[i].spec);
    }
    return st;
}

enum neb_status agent_daemon_run(const struct agent_daemon_config *c) {
    struct daemon *d = calloc(1, sizeof *d);
    if (!d)
        return neb_fail(NEB_ERR_NOMEM, "out of memory starting the agent");
    d->c = c;
    d->signal_fd = -1;
    d->renew = (struct agent_renew){
        .exe = d->exe, .home = c->home, .before_days = c->renew_days};
    enum neb_status st = set_up(d);
    if (st == NEB_OK)
        st = resume_jobs(d);
    if (st == NEB_OK) {
        neb_info("agent is ready%s%s", c->listen ? ", listening on " : "",
                 c->listen ? c->listen : "");
        agent_notify("READY=1");
        st = loop(d);
    }
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        if (d->jobs[i].used) {
            if (d->jobs[i].suspended && c->suspended)
                *c->suspended = true;
            agent_child_stop(&d->jobs[i].worker, 10 * NEB_S);
            forget(d, &d->jobs[i]);
        }
    agent_child_stop(&d->renew.child, NEB_S);
    agent_web_stop(&d->web);
    agent_view_destroy(&d->view);
    agent_ipc_destroy(&d->ipc);
    inter_service_destroy(&d->service);
    agent_members_destroy(&d->trust);
    if (d->signal_fd >= 0)
        close(d->signal_fd);
    if (d->zctx)
        zmq_ctx_term(d->zctx);
    sec_identity_destroy(&d->identity);
    free(d);
    return st;
}
