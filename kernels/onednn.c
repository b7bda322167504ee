// SPDX-License-Identifier: Apache-2.0
// Finds oneDNN at run time (onednn.h).
#include "kernels/onednn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

struct version { // the beginning of dnnl_version_t
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime;
};
enum { SEQUENTIAL = 1, OPENMP = 2 };

static struct onednn the;

// oneDNN writes machine code at the first use of a kernel. Where that is forbidden its calls fail
// without a reason.
static bool may_write_code(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return false;
    bool may = mprotect(p, page, PROT_READ | PROT_EXEC) == 0;
    munmap(p, page);
    return may;
}

static const char *load(struct onednn *d) {
    static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2"};
    union {
        void *p;
        onednn_sgemm *sgemm;
        void (*threads)(int);
        const struct version *(*version)(void);
    } sgemm, version, threads;
    void *so = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !so; i++)
        so = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return "oneDNN is not installed (Debian: libdnnl2)";
    if (!may_write_code())
        return "oneDNN is not allowed to make memory executable here (systemd: "
               "MemoryDenyWriteExecute)";
    sgemm.p = dlsym(so, "dnnl_sgemm");
    version.p = dlsym(so, "dnnl_version");
    threads.p = dlsym(so, "omp_set_num_threads"); // of the OpenMP that oneDNN is linked with
    if (!version.p)
        return "this machine's oneDNN does not report its version";
    const struct version *v = version.version();
    if (v->cpu_runtime != SEQUENTIAL && (v->cpu_runtime != OPENMP || !threads.p))
        return "this machine's oneDNN uses threads other than OpenMP's";
    d->omp_threads = v->cpu_runtime == OPENMP ? threads.threads : NULL;
    d->sgemm = sgemm.sgemm;
    d->major = v->major;
    d->minor = v->minor;
    return NULL;
}

static void find_once(void) { the.missing = load(&the); }

const struct onednn *onednn_find(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_once);
    return &the;
}
