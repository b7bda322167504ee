// SPDX-License-Identifier: Apache-2.0
// How long something took, as it would on a machine of its own. Where other processes took processors away from this one's
// threads meanwhile (the kernel counts it: schedstat), the time that the threads ran stands for the time that passed.
#ifndef AGENT_PROFILE_CLOCK_H
#define AGENT_PROFILE_CLOCK_H
#include "agent/base/clock.h"

struct profile_clock {
    neb_ns from;
    double cpu_s, delay_s; // of all threads: ran, and waited for a processor
};

void profile_clock_start(struct profile_clock *c);
// Seconds since. threads: that shared the work evenly. Disturbed, the longer of two lower bounds: what they ran divided by
// threads, and what passed without what they waited. Undisturbed, or where the kernel counts nothing, what passed.
double profile_clock_stop(const struct profile_clock *c, int threads);

#endif
