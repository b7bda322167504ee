// SPDX-License-Identifier: Apache-2.0
// The log throttle: what can fail again and again (a link, a dial, an accept, a start of a process, a write) is said when it happens
// first, or the first few times, and from then on once a minute, with how often it happened.
#ifndef NEB_THROTTLE_H
#define NEB_THROTTLE_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

static const neb_ns neb_throttle_window = 60 * NEB_S;

struct neb_throttle { // all zero: nothing has happened
    neb_ns said;
    unsigned times; // since a quiet minute
    uint64_t n;     // not said, since then
};

// Whether it would be said, if it happened.
static inline bool neb_throttle_would_allow(const struct neb_throttle *q, neb_ns now,
                                            unsigned few) {
    return q->times < few || (q->said && !q->n && now - q->said >= neb_throttle_window);
}

// It happens. True: say it, as the first few times after a quiet minute.
static inline bool neb_throttle_allows(struct neb_throttle *q, neb_ns now, unsigned few) {
    if (q->said && !q->n && now - q->said >= neb_throttle_window)
        q->times = 0;
    if (q->times >= few) {
        q->n++;
        return false;
    }
    q->times++;
    q->said = now;
    return true;
}

// How often it has happened since it was said, where a minute has passed and that is to be said; 0: nothing is.
static inline uint64_t neb_throttle_suppressed(struct neb_throttle *q, neb_ns now) {
    uint64_t n = q->n;
    if (!n || now - q->said < neb_throttle_window)
        return 0;
    q->n = 0;
    q->said = now;
    return n;
}

// For one caller that has one line to say: true when it is to be said now, as the first time, or a minute after it was said last.
// *more: how often it happened in between and was not said.
static inline bool neb_throttle_line(struct neb_throttle *q, neb_ns now, uint64_t *more) {
    *more = 0;
    if (q->said && now - q->said < neb_throttle_window) {
        q->n++;
        return false;
    }
    *more = q->n;
    *q = (struct neb_throttle){.said = now, .times = 1};
    return true;
}

#endif
