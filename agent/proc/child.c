// SPDX-License-Identifier: Apache-2.0
#include "agent/proc/child.h"
#include "agent/base/fault.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char own_exe[] = "/proc/self/exe";

enum { KILLED_S = 10 }; // wait after SIGKILL; freeing much memory takes time

// Runs between fork and exec, so only async-signal-safe calls. `said` is a pipe: exec closes it, a
// failure writes its errno.
static _Noreturn void exec_child(const char *const *argv, int in_fd, int log_fd, int out_fd,
                                 int said, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) // the parent died before prctl took effect
        _exit(127);
    // Own process group: Ctrl-C in a terminal then reaches only the command, which stops its
    // children in order.
    setpgid(0, 0);
    if (in_fd < 0)
        in_fd = open("/dev/null", O_RDONLY);
    if (in_fd >= 0)
        dup2(in_fd, STDIN_FILENO);
    if (log_fd >= 0) {
        dup2(log_fd, STDOUT_FILENO);
        dup2(log_fd, STDERR_FILENO);
    }
    if (out_fd >= 0)
        dup2(out_fd, STDOUT_FILENO);
    sigset_t none;
    signal(SIGTERM, SIG_DFL); // the agent's handler would lose a signal that comes before exec
    signal(SIGINT, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL); // nebula ignores it again; a launcher decides for itself
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    // agent_self_path gave /proc/PID/exe, which an undumpable parent (PR_SET_DUMPABLE) hides from
    // us
    if (!strncmp(argv[0], "/proc/", 6))
        execv(own_exe, (char *const *)(uintptr_t)argv);
    int why = errno;
    (void)!write(said, &why, sizeof why);
    _exit(127);
}

// Returns 0 if exec worked, else its errno. exec can fail for lack of memory, or while a program is
// being replaced.
static int exec_error(int said) {
    int why = 0;
    ssize_t n;
    do
        n = read(said, &why, sizeof why);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof why ? why : 0;
}

static enum neb_status start(struct agent_child *c, const char *what, const char *const *argv,
                             const char *log_path, int in_fd, int *stdout_fd) {
    enum neb_status st = NEB_OK;
    int log_fd = -1, pipe_fd[2] = {-1, -1}, said[2] = {-1, -1}, status;
    *c = (struct agent_child){0};
    snprintf(c->what, sizeof c->what, "%s", what);
    if (access(argv[0], X_OK) != 0)
        return neb_fail_errno("cannot start %s: %s", what, argv[0]);
    if (log_path) {
        log_fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (log_fd < 0)
            return neb_fail_errno("cannot open log %s", log_path);
    }
    if ((stdout_fd && pipe2(pipe_fd, O_CLOEXEC) != 0) || pipe2(said, O_CLOEXEC) != 0) {
        st = neb_fail_errno("cannot create a pipe for %s", what);
        goto out;
    }
    pid_t parent = getpid(), pid = neb_fault("child.start") ? (errno = EAGAIN, -1) : fork();
    if (pid == 0)
        exec_child(argv, in_fd, log_fd, pipe_fd[1], said[1], parent);
    if (pid < 0) {
        st = neb_fail_errno("cannot start %s", what);
        goto out;
    }
    close(said[1]);
    said[1] = -1;
    int why = exec_error(said[0]);
    if (why) {
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
        // the access check above passed, so this error may be temporary
        st = neb_fail(NEB_ERR_IO, "cannot start %s: %s: %s", what, argv[0], strerror(why));
        goto out;
    }
    c->pid = pid;
    if (stdout_fd) {
        *stdout_fd = pipe_fd[0];
        pipe_fd[0] = -1;
    }
out:
    if (log_fd >= 0)
        close(log_fd);
    for (int i = 0; i < 2; i++) {
        if (pipe_fd[i] >= 0)
            close(pipe_fd[i]);
        if (said[i] >= 0)
            close(said[i]);
    }
    return st;
}

enum neb_status agent_child_start(struct agent_child *c, const char *what, const char *const *argv,
                                  const char *log_path, int *stdout_fd) {
    return start(c, what, argv, log_path, -1, stdout_fd);
}

enum neb_status agent_child_start_fed(struct agent_child *c, const char *what,
                                      const char *const *argv, const char *log_path, int in_fd) {
    return start(c, what, argv, log_path, in_fd, NULL);
}

bool agent_child_ended(struct agent_child *c, int *status) {
    if (!c->pid || waitpid(c->pid, status, WNOHANG) != c->pid)
        return false;
    c->pid = 0;
    return true;
}

void agent_child_signal(const struct agent_child *c, int sig) {
    if (c->pid > 0)
        kill(c->pid, sig);
}

bool agent_child_wait(struct agent_child *c, neb_ns end) {
    int status;
    while (c->pid && !agent_child_ended(c, &status)) {
        if (neb_now() >= end)
            return false;
        neb_sleep(10 * NEB_MS);
    }
    return true;
}

void agent_child_stop(struct agent_child *c, neb_ns grace) {
    int status;
    if (!c->pid)
        return;
    agent_child_signal(c, SIGTERM);
    if (agent_child_wait(c, neb_now() + grace))
        return;
    neb_warn("%s (pid %d) did not end in %.0f s; killing it", c->what, (int)c->pid,
             neb_seconds(grace));
    agent_child_signal(c, SIGKILL);
    for (neb_ns end = neb_now() + KILLED_S * NEB_S; neb_now() < end; neb_sleep(NEB_MS))
        if (agent_child_ended(c, &status))
            return;
    neb_warn("%s (pid %d) did not end after SIGKILL: it hangs in the kernel (a driver or a disk); "
             "leaving it behind",
             c->what, (int)c->pid);
    c->pid = 0;
}

const char *agent_child_reason(int status, char *buf, size_t cap) {
    if (WIFEXITED(status))
        snprintf(buf, cap, "exit status %d", WEXITSTATUS(status));
    else if (WIFSIGNALED(status))
        snprintf(buf, cap, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(buf, cap, "status 0x%x", (unsigned)status);
    return buf;
}

enum neb_status agent_child_read_json(int fd, neb_ns timeout, json_t **out) {
    char line[8192] = "";
    size_t n = 0;
    for (neb_ns end = neb_now() + timeout;
         n + 1 < sizeof line && neb_now() < end && !strchr(line, '\n');) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 100) <= 0)
            continue;
        ssize_t k = read(fd, line + n, sizeof line - 1 - n);
        if (k <= 0)
            break;
        n += (size_t)k;
        line[n] = 0;
    }
    *out = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
    return *out ? NEB_OK : NEB_ERR_TIMEOUT;
}

// The path from which this program was started. Linux appends " (deleted)" to the path of a
// replaced file (upgrade, build).
static enum neb_status started_from(char *out, size_t cap) {
    static const char deleted[] = " (deleted)";
    ssize_t n = readlink(own_exe, out, cap - 1);
    if (n < 0)
        return neb_fail_errno("cannot read %s", own_exe);
    out[n] = 0;
    size_t tail = sizeof deleted - 1;
    if ((size_t)n > tail && !strcmp(out + n - tail, deleted) && access(out, F_OK) != 0)
        out[n - (ssize_t)tail] = 0;
    return NEB_OK;
}

enum neb_status agent_self_path(char *out, size_t cap) {
    NEB_TRY(started_from(out, cap));
    if (access(out, X_OK) != 0) // no file took its place: /proc/PID/exe still executes this program
        snprintf(out, cap, "/proc/%ld/exe", (long)getpid());
    return NEB_OK;
}

enum neb_status agent_helper_path(const char *name, char *out, size_t cap) {
    static const char *const places[] = {"", "../libexec/nebula/"};
    char self[NEB_PATH_MAX], file[NEB_PATH_MAX];
    NEB_TRY(started_from(self, sizeof self));
    char *slash = strrchr(self, '/');
    NEB_ASSERT(slash);
    *slash = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(file, sizeof file, "%s%s", places[i], name);
        NEB_TRY(neb_path(out, cap, self, file));
        if (access(out, X_OK) == 0)
            return NEB_OK;
    }
    return neb_fail(NEB_ERR_NOT_FOUND,
                    "%s is neither in %s nor in its ../libexec/nebula; build it (cmake --build "
                    "build) or reinstall the nebula package",
                    name, self);
}

bool agent_program_find(const char *name, char *out, size_t cap) {
    const char *path = getenv("PATH");
    for (const char *p = path ? path : "/usr/local/bin:/usr/bin:/bin"; *p;) {
        size_t n = strcspn(p, ":");
        if (n && snprintf(out, cap, "%.*s/%s", (int)n, p, name) < (int)cap &&
            access(out, X_OK) == 0)
            return true;
        p += n + (p[n] == ':');
    }
    return false;
}
