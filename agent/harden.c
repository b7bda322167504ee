#include "agent/harden.h"

#include "agent/base/log.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { DESCRIPTORS_MAX = 65536 };

void agent_harden(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max < DESCRIPTORS_MAX ? r.rlim_max : DESCRIPTORS_MAX;
        if (setrlimit(RLIMIT_NOFILE, &r) != 0)
            neb_warn("the limit of open files stays low: %s", strerror(errno));
    }
#if !defined(__SANITIZE_ADDRESS__) // its leak check attaches to the process
    if (prctl(PR_SET_DUMPABLE, 0) != 0)
        neb_warn("core dumps stay on: %s", strerror(errno));
#endif
}
