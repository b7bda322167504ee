// SPDX-License-Identifier: Apache-2.0
#include "agent/base/clock.h"

#include <time.h>

static neb_ns read_clock(clockid_t id) {
    struct timespec ts;
    clock_gettime(id, &ts);
    return (neb_ns)ts.tv_sec * NEB_S + ts.tv_nsec;
}

neb_ns neb_now(void) { return read_clock(CLOCK_MONOTONIC); }
neb_ns neb_wall_now(void) { return read_clock(CLOCK_REALTIME); }

void neb_sleep(neb_ns ns) {
    if (ns <= 0)
        return;
    struct timespec ts = {.tv_sec = (time_t)(ns / NEB_S), .tv_nsec = (long)(ns % NEB_S)};
    nanosleep(&ts, NULL);
}
