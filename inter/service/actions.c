// SPDX-License-Identifier: Apache-2.0
// Carries out the node's actions, in order, with the disk and the links. The results go back to the
// node as events.
#include "agent/base/array.h"
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "compress/update.h"
#include "inter/service/state.h"

#include <stdlib.h>
#include <string.h>

void service_unmap(struct inter_service *s) {
    neb_map_close(&s->mapped);
    s->is_mapped = false;
}

static void queue_event(struct inter_service *s, const struct inter_event *e) {
    struct pending *p = neb_array_more(s->pending, s->n_pending, &s->cap_pending, 16, sizeof *p);
    if (!p) {
        s->st = neb_fail(NEB_ERR_NOMEM, "out of memory queueing an event");
        return;
    }
    s->pending = p;
    s->pending[s->n_pending] = (struct pending){.e = *e};
    s->n_pending++;
}

enum neb_status service_send_bulk(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                                  uint32_t peer, const void *head, size_t n, const void *body,
                                  size_t m, struct service_sent *sent) {
    bool pass = inter_job_limits_pass(&s->limits, job, neb_now());
    *sent = (struct service_sent){.held = !pass};
    if (!pass)
        return NEB_ERR_AGAIN;
    NEB_TRY(inter_link_send_on(s->link, peer, INTER_BULK, head, n, body, m, &sent->way));
    inter_job_limits_sent(&s->limits, job, inter_tcp_wire_bytes(1 + n + m));
    return NEB_OK;
}

static void send_failed(struct inter_service *s, const struct inter_action *a, bool held) {
    queue_event(s, &(struct inter_event){.kind = INTER_EV_SEND_FAILED,
                                         .peer = a->peer,
                                         .key = a->key,
                                         .chunk = a->chunk,
                                         .ok = held});
}

// One step may have many chunks of the same lost update to send.
static bool is_known_lost(const struct inter_service *s, const struct inter_key *k) {
    for (size_t i = 0; i < s->n_pending; i++)
        if (s->pending[i].e.kind == INTER_EV_BLOB_LOST && inter_key_equal(&s->pending[i].e.key, k))
            return true;
    return false;
}

static enum neb_status service_lost(struct inter_service *s, const struct inter_manifest *m) {
    const struct inter_key *k = &m->key;
    char path[NEB_PATH_MAX] = "";
    if (is_known_lost(s, k))
        return s->st;
    bool own = inter_node_peer(s->node, k->job, k->member) == INTER_PEER_NONE;
    if (s->is_mapped && inter_key_equal(&s->mapped_key, k))
        service_unmap(s);
    bool here = inter_ledger_has_blob(s->ledger, k);
    NEB_TRY(inter_ledger_blob_path(s->ledger, k, path, sizeof path));
    neb_warn("ledger: asks the other members for the update of member %u for round %u of "
             "fragment %u: %s is %s",
             k->member, k->round, k->fragment, path, here ? "damaged" : "missing");
    if (here)
        NEB_TRY(inter_ledger_discard(s->ledger, k));
    queue_event(s, &(struct inter_event){.kind = INTER_EV_BLOB_LOST, .key = *k});
    if (s->st == NEB_OK) {
        s->pending[s->n_pending - 1].manifest = *m;
        s->pending[s->n_pending - 1].has_manifest = true;
    }
    if (own && s->cb.lost && k->round == inter_node_round(s->node, k->job, k->fragment))
        s->cb.lost(s->cb.user, k);
    return s->st;
}

// A blob that this member promised to send is missing or damaged. The node withdraws the promise.
// If the ledger still has the manifest, the other members are asked for the update.
static enum neb_status serves_not(struct inter_service *s, const struct inter_action *a) {
    struct inter_manifest m;
    enum neb_status st = inter_ledger_find_manifest(s->ledger, &a->key, &m);
    queue_event(s, &(struct inter_event){.kind = INTER_EV_SERVE, .peer = a->peer, .key = a->key});
    return st == NEB_OK ? service_lost(s, &m) : st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

static enum neb_status send_chunk(struct inter_service *s, const struct inter_action *a) {
    uint8_t sha[INTER_SHA_BYTES], *head = s->actions.bytes.p + a->at;
    struct service_sent sent;
    // before the hash, because nobody would use its result
    if (!inter_job_limits_pass(&s->limits, a->key.job, neb_now())) {
        send_failed(s, a, true);
        return NEB_OK;
    }
    if (!s->is_mapped || !inter_key_equal(&s->mapped_key, &a->key)) {
        service_unmap(s);
        enum neb_status st = inter_ledger_has_blob(s->ledger, &a->key)
                                 ? inter_ledger_map_blob(s->ledger, &a->key, &s->mapped)
                                 : NEB_ERR_NOT_FOUND;
        s->mapped_key = a->key;
        s->is_mapped = st == NEB_OK;
    }
    // The blob was removed, cut short or cannot be read any more. Only this update fails, because
    // others may still have it.
    if (!s->is_mapped || a->offset + a->len > s->mapped.len)
        return serves_not(s, a);
    neb_sha256(s->mapped.p + a->offset, a->len, sha);
    memcpy(head + a->size - 8, sha, 8); // the header's last field
    enum neb_status st = service_send_bulk(s, a->key.job, a->peer, head, a->size,
                                           s->mapped.p + a->offset, a->len, &sent);
    if (st == NEB_OK)
        inter_node_sent_on(s->node, a->peer, &a->key, a->chunk, sent.way);
    if (st != NEB_ERR_AGAIN)
        return st;
    send_failed(s, a, sent.held);
    return NEB_OK;
}

static void send_record(struct inter_service *s, const struct inter_action *a) {
    struct inter_record r;
    enum neb_status st =
        inter_ledger_get_commit(s->ledger, a->key.job, a->key.fragment, a->key.round, &r);
    if (st != NEB_OK) { // older than the snapshot that this ledger began with
        struct inter_event none = {.kind = INTER_EV_SERVE, .peer = a->peer, .key = a->key};
        none.key.member = INTER_NO_MEMBER;
        queue_event(s, &none);
        return;
    }
    neb_buf_clear(&s->out);
    inter_node_commit_message(&s->out, &r);
    if (inter_link_send(s->link, a->peer, INTER_CONTROL, s->out.p, s->out.len) != NEB_OK)
        neb_debug("cannot send a commit record yet");
}

// ---- updates that arrive ------------------------------------------------------------------------

// With these errors the agent goes on: others' updates are requested again when there is room.
static bool is_no_room(enum neb_status st) { return st == NEB_ERR_NOSPC || st == NEB_ERR_LIMIT; }

// An arriving update may also fail with an I/O error (an unreliable disk, too many open files). It
// is requested again, so nothing is lost.
bool service_not_kept(enum neb_status st) { return is_no_room(st) || st == NEB_ERR_IO; }

void service_report_room(struct inter_service *s, enum neb_status kept) {
    const neb_ns throttle = 60 * NEB_S; // the disk may fill and drain again and again
    neb_ns now = neb_now();
    bool room = kept == NEB_OK;
    if (kept == NEB_ERR_NOSPC) // replaces an older reason, which may be over
        snprintf(s->no_room_why, sizeof s->no_room_why,
                 "no room on the disk of %.300s: %d MiB must stay free",
                 inter_ledger_dir(s->ledger), INTER_LEDGER_RESERVE >> 20);
    else if (!room)
        neb_last_error(s->no_room_why, sizeof s->no_room_why);
    if (room == !s->no_room)
        return;
    s->no_room = !room;
    if (!room && (!s->no_room_said || now - s->no_room_said > throttle)) {
        neb_warn("updates of others cannot be kept (%s): they are requested again", s->no_room_why);
        s->no_room_said = now;
    } else if (room && s->no_room_said) {
        neb_info("updates of others can be kept again");
    }
}

const char *inter_service_no_room(const struct inter_service *s) {
    return s->no_room ? s->no_room_why : NULL;
}

static void tell_room(struct inter_service *s, const struct inter_key *k, enum neb_status kept) {
    if (service_not_kept(kept)) // not found: its file could not be opened, which was reported
        service_report_room(s, kept);
    queue_event(s, &(struct inter_event){.kind = INTER_EV_BLOB_ROOM,
                                         .peer = s->self < NEB_MEMBERS_MAX ? s->self : 0,
                                         .key = *k,
                                         .ok = kept == NEB_OK});
}

// Removes what has arrived, to free the disk. A file that stays is harmless.
static void give_up(struct inter_service *s, const struct inter_key *k) {
    service_arrival_end(s, k);
    if (inter_ledger_part_discard(s->ledger, k) != NEB_OK)
        neb_warn("ledger: cannot remove the incomplete update of member %u for round %u", k->member,
                 k->round);
}

// False if the manifest could not be stored before: no bytes are kept that the ledger does not
// know.
static bool is_stored(struct inter_service *s, const struct inter_manifest *m) {
    struct inter_manifest stored;
    return inter_ledger_find_manifest(s->ledger, &m->key, &stored) == NEB_OK &&
           !memcmp(stored.sha256, m->sha256, sizeof stored.sha256);
}

// The reason: the disk was full, or the member signed two updates under one number and the ledger
// keeps the first.
static enum neb_status not_stored(struct inter_service *s, const struct inter_manifest *m) {
    struct inter_manifest stored;
    if (inter_ledger_find_manifest(s->ledger, &m->key, &stored) != NEB_OK)
        return NEB_ERR_NOSPC;
    return neb_fail(NEB_ERR_LIMIT,
                    "round %u of fragment %u: member %u has signed two updates as attempt %u; the "
                    "second one is kept when a record lists it",
                    m->key.round, m->key.fragment, m->key.member, m->key.attempt);
}

static enum neb_status open_part(struct inter_service *s, const struct inter_manifest *m) {
    struct inter_bitmap none;
    NEB_TRY(inter_bitmap_init(&none, inter_chunks(m->bytes, m->chunk_bytes)));
    enum neb_status st =
        is_stored(s, m) ? inter_ledger_part_open(s->ledger, m, &none) : not_stored(s, m);
    inter_bitmap_free(&none);
    if (st == NEB_OK)
        service_arrival_begin(s, m);
    else if (!service_not_kept(st))
        return st;
    tell_room(s, &m->key, st);
    if (st != NEB_OK)
        give_up(s, &m->key);
    return NEB_OK;
}

static enum neb_status write_part(struct inter_service *s, const struct inter_action *a) {
    enum neb_status st = inter_ledger_part_write(s->ledger, &a->key, a->offset, a->view, a->len);
    if (st == NEB_OK)
        service_arrival_chunk(s, &a->key, a->offset, a->view, a->len);
    else if (!service_not_kept(st) && st != NEB_ERR_NOT_FOUND)
        return st;
    if (st != NEB_OK)
        tell_room(s, &a->key, st);
    if (service_not_kept(st))
        give_up(s, &a->key);
    return NEB_OK;
}

struct finish {
    const struct inter_manifest *m;
    bool pass;
    float norm;
    enum neb_status kept; // status of the bytes, apart from that of service_gate
};

// Completes the blob on disk; a sealed one is written once more. An update that was not checked
// while it arrived is read and unpacked completely.
static enum neb_status keep_and_weigh(struct inter_service *s, void *arg) {
    struct finish *x = arg;
    if (service_arrival_whole(s, x->m))
        inter_ledger_part_hashed(s->ledger, x->m);
    (void)neb_fault("service.finish"); // tests a slow disk
    x->kept = inter_ledger_part_finish(s->ledger, x->m);
    return x->kept == NEB_OK ? service_gate(s, x->m, &x->pass, &x->norm) : NEB_OK;
}

static enum neb_status finish_blob(struct inter_service *s, const struct inter_manifest *m) {
    struct inter_event done = {.kind = INTER_EV_BLOB_DONE, .key = m->key};
    struct finish x = {.m = m};
    enum neb_status st = service_run_in_thread(s, m->bytes, keep_and_weigh, &x);
    bool not_kept = service_not_kept(x.kept);
    if (not_kept || x.kept == NEB_OK) // a complete update was kept, so there is room
        service_report_room(s, x.kept);
    if (not_kept)
        give_up(s, &m->key);
    if (x.kept == NEB_OK) {
        NEB_TRY(st);
        service_arrival_end(s, &m->key);
        done.ok = x.pass;
        done.norm = x.norm;
        done.refused = !done.ok;
    } else if (x.kept == NEB_ERR_CORRUPT) {
        service_arrival_begin(s, m);                      // all of it arrives again
    } else if (not_kept || x.kept == NEB_ERR_NOT_FOUND) { // there was no room
        done.no_room = true;
    } else {
        return x.kept;
    }
    queue_event(s, &done);
    return NEB_OK;
}

static enum neb_status open_blob(struct inter_service *s, const struct inter_manifest *m) {
    struct neb_map map;
    if (!inter_ledger_has_blob(s->ledger, &m->key) || !is_stored(s, m))
        return open_part(s, m);
    // The blob is from a previous incarnation.
    enum neb_status st = service_read_blob(s, &m->key, m->bytes, m->sha256, &map);
    neb_map_close(&map);
    if (st == NEB_OK)
        return finish_blob(s, m);
    if (st == NEB_ERR_CORRUPT) {
        NEB_TRY(inter_ledger_discard(s->ledger, &m->key));
        return open_part(s, m);
    }
    if (!service_not_kept(st))
        return st;
    tell_room(s, &m->key, st);
    return NEB_OK;
}

static enum neb_status serve(struct inter_service *s, const struct inter_action *a) {
    struct inter_manifest m;
    enum neb_status st = inter_ledger_find_manifest(s->ledger, &a->key, &m);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    bool here = st == NEB_OK && inter_ledger_holds(s->ledger, &m);
    if (here && a->kind == INTER_ACT_VERIFY) {
        struct neb_map map;
        here = service_read_blob(s, &m.key, m.bytes, m.sha256, &map) == NEB_OK;
        neb_map_close(&map);
    }
    if (!here && st == NEB_OK && inter_ledger_has_blob(s->ledger, &a->key))
        return serves_not(s, a);
    queue_event(s, &(struct inter_event){.kind = INTER_EV_SERVE, .peer = a->peer, .key = a->key});
    if (s->st == NEB_OK && here) {
        s->pending[s->n_pending - 1].manifest = m;
        s->pending[s->n_pending - 1].has_manifest = true;
    }
    return NEB_OK;
}

struct reading {
    const struct inter_key *key;
    uint32_t bytes;
    const uint8_t *sha256;
    struct neb_map *out;
};

static enum neb_status read_and_hash(struct inter_service *s, void *arg) {
    const struct reading *x = arg;
    uint8_t sha[INTER_SHA_BYTES];
    NEB_TRY(inter_ledger_read_blob(s->ledger, x->key, x->out));
    neb_sha256(x->out->p, x->out->len, sha);
    return x->out->len == x->bytes && !memcmp(sha, x->sha256, sizeof sha) ? NEB_OK
                                                                          : NEB_ERR_CORRUPT;
}

enum neb_status service_read_blob(struct inter_service *s, const struct inter_key *key,
                                  uint32_t bytes, const uint8_t sha256[INTER_SHA_BYTES],
                                  struct neb_map *out) {
    struct reading x = {key, bytes, sha256, out};
    *out = (struct neb_map){0};
    enum neb_status st = service_run_in_thread(s, bytes, read_and_hash, &x);
    if (st == NEB_OK)
        return NEB_OK;
    neb_map_close(out);
    char path[NEB_PATH_MAX] = "";
    if (inter_ledger_blob_path(s->ledger, key, path, sizeof path) == NEB_OK)
        neb_warn("ledger: the update of member %u for round %u of fragment %u %s and is not used "
                 "(%s)",
                 key->member, key->round, key->fragment,
                 st == NEB_ERR_CORRUPT ? "is damaged" : "cannot be read", path);
    return st;
}

// Maps an update that a record lists. NEB_ERR_NOT_FOUND: it is not here.
static enum neb_status read_entry(struct inter_service *s, const struct inter_entry *e,
                                  const struct inter_key *k, bool again, struct neb_map *out) {
    *out = (struct neb_map){0};
    if (!inter_ledger_has_blob(s->ledger, k))
        return NEB_ERR_NOT_FOUND;
    enum neb_status st = again ? service_read_blob(s, k, e->bytes, e->sha256, out)
                               : inter_ledger_map_blob(s->ledger, k, out);
    if (st == NEB_OK && out->len == e->bytes)
        return NEB_OK;
    neb_map_close(out);
    *out = (struct neb_map){0};
    return st == NEB_OK || st == NEB_ERR_CORRUPT ? NEB_ERR_NOT_FOUND : st;
}

// Requests a missing update from the other members. False if its manifest is gone too: the round
// was pruned, or this member (a witness) never had it.
static bool seeks(struct inter_service *s, const struct inter_entry *e, const struct inter_key *k) {
    struct inter_manifest m;
    return inter_ledger_find_manifest(s->ledger, k, &m) == NEB_OK &&
           !memcmp(m.sha256, e->sha256, sizeof e->sha256) && service_lost(s, &m) == NEB_OK;
}

enum neb_status service_deliver(struct inter_service *s, const struct inter_record *r,
                                enum service_delivery how) {
    struct neb_map blobs[NEB_MEMBERS_MAX] = {{0}};
    bool sought = false;
    for (uint8_t i = 0; i < r->n; i++) {
        struct inter_key k = inter_entry_key(r, i);
        if (r->entries[i].verdict != INTER_ACCEPTED)
            continue;
        enum neb_status st =
            read_entry(s, &r->entries[i], &k, how != SERVICE_DELIVER_NEW, &blobs[i]);
        if (st == NEB_ERR_NOT_FOUND && how != SERVICE_DELIVER_LAST)
            sought = seeks(s, &r->entries[i], &k) || sought;
    }
    if (!sought) // else when the update is here again (INTER_ACT_FOUND)
        s->cb.commit(s->cb.user, r, blobs);
    for (uint8_t i = 0; i < r->n; i++)
        neb_map_close(&blobs[i]);
    return s->st;
}

// Delivers a round that is over, when its lost updates were found or no member has them.
static enum neb_status deliver_old(struct inter_service *s, const struct inter_key *k, bool found) {
    struct inter_record r;
    enum neb_status st = inter_ledger_get_commit(s->ledger, k->job, k->fragment, k->round, &r);
    if (st != NEB_OK)
        return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
    if (found)
        neb_info("ledger: the updates of round %u of fragment %u are complete again", k->round,
                 k->fragment);
    return service_deliver(s, &r, found ? SERVICE_REDELIVER : SERVICE_DELIVER_LAST);
}

static enum neb_status read_commit(struct inter_service *s, const struct inter_action *a) {
    struct inter_event e = {.kind = INTER_EV_COMMIT_READ, .peer = a->peer, .key = a->key};
    enum neb_status st = inter_ledger_get_commit(s->ledger, a->key.job, a->key.fragment,
                                                 a->key.round, &s->read_record);
    e.record = st == NEB_OK ? &s->read_record : NULL;
    queue_event(s, &e);
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

// The manifest of another member's update finds no room, or is a third one under a key that its
// member signed twice. The agent goes on: opening the blob reports it to the node (is_stored).
static enum neb_status of_others(const struct inter_service *s, const struct inter_action *a,
                                 enum neb_status st) {
    const struct inter_key *k = &a->manifest.key;
    bool own = inter_node_peer(s->node, k->job, k->member) == INTER_PEER_NONE;
    return !own && (is_no_room(st) || st == NEB_ERR_EXISTS) ? NEB_OK : st;
}

static enum neb_status carry_out(struct inter_service *s, const struct inter_action *a) {
    enum neb_status st;
    switch (a->kind) {
    case INTER_ACT_SEND:
        st = inter_link_send(s->link, a->peer, INTER_CONTROL, s->actions.bytes.p + a->at, a->size);
        if (st == NEB_OK)
            service_keep_heartbeat(s, a->peer, s->actions.bytes.p + a->at, a->size);
        return st == NEB_ERR_AGAIN ? NEB_OK : st; // the node sends it again
    case INTER_ACT_SEND_CHUNK: return send_chunk(s, a);
    case INTER_ACT_RESTART_LINK: inter_link_restart(s->link, a->peer); return NEB_OK;
    case INTER_ACT_SEND_COMMIT: send_record(s, a); return NEB_OK;
    case INTER_ACT_STORE_MANIFEST:
        return of_others(s, a, inter_ledger_put_manifest(s->ledger, &a->manifest));
    case INTER_ACT_REPLACE_MANIFEST:
        if (s->is_mapped && inter_key_equal(&s->mapped_key, &a->manifest.key))
            service_unmap(s);
        return of_others(s, a, inter_ledger_replace_manifest(s->ledger, &a->manifest));
    case INTER_ACT_STORE_VOTE: return inter_ledger_put_vote(s->ledger, &a->record);
    case INTER_ACT_STORE_COMMIT: return inter_ledger_put_commit(s->ledger, &a->record);
    case INTER_ACT_STORE_STANDING:
        service_heartbeats_end(s, a->standing.job, a->standing.term);
        return inter_ledger_put_standing(s->ledger, &a->standing);
    case INTER_ACT_SERVE:
    case INTER_ACT_VERIFY: return serve(s, a);
    case INTER_ACT_BLOB_OPEN: return open_blob(s, &a->manifest);
    case INTER_ACT_BLOB_WRITE: return write_part(s, a);
    case INTER_ACT_BLOB_FINISH: return finish_blob(s, &a->manifest);
    case INTER_ACT_DELIVER: return service_deliver(s, &a->record, SERVICE_DELIVER_NEW);
    case INTER_ACT_FOUND: return deliver_old(s, &a->key, true);
    case INTER_ACT_FAULT:
        service_charge_fault(s, a->peer, a->fault);
        s->cb.fault(s->cb.user, a->peer, a->fault);
        return NEB_OK;
    case INTER_ACT_STORE_EVIDENCE:
        if (s->cb.lied)
            s->cb.lied(s->cb.user, a->peer, &a->evidence);
        return inter_ledger_put_evidence(s->ledger, &a->evidence);
    case INTER_ACT_READ_COMMIT: return read_commit(s, a);
    case INTER_ACT_SPLIT:
        if (s->cb.split)
            s->cb.split(s->cb.user, a->peer, &a->key);
        return NEB_OK;
    case INTER_ACT_BEHIND:
        if (a->key.round < inter_node_round(s->node, a->key.job, a->key.fragment))
            return deliver_old(s, &a->key, false);
        if (s->cb.behind)
            s->cb.behind(s->cb.user, a->key.job);
        return NEB_OK;
    }
    return NEB_OK;
}

void service_step(struct inter_service *s, const struct inter_event *event) {
    struct inter_event e = *event;
    struct inter_manifest m;
    s->stepping = true;
    for (size_t done = 0;;) {
        s->stepped = neb_now();
        if (s->st == NEB_OK)
            s->st = inter_node_step(s->node, s->stepped, &e, &s->actions);
        for (size_t i = 0; i < s->actions.n && s->st == NEB_OK; i++)
            s->st = carry_out(s, &s->actions.list[i]);
        if (done == s->n_pending || s->st != NEB_OK)
            break;
        const struct pending *p = &s->pending[done++];
        e = p->e;
        m = p->manifest; // the list may move while the event is handled
        e.manifest = p->has_manifest ? &m : NULL;
    }
    s->n_pending = 0;
    s->stepping = false;
}

void service_step_pending(struct inter_service *s) {
    if (s->n_pending && !s->stepping)
        service_step(s, &(struct inter_event){.kind = INTER_EV_TICK, .peer = 0});
}
