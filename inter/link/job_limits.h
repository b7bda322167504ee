// SPDX-License-Identifier: Apache-2.0
// The limits of rate that jobs bring along (wan.rate_limit), and whose traffic each one is for. Pure.
//
//     this site's own job      all that the site sends, as its operator's --rate-limit: the link keeps to the smallest of them
//     another member's job     that job's updates, batches and snapshots alone; no other job waits for them
//
// What a job of another member sends is charged as it is handed to the link; what TCP repeats, and small messages, are not.
#ifndef INTER_JOB_LIMITS_H
#define INTER_JOB_LIMITS_H
#include "inter/link/rate_limit.h"
#include "inter/record/types.h"

enum { INTER_JOB_LIMITS_MAX = 16 };

struct inter_job_limits { // all zero: none
    int n;
    struct inter_job_limit {
        uint8_t job[INTER_ID_BYTES];
        struct inter_rate_limit limit;
        bool whole;                 // of all that the site sends
        bool waits;                 // something of it was held back
        struct inter_bucket bucket; // unless whole
    } of[INTER_JOB_LIMITS_MAX];
};

// NULL, or no limit: none any more. Beyond INTER_JOB_LIMITS_MAX a job has none.
void inter_job_limits_set(struct inter_job_limits *l, const uint8_t job[INTER_ID_BYTES],
                          const struct inter_rate_limit *limit, bool whole);
// Takes the rates of this minute of the day; returns the smallest that is for all, bit/s, 0: none.
uint64_t inter_job_limits_apply(struct inter_job_limits *l, neb_ns now, int minute);
// Whether a message of the job may be sent now; false: not before inter_job_limits_due.
bool inter_job_limits_pass(struct inter_job_limits *l, const uint8_t job[INTER_ID_BYTES],
                           neb_ns now);
// It was: so many bytes on the wire.
void inter_job_limits_sent(struct inter_job_limits *l, const uint8_t job[INTER_ID_BYTES],
                           uint64_t bytes);
// When something that was held back may pass; INT64_MAX: nothing was.
neb_ns inter_job_limits_due(const struct inter_job_limits *l);
bool inter_job_limits_resumes(struct inter_job_limits *l, neb_ns now); // true once

#endif
