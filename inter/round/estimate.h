// SPDX-License-Identifier: Apache-2.0
// Goodput and round-trip time of the path to one peer, from acknowledged chunks alone: no probes. Pure.
//
//     sent with mark {delivered 3 MB at t1} ──► … ──► acknowledged: {delivered 5 MB at t2}
//     sample = (5 − 3 MB) / (t2 − t1)        over one window's time, whatever bursts the acknowledgements come in
//
// The time is at least what the sender took to send those bytes: where a lost segment held back what came behind it, all of that is
// acknowledged at once when it is repaired, and a chunk that leaves in the middle would take the rest of it for its own.
//
// Goodput is the largest sample of the last four seconds of busy time: time in which nothing travels does not make it old. The round trip
// is the smallest of the last half minute; then the window is one bandwidth-delay product until a new one is found, since what this sender
// itself queues would be taken for distance otherwise, and answered by more of it. A sample of a chunk that was sent when the sender had
// little to say (not enough to fill the path) can only raise the estimate: it says what was asked of the path, not what it can do. But when
// two whole bursts in a row take half as long again as the estimate has it, it is out of date, and their own rates take its place. What
// travels steadily and has taken twice as long as it should have, the longest silence left out, is believed at once, before the burst
// is over: a rate that fell shows in every chunk, a path that was dead for a while in one silence.
//
// Source: windowed maximum as in BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016), samples as in its delivery rate
// estimation (draft-cheng-iccrg-delivery-rate-estimation).
#ifndef INTER_ESTIMATE_H
#define INTER_ESTIMATE_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

enum { INTER_ESTIMATE_SLOTS = 8 };

struct inter_estimate { // all zero: nothing known yet
    double goodput_bps; // of acknowledged payload; 0: unknown
    neb_ns rtt;         // of a chunk, its own time on the line included; 0: unknown
    neb_ns rtt_at;      // when it was found
    neb_ns drain_from;  // since when a new one is looked for; 0: not
    bool full;          // the goodput is what the path carried when it was asked for more
    uint64_t delivered; // bytes acknowledged so far
    neb_ns delivered_at;
    neb_ns newest_sent; // of the chunk that was acknowledged last: when it had left
    neb_ns full_at;     // when there was last more to send than the window took
    neb_ns busy;        // a clock that stands still while nothing travels
    struct {            // what was sent since the path was last empty
        neb_ns from;
        neb_ns silence; // the longest time between two acknowledgements
        uint64_t bytes;
        uint32_t chunks; // acknowledged
        bool filled;
    } burst;
    double bursts[2]; // rates of the last that were slow
    int slow;         // how many were, in a row
    struct inter_estimate_slot {
        int64_t epoch;     // of the busy clock, + 1; 0: empty
        double rate, full; // largest of all samples; of those that filled the path, 0: none
    } slots[INTER_ESTIMATE_SLOTS];
    double peak_bps;   // the most that it was in the last hour
    neb_ns peak_at;    // when
    neb_ns fell_at;    // since when it is less than half of that (0: it is not)
    neb_ns restart_at; // inter_estimate_restart
};

struct inter_sent { // what is remembered of a chunk when it leaves
    neb_ns at;
    neb_ns delivered_at, newest_sent; // the estimate's at that time
    uint64_t delivered;
    uint64_t way; // its sender's: the connection it went on; 0: not known
};

// A chunk leaves. flying: bytes that travel already.
struct inter_sent inter_estimate_sent(struct inter_estimate *e, neb_ns now, uint64_t flying);
// There is more to send than the window, or the link, takes: what flies now tells what the path can do. now 0: there was not.
void inter_estimate_full(struct inter_estimate *e, neb_ns now);
// It was acknowledged for the first time. *sent NULL: not known when it left (of an earlier connection).
// last: nothing else travels.
void inter_estimate_ack(struct inter_estimate *e, neb_ns now, uint32_t bytes, bool last,
                        const struct inter_sent *sent);
// Before a chunk leaves while nothing travels. True: the path carries less than half of what it did within the hour, and its connections
// should find out anew how much that is (inter/link/link.h) while they have a pause: what congestion control learned on a slow path it
// unlearns slowly, by a quarter every eight round trips (BBR) of transfers that last no longer than that. At every pause at first,
// then every sixteenth of the time since the rate fell, until that is an hour ago.
bool inter_estimate_restart(struct inter_estimate *e, neb_ns now);
// The link went down: the estimate stays, what travelled is forgotten.
void inter_estimate_lost(struct inter_estimate *e);

// Chunk of at most a quarter second of goodput, and small enough that 32 connections all have one in the window; in 16 KiB..1 MiB.
uint32_t inter_estimate_chunk(const struct inter_estimate *e, uint32_t blob_bytes);
// Bytes in flight: what the path carries in seven round trips (of nothing: less a chunk's own time) and 200 ms, and two chunks, in 64 KiB..64 MiB; of a path of which nothing is known 1 MiB, of which the link takes what it dares (inter/link/stripes.h). What came behind a lost segment,
// or whose acknowledgement did, counts as in flight until that is repaired, which takes three round trips, or TCP's least time-out; meanwhile
// all connections are to have something to send. At 20 Mbit/s, 200 ms and 1 % loss, eight BBR connections: 17.7 to 18.6 Mbit/s with four
// bandwidth-delay products, 19.3 to 19.9 with eight (iperf3: 19.3). At most what the path carries in half the time after which a chunk counts
// as lost.
uint64_t inter_estimate_window(const struct inter_estimate *e);
// After which a chunk in flight on a link that stays up counts as lost: 10 s and four round trips. The first one of a path may take 30 s: at
// 64 kbit/s it has 8 s on the line, behind what else begins there.
neb_ns inter_estimate_patience(const struct inter_estimate *e);

#endif
