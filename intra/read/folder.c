// SPDX-License-Identifier: Apache-2.0
// Resolves the links of a folder and refuses those that lead out of it.
#include "intra/read/folder.h"
#include "agent/base/fs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a named pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

// True if `file` is a blob of the Hugging Face cache in which `folder` is a snapshot. Both are real
// paths.
static bool is_blob(const char *file, const char *folder) {
    static const char snapshots[] = "/snapshots/";
    char blobs[PATH_MAX];
    const char *at = NULL;
    for (const char *p = folder; (p = strstr(p, snapshots)); p++)
        at = p;
    return at && at[sizeof snapshots - 1] &&
           snprintf(blobs, sizeof blobs, "%.*s/blobs", (int)(at - folder), folder) <
               (int)sizeof blobs &&
           neb_path_within(file, blobs);
}

// Refuses a link that ends outside its folder.
static enum neb_status check_place(const char *dir, const char *path) {
    char *real = realpath(path, NULL);
    bool nowhere = !real && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP);
    char *folder = realpath(dir, NULL);
    enum neb_status st = NEB_OK;
    if (nowhere)
        st = neb_fail(NEB_ERR_NOT_FOUND,
                      "%s is a link to a file that does not exist; put the file in its place, or "
                      "remove the link",
                      path);
    else if (real && folder && !neb_path_within(real, folder) && !is_blob(real, folder))
        st = neb_fail(NEB_ERR_DENIED,
                      "%s leads out of its folder, to %s, and is not read; if the file belongs to "
                      "the folder, put a copy in its place",
                      path, real);
    free(real);
    free(folder);
    return st;
}

enum neb_status intra_folder_file(const char *dir, const char *name, char *out, size_t cap,
                                  bool *there) {
    struct stat info;
    NEB_TRY(neb_path(out, cap, dir, name));
    bool found = lstat(out, &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
    if (there)
        *there = found;
    if (!found)
        return NEB_OK;
    NEB_TRY(check_place(dir, out));
    if (stat(out, &info) == 0 && !S_ISREG(info.st_mode))
        return neb_fail(NEB_ERR_INVALID, "%s is %s, not a file; it is not read", out,
                        kind_of(info.st_mode));
    return NEB_OK;
}
