// SPDX-License-Identifier: Apache-2.0
// Enrolment as sites and operators use it: joining, new keys, revocation, and what a crash or a
// copied backup leaves.
#include "agent/base/fault.h"
#include "security/invite.h"
#include "security/rotate.h"
#include "tests/security/enrol_fixture.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// ---- the wall clock ----------------------------------------------------------------------------
// Replaces libc's functions in this process and its libraries, so that a test can set the clock.

static _Atomic int64_t clock_set_s;
static _Thread_local int64_t clock_here_s; // for this thread only; the hub runs in another

int clock_gettime(clockid_t id, struct timespec *t) {
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && id == CLOCK_REALTIME)
        t->tv_sec += atomic_load(&clock_set_s) + clock_here_s;
    return rc;
}

time_t time(time_t *out) {
    struct timespec t = {0};
    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}

static enum neb_status revoke_now(const char *name) {
    bool member;
    return sec_hub_revoke(hub, name, &member);
}

// ---- honest -----------------------------------------------------------------------------------

static void test_join(void **state) {
    (void)state;
    struct sec_token t = invite("paris", 3600), back;
    char text[SEC_TOKEN_TEXT];
    struct sec_federation *f = NULL;
    struct sec_cert cert;
    assert_int_equal(sec_token_format(&t, text), NEB_OK);
    assert_int_equal(sec_token_parse(text, &back), NEB_OK);
    assert_memory_equal(back.secret, t.secret, sizeof t.secret);
    assert_int_equal(sec_enrol_join(home("paris"), &back, "paris.example:7400"), NEB_OK);
    assert_int_equal(sec_federation_open(home("paris"), &f), NEB_OK);
    assert_int_equal(sec_federation_cert(f, &cert), NEB_OK);
    assert_string_equal(cert.pub.name, "paris");
    int i = sec_members_find(&f->list.members, "paris");
    assert_true(i >= 0);
    assert_string_equal(f->list.members.m[i].endpoint, "paris.example:7400");
    assert_memory_equal(f->list.members.m[i].pub.curve, cert.pub.curve, SEC_KEY_BYTES);
    assert_memory_equal(f->pin, t.pin, sizeof t.pin);
    uint64_t version = f->list.members.version;
    sec_federation_destroy(&f);
    // The same request again gets the same answer, and changes nothing.
    assert_int_equal(sec_enrol_join(home("paris"), &back, "paris.example:7400"), NEB_OK);
    assert_true(is_member("paris"));
    assert_int_equal(hub->fed->list.members.version, version);
    // The hub and the logs do not hold the secret.
    char secret[65], sealed[NEB_PATH_MAX];
    neb_hex(t.secret, sizeof t.secret, secret);
    assert_int_equal(neb_path(sealed, sizeof sealed, hub_home, "ca/invites"), NEB_OK);
    char command[2 * NEB_PATH_MAX];
    snprintf(command, sizeof command, "grep -rqE '%s|%s' '%s'", secret, text + 60, hub_home);
    assert_int_not_equal(system(command), 0);
    assert_false(was_logged(text + 60) || was_logged(secret));
}

static void test_renew_and_rotate(void **state) {
    (void)state;
    struct sec_token t = invite("rome", 3600);
    struct sec_identity *before = NULL, *after = NULL;
    assert_int_equal(sec_enrol_join(home("rome"), &t, ""), NEB_OK);
    assert_int_equal(sec_identity_load(home("rome"), &before), NEB_OK);
    assert_true(is_member("rome"));
    uint64_t version = hub->fed->list.members.version;
    assert_int_equal(sec_enrol_renew(home("rome"), endpoint, NULL), NEB_OK);
    assert_true(is_member("rome"));
    assert_int_equal(hub->fed->list.members.version, version); // only a certificate, no new list
    assert_int_equal(sec_rotate(home("rome"), endpoint), NEB_OK);
    assert_int_equal(sec_identity_load(home("rome"), &after), NEB_OK);
    assert_memory_not_equal(sec_identity_public(before)->curve, sec_identity_public(after)->curve,
                            SEC_KEY_BYTES);
    assert_true(is_member("rome"));
    int i = sec_members_find(&hub->fed->list.members, "rome");
    assert_memory_equal(hub->fed->list.members.m[i].pub.sign, sec_identity_public(after)->sign,
                        SEC_KEY_BYTES);
    // Other keys are possible only an hour later, because each rotation makes a version of the
    // list.
    version = hub->fed->list.members.version;
    assert_int_equal(sec_rotate(home("rome"), endpoint), NEB_ERR_AGAIN);
    assert_int_equal(hub->fed->list.members.version, version);
    assert_true(is_member("rome"));
    // The new keys may renew, the old ones may not.
    assert_int_equal(sec_enrol_renew(home("rome"), endpoint, NULL), NEB_OK);
    assert_int_equal(neb_fs_remove_tree(home("rome/keys")), NEB_OK);
    assert_int_equal(rename(home("rome/keys.old"), home("rome/keys")), 0);
    char line[SEC_ID_TEXT];
    assert_int_equal(sec_public_format(sec_identity_public(before), line, sizeof line), NEB_OK);
    assert_int_equal(neb_fs_write(home("rome/identity"), line, strlen(line), 0644), NEB_OK);
    assert_int_equal(sec_enrol_renew(home("rome"), endpoint, NULL), NEB_ERR_DENIED);
    sec_identity_destroy(&before);
    sec_identity_destroy(&after);
}

static void rotated_to(const char *name, const struct sec_identity *next) {
    struct sec_identity *now = NULL;
    assert_int_equal(sec_identity_load(home(name), &now), NEB_OK);
    assert_memory_equal(sec_identity_public(now), sec_identity_public(next),
                        sizeof(struct sec_public));
    assert_true(is_member(name));
    int i = sec_members_find(&hub->fed->list.members, name);
    assert_memory_equal(hub->fed->list.members.m[i].pub.sign, sec_identity_public(next)->sign,
                        SEC_KEY_BYTES);
    sec_identity_destroy(&now);
}

// The hub lists the new keys, but its answer is lost. The same command again completes the
// rotation.
static void test_rotation_answer_lost(void **state) {
    (void)state;
    struct sec_token t = invite("lima", 3600);
    struct sec_identity *next = NULL;
    struct neb_buf csr = {0}, cert = {0};
    uint32_t wait;
    assert_int_equal(sec_enrol_join(home("lima"), &t, ""), NEB_OK);
    assert_int_equal(sec_identity_create(home("lima/rotate"), "lima", &next), NEB_OK);
    assert_int_equal(sec_csr_make(next, NULL, &csr), NEB_OK);
    assert_int_equal(sec_hub_renew(hub, "lima", csr.p, csr.len, &cert, &wait), NEB_OK);
    assert_true(is_member("lima"));
    uint64_t version = hub->fed->list.members.version;
    assert_int_equal(sec_rotate(home("lima"), endpoint), NEB_OK);
    rotated_to("lima", next);
    assert_int_equal(hub->fed->list.members.version, version); // a renewal
    assert_false(neb_fs_exists(home("lima/rotate")));
    // Keys that are not listed get nothing this way: a revoked member stays revoked.
    sec_identity_destroy(&next);
    assert_int_equal(sec_identity_create(home("lima/rotate"), "lima", &next), NEB_OK);
    assert_int_equal(revoke_now("lima"), NEB_OK);
    assert_int_equal(sec_rotate(home("lima"), endpoint), NEB_ERR_DENIED);
    assert_false(is_member("lima"));
    neb_buf_free(&csr);
    neb_buf_free(&cert);
    sec_identity_destroy(&next);
}

// A power cut after one of the three renames. The same command again does the others, without the
// hub.
static void test_rotation_cut_short(void **state) {
    (void)state;
    struct sec_identity *next = NULL, *id = NULL;
    for (int renames = 1; renames <= 2; renames++) {
        assert_int_equal(neb_fs_remove_tree(home("cut")), NEB_OK);
        id = NULL;
        assert_int_equal(sec_identity_create(home("cut"), "cut", &id), NEB_OK);
        sec_identity_destroy(&id);
        assert_int_equal(sec_identity_create(home("cut/rotate"), "cut", &next), NEB_OK);
        assert_int_equal(rename(home("cut/keys"), home("cut/keys.old")), 0);
        if (renames == 2)
            assert_int_equal(rename(home("cut/rotate/keys"), home("cut/keys")), 0);
        assert_int_equal(sec_identity_load(home("cut"), &id), NEB_ERR_CORRUPT);
        assert_true(was_logged("nebula rotate was interrupted: run it again"));
        assert_int_equal(sec_rotate(home("cut"), "nowhere.invalid:1"), NEB_OK);
        assert_int_equal(sec_identity_load(home("cut"), &id), NEB_OK);
        assert_memory_equal(sec_identity_public(id), sec_identity_public(next),
                            sizeof(struct sec_public));
        assert_true(neb_fs_exists(home("cut/keys.old")) && !neb_fs_exists(home("cut/rotate")));
        sec_identity_destroy(&id);
        sec_identity_destroy(&next);
    }
}

// The hub's clock is set. Its certificate is valid by the new time at once.
static void test_clock_set(void **state) {
    (void)state;
    struct sec_token t = invite("bonn", 3600);
    assert_int_equal(sec_enrol_join(home("bonn"), &t, ""), NEB_OK);
    // longer than a server certificate is valid, and back
    for (int days = 10; days >= 0; days -= 10) {
        atomic_store(&clock_set_s, days * 24 * 3600);
        assert_int_equal(sec_enrol_renew(home("bonn"), endpoint, NULL), NEB_OK);
    }
}

// ---- membership that ends -----------------------------------------------------------------------

// A revoked name cannot come back with its old keys, which may be stolen, not even with a new
// invitation. A rotation does not bring old keys back either.
static void test_back_with_other_keys(void **state) {
    (void)state;
    struct sec_token t = invite("nice", 3600);
    struct sec_identity *stolen = new_identity("nice"), *next = NULL;
    struct neb_buf csr = {0}, cert = {0};
    uint32_t wait;
    assert_int_equal(try_join(&t, stolen, &(struct lie){0}), NEB_OK);
    assert_int_equal(revoke_now("nice"), NEB_OK);
    t = invite("nice", 3600);
    neb_buf_clear(&logged);
    assert_int_equal(try_join(&t, stolen, &(struct lie){0}), NEB_ERR_DENIED);
    assert_true(was_logged("asks with keys that were removed from the list before"));
    assert_false(is_member("nice"));
    // That did not use up the token. The site moves its keys aside and makes new ones.
    assert_int_equal(sec_identity_put_aside(home("id-nice")), NEB_OK);
    assert_true(neb_fs_exists(home("id-nice/former-keys-1/keys/sign.key")));
    assert_int_equal(sec_identity_create(home("id-nice"), "nice", &next), NEB_OK);
    assert_int_equal(try_join(&t, next, &(struct lie){0}), NEB_OK);
    assert_true(is_member("nice"));
    assert_int_equal(sec_csr_make(stolen, NULL, &csr), NEB_OK);
    assert_int_equal(sec_hub_renew(hub, "nice", csr.p, csr.len, &cert, &wait), NEB_ERR_DENIED);
    neb_buf_free(&csr);
    neb_buf_free(&cert);
    sec_identity_destroy(&stolen);
    sec_identity_destroy(&next);
}

static void test_revoke_and_promote(void **state) {
    (void)state;
    struct sec_token t = invite("gone", 3600), used;
    struct sec_identity *id = new_identity("gone");
    used = t;
    assert_int_equal(try_join(&t, id, &(struct lie){0}), NEB_OK);
    assert_int_equal(revoke_now("gone"), NEB_OK);
    assert_false(is_member("gone"));
    // the token that it joined with
    assert_int_equal(try_join(&used, id, &(struct lie){0}), NEB_ERR_DENIED);
    assert_false(is_member("gone"));
    assert_int_equal(revoke_now("gone"), NEB_ERR_NOT_FOUND);
    uint64_t version = hub->fed->list.members.version;
    assert_int_equal(revoke_now("hub"), NEB_ERR_STATE); // the hub itself
    char own[NEB_PATH_MAX];
    assert_int_equal(neb_path(own, sizeof own, hub_home, "federation/member.pem"), NEB_OK);
    for (int damaged = 0; damaged < 2;
         damaged++) { // a damaged certificate of the hub does not matter here
        assert_int_equal(damaged ? neb_fs_write(own, "x", 1, 0600) : neb_fs_remove(own), NEB_OK);
        assert_int_equal(revoke_now("hub"), NEB_ERR_STATE);
    }
    assert_true(sec_members_voters(&hub->fed->list.members) > 2);
    assert_int_equal(sec_hub_promote(hub, "paris"), NEB_ERR_STATE);
    assert_true(is_member("hub") && hub->fed->list.members.version == version);
    for (uint32_t i = 0; i < hub->fed->list.members.n;) {
        char name[SEC_NAME_MAX];
        memcpy(name, hub->fed->list.members.m[i].pub.name, sizeof name);
        if (!strcmp(name, "hub") || !strcmp(name, "paris"))
            i++;
        else
            assert_int_equal(revoke_now(name), NEB_OK);
    }
    assert_int_equal(sec_hub_promote(hub, "nobody"), NEB_ERR_NOT_FOUND);
    version = hub->fed->list.members.version;
    assert_int_equal(sec_hub_promote(hub, "hub"), NEB_ERR_STATE); // the hub itself is not lost
    assert_int_equal(hub->fed->list.members.version, version);
    assert_int_equal(sec_hub_promote(hub, "paris"), NEB_OK);
    assert_true(is_member("paris") && sec_members_voters(&hub->fed->list.members) == 1);
    assert_int_equal(hub->fed->list.why, SEC_LIST_PROMOTE);
    assert_int_equal(sec_hub_promote(hub, "hub"), NEB_ERR_STATE); // the last vote stays
    assert_int_equal(sec_hub_promote(hub, "paris"), NEB_ERR_STATE);
    // Joins, rotations, revocations, promotion: each version's history has all earlier versions, so
    // also the one that this member holds.
    struct sec_federation *f = NULL;
    assert_int_equal(hub->fed->list.n_history, hub->fed->list.members.version - 1);
    assert_int_equal(sec_federation_open(home("paris"), &f), NEB_OK);
    assert_true(f->list.members.version + 1 < hub->fed->list.members.version);
    assert_memory_equal(sec_list_before(&hub->fed->list, f->list.members.version), f->digest,
                        sizeof f->digest);
    assert_int_equal(
        sec_federation_apply(f, hub->fed->signed_list.p, hub->fed->signed_list.len, NULL), NEB_OK);
    sec_federation_destroy(&f);
    sec_identity_destroy(&id);
}

// nebula revoke withdraws an invitation that nobody has used.
static void test_withdrawn(void **state) {
    (void)state;
    struct sec_token t = invite("never", 3600);
    struct sec_identity *id = new_identity("never");
    bool member = true;
    uint64_t version = (is_member("never"), hub->fed->list.members.version);
    assert_int_equal(sec_hub_revoke(hub, "never", &member), NEB_OK);
    assert_false(member);
    assert_int_equal(hub->fed->list.members.version, version);
    assert_int_equal(try_join(&t, id, &(struct lie){0}), NEB_ERR_DENIED);
    assert_int_equal(revoke_now("never"), NEB_ERR_NOT_FOUND); // nothing of it is left
    sec_identity_destroy(&id);
}

// ---- reasons of refusals -----------------------------------------------------------------------

static void age(const struct sec_token *t, int64_t seconds) {
    struct sec_invite v;
    assert_int_equal(sec_invite_load(hub->dir, t->id, &v), NEB_OK);
    v.expires -= seconds;
    assert_int_equal(sec_invite_store(hub->dir, &v), NEB_OK);
}

static void forget_log(void) {
    pthread_mutex_lock(&log_lock);
    neb_buf_clear(&logged);
    pthread_mutex_unlock(&log_lock);
}

// A holder of the token learns what became of the invitation, and so does the hub's operator. A
// sender that knows only the number of the invitation does not.
static void refused_as(struct sec_token t, const char *with, enum sec_enrol_code said,
                       const char *site, const char *hub_says) {
    struct sec_identity *id = NULL;
    char folder[64];
    forget_log();
    assert_int_equal(sec_enrol_join(home(with), &t, ""), NEB_ERR_DENIED);
    assert_true(was_logged(site));
    assert_true(was_logged(hub_says));
    snprintf(folder, sizeof folder, "stranger-%s", t.name);
    assert_int_equal(sec_identity_create(home(folder), t.name, &id), NEB_OK);
    assert_int_equal(try_join(&t, id, &(struct lie){0}), NEB_ERR_DENIED);
    assert_int_equal(answered, said);
    t.secret[7] ^= 1;
    assert_int_equal(try_join(&t, id, &(struct lie){0}), NEB_ERR_DENIED);
    assert_int_equal(answered, SEC_ENROL_REFUSED);
    sec_identity_destroy(&id);
}

static void test_says_why(void **state) {
    (void)state;
    struct sec_token used = invite("said-used", 3600), late = invite("said-late", 3600),
                     gone = invite("said-gone", 3600), old = invite("said-old", 3600),
                     none = invite("said-none", 3600);
    struct sec_invite v;
    assert_int_equal(sec_enrol_join(home("said-used"), &used, ""), NEB_OK);
    refused_as(used, "said-used2", SEC_ENROL_USED,
               "this invitation for 'said-used' was used before",
               "the invitation for 'said-used' was used before, with other keys");
    age(&late, 3 * 3600);
    refused_as(late, "said-late", SEC_ENROL_EXPIRED, "this invitation for 'said-late' expired 12",
               "the invitation for 'said-late' expired 72");
    assert_int_equal(revoke_now("said-gone"), NEB_OK);
    refused_as(gone, "said-gone", SEC_ENROL_WITHDRAWN,
               "this invitation for 'said-gone' was withdrawn",
               "the invitation for 'said-gone' was withdrawn");
    // A reason stays when other invitations are made, but not for ever.
    age(&old, SEC_INVITE_KEPT + 2 * 3600);
    (void)invite("said-next", 3600);
    assert_int_equal(sec_invite_load(hub->dir, late.id, &v), NEB_OK);
    assert_int_equal(sec_invite_load(hub->dir, gone.id, &v), NEB_OK);
    refused_as(old, "said-old", SEC_ENROL_REFUSED, "no invitation for this token",
               "there is no such invitation");
    none.id[0] ^= 1;
    // by now the hub's log throttle holds such lines back
    refused_as(none, "said-none", SEC_ENROL_REFUSED, "no invitation for this token", "");
    assert_false(was_logged("there is no such invitation"));
    assert_false(is_member("said-late") || is_member("said-gone") || is_member("said-old"));
}

// A site whose clock is behind rejects the hub's certificate. Both log the reason, and only what
// they know.
static void test_clock_behind(void **state) {
    (void)state;
    struct sec_token t = invite("behind", 3600);
    forget_log();
    clock_here_s = -7200;
    assert_int_equal(sec_enrol_join(home("behind"), &t, ""), NEB_ERR_DENIED);
    clock_here_s = 0;
    assert_true(was_logged("certificate is not yet valid: by this machine's clock it is "));
    for (int i = 0; i < 100 && !was_logged("refused this side's certificate"); i++)
        neb_sleep(20 * NEB_MS);
    assert_true(was_logged("refused this side's certificate: bad certificate"));
    assert_false(was_logged("TLS 1.3"));
    assert_int_equal(sec_enrol_join(home("behind"), &t, ""), NEB_OK);
}

// ---- crash and damage ---------------------------------------------------------------------------

// The hub fails at each of its writes in turn. Afterwards it answers the same request. Once the
// invitation is used, it refuses any other.
static void test_crash_while_admitting(void **state) {
    (void)state;
    for (int k = 1; k <= 4; k++) {
        char name[16], spec[32];
        struct neb_buf csr = {0}, other = {0}, cert = {0};
        struct sec_enrol_answer why = {.code = SEC_ENROL_REFUSED};
        struct sec_identity *one = NULL, *two = NULL;
        snprintf(name, sizeof name, "crash%d", k);
        snprintf(spec, sizeof spec, "fs.write:%d", k);
        one = new_identity(name);
        assert_int_equal(sec_identity_create(home(spec), name, &two), NEB_OK);
        assert_int_equal(sec_csr_make(one, NULL, &csr), NEB_OK);
        assert_int_equal(sec_csr_make(two, NULL, &other), NEB_OK);
        struct sec_token t = invite(name, 3600);
        neb_fault_arm(spec);
        enum neb_status st = sec_hub_admit(hub, t.id, csr.p, csr.len, "", &cert, &why);
        neb_fault_arm(NULL);
        assert_int_not_equal(st, NEB_OK);
        if (k > 1)
            assert_int_equal(sec_hub_admit(hub, t.id, other.p, other.len, "", &cert, &why),
                             NEB_ERR_DENIED);
        assert_int_equal(sec_hub_admit(hub, t.id, csr.p, csr.len, "", &cert, &why), NEB_OK);
        assert_int_equal(sec_hub_admit(hub, t.id, other.p, other.len, "", &cert, &why),
                         NEB_ERR_DENIED);
        assert_true(is_member(name));
        neb_buf_free(&csr);
        neb_buf_free(&other);
        neb_buf_free(&cert);
        sec_identity_destroy(&one);
        sec_identity_destroy(&two);
    }
}

// An invitation that cannot be read for now (no file descriptor is left) stays. A damaged one is
// removed.
static void test_unreadable_invitation(void **state) {
    (void)state;
    struct sec_token t = invite("later", 3600);
    struct sec_invites_swept swept;
    struct sec_invite v;
    struct rlimit was, few;
    char path[NEB_PATH_MAX];
    int fd = dup(0);
    assert_true(fd > 0 && getrlimit(RLIMIT_NOFILE, &was) == 0);
    close(fd);
    // one descriptor, for the folder
    few = (struct rlimit){.rlim_cur = (rlim_t)fd + 1, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    enum neb_status st = sec_invites_sweep(hub->dir, 0, NULL, &swept);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_not_equal(st, NEB_OK);
    assert_int_equal(sec_invite_load(hub->dir, t.id, &v), NEB_OK);
    assert_int_equal(neb_path(path, sizeof path, hub->dir, "invites/00.json"), NEB_OK);
    assert_int_equal(neb_fs_write(path, "{", 1, 0600), NEB_OK);
    assert_int_equal(sec_invites_sweep(hub->dir, 0, "later", &swept), NEB_OK);
    assert_false(neb_fs_exists(path));
    assert_int_equal(swept.ended, 1);
}

static void test_key_files(void **state) {
    (void)state;
    static const char *const files[] = {"ca/ca.key", "ca/seal.key", "keys/curve.key"};
    for (size_t i = 0; i < 3; i++) {
        char path[NEB_PATH_MAX], aside[NEB_PATH_MAX + 8];
        struct sec_hub *h = NULL;
        struct sec_identity *id = NULL;
        assert_int_equal(neb_path(path, sizeof path, hub_home, files[i]), NEB_OK);
        snprintf(aside, sizeof aside, "%s.aside", path);
        for (int attack = 0; attack < 2; attack++) {
            if (attack == 0) {
                assert_int_equal(chmod(path, 0640), 0);
            } else {
                assert_int_equal(rename(path, aside), 0);
                assert_int_equal(symlink(aside, path), 0);
            }
            if (i < 2)
                assert_int_equal(sec_hub_open(hub_home, &h), NEB_ERR_DENIED);
            else
                assert_int_equal(sec_identity_load(hub_home, &id), NEB_ERR_DENIED);
            if (attack == 0)
                assert_int_equal(chmod(path, 0600), 0);
            else
                assert_int_equal(rename(aside, path), 0);
        }
        assert_int_equal(sec_hub_open(hub_home, &h), NEB_OK);
        sec_hub_destroy(&h);
    }
}

// Copies what a member would bring to a new hub: the newest list and `seen`.
static void copy_list(const char *to) {
    static const char *const files[] = {"federation/members.neb", "federation/seen"};
    char from[NEB_PATH_MAX], path[NEB_PATH_MAX];
    assert_int_equal(neb_path(path, sizeof path, to, "federation"), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(path, 0700), NEB_OK);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(neb_path(from, sizeof from, hub_home, files[i]), NEB_OK);
        assert_int_equal(neb_path(path, sizeof path, to, files[i]), NEB_OK);
        assert_int_equal(neb_fs_copy(from, path, 0600), NEB_OK);
    }
}

static void test_backup(void **state) {
    (void)state;
    struct sec_federation *f = NULL;
    char wrong[SEC_CODE_TEXT];
    sec_code_make(wrong);
    assert_int_equal(sec_ca_restore(home("restored"), home("backup"), wrong), NEB_ERR_DENIED);
    assert_int_equal(sec_ca_restore(home("restored"), home("backup"), "short"), NEB_ERR_INVALID);
    // Without a list the hub would sign a second version 1.
    assert_int_equal(sec_ca_restore(home("restored"), home("backup"), code), NEB_ERR_STATE);
    assert_false(neb_fs_exists(home("restored")));
    copy_list(home("restored"));
    assert_int_equal(sec_ca_restore(home("restored"), home("backup"), code), NEB_OK);
    assert_int_equal(sec_federation_open(home("restored"), &f), NEB_OK);
    assert_memory_equal(f->pin, hub->fed->pin, sizeof f->pin);
    struct sec_ca *ca = NULL;
    assert_int_equal(sec_ca_open(home("restored"), &ca), NEB_OK);
    sec_ca_destroy(&ca);
    sec_federation_destroy(&f);
    // The same again, as after the loss of the seal key.
    assert_int_equal(sec_ca_restore(home("restored"), home("backup"), code), NEB_OK);
    assert_int_equal(sec_ca_open(home("restored"), &ca), NEB_OK);
    sec_ca_destroy(&ca);
}

// Restoring a backup over another federation's hub fails, and keeps that hub's key.
static void test_backup_of_another(void **state) {
    (void)state;
    struct neb_buf before = {0}, after = {0};
    char other[SEC_CODE_TEXT];
    struct sec_ca *ca = NULL;
    assert_int_equal(sec_ca_create(home("other"), "other", home("other-backup"), other), NEB_OK);
    copy_list(home("other"));
    assert_int_equal(neb_fs_read(home("other/ca/ca.key"), 4096, &before), NEB_OK);
    assert_int_equal(sec_ca_restore(home("other"), home("backup"), code), NEB_ERR_EXISTS);
    assert_int_equal(neb_fs_read(home("other/ca/ca.key"), 4096, &after), NEB_OK);
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.p, after.p, before.len);
    // A list that another CA signed, without a certificate beside it: nothing is written.
    assert_int_equal(neb_fs_mkdirs(home("mixed"), 0700), NEB_OK);
    copy_list(home("mixed"));
    assert_int_equal(sec_ca_restore(home("mixed"), home("other-backup"), other), NEB_ERR_EXISTS);
    assert_false(neb_fs_exists(home("mixed/ca/ca.key")));
    assert_false(neb_fs_exists(home("mixed/federation/ca.pem")));
    assert_int_equal(neb_fs_remove_tree(home("other/federation/members.neb")), NEB_OK);
    assert_int_equal(neb_fs_remove_tree(home("other/federation/seen")), NEB_OK);
    assert_int_equal(sec_ca_open(home("other"), &ca), NEB_OK);
    sec_ca_destroy(&ca);
    neb_buf_free(&before);
    neb_buf_free(&after);
}

static enum neb_status init_hub(const char *where, const char *backup,
                                const struct sec_public *self, char text[SEC_CODE_TEXT]) {
    struct sec_hub_settings s = {"127.0.0.1:7443", "127.0.0.1:7443"};
    NEB_TRY(sec_ca_create(where, "cut", backup, text));
    return sec_hub_create(where, &s, self, "");
}

// An init stops after each of its files in turn. The same command then makes everything again,
// unless there is a list. The code that was shown last opens the backup.
static void test_init_cut_short(void **state) {
    (void)state;
    char first[SEC_CODE_TEXT], second[SEC_CODE_TEXT], spec[32], cut[NEB_PATH_MAX],
        back[NEB_PATH_MAX];
    struct sec_hub *h = NULL;
    struct sec_federation *f = NULL, *g = NULL;
    enum neb_status st = NEB_ERR_IO;
    int remade = 0;
    for (int k = 1; st != NEB_OK; k++) {
        snprintf(spec, sizeof spec, "cut-%d", k);
        snprintf(cut, sizeof cut, "%s", home(spec));
        snprintf(spec, sizeof spec, "cut-backup-%d", k);
        snprintf(back, sizeof back, "%s", home(spec));
        snprintf(spec, sizeof spec, "fs.folder:%d", k);
        neb_fault_arm(spec);
        st = init_hub(cut, back, sec_identity_public(hub_id), first);
        neb_fault_arm(NULL);
        enum neb_status again = init_hub(cut, back, sec_identity_public(hub_id), second);
        assert_true(again == NEB_OK || again == NEB_ERR_EXISTS); // EXISTS: there was a list
        remade += again == NEB_OK;
        assert_int_equal(sec_hub_open(cut, &h), NEB_OK);
        assert_int_equal(h->fed->list.members.version, 1);
        sec_hub_destroy(&h);
        assert_int_equal(sec_ca_restore(cut, back, again == NEB_OK ? second : first), NEB_OK);
        assert_int_equal(init_hub(cut, back, sec_identity_public(hub_id), second), NEB_ERR_EXISTS);
    }
    assert_true(remade >= 5); // begun, backup, seal.key, ca.key, ca.pem
    // A hub that lost its lists is not an interrupted init, and a file that is not its backup
    // stays.
    assert_int_equal(sec_federation_open(cut, &f), NEB_OK);
    assert_int_equal(neb_path(back, sizeof back, cut, "federation/members.neb"), NEB_OK);
    assert_int_equal(neb_fs_remove(back), NEB_OK);
    assert_int_equal(neb_path(back, sizeof back, cut, "federation/seen"), NEB_OK);
    assert_int_equal(neb_fs_remove(back), NEB_OK);
    assert_int_equal(init_hub(cut, home("cut-none"), sec_identity_public(hub_id), second),
                     NEB_ERR_EXISTS);
    assert_int_equal(sec_federation_open(cut, &g), NEB_OK);
    assert_memory_equal(f->pin, g->pin, sizeof f->pin);
    assert_int_equal(neb_path(back, sizeof back, cut, "federation/ca.pem"), NEB_OK);
    assert_int_equal(neb_fs_remove(back), NEB_OK); // the key of the removed backup still exists
    assert_int_equal(init_hub(cut, home("cut-none"), sec_identity_public(hub_id), second),
                     NEB_ERR_EXISTS);
    assert_int_equal(sec_ca_create(home("cut-new"), "cut", home("backup"), second), NEB_ERR_EXISTS);
    assert_false(neb_fs_exists(home("cut-new")));
    sec_federation_destroy(&f);
    sec_federation_destroy(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_renew_and_rotate),
        cmocka_unit_test(test_rotation_answer_lost),
        cmocka_unit_test(test_rotation_cut_short),
        cmocka_unit_test(test_clock_set),
        cmocka_unit_test(test_key_files),
        cmocka_unit_test(test_backup),
        cmocka_unit_test(test_backup_of_another),
        cmocka_unit_test(test_init_cut_short),
        cmocka_unit_test(test_withdrawn),
        cmocka_unit_test(test_unreadable_invitation),
        cmocka_unit_test(test_back_with_other_keys),
        cmocka_unit_test(test_says_why),
        cmocka_unit_test(test_clock_behind),
        cmocka_unit_test(test_revoke_and_promote),
        cmocka_unit_test(test_crash_while_admitting),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
