// SPDX-License-Identifier: Apache-2.0
#include "agent/base/fault.h"
#include "agent/base/clock.h"
#include "agent/base/log.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool neb_fault_armed;

enum { PLANS_MAX = 8 };

static struct plan {
    // only: the log name of the processes to which this plan applies; "": all
    char point[64], only[64];
    bool prefix, kill, each;
    long nth;
    long longer_ms; // delay at each hit; the point then never fails
    atomic_long seen;
} plans[PLANS_MAX];
static int n_plans;

// Parses one part of a specification: `len` bytes, up to a comma or the end.
static void add_plan(const char *spec, size_t len) {
    const char *colon = memchr(spec, ':', len);
    size_t n = colon ? (size_t)(colon - spec) : len;
    struct plan *p = &plans[n_plans];
    if (n == 0 || n >= sizeof p->point)
        return;
    p->only[0] = 0;
    const char *at = memchr(spec, '@', n);
    if (at) {
        snprintf(p->only, sizeof p->only, "%.*s", (int)(n - 1 - (size_t)(at - spec)), at + 1);
        n = (size_t)(at - spec);
        if (n == 0)
            return;
    }
    memcpy(p->point, spec, n);
    p->prefix = p->point[n - 1] == '*';
    p->point[p->prefix ? n - 1 : n] = 0;
    char *end = NULL;
    p->nth = colon ? strtol(colon + 1, &end, 10) : 1;
    p->longer_ms = colon && colon[1] == '+' ? p->nth : 0;
    p->each = colon && colon[1] == '*';
    p->kill = end && strncmp(end, ":kill", 5) == 0;
    atomic_store(&p->seen, 0);
    n_plans++;
}

void neb_fault_arm(const char *spec) {
    neb_fault_armed = false;
    n_plans = 0;
    while (spec && *spec && n_plans < PLANS_MAX) {
        size_t len = strcspn(spec, ",");
        add_plan(spec, len);
        spec += len + (spec[len] == ',');
    }
    neb_fault_armed = n_plans > 0;
}

__attribute__((constructor)) static void fault_init(void) { neb_fault_arm(getenv("NEBULA_FAULT")); }

static bool hit(struct plan *p, const char *point) {
    bool match =
        p->prefix ? strncmp(point, p->point, strlen(p->point)) == 0 : strcmp(point, p->point) == 0;
    match = match && (!p->only[0] || neb_log_is_named(p->only));
    if (match && p->longer_ms > 0) {
        neb_sleep(p->longer_ms * NEB_MS);
        return false;
    }
    if (!match || (!p->each && atomic_fetch_add(&p->seen, 1) + 1 != p->nth))
        return false;
    if (p->kill)
        raise(SIGKILL);
    return true;
}

bool neb_fault_hit(const char *point) {
    bool any = false;
    for (int i = 0; i < n_plans; i++)
        any |= hit(&plans[i], point);
    return any;
}
