// SPDX-License-Identifier: Apache-2.0
// The model of one direction of an emulated link: arithmetic on times and lengths, without I/O and
// without a clock.
//
//     offered ──▶ [ drop-tail queue ] ──▶ line at `rate` ──▶ loss, hold-back ──▶ delay ± jitter
//                                                                                ──▶ delivered
//
// Serialisation is virtual: a packet of n bytes occupies the line for 8n/rate, after the packet
// before it. The backlog of the queue is what the line still has to send. A lost packet has used
// the line, as on a real link. Lengths are those of IP packets.
//
// Chance: whether packet k of a direction is lost or held back depends on (seed, k) only. The same
// sequence of packets has the same fate in every run, whatever its timing.
//
// Jitter is a slow wander: uniform values in [-jitter, +jitter] at points 10·jitter (at least 20
// ms) apart, joined by straight lines. The slope stays at or below 0.2, so jitter never reorders;
// its mean is zero. Only `reorder` lets packets pass each other: a chosen packet is held back by 1
// ms plus the time of three full packets.
#ifndef WANLINK_LINK_H
#define WANLINK_LINK_H
#include "agent/base/clock.h"
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wan_params {
    uint64_t rate_bps;    // bits per second; 0 = unlimited
    neb_ns delay;         // one way, without serialisation and queue
    neb_ns jitter;        // half width
    double loss, reorder; // probabilities, 0..1
    uint64_t queue_bytes; // limit of the backlog; ignored when queue_bdp > 0
    double queue_bdp;     // limit in units of rate × 2·delay, at least 64 KiB
    bool down;            // black hole: drops every packet
};

enum wan_fate {
    WAN_PASS,       // deliver at the given time, in order
    WAN_LATE,       // deliver at the given time; others may pass it
    WAN_LOST,       // lost by chance
    WAN_QUEUE_FULL, // dropped at the tail of the queue
    WAN_DOWN,       // black hole
};

struct wan_stats {
    uint64_t offered_packets, offered_bytes;
    uint64_t delivered_packets, delivered_bytes;
    uint64_t lost_packets, queue_dropped_packets, down_dropped_packets, reordered_packets;
    uint64_t dropped_bytes; // of the lost, queue-dropped and down-dropped packets together
};

struct wan_link {
    struct wan_params p;
    uint64_t seed;       // of this direction
    uint64_t index;      // packets offered so far
    neb_ns busy_until;   // when the line has sent all that it has accepted
    neb_ns last_deliver; // of the last in-order packet; the next one is not earlier
    struct wan_stats stats;
};

// The link from site `from` to site `to`. Directions draw independent chances from one seed.
struct wan_link wan_link_make(const struct wan_params *p, uint64_t seed, unsigned from,
                              unsigned to);
// Changes the parameters at time `now`. The line sends its backlog at the new rate. Packets
// accepted before keep their delivery time, and new packets do not overtake them.
void wan_link_set(struct wan_link *l, const struct wan_params *p, neb_ns now);
// The fate of a packet of `len` bytes that is offered at `now`. Sets *deliver for WAN_PASS and
// WAN_LATE. Counts everything except the delivery: the caller counts that when it happens, because
// the link may go down before.
enum wan_fate wan_link_offer(struct wan_link *l, neb_ns now, size_t len, neb_ns *deliver);
// Bytes accepted that the line has not sent yet.
uint64_t wan_link_backlog_bytes(const struct wan_link *l, neb_ns now);
uint64_t wan_link_queue_limit(const struct wan_params *p); // bytes
// Memory for all packets accepted but not delivered: the queue and what is in flight, with room to
// spare.
size_t wan_link_buffer_bytes(const struct wan_params *p);
neb_ns wan_line_time(uint64_t rate_bps, uint64_t bytes); // 8·bytes/rate; 0 when unlimited

// Packets in the order of their delivery, in one ring of bytes. A record is contiguous:
//     | struct wan_record | data, padded to 8 | record | data | …   (wraps only between records)
struct wan_fifo;
struct wan_record {
    neb_ns deliver;
    uint32_t len;  // bytes of data
    uint32_t segs; // packets on the emulated line (a TCP super-packet holds many)
    uint64_t wire; // their bytes on the line
};
NEB_MUST_CHECK enum neb_status wan_fifo_create(size_t cap_bytes, struct wan_fifo **out);
void wan_fifo_destroy(struct wan_fifo **f);
// Makes the ring at least this large and keeps its content. NEB_ERR_NOMEM: it is unchanged.
NEB_MUST_CHECK enum neb_status wan_fifo_reserve(struct wan_fifo *f, size_t cap_bytes);
// Appends a record. The caller fills the returned r.len bytes before the next call. NULL: the ring
// is full.
uint8_t *wan_fifo_push(struct wan_fifo *f, struct wan_record r);
// True if a record with `len` bytes of data fits now.
bool wan_fifo_fits(const struct wan_fifo *f, size_t len);
// The oldest record and its data, valid until pop, push or reserve. False: the ring is empty.
bool wan_fifo_head(const struct wan_fifo *f, struct wan_record *r, uint8_t **data);
void wan_fifo_pop(struct wan_fifo *f);
// The sum of `len` over all records.
uint64_t wan_fifo_bytes(const struct wan_fifo *f);

#endif
