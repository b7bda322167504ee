// SPDX-License-Identifier: Apache-2.0
#include "security/identity.h"

#include "agent/base/bytes.h"
#include "agent/base/fs.h"
#include "agent/base/sha256.h"
#include "security/locked.h"
#include "security/seal.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

// LeakSanitizer attaches to its own process, which must be dumpable for that.
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum {
    MAGIC_BYTES = 8,
    CHECK_BYTES = 8,
    FILE_BYTES = MAGIC_BYTES + SEC_KEY_BYTES + CHECK_BYTES,
    TEXT_CHECK = 6
};

struct sec_identity {
    struct sec_public pub;
    uint8_t *curve_secret; // 32 bytes, from sec_locked_alloc
    uint8_t *sign_secret;  // 64 bytes, from sec_locked_alloc
};

enum neb_status sec_init(void) {
    NEB_TRY(sec_seal_init());
#if !SANITIZED
    if (prctl(PR_SET_DUMPABLE, 0) != 0)
        return neb_fail_errno("prctl(PR_SET_DUMPABLE)");
#endif
    return NEB_OK;
}

enum neb_status sec_home(const char *home, char *out, size_t cap) {
    if (!home)
        home = getenv("NEBULA_HOME");
    if (home && *home)
        return strlen(home) < cap ? (memcpy(out, home, strlen(home) + 1), NEB_OK)
                                  : neb_fail(NEB_ERR_LIMIT, "home folder: the path is too long");
    const char *user = getenv("HOME");
    if (!user || !*user)
        return neb_fail(NEB_ERR_INVALID, "no home folder: set $HOME or give --home DIR");
    return neb_path(out, cap, user, ".nebula");
}

bool sec_name_valid(const char *name) {
    static const char first[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    static const char rest[] = "abcdefghijklmnopqrstuvwxyz0123456789_.-";
    size_t n = strlen(name);
    return n > 0 && n < SEC_NAME_MAX && strchr(first, name[0]) && strspn(name, rest) == n;
}

// The checksum of the public line: finds a line that was cut or mistyped.
static void text_check(const char *line, size_t n, uint8_t out[TEXT_CHECK]) {
    uint8_t h[NEB_SHA256_BYTES];
    neb_sha256(line, n, h);
    memcpy(out, h, TEXT_CHECK);
}

enum neb_status sec_public_format(const struct sec_public *p, char *out, size_t cap) {
    if (!sec_name_valid(p->name) || cap < SEC_ID_TEXT)
        return neb_fail(NEB_ERR_INVALID,
                        "identity: the name '%s' is not valid, or its line has no room", p->name);
    char curve[48], sign[48], check[16];
    sodium_bin2base64(curve, sizeof curve, p->curve, SEC_KEY_BYTES,
                      sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    sodium_bin2base64(sign, sizeof sign, p->sign, SEC_KEY_BYTES,
                      sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    int n = snprintf(out, cap, "nebid1:%s:%s:%s", p->name, curve, sign);
    uint8_t sum[TEXT_CHECK];
    text_check(out, (size_t)n, sum);
    sodium_bin2base64(check, sizeof check, sum, sizeof sum,
                      sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    snprintf(out + n, cap - (size_t)n, ":%s", check);
    return NEB_OK;
}

static bool field(const char **s, char *out, size_t cap, char end) {
    const char *e = end ? strchr(*s, end) : *s + strlen(*s);
    if (!e || (size_t)(e - *s) >= cap)
        return false;
    memcpy(out, *s, (size_t)(e - *s));
    out[e - *s] = 0;
    *s = end ? e + 1 : e;
    return true;
}

bool sec_base64_only(const char *text) {
    return text[strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")] ==
           0;
}

static bool unbase64(const char *text, uint8_t *out, size_t n) {
    size_t got = 0;
    const char *end = NULL;
    return sec_base64_only(text) &&
           sodium_base642bin(out, n, text, strlen(text), NULL, &got, &end,
                             sodium_base64_VARIANT_URLSAFE_NO_PADDING) == 0 &&
           got == n && *end == 0;
}

static const char wrong_sum[] = "an identity with a wrong checksum";

// NULL: text is an identity. Otherwise what is wrong with it.
static const char *parse_line(const char *text, struct sec_public *out) {
    struct sec_public p = {.name = ""};
    char curve[48], sign[48], check[16];
    uint8_t want[TEXT_CHECK], got[TEXT_CHECK];
    const char *s = text, *last = strrchr(text, ':');
    if (strlen(text) >= SEC_ID_TEXT || strncmp(s, "nebid1:", 7) != 0)
        return "not an identity (one line nebid1:NAME:...)";
    s += 7;
    if (!field(&s, p.name, sizeof p.name, ':') || !field(&s, curve, sizeof curve, ':') ||
        !field(&s, sign, sizeof sign, ':') || !field(&s, check, sizeof check, 0) ||
        !sec_name_valid(p.name) || !unbase64(curve, p.curve, SEC_KEY_BYTES) ||
        !unbase64(sign, p.sign, SEC_KEY_BYTES) || !unbase64(check, got, TEXT_CHECK))
        return "an identity that was cut or mistyped";
    text_check(text, (size_t)(last - text), want);
    if (memcmp(want, got, TEXT_CHECK) != 0)
        return wrong_sum;
    *out = p;
    return NULL;
}

enum neb_status sec_public_parse(const char *text, struct sec_public *out) {
    const char *wrong = parse_line(text, out);
    return wrong ? neb_fail(wrong == wrong_sum ? NEB_ERR_CORRUPT : NEB_ERR_FORMAT,
                            "'%.20s%s' is %s: copy the line that 'nebula id' prints", text,
                            strlen(text) > 20 ? "..." : "", wrong)
                 : NEB_OK;
}

#define NO_KEYS                                                                                    \
    "restore it from a backup. Without a backup this member needs new keys: nebula "               \
    "join TOKEN --new-keys with a new invitation, or, in a pair, move keys and "                   \
    "identity elsewhere and run nebula id"

static void key_check(const uint8_t *file, uint8_t out[16]) {
    crypto_generichash(out, 16, file, MAGIC_BYTES + SEC_KEY_BYTES, NULL, 0);
}

// Reads a key file into `file`, locked memory of FILE_BYTES.
static enum neb_status key_read(const char *path, const char *magic, uint8_t *file) {
    uint8_t sum[16];
    size_t n = 0;
    NEB_TRY(sec_secret_read(path, file, FILE_BYTES, &n));
    if (n != FILE_BYTES || memcmp(file, magic, MAGIC_BYTES) != 0)
        return neb_fail(NEB_ERR_FORMAT,
                        "%s is damaged, or is not a key file of this kind: " NO_KEYS, path);
    key_check(file, sum);
    if (sodium_memcmp(sum, file + MAGIC_BYTES + SEC_KEY_BYTES, CHECK_BYTES) != 0)
        return neb_fail(NEB_ERR_CORRUPT, "%s is damaged (wrong checksum): " NO_KEYS, path);
    return NEB_OK;
}

static enum neb_status key_write(const char *path, const char *magic, uint8_t *file) {
    uint8_t sum[16];
    memcpy(file, magic, MAGIC_BYTES);
    randombytes_buf(file + MAGIC_BYTES, SEC_KEY_BYTES);
    key_check(file, sum);
    memcpy(file + MAGIC_BYTES + SEC_KEY_BYTES, sum, CHECK_BYTES);
    return neb_fs_write(path, file, FILE_BYTES, 0600);
}

static enum neb_status identity_alloc(struct sec_identity **out) {
    struct sec_identity *id = calloc(1, sizeof *id);
    if (!id)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: identity");
    id->curve_secret = sec_locked_alloc(SEC_KEY_BYTES);
    id->sign_secret = sec_locked_alloc(crypto_sign_SECRETKEYBYTES);
    if (!id->curve_secret || !id->sign_secret) {
        sec_identity_destroy(&id);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for keys");
    }
    *out = id;
    return NEB_OK;
}

static void derive(struct sec_identity *id, const uint8_t *curve_file, const uint8_t *sign_file) {
    memcpy(id->curve_secret, curve_file + MAGIC_BYTES, SEC_KEY_BYTES);
    crypto_scalarmult_base(id->pub.curve, id->curve_secret);
    crypto_sign_seed_keypair(id->pub.sign, id->sign_secret, sign_file + MAGIC_BYTES);
    sodium_mprotect_readonly(id->curve_secret);
    sodium_mprotect_readonly(id->sign_secret);
}

struct paths {
    char dir[NEB_PATH_MAX], curve[NEB_PATH_MAX], sign[NEB_PATH_MAX], text[NEB_PATH_MAX];
    char next[NEB_PATH_MAX], next_dir[NEB_PATH_MAX]; // of a rotation in progress (rotate.h)
};

static enum neb_status paths_make(const char *home, struct paths *p) {
    NEB_TRY(neb_path(p->dir, sizeof p->dir, home, "keys"));
    NEB_TRY(neb_path(p->curve, sizeof p->curve, p->dir, "curve.key"));
    NEB_TRY(neb_path(p->sign, sizeof p->sign, p->dir, "sign.key"));
    NEB_TRY(neb_path(p->next, sizeof p->next, home, "rotate/identity"));
    NEB_TRY(neb_path(p->next_dir, sizeof p->next_dir, home, "rotate/keys"));
    return neb_path(p->text, sizeof p->text, home, "identity");
}

static void host_name(char out[SEC_NAME_MAX]) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    size_t n = 0;
    for (const char *c = host; *c && *c != '.' && n + 1 < SEC_NAME_MAX; c++) {
        char l = (char)(*c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
        bool ok = (l >= 'a' && l <= 'z') || (l >= '0' && l <= '9') || (n && l == '-');
        if (ok)
            out[n++] = l;
    }
    out[n] = 0;
    if (!n)
        memcpy(out, "member", 7);
}

// Locked memory for two key files. The caller frees both, also after an error.
static enum neb_status files_alloc(uint8_t **curve, uint8_t **sign) {
    *curve = sec_locked_alloc(FILE_BYTES);
    *sign = sec_locked_alloc(FILE_BYTES);
    return *curve && *sign ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for keys");
}

static enum neb_status write_line(const struct paths *p, const struct sec_identity *id) {
    char text[SEC_ID_TEXT], line[SEC_ID_TEXT + 2];
    NEB_TRY(sec_public_format(&id->pub, text, sizeof text));
    int n = snprintf(line, sizeof line, "%s\n", text);
    return neb_fs_write(p->text, line, (size_t)n, 0600);
}

enum neb_status sec_identity_create(const char *home, const char *name, struct sec_identity **out) {
    enum neb_status st;
    struct sec_identity *id = NULL;
    uint8_t *curve = NULL, *sign = NULL;
    struct paths p;
    NEB_TRY(sec_init());
    if (name && !sec_name_valid(name))
        return neb_fail(NEB_ERR_INVALID,
                        "name '%s': a name has 1 to %d characters of a-z 0-9 _ . -, and begins "
                        "with a letter or digit",
                        name, SEC_NAME_MAX - 1);
    NEB_TRY(paths_make(home, &p));
    // The public line is written last. Without it the keys were never shown to anybody, and are
    // made again.
    if (neb_fs_exists(p.text))
        return neb_fail(NEB_ERR_EXISTS, "%s: there is already an identity", p.text);
    NEB_TRY(neb_fs_mkdirs(home, 0700));
    NEB_TRY(neb_fs_mkdirs(p.dir, 0700));
    NEB_TRY(identity_alloc(&id));
    NEB_TRY_GOTO(files_alloc(&curve, &sign), out);
    NEB_TRY_GOTO(key_write(p.curve, "nebkey1c", curve), out);
    NEB_TRY_GOTO(key_write(p.sign, "nebkey1s", sign), out);
    derive(id, curve, sign);
    if (name)
        snprintf(id->pub.name, sizeof id->pub.name, "%s", name);
    else
        host_name(id->pub.name);
    NEB_TRY_GOTO(write_line(&p, id), out);
    *out = id;
    id = NULL;
out:
    sodium_free(curve);
    sodium_free(sign);
    sec_identity_destroy(&id);
    return st;
}

#define AGAIN ": nebula rotate was interrupted: run it again"

// A rotation replaces keys and line one after the other. In between they do not belong together.
static bool in_rotation(const struct paths *p) {
    return neb_fs_exists(p->next) && (!neb_fs_exists(p->dir) || !neb_fs_exists(p->next_dir));
}

#define MEND                                                                                       \
    "restore it from a backup, or write it again from the keys: nebula id --name "                 \
    "NAME, with the name that the other members know"

// This home has no public line: nothing was made there, or only half of it, or the line is lost.
static enum neb_status without_line(const char *home, const struct paths *p) {
    static const char *const used[] = {"ledger.db", "members.json", "federation"};
    char path[NEB_PATH_MAX];
    bool was = false;
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        was |= neb_path(path, sizeof path, home, used[i]) == NEB_OK && neb_fs_exists(path);
    if (!was || (!neb_fs_exists(p->curve) && !neb_fs_exists(p->sign)))
        return NEB_ERR_NOT_FOUND;
    return neb_fail(NEB_ERR_CORRUPT, "%s is missing, but the keys in %s belong to it%s", p->text,
                    p->dir, in_rotation(p) ? AGAIN : ": " MEND);
}

static enum neb_status read_line(const struct paths *p, struct sec_public *out) {
    struct neb_buf b = {0};
    enum neb_status st = neb_fs_read(p->text, SEC_ID_TEXT, &b);
    if (st == NEB_OK) {
        neb_buf_u8(&b, 0);
        st = neb_buf_check(&b);
    }
    if (st == NEB_OK) {
        ((char *)b.p)[strcspn((char *)b.p, "\n")] = 0;
        const char *wrong = parse_line((char *)b.p, out);
        if (wrong)
            st = neb_fail(NEB_ERR_CORRUPT, "%s is damaged: it holds %s: " MEND, p->text,
                          *b.p ? wrong : "nothing");
    } else if (st == NEB_ERR_LIMIT) {
        st = neb_fail(NEB_ERR_CORRUPT, "%s is damaged: it is too long: " MEND, p->text);
    }
    neb_buf_free(&b);
    return st;
}

static enum neb_status read_keys(const struct paths *p, struct sec_identity **out) {
    enum neb_status st;
    uint8_t *curve = NULL, *sign = NULL;
    NEB_TRY(identity_alloc(out));
    NEB_TRY_GOTO(files_alloc(&curve, &sign), out);
    const char *at = p->curve;
    NEB_TRY_GOTO(key_read(at, "nebkey1c", curve), missing);
    at = p->sign;
    NEB_TRY_GOTO(key_read(at, "nebkey1s", sign), missing);
    derive(*out, curve, sign);
missing:
    if (st == NEB_ERR_NOT_FOUND) // an identity without its keys is damaged
        st =
            neb_fail(NEB_ERR_CORRUPT, "%s is missing%s", at, in_rotation(p) ? AGAIN : ": " NO_KEYS);
out:
    sodium_free(curve);
    sodium_free(sign);
    if (st != NEB_OK)
        sec_identity_destroy(out);
    return st;
}

enum neb_status sec_identity_load(const char *home, struct sec_identity **out) {
    enum neb_status st;
    struct sec_identity *id = NULL;
    struct sec_public pub;
    struct paths p;
    NEB_TRY(sec_init());
    NEB_TRY(paths_make(home, &p));
    if (!neb_fs_exists(p.text))
        return without_line(home, &p);
    NEB_TRY(read_keys(&p, &id));
    NEB_TRY_GOTO(read_line(&p, &pub), out);
    if (memcmp(pub.curve, id->pub.curve, SEC_KEY_BYTES) != 0 ||
        memcmp(pub.sign, id->pub.sign, SEC_KEY_BYTES) != 0) {
        st = neb_fail(NEB_ERR_CORRUPT, "%s: does not belong to the keys in %s%s", p.text, p.dir,
                      in_rotation(&p) ? AGAIN : "");
        goto out;
    }
    id->pub = pub;
    *out = id;
    id = NULL;
out:
    sec_identity_destroy(&id);
    return st;
}

// NFS cannot lock folders: there the caller continues without a lock.
static enum neb_status lock_home(const char *home, int *fd) {
    NEB_TRY(neb_fs_mkdirs(home, 0700));
    *fd = open(home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0)
        return neb_fail_errno("%s", home);
    while (flock(*fd, LOCK_EX) != 0 && errno == EINTR)
        ;
    return NEB_OK;
}

enum neb_status sec_identity_mend(const char *home, const char *name, bool *mended) {
    struct sec_identity *id = NULL;
    struct neb_buf b = {0};
    struct sec_public pub;
    struct paths p;
    int fd;
    *mended = false;
    NEB_TRY(sec_init());
    NEB_TRY(paths_make(home, &p));
    if (!neb_fs_exists(p.curve) || !neb_fs_exists(p.sign) || in_rotation(&p))
        return NEB_OK;
    NEB_TRY(lock_home(home, &fd));
    enum neb_status st = neb_fs_exists(p.text) ? neb_fs_read(p.text, SEC_ID_TEXT, &b) : NEB_OK;
    neb_buf_u8(&b, 0);
    if (b.p)
        ((char *)b.p)[strcspn((char *)b.p, "\n")] = 0;
    if (!b.oom && (st == NEB_OK || st == NEB_ERR_LIMIT) && parse_line((char *)b.p, &pub) != NULL) {
        st = read_keys(&p, &id);
        if (st == NEB_OK) {
            snprintf(id->pub.name, sizeof id->pub.name, "%s", name);
            st = write_line(&p, id);
            *mended = st == NEB_OK;
        }
    }
    close(fd);
    neb_buf_free(&b);
    sec_identity_destroy(&id);
    return st;
}

enum neb_status sec_identity_first(const char *home, const char *name, struct sec_identity **out,
                                   bool *made) {
    int fd;
    bool fresh = false;
    enum neb_status st = sec_identity_load(home, out);
    // the identity usually exists: take the lock only if it does not
    if (st == NEB_ERR_NOT_FOUND) {
        NEB_TRY(lock_home(home, &fd));
        st = sec_identity_load(home, out);
        if (st == NEB_ERR_NOT_FOUND) {
            st = sec_identity_create(home, name, out);
            fresh = st == NEB_OK;
        }
        close(fd);
    }
    if (made)
        *made = fresh;
    return st;
}

enum neb_status sec_identity_put_aside(const char *home) {
    char aside[NEB_PATH_MAX], name[32], to[NEB_PATH_MAX];
    struct paths p;
    int fd, n = 0;
    NEB_TRY(paths_make(home, &p));
    if (!neb_fs_exists(p.text) && !neb_fs_exists(p.dir))
        return NEB_OK;
    NEB_TRY(lock_home(home, &fd));
    enum neb_status st;
    do {
        snprintf(name, sizeof name, "former-keys-%d", ++n);
        NEB_TRY_GOTO(neb_path(aside, sizeof aside, home, name), out);
    } while (neb_fs_exists(aside));
    NEB_TRY_GOTO(neb_fs_mkdirs(aside, 0700), out);
    const struct {
        const char *from, *as;
        // write the public line first: a home that has only keys makes new ones
    } moves[] = {{p.text, "identity"}, {p.dir, "keys"}};
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
        NEB_TRY_GOTO(neb_path(to, sizeof to, aside, moves[i].as), out);
        if (neb_fs_exists(moves[i].from) && rename(moves[i].from, to) != 0) {
            st = neb_fail_errno("cannot move %s aside", moves[i].from);
            goto out;
        }
    }
    st = neb_fs_sync_dir(home);
out:
    close(fd);
    return st;
}

enum neb_status sec_identity_need(const char *home, struct sec_identity **out) {
    enum neb_status st = sec_identity_load(home, out);
    return st == NEB_ERR_NOT_FOUND
               ? neb_fail(st, "no identity in %s: make one with nebula id, or nebula join", home)
               : st;
}

void sec_identity_destroy(struct sec_identity **id) {
    if (!id || !*id)
        return;
    sodium_free((*id)->curve_secret); // wipes
    sodium_free((*id)->sign_secret);
    free(*id);
    *id = NULL;
}

const struct sec_public *sec_identity_public(const struct sec_identity *id) { return &id->pub; }
const uint8_t *sec_identity_curve_secret(const struct sec_identity *id) { return id->curve_secret; }
const uint8_t *sec_identity_sign_secret(const struct sec_identity *id) { return id->sign_secret; }
