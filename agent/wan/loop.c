// SPDX-License-Identifier: Apache-2.0
// The event loop: see loop.h.
#include "agent/wan/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// A nearer deadline waits until this much time has passed. It bounds the wake-ups per second and
// costs as much delay.
#define LEAST_SLEEP (150 * NEB_US)

struct wan_loop {
    int epoll_fd, signal_fd, timer_fd;
    struct wan_ctl *ctl;
    neb_ns armed; // the time that the timer is set to; 0 = off
    pid_t child;  // 0 = none
    int child_code;
    unsigned stop_signals;
    bool stop;
    sigset_t before;
};

static enum neb_status watch(struct wan_loop *l, int fd, uint64_t tag) {
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = tag};
    if (fd < 0 || epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
        return neb_fail_errno(
            tag == WAN_TAG_STDIN
                ? "wanlink: --die-with-stdin: stdin is neither a pipe nor a terminal"
                : "wanlink: cannot set up the event loop");
    return NEB_OK;
}

enum neb_status wan_loop_create(const struct wan_loop_cfg *cfg, struct wan_mesh *mesh,
                                struct wan_loop **out) {
    struct wan_loop *l = calloc(1, sizeof *l);
    if (l == NULL)
        return neb_fail(NEB_ERR_NOMEM, "wanlink: no memory for the event loop");
    enum neb_status st = NEB_OK;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, &l->before);
    signal(SIGPIPE, SIG_IGN); // if the reader of stdout has gone, the clean-up must still run
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    l->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    NEB_TRY_GOTO(watch(l, l->signal_fd, WAN_TAG_SIGNAL), out);
    NEB_TRY_GOTO(watch(l, l->timer_fd, WAN_TAG_TIMER), out);
    if (cfg->die_with_stdin)
        NEB_TRY_GOTO(watch(l, STDIN_FILENO, WAN_TAG_STDIN), out);
    if (cfg->die_with_parent) {
        if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0)
            neb_fail_errno("wanlink: --die-with-parent");
        if (getppid() == 1) // the parent ended before the call
            l->stop = true;
    }
    NEB_TRY_GOTO(wan_ctl_create(cfg->ctl, mesh, l->epoll_fd, WAN_TAG_CTL, &l->ctl), out);
out:
    if (st != NEB_OK)
        wan_loop_destroy(&l);
    *out = l;
    return st;
}

void wan_loop_destroy(struct wan_loop **pl) {
    struct wan_loop *l = *pl;
    if (l == NULL)
        return;
    wan_ctl_destroy(&l->ctl);
    if (l->child > 0)
        kill(l->child, SIGKILL);
    int fds[] = {l->timer_fd, l->signal_fd, l->epoll_fd};
    for (unsigned i = 0; i < 3; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    free(l);
    *pl = NULL;
}

int wan_loop_epoll(const struct wan_loop *l) { return l->epoll_fd; }

enum neb_status wan_loop_spawn(struct wan_loop *l, char *const argv[]) {
    pid_t parent = getpid();
    l->child = fork();
    if (l->child < 0)
        return neb_fail_errno("wanlink: cannot start '%s'", argv[0]);
    if (l->child == 0) {
        sigprocmask(SIG_SETMASK, &l->before, NULL);
        signal(SIGPIPE, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(127);
        execvp(argv[0], argv);
        neb_fail_errno("wanlink: cannot run '%s'", argv[0]);
        _exit(127);
    }
    return NEB_OK;
}

static void on_signal(struct wan_loop *l) {
    struct signalfd_siginfo s;
    while (read(l->signal_fd, &s, sizeof s) == sizeof s) {
        if (s.ssi_signo != SIGCHLD) {
            l->stop_signals++;
            if (l->child <= 0 || l->stop_signals > 1)
                l->stop = true;
            else
                kill(l->child, (int)s.ssi_signo);
            continue;
        }
        int code;
        if (l->child > 0 && waitpid(l->child, &code, WNOHANG) == l->child) {
            l->child_code = WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
            l->child = 0;
            l->stop = true;
        }
    }
}

static void on_stdin(struct wan_loop *l) {
    char drain[256];
    ssize_t n = read(STDIN_FILENO, drain, sizeof drain);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
        l->stop = true;
}

static void arm(struct wan_loop *l, neb_ns at) {
    if (at == INT64_MAX)
        at = 0;
    if (at == l->armed)
        return;
    struct itimerspec t = {
        .it_value = {.tv_sec = (time_t)(at / NEB_S), .tv_nsec = (long)(at % NEB_S)}};
    timerfd_settime(l->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
    l->armed = at;
}

enum neb_status wan_loop_run(struct wan_loop *l, const struct wan_engine_ops *ops, int *exit_code) {
    enum { BATCH = 32 };
    struct epoll_event ev[BATCH];
    while (!l->stop) {
        neb_ns now = neb_now(), next = ops->advance(ops->ctx, now);
        if (next != INT64_MAX && next < now + LEAST_SLEEP)
            next = l->armed > now && l->armed < now + LEAST_SLEEP ? l->armed : now + LEAST_SLEEP;
        arm(l, next);
        int n = epoll_wait(l->epoll_fd, ev, BATCH, -1);
        if (n < 0 && errno != EINTR)
            return neb_fail_errno("wanlink: epoll");
        for (int i = 0; i < n; i++) {
            uint64_t tag = ev[i].data.u64, ticks;
            if (tag >= WAN_TAG_ENGINE)
                ops->event(ops->ctx, tag - WAN_TAG_ENGINE, ev[i].events);
            else if (tag >= WAN_TAG_CTL)
                wan_ctl_handle(l->ctl, (unsigned)(tag - WAN_TAG_CTL));
            else if (tag == WAN_TAG_SIGNAL)
                on_signal(l);
            else if (tag == WAN_TAG_STDIN)
                on_stdin(l);
            else if (read(l->timer_fd, &ticks, sizeof ticks) == sizeof ticks)
                l->armed = 0;
        }
    }
    *exit_code = l->child_code;
    return NEB_OK;
}
