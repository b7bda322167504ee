// SPDX-License-Identifier: Apache-2.0
#include "security/locked.h"

#include "agent/base/log.h"

#include <errno.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

// Global, because the limit belongs to the process.
static atomic_bool failed;

void sec_locked_init(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_MEMLOCK, &r) != 0 || r.rlim_cur >= r.rlim_max)
        return;
    r.rlim_cur = r.rlim_max;
    if (setrlimit(RLIMIT_MEMLOCK, &r) != 0)
        neb_warn("cannot raise the limit of locked memory: %s", strerror(errno));
}

int64_t sec_locked_limit(void) {
    struct rlimit r;
    return getrlimit(RLIMIT_MEMLOCK, &r) != 0 || r.rlim_cur > INT64_MAX ? -1 : (int64_t)r.rlim_cur;
}

void sec_locked_failed(int why) {
    char limit[48] = "no limit is set";
    int64_t bytes = sec_locked_limit();
    if (atomic_exchange(&failed, true))
        return;
    if (bytes >= 0)
        snprintf(limit, sizeof limit, "limit %lld KiB", (long long)(bytes / 1024));
    neb_warn("keys may be swapped out to disk: this process cannot lock more memory (%s%s%s): set "
             "LimitMEMLOCK=infinity in its unit, as configs/systemd/nebula-agent.service does, or "
             "raise ulimit -l",
             limit, why ? "; " : "", why ? strerror(why) : "");
}

bool sec_locked_all(void) { return !atomic_load(&failed); }

void *sec_locked_alloc(size_t n) {
    void *p = sodium_malloc(n); // locks it, but does not report a failure
    if (p && mlock(p, n) != 0)  // pages that are already locked count once
        sec_locked_failed(errno);
    return p;
}

bool sec_locked_room(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return false;
    bool can = mlock(p, bytes) == 0;
    munmap(p, bytes);
    return can;
}
