// SPDX-License-Identifier: Apache-2.0
// The log throttle of one event that can repeat (a link, a dial, an accept, a process start, a
// write). The first few events are logged; after that one line a minute gives the number of the
// others.
#ifndef NEB_THROTTLE_H
#define NEB_THROTTLE_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

static const neb_ns neb_throttle_window = 60 * NEB_S;

struct neb_throttle { // all zero: no event yet
    neb_ns said;
    unsigned times; // events logged since the last minute without one
    uint64_t n;     // events not logged since `said`
};

// True if the next event would be logged.
static inline bool neb_throttle_would_allow(const struct neb_throttle *q, neb_ns now,
                                            unsigned few) {
    return q->times < few || (q->said && !q->n && now - q->said >= neb_throttle_window);
}

// Counts one event. True: the caller logs it. At most `few` are logged until a minute without
// events.
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

// The number of events that were not logged, once a minute has passed since the last line: the
// caller logs it. 0: nothing to log.
static inline uint64_t neb_throttle_suppressed(struct neb_throttle *q, neb_ns now) {
    uint64_t n = q->n;
    if (!n || now - q->said < neb_throttle_window)
        return 0;
    q->n = 0;
    q->said = now;
    return n;
}

// For an event with one line: true if the caller logs it now, as the first one or a minute after
// the last line. *more: events that were not logged in between.
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
