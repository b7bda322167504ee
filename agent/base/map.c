// SPDX-License-Identifier: Apache-2.0
// Read-only maps of whole files. A page that cannot be read (disk failure, truncated file) ends the
// process with SIGBUS; the handler first prints the name of the file.
#include "agent/base/fs.h"
#include "agent/base/moved.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMED_MAX = 256, NAME_MAX_BYTES = 256 }; // further maps stay unnamed

static struct named {
    _Atomic(const uint8_t *) p; // NULL: this entry is free
    size_t len;
    char path[NAME_MAX_BYTES];
} named[NAMED_MAX];
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;

static void name_map(const struct neb_map *m, const char *path) {
    pthread_mutex_lock(&naming);
    for (size_t i = 0; i < NAMED_MAX; i++)
        if (!atomic_load(&named[i].p)) {
            named[i].len = m->len;
            snprintf(named[i].path, sizeof named[i].path, "%s", path);
            atomic_store(&named[i].p, m->p);
            break;
        }
    pthread_mutex_unlock(&naming);
}

static void forget(const struct neb_map *m) {
    pthread_mutex_lock(&naming);
    for (size_t i = 0; i < NAMED_MAX; i++)
        if (atomic_load(&named[i].p) == m->p) {
            atomic_store(&named[i].p, NULL);
            break;
        }
    pthread_mutex_unlock(&naming);
}

static void say(const char *text) {
    ssize_t n = write(STDERR_FILENO, text, strlen(text));
    (void)n;
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    const uint8_t *at = info->si_addr;
    (void)signal, (void)context;
    for (size_t i = 0; i < NAMED_MAX; i++) {
        const uint8_t *p = atomic_load(&named[i].p);
        if (p && at >= p && at < p + named[i].len) {
            say("nebula: ");
            say(named[i].path);
            say(" cannot be read any more: the disk failed, or the file was truncated while in "
                "use\n");
        }
    }
} // SA_RESETHAND: the access faults again, now with the default action

void neb_map_watch(void) {
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | (int)SA_RESETHAND};
    (void)sigaction(SIGBUS, &a, NULL);
}

enum neb_status neb_map_open(const char *path, struct neb_map *out) {
    struct stat info;
    *out = (struct neb_map){0};
    // does not block on a FIFO, which is refused below
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return neb_fail_errno("cannot open %s", path);
    enum neb_status st = NEB_OK;
    if (fstat(fd, &info) != 0) {
        st = neb_fail_errno("cannot stat %s", path);
    } else if (!S_ISREG(info.st_mode)) {
        st = neb_fail(NEB_ERR_INVALID, "%s is not a regular file", path);
    } else if (info.st_size > 0) {
        void *p = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            st = errno == ENOMEM
                     ? neb_fail(NEB_ERR_NOMEM,
                                "cannot map %s: no address space, or more maps than this system "
                                "allows a process (sysctl vm.max_map_count)",
                                path)
                     : neb_fail_errno("cannot map %s", path);
        else
            *out = (struct neb_map){.p = p, .len = (size_t)info.st_size};
        if (st == NEB_OK)
            name_map(out, path);
    }
    close(fd);
    return st;
}

enum neb_status neb_map_read(const struct neb_map *m, const char *path) {
    for (size_t at = 0; at < m->len;) {
        size_t piece = m->len - at < NEB_MOVED_PIECE ? m->len - at : NEB_MOVED_PIECE;
        if (madvise((void *)(uintptr_t)(m->p + at), piece, MADV_POPULATE_READ) == 0) {
            neb_moved_add(piece);
            at += piece;
        } else if (errno == EFAULT || errno == EIO) {
            return neb_fail(NEB_ERR_IO,
                            "cannot read %s: the disk failed, or the file was truncated", path);
        } else if (errno != EINTR && errno != EAGAIN) {
            break; // kernel before 5.14: a bad page shows at first use
        }
    }
    return NEB_OK;
}

void neb_map_close(struct neb_map *m) {
    if (m->p) {
        forget(m);
        munmap((void *)(uintptr_t)m->p, m->len);
    }
    *m = (struct neb_map){0};
}
