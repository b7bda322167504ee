// SPDX-License-Identifier: Apache-2.0
#include "security/hub.h"

#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "security/files.h"
#include "security/invite.h"
#include "security/members.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SETTINGS_MAX = 4096 };

static int64_t now_s(void) { return neb_wall_now() / NEB_S; }

// ---- open and close ----------------------------------------------------------------------------

static enum neb_status settings_write(const char *dir, const struct sec_hub_settings *s) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, dir, "hub.json"));
    json_t *root = json_pack("{s:s,s:s}", "listen", s->listen, "reach", s->reach);
    return sec_json_save_take(path, root, 2);
}

static enum neb_status settings_read(const char *dir, struct sec_hub_settings *s) {
    char path[NEB_PATH_MAX];
    json_t *root;
    NEB_TRY(neb_path(path, sizeof path, dir, "hub.json"));
    NEB_TRY(sec_json_load(path, SETTINGS_MAX, &root));
    const char *listen = json_string_value(json_object_get(root, "listen"));
    const char *reach = json_string_value(json_object_get(root, "reach"));
    enum neb_status st = NEB_OK;
    if (!listen || !reach || !sec_endpoint_valid(listen) || !sec_endpoint_valid(reach))
        st = neb_fail(NEB_ERR_FORMAT, "%s must have listen and reach, both \"HOST:PORT\"", path);
    else
        snprintf(s->listen, sizeof s->listen, "%s", listen),
            snprintf(s->reach, sizeof s->reach, "%s", reach);
    json_decref(root);
    return st;
}

void sec_hub_destroy(struct sec_hub **h) {
    if (!h || !*h)
        return;
    sec_ca_destroy(&(*h)->ca);
    sec_federation_destroy(&(*h)->fed);
    free((*h)->home);
    free((*h)->dir);
    free(*h);
    *h = NULL;
}

// Opens all but the settings.
static enum neb_status open_parts(const char *home, struct sec_hub **out) {
    char dir[NEB_PATH_MAX];
    enum neb_status st;
    NEB_TRY(neb_path(dir, sizeof dir, home, "ca"));
    struct sec_hub *h = calloc(1, sizeof *h);
    if (!h || !(h->home = strdup(home)) || !(h->dir = strdup(dir))) {
        sec_hub_destroy(&h);
        return neb_fail(NEB_ERR_NOMEM, "out of memory: hub");
    }
    NEB_TRY_GOTO(sec_ca_open(home, &h->ca), out);
    st = sec_federation_open(home, &h->fed);
out:
    if (st != NEB_OK)
        sec_hub_destroy(&h);
    *out = h;
    return st;
}

// Tells a damaged hub from a home that never was a hub. Damaged: half of a hub's files exist, and
// no init is running.
static enum neb_status lost_file(const char *home, const char *name, const char *other,
                                 const char *remedy) {
    char path[NEB_PATH_MAX], there[NEB_PATH_MAX], begun[NEB_PATH_MAX];
    if (snprintf(path, sizeof path, "%s/ca/%s", home, name) >= (int)sizeof path ||
        snprintf(there, sizeof there, "%s/ca/%s", home, other) >= (int)sizeof there ||
        snprintf(begun, sizeof begun, "%s/ca/begun", home) >= (int)sizeof begun ||
        neb_fs_exists(path) || !neb_fs_exists(there) || neb_fs_exists(begun))
        return NEB_ERR_NOT_FOUND;
    return neb_fail(NEB_ERR_CORRUPT, "%s is missing, but %s exists: %s", path, there, remedy);
}

enum neb_status sec_hub_open(const char *home, struct sec_hub **out) {
    enum neb_status st = open_parts(home, out);
    if (st == NEB_ERR_NOT_FOUND)
        return lost_file(home, "ca.key", "hub.json",
                         "restore it from a backup (nebula init --restore reads a ca-backup)");
    NEB_TRY(st);
    st = settings_read((*out)->dir, &(*out)->settings);
    if (st == NEB_ERR_NOT_FOUND)
        st = lost_file(home, "hub.json", "ca.key",
                       "restore it from a backup, or write it: {\"listen\": \"HOST:PORT\", "
                       "\"reach\": \"HOST:PORT\"}, with the addresses given to nebula init");
    if (st == NEB_OK &&
        (*out)->fed->list.members.version) // an init may have stopped just before this
        st = sec_ca_finish(home);
    if (st != NEB_OK)
        sec_hub_destroy(out);
    return st;
}

// ---- one change at a time ----------------------------------------------------------------------

static enum neb_status lock(struct sec_hub *h, int *fd) {
    NEB_TRY(sec_dir_lock(h->dir, fd));
    enum neb_status st = sec_federation_reload(h->fed, NULL); // another process may have changed it
    if (st != NEB_OK)
        close(*fd);
    return st;
}

// Signs and applies l, a changed copy of the list in use.
static enum neb_status publish(struct sec_hub *h, struct sec_list *l, enum sec_list_why why,
                               const char *subject) {
    struct neb_buf b = {0};
    sec_list_succeed(l, h->fed->digest);
    l->issued = now_s();
    l->why = why;
    snprintf(l->subject, sizeof l->subject, "%s", subject);
    sec_federation_of_ca(h->fed->ca_key, l->members.federation);
    enum neb_status st = sec_list_format(l, &b);
    if (st == NEB_OK)
        st = sec_ca_sign(h->ca, SEC_CONTEXT_LIST, b.p, b.len - SEC_SIGN_BYTES,
                         b.p + b.len - SEC_SIGN_BYTES);
    if (st == NEB_OK)
        st = sec_federation_apply(h->fed, b.p, b.len, NULL);
    neb_buf_free(&b);
    return st;
}

static struct sec_member entry(const struct sec_public *p, enum sec_role role,
                               const char *endpoint) {
    struct sec_member e = {.pub = *p, .role = role, .caps = SEC_CAP_VOTER};
    snprintf(e.endpoint, sizeof e.endpoint, "%s", endpoint);
    return e;
}

static enum neb_status move_locked(struct sec_hub *h, const char *name, const char *link) {
    struct sec_list l = h->fed->list;
    int i = sec_members_find(&l.members, name);
    if (i < 0)
        return neb_fail(NEB_ERR_NOT_FOUND, "no member '%s': see nebula members", name);
    if (!strcmp(l.members.m[i].endpoint, link))
        return NEB_OK;
    snprintf(l.members.m[i].endpoint, sizeof l.members.m[i].endpoint, "%s", link);
    return publish(h, &l, SEC_LIST_MOVE, name);
}

// A hub whose keys are not on the list is no member, and cannot add itself.
static enum neb_status move_self(struct sec_hub *h, const struct sec_public *self,
                                 const char *link) {
    if (sec_members_hold(&h->fed->list.members, self))
        return move_locked(h, self->name, link);
    neb_warn("the keys of '%s' in %s are not on the member list, so no other site lets this one "
             "in: copy keys/ and identity of the previous hub, and run this again",
             self->name, h->home);
    return NEB_OK;
}

enum neb_status sec_hub_create(const char *home, const struct sec_hub_settings *s,
                               const struct sec_public *self, const char *link) {
    struct sec_hub *h = NULL;
    struct neb_buf cert = {0};
    char invites[NEB_PATH_MAX];
    int fd = -1;
    enum neb_status st;
    NEB_TRY(open_parts(home, &h));
    NEB_TRY_GOTO(neb_path(invites, sizeof invites, h->dir, "invites"), out);
    NEB_TRY_GOTO(neb_fs_mkdirs(invites, 0700), out);
    NEB_TRY_GOTO(settings_write(h->dir, s), out);
    NEB_TRY_GOTO(sec_ca_issue(h->ca, self, &cert), out);
    NEB_TRY_GOTO(sec_federation_set_cert(h->fed, cert.p, cert.len), out);
    NEB_TRY_GOTO(lock(h, &fd), out);
    // last: from now on this is a federation, and no init replaces it
    if (!h->fed->list.members.version) {
        struct sec_list l = {.issued = 0};
        struct sec_member e = entry(self, SEC_ROLE_DATA, link);
        st = sec_members_insert(&l.members, &e);
        if (st == NEB_OK)
            st = publish(h, &l, SEC_LIST_INIT, self->name);
    } else if (link[0]) {
        st = move_self(h, self, link);
    }
    close(fd);
    if (st == NEB_OK)
        st = sec_ca_finish(home);
out:
    neb_buf_free(&cert);
    sec_hub_destroy(&h);
    return st;
}

// ---- invitations -------------------------------------------------------------------------------

void sec_invite_verifier(const struct sec_token *t, uint8_t out[SEC_VERIFIER_BYTES]) {
    static const char tag[] = "nebula invite v1";
    uint8_t all[sizeof tag + SEC_INVITE_ID_BYTES + SEC_INVITE_SECRET_BYTES];
    memcpy(all, tag, sizeof tag);
    memcpy(all + sizeof tag, t->id, SEC_INVITE_ID_BYTES);
    memcpy(all + sizeof tag + SEC_INVITE_ID_BYTES, t->secret, SEC_INVITE_SECRET_BYTES);
    neb_sha256(all, sizeof all, out);
    sodium_memzero(all, sizeof all);
}

static enum neb_status invite_locked(struct sec_hub *h, const struct sec_token *t,
                                     enum sec_role role, int64_t ttl_s) {
    struct sec_invite v = {.role = role, .expires = now_s() + ttl_s};
    uint8_t verifier[SEC_VERIFIER_BYTES];
    struct sec_invites_swept swept;
    if (sec_members_find(&h->fed->list.members, t->name) >= 0)
        return neb_fail(NEB_ERR_EXISTS, "'%s' is already a member", t->name);
    NEB_TRY(sec_invites_sweep(h->dir, now_s(), NULL, &swept));
    if (swept.left >= SEC_INVITES_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "%d invitations are open, which is the limit: wait until some expire",
                        SEC_INVITES_MAX);
    memcpy(v.id, t->id, sizeof v.id);
    snprintf(v.name, sizeof v.name, "%s", t->name);
    sec_invite_verifier(t, verifier);
    sec_seal(sec_ca_seal_key(h->ca), verifier, sizeof verifier, v.sealed);
    sodium_memzero(verifier, sizeof verifier);
    return sec_invite_store(h->dir, &v);
}

enum neb_status sec_hub_invite(struct sec_hub *h, const char *name, enum sec_role role,
                               int64_t ttl_s, struct sec_token *out) {
    int fd;
    if (!sec_name_valid(name) || ttl_s < 1 || ttl_s > SEC_INVITE_TTL_MAX)
        return neb_fail(NEB_ERR_INVALID,
                        "invite '%s': a name has 1 to %d characters of a-z 0-9 _ . -, and an "
                        "invitation lasts 1 second to %d days",
                        name, SEC_NAME_MAX - 1, SEC_INVITE_TTL_MAX / 86400);
    *out = (struct sec_token){.name = ""};
    snprintf(out->name, sizeof out->name, "%s", name);
    memcpy(out->endpoint, h->settings.reach, sizeof out->endpoint);
    memcpy(out->pin, h->fed->pin, sizeof out->pin);
    randombytes_buf(out->id, sizeof out->id);
    randombytes_buf(out->secret, sizeof out->secret);
    NEB_TRY(lock(h, &fd));
    enum neb_status st = invite_locked(h, out, role, ttl_s);
    close(fd);
    return st;
}

enum neb_status sec_hub_verifier(struct sec_hub *h, const uint8_t id[SEC_INVITE_ID_BYTES],
                                 uint8_t out[SEC_VERIFIER_BYTES]) {
    struct sec_invite v;
    NEB_TRY(sec_invite_load(h->dir, id, &v));
    return sec_unseal(sec_ca_seal_key(h->ca), v.sealed, sizeof v.sealed, out);
}

// The keys of a removed member may be stolen: an invitation for its name admits only new keys.
static enum neb_status fresh_keys(const struct sec_hub *h, const struct sec_public *p) {
    bool former;
    NEB_TRY(sec_former_holds(h->fed->dir, p->sign, &former));
    if (!former)
        return NEB_OK;
    return neb_fail(NEB_ERR_DENIED,
                    "enrolment: '%s' asks with keys that were removed from the list before: "
                    "refused. A site that comes back makes new keys (nebula join --new-keys)",
                    p->name);
}

// First use: issues the certificate and marks the invitation as used. This write makes it
// single-use.
static enum neb_status consume(struct sec_hub *h, struct sec_invite *v, const struct sec_member *e,
                               const uint8_t digest[NEB_SHA256_BYTES], struct neb_buf *cert,
                               struct sec_enrol_answer *why) {
    struct sec_list trial = h->fed->list;
    enum neb_status st = fresh_keys(h, &e->pub);
    if (st == NEB_ERR_DENIED)
        why->code = SEC_ENROL_FORMER;
    NEB_TRY(st);
    st = sec_members_insert(&trial.members, e); // fails before the invitation is used up
    if (st == NEB_ERR_EXISTS)
        why->code = SEC_ENROL_TAKEN;
    NEB_TRY(st);
    NEB_TRY(sec_ca_issue(h->ca, &e->pub, cert));
    if (cert->len > sizeof v->cert)
        return neb_fail(NEB_ERR_LIMIT, "certificate of '%s' is too large", e->pub.name);
    v->used = true;
    memcpy(v->csr, digest, sizeof v->csr);
    memcpy(v->cert, cert->p, cert->len);
    v->cert_len = cert->len;
    return sec_invite_store(h->dir, v);
}

// Checks that the invitation is still open for this request. If not, why says the reason.
static enum neb_status check_open(const struct sec_invite *v, const struct sec_member *e,
                                  const uint8_t *digest, struct sec_enrol_answer *why) {
    int64_t ago = now_s() - v->expires;
    if (strcmp(v->name, e->pub.name) != 0)
        return neb_fail(NEB_ERR_DENIED,
                        "enrolment: the invitation for '%s' was used for '%s': refused", v->name,
                        e->pub.name);
    if (v->withdrawn) {
        why->code = SEC_ENROL_WITHDRAWN;
        return neb_fail(NEB_ERR_DENIED,
                        "enrolment: the invitation for '%s' was withdrawn: refused. nebula invite "
                        "%s makes another",
                        v->name, v->name);
    }
    if (v->used && memcmp(v->csr, digest, sizeof v->csr) != 0) {
        why->code = SEC_ENROL_USED;
        return neb_fail(
            NEB_ERR_DENIED,
            "enrolment: the invitation for '%s' was used before, with other keys: refused. If that "
            "was not your site, run nebula revoke %s and invite it again",
            v->name, v->name);
    }
    if (ago <= 0)
        return NEB_OK;
    why->code = SEC_ENROL_EXPIRED;
    why->seconds = ago < UINT32_MAX ? (uint32_t)ago : UINT32_MAX;
    return neb_fail(NEB_ERR_DENIED,
                    "enrolment: the invitation for '%s' expired %lld s ago: refused. nebula invite "
                    "%s makes another",
                    v->name, (long long)ago, v->name);
}

static enum neb_status admit_locked(struct sec_hub *h, const uint8_t id[SEC_INVITE_ID_BYTES],
                                    const struct sec_member *e, const uint8_t *digest,
                                    struct neb_buf *cert, struct sec_enrol_answer *why) {
    struct sec_invite v;
    enum neb_status st = sec_invite_load(h->dir, id, &v);
    if (st == NEB_ERR_NOT_FOUND)
        return neb_fail(NEB_ERR_DENIED, "enrolment: there is no such invitation");
    NEB_TRY(st);
    NEB_TRY(check_open(&v, e, digest, why));
    struct sec_member add = *e;
    add.role = v.role;
    if (!v.used)
        NEB_TRY(consume(h, &v, &add, digest, cert, why));
    neb_buf_clear(cert);
    neb_buf_add(cert, v.cert, v.cert_len);
    NEB_TRY(neb_buf_check(cert));
    if (v.listed)
        return NEB_OK;
    struct sec_list l = h->fed->list;
    if (sec_members_find(&l.members, v.name) < 0) {
        NEB_TRY(sec_members_insert(&l.members, &add));
        NEB_TRY(publish(h, &l, SEC_LIST_JOIN, v.name));
        neb_info("%s joined: member list version %llu", v.name,
                 (unsigned long long)l.members.version);
    }
    v.listed = true;
    return sec_invite_store(h->dir, &v);
}

enum neb_status sec_hub_admit(struct sec_hub *h, const uint8_t id[SEC_INVITE_ID_BYTES],
                              const uint8_t *csr, size_t len, const char *endpoint,
                              struct neb_buf *cert, struct sec_enrol_answer *why) {
    struct sec_public p;
    uint8_t digest[NEB_SHA256_BYTES];
    int fd;
    NEB_TRY(sec_csr_parse(csr, len, &p));
    neb_sha256(csr, len, digest);
    struct sec_member e = entry(&p, SEC_ROLE_DATA, endpoint);
    NEB_TRY(lock(h, &fd));
    enum neb_status st = admit_locked(h, id, &e, digest, cert, why);
    close(fd);
    return st;
}

// ---- members -----------------------------------------------------------------------------------

static enum neb_status rotate_locked(struct sec_hub *h, struct sec_list *l, uint32_t i,
                                     const struct sec_public *p, uint32_t *wait) {
    struct sec_member e = l->members.m[i];
    NEB_TRY(sec_rotated_wait(h->dir, p->name, now_s(), wait));
    if (*wait)
        return neb_fail(
            NEB_ERR_AGAIN,
            "rotation: '%s' had new keys within the last hour: refused for another %u s", p->name,
            *wait);
    NEB_TRY(fresh_keys(h, p));
    e.pub = *p;
    sec_members_drop(&l->members, i);
    NEB_TRY(sec_members_insert(&l->members, &e));
    NEB_TRY(publish(h, l, SEC_LIST_ROTATE, p->name));
    neb_info("%s has new keys: member list version %llu", p->name,
             (unsigned long long)l->members.version);
    // Written after the list: a crash in between allows one more rotation, but never refuses a
    // member whose new keys are not listed.
    return sec_rotated_note(h->dir, p->name, now_s());
}

static enum neb_status renew_locked(struct sec_hub *h, const char *name, const struct sec_public *p,
                                    struct neb_buf *cert, uint32_t *wait) {
    struct sec_list l = h->fed->list;
    int i = sec_members_find(&l.members, name);
    if (i < 0 || strcmp(p->name, name) != 0)
        return neb_fail(
            NEB_ERR_DENIED,
            "renewal: '%s' asks for a certificate of '%s', or is not on the list: refused", name,
            p->name);
    if (!sec_members_hold(&l.members, p)) // other keys
        NEB_TRY(rotate_locked(h, &l, (uint32_t)i, p, wait));
    return sec_ca_issue(h->ca, p, cert);
}

enum neb_status sec_hub_renew(struct sec_hub *h, const char *name, const uint8_t *csr, size_t len,
                              struct neb_buf *cert, uint32_t *wait) {
    struct sec_public p;
    int fd;
    *wait = 0;
    NEB_TRY(sec_csr_parse(csr, len, &p));
    NEB_TRY(lock(h, &fd));
    enum neb_status st = renew_locked(h, name, &p, cert, wait);
    close(fd);
    return st;
}

// *out: true if this home has keys, and they are the entry's.
static enum neb_status holds(const char *home, const struct sec_member *e, bool *out) {
    struct sec_identity *id = NULL;
    enum neb_status st = sec_identity_load(home, &id);
    *out = st == NEB_OK && !memcmp(sec_identity_public(id)->sign, e->pub.sign, SEC_KEY_BYTES);
    sec_identity_destroy(&id);
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

// *out: true if the entry is the hub itself. It compares the hub's keys, and those of a nebula
// rotate that stopped after the hub's answer. It does not compare names: after a restore, the list
// may still have the hub's old name.
static enum neb_status is_self(const struct sec_hub *h, const struct sec_member *e, bool *out) {
    char rotate[NEB_PATH_MAX];
    NEB_TRY(neb_path(rotate, sizeof rotate, h->home, "rotate"));
    NEB_TRY(holds(h->home, e, out));
    if (!*out && neb_fs_exists(rotate) && holds(rotate, e, out) != NEB_OK)
        neb_warn("%s is incomplete, and does not hinder a revocation; nebula rotate makes it again",
                 rotate);
    return NEB_OK;
}

static enum neb_status revoke_locked(struct sec_hub *h, const char *name, bool *member) {
    struct sec_invites_swept swept;
    bool self = false;
    struct sec_list l = h->fed->list;
    int i = sec_members_find(&l.members, name);
    if (i >= 0)
        NEB_TRY(is_self(h, &l.members.m[i], &self));
    if (self)
        return neb_fail(NEB_ERR_STATE,
                        "'%s' is this hub, which signs the list and stays on it. To move the hub, "
                        "take its backup to another node (nebula init --restore)",
                        name);
    // Ends invitations first: a used invitation could otherwise put the name back.
    NEB_TRY(sec_invites_sweep(h->dir, now_s(), name, &swept));
    *member = i >= 0;
    if (i < 0)
        return swept.ended
                   ? NEB_OK
                   : neb_fail(NEB_ERR_NOT_FOUND, "no member '%s': see nebula members", name);
    sec_members_drop(&l.members, (uint32_t)i);
    return publish(h, &l, SEC_LIST_REVOKE, name);
}

enum neb_status sec_hub_revoke(struct sec_hub *h, const char *name, bool *member) {
    int fd;
    NEB_TRY(lock(h, &fd));
    enum neb_status st = revoke_locked(h, name, member);
    close(fd);
    return st;
}

enum neb_status sec_hub_move(struct sec_hub *h, const char *name, const char *link) {
    int fd;
    if (link[0] && !sec_endpoint_valid(link))
        return neb_fail(NEB_ERR_INVALID, "'%s': expected HOST:PORT", link);
    NEB_TRY(lock(h, &fd));
    enum neb_status st = move_locked(h, name, link);
    close(fd);
    return st;
}

static enum neb_status promote_locked(struct sec_hub *h, const char *lost) {
    bool self;
    struct sec_list l = h->fed->list;
    int i = sec_members_find(&l.members, lost);
    if (i < 0)
        return neb_fail(NEB_ERR_NOT_FOUND, "no member '%s': see nebula members", lost);
    NEB_TRY(is_self(h, &l.members.m[i], &self));
    if (self)
        return neb_fail(NEB_ERR_STATE, "'%s' is this hub, which is not lost: name the other member",
                        lost);
    uint32_t voters = sec_members_voters(&l.members);
    if (voters != 2)
        return neb_fail(NEB_ERR_STATE,
                        "promote is for a federation of two voters that lost '%s', but here %s: %s",
                        lost, voters == 1 ? "is one voter" : "are more voters",
                        voters == 1
                            ? "it already commits alone"
                            : "revoke the lost member. Jobs of three clusters or more continue. A "
                              "job of two ends after a checkpoint, and a new job continues from it "
                              "with init_from: HOME/jobs/ID/checkpoint");
    if (!(l.members.m[i].caps & SEC_CAP_VOTER))
        return neb_fail(NEB_ERR_STATE, "'%s' has no vote to take: see nebula members", lost);
    l.members.m[i].caps &= ~(uint32_t)SEC_CAP_VOTER;
    return publish(h, &l, SEC_LIST_PROMOTE, lost);
}

enum neb_status sec_hub_promote(struct sec_hub *h, const char *lost) {
    int fd;
    NEB_TRY(lock(h, &fd));
    enum neb_status st = promote_locked(h, lost);
    close(fd);
    return st;
}
