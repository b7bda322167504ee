// SPDX-License-Identifier: Apache-2.0
#include "agent/train/rank.h"
#include "agent/base/log.h"
#include "agent/base/moved.h"
#include "agent/proc/harden.h"
#include "agent/proc/launch.h"
#include "agent/train/follow.h"
#include "agent/train/worker.h"
#include "intra/ranks/rank_env.h"
#include "kernels/pool.h"

#include <fcntl.h>
#include <unistd.h>

// Moving bytes is work, so the ranks that wait for this one are told.
static void at_work(void *user) {
    struct intra_comm *world = user;
    if (world->ops->alive)
        world->ops->alive(world);
}

static enum neb_status follow(struct intra_comm *world, int threads) {
    struct kern *K = NULL;
    char name[32];
    snprintf(name, sizeof name, "rank %d", world->rank);
    neb_log_set_name(name);
    NEB_TRY(kern_cpu_create(threads, &K));
    neb_info("pid %d follows rank 0 with %d threads", (int)getpid(), kern_pool_threads(K->pool));
    struct agent_follower own = {0};
    struct intra_group_follower f = {agent_follow, agent_follow_end, &own};
    neb_moved_listen(at_work, world);
    enum neb_status st = intra_group_serve(world, K, &f);
    neb_moved_listen(NULL, NULL);
    sec_vault_destroy(&own.vault);
    kern_destroy(&K);
    return st;
}

// Appends, like the worker's log: a restarted rank continues its log. Hosts of mpirun need not
// share a file system.
static void log_to(const char *dir, int rank) {
    char path[NEB_PATH_MAX];
    int fd = snprintf(path, sizeof path, "%s/rank-%d.log", dir, rank) < (int)sizeof path
                 ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)
                 : -1;
    if (fd < 0) {
        neb_info("rank %d: cannot open %s on this host; the log goes to the launcher", rank, path);
        return;
    }
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

enum neb_status agent_rank_run(const char *socket_path, const char *job, int threads,
                               const char *log_dir) {
    struct intra_comm *world = NULL;
    agent_launch_signals(true);
    agent_launch_environment();
    NEB_TRY(intra_comm_launched(&world));
    agent_harden_keys(world->size > 1);
    if (log_dir)
        log_to(log_dir, world->rank);
    if (threads == 0) // all threads of the host, divided among its ranks
        threads = kern_pool_share(intra_rank_env_local(environ));
    enum neb_status st = world->rank == 0 ? agent_worker_run(socket_path, job, world, threads)
                                          : follow(world, threads);
    if (st != NEB_OK)
        world->ops->abort(world); // the other ranks may wait for this one
    intra_comm_destroy(&world);
    return st;
}
