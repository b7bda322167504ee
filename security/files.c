// SPDX-License-Identifier: Apache-2.0
#include "security/files.h"

#include "agent/base/bytes.h"
#include "agent/base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum neb_status sec_json_save_take(const char *path, json_t *root, size_t indent) {
    char *text = root ? json_dumps(root, JSON_INDENT(indent)) : NULL;
    enum neb_status st = text ? neb_fs_write(path, text, strlen(text), 0600)
                              : neb_fail(NEB_ERR_NOMEM, "out of memory: %s", path);
    free(text);
    json_decref(root);
    return st;
}

enum neb_status sec_json_load(const char *path, size_t most, json_t **out) {
    struct neb_buf b = {0};
    *out = NULL;
    NEB_TRY(neb_fs_read(path, most, &b));
    *out = json_loadb((const char *)b.p, b.len, JSON_REJECT_DUPLICATES, NULL);
    neb_buf_free(&b);
    return NEB_OK;
}

enum neb_status sec_dir_lock(const char *dir, int *fd) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, dir, "lock"));
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0)
        return neb_fail_errno("%s", path);
    while (flock(*fd, LOCK_EX) != 0)
        if (errno != EINTR) {
            enum neb_status st = neb_fail_errno("%s", path);
            close(*fd);
            return st;
        }
    return NEB_OK;
}
