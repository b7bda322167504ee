// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/streams.h"
#include "agent/base/log.h"
#include "agent/job/sides.h"

#include <string.h>

static struct agent_jobrun *job_of(struct agent_streams *s, const struct inter_stream_key *k) {
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        if (s->jobs[i].state && !memcmp(s->jobs[i].id, k->job, sizeof k->job))
            return &s->jobs[i];
    return NULL;
}

static void tell(struct agent_streams *s, const struct inter_stream_key *k, json_t *head,
                 const struct agent_ipc_part *part) {
    struct agent_jobrun *j = job_of(s, k);
    if (!j || !j->worker.client.len)
        json_decref(head); // the worker asks again when it attaches
    else if (agent_ipc_send(s->ipc, &j->worker.client, head, part, part ? 1 : 0) != NEB_OK)
        neb_debug("a worker does not take a stream's message; it asks again");
}

static void refuse(struct agent_streams *s, const struct inter_stream_key *k, bool terms,
                   const char *text) {
    tell(s, k,
         json_pack("{s:s,s:i,s:s,s:b}", "ev", "stream-refused", "stream", k->id, "text", text,
                   "terms", terms),
         NULL);
}

static void on_refused(void *user, const struct inter_stream_config *c, bool terms,
                       const char *text) {
    struct agent_streams *s = user;
    const struct agent_jobrun *j = job_of(s, &c->key);
    char named[1024];
    snprintf(named, sizeof named, "%s", text);
    for (int i = 0; terms && j && i < j->job.n_clusters; i++)
        if (i != j->self && j->peers[i] == c->peer)
            snprintf(named, sizeof named, "%s (here is \"%.63s\", there is \"%.63s\")", text,
                     j->job.clusters[j->self].name, j->job.clusters[i].name);
    refuse(s, &c->key, terms, named);
}

// The consumer started from an older checkpoint than the oldest that it reported.
static void on_lost(struct agent_streams *s, const struct inter_stream_key *k, bool consumer,
                    uint64_t seq, uint64_t oldest) {
    const struct agent_jobrun *j = job_of(s, k);
    char text[NEB_PATH_MAX + 512], where[NEB_PATH_MAX + 32];
    if (!j)
        return;
    if (consumer)
        snprintf(where, sizeof where, "%s/jobs/%s/checkpoint", s->home, j->hex);
    else
        snprintf(where, sizeof where, "jobs/%s/checkpoint of the other cluster's home", j->hex);
    snprintf(
        text, sizeof text,
        "the checkpoints in %s are lost, or all too old: the job would continue there with batch "
        "%llu, but batches before %llu are no longer kept; restore that folder from a backup, "
        "or start a new job",
        where, (unsigned long long)seq, (unsigned long long)oldest);
    neb_log(NEB_LOG_ERROR, "stream %u: %s", k->id, text);
    refuse(s, k, false, text);
}

static void on_fault(const struct inter_stream_key *k, enum inter_stream_fault f) {
    // others are counted in the stream's statistics
    if (f == INTER_STREAM_FAULT_VERSION)
        neb_warn("stream %u: the other cluster's agent speaks another version of streams: run the "
                 "same version of nebula on both",
                 k->id);
    else
        neb_debug("stream %u: %s", k->id, inter_stream_fault_name(f));
}

static void on_act(void *user, const struct inter_stream_config *c,
                   const struct inter_stream_action *a, const struct inter_stream_stats *now,
                   neb_ns age) {
    const struct inter_stream_key *k = &c->key;
    const struct agent_ipc_part part = {a->view, a->len};
    switch (a->kind) {
    case INTER_STREAM_ACT_ROOM:
        tell(user, k,
             json_pack("{s:s,s:i,s:I,s:I,s:I,s:I,s:I,s:f,s:b,s:f,s:f}", "ev", "stream-room",
                       "stream", k->id, "limit", (json_int_t)a->seq, "stored",
                       (json_int_t)a->stored, "durable", (json_int_t)a->durable, "applied",
                       (json_int_t)now->applied, "have", (json_int_t)now->have, "goodput_bps",
                       now->path.goodput_bps, "full", now->path.full, "rtt_s",
                       neb_seconds(now->path.rtt), "waited_s", neb_seconds(now->path.waited)),
             NULL);
        break;
    case INTER_STREAM_ACT_BEGIN:
        tell(user, k,
             json_pack("{s:s,s:i,s:I}", "ev", "stream-begin", "stream", k->id, "next",
                       (json_int_t)a->seq),
             NULL);
        break;
    case INTER_STREAM_ACT_DELIVER:
        tell(user, k,
             json_pack("{s:s,s:i,s:I,s:f}", "ev", "stream-batch", "stream", k->id, "seq",
                       (json_int_t)a->seq, "age_s", age < 0 ? -1 : neb_seconds(age)),
             &part);
        break;
    case INTER_STREAM_ACT_CHECKPOINT:
        tell(user, k, json_pack("{s:s,s:i}", "ev", "stream-checkpoint", "stream", k->id), NULL);
        break;
    case INTER_STREAM_ACT_LOST:
        on_lost(user, k, c->role == INTER_STREAM_CONSUMER, a->seq, a->durable);
        break;
    default: on_fault(k, a->fault); break;
    }
}

static bool on_over(void *user, const struct inter_stream_key *k, uint32_t peer) {
    struct agent_streams *s = user;
    const struct agent_jobrun *j = job_of(s, k);
    return (!j || agent_job_ended(j->state)) && s->over(s->user, k->job, peer);
}

void agent_streams_listen(struct agent_streams *s) {
    inter_streams_listen(s->streams,
                         &(struct inter_streams_callbacks){s, on_act, on_refused, on_over});
}

static bool parse_terms(const json_t *list, struct inter_stream_config *c) {
    size_t i;
    json_t *t;
    if (!json_is_array(list) || json_array_size(list) > INTER_STREAM_TERMS_MAX)
        return false;
    json_array_foreach(list, i, t) {
        const char *name = json_string_value(json_object_get(t, "name")),
                   *hex = json_string_value(json_object_get(t, "sha256"));
        if (!name || strlen(name) > INTER_STREAM_TERM_NAME || !hex ||
            !neb_unhex(hex, c->terms[i].sha256, INTER_SHA_BYTES))
            return false;
        memcpy(c->terms[i].name, name, strlen(name) + 1);
        c->n_terms++;
    }
    return true;
}

// A number of a request within 0..max; else -1, which no limit allows.
static int64_t number(const struct agent_ipc_msg *m, const char *key, int64_t max) {
    int64_t v = agent_ipc_int(m, key, -1);
    return v <= max ? v : -1;
}

static bool parse_open(const struct agent_jobrun *j, const struct agent_ipc_msg *m,
                       struct inter_stream_config *c) {
    int64_t cluster = number(m, "cluster", j->job.n_clusters - 1),
            type = number(m, "type", INTER_STREAM_TYPES - 1),
            role = number(m, "role", INTER_STREAM_CONSUMER),
            batch = number(m, "batch_bytes", UINT32_MAX),
            window = number(m, "window_batches", UINT32_MAX),
            start = number(m, "window_start", UINT32_MAX),
            bytes = number(m, "window_bytes", UINT32_MAX),
            spool = number(m, "spool_batches", UINT32_MAX),
            spool_bytes = number(m, "spool_bytes", INT64_MAX);
    if (cluster < 0 || cluster == j->self || type < 0 || role < 0 || batch < 0 || window < 0 ||
        start < 0 || bytes < 0 || spool < 0 || spool_bytes < 0)
        return false;
    c->type = (enum inter_stream_type)type;
    c->role = (enum inter_stream_role)role;
    c->peer = j->peers[cluster];
    c->batch_bytes = (uint32_t)batch;
    c->window_batches = (uint32_t)window;
    c->window_start = (uint32_t)start;
    c->window_bytes = (uint32_t)bytes;
    c->spool_batches = (uint32_t)spool;
    c->spool_bytes = (uint64_t)spool_bytes;
    c->measured = json_is_true(json_object_get(m->head, "measured"));
    return parse_terms(json_object_get(m->head, "terms"), c);
}

static enum neb_status on_open(struct agent_streams *s, struct agent_jobrun *j,
                               const struct agent_ipc_msg *m, const struct inter_stream_key *k) {
    struct inter_stream_config c = {.key = *k};
    int64_t next = agent_ipc_int(m, "next", -1);
    enum neb_status st = parse_open(j, m, &c) && next >= 0
                             ? inter_streams_open(s->streams, &c)
                             : neb_fail(NEB_ERR_FORMAT, "malformed request for a stream");
    bool anywhere = json_is_true(json_object_get(m->head, "anywhere"));
    if (st == NEB_OK)
        return inter_streams_tell(s->streams, k, INTER_STREAM_EV_ATTACH,
                                  anywhere ? INTER_STREAM_ANYWHERE : (uint64_t)next);
    return st;
}

bool agent_streams_request(struct agent_streams *s, struct agent_jobrun *j,
                           const struct agent_ipc_msg *m) {
    enum neb_status st = NEB_OK;
    const char *op = agent_ipc_str(m, "op", "");
    int64_t id = agent_ipc_int(m, "stream", -1), next = agent_ipc_int(m, "next", -1),
            seq = agent_ipc_int(m, "seq", -1);
    struct inter_stream_key k = {.id = (uint16_t)id};
    if (strncmp(op, "stream-", 7))
        return false;
    if (id < 0 || id > UINT16_MAX)
        return true;
    memcpy(k.job, j->id, sizeof k.job);
    if (!strcmp(op, "stream-open"))
        st = on_open(s, j, m, &k);
    else if (!strcmp(op, "stream-put") && seq >= 0 && m->n_parts == 1)
        st = inter_streams_put(s->streams, &k, (uint64_t)seq, m->parts[0].p, m->parts[0].len);
    else if (!strcmp(op, "stream-applied") && next >= 0)
        st = inter_streams_tell(s->streams, &k, INTER_STREAM_EV_APPLIED, (uint64_t)next);
    else if (!strcmp(op, "stream-durable") && next >= 0)
        st = inter_streams_tell(s->streams, &k, INTER_STREAM_EV_DURABLE, (uint64_t)next);
    if (st != NEB_OK) { // a full disk or an error of the worker ends the job, not the agent
        char text[1024];
        neb_last_error(text, sizeof text);
        refuse(s, &k, false, text);
    }
    return true;
}

json_t *agent_streams_report(const struct agent_streams *s, const struct agent_jobrun *j) {
    json_t *list = json_array();
    struct inter_stream_key k = {0};
    struct inter_stream_stats t;
    memcpy(k.job, j->id, sizeof k.job);
    for (int id = 0; id < AGENT_STREAM_IDS; id++) {
        k.id = (uint16_t)id;
        if (!inter_streams_stats(s->streams, &k, &t))
            continue;
        json_t *faults = json_object();
        for (int f = 0; f < INTER_STREAM_FAULTS; f++)
            if (t.faults[f])
                json_object_set_new(faults, inter_stream_fault_name((enum inter_stream_fault)f),
                                    json_integer((json_int_t)t.faults[f]));
        json_array_append_new(list, json_pack("{s:i,s:I,s:I,s:I,s:I,s:i,s:o}", "stream", id,
                                              "batches", (json_int_t)t.batches, "bytes",
                                              (json_int_t)t.bytes, "resent", (json_int_t)t.resent,
                                              "held_bytes", (json_int_t)t.held_bytes, "window",
                                              (int)t.window, "faults", faults));
    }
    return list;
}
