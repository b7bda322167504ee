// SPDX-License-Identifier: Apache-2.0
// Creates and destroys snapshots, and passes messages to snapshot_fetch.c or snapshot_give.c.
#include "agent/base/log.h"
#include "inter/service/snapshot_state.h"
#include "security/seal_chunks.h"

#include <stdlib.h>

static const neb_ns pinned_for = 240 * NEB_S; // after the last chunk, for a member that comes back

enum neb_status inter_snapshots_create(const struct inter_snapshots_config *c,
                                       struct inter_snapshots **out) {
    struct inter_snapshots *s = calloc(1, sizeof *s);
    if (!s || !(s->chunk = malloc(INTER_SNAPSHOT_CHUNK + SEC_CHUNKS_EXTRA))) {
        free(s);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for snapshots");
    }
    s->c = *c;
    *out = s;
    return NEB_OK;
}

void inter_snapshots_destroy(struct inter_snapshots **sp) {
    struct inter_snapshots *s = *sp;
    if (!s)
        return;
    for (int i = 0; i < INTER_SNAPSHOT_JOBS; i++) {
        if (s->fetches[i].used)
            snapshot_fetch_end(&s->fetches[i]);
        if (s->given[i].used)
            snapshot_release(s, &s->given[i]);
    }
    neb_buf_free(&s->out);
    free(s->chunk);
    free(s);
    *sp = NULL;
}

uint64_t snapshot_chunk_bytes(uint64_t total, uint32_t i) {
    uint64_t at = (uint64_t)i * INTER_SNAPSHOT_CHUNK, left = total - at;
    return left < INTER_SNAPSHOT_CHUNK ? left : INTER_SNAPSHOT_CHUNK;
}

struct neb_buf *snapshot_begin(struct inter_snapshots *s, uint8_t type,
                               const uint8_t job[INTER_ID_BYTES]) {
    neb_buf_clear(&s->out);
    neb_buf_u8(&s->out, type);
    neb_buf_add(&s->out, job, INTER_ID_BYTES);
    return &s->out;
}

enum neb_status snapshot_send(struct inter_snapshots *s, uint32_t peer) {
    NEB_TRY(neb_buf_check(&s->out));
    return s->c.send(s->c.user, peer, false, s->out.p, s->out.len, NULL, 0);
}

enum neb_status inter_snapshots_message(struct inter_snapshots *s, neb_ns now, uint32_t peer,
                                        bool bulk, const uint8_t *p, size_t n) {
    uint8_t job[INTER_ID_BYTES];
    struct neb_rd r = neb_rd_make(p, n);
    uint8_t type = neb_rd_u8(&r);
    neb_rd_copy(&r, job, sizeof job);
    if (r.bad || bulk != (type == INTER_SNAPSHOT_DATA))
        return NEB_OK;
    bool asks = type == INTER_SNAPSHOT_ASK || type == INTER_SNAPSHOT_GET;
    if (!s->c.takes_part(s->c.user, job, peer)) {
        s->c.refused(s->c.user, job, peer);
        return asks ? snapshot_offer_none(s, peer, job) : NEB_OK;
    }
    enum neb_status st = NEB_OK;
    if (type == INTER_SNAPSHOT_ASK)
        return snapshot_on_ask(s, now, peer, &r, job);
    if (type == INTER_SNAPSHOT_GET)
        return snapshot_on_get(s, now, peer, &r, job);
    if (type == INTER_SNAPSHOT_OFFER)
        st = snapshot_on_offer(s, now, peer, &r, job);
    else if (type == INTER_SNAPSHOT_DATA)
        st = snapshot_on_data(s, now, peer, &r, job);
    struct fetch *f = st == NEB_OK ? NULL : snapshot_fetch_find(s, job);
    if (f) // this member's disk failed: the fetch ends, the agent goes on
        snapshot_fetch_finish(s, f, st);
    return NEB_OK;
}

enum neb_status inter_snapshots_tick(struct inter_snapshots *s, neb_ns now) {
    for (int i = 0; i < INTER_SNAPSHOT_JOBS; i++) {
        struct fetch *f = &s->fetches[i];
        enum neb_status st = f->used ? snapshot_fetch_tick(s, f, now) : NEB_OK;
        if (st != NEB_OK && f->used)
            snapshot_fetch_finish(s, f, st);
        struct given *g = &s->given[i];
        if (g->used && now - (g->taken ? g->taken : g->opened) > pinned_for)
            snapshot_release(s, g);
    }
    NEB_TRY(snapshot_answer(s, now));
    return snapshot_pump(s, now);
}
