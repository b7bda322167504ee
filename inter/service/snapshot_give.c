// SPDX-License-Identifier: Apache-2.0
// The side that gives a snapshot. Pins a state while a peer takes it, and sends the requested
// chunks as fast as the link takes them.
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "inter/service/snapshot_state.h"

#include <string.h>

enum {
    DATA_HEAD = 1 + INTER_ID_BYTES + INTER_SHA_BYTES + 8 + 8,
};
// A state is not replaced by a newer one for this long: after its last chunk was sent, and before
// its first one. The second is longer than a member waits before it asks again, because a state
// that took long to open must still be there then.
static const neb_ns in_use_for = 3 * NEB_S, fresh_for = 20 * NEB_S;
// After this time a state stays only while the updates since it stay too. Without them, no peer
// could continue from it.
static const neb_ns young_for = 600 * NEB_S;
static const neb_ns asker_patience = 600 * NEB_S;
static const neb_ns chunk_patience = 60 * NEB_S; // for a chunk that the link does not take

void snapshot_release(struct inter_snapshots *s, struct given *g) {
    s->c.close(s->c.user, &g->source);
    *g = (struct given){0};
}

// A member that has taken a state next needs the updates since that state, over the same link. So
// they stay for as long as the transfer took, but at most for a day. Then follows a day in which
// they are not held: a member that takes states without end must not fill this disk.
static void hold(struct inter_snapshots *s, neb_ns now, const uint8_t job[INTER_ID_BYTES],
                 neb_ns opened) {
    const neb_ns day = 86400 * NEB_S, least = 2 * NEB_S;
    struct held *h = NULL;
    for (int i = 0; i < INTER_SNAPSHOT_JOBS; i++)
        if (!memcmp(s->held[i].job, job, INTER_ID_BYTES))
            h = &s->held[i];
    for (int i = 0; i < INTER_SNAPSHOT_JOBS && !h; i++)
        if (s->held[i].until < now) {
            h = &s->held[i];
            *h = (struct held){0};
            memcpy(h->job, job, sizeof h->job);
        }
    if (!h)
        return;
    if (h->until < now && h->from && h->until == h->from + day && now < h->until + day)
        return;
    if (h->until < now)
        h->from = now;
    neb_ns until = now + least + (now - opened);
    until = until < h->from + day ? until : h->from + day;
    h->until = until > h->until ? until : h->until;
}

void inter_snapshots_catching_up(struct inter_snapshots *s, neb_ns now,
                                 const uint8_t job[INTER_ID_BYTES]) {
    hold(s, now, job, now);
}

bool inter_snapshots_hold(const struct inter_snapshots *s, neb_ns now,
                          const uint8_t job[INTER_ID_BYTES]) {
    for (int i = 0; i < INTER_SNAPSHOT_JOBS; i++)
        if (s->held[i].until >= now && !memcmp(s->held[i].job, job, INTER_ID_BYTES))
            return true;
    return false;
}

static struct given *find_given(struct inter_snapshots *s, const uint8_t job[INTER_ID_BYTES],
                                const uint8_t *id) {
    for (int i = 0; i < INTER_SNAPSHOT_JOBS; i++)
        if (s->given[i].used && !memcmp(s->given[i].job, job, INTER_ID_BYTES) &&
            (!id || !memcmp(s->given[i].id, id, INTER_SHA_BYTES)))
            return &s->given[i];
    return NULL;
}

static bool stays(const struct inter_snapshots *s, const struct given *g, neb_ns now) {
    bool in_use = g->taken ? now - g->taken < in_use_for : now - g->opened < fresh_for;
    return in_use && (now - g->opened < young_for || inter_snapshots_hold(s, now, g->job));
}

// The asker has taken all of this state and asks for one from the start: this one was of no use.
static bool refused(const struct given *g, uint32_t peer, const uint8_t begun[INTER_SHA_BYTES]) {
    static const uint8_t none[INTER_SHA_BYTES];
    return g->whole && g->taker == peer && !memcmp(begun, none, sizeof none);
}

// Pins the newest state. An older one stays if a peer takes it, if it was opened just now, or if
// the asker has begun it. NEB_ERR_AGAIN: it is being opened. *out NULL: there is none.
static enum neb_status pin(struct inter_snapshots *s, neb_ns now, uint32_t peer,
                           const uint8_t job[INTER_ID_BYTES], const uint8_t begun[INTER_SHA_BYTES],
                           struct given **out) {
    struct given *g = find_given(s, job, NULL);
    *out = g;
    if (g && !refused(g, peer, begun) && (stays(s, g, now) || !memcmp(g->id, begun, sizeof g->id)))
        return NEB_OK;
    struct inter_snapshot_source source;
    enum neb_status st = s->c.open(s->c.user, job, &source);
    if (st == NEB_ERR_AGAIN)
        return st;
    *out = NULL;
    if (g)
        snapshot_release(s, g);
    for (int i = 0; i < INTER_SNAPSHOT_JOBS && !g; i++)
        g = s->given[i].used ? NULL : &s->given[i];
    if (st != NEB_OK)
        return NEB_OK;
    if (!g) {
        s->c.close(s->c.user, &source);
        return NEB_OK;
    }
    g->used = true;
    g->source = source;
    memcpy(g->job, job, sizeof g->job);
    neb_sha256(g->source.header.p, g->source.header.len, g->id);
    g->total = g->source.header.len + g->source.len[0] + g->source.len[1];
    g->opened = now;
    *out = g;
    return NEB_OK;
}

static enum neb_status offer(struct inter_snapshots *s, uint32_t peer,
                             const uint8_t job[INTER_ID_BYTES], const struct given *g) {
    static const uint8_t none[INTER_SHA_BYTES];
    struct neb_buf *b = snapshot_begin(s, INTER_SNAPSHOT_OFFER, job);
    neb_buf_add(b, g ? g->id : none, INTER_SHA_BYTES);
    neb_buf_u64(b, g ? g->total : 0);
    neb_buf_u64(b, g ? g->source.header.len : 0);
    enum neb_status st = snapshot_send(s, peer);
    return st == NEB_ERR_AGAIN ? NEB_OK : st; // the peer asks again
}

enum neb_status snapshot_offer_none(struct inter_snapshots *s, uint32_t peer,
                                    const uint8_t job[INTER_ID_BYTES]) {
    return offer(s, peer, job, NULL);
}

static enum neb_status cut(const struct inter_snapshot_source *src, uint64_t at, uint8_t *out,
                           size_t n) {
    const uint64_t lens[3] = {src->header.len, src->len[0], src->len[1]};
    uint64_t base = 0;
    for (int i = 0; i < 3 && n; base += lens[i], i++) {
        if (at >= base + lens[i])
            continue;
        uint64_t here = base + lens[i] - at, take = here < n ? here : n;
        if (i == 0)
            memcpy(out, src->header.p + at, (size_t)take);
        else
            NEB_TRY(src->read(src->pin, i - 1, at - base, out, (size_t)take));
        out += take;
        at += take;
        n -= (size_t)take;
    }
    NEB_ASSERT(!n);
    return NEB_OK;
}

static enum neb_status give(struct inter_snapshots *s, neb_ns now, const struct wanted *w) {
    struct given *g = find_given(s, w->job, w->id);
    uint8_t sha[INTER_SHA_BYTES];
    // no longer pinned, or no longer a cluster of the job
    if (!g || !s->c.takes_part(s->c.user, w->job, w->peer))
        return snapshot_offer_none(s, w->peer, w->job);
    uint64_t at = (uint64_t)w->chunk * INTER_SNAPSHOT_CHUNK;
    if (at >= g->total)
        return NEB_OK;
    size_t n = (size_t)snapshot_chunk_bytes(g->total, w->chunk);
    if (cut(&g->source, at, s->chunk, n) != NEB_OK) {
        snapshot_release(s, g);
        return snapshot_offer_none(s, w->peer, w->job);
    }
    neb_sha256(s->chunk, n, sha);
    struct neb_buf *b = snapshot_begin(s, INTER_SNAPSHOT_DATA, w->job);
    neb_buf_add(b, w->id, sizeof w->id);
    neb_buf_u64(b, at);
    neb_buf_add(b, sha, 8);
    NEB_TRY(neb_buf_check(b));
    NEB_ASSERT(b->len == DATA_HEAD);
    g->taken = now;
    g->whole = at + n == g->total || (g->whole && g->taker == w->peer);
    g->taker = w->peer;
    hold(s, now, w->job, g->opened);
    return s->c.send(s->c.user, w->peer, true, b->p, b->len, s->chunk, n);
}

// A chunk that the link does not take waits, about as long as its peer waits for it. Later chunks
// of the same job to the same peer wait behind it.
enum neb_status snapshot_pump(struct inter_snapshots *s, neb_ns now) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n_queue; i++) {
        const struct wanted w = s->queue[i];
        bool behind = false;
        for (uint32_t k = 0; k < kept && !behind; k++)
            behind = s->queue[k].peer == w.peer && !memcmp(s->queue[k].job, w.job, sizeof w.job);
        enum neb_status st = behind ? NEB_ERR_AGAIN : give(s, now, &w);
        if (st == NEB_ERR_AGAIN) {
            if (now - w.at < chunk_patience)
                s->queue[kept++] = w;
        } else if (st != NEB_OK) {
            return st;
        }
    }
    s->n_queue = kept;
    return NEB_OK;
}

static void remember_asker(struct inter_snapshots *s, const struct asker *a) {
    uint32_t i = 0;
    while (i < s->n_askers &&
           (s->askers[i].peer != a->peer || memcmp(s->askers[i].job, a->job, sizeof a->job)))
        i++;
    if (i == PEERS)
        return; // the peer asks again
    s->askers[i] = *a;
    s->n_askers += i == s->n_askers;
}

enum neb_status snapshot_on_ask(struct inter_snapshots *s, neb_ns now, uint32_t peer,
                                struct neb_rd *r, const uint8_t job[INTER_ID_BYTES]) {
    struct asker a = {.at = now, .peer = peer};
    struct given *g;
    memcpy(a.job, job, sizeof a.job);
    neb_rd_copy(r, a.begun, sizeof a.begun);
    if (!neb_rd_done(r))
        return NEB_OK;
    if (pin(s, now, peer, job, a.begun, &g) == NEB_OK)
        return offer(s, peer, job, g);
    remember_asker(s, &a);
    return NEB_OK;
}

enum neb_status snapshot_answer(struct inter_snapshots *s, neb_ns now) {
    for (uint32_t i = 0; i < s->n_askers;) {
        struct asker a = s->askers[i];
        struct given *g = NULL;
        hold(s, now, a.job, a.at);
        bool over = now - a.at > asker_patience || !s->c.takes_part(s->c.user, a.job, a.peer),
             ready = !over && pin(s, now, a.peer, a.job, a.begun, &g) == NEB_OK;
        if (ready)
            NEB_TRY(offer(s, a.peer, a.job, g));
        if (ready || over)
            s->askers[i] = s->askers[--s->n_askers];
        else
            i++;
    }
    return NEB_OK;
}

enum neb_status snapshot_on_get(struct inter_snapshots *s, neb_ns now, uint32_t peer,
                                struct neb_rd *r, const uint8_t job[INTER_ID_BYTES]) {
    struct wanted w = {.at = now, .peer = peer};
    memcpy(w.job, job, sizeof w.job);
    neb_rd_copy(r, w.id, sizeof w.id);
    w.chunk = neb_rd_u32(r);
    if (!neb_rd_done(r))
        return NEB_OK;
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < s->n_queue; i++) {
        waiting += s->queue[i].peer == peer;
        if (s->queue[i].peer == peer && s->queue[i].chunk == w.chunk &&
            !memcmp(s->queue[i].id, w.id, sizeof w.id))
            return NEB_OK; // requested again before it was sent
    }
    if (waiting < SHARE_MAX && s->n_queue < QUEUE_MAX)
        s->queue[s->n_queue++] = w;
    return snapshot_pump(s, now);
}
