// SPDX-License-Identifier: Apache-2.0
// Connects snapshots (inter/service/snapshot.h) with this service's link, ledger and callbacks.
#include "inter/service/state.h"

static enum neb_status no_snapshot(void *user, const uint8_t job[INTER_ID_BYTES],
                                   struct inter_snapshot_source *out) {
    (void)user, (void)job, (void)out;
    return NEB_ERR_NOT_FOUND;
}

static enum neb_status open_snapshot(void *user, const uint8_t job[INTER_ID_BYTES],
                                     struct inter_snapshot_source *out) {
    struct inter_service *s = user;
    return s->cb.snapshot_open(s->cb.user, job, out);
}

static void close_snapshot(void *user, struct inter_snapshot_source *source) {
    struct inter_service *s = user;
    s->cb.snapshot_close(s->cb.user, source);
}

static void snapshot_done(void *user, const uint8_t job[INTER_ID_BYTES], enum neb_status st,
                          const char *part, uint64_t header_bytes, uint32_t giver) {
    struct inter_service *s = user;
    if (s->cb.snapshot_done)
        s->cb.snapshot_done(s->cb.user, job, st, part, header_bytes, giver);
}

static enum neb_status send_snapshot(void *user, uint32_t peer, bool bulk, const void *head,
                                     size_t n, const void *body, size_t m) {
    struct inter_service *s = user;
    if (!bulk)
        return inter_link_send(s->link, peer, INTER_CONTROL, head, n);
    struct service_sent sent;
    NEB_ASSERT(n > INTER_ID_BYTES); // a type byte and the job
    return service_send_bulk(s, (const uint8_t *)head + 1, peer, head, n, body, m, &sent);
}

static uint64_t elements_of(void *user, const uint8_t job[INTER_ID_BYTES]) {
    return service_elements_max(user, job);
}

static bool takes_part(void *user, const uint8_t job[INTER_ID_BYTES], uint32_t peer) {
    const struct inter_service *s = user;
    return peer < s->members.n && s->members.m[peer].pub.name[0] &&
           inter_node_is_member(s->node, job, peer);
}

// Blames nobody if the job is not open here: the peer may be a cluster of it and know the job
// earlier.
static void refused(void *user, const uint8_t job[INTER_ID_BYTES], uint32_t peer) {
    struct inter_service *s = user;
    if (inter_node_round(s->node, job, 0) != UINT32_MAX)
        s->cb.fault(s->cb.user, peer, INTER_FAULT_DENIED);
}

enum neb_status service_create_snapshots(struct inter_service *s) {
    struct inter_snapshots_config c = {s,
                                       s->seal,
                                       s->cb.snapshot_open ? open_snapshot : no_snapshot,
                                       close_snapshot,
                                       snapshot_done,
                                       send_snapshot,
                                       elements_of,
                                       takes_part,
                                       refused};
    return inter_snapshots_create(&c, &s->snapshots);
}

enum neb_status inter_service_snapshot_fetch(struct inter_service *s,
                                             const uint8_t job[INTER_ID_BYTES], const char *path,
                                             const uint32_t *peers, uint32_t n, bool header_only) {
    return inter_snapshots_fetch(s->snapshots, job, path, peers, n, header_only, neb_now());
}

bool inter_service_snapshot_progress(const struct inter_service *s,
                                     const uint8_t job[INTER_ID_BYTES],
                                     struct inter_snapshot_progress *out) {
    return inter_snapshots_progress(s->snapshots, job, out);
}

bool inter_service_updates_stay(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]) {
    neb_ns now = neb_now();
    if (inter_node_catching_up(s->node, job, now))
        inter_snapshots_catching_up(s->snapshots, now, job);
    return inter_snapshots_hold(s->snapshots, now, job);
}

enum neb_status inter_service_snapshot_install(struct inter_service *s,
                                               const struct inter_job_config *c,
                                               const struct inter_snapshot *snapshot,
                                               uint64_t *taken) {
    *taken = 0;
    for (uint32_t f = 0; f < snapshot->fragments; f++) {
        const struct inter_snapshot_part *p = &snapshot->parts[f];
        struct inter_record last = p->last;
        struct inter_chain chain = {0};
        enum neb_status st = inter_ledger_chain(s->ledger, c->id, f, &chain);
        if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
            return st;
        // before: an earlier start installed this snapshot and ended before its worker used it. The
        // ledger has pruned nothing after it since.
        bool ahead = p->round > chain.next, before = p->round && chain.next &&
                                                     chain.first + 1 == p->round &&
                                                     chain.kept <= p->round;
        if (p->round && !inter_node_proves(s->node, c, &last))
            return neb_fail(NEB_ERR_DENIED,
                            "the snapshot's record of round %u is not signed by a majority",
                            p->last.round);
        if (ahead) {
            NEB_TRY(inter_ledger_begin_at(s->ledger, c->id, f, p->last.round, p->last.previous));
            NEB_TRY(inter_ledger_put_commit(s->ledger, &last));
        }
        if (ahead || before) // the updates of that record are not here
            NEB_TRY(inter_ledger_prune(s->ledger, c->id, f, p->round));
        *taken |= ahead || before ? 1ull << f : 0;
    }
    return NEB_OK;
}

enum neb_status inter_service_digests(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                                      uint32_t fragment, uint32_t round, const uint64_t digest[2],
                                      struct inter_digests *out) {
    struct inter_record r;
    if (inter_node_digests(s->node, job, fragment, round, digest, out))
        return NEB_OK;
    NEB_TRY(inter_ledger_get_commit(s->ledger, job, fragment, round, &r));
    inter_record_digests(&r, digest, out);
    return NEB_OK;
}
