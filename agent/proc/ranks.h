// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a worker on this machine, without mpirun: `nebula ranks N PROGRAM
// ARGUMENTS…`.
//
//     agent ── nebula ranks 3 nebula worker … ─┬─ RANK=0   gets the standard input (credentials)
//                                              │           and the socket on which it listens
//                                              ├─ RANK=1   joins rank 0 over 127.0.0.1
//                                              └─ RANK=2   (intra/ranks/comm.h, socket)
//
// Ranks get the variables of torchrun (intra/ranks/rank_env.h) and a new secret at each start; the
// variables of an outer launcher are removed. Ranks end together. After a rank fails or rank 0 is
// done, the others have a few seconds. When this process gets a signal to end, it passes it on;
// when it dies, they die.
#ifndef AGENT_RANKS_H
#define AGENT_RANKS_H
#include "agent/base/status.h"

enum { AGENT_RANKS_MAX = 1024 };

// Set in the environment of such ranks. Ranks of a worker ignore SIGTERM, which the agent handles
// (launch.h), and die with this process or its parent.
#define AGENT_RANKS_VARIABLE "NEBULA_RANKS_HERE"

// Tells `nebula ranks` to kill its ranks. It ends after them, so their memory and devices are free
// by then.
#define AGENT_RANKS_KILL SIGUSR1

// argv: NULL-terminated; PATH is searched for the program. *status: 0, or that of the first rank
// that failed (128 + signal). After an error nothing runs any more.
NEB_MUST_CHECK enum neb_status agent_ranks_run(int ranks, char *const *argv, int *status);

// `nebula ranks --step PROGRAM …`: makes the secret, picks a port, and becomes the program (srun),
// whose tasks know the rest from Slurm. Returns only on failure.
NEB_MUST_CHECK enum neb_status agent_ranks_become(char *const *argv);

#endif
