// SPDX-License-Identifier: Apache-2.0
// A token bucket: at most `most` units at once, refilled with `a_second` units a second. An
// all-zero bucket is full. Not thread-safe.
#ifndef NEB_BUCKET_H
#define NEB_BUCKET_H
#include "agent/base/clock.h"

#include <stdbool.h>

struct neb_bucket {
    neb_ns at; // when `used` was computed; 0: never used
    double used;
};

// The number of units that the bucket holds now.
static inline double neb_bucket_left(const struct neb_bucket *b, neb_ns now, double most,
                                     double a_second) {
    double used = b->at ? b->used - neb_seconds(now - b->at) * a_second : 0;
    return used > 0 ? most - used : most;
}
static inline void neb_bucket_use(struct neb_bucket *b, neb_ns now, double n, double most,
                                  double a_second) {
    b->used = most - neb_bucket_left(b, now, most, a_second) + n;
    b->at = now;
}
// Takes n units (n <= most). False if the bucket holds fewer; then it takes nothing.
static inline bool neb_bucket_take(struct neb_bucket *b, neb_ns now, double n, double most,
                                   double a_second) {
    if (neb_bucket_left(b, now, most, a_second) < n)
        return false;
    neb_bucket_use(b, now, n, most, a_second);
    return true;
}

#endif
