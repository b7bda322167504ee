// SPDX-License-Identifier: Apache-2.0
// Measures how long something would take on an idle machine. If other processes took processors
// from the threads of this process (the kernel counts this in schedstat), the clock uses the time
// that the threads ran.
#ifndef AGENT_PROFILE_CLOCK_H
#define AGENT_PROFILE_CLOCK_H
#include "agent/base/clock.h"

struct profile_clock {
    neb_ns from;
    double cpu_s, delay_s; // of all threads: time run, time waited for a processor
};

void profile_clock_start(struct profile_clock *c);
// Seconds since the start. threads: number of threads that shared the work evenly. Undisturbed, or
// if the kernel does not count: the time that passed. Disturbed: the longer of two lower bounds,
// the time run per thread, and the time that passed less the waits.
double profile_clock_stop(const struct profile_clock *c, int threads);

#endif
