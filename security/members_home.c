// SPDX-License-Identifier: Apache-2.0
// HOME/federation: the CA, the newest signed list, and the rules for a newer one.
#include "security/members.h"

#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "security/cert.h"
#include "security/files.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEEN_BYTES = 8 + 8 + NEB_SHA256_BYTES };
static const char seen_magic[] = "nebseen2";

struct seen {
    uint64_t version; // 0: none
    uint8_t digest[NEB_SHA256_BYTES];
};

static enum neb_status file(const struct sec_federation *f, const char *name,
                            char path[NEB_PATH_MAX]) {
    return neb_path(path, NEB_PATH_MAX, f->dir, name);
}

static enum neb_status seen_read(const struct sec_federation *f, struct seen *out) {
    char path[NEB_PATH_MAX], front[8] = "";
    struct neb_buf b = {0};
    *out = (struct seen){0};
    NEB_TRY(file(f, "seen", path));
    if (!neb_fs_exists(path))
        return NEB_OK;
    enum neb_status st = neb_fs_read(path, SEEN_BYTES, &b);
    struct neb_rd r = neb_rd_make(b.p, b.len);
    neb_rd_copy(&r, front, sizeof front);
    out->version = neb_rd_u64(&r);
    neb_rd_copy(&r, out->digest, sizeof out->digest);
    if (st == NEB_OK &&
        (!neb_rd_done(&r) || !out->version || memcmp(front, seen_magic, sizeof front) != 0))
        st = neb_fail(NEB_ERR_FORMAT, "%s is damaged: restore it from a backup", path);
    neb_buf_free(&b);
    return st;
}

static enum neb_status seen_write(const struct sec_federation *f, const struct seen *s) {
    char path[NEB_PATH_MAX];
    uint8_t raw[SEEN_BYTES];
    NEB_TRY(file(f, "seen", path));
    memcpy(raw, seen_magic, 8);
    neb_put_u64(raw + 8, s->version);
    memcpy(raw + 16, s->digest, sizeof s->digest);
    return neb_fs_write(path, raw, sizeof raw, 0600);
}

#define REPAIR                                                                                     \
    "on each member with the wrong list, stop the agent and copy federation/members.neb and "      \
    "federation/seen from a member with the right one (nebula members shows digests). Then "       \
    "restart the agents of all members"
#define FORKED                                                                                     \
    "the hub's folder was restored or copied, or somebody else has its CA: stop the wrong hub; "

// One version has two lists. theirs NULL: their list hides its digest of that version.
static enum neb_status forked(uint64_t version, const uint8_t *ours, const uint8_t *theirs) {
    char a[2 * NEB_SHA256_BYTES + 1], b[2 * NEB_SHA256_BYTES + 1] = "not in its history";
    neb_hex(ours, NEB_SHA256_BYTES, a);
    if (theirs)
        neb_hex(theirs, NEB_SHA256_BYTES, b);
    return neb_fail(NEB_ERR_CORRUPT,
                    "member list: the CA signed two lists of version %llu: digest %s is in use "
                    "here, the other is %s: " FORKED REPAIR,
                    (unsigned long long)version, a, b);
}

// Checks that a newer list follows from the one in `seen`.
static enum neb_status follows(const struct seen *s, const struct sec_list *l) {
    const uint8_t *was = sec_list_before(l, s->version);
    if (was && memcmp(was, s->digest, sizeof s->digest) != 0)
        return forked(s->version, s->digest, was);
    // A hub's history grows with each version.
    if (!was && l->members.version - s->version <= SEC_LIST_HISTORY)
        return forked(s->version, s->digest, NULL);
    if (!was)
        return neb_fail(NEB_ERR_CORRUPT,
                        "member list: version %llu is so far ahead of version %llu, which was in "
                        "use here, that its history (%d versions) does not show whether it follows "
                        "from it: refused. If the new list is right: " REPAIR,
                        (unsigned long long)l->members.version, (unsigned long long)s->version,
                        SEC_LIST_HISTORY);
    return NEB_OK;
}

// The rules of the header. *fresh: the list is newer than `seen`.
static enum neb_status judge(const struct sec_federation *f, const struct seen *s,
                             const struct sec_list *l, const uint8_t digest[NEB_SHA256_BYTES],
                             bool *fresh) {
    const uint8_t *ours = l->members.version == s->version ? s->digest : NULL;
    if (!ours && f->list.members.version == s->version)
        ours = sec_list_before(&f->list, l->members.version);
    *fresh = l->members.version > s->version;
    if (ours && memcmp(digest, ours, NEB_SHA256_BYTES) != 0)
        return forked(l->members.version, ours, digest);
    if (l->members.version < s->version && f->hush)
        return NEB_ERR_DENIED;
    if (l->members.version < s->version)
        return neb_fail(
            NEB_ERR_DENIED,
            "member list: version %llu is older than version %llu, which was in use: refused",
            (unsigned long long)l->members.version, (unsigned long long)s->version);
    return *fresh && s->version ? follows(s, l) : NEB_OK;
}

static enum neb_status keep(struct sec_federation *f, const uint8_t *p, size_t len,
                            const struct sec_list *l, const uint8_t *digest) {
    neb_buf_clear(&f->signed_list);
    neb_buf_add(&f->signed_list, p, len);
    NEB_TRY(neb_buf_check(&f->signed_list));
    f->list = *l;
    memcpy(f->digest, digest, sizeof f->digest);
    return NEB_OK;
}

// The list to compare with: the list in use, if it is the newest that was ever in use here.
static struct sec_branch ours(const struct sec_federation *f, const struct seen *s) {
    return (struct sec_branch){.list = f->list.members.version == s->version ? &f->list : NULL,
                               .version = s->version,
                               .digest = s->digest};
}

// True if the fork was known when this was opened: the operator has seen it and chosen a branch.
static bool is_settled(struct sec_federation *f, const struct seen *s,
                       const struct sec_branch *theirs) {
    char hex[2 * NEB_SHA256_BYTES + 1];
    struct sec_branch us = ours(f, s);
    f->settled = s->version && sec_forks_know(&f->forks, theirs, &us);
    if (!f->settled || f->said_settled)
        return f->settled;
    f->said_settled = true;
    neb_hex(theirs->digest, NEB_SHA256_BYTES, hex);
    neb_warn("member list: version %llu, digest %s, is on a branch of a fork that was known at the "
             "start: refused. Nothing stops for that branch any more, and more of its lists are "
             "not logged. If that branch is the right one: " REPAIR,
             (unsigned long long)theirs->version, hex);
    return true;
}

// Stores the proof of a fork that NEB_ERR_CORRUPT refuses, before jobs stop for it.
static void keep_fork(const struct sec_federation *f, const struct seen *s,
                      const struct sec_branch *theirs) {
    struct sec_branch us = ours(f, s);
    if (sec_forks_keep(f->dir, theirs, &us) != NEB_OK)
        neb_warn("cannot keep a record of that fork: after it is repaired, a list of its other "
                 "branch will stop jobs again");
}

// store: true if the bytes are not in the file yet.
static enum neb_status take(struct sec_federation *f, const uint8_t *p, size_t len, bool store,
                            bool *changed) {
    struct sec_list l;
    struct seen seen, now;
    char path[NEB_PATH_MAX];
    bool fresh;
    f->settled = false;
    neb_log_hush(f->hush);
    enum neb_status st = sec_list_verify(p, len, f->ca_key, &l);
    neb_log_hush(false);
    NEB_TRY(st);
    NEB_TRY(seen_read(f, &seen));
    now = (struct seen){.version = l.members.version};
    neb_sha256(p, len, now.digest);
    const struct sec_branch theirs = {
        .list = &l, .version = l.members.version, .digest = now.digest};
    if (store && is_settled(f, &seen, &theirs)) // a list in the file may be an operator's choice
        return NEB_ERR_DENIED;
    neb_log_hush(f->hush_forks);
    st = judge(f, &seen, &l, now.digest, &fresh);
    neb_log_hush(false);
    if (st == NEB_ERR_CORRUPT)
        keep_fork(f, &seen, &theirs);
    NEB_TRY(st);
    NEB_TRY(file(f, "members.neb", path));
    if (store && fresh && sec_former_keep(f->dir, &f->list, &l) != NEB_OK)
        neb_warn("cannot keep the keys that the list no longer has: what they signed cannot be "
                 "checked later"); // a revoked member must go, even if this fails
    if (store && fresh)
        NEB_TRY(neb_fs_write(path, p, len, 0600));
    if (fresh)
        NEB_TRY(seen_write(f, &now));
    if (changed)
        *changed = l.members.version > f->list.members.version;
    return l.members.version > f->list.members.version ? keep(f, p, len, &l, now.digest) : NEB_OK;
}

// The list and `seen` are two files, and each is written under a second name first. So processes
// of one home (agent, command line) take turns.
enum neb_status sec_federation_apply(struct sec_federation *f, const uint8_t *p, size_t len,
                                     bool *changed) {
    int fd;
    NEB_TRY(sec_dir_lock(f->dir, &fd));
    enum neb_status st = take(f, p, len, true, changed);
    close(fd);
    return st;
}

static enum neb_status reload_locked(struct sec_federation *f, bool *changed) {
    char path[NEB_PATH_MAX], mark[NEB_PATH_MAX];
    struct neb_buf b = {0};
    struct seen seen;
    NEB_TRY(file(f, "members.neb", path));
    NEB_TRY(file(f, "seen", mark));
    NEB_TRY(seen_read(f, &seen)); // reports its own damage
    if (!neb_fs_exists(path)) {
        if (!seen.version)
            return NEB_OK;
        return neb_fail(NEB_ERR_DENIED,
                        "%s is missing, but version %llu was in use: copy it from another member",
                        path, (unsigned long long)seen.version);
    }
    bool unmarked = !neb_fs_exists(mark);
    enum neb_status st = neb_fs_read(path, SEC_LIST_MAX, &b);
    if (st == NEB_OK)
        st = take(f, b.p, b.len, false, changed);
    if (st == NEB_ERR_FORMAT || st == NEB_ERR_LIMIT)
        st = neb_fail(st, "%s is damaged: copy it from another member, or restore it from a backup",
                      path);
    if (st == NEB_OK && unmarked)
        neb_warn("%s was missing and is written again for version %llu of the member list. Without "
                 "it, a list older than the one in use here would not have been noticed",
                 mark, (unsigned long long)f->list.members.version);
    neb_buf_free(&b);
    return st;
}

enum neb_status sec_federation_reload(struct sec_federation *f, bool *changed) {
    int fd;
    if (changed)
        *changed = false;
    NEB_TRY(sec_dir_lock(f->dir, &fd));
    enum neb_status st = reload_locked(f, changed);
    close(fd);
    return st;
}

static enum neb_status make(const char *home, struct sec_federation **out) {
    char dir[NEB_PATH_MAX];
    NEB_TRY(neb_path(dir, sizeof dir, home, "federation"));
    struct sec_federation *f = calloc(1, sizeof *f);
    if (f)
        f->dir = strdup(dir);
    if (!f || !f->dir) {
        free(f);
        return neb_fail(NEB_ERR_NOMEM, "out of memory: federation");
    }
    *out = f;
    return NEB_OK;
}

#define COPY                                                                                       \
    "copy it from another member of the federation, which has the same file, or "                  \
    "restore it from a backup"

static enum neb_status load_ca(struct sec_federation *f) {
    char path[NEB_PATH_MAX];
    NEB_TRY(file(f, "ca.pem", path));
    enum neb_status st = sec_pem_read(path, &f->ca);
    if (st == NEB_OK)
        st = sec_ca_cert_parse(f->ca.p, f->ca.len, f->ca_key, f->pin, f->name);
    if (st == NEB_ERR_FORMAT || st == NEB_ERR_CORRUPT || st == NEB_ERR_LIMIT)
        st = neb_fail(st, "%s is damaged: " COPY, path);
    return st;
}

// If the folder holds other files of a federation, it belongs to that one. This CA and those files
// together would trust another list.
static enum neb_status without_ca(const struct sec_federation *f) {
    static const char *const others[] = {"members.neb", "seen", "member.pem"};
    char path[NEB_PATH_MAX], ca[NEB_PATH_MAX];
    NEB_TRY(file(f, "ca.pem", ca));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        NEB_TRY(file(f, others[i], path));
        if (neb_fs_exists(path))
            return neb_fail(NEB_ERR_CORRUPT, "%s is missing, but %s exists: " COPY, ca, path);
    }
    return NEB_ERR_NOT_FOUND;
}

enum neb_status sec_federation_open(const char *home, struct sec_federation **out) {
    struct sec_federation *f = NULL;
    NEB_TRY(make(home, &f));
    enum neb_status st = load_ca(f);
    if (st == NEB_ERR_NOT_FOUND)
        st = without_ca(f);
    if (st == NEB_OK)
        st = sec_forks_load(f->dir, &f->forks);
    if (st == NEB_OK)
        st = sec_federation_reload(f, NULL);
    if (st != NEB_OK)
        sec_federation_destroy(&f);
    *out = f;
    return st;
}

enum neb_status sec_federation_create(const char *home, const uint8_t *ca, size_t ca_len,
                                      struct sec_federation **out) {
    struct sec_federation *f = NULL;
    char path[NEB_PATH_MAX];
    uint8_t key[SEC_KEY_BYTES], pin[SEC_PIN_BYTES];
    NEB_TRY(sec_ca_cert_parse(ca, ca_len, key, pin, NULL));
    NEB_TRY(make(home, &f));
    enum neb_status st = load_ca(f);
    if (st == NEB_OK && memcmp(pin, f->pin, sizeof pin) != 0)
        st = neb_fail(NEB_ERR_EXISTS, "%s belongs to federation '%s': use another folder (--home)",
                      f->dir, f->name);
    if (st == NEB_ERR_NOT_FOUND) {
        NEB_TRY_GOTO(neb_fs_mkdirs(f->dir, 0700), out);
        NEB_TRY_GOTO(file(f, "ca.pem", path), out);
        NEB_TRY_GOTO(sec_pem_write(path, ca, ca_len), out);
        st = load_ca(f);
    }
    if (st == NEB_OK)
        st = sec_forks_load(f->dir, &f->forks);
    if (st == NEB_OK)
        st = sec_federation_reload(f, NULL);
out:
    if (st != NEB_OK)
        sec_federation_destroy(&f);
    *out = f;
    return st;
}

void sec_federation_destroy(struct sec_federation **f) {
    if (!f || !*f)
        return;
    neb_buf_free(&(*f)->ca);
    neb_buf_free(&(*f)->signed_list);
    free((*f)->dir);
    free(*f);
    *f = NULL;
}

enum neb_status sec_federation_set_cert(struct sec_federation *f, const uint8_t *p, size_t len) {
    struct sec_cert c;
    char path[NEB_PATH_MAX];
    int fd;
    NEB_TRY(sec_cert_verify(p, len, f->ca.p, f->ca.len, neb_wall_now() / NEB_S, &c));
    NEB_TRY(file(f, "member.pem", path));
    NEB_TRY(sec_dir_lock(f->dir, &fd));
    enum neb_status st = sec_pem_write(path, p, len);
    close(fd);
    return st;
}

enum neb_status sec_federation_cert(const struct sec_federation *f, struct sec_cert *out) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    NEB_TRY(file(f, "member.pem", path));
    enum neb_status st = sec_pem_read(path, &b);
    if (st == NEB_OK)
        st = sec_cert_parse(b.p, b.len, out);
    neb_buf_free(&b);
    return st;
}

enum neb_status sec_federation_set_hub(struct sec_federation *f, const char *hub) {
    char path[NEB_PATH_MAX];
    int fd;
    NEB_TRY(file(f, "hub", path));
    NEB_TRY(sec_dir_lock(f->dir, &fd));
    enum neb_status st = neb_fs_write(path, hub, strlen(hub), 0600);
    close(fd);
    return st;
}

enum neb_status sec_federation_hub(const struct sec_federation *f, char out[SEC_ENDPOINT_MAX]) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    NEB_TRY(file(f, "hub", path));
    if (!neb_fs_exists(path))
        return NEB_ERR_NOT_FOUND;
    enum neb_status st = neb_fs_read(path, SEC_ENDPOINT_MAX - 1, &b);
    if (st == NEB_OK) {
        memcpy(out, b.p, b.len);
        out[b.len] = 0;
        if (!sec_endpoint_valid(out))
            st = neb_fail(NEB_ERR_FORMAT, "%s: '%s' is not HOST:PORT; remove it", path, out);
    }
    neb_buf_free(&b);
    return st;
}
