// SPDX-License-Identifier: Apache-2.0
// Time. Durations and deadlines use the monotonic clock. Wall time is only for people and for
// certificates.
#ifndef NEB_CLOCK_H
#define NEB_CLOCK_H
#include <stdint.h>

typedef int64_t neb_ns; // nanoseconds: a point of the monotonic clock, or a duration

#define NEB_US ((neb_ns)1000)
#define NEB_MS ((neb_ns)1000000)
#define NEB_S  ((neb_ns)1000000000)

neb_ns neb_now(void);      // monotonic
neb_ns neb_wall_now(void); // since 1970-01-01 UTC
void neb_sleep(neb_ns ns); // returns early on a signal
static inline double neb_seconds(neb_ns d) { return (double)d * 1e-9; }

#endif
