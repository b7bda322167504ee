// SPDX-License-Identifier: Apache-2.0
#include "security/forks.h"

#include "agent/base/fs.h"

#include <string.h>

static const char magic[] = "nebfork1";
enum { MAGIC_BYTES = 8, FILE_MAX = MAGIC_BYTES + SEC_FORKS_MAX * NEB_SHA256_BYTES };

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
    enum neb_status st = neb_fs_read(path, FILE_MAX, &b);
    if (st == NEB_OK)
        st = sec_forks_parse(b.p, b.len, path, out);
    neb_buf_free(&b);
    return st;
}

static const uint8_t *at(const struct sec_branch *b, uint64_t version) {
    if (version == b->version)
        return b->digest;
    return b->list ? sec_memberlist_former(b->list, version) : NULL;
}

static uint64_t back_to(const struct sec_branch *b) {
    return b->version - (b->list ? b->list->n_history : 0);
}

static bool differ(const uint8_t *a, const uint8_t *b) {
    return a && b && memcmp(a, b, NEB_SHA256_BYTES) != 0;
}

static void add(struct sec_forks *f, const uint8_t *digest, bool *grown) {
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
    add(&f, hidden ? theirs->digest : at(theirs, v), &grown);
    add(&f, hidden ? ours->digest : at(ours, v), &grown);
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
    // A version later than ours shows nothing, unless their history hides our version.
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
