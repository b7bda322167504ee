// SPDX-License-Identifier: Apache-2.0
// Jobs: restored from the ledger, updates submitted, commits delivered again.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "inter/service/state.h"
#include "security/sign.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void inter_service_job_removed(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                               struct member_set removed) {
    (void)inter_node_job_removed(s->node, job, removed);
}

void inter_service_job_gone(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                            struct member_set gone) {
    inter_node_job_revoked(s->node, job, gone);
}

struct weighing {
    const struct inter_manifest *m;
    bool pass;
    float norm;
};
static enum neb_status weigh(struct inter_service *s, void *arg) {
    struct weighing *w = arg;
    return service_gate(s, w->m, &w->pass, &w->norm);
}

// Discards a blob that changed on the disk. It comes again from others, or the worker computes it
// again. If a blob is only unreadable at the moment (no memory, no key), it stays, and this fails.
static enum neb_status look_at_blob(struct inter_service *s, const struct inter_manifest *m,
                                    bool *whole) {
    struct neb_map map;
    *whole = inter_ledger_has_blob(s->ledger, &m->key);
    if (!*whole)
        return NEB_OK;
    enum neb_status st = service_read_blob(s, &m->key, m->bytes, m->sha256, &map);
    neb_map_close(&map);
    *whole = st == NEB_OK;
    return st == NEB_ERR_CORRUPT ? inter_ledger_discard(s->ledger, &m->key) : st;
}

// A manifest with a wrong signature must not be passed on: others would blame this member for it.
static bool is_signed(struct inter_service *s, const struct inter_manifest *m, uint32_t peer) {
    neb_buf_clear(&s->out);
    inter_manifest_put_body(&s->out, m);
    bool good = neb_buf_check(&s->out) == NEB_OK &&
                service_verify(s, peer, SEC_CONTEXT_MANIFEST, s->out.p, s->out.len, m->sig);
    if (!good)
        neb_warn("ledger: the manifest of member %u for round %u of fragment %u does not have "
                 "that member's signature: it is forgotten and requested again",
                 m->key.member, m->key.round, m->key.fragment);
    return good;
}

static enum neb_status restore_manifest(struct inter_service *s, const struct inter_manifest *m,
                                        uint32_t peer, bool own) {
    bool durable;
    struct weighing w = {.m = m, .pass = true};
    struct inter_bitmap got = {0};
    enum neb_status st = NEB_OK;
    enum neb_status kept = NEB_OK;
    if (!own && !is_signed(s, m, peer)) // the others check our own
        return inter_ledger_forget_manifest(s->ledger, &m->key);
    NEB_TRY(look_at_blob(s, m, &durable));
    if (own && !durable)
        return NEB_OK; // a crash came before its blob: the worker submits again
    if (durable && (!own || inter_node_weighs(s->node, m->key.job)))
        NEB_TRY(service_run_in_thread(s, m->bytes, weigh, &w));
    bool pass = w.pass || own;
    if (!own && !durable) {
        NEB_TRY(inter_bitmap_init(&got, inter_chunks(m->bytes, m->chunk_bytes)));
        st = inter_ledger_part_open(s->ledger, m, &got);
        if (st == NEB_OK)
            service_arrival_begin(s, m);
        kept = service_not_kept(st) ? st : NEB_OK;
        st = kept == NEB_OK ? st : NEB_OK; // it is requested again
    }
    enum inter_holding h = !durable ? INTER_HOLD_PART
                           : pass   ? INTER_HOLD_COMPLETE
                                    : INTER_HOLD_REFUSED;
    if (st == NEB_OK)
        st = inter_node_restore_manifest(s->node, m, h, own || durable ? NULL : &got);
    inter_bitmap_free(&got);
    if (kept != NEB_OK) {
        service_report_room(s, kept);
        inter_node_restore_no_room(s->node, &m->key);
    }
    inter_node_restore_norm(s->node, &m->key, w.norm);
    if (own && !w.pass)
        inter_node_own_bad(s->node, &m->key);
    return st;
}

static enum neb_status restore_fragment(struct inter_service *s, const struct inter_job_config *c,
                                        uint32_t f) {
    struct inter_record r;
    struct inter_manifest m;
    enum neb_status st = inter_ledger_last_commit(s->ledger, c->id, f, &r);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    NEB_TRY(inter_ledger_is_head(s->ledger, c->id, f, st == NEB_OK ? &r : NULL));
    if (st == NEB_OK)
        inter_node_restore_commit(s->node, &r);
    uint32_t round = inter_node_round(s->node, c->id, f);
    for (uint8_t i = 0; i < c->n_members; i++) {
        struct inter_key k = {.round = round, .fragment = f, .member = i};
        memcpy(k.job, c->id, sizeof k.job);
        st = inter_ledger_get_manifest(s->ledger, &k, &m);
        if (st == NEB_OK)
            st = restore_manifest(s, &m, i == c->self ? s->self : c->peers[i], i == c->self);
        if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
            return st;
    }
    st = inter_ledger_get_vote(s->ledger, c->id, f, round, &r);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    NEB_TRY(inter_ledger_is_vote(s->ledger, c->id, f, round, st == NEB_OK ? &r : NULL));
    if (st == NEB_OK)
        inter_node_restore_vote(s->node, &r);
    return NEB_OK;
}

static enum neb_status restore_evidence(struct inter_service *s, const struct inter_job_config *c) {
    struct inter_evidence e;
    for (uint8_t m = 0; m < c->n_members; m++) {
        enum neb_status st = inter_ledger_evidence(s->ledger, c->id, m, &e);
        if (st == NEB_OK) {
            inter_node_restore_evidence(s->node, &e);
            if (s->cb.lied)
                s->cb.lied(s->cb.user, c->peers[m], &e);
        } else if (st != NEB_ERR_NOT_FOUND) {
            return st;
        }
    }
    return NEB_OK;
}

enum neb_status inter_service_job_open(struct inter_service *s,
                                       const struct inter_job_config *given) {
    struct inter_job_config c = *given;
    struct inter_standing standing;
    enum neb_status st = inter_ledger_get_standing(s->ledger, c.id, &standing);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    // A later ledger must have a greater epoch. Nanoseconds since 1970 grow from one ledger to the
    // next if the clock is roughly right.
    c.epoch = st == NEB_OK ? standing.epoch : (uint64_t)neb_wall_now();
    c.day = (uint64_t)neb_wall_now();
    NEB_TRY(inter_node_job_open(s->node, &c));
    if (st == NEB_OK)
        inter_node_restore_standing(s->node, &standing);
    enum neb_status rc = NEB_OK;
    for (uint32_t f = 0; f < c.fragments && rc == NEB_OK; f++)
        rc = restore_fragment(s, &c, f);
    if (rc == NEB_OK)
        rc = restore_evidence(s, &c);
    if (rc != NEB_OK) {
        inter_service_job_close(s, c.id); // it was restored only in part
        return rc;
    }
    for (uint32_t i = 0; i < s->members.n; i++) // links that are up already
        if (s->up[i])
            service_step(s, &(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = i});
    return s->st;
}

enum neb_status inter_service_job_renew(struct inter_service *s,
                                        const uint8_t job[INTER_ID_BYTES]) {
    struct inter_standing was, st = {.epoch = (uint64_t)neb_wall_now()};
    if (inter_node_round(s->node, job, 0) != UINT32_MAX)
        return neb_fail(NEB_ERR_STATE, "cannot renew a job that is open");
    enum neb_status rc = inter_ledger_get_standing(s->ledger, job, &was);
    if (rc == NEB_OK && st.epoch < was.epoch + NEB_S) // the clock went back; attempts count seconds
        st.epoch = was.epoch + NEB_S;
    else if (rc != NEB_OK && rc != NEB_ERR_NOT_FOUND)
        return rc;
    memcpy(st.job, job, sizeof st.job);
    service_unmap(s);
    return inter_ledger_reset_job(s->ledger, &st);
}

enum neb_status inter_service_job_drop(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                                       bool for_ever) {
    if (inter_node_round(s->node, job, 0) != UINT32_MAX)
        return neb_fail(NEB_ERR_STATE, "cannot remove a job that is open");
    service_unmap(s);
    return inter_ledger_drop_job(s->ledger, job, for_ever);
}

void inter_service_job_judges(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]) {
    inter_node_job_judges(s->node, job);
}

void inter_service_job_leave(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]) {
    struct inter_event e = {.kind = INTER_EV_LEAVE, .peer = s->self};
    memcpy(e.key.job, job, sizeof e.key.job);
    service_step(s, &e);
}

void inter_service_job_idle(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]) {
    inter_node_job_idle(s->node, job); // no step, because it is also called within one
}

bool inter_service_job_status(const struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                              struct inter_job_status *out) {
    return inter_node_job_status(s->node, job, neb_now(), out);
}

void inter_service_job_close(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]) {
    inter_node_job_close(s->node, job);
    inter_ledger_parts_close(s->ledger, job);
    service_unbound(s, job);
    service_heartbeats_end(s, job, INTER_TERM_MAX);
}

static enum neb_status redeliver(struct inter_service *s, const struct inter_record *r) {
    NEB_TRY(service_deliver(s, r, SERVICE_REDELIVER));
    service_step_pending(s);
    return s->st;
}

enum neb_status inter_service_deliver(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                                      uint32_t fragment, uint32_t round) {
    struct inter_record r;
    enum neb_status st = inter_ledger_get_commit(s->ledger, job, fragment, round, &r);
    if (st != NEB_ERR_NOT_FOUND)
        return st == NEB_OK ? redeliver(s, &r) : st;
    uint32_t open = inter_node_round(s->node, job, fragment);
    return open != UINT32_MAX && round < open ? NEB_ERR_NOT_FOUND : NEB_OK;
}

struct hashing {
    const void *p;
    size_t n;
    uint8_t *out; // (INTER_SHA_BYTES)
};

static void *hash(void *arg) {
    const struct hashing *h = arg;
    neb_sha256(h->p, h->n, h->out);
    return NULL;
}

struct own {
    struct inter_manifest *m;
    const void *blob;
    size_t len;
    bool promised; // a manifest under its key was stored, and perhaps sent
    bool owed;     // that update is lost, and no other may be sent
};

// Stores our own update while another thread hashes it. It is sent only after both.
static enum neb_status store_and_hash(struct inter_service *s, void *arg) {
    const struct own *w = arg;
    struct hashing h = {w->blob, w->len, w->m->sha256};
    pthread_t thread;
    bool apart = pthread_create(&thread, NULL, hash, &h) == 0;
    if (!apart)
        hash(&h);
    (void)neb_fault("service.submit"); // tests a slow disk
    enum neb_status st = NEB_OK;
    // a crash left it, so it was never sent
    if (!w->promised && inter_ledger_has_blob(s->ledger, &w->m->key))
        st = inter_ledger_discard(s->ledger, &w->m->key);
    if (st == NEB_OK)
        st = inter_ledger_put_blob(s->ledger, &w->m->key, w->blob, w->len);
    if (apart)
        pthread_join(thread, NULL);
    return st;
}

// Finds the norm of our own update, if norms matter. This member does not refuse its own. The
// manifest was sent before, so this takes no time of the round.
static enum neb_status weigh_own(struct inter_service *s, const struct inter_manifest *m) {
    struct weighing w = {.m = m};
    if (!inter_node_weighs(s->node, m->key.job))
        return NEB_OK;
    NEB_TRY(service_run_in_thread(s, m->bytes, weigh, &w));
    inter_node_restore_norm(s->node, &m->key, w.norm);
    if (!w.pass)
        inter_node_own_bad(s->node, &m->key);
    // the round may be able to go on now
    service_step(s, &(struct inter_event){.kind = INTER_EV_TICK, .peer = 0});
    return s->st;
}

// True if the other members and this ledger can read a manifest with these numbers.
static bool readable(const struct inter_manifest *m) {
    struct inter_manifest again;
    struct neb_buf b = {0};
    inter_manifest_put(&b, m);
    struct neb_rd r = neb_rd_make(b.p, b.len);
    bool good = !b.oom && inter_manifest_get(&r, &again) && neb_rd_done(&r);
    neb_buf_free(&b);
    return good;
}

static enum neb_status sign_manifest(struct inter_service *s, struct inter_manifest *m) {
    neb_buf_clear(&s->out);
    inter_manifest_put_body(&s->out, m);
    NEB_TRY(neb_buf_check(&s->out));
    return service_sign(s, SEC_CONTEXT_MANIFEST, s->out.p, s->out.len, m->sig)
               ? NEB_OK
               : neb_fail(NEB_ERR_DENIED, "cannot sign an update");
}

// A restarted worker computes earlier updates again, often to the bit. If the disk has lost one
// that the record lists, this restores it. The other members may have lost it too.
static enum neb_status keep_again(struct inter_service *s, const struct inter_key *key,
                                  const void *blob, size_t len) {
    struct inter_record r;
    struct inter_manifest m;
    uint8_t sha[INTER_SHA_BYTES];
    enum neb_status st =
        inter_ledger_get_commit(s->ledger, key->job, key->fragment, key->round, &r);
    for (uint8_t i = 0; st == NEB_OK && i < r.n; i++) {
        const struct inter_entry *e = &r.entries[i];
        struct inter_key k = inter_entry_key(&r, i);
        if (e->member != key->member || e->verdict != INTER_ACCEPTED || e->bytes != len ||
            inter_ledger_find_manifest(s->ledger, &k, &m) != NEB_OK ||
            inter_ledger_holds(s->ledger, &m))
            continue;
        neb_sha256(blob, len, sha);
        if (memcmp(sha, e->sha256, sizeof sha))
            continue;
        NEB_TRY(inter_ledger_discard(s->ledger, &k));
        NEB_TRY(inter_ledger_put_blob(s->ledger, &k, blob, len));
        service_step(s, &(struct inter_event){.kind = INTER_EV_BLOB_DONE, .key = k, .ok = true});
    }
    return st == NEB_OK || st == NEB_ERR_NOT_FOUND ? s->st : st;
}

// Finds out if the ledger holds this update undamaged. A damaged one is discarded.
static enum neb_status is_kept(struct inter_service *s, const struct inter_key *key,
                               struct inter_manifest *stored, bool *promised, bool *whole) {
    enum neb_status st = inter_ledger_find_manifest(s->ledger, key, stored);
    *promised = st == NEB_OK;
    *whole = false;
    return *promised ? look_at_blob(s, stored, whole) : NEB_OK;
}

// If the newest attempt is lost, continue from it: the others do not know the older ones any more.
// A masked update has no second attempt, also if a crash came before this ledger's epoch was
// stored.
static enum neb_status from_the_newest(struct inter_service *s, struct inter_key *key) {
    struct inter_manifest newest;
    bool whole = false;
    enum neb_status st = inter_ledger_get_manifest(s->ledger, key, &newest);
    if (st != NEB_OK)
        return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
    if (inter_node_masked(s->node, key->job)) {
        key->attempt = newest.key.attempt;
        return NEB_OK;
    }
    if (newest.key.attempt <= key->attempt)
        return NEB_OK;
    NEB_TRY(look_at_blob(s, &newest, &whole));
    key->attempt = whole ? key->attempt : newest.key.attempt;
    return NEB_OK;
}

// One message: what is lost, where, and what to do.
static enum neb_status lost_for_good(struct inter_service *s, const struct inter_key *key,
                                     const char *what_to_do) {
    char path[NEB_PATH_MAX] = "";
    NEB_TRY(inter_ledger_blob_path(s->ledger, key, path, sizeof path));
    return neb_fail(NEB_ERR_EXISTS,
                    "the disk has lost this cluster's update of round %u of fragment %u (%s), and "
                    "the worker computed a different one: %s",
                    key->round, key->fragment, path, what_to_do);
}

// ---- own masked updates that cannot be made again -----------------------------------------------

static const neb_ns owed_patience = 60 * NEB_S;

// Waits for the lost update: if other members have its bytes, they offer them.
static enum neb_status owe(struct inter_service *s, const struct inter_manifest *m) {
    for (size_t i = 0; i < s->n_owed; i++)
        if (inter_key_equal(&s->owed[i].m.key, &m->key))
            return NEB_OK;
    struct service_owed *p = realloc(s->owed, (s->n_owed + 1) * sizeof *p);
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a lost update");
    s->owed = p;
    s->owed[s->n_owed++] = (struct service_owed){*m, neb_now() + owed_patience};
    neb_warn("round %u of fragment %u: the disk has lost this cluster's update; the worker "
             "computed a different one, which must not replace it (sync.gate: private): asks the "
             "other members for the lost one",
             m->key.round, m->key.fragment);
    return NEB_OK;
}

static bool any_up(const struct inter_service *s) {
    bool up = false;
    for (uint32_t i = 0; i < s->members.n; i++)
        up = up || s->up[i];
    return up;
}

enum neb_status service_owed_tick(struct inter_service *s, neb_ns now) {
    char text[NEB_PATH_MAX + 512];
    bool up = s->n_owed && any_up(s);
    for (size_t i = s->n_owed; i-- > 0;) {
        struct service_owed *x = &s->owed[i];
        struct inter_manifest m = x->m;
        bool open = inter_node_round(s->node, m.key.job, m.key.fragment) == m.key.round,
             over = !open || inter_ledger_holds(s->ledger, &m);
        if (!up)
            x->until = now + owed_patience;
        if (!over && now < x->until)
            continue;
        s->owed[i] = s->owed[--s->n_owed];
        if (over)
            continue;
        if (lost_for_good(s, &m.key,
                          "no other member has it, and with sync.gate: private no other may "
                          "replace it; restore that file, or start a new job from one cluster's "
                          "checkpoint (init_from)") != NEB_ERR_EXISTS)
            return NEB_ERR_LIMIT;
        neb_last_error(text, sizeof text);
        if (s->cb.gone)
            s->cb.gone(s->cb.user, &m.key, text);
    }
    return NEB_OK;
}

// ---- submit -------------------------------------------------------------------------------------

// If the worker computes other bytes than the lost ones (devices are not exact to the bit), the
// update becomes the next attempt: two signed digests under one key would prove equivocation. A
// masked update must not be replaced, because two of one round reveal their difference.
static enum neb_status choose_attempt(struct inter_service *s, struct inter_manifest *m,
                                      struct own *w, struct inter_manifest *stored, bool *whole) {
    uint32_t first = inter_node_attempt(s->node, m->key.job);
    NEB_TRY(from_the_newest(s, &m->key));
    for (;; m->key.attempt++) {
        NEB_TRY(is_kept(s, &m->key, stored, &w->promised, whole));
        if (!w->promised || *whole)
            return NEB_OK;
        neb_sha256(w->blob, w->len, m->sha256);
        if (!memcmp(stored->sha256, m->sha256, sizeof m->sha256))
            return NEB_OK;
        w->owed = inter_node_masked(s->node, m->key.job);
        if (w->owed)
            return owe(s, stored);
        if (m->key.attempt >= first + INTER_RETRIES_MAX)
            return lost_for_good(s, &stored->key,
                                 "it was replaced as often as allowed; check this disk");
        neb_warn("round %u of fragment %u: the disk has lost this cluster's update; the worker "
                 "computed a different one, which replaces it",
                 m->key.round, m->key.fragment);
    }
}

enum neb_status inter_service_submit(struct inter_service *s, const struct inter_manifest *given,
                                     const void *blob, size_t len) {
    struct inter_manifest m = *given, stored;
    uint32_t open = inter_node_round(s->node, m.key.job, m.key.fragment);
    if (len == 0 || len > INTER_BLOB_MAX)
        return neb_fail(NEB_ERR_LIMIT, "an update of %zu bytes is not allowed: 1..%u bytes are",
                        len, INTER_BLOB_MAX);
    if (m.key.attempt > INTER_RETRIES_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "update for round %u of fragment %u was replaced %u times; at most %d "
                        "times are allowed",
                        m.key.round, m.key.fragment, m.key.attempt, INTER_RETRIES_MAX);
    if (open == UINT32_MAX)
        return neb_fail(NEB_ERR_STATE, "update for round %u of fragment %u, which is not open",
                        m.key.round, m.key.fragment);
    if (m.key.round > open)
        return neb_fail(NEB_ERR_STATE, "update for round %u of fragment %u, but round %u is open",
                        m.key.round, m.key.fragment, open);
    // This round is over: the others went on without the update, or the worker restarted.
    if (m.key.round < open) {
        NEB_TRY(keep_again(s, &m.key, blob, len));
        return inter_service_deliver(s, m.key.job, m.key.fragment, m.key.round);
    }
    m.key.attempt += inter_node_attempt(s->node, m.key.job);
    struct own w = {.m = &m, .blob = blob, .len = len};
    bool whole;
    NEB_TRY(choose_attempt(s, &m, &w, &stored, &whole));
    if (w.owed)
        return NEB_OK;
    if (whole) {
        neb_sha256(blob, len, m.sha256);
        if (memcmp(stored.sha256, m.sha256, sizeof m.sha256))
            neb_warn("round %u: after its restart the worker computed a different update; the one "
                     "in the ledger is kept",
                     m.key.round);
        return NEB_OK;
    }
    m.bytes = (uint32_t)len;
    m.chunk_bytes = inter_node_chunk_bytes(s->node, m.bytes);
    if (!readable(&m))
        return neb_fail(
            NEB_ERR_INVALID,
            "update for round %u of fragment %u: %llu tokens, or a measure, are out of range",
            m.key.round, m.key.fragment, (unsigned long long)m.tokens);
    NEB_TRY(service_run_in_thread(s, len, store_and_hash, &w));
    if (w.promised && !memcmp(stored.sha256, m.sha256, sizeof m.sha256))
        m = stored; // the same bytes: a second signature under its key would prove equivocation
    else
        NEB_TRY(sign_manifest(s, &m));
    service_step(s,
                 &(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &m, .peer = s->self});
    return s->st == NEB_OK ? weigh_own(s, &m) : s->st;
}

enum neb_status inter_service_prune(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                                    uint32_t fragment, uint32_t round) {
    service_unmap(s);
    return inter_ledger_prune(s->ledger, job, fragment, round);
}
