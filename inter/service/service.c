// SPDX-License-Identifier: Apache-2.0
// The service: create, poll, change members and limits. state.h shows the other files.
#include "agent/base/log.h"
#include "compress/update.h"
#include "inter/service/state.h"
#include "security/sign.h"

#include <stdlib.h>
#include <string.h>

enum { FORMER_END = INTER_PEER_NONE };
static const neb_ns tick_interval = 200 * NEB_MS;

bool service_sign(void *user, const char *context, const void *msg, size_t len,
                  uint8_t sig[INTER_SIG_BYTES]) {
    struct inter_service *s = user;
    return sec_sign(s->identity, context, msg, len, sig) == NEB_OK;
}

static bool verify_member(struct inter_service *s, uint32_t peer, const char *context,
                          const void *msg, size_t len, const uint8_t sig[INTER_SIG_BYTES]) {
    if (peer >= s->members.n || !s->members.m[peer].pub.name[0])
        return false;
    const struct sec_public *former = inter_link_previous_keys(s->link, peer, NULL);
    return sec_verify(s->members.m[peer].pub.sign, context, msg, len, sig) == NEB_OK ||
           (former && sec_verify(former->sign, context, msg, len, sig) == NEB_OK);
}

// For the node and masked sums. Manifests, records, votes, promises and seeds stay valid when their
// member is revoked or rotates its keys: others may have them already, and a member that was away
// learns them late. A previous key adds nothing new, because it opens no link and no envelope.
bool service_verify(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                    const uint8_t sig[INTER_SIG_BYTES]) {
    struct inter_service *s = user;
    if (verify_member(s, peer, context, msg, len, sig))
        return true;
    if (!strcmp(context, INTER_CONTEXT_FORWARD) || peer >= INTER_PEERS_MAX)
        return false;
    const struct service_removed_member *f =
        &s->former[peer]; // a listed member has its present key here
    return f->name[0] && (sec_verify(f->sign, context, msg, len, sig) == NEB_OK ||
                          (s->cb.signed_before &&
                           s->cb.signed_before(s->cb.user, f->name, context, msg, len, sig)));
}

static void remember(struct inter_service *s) {
    for (uint32_t i = 0; i < s->members.n; i++)
        if (s->members.m[i].pub.name[0]) {
            memcpy(s->former[i].name, s->members.m[i].pub.name, sizeof s->former[i].name);
            memcpy(s->former[i].sign, s->members.m[i].pub.sign, sizeof s->former[i].sign);
        }
}

enum neb_status inter_service_removed_member(struct inter_service *s, const char *name,
                                             const uint8_t sign[SEC_KEY_BYTES], uint32_t *peer) {
    uint32_t i = NEB_MEMBERS_MAX;
    while (i < NEB_MEMBERS_MAX + s->n_former && strcmp(s->former[i].name, name))
        i++;
    if (i == FORMER_END)
        return neb_fail(NEB_ERR_LIMIT, "jobs have more than %d removed members, which is the limit",
                        FORMER_END - NEB_MEMBERS_MAX);
    s->n_former += i == NEB_MEMBERS_MAX + s->n_former;
    snprintf(s->former[i].name, sizeof s->former[i].name, "%s", name);
    memcpy(s->former[i].sign, sign, sizeof s->former[i].sign);
    *peer = i;
    return NEB_OK;
}

static bool is_listed(void *user, const char *peer) {
    return *peer && sec_members_by_name(user, peer);
}

static enum neb_status open_link(struct inter_service *s) {
    struct inter_link_config c = s->link_config;
    c.members = &s->members;
    return inter_link_create(&c, &s->link);
}

enum neb_status inter_service_create(const struct inter_service_config *c,
                                     struct inter_service **out) {
    enum neb_status st = NEB_OK;
    struct inter_service *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating the service");
    s->cb = c->callbacks;
    s->repeats = c->repeats;
    s->identity = c->identity;
    s->members = *c->members;
    remember(s);
    s->self = UINT32_MAX;
    for (uint32_t i = 0; i < s->members.n; i++)
        if (!memcmp(s->members.m[i].pub.sign, sec_identity_public(c->identity)->sign,
                    SEC_KEY_BYTES))
            s->self = i;
    s->crypto = (struct inter_node_crypto){s, service_sign, service_verify};
    s->link_config = (struct inter_link_config){.identity = c->identity,
                                                .listen = c->listen,
                                                .n_bulk = c->n_bulk,
                                                .recycle = c->recycle,
                                                .chunk_bytes = INTER_CHUNK_MAX,
                                                .congestion = c->congestion,
                                                .zmq_context = c->zmq_context};
    NEB_TRY_GOTO(inter_ledger_open(c->dir, &s->ledger), fail);
    s->seal = c->seal;
    inter_ledger_seal(s->ledger, s->seal);
    NEB_TRY_GOTO(inter_ledger_outbox_sweep(s->ledger, is_listed, &s->members), fail);
    NEB_TRY_GOTO(cmp_work_create(&s->gate), fail);
    NEB_TRY_GOTO(inter_node_create(&s->crypto, &s->node), fail);
    NEB_TRY_GOTO(open_link(s), fail);
    s->limit = c->limit;
    struct inter_streams_config streams = {c->dir, &s->crypto, &s->link, &s->limits, c->seal};
    NEB_TRY_GOTO(inter_streams_create(&streams, &s->streams), fail);
    NEB_TRY_GOTO(service_create_snapshots(s), fail);
    s->next_tick = neb_now() + tick_interval;
    *out = s;
    return NEB_OK;
fail:
    inter_service_destroy(&s);
    return st;
}

void inter_service_destroy(struct inter_service **sp) {
    struct inter_service *s = *sp;
    if (!s)
        return;
    *sp = NULL; // so that no heartbeat finds it half destroyed
    service_unmap(s);
    inter_streams_destroy(&s->streams);
    inter_link_destroy(&s->link);
    inter_node_destroy(&s->node);
    inter_snapshots_destroy(&s->snapshots);
    inter_ledger_close(&s->ledger);
    cmp_work_destroy(&s->gate);
    service_arrivals_free(s);
    service_heartbeats_free(s);
    inter_actions_free(&s->actions);
    neb_buf_free(&s->out);
    free(s->pending);
    free(s->shapes);
    free(s->owed);
    free(s->bounds);
    free(s);
}

enum neb_status inter_service_reload(struct inter_service *s, const struct sec_members *m,
                                     const char *rotated, neb_ns overlap, uint32_t *waiting) {
    NEB_TRY(inter_link_reload(s->link, m, rotated, overlap, waiting));
    s->members = *inter_link_members(s->link);
    remember(s);
    struct sec_members listed = *m;
    if (inter_ledger_outbox_sweep(s->ledger, is_listed, &listed) != NEB_OK)
        neb_warn("cannot remove the messages for revoked members; the next start removes them");
    return NEB_OK;
}

const struct sec_members *inter_service_members(const struct inter_service *s) {
    return &s->members;
}

enum neb_status inter_service_rekey(struct inter_service *s, const struct sec_identity *id) {
    struct sec_public former[NEB_MEMBERS_MAX];
    neb_ns until[NEB_MEMBERS_MAX] = {0};
    for (uint32_t i = 0; i < s->members.n; i++) {
        const struct sec_public *f = inter_link_previous_keys(s->link, i, &until[i]);
        former[i] = f ? *f : (struct sec_public){.name = ""};
    }
    for (uint32_t i = 0; i < s->members.n; i++) // for the node, all peers are gone for a moment
        if (s->up[i]) {
            s->up[i] = false;
            service_step(s, &(struct inter_event){.kind = INTER_EV_PEER_DOWN, .peer = i});
            if (s->st == NEB_OK)
                s->st = inter_streams_peer(s->streams, i, false);
            s->cb.peer(s->cb.user, i, false);
        }
    inter_link_destroy(&s->link);
    s->identity = s->link_config.identity = id;
    enum neb_status st = open_link(s);
    for (int i = 0; st == NEB_ERR_IO && i < 30; i++) { // ZeroMQ closes a listener asynchronously
        neb_sleep(100 * NEB_MS);
        st = open_link(s);
    }
    s->next_limit = 0; // the new link has no limit yet
    for (uint32_t i = 0; st == NEB_OK && i < s->members.n; i++)
        if (until[i])
            inter_link_keep_previous_keys(s->link, i, &former[i], until[i]);
    return st;
}

bool inter_service_verify(struct inter_service *s, uint32_t peer, const char *context,
                          const void *msg, size_t len, const uint8_t sig[INTER_SIG_BYTES]) {
    return verify_member(s, peer, context, msg, len, sig);
}

bool inter_service_verify_ever(struct inter_service *s, uint32_t peer, const char *context,
                               const void *msg, size_t len, const uint8_t sig[INTER_SIG_BYTES]) {
    return service_verify(s, peer, context, msg, len, sig);
}

void inter_service_limit(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                         const struct inter_rate_limit *limit, bool whole) {
    inter_job_limits_set(&s->limits, job, limit, whole);
    s->next_limit = 0;
}

// Called every second, because a limit may begin at any minute.
static void apply_limit(struct inter_service *s, neb_ns now) {
    int minute = inter_rate_minute(neb_wall_now());
    uint64_t own = inter_rate_limit_at(&s->limit, minute),
             jobs = inter_job_limits_apply(&s->limits, now, minute);
    inter_link_limit(s->link, own && (!jobs || own < jobs) ? own : jobs);
    s->next_limit = now + NEB_S;
}

enum neb_status inter_service_process(struct inter_service *s) {
    neb_ns now = neb_now();
    if (now >= s->next_limit)
        apply_limit(s, now);
    NEB_TRY(inter_link_process(s->link, service_on_event, s));
    now = neb_now();
    bool resumes = inter_link_resumes(s->link);
    resumes = inter_job_limits_resumes(&s->limits, now) || resumes;
    if ((now >= s->next_tick || resumes) && s->st == NEB_OK) {
        s->next_tick = now + tick_interval;
        service_step(s, &(struct inter_event){.kind = INTER_EV_TICK,
                                              .peer = s->self < NEB_MEMBERS_MAX ? s->self : 0});
        if (s->st == NEB_OK)
            s->st = inter_streams_tick(s->streams);
        if (s->st == NEB_OK)
            s->st = service_owed_tick(s, now);
    }
    if (s->st == NEB_OK)
        s->st = inter_snapshots_tick(s->snapshots, now);
    for (uint32_t i = 0; i < s->members.n && s->st == NEB_OK; i++)
        if (s->up[i])
            s->st = service_resend(s, i);
    return s->st;
}

size_t inter_service_poll_items(const struct inter_service *s, zmq_pollitem_t *items, size_t cap) {
    return inter_link_poll_items(s->link, items, cap);
}

neb_ns inter_service_next_deadline(const struct inter_service *s) {
    neb_ns next = inter_link_next_deadline(s->link), due = inter_job_limits_due(&s->limits);
    next = due < next ? due : next;
    return next < s->next_tick ? next : s->next_tick;
}

struct inter_ledger *inter_service_ledger(struct inter_service *s) {
    return s->ledger;
}

struct inter_streams *inter_service_streams(struct inter_service *s) {
    return s->streams;
}

uint32_t inter_service_port(const struct inter_service *s) { return inter_link_port(s->link); }

uint32_t inter_service_protocol(const struct inter_service *s) {
    return inter_link_protocol(s->link);
}

uint64_t inter_service_refused(const struct inter_service *s) {
    return inter_link_refused(s->link);
}

enum neb_status inter_service_stats(struct inter_service *s, uint32_t peer,
                                    struct inter_peer_stats *out) {
    *out = (struct inter_peer_stats){0};
    NEB_TRY(inter_link_stats(s->link, peer, &out->link));
    inter_node_path(s->node, peer, &out->path);
    return NEB_OK;
}
