// SPDX-License-Identifier: Apache-2.0
#include "inter/round/transfer.h"

#include <stdlib.h>
#include <string.h>

enum { PATIENCE_MAX = 3, BACKOFF_MAX = 12 };

enum neb_status inter_bitmap_init(struct inter_bitmap *b, uint32_t n) {
    *b = (struct inter_bitmap){.n = n, .bits = calloc((n + 7) / 8 + 1, 1)};
    return b->bits ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for a bitmap of %u chunks", n);
}

void inter_bitmap_free(struct inter_bitmap *b) {
    free(b->bits);
    *b = (struct inter_bitmap){0};
}

bool inter_bitmap_set(struct inter_bitmap *b, uint32_t i) {
    if (i >= b->n || inter_bitmap_has(b, i))
        return false;
    b->bits[i / 8] |= (uint8_t)(1u << (i % 8));
    b->set++;
    return true;
}

static bool clear(struct inter_bitmap *b, uint32_t i) {
    if (!inter_bitmap_has(b, i))
        return false;
    b->bits[i / 8] &= (uint8_t) ~(1u << (i % 8));
    b->set--;
    return true;
}

bool inter_bitmap_merge(struct inter_bitmap *b, const uint8_t *bits, size_t len) {
    if (len != (b->n + 7) / 8 || (b->n % 8 && len && bits[len - 1] >> (b->n % 8)))
        return false;
    for (uint32_t i = 0; i < b->n; i++)
        if (bits[i / 8] >> (i % 8) & 1)
            inter_bitmap_set(b, i);
    return true;
}

enum neb_status inter_sender_init(struct inter_sender *s, uint32_t bytes, uint32_t chunk_bytes) {
    uint32_t n = inter_chunks(bytes, chunk_bytes);
    *s = (struct inter_sender){.bytes = bytes, .chunk_bytes = chunk_bytes};
    enum neb_status st = inter_bitmap_init(&s->acked, n);
    if (st == NEB_OK)
        st = inter_bitmap_init(&s->flying, n);
    if (st == NEB_OK)
        st = inter_bitmap_init(&s->left, n);
    if (st == NEB_OK)
        st = inter_bitmap_init(&s->again, n);
    if (st == NEB_OK && !(s->sent = calloc(n, sizeof *s->sent)))
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for a transfer of %u chunks", n);
    if (st != NEB_OK)
        inter_sender_free(s);
    return st;
}

void inter_sender_free(struct inter_sender *s) {
    inter_bitmap_free(&s->acked);
    inter_bitmap_free(&s->flying);
    inter_bitmap_free(&s->left);
    inter_bitmap_free(&s->again);
    free(s->sent);
    *s = (struct inter_sender){0};
}

uint32_t inter_chunk_length(uint32_t bytes, uint32_t chunk_bytes, uint32_t i) {
    uint64_t at = (uint64_t)i * chunk_bytes;
    return bytes - at < chunk_bytes ? (uint32_t)(bytes - at) : chunk_bytes;
}

static void unfly(struct inter_sender *s, uint32_t i) {
    if (clear(&s->flying, i))
        s->flying_bytes -= inter_chunk_length(s->bytes, s->chunk_bytes, i);
}

// Chunks in flight for too long may lie in the sender's own queue, with their copies behind them.
// So less of this blob may be in flight; on an unknown path one chunk.
static bool held_back(const struct inter_sender *s, uint64_t window,
                      const struct inter_estimate *e) {
    uint64_t own = e->goodput_bps > 0 ? window >> s->backoff : 0;
    return s->backoff && s->flying_bytes && s->flying_bytes + s->chunk_bytes > own;
}

int64_t inter_sender_next(struct inter_sender *s, uint64_t window, uint64_t flying_elsewhere,
                          struct inter_estimate *e, neb_ns now) {
    if (!s->ready || inter_sender_done(s) || s->acked.set + s->flying.set == s->acked.n)
        return INTER_SENDER_NONE;
    uint64_t flying = s->flying_bytes + flying_elsewhere;
    // Chunks may have been cut for a faster path. Three may be in flight, so that the path stays
    // busy.
    uint64_t least = 3 * (uint64_t)s->chunk_bytes;
    if (flying && flying + s->chunk_bytes > (window > least ? window : least)) {
        inter_estimate_full(e, now);
        return INTER_SENDER_FULL;
    }
    if (held_back(s, window, e))
        return INTER_SENDER_NONE;
    for (uint32_t k = 0; k < s->acked.n; k++) {
        uint32_t i = (s->next + k) % s->acked.n;
        if (inter_bitmap_has(&s->acked, i) || inter_bitmap_has(&s->flying, i))
            continue;
        inter_bitmap_set(&s->flying, i);
        s->flying_bytes += inter_chunk_length(s->bytes, s->chunk_bytes, i);
        s->sent[i] = inter_estimate_sent(e, now, flying);
        if (!inter_bitmap_set(&s->left, i))
            inter_bitmap_set(&s->again, i);
        s->next = i + 1;
        return i;
    }
    return INTER_SENDER_NONE;
}

void inter_sender_unsend(struct inter_sender *s, uint32_t chunk) {
    unfly(s, chunk);
    if (!inter_sender_repeats(s, chunk)) // the first copy of a repeated chunk may still arrive
        clear(&s->left, chunk);
    if (!inter_bitmap_has(&s->left, chunk))
        s->sent[chunk] = (struct inter_sent){0};
    s->next = chunk;
}

bool inter_sender_ack(struct inter_sender *s, uint32_t chunk, uint64_t flying_elsewhere,
                      struct inter_estimate *e, neb_ns now) {
    if (chunk >= s->acked.n)
        return false;
    // also for a chunk that counted as lost and was not sent again
    bool plain = s->sent[chunk].at && !inter_sender_repeats(s, chunk);
    unfly(s, chunk);
    if (!inter_bitmap_set(&s->acked, chunk))
        return false;
    s->backoff = plain ? 0 : s->backoff;
    inter_estimate_ack(e, now, inter_chunk_length(s->bytes, s->chunk_bytes, chunk),
                       s->flying_bytes + flying_elsewhere == 0, plain ? &s->sent[chunk] : NULL);
    return true;
}

bool inter_sender_state(struct inter_sender *s, const uint8_t *bits, size_t len) {
    if (len != (s->acked.n + 7) / 8 || (s->acked.n % 8 && bits[len - 1] >> (s->acked.n % 8)))
        return false;
    memset(s->acked.bits, 0, len);
    s->acked.set = 0;
    for (uint32_t i = 0; i < s->acked.n; i++)
        if (bits[i / 8] >> (i % 8) & 1) {
            unfly(s, i);
            inter_bitmap_set(&s->acked, i);
        }
    return true;
}

void inter_sender_sent_on(struct inter_sender *s, uint32_t chunk, uint64_t way) {
    s->sent[chunk].way = way;
}

void inter_sender_way_lost(struct inter_sender *s, uint64_t way) {
    for (uint32_t i = s->flying.n; s->flying.set && i-- > 0;)
        if (inter_bitmap_has(&s->flying, i) && (!way || s->sent[i].way == way)) {
            unfly(s, i);
            s->next = i;
        }
}

void inter_sender_link_lost(struct inter_sender *s) {
    memset(s->flying.bits, 0, (s->flying.n + 7) / 8);
    memset(s->sent, 0, s->flying.n * sizeof *s->sent);
    s->flying.set = 0;
    s->flying_bytes = 0;
    s->backoff = 0;
    s->next = 0;
    s->ready = false;
}

void inter_sender_expire(struct inter_sender *s, neb_ns now, neb_ns timeout) {
    uint32_t flew = s->flying.set;
    timeout <<= s->backoff < PATIENCE_MAX ? s->backoff : PATIENCE_MAX;
    if (now < s->patient_until)
        return;
    for (uint32_t i = 0; s->flying.set && i < s->flying.n; i++)
        if (inter_bitmap_has(&s->flying, i) && now - s->sent[i].at > timeout)
            unfly(s, i);
    if (s->flying.set < flew && s->backoff < BACKOFF_MAX)
        s->backoff++;
}
