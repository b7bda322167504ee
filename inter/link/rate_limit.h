// SPDX-License-Identifier: Apache-2.0
// An operator's limit of what a site sends, also by time of day, and the token bucket that enforces
// it. Pure.
//
//     "20mbit"                          always
//     "100mbit 08:00-18:00=20mbit"      20 Mbit/s in working hours of local time, else 100
//     "none 22:00-06:00=50mbit"         over midnight; none: no limit
//
// The first window that contains the time counts, else the rate before all windows. Units: kbit,
// mbit, gbit (powers of ten). A plain number is bit/s.
//
// The bucket counts wire bytes. In any t seconds at most rate·t + depth bytes pass; the depth is 20
// ms of the rate or one message. A message may pass while the bucket is not in debt. Its length may
// put the bucket into debt.
//
// A message is charged when it is handed over, but a slow path puts it on the wire later. When the
// path recovers, all of that could leave at once. So a message passes only while the backlog
// (charged, not sent yet) is below one second of the rate. The bound then holds for t + 1 s instead
// of t, plus retransmissions of that second. Each connection has its own meter. What a broken
// connection leaves unsent is charged again where it is sent again.
#ifndef INTER_RATE_LIMIT_H
#define INTER_RATE_LIMIT_H
#include "agent/base/clock.h"
#include "agent/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { INTER_RATE_WINDOWS_MAX = 8, INTER_RATE_TEXT_MAX = 128 };

struct inter_rate_limit { // all zero: no limit
    uint64_t bps;         // outside all windows; 0: no limit
    int n;
    struct inter_rate_window {
        int from_min, to_min; // minutes of the day; from > to: over midnight
        uint64_t bps;
    } windows[INTER_RATE_WINDOWS_MAX];
};
// "" and "none": no limit. NEB_ERR_INVALID: the log tells what is wrong.
NEB_MUST_CHECK enum neb_status inter_rate_limit_parse(const char *text,
                                                      struct inter_rate_limit *out);
// bit/s, 0: no limit
uint64_t inter_rate_limit_at(const struct inter_rate_limit *l, int minute_of_day);
bool inter_rate_limit_any(const struct inter_rate_limit *l);
// Minute of the day, local time, of a time since 1970.
int inter_rate_minute(neb_ns wall);

struct inter_bucket {
    uint64_t bps; // 0: no limit
    double bytes; // may pass now; below 0: debt
    neb_ns at;
    uint64_t backlog; // charged, but not on the wire yet
};
void inter_bucket_set(struct inter_bucket *b, neb_ns now, uint64_t bps); // keeps the debt
bool inter_bucket_ready(struct inter_bucket *b, neb_ns now);
// Adds debt, also if the bucket is not ready.
void inter_bucket_take(struct inter_bucket *b, uint64_t bytes);
neb_ns inter_bucket_when(const struct inter_bucket *b); // when the debt ends

struct inter_meter {  // of one connection
    uint64_t charged; // wire bytes charged since the connection began
};
// Charges a message. bytes: its size on the wire.
void inter_meter_add(struct inter_meter *m, struct inter_bucket *b, uint64_t bytes);
// From time to time: call settle, then inter_meter_read for every connection. Call inter_meter_read
// also when a connection ends. sent: wire bytes that it has sent, retransmissions included. What
// was not charged yet is charged. queued: at most so many bytes are still unsent; a charge for more
// is forgotten.
void inter_bucket_settle(struct inter_bucket *b);
void inter_meter_read(struct inter_meter *m, struct inter_bucket *b, uint64_t sent,
                      uint64_t queued);

#endif
