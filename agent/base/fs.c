// SPDX-License-Identifier: Apache-2.0
#include "agent/base/fs.h"
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/moved.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { WRITE_BUFFER_BYTES = 1 << 20, PUSH_BYTES = 64 << 20 };

enum neb_status neb_path(char *out, size_t cap, const char *dir, const char *name) {
    int n = snprintf(out, cap, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= cap)
        return neb_fail(NEB_ERR_LIMIT, "path too long: %s/%s", dir, name);
    return NEB_OK;
}

void neb_path_folder(char *out, size_t cap, const char *path) {
    const char *slash = strrchr(path, '/');
    int n = !slash || slash == path ? 1 : (int)(slash - path);
    snprintf(out, cap, "%.*s", n, slash ? path : ".");
}

enum neb_status neb_path_home(char *out, size_t cap, const char *text, const char *what) {
    const char *home = getenv("HOME"), *cache = getenv("XDG_CACHE_HOME"), *in = NULL;
    const char *rest = text;
    if (!strncmp(text, "~/.cache/", 9) && cache && *cache)
        in = cache, rest = text + 8;
    else if (!strncmp(text, "~/", 2) && home && *home)
        in = home, rest = text + 1;
    else if (!strncmp(text, "~/", 2))
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "%s: '~' needs HOME in the environment; set HOME, or write the full path",
                        what);
    int n = snprintf(out, cap, "%s%s", in ? in : "", rest);
    return n >= 0 && (size_t)n < cap ? NEB_OK
                                     : neb_fail(NEB_ERR_LIMIT, "%s: path too long: %s", what, text);
}

enum neb_status neb_path_absolute(char *path, size_t cap, const char *what) {
    char *full = realpath(path, NULL);
    if (!full)
        return neb_fail_errno("%s: cannot find %s", what, path);
    bool fits = strlen(full) < cap;
    if (fits)
        memcpy(path, full, strlen(full) + 1);
    free(full);
    return fits ? NEB_OK : neb_fail(NEB_ERR_LIMIT, "%s: path too long", what);
}

bool neb_path_within(const char *path, const char *folder) {
    size_t n = strlen(folder);
    while (n && folder[n - 1] == '/')
        n--;
    return !strncmp(path, folder, n) && (path[n] == '/' || !path[n]);
}

bool neb_fs_exists(const char *path) {
    return access(path, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool neb_fs_fits(const char *path, uint64_t bytes) {
    struct statvfs v;
    return statvfs(path, &v) != 0 || v.f_bavail * (uint64_t)v.f_frsize >= bytes;
}

bool neb_fs_std_open(void) {
    for (int fd = 0; fd <= 2; fd++)
        // open takes the lowest free one
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return false;
    return true;
}

enum neb_status neb_fs_mkdirs(const char *path, mode_t mode) {
    char buf[NEB_PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof buf)
        return neb_fail(n ? NEB_ERR_LIMIT : NEB_ERR_INVALID, "cannot create folder \"%.60s%s\": %s",
                        path, n > 60 ? "…" : "", n ? "the path is too long" : "its name is empty");
    memcpy(buf, path, n + 1);
    for (char *p = buf + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char keep = *p;
        *p = 0;
        if (mkdir(buf, mode) != 0 && errno != EEXIST)
            return neb_fail_errno("cannot create folder %s", buf);
        *p = keep;
        if (!keep)
            break;
    }
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return neb_fail(NEB_ERR_EXISTS, "%s exists and is not a folder", path);
    return NEB_OK;
}

enum neb_status neb_fs_private(const char *path, bool make) {
    struct stat info;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (make ? O_CREAT : 0), 0600);
    if (fd < 0)
        return errno == ENOENT && !make ? NEB_OK : neb_fail_errno("cannot open %s", path);
    bool ok = fstat(fd, &info) == 0 && (!(info.st_mode & 077) || fchmod(fd, 0600) == 0);
    enum neb_status st = ok ? NEB_OK : neb_fail_errno("cannot set mode 0600 on %s", path);
    close(fd);
    return st;
}

// O_NONBLOCK: open(2) of a named pipe without a writer would block. neb_fs_read then refuses it.
static int open_at_once(const char *path) { return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); }

// A shell's pipe ("<(command)", or /dev/stdin behind "|") has no name in the file system.
static bool has_name(const char *path) {
    char *real = realpath(path, NULL);
    bool named = real != NULL;
    free(real);
    return named;
}

enum neb_status neb_fs_stream_open(const char *path, FILE **out) {
    struct stat info;
    enum neb_status st = NEB_OK;
    bool pipe = stat(path, &info) == 0 && S_ISFIFO(info.st_mode);
    if (pipe && has_name(path))
        neb_info("waiting for the writer of the named pipe %s", path);
    int fd = pipe ? open(path, O_RDONLY | O_CLOEXEC) : open_at_once(path), flags;
    if (fd < 0)
        return neb_fail_errno("cannot open %s", path);
    if (fstat(fd, &info) != 0)
        st = neb_fail_errno("cannot stat %s", path);
    else if (!S_ISREG(info.st_mode) && !S_ISFIFO(info.st_mode))
        st = neb_fail(NEB_ERR_INVALID, "%s is not a regular file", path);
    else if ((flags = fcntl(fd, F_GETFL)) < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0 ||
             !(*out = fdopen(fd, "r")))
        st = neb_fail_errno("cannot read %s", path);
    if (st != NEB_OK)
        close(fd);
    return st;
}

enum neb_status neb_fs_close(FILE *f, const char *path) {
    bool lost = ferror(f); // errno is no longer that of this write
    if (fclose(f) != 0)
        return neb_fail_errno("cannot write %s", path);
    return lost ? neb_fail(NEB_ERR_IO, "cannot write %s: an earlier write failed", path) : NEB_OK;
}

enum neb_status neb_fs_read(const char *path, size_t max, struct neb_buf *out) {
    enum neb_status st = NEB_OK;
    struct stat info;
    int fd = open_at_once(path);
    if (fd < 0)
        return neb_fail_errno("cannot open %s", path);
    if (fstat(fd, &info) != 0) {
        st = neb_fail_errno("cannot stat %s", path);
        goto out;
    }
    if (!S_ISREG(info.st_mode)) {
        st = neb_fail(NEB_ERR_INVALID, "%s is not a regular file", path);
        goto out;
    }
    if ((uint64_t)info.st_size > max) {
        st = neb_fail(NEB_ERR_LIMIT, "%s: %lld bytes, at most %zu are accepted", path,
                      (long long)info.st_size, max);
        goto out;
    }
    neb_buf_clear(out);
    NEB_TRY_GOTO(neb_buf_reserve(out, (size_t)info.st_size + 1), out);
    while (out->len < (size_t)info.st_size) {
        ssize_t k = read(fd, out->p + out->len, (size_t)info.st_size - out->len);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0) {
            st = neb_fail_errno("cannot read %s", path);
            goto out;
        }
        if (k == 0)
            break;
        out->len += (size_t)k;
    }
    out->p[out->len] = 0; // not counted; makes text a C string
out:
    close(fd);
    return st;
}

enum neb_status neb_fs_sync_dir(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return neb_fail_errno("cannot open folder %s", dir);
    int rc = neb_fault("fs.folder") ? (errno = EIO, -1) : fsync(fd);
    enum neb_status st = rc == 0 ? NEB_OK : neb_fail_errno("cannot sync folder %s", dir);
    close(fd);
    return st;
}

struct neb_fs_writer {
    int fd;
    char path[NEB_PATH_MAX], tmp[NEB_PATH_MAX];
    uint8_t *buf;
    size_t len, most;                  // len: bytes in buf; most: its maximum so far
    bool secret;                       // mode is for this user only: the file may hold a key
    uint64_t written, pushed;          // bytes in the file; bytes known to be on disk
    const struct neb_vault_ops *vault; // NULL: the file is in clear
    void *seal;
};

enum neb_status neb_fs_writer_open(const char *path, mode_t mode, struct neb_fs_writer **out) {
    enum neb_status st = NEB_OK;
    struct neb_fs_writer *w = calloc(1, sizeof *w);
    if (!w || !(w->buf = malloc(WRITE_BUFFER_BYTES))) {
        free(w);
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    }
    w->fd = -1;
    w->secret = !(mode & 077);
    if (strlen(path) + 5 > sizeof w->path) {
        st = neb_fail(NEB_ERR_LIMIT, "path too long: %s", path);
        goto fail;
    }
    strncpy(w->path, path, sizeof w->path - 1);
    snprintf(w->tmp, sizeof w->tmp, "%.*s.tmp", NEB_PATH_MAX - 5, path);
    if (unlink(w->tmp) != 0 && errno != ENOENT) {
        st = neb_fail_errno("cannot replace %s", w->tmp);
        goto fail;
    }
    w->fd = open(w->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (w->fd < 0) {
        st = neb_fail_errno("cannot create %s", w->tmp);
        goto fail;
    }
    *out = w;
    return NEB_OK;
fail:
    neb_fs_writer_destroy(&w);
    return st;
}

// Pushes the written data to disk in pieces. Otherwise the fsync at the end would write the whole
// file, and nobody could see its progress. A file system without this call leaves all to fsync. An
// error reported here is not reported by fsync again.
static enum neb_status keep_going(struct neb_fs_writer *w) {
    if (w->written - w->pushed < 2 * PUSH_BYTES)
        return NEB_OK;
    bool failed = sync_file_range(w->fd, (off_t)w->pushed, PUSH_BYTES,
                                  SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                      SYNC_FILE_RANGE_WAIT_AFTER) != 0 &&
                  (errno == EIO || errno == ENOSPC || errno == EDQUOT);
    if (failed)
        return neb_fail_errno("cannot write %s (%s is unchanged)", w->tmp, w->path);
    w->pushed += PUSH_BYTES;
    (void)sync_file_range(w->fd, (off_t)w->pushed, PUSH_BYTES, SYNC_FILE_RANGE_WRITE);
    return NEB_OK;
}

static enum neb_status write_all(struct neb_fs_writer *w, const uint8_t *p, size_t n) {
    while (n) {
        size_t piece = n < NEB_MOVED_PIECE ? n : NEB_MOVED_PIECE;
        ssize_t k = neb_fault("fs.write") ? (errno = ENOSPC, -1) : write(w->fd, p, piece);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return neb_fail_errno("cannot write %s (%s is unchanged)", w->tmp, w->path);
        p += k;
        n -= (size_t)k;
        w->written += (uint64_t)k;
        NEB_TRY(keep_going(w));
        neb_moved_add((uint64_t)k);
    }
    return NEB_OK;
}

static enum neb_status add_bytes(void *user, const void *src, size_t n) {
    struct neb_fs_writer *w = user;
    const uint8_t *p = src;
    if (w->len + n > WRITE_BUFFER_BYTES) {
        NEB_TRY(write_all(w, w->buf, w->len));
        w->len = 0;
        if (n >= WRITE_BUFFER_BYTES)
            return write_all(w, p, n);
    }
    if (n)
        memcpy(w->buf + w->len, p, n);
    w->len += n;
    w->most = w->len > w->most ? w->len : w->most;
    return NEB_OK;
}

enum neb_status neb_fs_writer_seal(struct neb_fs_writer *w, const struct neb_vault *vault) {
    if (!vault)
        return NEB_OK;
    NEB_TRY(vault->ops->begin(vault->ctx, add_bytes, w, &w->seal));
    w->vault = vault->ops;
    return NEB_OK;
}

enum neb_status neb_fs_writer_add(struct neb_fs_writer *w, const void *src, size_t n) {
    return w->vault ? w->vault->add(w->seal, src, n) : add_bytes(w, src, n);
}

enum neb_status neb_fs_writer_commit(struct neb_fs_writer *w) {
    char dir[NEB_PATH_MAX];
    if (w->vault)
        NEB_TRY(w->vault->end(w->seal));
    NEB_TRY(write_all(w, w->buf, w->len));
    w->len = 0;
    if (neb_fault("fs.fsync") ? (errno = EIO, true) : fsync(w->fd) != 0)
        return neb_fail_errno("cannot sync %s (%s is unchanged)", w->tmp, w->path);
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0) {
        unlink(w->tmp);
        return neb_fail_errno("cannot close %s", w->tmp);
    }
    if (neb_fault("fs.rename") ? (errno = EIO, true) : rename(w->tmp, w->path) != 0) {
        enum neb_status st = neb_fail_errno("cannot rename %s to %s", w->tmp, w->path);
        unlink(w->tmp);
        return st;
    }
    neb_path_folder(dir, sizeof dir, w->path);
    return neb_fs_sync_dir(dir);
}

void neb_fs_writer_destroy(struct neb_fs_writer **wp) {
    struct neb_fs_writer *w = *wp;
    if (!w)
        return;
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->tmp);
    }
    if (w->vault)
        w->vault->drop(w->seal);
    if (w->secret)
        explicit_bzero(w->buf, w->most);
    free(w->buf);
    free(w);
    *wp = NULL;
}

enum neb_status neb_fs_write(const char *path, const void *p, size_t n, mode_t mode) {
    enum neb_status st = NEB_OK;
    struct neb_fs_writer *w = NULL;
    NEB_TRY_GOTO(neb_fs_writer_open(path, mode, &w), out);
    NEB_TRY_GOTO(neb_fs_writer_add(w, p, n), out);
    NEB_TRY_GOTO(neb_fs_writer_commit(w), out);
out:
    neb_fs_writer_destroy(&w);
    return st;
}

enum neb_status neb_fs_copy(const char *from, const char *to, mode_t mode) {
    struct neb_map map;
    NEB_TRY(neb_map_open(from, &map));
    enum neb_status st = neb_fs_write(to, map.p, map.len, mode);
    neb_map_close(&map);
    return st;
}

enum neb_status neb_fs_remove(const char *path) {
    if (neb_fault("unlink") ? (errno = EIO, true) : unlink(path) != 0 && errno != ENOENT)
        return neb_fail_errno("cannot remove %s", path);
    return NEB_OK;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *ftw) {
    (void)ftw;
    if (remove(path) != 0)
        return -1;
    if (type == FTW_F) // removing many large files takes seconds
        neb_moved_add((uint64_t)info->st_size);
    return 0;
}

enum neb_status neb_fs_remove_tree(const char *path) {
    if (nftw(path, remove_entry, 32, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return neb_fail_errno("cannot remove %s", path);
    return NEB_OK;
}
