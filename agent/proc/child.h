// SPDX-License-Identifier: Apache-2.0
// Child processes: the workers of an agent; the agents and the WAN emulator of `--local N`.
//
// A child dies with its parent (PR_SET_PDEATHSIG), writes to a log file, and is signalled only by
// its pid.
#ifndef AGENT_CHILD_H
#define AGENT_CHILD_H
#include "agent/base/clock.h"
#include "agent/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

struct agent_child {
    pid_t pid; // 0: not running
    char what[64];
};

// Starts argv[0]; argv is NULL-terminated. Appends stdout and stderr to log_path; NULL: inherited.
// stdout_fd, if not NULL: stdout goes to a pipe, and the caller closes this read end. Errors are
// logged: argv[0] cannot be started, or the log cannot be opened.
NEB_MUST_CHECK enum neb_status agent_child_start(struct agent_child *c, const char *what,
                                                 const char *const *argv, const char *log_path,
                                                 int *stdout_fd);
// The same with in_fd as the standard input (borrowed).
NEB_MUST_CHECK enum neb_status agent_child_start_fed(struct agent_child *c, const char *what,
                                                     const char *const *argv, const char *log_path,
                                                     int in_fd);
// True once the child has ended; *status is that of waitpid. Never blocks.
bool agent_child_ended(struct agent_child *c, int *status);
// Waits until the child has ended (true) or until the time `end` (false). True if none is running.
bool agent_child_wait(struct agent_child *c, neb_ns end);
// Sends SIGTERM, waits up to `grace`, then sends SIGKILL and reaps the child. A child that hangs in
// the kernel cannot be killed: after ten seconds this warns and leaves it behind. Does nothing if
// none is running.
void agent_child_stop(struct agent_child *c, neb_ns grace);
// Does nothing if none is running.
void agent_child_signal(const struct agent_child *c, int sig);
// Writes "exit status 1" or "killed by signal 9" to buf and returns it.
const char *agent_child_reason(int status, char *buf, size_t cap);
// Reads one line of JSON from stdout_fd of a child. NEB_ERR_TIMEOUT: no line came in time, or it is
// not JSON.
NEB_MUST_CHECK enum neb_status agent_child_read_json(int fd, neb_ns timeout, json_t **out);
// The path of the nebula binary; if it was replaced at run time, the path of its replacement. If
// the file is gone: "/proc/PID/exe", which works while this process lives.
NEB_MUST_CHECK enum neb_status agent_self_path(char *out, size_t cap);
// Finds a program in PATH. False: it is not there.
bool agent_program_find(const char *name, char *out, size_t cap);
// The path of a program that belongs to nebula (wanlink): beside the binary in a build folder, or
// in ../libexec/nebula of an installation. NEB_ERR_NOT_FOUND: in neither.
NEB_MUST_CHECK enum neb_status agent_helper_path(const char *name, char *out, size_t cap);

#endif
