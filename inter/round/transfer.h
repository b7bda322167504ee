// SPDX-License-Identifier: Apache-2.0
// Transfer of one blob to one peer: which chunks to send next, which are missing. Pure.
//
//     sender                                         receiver
//       ── MANIFEST (size, chunk size, SHA-256) ──►    knows what will come
//       ◄─ STATE (bitmap of what it has) ──            after every reconnect: only the rest follows
//       ── CHUNK i ──►  …window…                       checks, writes, acknowledges
//       ◄─ ACK i ──
//
// A broken link forgets what was in flight, never what was acknowledged. If one of its connections
// breaks, only what was in flight on that one is forgotten. The acknowledgement of a chunk that
// left twice does not tell which copy it is for, so no round trip and no rate is learned from it
// (Karn and Partridge, "Improving Round-Trip Time Estimates in Reliable Transport Protocols",
// 1987).
#ifndef INTER_TRANSFER_H
#define INTER_TRANSFER_H
#include "inter/record/types.h"
#include "inter/round/estimate.h"

struct inter_bitmap {
    uint8_t *bits; // owned
    uint32_t n, set;
};
// n bits, none set. Freed by inter_bitmap_free. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_bitmap_init(struct inter_bitmap *b, uint32_t n);
void inter_bitmap_free(struct inter_bitmap *b);
static inline bool inter_bitmap_has(const struct inter_bitmap *b, uint32_t i) {
    return b->bits[i / 8] >> (i % 8) & 1;
}
bool inter_bitmap_set(struct inter_bitmap *b, uint32_t i); // false: it was set already
// Adds bits from the wire. False: the length or a bit beyond n is wrong, and nothing has changed.
bool inter_bitmap_merge(struct inter_bitmap *b, const uint8_t *bits, size_t len);

struct inter_sender { // one blob to one peer
    struct inter_bitmap acked, flying;
    struct inter_bitmap left, again;   // chunks that left at least once; more than once
    uint32_t bytes, chunk_bytes, next; // next: where the scan continues
    uint64_t flying_bytes;
    // the receiver's state is known since the last (re)connect
    bool ready;
    // how often chunks counted as lost since an acknowledgement of a chunk that left only once
    uint8_t backoff;
    neb_ns patient_until;    // no chunk counts as lost before: ACKs wait to be read
    struct inter_sent *sent; // (n) for chunks that left on this connection
};
// A blob of `bytes` (1 or more) in chunks of chunk_bytes, the last one shorter. Nothing is
// acknowledged yet. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_sender_init(struct inter_sender *s, uint32_t bytes,
                                                 uint32_t chunk_bytes);
void inter_sender_free(struct inter_sender *s);
enum { INTER_SENDER_NONE = -1, INTER_SENDER_FULL = -2 };
// Next chunk to send. INTER_SENDER_FULL: the window does not take it. INTER_SENDER_NONE: there is
// none. flying_elsewhere: bytes of other blobs in flight to this peer. e: estimate of its path.
int64_t inter_sender_next(struct inter_sender *s, uint64_t window, uint64_t flying_elsewhere,
                          struct inter_estimate *e, neb_ns now);
void inter_sender_unsend(struct inter_sender *s, uint32_t chunk); // the link did not take it
// True if the chunk that inter_sender_next has just returned left before.
static inline bool inter_sender_repeats(const struct inter_sender *s, uint32_t chunk) {
    return inter_bitmap_has(&s->again, chunk);
}
// False: it was acknowledged before. The estimate of the path learns from it.
bool inter_sender_ack(struct inter_sender *s, uint32_t chunk, uint64_t flying_elsewhere,
                      struct inter_estimate *e, neb_ns now);
// Replaces what was acknowledged by the receiver's own state. A receiver that restarted, or whose
// complete blob did not match, holds less than it acknowledged. False: malformed, and nothing has
// changed. STATE and ACK arrive in order on one channel, so a STATE never undoes a later ACK.
NEB_MUST_CHECK bool inter_sender_state(struct inter_sender *s, const uint8_t *bits, size_t len);
// Call right after a chunk left: the connection that it left by (inter_link_send_on).
void inter_sender_sent_on(struct inter_sender *s, uint32_t chunk, uint64_t way);
// A connection broke (0: any may have): what was in flight on it is sent again at once.
void inter_sender_way_lost(struct inter_sender *s, uint64_t way);
// The link broke: what was in flight is sent again once the receiver has reported its state
// (`ready`).
void inter_sender_link_lost(struct inter_sender *s);
// Chunks in flight for longer than `timeout` are sent again, but not before s->patient_until. Each
// time doubles the timeout, up to eight times, and halves what may be in flight, until a chunk that
// left once is acknowledged. Otherwise copies would fill a path that is slower than anything known,
// and its rate would never be measured.
void inter_sender_expire(struct inter_sender *s, neb_ns now, neb_ns timeout);
static inline bool inter_sender_done(const struct inter_sender *s) {
    return s->acked.set == s->acked.n;
}
// Bytes of chunk i.
uint32_t inter_chunk_length(uint32_t bytes, uint32_t chunk_bytes, uint32_t i);

#endif
