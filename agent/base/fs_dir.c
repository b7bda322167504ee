// SPDX-License-Identifier: Apache-2.0
// Builds a folder under a temporary name, by one process at a time, and moves it into place.
// rename(2) alone cannot replace a folder that is not empty.
#include "agent/base/fault.h"
#include "agent/base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int sync_entry(const char *path, const struct stat *info, int type, struct FTW *ftw) {
    (void)info, (void)ftw;
    if (type != FTW_F && type != FTW_DP)
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    int rc = neb_fault("fs.sync") ? (errno = EIO, -1) : fsync(fd);
    close(fd);
    return rc;
}

static enum neb_status move(const char *from, const char *to) {
    if (neb_fault("fs.rename") ? (errno = EIO, true) : rename(from, to) != 0)
        return neb_fail_errno("cannot rename %s to %s", from, to);
    return NEB_OK;
}

static enum neb_status sync_parent(const char *path) {
    char parent[NEB_PATH_MAX];
    neb_path_folder(parent, sizeof parent, path);
    return neb_fs_sync_dir(parent);
}

static enum neb_status old_name(const char *to, char *out, size_t cap) {
    return (size_t)snprintf(out, cap, "%s.nebula-old", to) < cap
               ? NEB_OK
               : neb_fail(NEB_ERR_LIMIT, "path too long: %s", to);
}

// For file systems that cannot exchange two names. Between the two renames `to` does not exist;
// neb_fs_mend_dir repairs a crash there.
static enum neb_status replace_aside(const char *from, const char *to) {
    char old[NEB_PATH_MAX];
    NEB_TRY(old_name(to, old, sizeof old));
    NEB_TRY(neb_fs_remove_tree(old));
    NEB_TRY(move(to, old));
    enum neb_status st = move(from, to);
    if (st != NEB_OK) {
        if (rename(old, to) != 0)
            return neb_fail_errno("cannot rename %s back to %s; rename it by hand", old, to);
        return st;
    }
    NEB_TRY(sync_parent(to));
    return neb_fs_remove_tree(old);
}

enum neb_status neb_fs_replace_dir(const char *from, const char *to) {
    if (nftw(from, sync_entry, 32, FTW_DEPTH | FTW_PHYS) != 0)
        return neb_fail_errno("cannot sync %s", from);
    if (!neb_fs_exists(to)) {
        NEB_TRY(move(from, to));
        return sync_parent(to);
    }
    int rc = neb_fault("fs.exchange") ? (errno = EINVAL, -1)
                                      : renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE);
    if (rc != 0 && (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP))
        return replace_aside(from, to);
    if (rc != 0)
        return neb_fail_errno("cannot exchange %s and %s", from, to);
    NEB_TRY(sync_parent(to));
    return neb_fs_remove_tree(from); // the previous `to`
}

enum neb_status neb_fs_mend_dir(const char *to) {
    char old[NEB_PATH_MAX];
    NEB_TRY(old_name(to, old, sizeof old));
    if (neb_fs_exists(to) || !neb_fs_exists(old))
        return NEB_OK;
    NEB_TRY(move(old, to));
    return sync_parent(to);
}

static enum neb_status lock_name(const char *aside, char out[NEB_PATH_MAX]) {
    return snprintf(out, NEB_PATH_MAX, "%s.lock", aside) < NEB_PATH_MAX
               ? NEB_OK
               : neb_fail(NEB_ERR_LIMIT, "path too long: %s", aside);
}

enum neb_status neb_fs_hold(const char *aside, int *fd) {
    char path[NEB_PATH_MAX], parent[NEB_PATH_MAX];
    struct stat held, named;
    *fd = -1;
    NEB_TRY(lock_name(aside, path));
    neb_path_folder(parent, sizeof parent, aside);
    NEB_TRY(neb_fs_mkdirs(parent, 0755));
    if (access(parent, W_OK) != 0)
        return NEB_OK; // the first write there reports the reason
    for (;;) {
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (*fd < 0)
            return neb_fail_errno("cannot open %s", path);
        bool busy = flock(*fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        // The previous holder may have removed this file, and another process may hold a new one.
        if (!busy && fstat(*fd, &held) == 0 && lstat(path, &named) == 0 &&
            held.st_ino == named.st_ino)
            return NEB_OK;
        close(*fd);
        *fd = -1;
        if (busy)
            return neb_fail(
                NEB_ERR_AGAIN,
                "another nebula process is building %s; wait for it or choose another folder",
                aside);
    }
}

void neb_fs_release(const char *aside, int *fd) {
    char path[NEB_PATH_MAX];
    if (*fd < 0)
        return;
    if (lock_name(aside, path) == NEB_OK)
        unlink(path); // the lock is still held, so this file is ours
    close(*fd);
    *fd = -1;
}
