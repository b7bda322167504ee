// SPDX-License-Identifier: Apache-2.0
// Goodput and round-trip time of the path to one peer, from acknowledged chunks alone, without
// probes. Pure.
//
//     sent with mark {delivered 3 MB at t1} ──► … ──► acknowledged: {delivered 5 MB at t2}
//     sample = (5 − 3 MB) / (t2 − t1)        over one window, even if ACKs come in bursts
//
// A sample takes at least the time that the sender needed to send its bytes. After a lost segment
// is repaired, everything behind it is acknowledged at once. A chunk sent in the middle would
// otherwise count all of that for its own short time.
//
// Goodput is the largest sample of the last four seconds of busy time. Time with nothing in flight
// does not age it. The round trip is the smallest of the last half minute. When that is over, the
// window is one bandwidth-delay product until a new minimum is found. Otherwise the sender would
// mistake its own queue for distance and make the queue longer.
//
// A chunk sent while the path is not full shows only the load, so its sample can only raise the
// estimate. But if two complete bursts in a row take 1.5 times as long as the estimate predicts,
// the estimate is out of date and their rate replaces it. A burst still in flight replaces it at
// once if it has taken twice the predicted time. Its longest silence does not count: a lower rate
// delays every chunk, an outage makes one silence.
//
// Source: windowed maximum as in BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control",
// 2016), samples as in its delivery rate estimation (draft-cheng-iccrg-delivery-rate-estimation).
#ifndef INTER_ESTIMATE_H
#define INTER_ESTIMATE_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

enum { INTER_ESTIMATE_SLOTS = 8 };

struct inter_estimate { // all zero: nothing known yet
    double goodput_bps; // of acknowledged payload; 0: unknown
    neb_ns rtt;         // of a chunk, with its own transmission time; 0: unknown
    neb_ns rtt_at;      // when it was measured
    neb_ns drain_from;  // since when a new minimum is looked for; 0: not
    bool full;          // the goodput is what the path carried while more was waiting
    uint64_t delivered; // bytes acknowledged so far
    neb_ns delivered_at;
    neb_ns newest_sent; // when the newest acknowledged chunk had left
    neb_ns full_at;     // when more was last waiting than the window took
    neb_ns busy;        // a clock that stops while nothing is in flight
    struct {            // what was sent since nothing was in flight
        neb_ns from;
        neb_ns silence; // longest time between two acknowledgements
        uint64_t bytes;
        uint32_t chunks; // acknowledged
        bool filled;
    } burst;
    double bursts[2]; // rates of the last slow bursts
    int slow;         // slow bursts in a row
    struct inter_estimate_slot {
        int64_t epoch;     // of the busy clock, + 1; 0: empty
        double rate, full; // largest of all samples; of those that filled the path, 0: none
    } slots[INTER_ESTIMATE_SLOTS];
    double peak_bps;   // highest goodput of the last hour
    neb_ns peak_at;    // when
    neb_ns fell_at;    // since when goodput is below half of the peak; 0: it is not
    neb_ns restart_at; // of inter_estimate_restart
};

struct inter_sent { // what is remembered of a chunk when it leaves
    neb_ns at;
    neb_ns delivered_at, newest_sent; // values of the estimate at that time
    uint64_t delivered;
    uint64_t way; // used by the sender: connection that carried the chunk; 0: unknown
};

// A chunk leaves. flying: bytes in flight before it.
struct inter_sent inter_estimate_sent(struct inter_estimate *e, neb_ns now, uint64_t flying);
// More is waiting than the window or the link takes, so what is in flight shows what the path can
// do. now 0: nothing more is waiting.
void inter_estimate_full(struct inter_estimate *e, neb_ns now);
// A chunk was acknowledged for the first time. sent NULL: it is not known when it left, because it
// left twice or on an earlier connection. last: nothing else is in flight.
void inter_estimate_ack(struct inter_estimate *e, neb_ns now, uint32_t bytes, bool last,
                        const struct inter_sent *sent);
// Call before a chunk leaves while nothing is in flight. True: the path carries less than half of
// its peak of the last hour, and the caller should restart its connections in this pause
// (inter/link/link.h). Congestion control that has adapted to a slow path recovers slowly (BBR by a
// quarter in eight round trips), and short transfers do not give it that time. It is true at
// every pause at first, later once in a sixteenth of the time since the rate fell, for one hour.
bool inter_estimate_restart(struct inter_estimate *e, neb_ns now);
// The link went down: the estimate stays, what was in flight is forgotten.
void inter_estimate_lost(struct inter_estimate *e);

// Chunk size, 16 KiB to 1 MiB: at most a quarter second of goodput, and small enough that each of
// 32 connections has a chunk in the window; but large enough for INTER_CHUNKS_MAX chunks.
uint32_t inter_estimate_chunk(const struct inter_estimate *e, uint32_t blob_bytes);
// Bytes that may be in flight, 64 KiB to 64 MiB: what the path carries in seven round trips
// (without a chunk's transmission time) plus 200 ms, plus two chunks. On an unknown path 1 MiB; the
// link then takes less if it has to (inter/link/stripes.h). It is at most what the path carries in
// half the time after which a chunk counts as lost.
//
// Why so much: chunks behind a lost segment count as in flight until it is repaired, which takes
// three round trips or TCP's minimum time-out. Meanwhile all connections need something to send.
uint64_t inter_estimate_window(const struct inter_estimate *e);
// Time after which a chunk in flight counts as lost although the link is up: 10 s and four round
// trips. The first chunk of a path gets 30 s, because a slow path needs seconds for it.
neb_ns inter_estimate_patience(const struct inter_estimate *e);

#endif
