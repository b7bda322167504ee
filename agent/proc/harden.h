// SPDX-License-Identifier: Apache-2.0
// Hardening of an agent before it touches a key: no core dumps and no debugger of the same user,
// since both show keys. Its workers do the same, because exec makes a process dumpable again. The
// agent also raises its descriptor limit, so that a flood of half-open connections leaves
// descriptors for the ledger.
#ifndef AGENT_HARDEN_H
#define AGENT_HARDEN_H
#include <stdbool.h>
#include <sys/resource.h>

enum { AGENT_DESCRIPTORS_LEAST = 1024 }; // an agent with fewer warns

// Failures only cause warnings: each measure is one layer of several.
void agent_harden(void);
// The limit of open files to set, from the current RLIMIT_NOFILE.
rlim_t agent_descriptors(const struct rlimit *r);
// Warns if other users can read HOME. Its files have mode 0600, but other programs may leave files
// that are more open.
void agent_harden_home(const char *home);
// For any process that holds a key or credentials: no core dump and no debugger. ranks: the process
// is one of several that may read each other's memory (as MPI does), so it must stay debuggable;
// then only core dumps are off.
void agent_harden_keys(bool ranks);

#endif
