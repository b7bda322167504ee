// SPDX-License-Identifier: Apache-2.0
#include "agent/proc/launch.h"
#include "agent/base/log.h"
#include "agent/proc/child.h"
#include "agent/proc/ranks.h"
#include "intra/ranks/rank_env.h"
#include "kernels/pool.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static bool in_path(const char *program) {
    char file[NEB_PATH_MAX];
    return agent_program_find(program, file, sizeof file);
}

// Appends "nebula ranks RANKS" after n arguments; returns the new number of arguments.
static int ranks_prefix(const char *exe, int ranks, struct agent_launch *out, int n) {
    snprintf(out->ranks, sizeof out->ranks, "%d", ranks);
    out->argv[n] = exe;
    out->argv[n + 1] = "ranks";
    out->argv[n + 2] = out->ranks;
    return n + 3;
}

// Writes "env … mpirun -n RANKS"; *used: the number of arguments.
static enum neb_status mpi_prefix(int ranks, struct agent_launch *out, int *used) {
    static const char *const root[] = {"OMPI_ALLOW_RUN_AS_ROOT=1",
                                       "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
    int n = 0;
    if (!in_path("mpirun"))
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "launcher: mpirun has to start %d ranks, but there is no mpirun on this "
                        "machine; install Open MPI (configs/install-deps), or use launcher: local",
                        ranks);
    NEB_TRY(intra_comm_mpi_find());
    snprintf(out->ranks, sizeof out->ranks, "%d", ranks);
    out->argv[n++] = "/usr/bin/env";
    for (size_t i = 0; geteuid() == 0 && i < sizeof root / sizeof root[0]; i++)
        out->argv[n++] = root[i];
    out->argv[n++] = "mpirun";
    out->argv[n++] =
        "--bind-to"; // ranks have threads, but mpirun binds each to a core or socket by default
    out->argv[n++] = "none";
    out->argv[n++] = "-n";
    out->argv[n++] = out->ranks;
    *used = n;
    return NEB_OK;
}

static void append(struct agent_launch *out, int n, const char *const *rest) {
    for (; *rest; rest++) {
        NEB_ASSERT(n + 1 < AGENT_LAUNCH_ARGS);
        out->argv[n++] = *rest;
    }
    out->argv[n] = NULL;
}

// Writes the srun command of one job step. The agent runs on the first node of the allocation, so
// rank 0 finds its socket there. An agent outside an allocation must listen for other hosts; srun
// then asks for its own allocation. Only rank 0 gets the standard input, a ticket (credential.h).
//
// A rank that fails ends the step; the agent then starts another one from the checkpoint. Settings
// that are not given here come from the allocation and SLURM_* variables, as usual.
static enum neb_status slurm_prefix(const struct agent_cluster *c, bool remote, int ranks,
                                    const char *log_dir, const char *exe, struct agent_launch *out,
                                    int *used) {
    bool mpi = intra_comm_mpi_there();
    int n = 0;
    out->queues = !getenv("SLURM_JOB_ID");
    if (out->queues && !remote)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "launcher: slurm: the agent is not in a Slurm allocation; submit the agent "
                        "itself (sbatch configs/slurm/agent.sbatch), or start it with --workers "
                        "ADDRESS, an address that ranks on compute nodes can reach");
    if (!in_path("srun"))
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "launcher: slurm needs srun, which is not in PATH on this machine");
    snprintf(out->ranks, sizeof out->ranks, "--ntasks=%d", ranks);
    // srun does not inherit it from the allocation
    const char *of_allocation = getenv("SLURM_CPUS_PER_TASK");
    if (c->threads)
        snprintf(out->cpus, sizeof out->cpus, "--cpus-per-task=%d", c->threads);
    else if (of_allocation)
        snprintf(out->cpus, sizeof out->cpus, "--cpus-per-task=%.20s", of_allocation);
    else
        out->cpus[0] = 0;
    if (snprintf(out->output, sizeof out->output, "--output=%s/rank-%%t.log", log_dir) >=
        (int)sizeof out->output)
        return neb_fail(NEB_ERR_LIMIT, "%s: path too long for a log", log_dir);
    if (!mpi) { // ranks find each other by Slurm's variables and those that `ranks --step` adds
        append(out, n, (const char *const[]){exe, "ranks", "--step", "srun", "--export=ALL", NULL});
        n += 5;
    } else {
        append(out, n, (const char *const[]){"/usr/bin/env", "srun", NULL});
        n += 2;
    }
    append(out, n,
           (const char *const[]){out->ranks, out->output, "--open-mode=append",
                                 "--kill-on-bad-exit=1", "--input=0", "--unbuffered", NULL});
    n += 6;
    if (out->cpus[0])
        out->argv[n++] = out->cpus;
    if (!mpi)
        out->argv[n++] = "--mpi=none";
    else if (!getenv("SLURM_MPI_TYPE"))
        out->argv[n++] = "--mpi=pmix";
    *used = n;
    return NEB_OK;
}

enum neb_status agent_launch_worker(const struct agent_cluster *c, bool remote, const char *exe,
                                    const char *socket_path, const char *job, const char *log_dir,
                                    const char *gpus, struct agent_launch *out) {
    int ranks = agent_cluster_ranks(c), n = 0;
    bool local = c->launcher == AGENT_LAUNCHER_LOCAL;
    out->queues = false;
    if (local && gpus[0]) {
        append(out, 0, (const char *const[]){"/usr/bin/env", gpus, NULL});
        n = 2;
    }
    out->kill = !local ? SIGTERM : ranks == 1 ? SIGKILL : AGENT_RANKS_KILL;
    if (ranks == 1 && local) {
        append(out, n, (const char *const[]){exe, "worker", socket_path, job, NULL});
        return NEB_OK;
    }
    if (local)
        n = ranks_prefix(exe, ranks, out, n);
    else if (c->launcher == AGENT_LAUNCHER_SLURM)
        NEB_TRY(slurm_prefix(c, remote, ranks, log_dir, exe, out, &n));
    else
        NEB_TRY(mpi_prefix(ranks, out, &n));
    int threads = c->threads;
    if (local) // all ranks of the cluster share this host
        threads = !threads ? kern_pool_share(ranks) : threads > ranks ? threads / ranks : 1;
    snprintf(out->threads, sizeof out->threads, "%d", threads);
    append(out, n,
           (const char *const[]){exe, "worker", socket_path, job, "--rank", out->threads,
                                 c->launcher == AGENT_LAUNCHER_SLURM ? NULL : log_dir, NULL});
    return NEB_OK;
}

void agent_launch_pair(const char *exe, const char *command, const char *option,
                       struct agent_launch *out) {
    append(out, ranks_prefix(exe, 2, out, 0), (const char *const[]){exe, command, option, NULL});
}

void agent_launch_logs(int ranks, const char *log_dir, char *out, size_t cap) {
    snprintf(out, cap,
             ranks > 1 ? "%s/rank-*.log, and worker.log of the launcher" : "%s/worker.log",
             log_dir);
}

void agent_launch_environment(void) { (void)!setenv("CUDA_MODULE_LOADING", "EAGER", 0); }

void agent_launch_signals(bool launched) {
    // A killed parent must not leave ranks behind, even stopped ones.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    if (!launched || getenv(AGENT_RANKS_VARIABLE))
        signal(SIGTERM, SIG_IGN);
}
