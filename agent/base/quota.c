// SPDX-License-Identifier: Apache-2.0
#include "agent/base/quota.h"
#include "agent/base/fs.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static bool read_line(const char *dir, const char *name, char *out, int cap) {
    char path[NEB_PATH_MAX];
    FILE *f = snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path ? fopen(path, "r")
                                                                                 : NULL;
    bool ok = f && fgets(out, cap, f);
    if (f)
        fclose(f);
    return ok;
}

// The quota of one group. Version 2 has both numbers in cpu.max ("max 100000": no limit); version 1
// has a file for each (-1: no limit).
static double of_group(const char *dir) {
    char a[64], b[64];
    double quota = 0, period = 0;
    if (read_line(dir, "cpu.max", a, sizeof a))
        return sscanf(a, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0
                   ? quota / period
                   : 0;
    if (!read_line(dir, "cpu.cfs_quota_us", a, sizeof a) ||
        !read_line(dir, "cpu.cfs_period_us", b, sizeof b))
        return 0;
    return sscanf(a, "%lf", &quota) == 1 && sscanf(b, "%lf", &period) == 1 && quota > 0 &&
                   period > 0
               ? quota / period
               : 0;
}

// Lowers *least to the smallest quota of a group and its parents. In a cgroup namespace some of
// these paths do not exist; only existing ones count.
static void least_of(const char *mount, const char *group, double *least) {
    char dir[2 * NEB_PATH_MAX];
    size_t top = (size_t)snprintf(dir, sizeof dir, "%s", mount);
    if (top >= sizeof dir ||
        snprintf(dir + top, sizeof dir - top, "%s", group) >= (int)(sizeof dir - top))
        return;
    for (;;) {
        double q = of_group(dir);
        *least = q > 0 && (*least <= 0 || q < *least) ? q : *least;
        char *slash = strrchr(dir, '/');
        if (!slash || slash < dir + top)
            return;
        *slash = 0;
    }
}

static bool names_cpu(const char *controllers, size_t n) {
    for (const char *p = controllers, *end = controllers + n; p < end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        size_t len = (size_t)((comma ? comma : end) - p);
        if (len == 3 && !memcmp(p, "cpu", 3))
            return true;
        p += len + 1;
    }
    return false;
}

double neb_cpu_quota(const char *root) {
    char path[NEB_PATH_MAX], line[NEB_PATH_MAX], mount[NEB_PATH_MAX];
    double least = 0;
    FILE *f = snprintf(path, sizeof path, "%s/proc/self/cgroup", root) < (int)sizeof path
                  ? fopen(path, "r")
                  : NULL;
    while (f && fgets(line, sizeof line, f)) { // number:controllers:/group
        char *controllers = strchr(line, ':'),
             *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        size_t n = (size_t)(group - ++controllers);
        group[strcspn(group, "\n")] = 0;
        if (n && !names_cpu(controllers, n))
            continue;
        if (snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%.*s", root, n ? "/" : "", (int)n,
                     controllers) < (int)sizeof mount)
            least_of(mount, group + 1, &least);
        if (n && snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/cpu", root) < (int)sizeof mount)
            least_of(mount, group + 1, &least); // a link, if controllers share a hierarchy
    }
    if (f)
        fclose(f);
    return least;
}
