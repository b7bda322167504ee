// SPDX-License-Identifier: Apache-2.0
#include "agent/proc/home_lock.h"
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static const neb_ns lock_wait = 2 * NEB_S;

// Writes "process 4711 on host node3", as far as it is known.
static void who_holds(int fd, char *out, size_t cap) {
    char text[128] = "", host[80] = "";
    long pid = 0;
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    if (sscanf(text, "%ld %79s", &pid, host) == 2 && pid > 0)
        snprintf(out, cap, "process %ld on host %s", pid, host);
    else
        snprintf(out, cap, "an unknown process");
}

static enum neb_status taken(int fd, const char *home, const char *path) {
    char who[128];
    who_holds(fd, who, sizeof who);
    return neb_fail(NEB_ERR_STATE,
                    "another agent uses the home %s (%s holds %s): stop it, or give this agent its "
                    "own home (--home)",
                    home, who, path);
}

static enum neb_status sign_in(int fd, const char *path) {
    char text[128], host[80] = "?";
    if (gethostname(host, sizeof host - 1) != 0 || !host[0])
        snprintf(host, sizeof host, "?");
    int n = snprintf(text, sizeof text, "%ld %s\n", (long)getpid(), host);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        neb_warn("cannot note this process in %s: %s", path,
                 strerror(errno)); // the lock holds nevertheless
    return NEB_OK;
}

enum neb_status agent_home_lock(const char *home, int *fd) {
    char path[NEB_PATH_MAX];
    enum neb_status st = NEB_OK;
    NEB_TRY(neb_path(path, sizeof path, home, "agent.lock"));
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0)
        return neb_fail_errno("cannot open %s", path);
    for (neb_ns end = neb_now() + lock_wait; flock(*fd, LOCK_EX | LOCK_NB) != 0;) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            NEB_TRY_GOTO(neb_fail_errno("cannot lock %s", path), out);
        if (neb_now() >= end)
            NEB_TRY_GOTO(taken(*fd, home, path), out);
        neb_sleep(20 * NEB_MS);
    }
    st = sign_in(*fd, path);
out:
    if (st != NEB_OK) {
        close(*fd);
        *fd = -1;
    }
    return st;
}
