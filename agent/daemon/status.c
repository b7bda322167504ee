// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/status.h"
#include "agent/base/log.h"
#include "agent/daemon/state.h"
#include "agent/daemon/sums.h"
#include "agent/show/about.h"
#include "agent/web/metrics.h"
#include "security/locked.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void agent_status_names(const struct agent_job *job, struct member_set who, char *out, size_t cap) {
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < job->n_clusters && n < cap; i++)
        if (mset_has(who, i))
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", job->clusters[i].name);
}

// A witness has no worker, so the age of its last line means nothing.
static void forget_age_of_witnesses(const struct agent_job *job, json_t *clusters) {
    size_t k;
    json_t *c;
    json_array_foreach(clusters, k, c) for (int i = 0; i < job->n_clusters; i++) {
        const char *name = json_string_value(json_object_get(c, "name"));
        if (job->clusters[i].witness && name && !strcmp(job->clusters[i].name, name))
            json_object_set_new(c, "age_s", json_null());
    }
}

// [{match, tensors, params}], as the trainer's list of tensors says.
static json_t *groups_of(const struct agent_jobrun *j) {
    struct exchange_group_size sizes[AGENT_GROUPS_MAX + 1];
    json_t *list = json_array();
    int32_t n = agent_job_groups(&j->job);
    if (exchange_manifest_sizes(j->tensors.list.own, sizes, n) != NEB_OK)
        return list;
    for (int32_t g = 0; g < n; g++)
        json_array_append_new(list, json_pack("{s:s, s:I, s:I}", "match",
                                              agent_job_group(&j->job, g)->match, "tensors",
                                              (json_int_t)sizes[g].tensors, "params",
                                              (json_int_t)sizes[g].parameters));
    return list;
}

static void add_job(json_t *o, const struct agent_jobrun *j, const struct inter_service *s,
                    const struct agent_view *v) {
    struct inter_job_status st;
    const char *error = json_string_value(json_object_get(j->report, "error"));
    json_t *clusters = agent_view_clusters(v, j->hex, neb_seconds(neb_now()));
    forget_age_of_witnesses(&j->job, clusters);
    json_object_set_new(o, "clusters", clusters);
    if (j->tensors.list.own)
        json_object_set_new(o, "groups", groups_of(j));
    json_object_set_new(o, "restarts", json_integer(j->worker.restarts));
    json_object_set_new(o, "witness", json_boolean(j->job.clusters[j->self].witness));
    if (error)
        json_object_set_new(o, "error", json_string(error));
    if (!j->federated || !inter_service_job_status(s, j->id, &st))
        return;
    if (st.leader >= 0 && st.leader < j->job.n_clusters)
        json_object_set_new(o, "leader", json_string(j->job.clusters[st.leader].name));
    json_object_set_new(o, "live", json_integer(mset_count(st.live)));
    json_object_set_new(o, "members", json_integer(j->job.n_clusters));
    json_object_set_new(o, "lag", json_integer(st.lag));
    json_t *waits = json_array();
    for (int i = 0; i < j->job.n_clusters; i++)
        if (agent_job_active(j->state) && (mset_has(st.waits, i) || mset_has(st.owing, i)))
            json_array_append_new(waits, json_string(j->job.clusters[i].name));
    json_object_set_new(o, "waits_for", waits);
    json_t *equivocators = json_array();
    for (int i = 0; i < j->job.n_clusters; i++)
        if (mset_has(st.equivocators, i))
            json_array_append_new(equivocators, json_string(j->job.clusters[i].name));
    json_object_set_new(o, "equivocators", equivocators);
    json_object_set_new(o, "diverged", json_boolean(st.split));
    json_object_set_new(o, "equivocators_proven", json_integer(mset_count(st.equivocators)));
    json_object_set_new(o, "votes", json_boolean(st.votes));
    json_object_set_new(o, "disk_lost", json_boolean(st.lost));
}

static json_t *faults(const uint64_t counts[INTER_FAULTS]) {
    json_t *o = json_object();
    for (int f = 0; f < INTER_FAULTS; f++)
        json_object_set_new(o, inter_fault_name((enum inter_fault)f),
                            json_integer((json_int_t)counts[f]));
    return o;
}

static json_t *updates(const struct daemon *d) {
    const struct inter_ledger *l = inter_service_ledger(d->service);
    struct inter_dropped n;
    inter_ledger_dropped(l, &n);
    return json_pack("{s:I,s:o,s:I,s:I}", "used_bytes", (json_int_t)inter_ledger_used(l),
                     "cap_bytes",
                     d->c->blobs_max ? json_integer((json_int_t)d->c->blobs_max) : json_null(),
                     "dropped_rounds", (json_int_t)n.rounds, "dropped_bytes", (json_int_t)n.bytes);
}

// Counts of what was refused before it became a message of a member.
static json_t *refused(const struct daemon *d) {
    uint64_t sums = d->sums_refused;
    EACH_JOB (d, j)
        sums += agent_sums_refused(j->sums);
    return json_pack("{s:I,s:I,s:I,s:I,s:I}", "handshakes",
                     (json_int_t)inter_service_refused(d->service), "enrolments",
                     (json_int_t)agent_members_refused(d->trust), "local", (json_int_t)d->strangers,
                     "workers", (json_int_t)agent_ipc_remote_refused(d->ipc), "sums",
                     (json_int_t)sums);
}

// Adds the jobs that are only in the ledger and need attention: held, or failed before this start.
static void add_aside(struct daemon *d, json_t *jobs) {
    json_t *list = NULL, *o;
    size_t i;
    if (d->aside_due && agent_jobs_attention(inter_service_ledger(d->service), &list) == NEB_OK) {
        json_decref(d->aside);
        d->aside = json_incref(list);
    }
    json_decref(list);
    d->aside_due = false; // an unreadable ledger must not be read, and logged, every second
    json_array_foreach(d->aside, i,
                       o) if (!daemon_job(d, json_string_value(json_object_get(o, "id"))))
        json_array_append(jobs, o);
}

json_t *daemon_status(struct daemon *d) {
    json_t *root = json_pack("{s:s,s:s}", "ev", "status", "name", daemon_name(d)),
           *peers = json_array(), *jobs = json_array();
    for (uint32_t i = 0; i < d->members.n; i++) {
        struct inter_peer_stats s;
        if (!strcmp(d->members.m[i].pub.name, daemon_name(d)) || !d->members.m[i].pub.name[0] ||
            inter_service_stats(d->service, i, &s) != NEB_OK)
            continue;
        struct agent_view_rate rate =
            agent_view_rate(d->view, i, s.link.sent_bytes, s.link.recv_bytes, neb_now());
        json_t *o = json_pack(
            "{s:f,s:f,s:I,s:I,s:I,s:s,s:s,s:b,s:o,s:f,s:f,s:I,s:I,s:I,s:I,s:s,s:f,s:I,s:I,s:I}",
            "tx_bps", rate.tx_bps, "rx_bps", rate.rx_bps, "refused", (json_int_t)s.link.refused,
            "connects", (json_int_t)s.link.connects, "twins", (json_int_t)s.link.twins, "name",
            d->members.m[i].pub.name, "endpoint", d->members.m[i].endpoint, "up", d->up[i],
            "since_s",
            s.link.since ? json_real(neb_seconds(neb_now() - s.link.since)) : json_null(), "rtt_ms",
            neb_seconds(s.link.rtt) * 1e3, "goodput_bps", s.path.goodput_bps, "sent_bytes",
            (json_int_t)s.link.sent_bytes, "recv_bytes", (json_int_t)s.link.recv_bytes,
            "resent_bytes", (json_int_t)s.path.payload_resent, "recycled",
            (json_int_t)s.link.recycled, "congestion", s.link.congestion, "clock_offset_s",
            neb_seconds(s.link.clock_offset), "bulk_used", (json_int_t)s.link.bulk_used,
            "bulk_open", (json_int_t)s.link.bulk_open, "window_bytes", (json_int_t)s.path.window);
        if (s.link.protocol) { // a message of it has arrived
            json_object_set_new(o, "protocol", json_integer(s.link.protocol));
            json_object_set_new(o, "build", json_string(s.link.build));
            json_object_set_new(o, "protocol_differs", json_boolean(s.link.differs));
        }
        if (s.link.differs) {
            json_object_set_new(o, "own_protocol",
                                json_integer(inter_service_protocol(d->service)));
            json_object_set_new(o, "own_build", json_string(neb_build()));
        }
        json_array_append_new(peers, o);
    }
    EACH_JOB (d, j) {
        json_t *o = json_pack("{s:s,s:s,s:s,s:I,s:I}", "id", j->hex, "job", j->job.name, "state",
                              agent_job_phase(j->state), "step", (json_int_t)j->worker.last_step,
                              "steps", (json_int_t)j->job.steps);
        if (agent_job_ended(j->state))
            json_object_set_new(o, "outcome", json_string(agent_job_shown(j->state)));
        add_job(o, j, d->service, d->view);
        json_array_append_new(jobs, o);
    }
    add_aside(d, jobs);
    json_object_set_new(root, "version", json_integer(1));
    json_object_set_new(root, "build", json_string(neb_build()));
    json_object_set_new(root, "about", agent_about());
    json_object_set_new(root, "protocol", json_integer(inter_service_protocol(d->service)));
    json_object_set_new(root, "refused", refused(d));
    json_object_set_new(root, "keys_locked", json_boolean(sec_locked_all()));
    json_object_set_new(root, "lockable_bytes", json_integer(sec_locked_limit()));
    json_object_set_new(root, "updates", updates(d));
    json_object_set_new(root, "faults", faults(d->faults));
    json_object_set_new(root, "events", agent_view_events(d->view));
    json_object_set_new(root, "port", json_integer(inter_service_port(d->service)));
    json_object_set_new(root, "peers", peers);
    json_object_set_new(root, "jobs", jobs);
    return root;
}

void agent_status_publish(struct agent_web *w, struct agent_view *v, json_t *status) {
    struct neb_buf text = {0};
    char *history = NULL, *metrics = NULL;
    if (agent_web_watched(w)) {
        history = agent_view_history(v);
    } else {
        // the history follows within a second of the first view
        history = strdup("{\"version\":1,\"jobs\":[],\"events\":[]}");
    }
    if (agent_metrics_text(status, &text) == NEB_OK && (metrics = malloc(text.len + 1))) {
        memcpy(metrics, text.p, text.len);
        metrics[text.len] = 0;
    }
    agent_web_publish(w, json_dumps(status, JSON_COMPACT | JSON_REAL_PRECISION(12)), history,
                      metrics);
    neb_buf_free(&text);
    json_decref(status);
}

void agent_notify(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (!n || n >= sizeof a.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(a.sun_path, path, n);
    if (path[0] == '@') // the abstract namespace
        a.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    if (fd < 0 || sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&a, len) < 0)
        neb_debug("the service manager did not get \"%s\"", state);
    if (fd >= 0)
        close(fd);
}
