// SPDX-License-Identifier: Apache-2.0
// How much of its processors a container may use: the quota of control groups (Docker's --cpus, a limit of Kubernetes), which affinity does not tell.
// More threads than that spin and wait for each other while all are held back.
#ifndef NEB_QUOTA_H
#define NEB_QUOTA_H

// Processors that this process's groups, and those that hold them, may use, as a fraction; 0: there is no limit, or none that can be read. root:
// before /proc and /sys, "" but in tests.
double neb_cpu_quota(const char *root);

#endif
