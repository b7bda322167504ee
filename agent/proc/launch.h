// SPDX-License-Identifier: Apache-2.0
// How the worker of a cluster is started: one process, or one rank for each place of the mesh. The
// agent knows only rank 0; the other ranks follow it (intra/train/group.h).
//
//     launcher   starts ranks with                            which talk over
//     local      nebula ranks (ranks.h), on this host         TCP
//     mpirun     mpirun, on its hosts                         MPI
//     slurm      srun, in the agent's allocation or its own   MPI; TCP in a build without MPI
//
// Rank 0 talks to the agent over the agent's socket, or over TCP from another host (ipc.h).
#ifndef AGENT_LAUNCH_H
#define AGENT_LAUNCH_H
#include "agent/job/config.h"

enum { AGENT_LAUNCH_ARGS = 24 };
struct agent_launch {
    // NULL-terminated; points into this struct and the arguments of the call
    const char *argv[AGENT_LAUNCH_ARGS];
    char ranks[24], threads[24], cpus[40], output[NEB_PATH_MAX];
    bool queues; // it may wait in the queue of a batch system
    // the signal that ends it with all its ranks at once; SIGTERM if a foreign launcher ends them
    int kill;
};
// Fills *out. log_dir: every rank of a mesh writes rank-N.log there (agent_rank_run; slurm: srun).
// Messages of the launcher, and of a single rank, go to its standard output. remote: the agent
// listens for workers on other hosts. gpus: text of agent_gpus_text for ranks on this host, or "".
// NEB_ERR_UNSUPPORTED: this machine lacks mpirun or a build with MPI, or srun or an allocation.
NEB_MUST_CHECK enum neb_status agent_launch_worker(const struct agent_cluster *c, bool remote,
                                                   const char *exe, const char *socket_path,
                                                   const char *job, const char *log_dir,
                                                   const char *gpus, struct agent_launch *out);
// Two ranks of `nebula COMMAND OPTION` on this machine.
void agent_launch_pair(const char *exe, const char *command, const char *option,
                       struct agent_launch *out);

// Sets CUDA_MODULE_LOADING=EAGER for a rank, unless the user has set it. Call before threads start.
// Otherwise CUDA loads a kernel at its first launch, and waits for the device to do so. If the
// device is busy with a collective, it waits for other ranks, and they may wait for this rank
// (CUDA's programming guide, Lazy Loading).
void agent_launch_environment(void);
// For a process that becomes a rank: it dies with its parent, and ignores Ctrl-C and the SIGTERM
// that a scheduler or service manager sends to every process. The agent receives these too, and
// asks for a checkpoint. launched: mpirun or srun started the process, so its SIGTERM ends it,
// unless `nebula ranks` (ranks.h) stands between.
void agent_launch_signals(bool launched);
// Writes where to look after a worker of `ranks` ranks has ended: its log, or the logs of its ranks
// and launcher.
void agent_launch_logs(int ranks, const char *log_dir, char *out, size_t cap);

#endif
