// SPDX-License-Identifier: Apache-2.0
// The processor quota of a container: the limit of its control groups (docker --cpus, Kubernetes),
// which the affinity mask does not show. If a process runs more threads than its quota, they wait
// for each other while the kernel holds them back.
#ifndef NEB_QUOTA_H
#define NEB_QUOTA_H

// The smallest quota of this process's groups and their parents, in processors (a fraction is
// possible); 0: no readable limit. root: prefix of /proc and /sys, "" except in tests.
double neb_cpu_quota(const char *root);

#endif
