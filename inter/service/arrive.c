// SPDX-License-Identifier: Apache-2.0
// The gate while an update arrives: digest and numeric check follow the bytes, so that behind the last chunk only that chunk's work is
// left.
//
//     CHUNK ── CURVE authenticated its sender, the node compared its 8 bytes of SHA-256, and knows a signed manifest for its key
//       │
//       ▼ BLOB_WRITE
//     on disk ──► in order: SHA-256 of all so far ── cmp_check_feed          out of order: read back when what was missing has come
//       │
//       ▼ BLOB_FINISH
//     digest = manifest's?  yes: the verdict is of exactly the bytes that were signed        no: it is thrown away with the bytes
//
// Nothing is voted on, or said to anybody, before that comparison. What is fed before it came from a member of the job, over its own link or
// a relay's, and is bounded as ever: by the elements that the job's model has, unit by unit, before any is unpacked (compress/check.h).
// Whoever sends bytes that do not make up the digest has had them unpacked in vain, as often as it sends them all.
//
// A few arrivals are followed at once, each with memory for its largest unit; the one that has waited longest gives way, and is
// checked whole at its end, as is what was on disk when the agent started.
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

// Its own place, a free one, or that of the one that has waited longest.
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
        return; // checked whole at its end
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
        a->numbers = cmp_check_is_update(p, n); // masked ones hold none
    neb_sha256_add(a->sha, p, n);
    // What is wrong with it is said at the end; without memory it is looked at again there.
    if (a->numbers && cmp_check_feed(a->check, p, n) == NEB_ERR_NOMEM)
        a->numbers = false;
    a->at += n;
}

// Chunks that came before those in front of them.
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
        neb_moved_add(n); // behind a hole there may be much
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
    read_back(s, a); // all of an earlier run
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
