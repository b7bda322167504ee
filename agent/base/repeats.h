// SPDX-License-Identifier: Apache-2.0
// Repeated log lines. An identical line is logged once, then once a minute with a count. Lines that
// differ only in numbers (a round, a port, a byte count) are handled the same way after the first
// few of a minute. It is the last resort behind the throttles of single callers (throttle.h): a
// failing loop cannot flood the log.
//
// Pure: the caller passes the time. Memory is fixed: a new line replaces the oldest entry.
#ifndef NEB_REPEATS_H
#define NEB_REPEATS_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NEB_REPEATS = 64, NEB_REPEATS_TEXT = 240, NEB_REPEATS_ALIKE = 10 };

struct neb_repeat {
    uint64_t hash; // of the line; 0: this entry is free
    neb_ns since;  // start of its minute
    unsigned said; // lines logged in this minute
    uint64_t n;    // lines suppressed in this minute
    bool alike;    // counts lines that differ only in numbers
    int level;
    char text[NEB_REPEATS_TEXT];
};

struct neb_repeats { // starts as all zero
    struct neb_repeat e[NEB_REPEATS];
};

// True if the caller should log this line now.
bool neb_repeats_says(struct neb_repeats *r, neb_ns now, int level, const char *text);
// Writes the next pending count that is over a minute old as a log line. False: none is due.
bool neb_repeats_due(struct neb_repeats *r, neb_ns now, int *level, char *out, size_t cap);

#endif
