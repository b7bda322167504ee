// SPDX-License-Identifier: Apache-2.0
#include "intra/read/convert.h"
#include "agent/base/plain.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern const unsigned char intra_rows_py[]; // rows.py, with a NUL after it

enum { SAID_MAX = 64 << 10, NO_PROGRAM = 127, FILES_MAX = 64 };
static const char hint[] =
    "pip install pyarrow (NEBULA_PYTHON names the interpreter of a virtual environment)";

static void limit(int what, uint64_t most) {
    struct rlimit l;
    if (getrlimit(what, &l) == 0 && (l.rlim_max == RLIM_INFINITY || l.rlim_max > most)) {
        l.rlim_cur = l.rlim_max = most;
        (void)!setrlimit(what, &l);
    }
}

// Runs between fork and exec.
static _Noreturn void exec_python(char *const *argv, int out, int said, pid_t parent,
                                  uint64_t memory) {
    int none = open("/dev/null", O_RDONLY);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || none < 0 || dup2(none, 0) < 0 || dup2(out, 1) < 0 ||
        dup2(said, 2) < 0)
        _exit(NO_PROGRAM);
    close_range(3, ~0u, 0);
    if (unshare(CLONE_NEWNET) != 0) // needs root; else a namespace of its own for users
        (void)!unshare(CLONE_NEWUSER | CLONE_NEWNET);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, SAID_MAX);
    limit(RLIMIT_NOFILE, FILES_MAX);
    limit(RLIMIT_AS, memory);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    signal(SIGINT, SIG_IGN); // the command decides
    sigset_t open_set;
    sigemptyset(&open_set);
    sigprocmask(SIG_SETMASK, &open_set, NULL);
    execvp(argv[0], argv);
    _exit(NO_PROGRAM);
}

static uint64_t memory_limit(void) {
    uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), least = 8;
    return all > least << 30 ? all : least << 30; // of addresses: more than it ever touches
}

enum neb_status intra_convert_open(const char *kind, const char *path, const char *column,
                                   struct intra_input **out) {
    const char *python = getenv("NEBULA_PYTHON");
    const char *const argv[] = {python && *python ? python : "python3",
                                "-c",
                                (const char *)intra_rows_py,
                                kind,
                                path,
                                column,
                                NULL};
    int pipe_fd[2] = {-1, -1}, said = memfd_create("nebula-rows", MFD_CLOEXEC);
    FILE *f = NULL, *text = NULL;
    *out = NULL;
    if (said < 0 || pipe2(pipe_fd, O_CLOEXEC) != 0 || !(text = fdopen(said, "r")) ||
        !(f = fdopen(pipe_fd[0], "r"))) {
        enum neb_status st = neb_fail_errno("cannot start a converter for %s", path);
        if (text)
            fclose(text);
        else if (said >= 0)
            close(said);
        for (int i = 0; i < 2; i++)
            if (pipe_fd[i] >= 0)
                close(pipe_fd[i]);
        return st;
    }
    uint64_t memory = memory_limit();
    pid_t parent = getpid(), child = fork();
    if (child == 0)
        exec_python((char *const *)(uintptr_t)argv, pipe_fd[1], said, parent, memory);
    close(pipe_fd[1]);
    if (child < 0) {
        enum neb_status st = neb_fail_errno("cannot start a converter for %s", path);
        fclose(f);
        fclose(text);
        return st;
    }
    return intra_input_take(f, path, child, text, out);
}

static int reap(pid_t *child) {
    int status = 0;
    while (waitpid(*child, &status, 0) < 0 && errno == EINTR) {
    }
    *child = 0;
    return status;
}

enum neb_status intra_convert_end(pid_t *child, FILE *said, const char *path) {
    char line[1024] = "", next[1024];
    int status = reap(child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return NEB_OK;
    rewind(said);
    while (fgets(next, sizeof next, said)) // the last line says what is wrong
        if (next[strspn(next, " \n")])
            memcpy(line, next, sizeof line);
    line[strcspn(line, "\n")] = 0;
    neb_plain(line, false);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_PROGRAM)
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "%s: reading it needs python3 with Apache Arrow, and %s cannot be started; "
                        "%s",
                        path, getenv("NEBULA_PYTHON") ? getenv("NEBULA_PYTHON") : "python3", hint);
    if (strstr(line, "No module named"))
        return neb_fail(NEB_ERR_NOT_FOUND, "%s: reading it needs Apache Arrow for Python; %s", path,
                        hint);
    if (WIFSIGNALED(status))
        return neb_fail(NEB_ERR_FORMAT, "%s: Apache Arrow was killed by signal %d while reading it",
                        path, WTERMSIG(status));
    return neb_fail(NEB_ERR_FORMAT, "%s: %s", path, *line ? line : "Apache Arrow cannot read it");
}

void intra_convert_stop(pid_t *child) {
    kill(*child, SIGKILL);
    (void)reap(child);
}
