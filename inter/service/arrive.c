// SPDX-License-Identifier: Apache-2.0
// The gate while an update arrives: hashing and the numeric check follow the bytes, so only the
// last chunk's work is left after the last chunk.
//
//     CHUNK ── CURVE authenticated its sender; the node compared 8 bytes of its SHA-256 and has a
//       │       signed manifest for its key
//       ▼ BLOB_WRITE
//     on disk ──► in order: SHA-256 of all so far, and cmp_check_feed
//       │         out of order: read back when the gap is closed
//       ▼ BLOB_FINISH
//     digest as in the manifest?  yes: the verdict is about exactly the signed bytes
//                                 no: the verdict is discarded with the bytes
//
// No vote and no message depends on the update before that comparison. Earlier bytes come from a
// member of the job, over its own link or a relay's. They are bounded unit by unit before they are
// unpacked (compress/check.h). A member that sends bytes with a wrong digest costs this work each
// time it sends all of them.
//
// Only a few arrivals are followed at once, because each needs memory for its largest unit. The one
// that waited longest gives way. It is checked completely at its end, like an update that was on
// disk when the agent started.
#include "agent/base/moved.h"
#include "agent/base/sha256.h"
#include "compress/check.h"
#include "inter/service/state.h"

#include <stdlib.h>
#include <string.h>

static struct service_arrival *find_arrival(struct inter_service *s, const struct inter_key *k) {
    for (int i = 0; i < ARRIVALS_MAX; i++)
        if (s->arrivals[i].on && inter_key_equal(&s->arrivals[i].key, k))
            return &s->arrivals[i];
    return NULL;
}

// The update's own place, else a free one, else that of the arrival that waited longest.
static struct service_arrival *place_for(struct inter_service *s, const struct inter_key *k) {
    struct service_arrival *best = find_arrival(s, k);
    if (best)
        return best;
    best = &s->arrivals[0];
    for (int i = 1; i < ARRIVALS_MAX && best->on; i++)
        if (!s->arrivals[i].on || s->arrivals[i].moved < best->moved)
            best = &s->arrivals[i];
    return best;
}

void service_arrival_begin(struct inter_service *s, const struct inter_manifest *m) {
    struct service_arrival *a = place_for(s, &m->key);
    uint8_t former[NEB_SHA256_BYTES];
    a->on = false;
    if ((!a->check && cmp_check_create(&a->check) != NEB_OK) ||
        (!a->sha && neb_sha256_create(&a->sha) != NEB_OK))
        return; // it is checked completely at its end
    neb_sha256_finish(a->sha, former);
    cmp_check_begin(a->check, service_elements_max(s, m->key.job));
    if (inter_node_weighs(s->node, m->key.job))
        cmp_check_sketch(a->check);
    a->on = true;
    a->numbers = true;
    a->key = m->key;
    a->bytes = m->bytes;
    a->chunk_bytes = m->chunk_bytes;
    a->at = 0;
    a->moved = ++s->arrivals_clock;
}

static void feed(struct service_arrival *a, const uint8_t *p, size_t n) {
    if (a->at == 0)
        a->numbers = cmp_check_is_update(p, n); // masked updates hold no numbers
    neb_sha256_add(a->sha, p, n);
    // Errors are reported at the end. If memory is missing, the end checks the update again.
    if (a->numbers && cmp_check_feed(a->check, p, n) == NEB_ERR_NOMEM)
        a->numbers = false;
    a->at += n;
}

// Feeds the chunks that arrived early and are next now.
static void read_back(struct inter_service *s, struct service_arrival *a) {
    while (a->on && a->at < a->bytes) {
        uint32_t i = (uint32_t)(a->at / a->chunk_bytes);
        size_t n = inter_chunk_length(a->bytes, a->chunk_bytes, i);
        neb_buf_clear(&s->arrived);
        if (!inter_ledger_part_has(s->ledger, &a->key, i))
            return;
        a->on = neb_buf_reserve(&s->arrived, n) == NEB_OK &&
                inter_ledger_part_read(s->ledger, &a->key, i, s->arrived.p) == NEB_OK;
        if (a->on)
            feed(a, s->arrived.p, n);
        neb_moved_add(n); // much may follow a gap
    }
}

void service_arrival_chunk(struct inter_service *s, const struct inter_key *k, uint64_t offset,
                           const uint8_t *p, size_t n) {
    struct service_arrival *a = find_arrival(s, k);
    if (!a)
        return;
    a->moved = ++s->arrivals_clock;
    if (offset == a->at)
        feed(a, p, n);
    read_back(s, a);
}

bool service_arrival_whole(struct inter_service *s, const struct inter_manifest *m) {
    struct service_arrival *a = find_arrival(s, &m->key);
    if (!a)
        return false;
    read_back(s, a); // chunks from before a restart
    a->on = a->on && a->at == m->bytes;
    if (a->on)
        neb_sha256_finish(a->sha, a->digest);
    a->on = a->on && !memcmp(a->digest, m->sha256, sizeof a->digest);
    return a->on;
}

bool service_arrival_verdict(struct inter_service *s, const struct inter_manifest *m,
                             enum neb_status *st, struct cmp_update_stats *stats) {
    struct service_arrival *a = find_arrival(s, &m->key);
    if (!a || !a->numbers || a->at != m->bytes || memcmp(a->digest, m->sha256, sizeof a->digest))
        return false;
    *st = cmp_check_end(a->check, stats);
    return true;
}

void service_arrival_end(struct inter_service *s, const struct inter_key *k) {
    struct service_arrival *a = find_arrival(s, k);
    if (a)
        a->on = false;
}

void service_arrivals_free(struct inter_service *s) {
    for (int i = 0; i < ARRIVALS_MAX; i++) {
        cmp_check_destroy(&s->arrivals[i].check);
        neb_sha256_destroy(&s->arrivals[i].sha);
    }
    neb_buf_free(&s->arrived);
}
