// SPDX-License-Identifier: Apache-2.0
// Child processes: workers of an agent, agents and the WAN emulator of `--local N`.
//
// A child dies with its parent (PR_SET_PDEATHSIG), writes to a log file, and is only ever signalled by its own pid.
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

// Starts argv[0] (NULL-terminated argv). log_path: stdout and stderr are appended there (NULL: inherited).
// stdout_fd: if not NULL, stdout goes into a pipe whose read end is returned here, the caller's to close.
// NEB_ERR_IO and such: argv[0] cannot be started, or the log not opened.
NEB_MUST_CHECK enum neb_status agent_child_start(struct agent_child *c, const char *what,
                                                 const char *const *argv, const char *log_path,
                                                 int *stdout_fd);
// The same with `in_fd` as its standard input (borrowed).
NEB_MUST_CHECK enum neb_status agent_child_start_fed(struct agent_child *c, const char *what,
                                                     const char *const *argv, const char *log_path,
                                                     int in_fd);
// True once the child has ended; *status as from waitpid. Never blocks.
bool agent_child_ended(struct agent_child *c, int *status);
// Until it has ended, or `end`: false. True at once where it is not running.
bool agent_child_wait(struct agent_child *c, neb_ns end);
// SIGTERM, up to `grace` to end, then SIGKILL. Reaps it, unless it hangs in the kernel, where no signal reaches it: after ten seconds it is
// left behind with a warning. Fine when not running.
void agent_child_stop(struct agent_child *c, neb_ns grace);
// Nothing where it is not running.
void agent_child_signal(const struct agent_child *c, int sig);
// "exit status 1", "killed by signal 9": into buf.
const char *agent_child_reason(int status, char *buf, size_t cap);
// One line of JSON that a child writes, read from stdout_fd. NEB_ERR_TIMEOUT: it did not come, or was none.
NEB_MUST_CHECK enum neb_status agent_child_read_json(int fd, neb_ns timeout, json_t **out);
// Path of the nebula binary; of the one in its place, where it was replaced while it runs; "/proc/PID/exe" where it is gone, which works as long as
// this process lives.
NEB_MUST_CHECK enum neb_status agent_self_path(char *out, size_t cap);
// Path of a program that belongs to nebula (wanlink): beside it in a build folder, in its ../libexec/nebula where it is installed.
// NEB_ERR_NOT_FOUND: neither.
NEB_MUST_CHECK enum neb_status agent_helper_path(const char *name, char *out, size_t cap);

#endif
