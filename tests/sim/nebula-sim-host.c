// SPDX-License-Identifier: Apache-2.0
// One agent of the simulated federation: it carries out the actions of the round core on a modelled
// disk.
//
// A finished store is durable, and the host may crash right after it. A blob is durable once it is
// complete. Before that, a crash may leave any part of it.
#include "agent/base/sha256.h"
#include "inter/round/node_state.h"
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

// ---- keys: a keyed hash replaces Ed25519; the cryptography itself is not under test ----

struct signer {
    uint8_t who;
};

void sim_sign(uint8_t who, const char *context, const uint8_t *p, size_t n,
              uint8_t sig[INTER_SIG_BYTES]) {
    uint64_t h = 0x9e3779b97f4a7c15ull * (who + 1u), w;
    for (; *context; context++)
        h = neb_mix64(h ^ (uint8_t)*context);
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdull;
        h ^= h >> 29;
    }
    for (w = 0; n; p++, n--)
        w = w << 8 | *p;
    h = neb_mix64(h ^ w);
    memset(sig, 0, INTER_SIG_BYTES);
    memcpy(sig, &h, sizeof h);
}

static bool sign(void *user, const char *context, const void *msg, size_t len,
                 uint8_t sig[INTER_SIG_BYTES]) {
    sim_sign(*(const uint8_t *)user, context, msg, len, sig);
    return true;
}

static bool verify(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                   const uint8_t sig[INTER_SIG_BYTES]) {
    uint8_t want[INTER_SIG_BYTES];
    (void)user;
    sim_sign((uint8_t)peer, context, msg, len, want);
    return !memcmp(want, sig, sizeof want);
}

struct inter_node_crypto sim_host_crypto(struct sim_host *h) {
    return (struct inter_node_crypto){&h->id, sign, verify};
}

// ---- the disk ----

struct sim_round *sim_disk_round(struct sim *s, struct sim_disk *d, uint32_t f, uint32_t round) {
    if (round >= SIM_ROUNDS)
        sim_fail(s, "round %u: more rounds than the job can have", round);
    if (!d->rounds[f][round] && !(d->rounds[f][round] = calloc(1, sizeof **d->rounds[f])))
        abort();
    return d->rounds[f][round];
}

const struct sim_blob *sim_disk_blob(const struct sim_round *r, uint8_t member, uint32_t attempt) {
    for (int k = 0; r && k < SIM_ATTEMPTS; k++)
        if (r->blobs[member][k].here && r->blobs[member][k].m.key.attempt == attempt)
            return &r->blobs[member][k];
    return NULL;
}

static struct sim_blob *disk_put(struct sim *s, struct sim_disk *d,
                                 const struct inter_manifest *m) {
    struct sim_round *r = sim_disk_round(s, d, m->key.fragment, m->key.round);
    struct sim_blob *b =
        (struct sim_blob *)(uintptr_t)sim_disk_blob(r, m->key.member, m->key.attempt);
    if (b)
        return b;
    for (int k = 0; k < SIM_ATTEMPTS; k++)
        if (!r->blobs[m->key.member][k].here) {
            r->blobs[m->key.member][k].here = r->holds = true;
            r->blobs[m->key.member][k].m = *m;
            return &r->blobs[m->key.member][k];
        }
    sim_fail(s, "host holds more than %d updates of one key", SIM_ATTEMPTS);
}

static void disk_clear(struct sim_disk *d) {
    for (int f = 0; f < SIM_FRAGMENTS; f++)
        for (int r = 0; r < SIM_ROUNDS; r++)
            free(d->rounds[f][r]);
    memset(d, 0, sizeof *d);
}

// A Byzantine member can have two manifests for one key: the one that a record lists counts.
static void disk_replace(struct sim *s, struct sim_disk *d, const struct inter_manifest *m) {
    struct sim_blob *b = disk_put(s, d, m);
    if (!memcmp(b->m.sha256, m->sha256, sizeof m->sha256))
        return;
    b->m = *m;
    b->whole = false;
}

void sim_disk_lose(struct sim *s, uint8_t i) {
    sim_note(s, "disk lost", i, 0, 0, 0, 0);
    s->h[i].previous_incarnation = true;
    disk_clear(&s->h[i].disk);
    s->h[i].needs_state = true;
}

void sim_host_free(struct sim_host *h) {
    inter_node_destroy(&h->node);
    disk_clear(&h->disk);
    for (int f = 0; f < SIM_FRAGMENTS; f++)
        for (int m = 0; m < NEB_MEMBERS_MAX; m++)
            free(h->parts[f][m]);
}

// Deletes updates and votes of committed rounds that no checkpoint of this host needs. Records
// stay.
void sim_disk_prune(struct sim *s, uint8_t i) {
    struct sim_disk *d = &s->h[i].disk;
    for (uint32_t f = 0; f < s->o.fragments; f++)
        for (uint32_t n = 0; n < d->checkpoint.frags[f].round; n++) {
            struct sim_round *r = d->rounds[f][n];
            if (!r || !r->committed)
                continue;
            if (r->holds)
                memset(r->blobs, 0, sizeof r->blobs);
            r->holds = r->voted = false;
        }
}

static uint32_t open_round(const struct sim_disk *d, uint32_t f) {
    uint32_t n = d->base[f];
    while (n < SIM_ROUNDS && d->rounds[f][n] && d->rounds[f][n]->committed)
        n++;
    return n;
}

// True if a state of `round` helps host i: the state is ahead of its ledger, or it skips a round
// whose updates nobody has and that the worker waits for.
static bool is_ahead(const struct sim *s, uint8_t i, uint32_t f, uint32_t round) {
    const struct sim_host *h = &s->h[i];
    const struct sim_worker_state *w = h->worker_alive ? &h->w : &h->disk.checkpoint;
    return round > open_round(&h->disk, f) ||
           (h->lacks[f] > w->frags[f].round && round >= h->lacks[f]);
}

// True if the checkpoint of j is ahead of host i in some fragment.
static bool helps(const struct sim *s, uint8_t i, uint8_t j) {
    const struct sim_disk *other = &s->h[j].disk;
    if (j == i || s->h[j].witness || !s->h[j].alive || !s->h[i].up[j] || !other->has_checkpoint)
        return false;
    for (uint32_t f = 0; f < s->o.fragments; f++)
        if (is_ahead(s, i, f, other->checkpoint.frags[f].round))
            return true;
    return false;
}

// Host i takes over, for each fragment that is ahead, the state in another member's checkpoint and
// the last record of it. The chain of records restarts there; other fragments stay as they are.
void sim_snapshot(struct sim *s, uint8_t i) {
    struct sim_host *h = &s->h[i];
    uint64_t taken = 0;
    uint8_t j = 0;
    h->fetching = false;
    if (h->split)
        return;
    while (j < s->o.members && !helps(s, i, j))
        j++;
    if (j == s->o.members)
        return; // the node reports again that it is behind
    struct sim_worker_state from = s->h[j].disk.checkpoint;
    for (uint32_t f = 0; f < s->o.fragments; f++) {
        uint32_t at = from.frags[f].round;
        if (!is_ahead(s, i, f, at))
            continue;
        taken |= 1ull << f;
        h->lacks[f] = 0;
        if (at <= open_round(&h->disk, f)) // only the worker is behind, not the ledger
            continue;
        struct sim_round *r = sim_disk_round(s, &h->disk, f, at - 1);
        memset(r, 0, sizeof *r);
        r->committed = true;
        r->commit = s->h[j].disk.rounds[f][at - 1]->commit;
        h->disk.base[f] = at - 1;
    }
    sim_note(s, "snapshot", i, j, (int64_t)taken, from.frags[0].round, 0);
    s->r.snapshots++;
    sim_worker_adopt(s, i, &from, taken);
    inter_node_destroy(&h->node); // closes and reopens the job
    sim_host_stop(s, i);
    sim_host_boot(s, i);
    for (uint8_t m = 0; m < s->o.members; m++) // restore the links that are up
        if (m != i && s->links[i < m ? i : m][i < m ? m : i].session) {
            h->up[m] = true;
            sim_host_step(s, i, &(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = m});
        }
}

// Injects the faults before a store. False: the host is down and the store did not happen.
static bool before_store(struct sim *s, uint8_t i) {
    struct sim_host *h = &s->h[i];
    if (sim_lies(s, i))
        return true;
    uint64_t index = s->r.stores++;
    if (h->crash_in && --h->crash_in == 0 && neb_rng_below(&s->rng, 2)) {
        sim_crash(s, i, (neb_ns)neb_rng_below(&s->rng, 8) * NEB_S);
        return false;
    }
    if (sim_point_hits(s, SIM_CRASH_BEFORE_STORE, index)) {
        sim_crash(s, i, 2 * NEB_S);
        return false;
    }
    return true;
}

static void after_store(struct sim *s, uint8_t i, bool counted) {
    uint64_t index = s->r.stores - 1;
    if (!counted || !s->h[i].alive || sim_lies(s, i))
        return;
    if (sim_point_hits(s, SIM_CRASH_AFTER_STORE, index) ||
        sim_point_hits(s, SIM_LOSE_DISK_AFTER_STORE, index)) {
        sim_crash(s, i, 2 * NEB_S);
        if (sim_point_hits(s, SIM_LOSE_DISK_AFTER_STORE, index))
            sim_disk_lose(s, i);
    }
}

// ---- blobs ----

static void render(uint8_t out[SIM_BLOB], const int64_t words[SIM_WORDS + 1]) {
    memset(out, 0x5a, SIM_BLOB);
    memcpy(out, words, (SIM_WORDS + 1) * sizeof *words);
    memcpy(out + SIM_BLOB - 8, words, 8);
}

// Holders hash the same blob many times, and most of the run time went there. So recent digests are
// cached with their bytes.
static void digest(const uint8_t *p, size_t n, uint8_t sha[INTER_SHA_BYTES]) {
    static struct known {
        size_t n;
        uint8_t bytes[SIM_BLOB], sha[INTER_SHA_BYTES];
    } known[256];
    uint64_t at = n, w;
    for (size_t i = 0; i + 8 <= n && i < 8 * SIM_WORDS; i += 8) {
        memcpy(&w, p + i, 8);
        at = neb_mix64(at ^ w);
    }
    if (n >= 8) {
        memcpy(&w, p + n - 8, 8);
        at = neb_mix64(at ^ w);
    }
    struct known *k = &known[at % (sizeof known / sizeof *known)];
    if (n > SIM_BLOB || k->n != n || memcmp(k->bytes, p, n) != 0) {
        neb_sha256(p, n, sha);
        if (n > SIM_BLOB)
            return;
        k->n = n;
        memcpy(k->bytes, p, n);
        memcpy(k->sha, sha, INTER_SHA_BYTES);
    }
    memcpy(sha, k->sha, INTER_SHA_BYTES);
}

// The disk loses one complete update of a recent round that another disk also holds.
void sim_disk_rots(struct sim *s) {
    uint8_t i = (uint8_t)neb_rng_below(&s->rng, s->o.members);
    uint32_t f = (uint32_t)neb_rng_below(&s->rng, s->o.fragments);
    uint32_t back = (uint32_t)neb_rng_below(&s->rng, 4), open = open_round(&s->h[i].disk, f);
    uint8_t m = (uint8_t)neb_rng_below(&s->rng, s->o.members);
    struct sim_round *r =
        open >= back && open - back < SIM_ROUNDS ? s->h[i].disk.rounds[f][open - back] : NULL;
    for (int k = 0; r && !s->h[i].witness && k < SIM_ATTEMPTS; k++) {
        struct sim_blob *b = &r->blobs[m][k];
        bool other = false;
        for (uint8_t j = 0; j < s->o.members; j++) {
            const struct sim_blob *c =
                j != i && !s->h[j].witness
                    ? sim_disk_blob(s->h[j].disk.rounds[f][open - back], m, b->m.key.attempt)
                    : NULL;
            other = other || (c && c->whole);
        }
        if (!b->here || !b->whole || !other)
            continue;
        b->whole = false;
        b->rotten = true;
        s->r.rotten++;
        sim_note(s, "update lost", i, f, b->m.key.round, m, b->m.key.attempt);
    }
}

static void say_lost(struct sim *s, uint8_t i, const struct inter_manifest *m) {
    sim_host_step(
        s, i,
        &(struct inter_event){.kind = INTER_EV_BLOB_LOST, .peer = i, .key = m->key, .manifest = m});
}

bool sim_disk_seeks(struct sim *s, uint8_t i, uint32_t f, uint32_t round) {
    struct sim_round *r = s->h[i].disk.rounds[f][round];
    uint32_t boot = s->h[i].boot;
    bool seeks = false;
    for (uint8_t k = 0; k < r->commit.n; k++) {
        const struct inter_entry *e = &r->commit.entries[k];
        const struct sim_blob *b = sim_disk_blob(r, e->member, e->attempt);
        if (e->verdict != INTER_ACCEPTED || !b || b->whole || !b->rotten)
            continue;
        struct inter_manifest m = b->m;
        seeks = true;
        say_lost(s, i, &m);
        if (!s->h[i].alive || s->h[i].boot != boot)
            return true;
    }
    return seeks;
}

// The loss is noticed when the update is to be sent. The worker still has its own update.
static void lost(struct sim *s, uint8_t i, const struct inter_action *x) {
    struct sim_host *h = &s->h[i];
    struct sim_blob *b = (struct sim_blob *)(uintptr_t)sim_disk_blob(
        h->disk.rounds[x->key.fragment][x->key.round], x->key.member, x->key.attempt);
    struct inter_manifest m = b->m;
    const struct agent_fragment *g = &h->w.frags[x->key.fragment];
    uint32_t boot = h->boot;
    sim_host_step(s, i,
                  &(struct inter_event){.kind = INTER_EV_SERVE, .peer = x->peer, .key = x->key});
    if (h->alive && h->boot == boot)
        say_lost(s, i, &m);
    uint8_t id[INTER_ID_BYTES] = {1};
    if (!h->alive || h->boot != boot || x->key.member != h->id || !h->worker_alive ||
        !g->in_flight || g->round != x->key.round || b->whole ||
        inter_node_round(h->node, id, x->key.fragment) != x->key.round)
        return;
    b->whole = true;
    sim_host_step(
        s, i,
        &(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &m, .peer = h->id, .norm = 1});
}

static void send_chunk(struct sim *s, uint8_t i, const struct inter_actions *a,
                       const struct inter_action *x) {
    uint8_t blob[SIM_BLOB], sha[INTER_SHA_BYTES], head[256];
    struct sim_round *r = s->h[i].disk.rounds[x->key.fragment][x->key.round];
    const struct sim_blob *b = sim_disk_blob(r, x->key.member, x->key.attempt);
    if (b && b->rotten && !b->whole) {
        lost(s, i, x);
        return;
    }
    if (!b || !b->whole) {
        if (!sim_lies(s, i) && x->key.round >= s->h[i].disk.checkpoint.frags[x->key.fragment].round)
            sim_fail(s, "host %u sends a blob that it does not hold", i);
        // The blob was pruned after the transfer began.
        sim_host_step(
            s, i, &(struct inter_event){.kind = INTER_EV_SERVE, .peer = x->peer, .key = x->key});
        return;
    }
    render(blob, b->words);
    digest(blob + x->offset, x->len, sha);
    memcpy(head, a->bytes.p + x->at, x->size);
    memcpy(head + x->size - 8, sha, 8);
    sim_transmit(s, i, (uint8_t)x->peer, true, head, x->size, blob + x->offset, x->len);
}

// In a third of the seeds a disk has no room for other members' updates for some seconds. The
// ledger can always write its own records.
static bool is_full(const struct sim *s, uint8_t i) {
    return s->o.chaos && !s->calm && s->o.seed % 3 == 1 &&
           neb_mix64(s->o.seed * 131 + i * 17u + (uint64_t)(s->now / (3 * NEB_S)) * 7919) % 10 == 0;
}

static void tell_room(struct sim *s, uint8_t i, const struct inter_key *k, bool room) {
    s->r.no_room += !room;
    sim_host_step(s, i, &(struct inter_event){.kind = INTER_EV_BLOB_ROOM, .key = *k, .ok = room});
}

static void write_blob(struct sim *s, uint8_t i, const struct inter_action *x) {
    if (is_full(s, i))
        tell_room(s, i, &x->key, false);
    else
        memcpy(s->h[i].parts[x->key.fragment][x->key.member] + x->offset, x->view, x->len);
}

static void finish_blob(struct sim *s, uint8_t i, const struct inter_manifest *m) {
    struct sim_host *h = &s->h[i];
    uint8_t sha[INTER_SHA_BYTES];
    struct inter_event done = {.kind = INTER_EV_BLOB_DONE, .key = m->key};
    const uint8_t *part = h->parts[m->key.fragment][m->key.member];
    done.no_room = is_full(s, i);
    if (part && !done.no_room) {
        digest(part, SIM_BLOB, sha);
        done.ok = !memcmp(sha, m->sha256, sizeof sha);
    }
    if (done.ok) {
        struct sim_blob *b = disk_put(s, &h->disk, m);
        b->m = *m; // a Byzantine brain may hold the other brain's update under this key
        memcpy(b->words, part, sizeof b->words);
        b->whole = true;
        b->rotten = false;
        done.norm = 1;
        done.refused = b->words[SIM_WORDS] == 1 || sim_byzantine_rejects(s, i, m->key.member);
        done.ok = !done.refused;
        if (done.ok && !sim_lies(s, i))
            sim_check_blob(s, i, m);
        after_store(s, i, true);
    }
    if (h->alive)
        sim_host_step(s, i, &done);
    if (h->alive && done.refused)
        sim_byzantine_pretends(s, i, m);
}

static void open_blob(struct sim *s, uint8_t i, const struct inter_manifest *m) {
    struct sim_host *h = &s->h[i];
    uint8_t **part = &h->parts[m->key.fragment][m->key.member];
    const struct sim_blob *b = disk_put(s, &h->disk, m);
    if (!*part && !(*part = malloc(SIM_BLOB)))
        abort();
    memset(*part, 0, SIM_BLOB);
    bool refused = b->words[SIM_WORDS] == 1 || sim_byzantine_rejects(s, i, m->key.member);
    if (b->whole) // complete from an earlier transfer of this key
        sim_host_step(s, i,
                      &(struct inter_event){.kind = INTER_EV_BLOB_DONE,
                                            .key = m->key,
                                            .norm = 1,
                                            .ok = !refused,
                                            .refused = refused});
    else
        tell_room(s, i, &m->key, !is_full(s, i));
}

// ---- actions ----

static void serve(struct sim *s, uint8_t i, const struct inter_action *x) {
    struct sim_round *r = x->key.fragment < s->o.fragments && x->key.round < SIM_ROUNDS
                              ? s->h[i].disk.rounds[x->key.fragment][x->key.round]
                              : NULL;
    const struct sim_blob *b = sim_disk_blob(r, x->key.member, x->key.attempt);
    struct inter_manifest m = b ? b->m : (struct inter_manifest){0};
    sim_host_step(s, i,
                  &(struct inter_event){.kind = INTER_EV_SERVE,
                                        .peer = x->peer,
                                        .key = x->key,
                                        .manifest = b && b->whole ? &m : NULL});
}

static void send_commit(struct sim *s, uint8_t i, const struct inter_action *x) {
    struct sim_round *r = s->h[i].disk.rounds[x->key.fragment][x->key.round];
    if (!r || !r->committed) {
        struct inter_event none = {.kind = INTER_EV_SERVE, .peer = x->peer, .key = x->key};
        none.key.member = INTER_NO_MEMBER;
        sim_host_step(s, i, &none);
        return;
    }
    struct neb_buf b = {0};
    inter_node_commit_message(&b, &r->commit);
    sim_transmit(s, i, (uint8_t)x->peer, false, b.p, b.len, NULL, 0);
    neb_buf_free(&b);
}

static void store_record(struct sim *s, uint8_t i, const struct inter_action *x) {
    struct sim_round *r = sim_disk_round(s, &s->h[i].disk, x->record.fragment, x->record.round);
    if (x->kind == INTER_ACT_STORE_VOTE) {
        // the disk was lost, or a Byzantine member claims that it was
        bool recovers = s->h[i].previous_incarnation || s->h[i].node->jobs[0].lost;
        if (!sim_lies(s, i) && !s->h[i].witness && !s->h[i].disk.knows_shape && !recovers &&
            x->record.leader != s->h[i].id)
            sim_fail(s, "host %u votes before its worker has reported the shape of an update", i);
        if (!sim_lies(s, i) && r->voted && r->vote.term > x->record.term)
            sim_fail(s, "host %u votes at term %u after term %u", i, x->record.term, r->vote.term);
        r->voted = true;
        r->vote = x->record;
        if (!sim_lies(s, i))
            sim_check_vote(s, i, &x->record);
    } else {
        if (s->h[i].split_now && !sim_lies(s, i))
            sim_fail(s, "host %u commits round %u although it knows that members have diverged", i,
                     x->record.round);
        if (r->committed && !sim_lies(s, i))
            sim_fail(s, "host %u commits round %u twice", i, x->record.round);
        r->committed = true;
        r->commit = x->record;
        if (!sim_lies(s, i))
            sim_check_commit(s, i, &x->record);
    }
}

static void read_commit(struct sim *s, uint8_t i, const struct inter_action *x) {
    const struct sim_round *r = s->h[i].disk.rounds[x->key.fragment][x->key.round];
    struct inter_record own = r && r->committed ? r->commit : (struct inter_record){0};
    sim_host_step(s, i,
                  &(struct inter_event){.kind = INTER_EV_COMMIT_READ,
                                        .peer = i,
                                        .key = x->key,
                                        .record = r && r->committed ? &own : NULL});
}

static void take_split(struct sim *s, uint8_t i, const struct inter_action *x) {
    s->h[i].split = s->h[i].split_now = true; // the job ends on this host
    s->h[i].worker_alive = false;
    sim_note(s, "split", i, x->peer, x->key.fragment, x->key.round, 0);
    if (!sim_lies(s, i) && !s->split.on && !sim_check_divergence(s))
        sim_fail(s, "host %u reports a divergence that did not happen", i);
}

static void take_fault(struct sim *s, uint8_t i, const struct inter_action *x) {
    if (sim_lies(s, i))
        return;
    sim_note(s, inter_fault_name(x->fault), i, x->peer, 0, 0, 0);
    if (x->fault == INTER_FAULT_EQUIVOCATED && !sim_lies(s, (uint8_t)x->peer))
        sim_fail(s, "host %u has evidence against %u, which is honest", i, x->peer);
    if (s->split.on || sim_lies(s, (uint8_t)x->peer))
        return;
    // An honest leader may have believed a Byzantine claim to hold an update, which others refuse.
    if (s->byzantine && x->fault == INTER_FAULT_DENIED)
        return;
    if (x->fault == INTER_FAULT_DIVERGED || x->fault == INTER_FAULT_DENIED ||
        x->fault == INTER_FAULT_MALFORMED || x->fault == INTER_FAULT_FORGED)
        sim_fail(s, "host %u reports: %s (member %u)", i, inter_fault_name(x->fault), x->peer);
}

// Masked runs: during one incarnation of its disk a member hands out one update per round. Updates
// of a previous incarnation may be fetched back from other members.
static void promise_own(struct sim *s, uint8_t i, const struct inter_manifest *m) {
    struct sim_host *h = &s->h[i];
    const struct sim_round *r = sim_disk_round(s, &h->disk, m->key.fragment, m->key.round);
    const struct sim_blob *own = sim_disk_blob(r, h->id, m->key.attempt);
    uint32_t incarnation = m->key.attempt / SIM_ATTEMPTS_OF_EPOCH;
    h->promised_own = true;
    for (int k = 0; k < SIM_ATTEMPTS && !sim_lies(s, i); k++) {
        const struct sim_blob *b = &r->blobs[h->id][k];
        if (b->here && b != own && b->whole &&
            b->m.key.attempt / SIM_ATTEMPTS_OF_EPOCH == incarnation)
            sim_fail(s, "host %u hands out two masked updates of round %u", i, m->key.round);
    }
    if (own && own->whole)
        sim_masks_handed_out(s, m, own->words);
}

enum neb_status sim_host_keeps(struct sim *s, uint8_t i, const struct inter_record *r) {
    struct sim_reveal *kept = &s->h[i].disk.reveals[r->fragment][r->round], now = {.known = true};
    inter_record_hash(r, now.hash);
    for (uint8_t k = 0; k < r->n; k++)
        if (r->entries[k].verdict == INTER_ACCEPTED)
            mset_add(&now.set, r->entries[k].member);
    if (kept->known)
        return memcmp(kept->hash, now.hash, sizeof now.hash) != 0 ? NEB_ERR_EXISTS : NEB_OK;
    if (!before_store(s, i))
        return NEB_ERR_IO;
    *kept = now;
    after_store(s, i, true);
    return s->h[i].alive ? NEB_OK : NEB_ERR_IO;
}

static void carry_out(struct sim *s, uint8_t i, const struct inter_actions *a,
                      const struct inter_action *x) {
    struct sim_host *h = &s->h[i];
    switch (x->kind) {
    case INTER_ACT_SEND:
        sim_transmit(s, i, (uint8_t)x->peer, false, a->bytes.p + x->at, x->size, NULL, 0);
        break;
    case INTER_ACT_SEND_CHUNK: send_chunk(s, i, a, x); break;
    case INTER_ACT_SEND_COMMIT: send_commit(s, i, x); break;
    case INTER_ACT_SERVE:
    case INTER_ACT_VERIFY: serve(s, i, x); break;
    case INTER_ACT_FOUND: h->lacks[x->key.fragment] = 0; break; // the worker retries
    case INTER_ACT_STORE_STANDING:
        if (!before_store(s, i))
            break;
        sim_check_standing(s, i, &x->standing);
        h->disk.standing = x->standing;
        h->disk.has_standing = true;
        after_store(s, i, true);
        break;
    case INTER_ACT_STORE_MANIFEST:
    case INTER_ACT_REPLACE_MANIFEST:
        if (!before_store(s, i))
            break;
        if (x->kind == INTER_ACT_REPLACE_MANIFEST)
            disk_replace(s, &h->disk, &x->manifest);
        else
            (void)disk_put(s, &h->disk, &x->manifest);
        if (x->manifest.key.member == h->id && s->masks)
            promise_own(s, i, &x->manifest);
        after_store(s, i, true);
        break;
    case INTER_ACT_STORE_VOTE:
    case INTER_ACT_STORE_COMMIT:
        if (!before_store(s, i))
            break;
        store_record(s, i, x);
        after_store(s, i, true);
        break;
    case INTER_ACT_BLOB_OPEN: open_blob(s, i, &x->manifest); break;
    case INTER_ACT_BLOB_WRITE: write_blob(s, i, x); break;
    case INTER_ACT_BLOB_FINISH:
        if (before_store(s, i))
            finish_blob(s, i, &x->manifest);
        break;
    case INTER_ACT_DELIVER:
        sim_masks_commit(s, i, &x->record);
        break; // the worker reads the ledger
    case INTER_ACT_BEHIND:
        // Masked: a Byzantine leader can get enough votes, show the proof to one member only, and
        // claim that the record is gone. That member asks in vain until others have committed the
        // round.
        if (!sim_lies(s, i) && !s->o.masked &&
            !h->node->jobs[0].fragments[x->key.fragment].decided &&
            s->oracle->top[x->key.fragment] <= x->key.round)
            sim_fail(s, "host %u asks for a snapshot, but nobody is beyond round %u", i,
                     x->key.round);
        if (x->key.round < open_round(&h->disk, x->key.fragment))
            h->lacks[x->key.fragment] = x->key.round + 1;
        if (!h->fetching)
            sim_post(s, (neb_ns)(1 + neb_rng_below(&s->rng, 4)) * NEB_S, SIM_SNAPSHOT, i, 0,
                     h->boot);
        h->fetching = true;
        break;
    case INTER_ACT_STORE_EVIDENCE:
        if (!before_store(s, i))
            break;
        mset_add(&h->disk.equivocators, (int)x->peer);
        h->disk.evidence[x->peer] = x->evidence;
        after_store(s, i, true);
        break;
    case INTER_ACT_READ_COMMIT: read_commit(s, i, x); break;
    case INTER_ACT_RESTART_LINK: break; // this network has no congestion control
    case INTER_ACT_SPLIT: take_split(s, i, x); break;
    case INTER_ACT_FAULT: take_fault(s, i, x); break;
    }
}

void sim_host_step(struct sim *s, uint8_t i, const struct inter_event *e) {
    struct sim_host *h = &s->h[i];
    struct inter_actions a = {0};
    uint32_t boot = h->boot;
    if (!h->alive)
        return;
    if (sim_lies(s, i)) {
        sim_byzantine_forgets(s, i);
        sim_byzantine_leaves_out(s, i);
    }
    if (inter_node_step(h->node, sim_clock(s, h), e, &a) != NEB_OK)
        sim_fail(s, "host %u: a step failed", i);
    sim_check_bounds(s, i, &a);
    for (size_t k = 0; k < a.n && h->alive && h->boot == boot; k++)
        carry_out(s, i, &a, &a.list[k]);
    inter_actions_free(&a);
}

// ---- boot ----

static void restore_fragment(struct sim *s, struct sim_host *h, uint32_t f) {
    uint32_t open = h->disk.base[f];
    for (; open < SIM_ROUNDS && h->disk.rounds[f][open] && h->disk.rounds[f][open]->committed;
         open++)
        inter_node_restore_commit(h->node, &h->disk.rounds[f][open]->commit);
    const struct sim_round *r = open < SIM_ROUNDS ? h->disk.rounds[f][open] : NULL;
    for (uint8_t m = 0; r && m < s->o.members; m++) {
        const struct sim_blob *best = NULL;
        for (int k = 0; k < SIM_ATTEMPTS; k++) {
            const struct sim_blob *b = &r->blobs[m][k];
            if (b->here && (!best || b->m.key.attempt > best->m.key.attempt))
                best = b;
        }
        if (!best || (m == h->id && !best->whole))
            continue;
        struct inter_bitmap got = {0};
        if (!best->whole) { // any part of it may have arrived
            uint8_t **part = &h->parts[f][m];
            if (!*part && !(*part = calloc(1, SIM_BLOB)))
                abort();
            if (inter_bitmap_init(&got, inter_chunks(best->m.bytes, best->m.chunk_bytes)) != NEB_OK)
                abort();
            // The map of chunks is written after the data: after a crash it may list fewer chunks,
            // never more.
        }
        enum inter_holding hold = !best->whole                                ? INTER_HOLD_PART
                                  : m != h->id && best->words[SIM_WORDS] == 1 ? INTER_HOLD_REFUSED
                                                                              : INTER_HOLD_COMPLETE;
        if (inter_node_restore_manifest(h->node, &best->m, hold, best->whole ? NULL : &got) !=
            NEB_OK)
            sim_fail(s, "host %u cannot restore a manifest", h->id);
        inter_node_restore_norm(h->node, &best->m.key, best->whole ? 1 : 0);
        if (m == h->id && best->words[SIM_WORDS] == 1)
            inter_node_own_bad(h->node, &best->m.key);
        inter_bitmap_free(&got);
    }
    if (r && r->voted)
        inter_node_restore_vote(h->node, &r->vote);
}

void sim_host_boot(struct sim *s, uint8_t i) {
    struct sim_host *h = &s->h[i];
    struct inter_node_crypto crypto = sim_host_crypto(h);
    if (!h->disk.epoch)
        h->disk.epoch = ++s->epochs;
    struct inter_job_config c = {
        .id = {1},
        .n_members = (uint8_t)s->o.members,
        .self = h->id,
        .fragments = s->o.fragments,
        .merge_after = 3,
        .steps = (uint64_t)s->interval * s->o.rounds,
        // the largest of all members
        .step_tokens = sim_tokens_of_step((uint8_t)(s->o.members - 1)),
        .early_interval = (uint32_t)s->interval, // differs between incarnations with the tuner
        .early_steps = (uint64_t)s->interval * s->o.rounds,
        .eta = 1,
        .mu = 0,
        // A leader plans from its own measurements, so no two leaders propose the same value.
        .tune = {.start_interval = 16u * ((h->boot & 0xff) + 1) + i,
                 .start_overlap = (uint32_t)s->overlap},
        .grace = s->o.masked && sim_lies(s, i) ? 0 : 10 * NEB_S,
        .robust = s->o.robust,
        .masked = s->o.masked,
        // a Byzantine program skips the check of the quorum
        .colluders = (uint8_t)(sim_lies(s, i) ? 0 : s->o.colluders),
        .awaits_shape = true,
        .epoch = h->disk.epoch,
        .day = sim_day(s)};
    for (uint8_t m = 0; m < s->o.members; m++) {
        c.peers[m] = m;
        if (s->h[m].witness)
            mset_add(&c.witnesses, m);
    }
    h->alive = true;
    h->leaving = h->fetching = false;
    memset(h->lacks, 0, sizeof h->lacks);
    h->boot++;
    memset(h->up, 0, sizeof h->up);
    if (inter_node_create(&crypto, &h->node) != NEB_OK ||
        inter_node_job_open(h->node, &c) != NEB_OK)
        sim_fail(s, "host %u cannot open the job", i);
    if (h->disk.has_standing)
        inter_node_restore_standing(h->node, &h->disk.standing);
    for (uint32_t f = 0; f < s->o.fragments; f++)
        restore_fragment(s, h, f);
    for (uint8_t m = 0; m < s->o.members; m++)
        if (mset_has(h->disk.equivocators, m))
            inter_node_restore_evidence(h->node, &h->disk.evidence[m]);
    if (s->byzantine && s->byzantine->gone)
        inter_node_job_revoked(h->node, c.id, mset_of(s->byzantine->who));
    h->split_now = false;
    sim_note(s, "boot", i, inter_node_round(h->node, c.id, 0), 0, 0, 0);
    sim_post(s, 0, SIM_TICK, i, 0, h->boot);
    if (h->disk.knows_shape)
        inter_node_job_judges(h->node, c.id);
    // In some runs the first worker of a cluster starts late; with a fresh disk, only after it has
    // a snapshot. The member does not lead until then.
    if (s->o.seed % 8 == 4 && !s->o.pace && !s->o.terms && !h->witness && !h->disk.knows_shape)
        sim_post(s, (neb_ns)(neb_mix64(s->o.seed + i) % 10) * NEB_S, SIM_BOOT_WORKER, i, 0,
                 h->boot);
    else
        sim_worker_boot(s, i);
    sim_masks_boot(s, i);
}

void sim_host_stop(struct sim *s, uint8_t i) {
    (void)s;
    s->h[i].alive = false;
    s->h[i].worker_alive = false;
}

void sim_host_submit(struct sim *s, uint8_t i, uint32_t f, const struct inter_manifest *given,
                     const int64_t words[SIM_WORDS + 1]) {
    struct sim_host *h = &s->h[i];
    struct inter_manifest m = *given;
    uint8_t blob[SIM_BLOB], id[INTER_ID_BYTES] = {1};
    uint32_t open = inter_node_round(h->node, id, f);
    if (m.key.round < open)
        return; // the worker finds the commit in the ledger
    if (m.key.round > open)
        sim_fail(s, "worker %u is at round %u, its ledger at %u", i, m.key.round, open);
    m.key.attempt += SIM_ATTEMPTS_OF_EPOCH * (uint32_t)h->disk.epoch;
    struct sim_round *r = sim_disk_round(s, &h->disk, f, m.key.round);
    const struct sim_blob *own = sim_disk_blob(r, h->id, m.key.attempt);
    // the disk lost the update that was signed under this key, and the new update differs
    while (own && !own->whole && own->rotten && memcmp(own->words, words, sizeof own->words))
        own = sim_disk_blob(r, h->id, ++m.key.attempt);
    if (own && own->whole) {
        if (memcmp(own->words, words, sizeof own->words))
            sim_note(s, "other bytes than before the restart", i, f, m.key.round, 0, 0);
        return; // the bytes in the ledger count
    }
    render(blob, words);
    digest(blob, SIM_BLOB, m.sha256);
    m.bytes = SIM_BLOB;
    m.chunk_bytes = s->o.seed % 4 == 3 ? 2 * INTER_CHUNK_MIN : INTER_CHUNK_MIN; // one chunk, or two
    struct neb_buf b = {0};
    inter_manifest_put_body(&b, &m);
    sim_sign(h->id, "nebula manifest v1", b.p, b.len, m.sig);
    neb_buf_free(&b);
    if (!before_store(s, i))
        return;
    struct sim_blob *mine = disk_put(s, &h->disk, &m);
    if (own && own->rotten && !memcmp(own->m.sha256, m.sha256, sizeof m.sha256))
        m = own->m; // the signed manifest is still there: no second one under this key
    mine->m = m;
    memcpy(mine->words, words, sizeof mine->words);
    mine->whole = true;
    if (!sim_lies(s, i))
        sim_check_blob(s, i, &m);
    after_store(s, i, true);
    h->promised_own = false;
    sim_host_step(
        s, i,
        &(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &m, .peer = h->id, .norm = 1});
    if (s->masks && !h->promised_own)
        *mine = (struct sim_blob){0}; // a blob without a manifest is deleted at the next start
    if (h->alive && words[SIM_WORDS] == 1)
        inter_node_own_bad(h->node, &m.key);
}
