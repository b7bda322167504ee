// SPDX-License-Identifier: Apache-2.0
#include "agent/proc/ranks.h"
#include "agent/base/bytes.h"
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/proc/child.h"
#include "agent/proc/port.h"
#include "intra/ranks/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SECRET_BYTES = 32,
    // Ranks that wait for the failed rank notice at once; rank 0 may have a report to send.
    AFTER_FAILURE_S = 3,
    AFTER_RANK_0_S = 10,
    AFTER_TERM_S = 5,
};

struct ranks {
    int n, listener, left; // left: ranks still running
    int port;
    pid_t *pids; // (n) pids; 0: ended
    int status;
    neb_ns term_at, kill_at; // 0: not yet
    pid_t parent;
};

static enum neb_status set(const char *name, const char *value) {
    return setenv(name, value, 1) == 0 ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory");
}

static enum neb_status set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    return set(name, text);
}

static enum neb_status set_secret(void) {
    uint8_t secret[SECRET_BYTES];
    char text[2 * SECRET_BYTES + 1];
    if (getrandom(secret, sizeof secret, 0) != sizeof secret)
        return neb_fail_errno("cannot get random bytes from the kernel");
    neb_hex(secret, sizeof secret, text);
    enum neb_status st = set(INTRA_TOKEN_VARIABLE, text);
    explicit_bzero(secret, sizeof secret);
    explicit_bzero(text, sizeof text);
    return st;
}

// Removes variables of a launcher that may have started this process.
static void forget_others(void) {
    static const char *const names[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "MASTER_ADDR",
                                        "LOCAL_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "MASTER_PORT",
                                        "SLURM_PROCID",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "SLURM_LOCALID",
                                        INTRA_TOKEN_VARIABLE,
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        INTRA_LISTENER_VARIABLE,
                                        AGENT_RANKS_VARIABLE,
                                        "OMPI_COMM_WORLD_LOCAL_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

enum neb_status agent_ranks_become(char *const *argv) {
    int fd, port;
    NEB_TRY(agent_port_bind(true, &fd, &port));
    close(fd);
    forget_others();
    NEB_TRY(set_number("MASTER_PORT", port));
    NEB_TRY(set_secret());
    signal(SIGXFSZ, SIG_DFL); // nebula ignores it again; the program decides for itself
    execvp(argv[0], argv);
    return neb_fail_errno("cannot start %s", argv[0]);
}

// Runs between fork and exec, so only async-signal-safe calls.
static _Noreturn void become(const struct ranks *r, int rank, pid_t parent, char *const *argv) {
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) // the parent died before prctl took effect
        _exit(127);
    int null = rank > 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    if (rank == 0)
        fcntl(r->listener, F_SETFD, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGXFSZ, SIG_DFL);
    execvp(argv[0], argv);
    _exit(127);
}

static enum neb_status start_all(struct ranks *r, char *const *argv) {
    pid_t parent = getpid();
    NEB_TRY(agent_port_bind(false, &r->listener, &r->port));
    if (listen(r->listener, r->n) != 0)
        return neb_fail_errno("cannot open a port for the ranks to meet at");
    forget_others();
    NEB_TRY(set(AGENT_RANKS_VARIABLE, "1"));
    NEB_TRY(set("MASTER_ADDR", "127.0.0.1"));
    NEB_TRY(set_number("MASTER_PORT", r->port));
    NEB_TRY(set_number("WORLD_SIZE", r->n));
    NEB_TRY(set_number("LOCAL_WORLD_SIZE", r->n));
    NEB_TRY(set_secret());
    for (int i = 0; i < r->n; i++) {
        NEB_TRY(set_number("RANK", i));
        NEB_TRY(set_number("LOCAL_RANK", i));
        if (i == 0)
            NEB_TRY(set_number(INTRA_LISTENER_VARIABLE, r->listener));
        else
            unsetenv(INTRA_LISTENER_VARIABLE);
        pid_t pid = fork();
        if (pid == 0)
            become(r, i, parent, argv);
        if (pid < 0)
            return neb_fail_errno("cannot start rank %d of %d", i, r->n);
        r->pids[i] = pid;
        r->left++;
    }
    return NEB_OK;
}

static void signal_all(const struct ranks *r, int sig) {
    for (int i = 0; i < r->n; i++)
        if (r->pids[i])
            kill(r->pids[i], sig);
}

static void end_by(struct ranks *r, int seconds) {
    neb_ns at = neb_now() + seconds * NEB_S;
    if (!r->term_at || at < r->term_at)
        r->term_at = at;
}

static void reap(struct ranks *r) {
    int status;
    char reason[96];
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        int rank = 0;
        while (rank < r->n && r->pids[rank] != pid)
            rank++;
        if (rank == r->n)
            continue;
        r->pids[rank] = 0;
        r->left--;
        if (status && !r->status) {
            r->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            neb_warn("ranks: rank %d of %d ended (%s); stopping the others", rank, r->n,
                     agent_child_reason(status, reason, sizeof reason));
        }
        if (status || rank == 0)
            end_by(r, status ? AFTER_FAILURE_S : AFTER_RANK_0_S);
    }
}

static void watch(struct ranks *r, const sigset_t *signals) {
    while (r->left > 0) {
        const struct timespec slice = {.tv_nsec = 200000000};
        int sig = sigtimedwait(signals, NULL, &slice);
        neb_ns now = neb_now();
        if (sig == SIGTERM || sig == SIGHUP) {
            r->status = r->status ? r->status : 128 + sig;
            // No time limit here: the agent limits the wait, and ends this process
            // (agent/daemon/stop.c).
            signal_all(r, SIGTERM);
        }
        if (sig == AGENT_RANKS_KILL) {
            r->status = r->status ? r->status : 128 + SIGKILL;
            r->kill_at = now;
        }
        reap(r);
        if (getppid() != r->parent || (r->kill_at && now >= r->kill_at)) {
            // The agent died or asked for it. A restarted agent may start other ranks at once, so
            // these must go.
            signal_all(r, SIGKILL);
        } else if (r->term_at && now >= r->term_at && !r->kill_at) {
            signal_all(r, SIGTERM);
            r->kill_at = now + AFTER_TERM_S * NEB_S;
        }
    }
}

enum neb_status agent_ranks_run(int ranks, char *const *argv, int *status) {
    struct ranks r = {.n = ranks, .listener = -1, .parent = getppid()};
    sigset_t signals;
    NEB_ASSERT(ranks >= 1 && ranks <= AGENT_RANKS_MAX);
    if (!(r.pids = calloc((size_t)ranks, sizeof *r.pids)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory starting %d ranks", ranks);
    signal(SIGINT, SIG_IGN); // each rank decides itself
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, AGENT_RANKS_KILL);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    enum neb_status st = start_all(&r, argv);
    if (r.listener >= 0)
        close(r.listener);
    if (st != NEB_OK)
        r.term_at = neb_now();
    watch(&r, &signals);
    free(r.pids);
    *status = r.status;
    return st;
}
