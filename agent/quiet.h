// What others can make happen without end is said when it happens first, or the first few times, and from then on once a minute, by its
// number.
#ifndef AGENT_QUIET_H
#define AGENT_QUIET_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

static const neb_ns agent_quiet_for = 60 * NEB_S;

struct agent_quiet { // all zero: nothing has happened
    neb_ns said;
    unsigned times; // since a quiet minute
    uint64_t n;     // not said, since then
};

// Whether it would be said, if it happened.
static inline bool agent_quiet_would(const struct agent_quiet *q, neb_ns now, unsigned few) {
    return q->times < few || (q->said && !q->n && now - q->said >= agent_quiet_for);
}

// It happens. True: say it, as the first few times after a quiet minute.
static inline bool agent_quiet_says(struct agent_quiet *q, neb_ns now, unsigned few) {
    if (q->said && !q->n && now - q->said >= agent_quiet_for)
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
static inline uint64_t agent_quiet_due(struct agent_quiet *q, neb_ns now) {
    uint64_t n = q->n;
    if (!n || now - q->said < agent_quiet_for)
        return 0;
    q->n = 0;
    q->said = now;
    return n;
}

#endif
