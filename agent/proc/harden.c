// SPDX-License-Identifier: Apache-2.0
#include "agent/proc/harden.h"

#include "agent/base/log.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

rlim_t agent_descriptors(const struct rlimit *r) {
    const rlim_t most = 65536;
    rlim_t raised = r->rlim_max < most ? r->rlim_max : most;
    return r->rlim_cur > raised ? r->rlim_cur : raised;
}

void agent_harden(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < agent_descriptors(&r)) {
        r.rlim_cur = agent_descriptors(&r);
        if (setrlimit(RLIMIT_NOFILE, &r) != 0)
            neb_warn("cannot raise the limit of open files: %s", strerror(errno));
    }
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < AGENT_DESCRIPTORS_LEAST)
        neb_warn("the limit of open files is %llu: too low for many peers or a flood of "
                 "connections; set ulimit -n 65536, or LimitNOFILE= in the agent's unit",
                 (unsigned long long)r.rlim_cur);
    agent_harden_keys(false);
    if (geteuid() == 0)
        neb_warn(
            "this agent runs as root, which it does not need: a security flaw in it would expose "
            "the whole machine; run it as its own user (configs/systemd/nebula-agent.service)");
}

void agent_harden_home(const char *home) {
    struct stat sb;
    if (stat(home, &sb) == 0 && sb.st_mode & 077)
        neb_warn("other users can read %s (mode %03o), which holds keys, checkpoints and logs: "
                 "chmod 700 %s",
                 home, (unsigned)(sb.st_mode & 0777), home);
}

void agent_harden_keys(bool ranks) {
    struct rlimit none = {0, 0};
    if (getrlimit(RLIMIT_CORE, &none) == 0)
        none.rlim_cur = 0;
    bool off = setrlimit(RLIMIT_CORE, &none) == 0;
#if !defined(__SANITIZE_ADDRESS__) // AddressSanitizer's leak check attaches to the process
    off = off && (ranks || prctl(PR_SET_DUMPABLE, 0) == 0);
#else
    (void)ranks;
#endif
    if (!off)
        neb_warn("cannot turn off core dumps: %s", strerror(errno));
}
