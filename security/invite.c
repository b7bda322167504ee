// SPDX-License-Identifier: Apache-2.0
#include "security/invite.h"

#include "agent/base/fs.h"
#include "security/files.h"

#include <dirent.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 16 * 1024, HEX_CERT = 2 * SEC_CERT_MAX + 1 };

static enum neb_status invite_path(const char *dir, const uint8_t id[SEC_INVITE_ID_BYTES],
                                   char out[NEB_PATH_MAX]) {
    char name[sizeof "invites/.json" + 2 * SEC_INVITE_ID_BYTES], hex[2 * SEC_INVITE_ID_BYTES + 1];
    neb_hex(id, SEC_INVITE_ID_BYTES, hex);
    snprintf(name, sizeof name, "invites/%s.json", hex);
    return neb_path(out, NEB_PATH_MAX, dir, name);
}

static bool get_hex(json_t *root, const char *key, void *out, size_t n) {
    const char *s = json_string_value(json_object_get(root, key));
    return s && neb_unhex(s, out, n);
}

static bool read_used(json_t *root, struct sec_invite *v) {
    const char *cert = json_string_value(json_object_get(root, "certificate"));
    size_t n = cert ? strlen(cert) / 2 : 0;
    v->listed = json_is_true(json_object_get(root, "listed"));
    v->cert_len = n;
    return n > 0 && n <= SEC_CERT_MAX && neb_unhex(cert, v->cert, n) &&
           get_hex(root, "request", v->csr, sizeof v->csr);
}

static bool read_json(json_t *root, struct sec_invite *v) {
    const char *name = json_string_value(json_object_get(root, "name"));
    const char *role = json_string_value(json_object_get(root, "role"));
    json_t *expires = json_object_get(root, "expires");
    if (!name || !sec_name_valid(name) || !role || !sec_role_parse(role, &v->role) ||
        !json_is_integer(expires) || !get_hex(root, "verifier", v->sealed, sizeof v->sealed))
        return false;
    snprintf(v->name, sizeof v->name, "%s", name);
    v->expires = json_integer_value(expires);
    v->withdrawn = json_is_true(json_object_get(root, "withdrawn"));
    v->used = json_is_string(json_object_get(root, "request"));
    return !v->used || read_used(root, v);
}

static enum neb_status load_path(const char *path, struct sec_invite *out) {
    json_t *root;
    if (!neb_fs_exists(path))
        return NEB_ERR_NOT_FOUND;
    NEB_TRY(sec_json_load(path, FILE_MAX, &root));
    enum neb_status st =
        root && read_json(root, out)
            ? NEB_OK
            : neb_fail(NEB_ERR_FORMAT, "%s is damaged: remove it, and invite again", path);
    json_decref(root);
    return st;
}

enum neb_status sec_invite_load(const char *dir, const uint8_t id[SEC_INVITE_ID_BYTES],
                                struct sec_invite *out) {
    char path[NEB_PATH_MAX];
    *out = (struct sec_invite){.used = false};
    memcpy(out->id, id, sizeof out->id);
    NEB_TRY(invite_path(dir, id, path));
    return load_path(path, out);
}

enum neb_status sec_invite_store(const char *dir, const struct sec_invite *v) {
    char path[NEB_PATH_MAX], sealed[2 * sizeof v->sealed + 1], csr[2 * NEB_SHA256_BYTES + 1];
    char cert[HEX_CERT];
    NEB_TRY(invite_path(dir, v->id, path));
    neb_hex(v->sealed, sizeof v->sealed, sealed);
    json_t *root = json_pack("{s:s,s:s,s:I,s:s}", "name", v->name, "role", sec_role_name(v->role),
                             "expires", (json_int_t)v->expires, "verifier", sealed);
    if (root && v->withdrawn)
        json_object_set_new(root, "withdrawn", json_true());
    if (root && v->used) {
        neb_hex(v->csr, sizeof v->csr, csr);
        neb_hex(v->cert, v->cert_len, cert);
        json_object_set_new(root, "request", json_string(csr));
        json_object_set_new(root, "certificate", json_string(cert));
        json_object_set_new(root, "listed", json_boolean(v->listed));
    }
    return sec_json_save_take(path, root, 2);
}

// The id, from the name of the file.
static bool file_id(const char *path, uint8_t id[SEC_INVITE_ID_BYTES]) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char hex[2 * SEC_INVITE_ID_BYTES + 1];
    if (strlen(name) != sizeof hex - 1 + sizeof ".json" - 1)
        return false;
    snprintf(hex, sizeof hex, "%.*s", (int)sizeof hex - 1, name);
    return neb_unhex(hex, id, SEC_INVITE_ID_BYTES);
}

// Sweeps one file. Removes a damaged one. Keeps one that cannot be read now, because it may be
// valid.
static enum neb_status sweep_one(const char *dir, const char *path, int64_t now, const char *name,
                                 struct sec_invites_swept *n) {
    struct sec_invite v = {.used = false};
    enum neb_status st = load_path(path, &v);
    if (st == NEB_ERR_NOT_FOUND)
        return NEB_OK;
    if (st != NEB_OK && st != NEB_ERR_FORMAT && st != NEB_ERR_LIMIT)
        return st;
    if (st != NEB_OK || !file_id(path, v.id))
        return neb_fs_remove(path);
    bool open = v.expires >= now && !v.withdrawn;
    if (name && !v.withdrawn && !strcmp(v.name, name)) {
        n->ended += open;
        v.withdrawn = true; // if the disk is full, its removal withdraws it too
        return sec_invite_store(dir, &v) == NEB_OK ? NEB_OK : neb_fs_remove(path);
    }
    n->left += open;
    if (open || (now - v.expires <= SEC_INVITE_KEPT && n->kept++ < SEC_INVITES_MAX))
        return NEB_OK;
    return neb_fs_remove(path);
}

enum neb_status sec_invites_sweep(const char *dir, int64_t now, const char *name,
                                  struct sec_invites_swept *out) {
    char folder[NEB_PATH_MAX], path[NEB_PATH_MAX];
    enum neb_status st = NEB_OK;
    struct dirent *e;
    *out = (struct sec_invites_swept){0};
    NEB_TRY(neb_path(folder, sizeof folder, dir, "invites"));
    DIR *d = opendir(folder);
    if (!d)
        return neb_fail_errno("%s", folder);
    while (st == NEB_OK && (e = readdir(d))) {
        size_t n = strlen(e->d_name);
        if (n < 6 || strcmp(e->d_name + n - 5, ".json") != 0)
            continue;
        st = neb_path(path, sizeof path, folder, e->d_name);
        if (st == NEB_OK)
            st = sweep_one(dir, path, now, name, out);
    }
    closedir(d);
    return st;
}

// ---- when members last had new keys -------------------------------------------------------------

static bool recent(const json_t *at, int64_t now) {
    int64_t t = json_integer_value(at);
    // otherwise the time is long ago, or it comes from a wrong clock
    return t <= now && now - t < SEC_ROTATE_EVERY;
}

// *out: the object "rotated"; the caller owns it.
static enum neb_status load_rotated(const char *path, json_t **out) {
    json_t *root;
    *out = NULL;
    if (neb_fs_exists(path)) {
        NEB_TRY(sec_json_load(path, 64 << 10, &root));
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
    NEB_TRY(load_rotated(path, &all));
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
        st = load_rotated(path, &all);
    if (st != NEB_OK) {
        json_decref(kept);
        return st;
    }
    json_object_foreach(all, key, at) if (recent(at, now)) json_object_set(kept, key, at);
    json_object_set_new(kept, name, json_integer(now));
    json_decref(all);
    json_t *root = json_pack("{s:i,s:o}", "format", 1, "rotated", kept);
    return sec_json_save_take(path, root, 1);
}
