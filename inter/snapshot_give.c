// The side that gives a snapshot: pins a state while somebody takes it, and sends the chunks that are asked for as the link
// takes them.
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "inter/snapshot_state.h"

#include <string.h>

enum {
    DATA_HEAD = 1 + INTER_ID_BYTES + INTER_SHA_BYTES + 8 + 8,
};
// after the last chunk that somebody took: not replaced by a newer one
static const neb_ns in_use_for = 3 * NEB_S;

void snapshot_release(struct inter_snapshots *s, struct given *g) {
    s->c.close(s->c.user, &g->source);
    *g = (struct given){0};
}

static struct given *find_given(struct inter_snapshots *s, const uint8_t job[INTER_ID_BYTES],
                                const uint8_t *id) {
    for (int i = 0; i < INTER_SNAPSHOT_JOBS; i++)
        if (s->given[i].used && !memcmp(s->given[i].job, job, INTER_ID_BYTES) &&
            (!id || !memcmp(s->given[i].id, id, INTER_SHA_BYTES)))
            return &s->given[i];
    return NULL;
}

// The newest state, unless an older one is being taken by somebody, or is the one that the asker has begun to take.
static struct given *pin(struct inter_snapshots *s, neb_ns now, const uint8_t job[INTER_ID_BYTES],
                         const uint8_t begun[INTER_SHA_BYTES]) {
    struct given *g = find_given(s, job, NULL);
    if (g && (now - g->taken < in_use_for || !memcmp(g->id, begun, sizeof g->id)))
        return g;
    if (g)
        snapshot_release(s, g);
    for (int i = 0; i < INTER_SNAPSHOT_JOBS && !g; i++)
        g = s->given[i].used ? NULL : &s->given[i];
    if (!g || s->c.open(s->c.user, job, &g->source) != NEB_OK)
        return NULL;
    g->used = true;
    memcpy(g->job, job, sizeof g->job);
    neb_sha256(g->source.header.p, g->source.header.len, g->id);
    g->total = g->source.header.len + g->source.len[0] + g->source.len[1];
    g->taken = now - in_use_for; // by nobody yet
    return g;
}

static enum neb_status offer(struct inter_snapshots *s, uint32_t peer,
                             const uint8_t job[INTER_ID_BYTES], const struct given *g) {
    static const uint8_t none[INTER_SHA_BYTES];
    struct neb_buf *b = snapshot_begin(s, INTER_SNAPSHOT_OFFER, job);
    neb_buf_add(b, g ? g->id : none, INTER_SHA_BYTES);
    neb_buf_u64(b, g ? g->total : 0);
    neb_buf_u64(b, g ? g->source.header.len : 0);
    enum neb_status st = snapshot_say(s, peer);
    return st == NEB_ERR_AGAIN ? NEB_OK : st; // it asks again
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
    if (!g)
        return offer(s, w->peer, w->job, NULL); // not pinned any more
    uint64_t at = (uint64_t)w->chunk * INTER_SNAPSHOT_CHUNK;
    if (at >= g->total)
        return NEB_OK;
    size_t n = (size_t)snapshot_chunk_bytes(g->total, w->chunk);
    if (cut(&g->source, at, s->chunk, n) != NEB_OK) {
        snapshot_release(s, g);
        return offer(s, w->peer, w->job, NULL);
    }
    neb_sha256(s->chunk, n, sha);
    struct neb_buf *b = snapshot_begin(s, INTER_SNAPSHOT_DATA, w->job);
    neb_buf_add(b, w->id, sizeof w->id);
    neb_buf_u64(b, at);
    neb_buf_add(b, sha, 8);
    NEB_TRY(neb_buf_check(b));
    NEB_ASSERT(b->len == DATA_HEAD);
    g->taken = now;
    return s->c.send(s->c.user, w->peer, true, b->p, b->len, s->chunk, n);
}

// What the link does not take waits, for as long as the other side does.
enum neb_status snapshot_pump(struct inter_snapshots *s, neb_ns now) {
    uint32_t kept = 0;
    uint64_t full = 0; // peers whose queue is full, bit each
    for (uint32_t i = 0; i < s->n_queue; i++) {
        const struct wanted *w = &s->queue[i];
        enum neb_status st = full >> (w->peer & 63) & 1 ? NEB_ERR_AGAIN : give(s, now, w);
        if (st == NEB_ERR_AGAIN) {
            full |= 1ull << (w->peer & 63);
            if (now - w->at < chunk_patience)
                s->queue[kept++] = *w;
        } else if (st != NEB_OK) {
            return st;
        }
    }
    s->n_queue = kept;
    return NEB_OK;
}

enum neb_status snapshot_on_ask(struct inter_snapshots *s, neb_ns now, uint32_t peer,
                                struct neb_rd *r, const uint8_t job[INTER_ID_BYTES]) {
    uint8_t begun[INTER_SHA_BYTES];
    neb_rd_copy(r, begun, sizeof begun);
    return neb_rd_done(r) ? offer(s, peer, job, pin(s, now, job, begun)) : NEB_OK;
}

enum neb_status snapshot_on_get(struct inter_snapshots *s, neb_ns now, uint32_t peer,
                                struct neb_rd *r, const uint8_t job[INTER_ID_BYTES]) {
    struct wanted w = {.at = now, .peer = peer};
    memcpy(w.job, job, sizeof w.job);
    neb_rd_copy(r, w.id, sizeof w.id);
    w.chunk = neb_rd_u32(r);
    if (!neb_rd_done(r))
        return NEB_OK;
    for (uint32_t i = 0; i < s->n_queue; i++)
        if (s->queue[i].peer == peer && s->queue[i].chunk == w.chunk &&
            !memcmp(s->queue[i].id, w.id, sizeof w.id))
            return NEB_OK; // asked again before its turn
    if (s->n_queue < QUEUE_MAX)
        s->queue[s->n_queue++] = w;
    return snapshot_pump(s, now);
}
