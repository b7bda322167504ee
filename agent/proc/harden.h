// SPDX-License-Identifier: Apache-2.0
// What an agent gives up and asks for before it touches a key: no core dumps and no debugger of the same user (both would
// show keys; its workers do the same, since exec makes a process dumpable again), and as many descriptors as the system allows, so that a flood of half-open
// connections does not take those that the ledger needs.
#ifndef AGENT_HARDEN_H
#define AGENT_HARDEN_H
#include <stdbool.h>
#include <sys/resource.h>

enum { AGENT_DESCRIPTORS_LEAST = 1024 }; // with fewer a start is warned of

// Failures are logged and survived: each measure is one layer of several.
void agent_harden(void);
// The limit of open files that it sets, of those (RLIMIT_NOFILE) that it finds.
rlim_t agent_descriptors(const struct rlimit *r);
// A HOME that others can look into is said once, with what to do. What is in it is 0600, but an earlier version, or another program,
// may have left more open.
void agent_harden_home(const char *home);
// For any process that holds a key or a worker's credentials: no core dump, no debugger. ranks: it is one of several processes, which may read
// each other's memory (MPI's do) and need to stay debuggable for that; then only core dumps are off.
void agent_harden_keys(bool ranks);

#endif
