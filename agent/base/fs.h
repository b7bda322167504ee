// SPDX-License-Identifier: Apache-2.0
// Files. Whatever Nebula writes is written whole or not at all: aside, fsync, rename, fsync of the folder.
#ifndef NEB_FS_H
#define NEB_FS_H
#include "agent/base/bytes.h"
#include "agent/base/status.h"
#include "agent/base/vault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#define NEB_PATH_MAX 4096

// Joins with '/'; NEB_ERR_LIMIT when it does not fit.
NEB_MUST_CHECK enum neb_status neb_path(char *out, size_t cap, const char *dir, const char *name);
// A path as people write it: "~/.cache/…" lies in XDG_CACHE_HOME, where that is set, other "~/…" in HOME; all else is as it is. On an error
// (logged; `what` is for the message) NEB_ERR_NOT_FOUND: no HOME in the environment; NEB_ERR_LIMIT.
NEB_MUST_CHECK enum neb_status neb_path_home(char *out, size_t cap, const char *text,
                                             const char *what);
// Replaces a path by what realpath(3) makes of it; `what` is for the message when there is nothing.
NEB_MUST_CHECK enum neb_status neb_path_absolute(char *path, size_t cap, const char *what);
// Whether `path` is `folder` or lies in it. Both are absolute, without links.
bool neb_path_within(const char *path, const char *folder);
// False: it is certain that nothing is there. True also where that cannot be known (no permission): who opens it learns why.
bool neb_fs_exists(const char *path);
// Whether the disk of `path`, which is there, has so many bytes free for this user. True also where it does not say.
bool neb_fs_fits(const char *path, uint64_t bytes);
// First thing in a program: where descriptors 0, 1 or 2 are closed, they become /dev/null. Else the first file that is opened would be one of
// them, and what is printed would be written into it. False: it cannot be opened.
NEB_MUST_CHECK bool neb_fs_std_open(void);
// mkdir -p with this mode for new folders.
NEB_MUST_CHECK enum neb_status neb_fs_mkdirs(const char *path, mode_t mode);
// To read, line by line: a regular file, or the pipe of a shell ("<(command)", "/dev/stdin"). NEB_ERR_INVALID: anything else; a named
// pipe is refused, and not waited for.
NEB_MUST_CHECK enum neb_status neb_fs_stream_open(const char *path, FILE **out);
// Reads a whole file of at most `max` bytes. NEB_ERR_LIMIT when larger; NEB_ERR_INVALID: no regular file. The buffer is replaced.
NEB_MUST_CHECK enum neb_status neb_fs_read(const char *path, size_t max, struct neb_buf *out);
// Writes path atomically and durably; on failure the old file is untouched and nothing is left beside it.
NEB_MUST_CHECK enum neb_status neb_fs_write(const char *path, const void *p, size_t n, mode_t mode);
// A file that a library opens by its name, or that is appended to: 0600 before it is. make: it is made if it is not there; otherwise
// missing is fine. What is there and open to others is closed.
NEB_MUST_CHECK enum neb_status neb_fs_private(const char *path, bool make);
// as neb_fs_write
NEB_MUST_CHECK enum neb_status neb_fs_copy(const char *from, const char *to, mode_t mode);
NEB_MUST_CHECK enum neb_status neb_fs_sync_dir(const char *dir);
NEB_MUST_CHECK enum neb_status neb_fs_remove(const char *path); // a file; missing is fine
// a folder and all in it; missing is fine
NEB_MUST_CHECK enum neb_status neb_fs_remove_tree(const char *path);
// Folder `from` takes the place of folder `to`, if there is one, durably; what was `to` is removed. A crash, or a failure, leaves the
// whole old or the whole new folder at `to` (renameat2(2), RENAME_EXCHANGE). Where the file system cannot exchange names (NFS), a
// crash between two renames leaves the old one at TO.nebula-old: neb_fs_mend_dir puts it back.
NEB_MUST_CHECK enum neb_status neb_fs_replace_dir(const char *from, const char *to);
NEB_MUST_CHECK enum neb_status neb_fs_mend_dir(const char *to); // nothing to mend is fine

// A folder is made at DIR and this, and takes its name when it is whole.
#define NEB_FS_ASIDE ".nebula-building"
// One process at a time makes the folder `aside`: ASIDE.lock is there, and locked, until it is released; *fd -1 where nobody can make
// anything. Folders above are made. NEB_ERR_AGAIN (logged): another one makes it.
NEB_MUST_CHECK enum neb_status neb_fs_hold(const char *aside, int *fd);
void neb_fs_release(const char *aside, int *fd);

// A large file written in pieces: to PATH.tmp, then commit makes it PATH. destroy without commit removes it.
struct neb_fs_writer;
NEB_MUST_CHECK enum neb_status neb_fs_writer_open(const char *path, mode_t mode,
                                                  struct neb_fs_writer **out);
// Before the first byte: what is added is sealed on its way. vault NULL: in clear.
NEB_MUST_CHECK enum neb_status neb_fs_writer_seal(struct neb_fs_writer *w,
                                                  const struct neb_vault *vault);
NEB_MUST_CHECK enum neb_status neb_fs_writer_add(struct neb_fs_writer *w, const void *p, size_t n);
// flush, fsync, rename, fsync folder
NEB_MUST_CHECK enum neb_status neb_fs_writer_commit(struct neb_fs_writer *w);
void neb_fs_writer_destroy(struct neb_fs_writer **w);

// Read-only memory map of a whole file. len 0 gives p NULL.
struct neb_map {
    const uint8_t *p;
    size_t len;
};
NEB_MUST_CHECK enum neb_status neb_map_open(const char *path, struct neb_map *out);
// All of it into memory now, so far as there is room. NEB_ERR_IO: some of it cannot be read, which otherwise ends whoever looks (SIGBUS).
NEB_MUST_CHECK enum neb_status neb_map_read(const struct neb_map *m, const char *path);
void neb_map_close(struct neb_map *m);
// From here on such an end says first which file it was. Once, before there are threads.
void neb_map_watch(void);

#endif
