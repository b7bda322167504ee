// SPDX-License-Identifier: Apache-2.0
#include "security/former.h"
#include "agent/base/bytes.h"
#include "agent/base/fs.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX_BYTES = 64 << 10 };

static bool parse_one(const json_t *o, struct sec_former *f) {
    const char *name = json_string_value(json_object_get(o, "name")),
               *sign = json_string_value(json_object_get(o, "sign"));
    const json_t *until = json_object_get(o, "until"), *rotated = json_object_get(o, "rotated");
    f->rotated = json_is_true(rotated);
    if (json_object_size(o) != (rotated ? 4 : 3) || (rotated && !json_is_boolean(rotated)) ||
        !name || !sec_name_valid(name) || !sign || !neb_unhex(sign, f->sign, sizeof f->sign) ||
        !json_is_integer(until) || json_integer_value(until) < 1)
        return false;
    snprintf(f->name, sizeof f->name, "%s", name);
    f->until = (uint64_t)json_integer_value(until);
    return true;
}

enum neb_status sec_former_parse(const char *text, size_t len, const char *what,
                                 struct sec_former *out, size_t *n) {
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *list = json_object_get(root, "former");
    bool good = json_object_size(root) == 2 && json_is_array(list) &&
                json_array_size(list) <= SEC_FORMER_MAX &&
                json_integer_value(json_object_get(root, "format")) == 1;
    *n = 0;
    for (size_t i = 0; good && i < json_array_size(list); i++)
        good = parse_one(json_array_get(list, i), &out[(*n)++]);
    json_decref(root);
    if (good)
        return NEB_OK;
    *n = 0;
    return neb_fail(NEB_ERR_FORMAT,
                    "%s is damaged: remove it. What members signed that were removed since then "
                    "can no longer be checked here",
                    what);
}

enum neb_status sec_former_load(const char *dir, struct sec_former *out, size_t *n) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    *n = 0;
    NEB_TRY(neb_path(path, sizeof path, dir, "former.json"));
    if (!neb_fs_exists(path))
        return NEB_OK;
    enum neb_status st = neb_fs_read(path, FILE_MAX_BYTES, &b);
    if (st == NEB_OK)
        st = sec_former_parse((const char *)b.p, b.len, path, out, n);
    neb_buf_free(&b);
    return st;
}

enum neb_status sec_former_holds(const char *dir, const uint8_t sign[SEC_KEY_BYTES], bool *out) {
    struct sec_former *all = calloc(SEC_FORMER_MAX, sizeof *all);
    size_t n;
    *out = false;
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the keys of former members");
    enum neb_status st = sec_former_load(dir, all, &n);
    for (size_t i = 0; i < n; i++)
        *out |= !memcmp(all[i].sign, sign, SEC_KEY_BYTES);
    free(all);
    return st;
}

const struct sec_former *sec_former_find(const struct sec_former *all, size_t n, const char *name) {
    for (size_t i = n; i-- > 0;)
        if (!strcmp(all[i].name, name))
            return &all[i];
    return NULL;
}

static bool listed(const struct sec_memberlist *l, const struct sec_public *p) {
    int i = sec_memberlist_find(l, p->name);
    return i >= 0 && !memcmp(l->e[i].m.pub.sign, p->sign, SEC_KEY_BYTES);
}

// At most one version was missed. If that version had removed the member, the next could not have
// rotated its key.
static bool is_rotation(const struct sec_memberlist *before, const struct sec_memberlist *after,
                        const char *name) {
    return after->why == SEC_LIST_ROTATE && !strcmp(after->subject, name) &&
           after->version - before->version <= 2;
}

static void add(struct sec_former *all, size_t *n, const struct sec_public *p, uint64_t until,
                bool rotated) {
    for (size_t i = 0; i < *n; i++)
        if (!strcmp(all[i].name, p->name) && !memcmp(all[i].sign, p->sign, SEC_KEY_BYTES)) {
            // it was listed again in between
            memmove(&all[i], &all[i + 1], (--*n - i) * sizeof *all);
            break;
        }
    size_t of_one = 0,
           oldest = 0; // of this name; a limit per name keeps its rotations from pushing others out
    for (size_t i = *n; i-- > 0;)
        if (!strcmp(all[i].name, p->name)) {
            of_one++;
            oldest = i;
        }
    if (of_one >= SEC_FORMER_OF_ONE || *n == SEC_FORMER_MAX) {
        oldest = of_one >= SEC_FORMER_OF_ONE ? oldest : 0;
        memmove(&all[oldest], &all[oldest + 1], (--*n - oldest) * sizeof *all);
    }
    struct sec_former *f = &all[(*n)++];
    *f = (struct sec_former){.until = until, .rotated = rotated};
    snprintf(f->name, sizeof f->name, "%s", p->name);
    memcpy(f->sign, p->sign, sizeof f->sign);
}

static enum neb_status write_all(const char *dir, const struct sec_former *all, size_t n) {
    char path[NEB_PATH_MAX], hex[2 * SEC_KEY_BYTES + 1];
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        neb_hex(all[i].sign, SEC_KEY_BYTES, hex);
        json_t *o = json_pack("{s:s,s:s,s:I}", "name", all[i].name, "sign", hex, "until",
                              (json_int_t)all[i].until);
        if (all[i].rotated)
            json_object_set_new(o, "rotated", json_true());
        json_array_append_new(list, o);
    }
    json_t *root = json_pack("{s:i,s:o}", "format", 1, "former", list);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text)
        return neb_fail(NEB_ERR_NOMEM, "out of memory writing the keys of removed members");
    enum neb_status st = neb_path(path, sizeof path, dir, "former.json");
    if (st == NEB_OK)
        st = neb_fs_write(path, text, strlen(text), 0600);
    free(text);
    return st;
}

enum neb_status sec_former_keep(const char *dir, const struct sec_memberlist *before,
                                const struct sec_memberlist *after) {
    bool any = false;
    size_t n;
    for (uint32_t i = 0; i < before->n; i++)
        any = any || !listed(after, &before->e[i].m.pub);
    if (!any)
        return NEB_OK;
    struct sec_former *all = calloc(SEC_FORMER_MAX, sizeof *all);
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the keys of former members");
    enum neb_status st = sec_former_load(dir, all, &n);
    for (uint32_t i = 0; i < before->n && st == NEB_OK; i++)
        if (!listed(after, &before->e[i].m.pub))
            add(all, &n, &before->e[i].m.pub, after->version,
                is_rotation(before, after, before->e[i].m.pub.name));
    if (st == NEB_OK)
        st = write_all(dir, all, n);
    free(all);
    return st;
}
