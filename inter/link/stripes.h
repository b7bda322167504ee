// SPDX-License-Identifier: Apache-2.0
// How many parallel connections fill a link: found by trying, pure.
//
// A TCP connection that loses packets fills only part of a long path; several share the loss. How many help depends on loss, delay
// and congestion control, none of which is known, so the number is doubled while that raises the rate by more than a tenth, and
// the last doubling that gained nothing is taken back. Losses come in lumps: what is not clear at a first look is measured three times
// as long, and a small gain must hold against a second look at the smaller number; otherwise luck takes a full link to 32 connections,
// which only queue. What is measured is the rate while more was waiting than the link took; pauses do not count, so that short
// transfers add up to one measurement.
//
//     2 ─► 4 ─► 8 ─► 16      80, 88 then 89 Mbit/s: back to 4, held for a minute
//     2 ─► 4 ─► 16           10, then 19: twice the connections brought nearly twice the rate, so four times as many are tried
//
// On a slow link many connections are too many: what is in flight is one bandwidth-delay product for all of them, and a connection with
// less than four segments of it repairs losses by time-outs, or, under BBR, keeps more in flight than it should. So below 4 Mbit/s a
// connection is to have four segments of it (BBR: 32); where it has not, fewer are tried. A tenth less is taken back: under loss even such
// connections can help.
//
// So one connection begins, with 64 KiB at most under way, and the others follow as soon as 32 KiB have crossed, unless these took longer
// than on a path where the first windows of all of them are no queue of seconds. (At 64 kbit/s they are one of 12, behind which both sides
// take each other for dead.)
//
// It is tried again after the hold, which is twice as long after each trial that gained nothing, up to a quarter of an hour: on a link that is
// full, every one costs some seconds. A trial that gains, or a rate that falls by a third, makes it a minute again, and the latter also ends
// it. Where the first number is known to fill most links, the first
// trial waits as long: connections that start on a full link cost it a tenth for some seconds.
#ifndef INTER_STRIPES_H
#define INTER_STRIPES_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

// Few transfers last long enough to find out by trying. Where a loss makes a connection slow down (CUBIC, Reno), more of them are needed:
// at 100 Mbit/s, 100 ms and 0.1 % loss 8 carried 80, 16 96; at 20 Mbit/s, 200 ms and 1 % one BBR stream of iperf3 carried 17.8, eight 19.6.
enum { INTER_STRIPES_FIRST = 16, INTER_STRIPES_FIRST_BBR = 8 };
enum {
    INTER_STRIPES_FIRST_BYTES = 64 << 10
}; // that may be under way before it is known whether the path is slow: 8 s of 64 kbit/s

struct inter_stripes {
    uint32_t use, max;   // connections to send on; never above max
    uint32_t first;      // that follow when the path is not slow; 0: it is known whether it is
    bool slow;           // they took long, and no rate has been measured since
    uint32_t from;       // while one is on trial: the number before
    double rate, before; // bit/s: last measurement; of the next smaller number (0: none)
    bool trying;         // use is on trial against before
    bool doubted;  // and was not clearly better at a first look: it is measured three times as long
    bool likely;   // the first number is taken to do, for a minute
    bool fewer;    // a smaller number is on trial, because the link is slow
    bool again;    // it was a little better: the smaller number is measured once more
    uint32_t more; // then: the number that was on trial,
    double tried;  // and its rate
    neb_ns hold_until, last;
    neb_ns fewer_at; // when a smaller number may be tried again
    neb_ns rtt;      // smallest seen: without what these connections queue
    uint32_t failed; // trials in a row that gained nothing
    uint64_t bytes;  // of the measurement that is going on
    neb_ns busy;
    bool was_busy;
    neb_ns skip; // busy time that is not counted yet: a new connection is still starting
};

// likely: `first` fills the link as far as is known, as with BBR; more are tried after a minute. first == max: pinned.
void inter_stripes_init(struct inter_stripes *s, uint32_t first, uint32_t max, bool likely);
// Bytes that may be under way on all of them at once.
static inline uint64_t inter_stripes_room(const struct inter_stripes *s, uint64_t usual) {
    return (s->first || s->slow) && usual > INTER_STRIPES_FIRST_BYTES ? INTER_STRIPES_FIRST_BYTES
                                                                      : usual;
}
// Connections to have open: also those that are about to follow.
static inline uint32_t inter_stripes_open(const struct inter_stripes *s) {
    return s->first > s->use ? s->first : s->use;
}
// Said on every pass: bytes acknowledged since the last call (while `first`: by the peer's kernel), whether more waits than the link takes, and
// the round trip (0: not known). True: the number has changed.
bool inter_stripes_step(struct inter_stripes *s, neb_ns now, uint64_t acked, bool busy, neb_ns rtt);

#endif
