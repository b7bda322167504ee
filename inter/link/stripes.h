// SPDX-License-Identifier: Apache-2.0
// How many parallel connections fill a link, found by trying. Pure.
//
// A TCP connection that loses packets fills only part of a long path, and several share the loss.
// How many help depends on loss, delay and congestion control, which are not known. So the number
// doubles while that raises the rate by more than a tenth. The last doubling without gain is taken
// back. The rate counts only while more waits than the link takes, so short transfers add up to one
// measurement.
//
//     2 ─► 4 ─► 8 ─► 16      80, 88 then 89 Mbit/s: back to 4, held for a minute
//     2 ─► 4 ─► 16           10, then 19 Mbit/s: nearly twice the rate, so next four times as many
//
// Losses come in bursts. A first measurement without a clear gain is repeated over three times the
// time. A small gain must also hold against a second measurement of the smaller number. Otherwise
// chance takes a full link to 32 connections, which only queue.
//
// On a slow link, many connections are too many. They share one bandwidth-delay product. A
// connection with less than four segments in flight repairs losses by time-outs, and BBR keeps more
// in flight than it should. So below 4 Mbit/s each connection gets at least four segments (BBR:
// 32), and if the link has less, fewer connections are tried. If that costs more than a tenth, it
// is taken back: under loss, connections with fewer segments can help.
//
// The start is one connection with at most 64 KiB in flight. When 32 KiB have crossed, their rate
// shows how long the first windows of all connections would queue. The others follow when that is
// no queue of seconds. A longer queue would delay heartbeats until both sides take each other for
// dead.
//
// After a trial without gain, the next one waits for the hold: one minute, doubled after each trial
// without gain, up to 16 minutes, because a trial on a full link costs some seconds of rate. A
// trial with gain resets the hold to a minute. A rate that falls by a third resets it and ends it.
// If the first number probably fills the link, the first trial waits for the hold too.
#ifndef INTER_STRIPES_H
#define INTER_STRIPES_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

// The first numbers, since few transfers last long enough to find out by trying. Where a loss slows
// a connection down (CUBIC, Reno), more are needed.
enum { INTER_STRIPES_FIRST = 16, INTER_STRIPES_FIRST_BBR = 8 };
enum { INTER_STRIPES_FIRST_BYTES = 64 << 10 };

struct inter_stripes {
    uint32_t use, max;   // connections to send on; never above max
    uint32_t first;      // number to use if the path is not slow; 0: that is decided
    bool slow;           // the path looked slow, and no rate has been measured since
    uint32_t from;       // the number before the trial
    double rate, before; // bit/s: last measurement; that of the number before the trial (0: none)
    bool trying;         // a larger number is on trial
    bool doubted;        // it was not clearly better: measured once more, three times as long
    bool likely;         // the first number probably fills the link: no trial in the first minute
    bool fewer;          // a smaller number is on trial, because the link is slow
    bool again;          // the gain was small: the smaller number is measured again
    uint32_t more;       // in that case: the number that was on trial
    double tried;        // and its rate
    neb_ns hold_until, last;
    neb_ns fewer_at; // when a smaller number may be tried again
    neb_ns rtt;      // the smallest seen, so without our own queue
    uint32_t failed; // trials in a row without gain
    uint64_t bytes;  // of the current measurement
    neb_ns busy;
    bool was_busy;
    neb_ns skip; // busy time not to count: new connections are still starting
};

// likely: `first` probably fills the link, as with BBR; larger numbers are tried after a minute.
// first == max: the number is fixed.
void inter_stripes_init(struct inter_stripes *s, uint32_t first, uint32_t max, bool likely);
// Limit of bytes in flight on all of them together. usual: the limit on a path that is not slow.
static inline uint64_t inter_stripes_room(const struct inter_stripes *s, uint64_t usual) {
    return (s->first || s->slow) && usual > INTER_STRIPES_FIRST_BYTES ? INTER_STRIPES_FIRST_BYTES
                                                                      : usual;
}
// Number of connections to have open, including those that follow soon.
static inline uint32_t inter_stripes_open(const struct inter_stripes *s) {
    return s->first > s->use ? s->first : s->use;
}
// Call on every pass. acked: bytes acknowledged since the last call (while `first`: by the peer's
// kernel). busy: more waits than the link takes. rtt: the round trip (0: not known). True: `use`
// has changed.
bool inter_stripes_step(struct inter_stripes *s, neb_ns now, uint64_t acked, bool busy, neb_ns rtt);

#endif
