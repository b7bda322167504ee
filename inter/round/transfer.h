// SPDX-License-Identifier: Apache-2.0
// Transfer of one blob to one peer, pure: which chunks to send next, which are missing.
//
//     sender                                         receiver
//       ── MANIFEST (size, chunk size, SHA-256) ──►    knows what will come
//       ◄─ STATE (bitmap of what it has) ──            after every reconnect: only missing chunks travel
//       ── CHUNK i ──►  …window…                       checks, writes, acknowledges
//       ◄─ ACK i ──
//
// A broken link forgets what was in flight, never what was acknowledged; where only one of its connections broke, what was in flight on
// that one. The acknowledgement of a chunk that left twice does not say which copy
// it is of: no round trip and no rate is learned from it (Karn and Partridge, "Improving Round-Trip Time Estimates in Reliable Transport
// Protocols", 1987).
#ifndef INTER_TRANSFER_H
#define INTER_TRANSFER_H
#include "inter/record/types.h"
#include "inter/round/estimate.h"

struct inter_bitmap {
    uint8_t *bits; // owned
    uint32_t n, set;
};
// n bits, none set; freed by inter_bitmap_free. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_bitmap_init(struct inter_bitmap *b, uint32_t n);
void inter_bitmap_free(struct inter_bitmap *b);
static inline bool inter_bitmap_has(const struct inter_bitmap *b, uint32_t i) {
    return b->bits[i / 8] >> (i % 8) & 1;
}
bool inter_bitmap_set(struct inter_bitmap *b, uint32_t i); // false: was set already
// Adds the bits of wire bytes; false (and nothing changed) when their length or a bit past n is wrong.
bool inter_bitmap_merge(struct inter_bitmap *b, const uint8_t *bits, size_t len);

struct inter_sender { // one blob to one peer
    struct inter_bitmap acked, flying;
    struct inter_bitmap left, again;   // of all chunks: has left at least once; more than once
    uint32_t bytes, chunk_bytes, next; // next: where the scan goes on
    uint64_t flying_bytes;
    // the receiver's state is known since the last (re)connect, or nothing was ever sent
    bool ready;
    uint8_t backoff; // times that chunks counted as lost, since one that left once was acknowledged
    neb_ns patient_until;    // none counts as lost before: acknowledgements have yet to be read
    struct inter_sent *sent; // (n) of those that have left on this connection
};
// Of a blob of `bytes` (1 or more) in chunks of chunk_bytes, the last one shorter; nothing is acknowledged. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_sender_init(struct inter_sender *s, uint32_t bytes,
                                                 uint32_t chunk_bytes);
void inter_sender_free(struct inter_sender *s);
enum { INTER_SENDER_NONE = -1, INTER_SENDER_FULL = -2 };
// Next chunk to send, INTER_SENDER_FULL when the window does not take it, or INTER_SENDER_NONE. flying_elsewhere: of other blobs to the same peer, whose path `e` is.
int64_t inter_sender_next(struct inter_sender *s, uint64_t window, uint64_t flying_elsewhere,
                          struct inter_estimate *e, neb_ns now);
void inter_sender_unsend(struct inter_sender *s, uint32_t chunk); // the link would not take it
// Whether what inter_sender_next has just given had left before.
static inline bool inter_sender_repeats(const struct inter_sender *s, uint32_t chunk) {
    return inter_bitmap_has(&s->again, chunk);
}
// False: not news. The estimate of the path learns from it.
bool inter_sender_ack(struct inter_sender *s, uint32_t chunk, uint64_t flying_elsewhere,
                      struct inter_estimate *e, neb_ns now);
// The receiver's own word on what it holds replaces what its acknowledgements said: a receiver that was restarted, or
// whose whole blob did not match, holds less than it acknowledged. False (nothing changed): malformed. STATE and ACK
// travel in order on the control channel, so a STATE never undoes a later ACK.
NEB_MUST_CHECK bool inter_sender_state(struct inter_sender *s, const uint8_t *bits, size_t len);
// Which connection a chunk left by (inter_link_send_on), right after it did.
void inter_sender_sent_on(struct inter_sender *s, uint32_t chunk, uint64_t way);
// A connection broke (0: any may have): what flew on it is to be sent again, at once.
void inter_sender_way_lost(struct inter_sender *s, uint64_t way);
// What flew is to be sent again, once the receiver has said anew what it has (`ready`).
void inter_sender_link_lost(struct inter_sender *s);
// Chunks that have flown for longer than `timeout` are to be sent again (not before s->patient_until); after each time it is twice as long, up to eight times, and half as
// much flies, until a chunk that left once is acknowledged. So a path that is slower than anything known is not filled with copies, which would
// keep it from ever being known.
void inter_sender_expire(struct inter_sender *s, neb_ns now, neb_ns timeout);
static inline bool inter_sender_done(const struct inter_sender *s) {
    return s->acked.set == s->acked.n;
}
// Bytes of chunk i.
uint32_t inter_chunk_length(uint32_t bytes, uint32_t chunk_bytes, uint32_t i);

#endif
