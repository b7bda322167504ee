// SPDX-License-Identifier: Apache-2.0
// Files. A file that Nebula writes appears completely or not at all: write to a temporary file,
// fsync, rename, fsync of the folder. Errors are logged.
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

// Joins dir and name with '/'. NEB_ERR_LIMIT if the path does not fit.
NEB_MUST_CHECK enum neb_status neb_path(char *out, size_t cap, const char *dir, const char *name);
// The folder of a path: all before its last '/'; "." without one. Cut if it does not fit.
void neb_path_folder(char *out, size_t cap, const char *path);
// Expands a path that a person wrote: "~/.cache/…" goes to XDG_CACHE_HOME if that is set, other
// "~/…" to HOME; any other path stays. Errors name `what`. NEB_ERR_NOT_FOUND: HOME is not set;
// NEB_ERR_LIMIT: the path does not fit.
NEB_MUST_CHECK enum neb_status neb_path_home(char *out, size_t cap, const char *text,
                                             const char *what);
// Replaces a path by its realpath(3). The error names `what` if nothing is there.
NEB_MUST_CHECK enum neb_status neb_path_absolute(char *path, size_t cap, const char *what);
// True if `path` is `folder` or lies in it. Both are absolute and without symbolic links.
bool neb_path_within(const char *path, const char *folder);
// False only if certainly nothing is there. True also without permission to look: opening the file
// then gives the reason.
bool neb_fs_exists(const char *path);
// True if the disk of the existing `path` has this many bytes free for this user, or if the system
// does not say how many.
bool neb_fs_fits(const char *path, uint64_t bytes);
// Call first in a program: opens closed descriptors 0, 1 and 2 as /dev/null. Otherwise the first
// opened file would get such a number, and output would be printed into it. False: cannot open
// /dev/null.
NEB_MUST_CHECK bool neb_fs_std_open(void);
// Creates the folder and its parents; new folders get `mode`.
NEB_MUST_CHECK enum neb_status neb_fs_mkdirs(const char *path, mode_t mode);
// Opens a file for reading from its beginning: a regular file, a shell's pipe ("<(command)",
// "/dev/stdin") or a named pipe, whose writer it waits for. NEB_ERR_INVALID: anything else.
NEB_MUST_CHECK enum neb_status neb_fs_stream_open(const char *path, FILE **out);
// Closes a file that was written. An error, of this call or of an earlier write, names `path`.
NEB_MUST_CHECK enum neb_status neb_fs_close(FILE *f, const char *path);
// Reads a whole file of at most `max` bytes; replaces the buffer. NEB_ERR_LIMIT: the file is
// larger. NEB_ERR_INVALID: not a regular file.
NEB_MUST_CHECK enum neb_status neb_fs_read(const char *path, size_t max, struct neb_buf *out);
// Writes `path` atomically and durably. After a failure the old file is unchanged and no temporary
// file is left.
NEB_MUST_CHECK enum neb_status neb_fs_write(const char *path, const void *p, size_t n, mode_t mode);
// Sets mode 0600 on a file before a library opens it by name or something appends to it. make:
// creates a missing file; otherwise a missing file is no error.
NEB_MUST_CHECK enum neb_status neb_fs_private(const char *path, bool make);
// Copies a file, as atomically as neb_fs_write.
NEB_MUST_CHECK enum neb_status neb_fs_copy(const char *from, const char *to, mode_t mode);
NEB_MUST_CHECK enum neb_status neb_fs_sync_dir(const char *dir);
NEB_MUST_CHECK enum neb_status neb_fs_remove(const char *path); // a file; a missing one is no error
// Removes a folder with its content; a missing one is no error.
NEB_MUST_CHECK enum neb_status neb_fs_remove_tree(const char *path);
// Moves folder `from` to `to` durably and removes the previous `to`. After a crash or failure, `to`
// is the complete old or the complete new folder (renameat2(2), RENAME_EXCHANGE). On a file system
// without exchange (NFS), a crash between two renames leaves the old folder at TO.nebula-old;
// neb_fs_mend_dir moves it back.
NEB_MUST_CHECK enum neb_status neb_fs_replace_dir(const char *from, const char *to);
NEB_MUST_CHECK enum neb_status neb_fs_mend_dir(const char *to); // nothing to mend is no error

// A folder is built under its name plus this suffix, and renamed when it is complete.
#define NEB_FS_ASIDE ".nebula-building"
// Lets one process at a time build the folder `aside`, by a locked file ASIDE.lock. Creates parent
// folders. *fd: the lock, or -1 if the parent is not writable. NEB_ERR_AGAIN: another process
// builds it.
NEB_MUST_CHECK enum neb_status neb_fs_hold(const char *aside, int *fd);
void neb_fs_release(const char *aside, int *fd);

// A large file written in pieces to PATH.tmp; commit renames it to PATH. destroy without commit
// removes it.
struct neb_fs_writer;
NEB_MUST_CHECK enum neb_status neb_fs_writer_open(const char *path, mode_t mode,
                                                  struct neb_fs_writer **out);
// Call before the first byte: seals everything that is added. vault NULL: the file stays in clear.
NEB_MUST_CHECK enum neb_status neb_fs_writer_seal(struct neb_fs_writer *w,
                                                  const struct neb_vault *vault);
NEB_MUST_CHECK enum neb_status neb_fs_writer_add(struct neb_fs_writer *w, const void *p, size_t n);
// Flushes, calls fsync, renames, and calls fsync on the folder.
NEB_MUST_CHECK enum neb_status neb_fs_writer_commit(struct neb_fs_writer *w);
void neb_fs_writer_destroy(struct neb_fs_writer **w);

// A read-only memory map of a whole file. An empty file gives p NULL.
struct neb_map {
    const uint8_t *p;
    size_t len;
};
NEB_MUST_CHECK enum neb_status neb_map_open(const char *path, struct neb_map *out);
// Reads the whole map into memory as far as it fits. NEB_ERR_IO: part of the file cannot be read;
// touching that part later would end the process (SIGBUS).
NEB_MUST_CHECK enum neb_status neb_map_read(const struct neb_map *m, const char *path);
void neb_map_close(struct neb_map *m);
// From now on such a SIGBUS first prints the name of the file. Call once, before threads start.
void neb_map_watch(void);

#endif
