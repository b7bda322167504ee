// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a worker on this machine, without mpirun: `nebula ranks N PROGRAM ARGUMENTS…`.
//
//     agent ── nebula ranks 3 nebula worker … ─┬─ RANK=0   standard input (the credentials), and the socket on which it listens
//                                              ├─ RANK=1   joins rank 0 over 127.0.0.1 (intra/ranks/comm.h, socket)
//                                              └─ RANK=2
//
// Ranks get the variables of torchrun (intra/ranks/rank_env.h) and a secret that is made anew each time. They end together: when one
// fails, or rank 0 is done, the others have a few seconds; when this process is told to end or dies, they are. What stands in
// the environment of another launcher around the agent is not theirs and is taken out.
#ifndef AGENT_RANKS_H
#define AGENT_RANKS_H
#include "agent/base/status.h"

enum { AGENT_RANKS_MAX = 1024 };

// In the environment of ranks that were started this way. Those of a worker leave SIGTERM to their agent (agent/proc/launch.h), and
// end at once when this process or its parent dies.
#define AGENT_RANKS_VARIABLE "NEBULA_RANKS_HERE"

// Tells `nebula ranks` to kill its ranks. It ends when they are gone: what they held of memory and devices is free by then.
#define AGENT_RANKS_KILL SIGUSR1

// argv: NULL-terminated; the program is looked for in PATH. *status: 0, or that of the first rank that failed (128 + signal).
// Errors: nothing runs any more.
NEB_MUST_CHECK enum neb_status agent_ranks_run(int ranks, char *const *argv, int *status);

// `nebula ranks --step PROGRAM …`: makes the secret and picks a port, then becomes the program, srun, whose tasks know the rest from
// Slurm. Returns on failure alone.
NEB_MUST_CHECK enum neb_status agent_ranks_become(char *const *argv);

#endif
