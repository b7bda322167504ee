// SPDX-License-Identifier: Apache-2.0
// Rate limits from jobs (wan.rate_limit), and the traffic that each one limits. Pure.
//
//     this site's own job      all that the site sends, like --rate-limit: the smallest one counts
//     another member's job     only that job's updates, batches and snapshots; no other job waits
//
// Traffic of another member's job is charged when it goes to the link. Retransmissions and small
// messages are not charged.
#ifndef INTER_JOB_LIMITS_H
#define INTER_JOB_LIMITS_H
#include "inter/link/rate_limit.h"
#include "inter/record/types.h"

enum { INTER_JOB_LIMITS_MAX = 16 };

struct inter_job_limits { // all zero: no limits
    int n;
    struct inter_job_limit {
        uint8_t job[INTER_ID_BYTES];
        struct inter_rate_limit limit;
        bool whole;                 // limits all that the site sends
        bool waits;                 // a message of the job was held back
        struct inter_bucket bucket; // not used if whole
    } of[INTER_JOB_LIMITS_MAX];
};

// limit NULL or without a rate: removes the job's limit. A job that finds no room
// (INTER_JOB_LIMITS_MAX) gets no limit.
void inter_job_limits_set(struct inter_job_limits *l, const uint8_t job[INTER_ID_BYTES],
                          const struct inter_rate_limit *limit, bool whole);
// Applies the rates of this minute of the day. Returns the smallest limit of the site, bit/s; 0:
// none.
uint64_t inter_job_limits_apply(struct inter_job_limits *l, neb_ns now, int minute);
// True if a message of the job may be sent now. False: not before inter_job_limits_due.
bool inter_job_limits_pass(struct inter_job_limits *l, const uint8_t job[INTER_ID_BYTES],
                           neb_ns now);
// Charges a message of the job that was sent. bytes: its size on the wire.
void inter_job_limits_sent(struct inter_job_limits *l, const uint8_t job[INTER_ID_BYTES],
                           uint64_t bytes);
// When a message that was held back may pass; INT64_MAX: none was.
neb_ns inter_job_limits_due(const struct inter_job_limits *l);
bool inter_job_limits_resumes(struct inter_job_limits *l, neb_ns now); // true once

#endif
