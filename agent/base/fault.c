#include "agent/base/fault.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool neb_fault_armed;

static struct {
    char point[64];
    bool prefix, kill;
    long nth;
    atomic_long seen;
} plan;

void neb_fault_arm(const char *spec) {
    neb_fault_armed = false;
    if (!spec || !*spec)
        return;
    const char *colon = strchr(spec, ':');
    size_t n = colon ? (size_t)(colon - spec) : strlen(spec);
    if (n == 0 || n >= sizeof plan.point)
        return;
    memcpy(plan.point, spec, n);
    plan.point[n] = 0;
    plan.prefix = plan.point[n - 1] == '*';
    if (plan.prefix)
        plan.point[n - 1] = 0;
    char *end = NULL;
    plan.nth = colon ? strtol(colon + 1, &end, 10) : 1;
    plan.kill = end && strcmp(end, ":kill") == 0;
    atomic_store(&plan.seen, 0);
    neb_fault_armed = true;
}

__attribute__((constructor)) static void fault_init(void) { neb_fault_arm(getenv("NEBULA_FAULT")); }

bool neb_fault_hit(const char *point) {
    bool match = plan.prefix ? strncmp(point, plan.point, strlen(plan.point)) == 0
                             : strcmp(point, plan.point) == 0;
    if (!match || atomic_fetch_add(&plan.seen, 1) + 1 != plan.nth)
        return false;
    if (plan.kill)
        raise(SIGKILL);
    return true;
}
