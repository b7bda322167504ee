// SPDX-License-Identifier: Apache-2.0
// Lines of a log that are said again and again. The same line is said once, and from then on once a minute, with how often it came. So
// are lines that differ in numbers alone (a round, a port, a byte count), after the first few of a minute. It is the last resort behind
// the throttles of those who know what they say (throttle.h): whatever fails in a loop, the log is not flooded with it.
//
// Pure: the time is the caller's. The memory is fixed: when all places are taken, the oldest goes.
#ifndef NEB_REPEATS_H
#define NEB_REPEATS_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NEB_REPEATS = 64, NEB_REPEATS_TEXT = 240, NEB_REPEATS_ALIKE = 10 };

struct neb_repeat {
    uint64_t hash; // of the line; 0: this place is free
    neb_ns since;  // its minute began
    unsigned said; // in it
    uint64_t n;    // not said, in it
    bool alike;    // of all lines that differ in numbers alone
    int level;
    char text[NEB_REPEATS_TEXT];
};

struct neb_repeats { // all zero to begin with
    struct neb_repeat e[NEB_REPEATS];
};

// Whether this line is to be said now.
bool neb_repeats_says(struct neb_repeats *r, neb_ns now, int level, const char *text);
// The next of those that were left out more than a minute ago, as a line with how often; false: none is due.
bool neb_repeats_due(struct neb_repeats *r, neb_ns now, int *level, char *out, size_t cap);

#endif
