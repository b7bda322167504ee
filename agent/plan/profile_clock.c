// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/profile_clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

// Share of the time in which threads wait for a processor. More of it counts as disturbed.
static const double DISTURBED = 0.02;

static double ran_s(void) {
    struct timespec t;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0
               ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec
               : 0;
}

// /proc/self/task/N/schedstat has three numbers: nanoseconds run, nanoseconds waited for a
// processor, and how often the thread ran.
static double waited_s(void) {
    double sum = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        char path[64], text[96], *end;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", e->d_name);
        int fd = e->d_name[0] == '.' ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
        if (fd >= 0)
            close(fd);
        if (n <= 0)
            continue;
        text[n] = 0;
        (void)strtoull(text, &end, 10);
        sum += 1e-9 * (double)strtoull(end, NULL, 10);
    }
    if (d)
        closedir(d);
    return sum;
}

void profile_clock_start(struct profile_clock *c) {
    c->delay_s = waited_s();
    c->cpu_s = ran_s();
    c->from = neb_now();
}

double profile_clock_stop(const struct profile_clock *c, int threads) {
    double passed = neb_seconds(neb_now() - c->from), ran = ran_s() - c->cpu_s,
           waited = waited_s() - c->delay_s;
    if (!(waited > DISTURBED * passed))
        return passed;
    return fmin(passed, fmax(ran / threads, passed - waited));
}
