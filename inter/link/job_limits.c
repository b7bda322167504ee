// SPDX-License-Identifier: Apache-2.0
#include "inter/link/job_limits.h"

#include <string.h>

static struct inter_job_limit *find(struct inter_job_limits *l, const uint8_t job[INTER_ID_BYTES]) {
    for (int i = 0; i < l->n; i++)
        if (!memcmp(l->of[i].job, job, INTER_ID_BYTES))
            return &l->of[i];
    return NULL;
}

void inter_job_limits_set(struct inter_job_limits *l, const uint8_t job[INTER_ID_BYTES],
                          const struct inter_rate_limit *limit, bool whole) {
    struct inter_job_limit *x = find(l, job);
    if (!limit || !inter_rate_limit_any(limit)) {
        if (x)
            *x = l->of[--l->n];
        return;
    }
    if (!x && l->n == INTER_JOB_LIMITS_MAX)
        return;
    if (!x) {
        x = &l->of[l->n++];
        *x = (struct inter_job_limit){.whole = whole};
        memcpy(x->job, job, INTER_ID_BYTES);
    }
    x->limit = *limit;
    x->whole = whole;
}

uint64_t inter_job_limits_apply(struct inter_job_limits *l, neb_ns now, int minute) {
    uint64_t least = 0;
    for (int i = 0; i < l->n; i++) {
        struct inter_job_limit *x = &l->of[i];
        uint64_t bps = inter_rate_limit_at(&x->limit, minute);
        inter_bucket_set(&x->bucket, now, x->whole ? 0 : bps);
        if (x->whole && bps && (!least || bps < least))
            least = bps;
    }
    return least;
}

bool inter_job_limits_pass(struct inter_job_limits *l, const uint8_t job[INTER_ID_BYTES],
                           neb_ns now) {
    struct inter_job_limit *x = find(l, job);
    bool pass = !x || inter_bucket_ready(&x->bucket, now);
    if (!pass)
        x->waits = true;
    return pass;
}

void inter_job_limits_sent(struct inter_job_limits *l, const uint8_t job[INTER_ID_BYTES],
                           uint64_t bytes) {
    struct inter_job_limit *x = find(l, job);
    if (x)
        inter_bucket_take(&x->bucket, bytes);
}

neb_ns inter_job_limits_due(const struct inter_job_limits *l) {
    neb_ns due = INT64_MAX;
    for (int i = 0; i < l->n; i++) {
        neb_ns when = inter_bucket_when(&l->of[i].bucket);
        due = l->of[i].waits && when < due ? when : due;
    }
    return due;
}

bool inter_job_limits_resumes(struct inter_job_limits *l, neb_ns now) {
    bool any = false;
    for (int i = 0; i < l->n; i++) {
        struct inter_job_limit *x = &l->of[i];
        bool ready = x->waits && inter_bucket_ready(&x->bucket, now);
        x->waits = x->waits && !ready;
        any = any || ready;
    }
    return any;
}
