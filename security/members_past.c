// SPDX-License-Identifier: Apache-2.0
// What a member keeps of earlier lists: keys that the list no longer has, and proven forks.
#include "security/members.h"

#include "agent/base/fs.h"
#include "security/files.h"

#include <stdlib.h>
#include <string.h>

// ---- previous keys ------------------------------------------------------------------------------

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
                    "%s is damaged: remove it. Signatures of members that were removed since then "
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

static bool has_key(const struct sec_list *l, const struct sec_public *p) {
    const struct sec_member *m = sec_members_by_name(&l->members, p->name);
    return m && !memcmp(m->pub.sign, p->sign, SEC_KEY_BYTES);
}

// At most one version was missed. If the missed version had removed the member, the next one could
// not have rotated its key.
static bool is_rotation(const struct sec_list *before, const struct sec_list *after,
                        const char *name) {
    return after->why == SEC_LIST_ROTATE && !strcmp(after->subject, name) &&
           after->members.version - before->members.version <= 2;
}

static void add_key(struct sec_former *all, size_t *n, const struct sec_public *p, uint64_t until,
                    bool rotated) {
    for (size_t i = 0; i < *n; i++)
        if (!strcmp(all[i].name, p->name) && !memcmp(all[i].sign, p->sign, SEC_KEY_BYTES)) {
            // it was listed again in between
            memmove(&all[i], &all[i + 1], (--*n - i) * sizeof *all);
            break;
        }
    // oldest: the oldest key of this name. The limit per name protects the keys of other members.
    size_t of_one = 0, oldest = 0;
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
    NEB_TRY(neb_path(path, sizeof path, dir, "former.json"));
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
    return sec_json_save_take(path, root, 1);
}

enum neb_status sec_former_keep(const char *dir, const struct sec_list *before,
                                const struct sec_list *after) {
    bool any = false;
    size_t n;
    for (uint32_t i = 0; i < before->members.n; i++)
        any = any || !has_key(after, &before->members.m[i].pub);
    if (!any)
        return NEB_OK;
    struct sec_former *all = calloc(SEC_FORMER_MAX, sizeof *all);
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the keys of former members");
    enum neb_status st = sec_former_load(dir, all, &n);
    for (uint32_t i = 0; i < before->members.n && st == NEB_OK; i++)
        if (!has_key(after, &before->members.m[i].pub))
            add_key(all, &n, &before->members.m[i].pub, after->members.version,
                    is_rotation(before, after, before->members.m[i].pub.name));
    if (st == NEB_OK)
        st = write_all(dir, all, n);
    free(all);
    return st;
}

// ---- forks --------------------------------------------------------------------------------------

static const char magic[] = "nebfork1";
enum { MAGIC_BYTES = 8, FORKS_BYTES = MAGIC_BYTES + SEC_FORKS_MAX * NEB_SHA256_BYTES };

enum neb_status sec_forks_parse(const uint8_t *p, size_t n, const char *what,
                                struct sec_forks *out) {
    char front[MAGIC_BYTES] = "";
    struct neb_rd r = neb_rd_make(p, n);
    *out = (struct sec_forks){0};
    neb_rd_copy(&r, front, sizeof front);
    while (neb_rd_left(&r) && !r.bad && out->n < SEC_FORKS_MAX)
        neb_rd_copy(&r, out->digest[out->n++], NEB_SHA256_BYTES);
    if (neb_rd_done(&r) && memcmp(front, magic, sizeof front) == 0)
        return NEB_OK;
    *out = (struct sec_forks){0};
    return neb_fail(NEB_ERR_FORMAT,
                    "%s is damaged: remove it. Forks of the member list that it named then stop "
                    "jobs once more if somebody sends them",
                    what);
}

enum neb_status sec_forks_load(const char *dir, struct sec_forks *out) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    *out = (struct sec_forks){0};
    NEB_TRY(neb_path(path, sizeof path, dir, "forked"));
    if (!neb_fs_exists(path))
        return NEB_OK;
    enum neb_status st = neb_fs_read(path, FORKS_BYTES, &b);
    if (st == NEB_OK)
        st = sec_forks_parse(b.p, b.len, path, out);
    neb_buf_free(&b);
    return st;
}

static const uint8_t *at(const struct sec_branch *b, uint64_t version) {
    if (version == b->version)
        return b->digest;
    return b->list ? sec_list_before(b->list, version) : NULL;
}

static uint64_t back_to(const struct sec_branch *b) {
    return b->version - (b->list ? b->list->n_history : 0);
}

static bool differ(const uint8_t *a, const uint8_t *b) {
    return a && b && memcmp(a, b, NEB_SHA256_BYTES) != 0;
}

static void add_digest(struct sec_forks *f, const uint8_t *digest, bool *grown) {
    for (uint32_t i = 0; i < f->n; i++)
        if (!differ(f->digest[i], digest))
            return;
    if (f->n == SEC_FORKS_MAX)
        memmove(f->digest[0], f->digest[1], (size_t)(--f->n) * NEB_SHA256_BYTES);
    memcpy(f->digest[f->n++], digest, NEB_SHA256_BYTES);
    *grown = true;
}

enum neb_status sec_forks_keep(const char *dir, const struct sec_branch *theirs,
                               const struct sec_branch *ours) {
    char path[NEB_PATH_MAX];
    struct sec_forks f;
    struct neb_buf b = {0};
    bool grown = false;
    NEB_TRY(neb_path(path, sizeof path, dir, "forked"));
    NEB_TRY(sec_forks_load(dir, &f));
    uint64_t v = back_to(theirs);
    while (v <= theirs->version && !differ(at(theirs, v), at(ours, v)))
        v++;
    bool hidden = v > theirs->version; // their history does not reach to our version
    add_digest(&f, hidden ? theirs->digest : at(theirs, v), &grown);
    add_digest(&f, hidden ? ours->digest : at(ours, v), &grown);
    if (!grown)
        return NEB_OK;
    neb_buf_add(&b, magic, MAGIC_BYTES);
    neb_buf_add(&b, f.digest, f.n * sizeof f.digest[0]);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = neb_fs_write(path, b.p, b.len, 0600);
    neb_buf_free(&b);
    return st;
}

bool sec_forks_know(const struct sec_forks *f, const struct sec_branch *theirs,
                    const struct sec_branch *ours) {
    // A version later than ours proves nothing, unless their history leaves out our version.
    bool hidden = theirs->version > ours->version && !at(theirs, ours->version);
    for (uint64_t v = back_to(theirs); f->n && v <= theirs->version; v++) {
        const uint8_t *d = at(theirs, v);
        bool diverged = v > ours->version ? hidden : differ(d, at(ours, v));
        for (uint32_t i = 0; diverged && i < f->n; i++)
            if (!differ(d, f->digest[i]))
                return true;
    }
    return false;
}
