// SPDX-License-Identifier: Apache-2.0
// How much an operator lets a site send, also by time of day, and the bucket that keeps to it. Pure.
//
//     "20mbit"                          always
//     "100mbit 08:00-18:00=20mbit"      20 Mbit/s in working hours of local time, 100 otherwise
//     "none 22:00-06:00=50mbit"         over midnight; none: no limit
//
// The first window that holds the time counts, then the rate before all windows. Units: kbit, mbit, gbit (powers of ten),
// a plain number is bit/s.
//
// The bucket counts what leaves on the wire: in any interval of t seconds at most rate·t + depth bytes pass, where the depth is
// 20 ms of the rate or one message. A message may pass while the bucket is not in debt, and leaves it in debt for its length.
//
// A message is charged when it is handed over; a path that carries less than the limit puts it on the wire later. So that this does not all
// come at once when the path has recovered, a message passes only while what was charged and has not left is less than a second's
// worth: t becomes t + 1 s, and what of that second has to be repeated. Every connection has a meter of its own: what one that breaks
// leaves behind is charged again where it travels again.
#ifndef INTER_RATE_LIMIT_H
#define INTER_RATE_LIMIT_H
#include "agent/base/clock.h"
#include "agent/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { INTER_RATE_WINDOWS_MAX = 8, INTER_RATE_TEXT_MAX = 128 };

struct inter_rate_limit { // all zero: no limit
    uint64_t bps;         // outside of all windows; 0: none
    int n;
    struct inter_rate_window {
        int from_min, to_min; // minutes of the day; from > to: over midnight
        uint64_t bps;
    } windows[INTER_RATE_WINDOWS_MAX];
};
// NEB_ERR_INVALID says what is wrong. "" and "none": no limit.
NEB_MUST_CHECK enum neb_status inter_rate_limit_parse(const char *text,
                                                      struct inter_rate_limit *out);
uint64_t inter_rate_limit_at(const struct inter_rate_limit *l, int minute_of_day); // bit/s, 0: none
bool inter_rate_limit_any(const struct inter_rate_limit *l);
// Minute of the day at a time since 1970, where this machine is.
int inter_rate_minute(neb_ns wall);

struct inter_bucket {
    uint64_t bps; // 0: no limit
    double bytes; // that may pass now; below 0: debt
    neb_ns at;
    uint64_t backlog; // charged, and not on the wire yet
};
void inter_bucket_set(struct inter_bucket *b, neb_ns now, uint64_t bps); // a change keeps the debt
bool inter_bucket_ready(struct inter_bucket *b, neb_ns now);
// debt grows, whether it was ready or not
void inter_bucket_take(struct inter_bucket *b, uint64_t bytes);
neb_ns inter_bucket_when(const struct inter_bucket *b); // from when it is out of debt

struct inter_meter {  // of one connection
    uint64_t charged; // of the bytes that it will have sent
};
// A message that will be so many bytes on the wire.
void inter_meter_add(struct inter_meter *m, struct inter_bucket *b, uint64_t bytes);
// Once in a while, of every connection after inter_bucket_settle, and when one ends: it has sent so many bytes, repetitions and all. What it
// was not charged for is charged. queued: at most so many are still to go; what else it was charged for never will.
void inter_bucket_settle(struct inter_bucket *b);
void inter_meter_read(struct inter_meter *m, struct inter_bucket *b, uint64_t sent,
                      uint64_t queued);

#endif
