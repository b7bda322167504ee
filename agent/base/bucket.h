// SPDX-License-Identifier: Apache-2.0
// How much of something may happen: so much at once, then so much a second. All zero is a full one.
#ifndef NEB_BUCKET_H
#define NEB_BUCKET_H
#include "agent/base/clock.h"

#include <stdbool.h>

struct neb_bucket {
    neb_ns at; // of `used`; 0: never taken from
    double used;
};

// What is in it now.
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
// False: not so much is left, and nothing is taken. n <= most.
static inline bool neb_bucket_take(struct neb_bucket *b, neb_ns now, double n, double most,
                                   double a_second) {
    if (neb_bucket_left(b, now, most, a_second) < n)
        return false;
    neb_bucket_use(b, now, n, most, a_second);
    return true;
}

#endif
