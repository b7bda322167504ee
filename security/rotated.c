// SPDX-License-Identifier: Apache-2.0
#include "security/rotated.h"

#include "agent/base/bytes.h"
#include "agent/base/fs.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX_BYTES = 64 << 10 };

static bool recent(const json_t *at, int64_t now) {
    int64_t t = json_integer_value(at);
    return t <= now && now - t < SEC_ROTATE_EVERY; // else long ago, or of a wrong clock
}

// *out: the object "rotated"; the caller owns it.
static enum neb_status load(const char *path, json_t **out) {
    struct neb_buf b = {0};
    *out = NULL;
    if (neb_fs_exists(path)) {
        enum neb_status st = neb_fs_read(path, FILE_MAX_BYTES, &b);
        json_t *root = st == NEB_OK
                           ? json_loadb((const char *)b.p, b.len, JSON_REJECT_DUPLICATES, NULL)
                           : NULL;
        neb_buf_free(&b);
        NEB_TRY(st);
        *out = json_incref(json_object_get(root, "rotated"));
        json_decref(root);
        if (!json_is_object(*out)) {
            json_decref(*out);
            return neb_fail(NEB_ERR_FORMAT, "%s is damaged: remove it", path);
        }
    } else {
        *out = json_object();
    }
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory reading %s", path);
}

enum neb_status sec_rotated_wait(const char *dir, const char *name, int64_t now, uint32_t *wait) {
    char path[NEB_PATH_MAX];
    json_t *all;
    *wait = 0;
    NEB_TRY(neb_path(path, sizeof path, dir, "rotated.json"));
    NEB_TRY(load(path, &all));
    const json_t *at = json_object_get(all, name);
    if (at && recent(at, now))
        *wait = (uint32_t)(json_integer_value(at) + SEC_ROTATE_EVERY - now);
    json_decref(all);
    return NEB_OK;
}

enum neb_status sec_rotated_note(const char *dir, const char *name, int64_t now) {
    char path[NEB_PATH_MAX];
    const char *key;
    json_t *all, *at, *kept = json_object();
    enum neb_status st = neb_path(path, sizeof path, dir, "rotated.json");
    if (st == NEB_OK)
        st = load(path, &all);
    if (st != NEB_OK) {
        json_decref(kept);
        return st;
    }
    json_object_foreach(all, key, at) if (recent(at, now)) json_object_set(kept, key, at);
    json_object_set_new(kept, name, json_integer(now));
    json_decref(all);
    json_t *root = json_pack("{s:i,s:o}", "format", 1, "rotated", kept);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    st = text ? neb_fs_write(path, text, strlen(text), 0600)
              : neb_fail(NEB_ERR_NOMEM, "out of memory writing %s", path);
    free(text);
    return st;
}
