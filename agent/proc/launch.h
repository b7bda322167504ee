// SPDX-License-Identifier: Apache-2.0
// How the worker of a cluster is started: one process, or one rank a place of the mesh. Rank 0 is the worker that the agent knows;
// the others follow it (intra/train/group.h).
//
//     launcher   ranks are started by                          and talk over
//     local      nebula ranks (agent/proc/ranks.h), on this host    TCP
//     mpirun     mpirun, on its hosts                          MPI
//     slurm      srun, in the agent's allocation or its own    MPI; TCP where this build has none
//
// Rank 0 speaks with the agent over its socket, or over TCP where it is started on another host (agent/proc/ipc.h).
#ifndef AGENT_LAUNCH_H
#define AGENT_LAUNCH_H
#include "agent/job/config.h"

enum { AGENT_LAUNCH_ARGS = 24 };
struct agent_launch {
    // NULL-terminated; points into this struct and the arguments
    const char *argv[AGENT_LAUNCH_ARGS];
    char ranks[24], threads[24], cpus[40], output[NEB_PATH_MAX];
    bool queues; // it may wait for hosts, for as long as a batch system likes
    int kill; // the signal at which it and all its ranks end at once: SIGTERM where a foreign launcher ends them
};
// log_dir: where every rank of a mesh gets a log of its own, rank-N.log (agent_rank_run; slurm: srun writes it). What the
// launcher itself says is its output, as all that a single rank says. NEB_ERR_UNSUPPORTED: the launcher needs what this machine has
// not: mpirun and a build with MPI; srun and an allocation. remote: the agent listens for workers of other hosts. gpus: those that
// ranks on this host are to see, as agent_gpus_text says them, or "".
NEB_MUST_CHECK enum neb_status agent_launch_worker(const struct agent_cluster *c, bool remote,
                                                   const char *exe, const char *socket_path,
                                                   const char *job, const char *log_dir,
                                                   const char *gpus, struct agent_launch *out);
// Two ranks of `nebula COMMAND OPTION` on this machine.
void agent_launch_pair(const char *exe, const char *command, const char *option,
                       struct agent_launch *out);

// What a process that becomes a rank has in its environment unless its user has set it: CUDA_MODULE_LOADING=EAGER.
void agent_launch_environment(void);
// Of a process that becomes a rank: it ends with its parent, and the agent decides when else. Ctrl-C, and what a scheduler or a service manager
// sends to every process at the end of an allocation, are nothing to it: the agent has heard it too, and asks for a checkpoint. launched: by
// mpirun or srun, whose SIGTERM ends it, unless `nebula ranks` has done it (agent/proc/ranks.h).
void agent_launch_signals(bool launched);
// Where to look when a worker of `ranks` ranks has ended: of a mesh, the logs of its ranks and of its launcher.
void agent_launch_logs(int ranks, const char *log_dir, char *out, size_t cap);

#endif
