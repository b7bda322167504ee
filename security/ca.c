// SPDX-License-Identifier: Apache-2.0
#include "security/ca.h"

#include "agent/base/fault.h"
#include "agent/base/fs.h"
#include "agent/base/sha256.h"
#include "security/locked.h"
#include "security/members.h"

#include <openssl/x509v3.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAGIC_BYTES = 8,
    KEY_FILE = MAGIC_BYTES + SEC_KEY_BYTES + SEC_SEAL_EXTRA,
    DAY_S = 24 * 3600,
    BRIEF_S = 180, // the fault point ca.brief asks for this short validity
    EARLY_S = 300, // a certificate is valid from so long before now, because clocks differ
    BACKUP_MAX = MAGIC_BYTES + SEC_SEAL_SALT_BYTES + SEC_KEY_BYTES + SEC_CERT_MAX + SEC_SEAL_EXTRA,
};
static const char key_magic[MAGIC_BYTES] = "nebca1", backup_magic[MAGIC_BYTES] = "nebcabk1";

struct sec_ca {
    uint8_t *secret;    // 64 bytes, seed and public key; from sec_locked_alloc
    uint8_t *seal;      // from sec_locked_alloc
    struct neb_buf der; // the CA's certificate
};

// ---- files -------------------------------------------------------------------------------------

static enum neb_status ca_path(const char *home, const char *name, char out[NEB_PATH_MAX]) {
    char dir[NEB_PATH_MAX];
    NEB_TRY(neb_path(dir, sizeof dir, home, "ca"));
    return neb_path(out, NEB_PATH_MAX, dir, name);
}

static enum neb_status seal_path(const char *home, char out[NEB_PATH_MAX]) {
    const char *credentials = getenv("CREDENTIALS_DIRECTORY");
    if (credentials && *credentials) {
        NEB_TRY(neb_path(out, NEB_PATH_MAX, credentials, "nebula-ca-seal"));
        if (neb_fs_exists(out))
            return NEB_OK;
    }
    return ca_path(home, "seal.key", out);
}

static enum neb_status key_store(const char *home, const uint8_t *secret) {
    char dir[NEB_PATH_MAX], path[NEB_PATH_MAX], seal_file[NEB_PATH_MAX];
    uint8_t raw[KEY_FILE];
    size_t n = 0;
    NEB_TRY(neb_path(dir, sizeof dir, home, "ca"));
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(ca_path(home, "ca.key", path));
    NEB_TRY(seal_path(home, seal_file));
    uint8_t *seal = sec_locked_alloc(SEC_SEAL_KEY_BYTES);
    if (!seal)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for keys");
    enum neb_status st = sec_secret_read(seal_file, seal, SEC_SEAL_KEY_BYTES, &n);
    if (st == NEB_ERR_NOT_FOUND) {
        randombytes_buf(seal, n = SEC_SEAL_KEY_BYTES);
        st = sec_secret_write(seal_file, seal, SEC_SEAL_KEY_BYTES);
    }
    if (st == NEB_OK && n != SEC_SEAL_KEY_BYTES)
        st = neb_fail(NEB_ERR_FORMAT, "%s: a seal key must have %d bytes", seal_file,
                      SEC_SEAL_KEY_BYTES);
    if (st == NEB_OK) {
        memcpy(raw, key_magic, MAGIC_BYTES);
        sec_seal(seal, secret, SEC_KEY_BYTES, raw + MAGIC_BYTES);
        st = sec_secret_write(path, raw, sizeof raw);
    }
    sodium_free(seal);
    return st;
}

static enum neb_status key_load(const char *home, struct sec_ca *ca) {
    char path[NEB_PATH_MAX], seal_file[NEB_PATH_MAX];
    uint8_t raw[KEY_FILE], pub[SEC_KEY_BYTES];
    size_t n = 0;
    NEB_TRY(ca_path(home, "ca.key", path));
    NEB_TRY(sec_secret_read(path, raw, sizeof raw, &n));
    NEB_TRY(seal_path(home, seal_file));
    if (n != sizeof raw || memcmp(raw, key_magic, MAGIC_BYTES) != 0)
        return neb_fail(NEB_ERR_FORMAT,
                        "%s is damaged or is not a CA key: restore it from a backup (nebula init "
                        "--restore reads a ca-backup)",
                        path);
    enum neb_status st = sec_secret_read(seal_file, ca->seal, SEC_SEAL_KEY_BYTES, &n);
    if (st == NEB_ERR_NOT_FOUND || (st == NEB_OK && n != SEC_SEAL_KEY_BYTES))
        return neb_fail(NEB_ERR_DENIED,
                        "%s: no seal key here, so the CA's key cannot be opened. If the seal key "
                        "is the systemd credential nebula-ca-seal, run this command with "
                        "systemd-run (security/README.md, Files)",
                        seal_file);
    NEB_TRY(st);
    // A buffer of its own: the key pair must not be written over the seed that it is made from.
    uint8_t *seed = sec_locked_alloc(SEC_KEY_BYTES);
    if (!seed)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for keys");
    st = sec_unseal(ca->seal, raw + MAGIC_BYTES, sizeof raw - MAGIC_BYTES, seed);
    if (st == NEB_OK)
        crypto_sign_seed_keypair(pub, ca->secret, seed);
    sodium_free(seed);
    if (st != NEB_OK)
        return neb_fail(st, "%s: the seal key %s does not open it", path, seal_file);
    return NEB_OK;
}

static enum neb_status alloc(struct sec_ca **out) {
    NEB_TRY(sec_openssl_init());
    struct sec_ca *ca = calloc(1, sizeof *ca);
    if (!ca)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: CA");
    ca->secret = sec_locked_alloc(crypto_sign_SECRETKEYBYTES);
    ca->seal = sec_locked_alloc(SEC_SEAL_KEY_BYTES);
    if (!ca->secret || !ca->seal) {
        sec_ca_destroy(&ca);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for keys");
    }
    *out = ca;
    return NEB_OK;
}

void sec_ca_destroy(struct sec_ca **ca) {
    if (!ca || !*ca)
        return;
    sodium_free((*ca)->secret); // wipes
    sodium_free((*ca)->seal);
    neb_buf_free(&(*ca)->der);
    free(*ca);
    *ca = NULL;
}

enum neb_status sec_ca_open(const char *home, struct sec_ca **out) {
    struct sec_ca *ca = NULL;
    struct sec_federation *f = NULL;
    enum neb_status st;
    NEB_TRY(alloc(&ca));
    NEB_TRY_GOTO(key_load(home, ca), out);
    st = sec_federation_open(home, &f);
    if (st == NEB_ERR_NOT_FOUND)
        st = neb_fail(NEB_ERR_CORRUPT, "%s/federation/ca.pem is missing: restore it", home);
    if (st != NEB_OK)
        goto out;
    if (memcmp(f->ca_key, ca->secret + SEC_KEY_BYTES, SEC_KEY_BYTES) != 0) {
        st = neb_fail(NEB_ERR_CORRUPT, "%s: CA key and certificate do not belong together", home);
        goto out;
    }
    neb_buf_add(&ca->der, f->ca.p, f->ca.len);
    st = neb_buf_check(&ca->der);
out:
    sec_federation_destroy(&f);
    if (st != NEB_OK)
        sec_ca_destroy(&ca);
    *out = ca;
    return st;
}

const uint8_t *sec_ca_seal_key(const struct sec_ca *ca) { return ca->seal; }

enum neb_status sec_ca_sign(const struct sec_ca *ca, const char *context, const void *msg,
                            size_t len, uint8_t sig[SEC_SIGN_BYTES]) {
    return sec_sign_with(ca->secret, context, msg, len, sig);
}

// ---- certificates ------------------------------------------------------------------------------

static bool set_name(X509_NAME *n, int nid, const char *text) {
    return X509_NAME_add_entry_by_NID(n, nid, MBSTRING_ASC, (const uint8_t *)text, -1, -1, 0);
}

// Sets serial, times and subject. The serial is positive and has 126 random bits.
static bool frame(X509 *c, int nid, const char *subject, long seconds) {
    uint8_t raw[16];
    randombytes_buf(raw, sizeof raw);
    raw[0] = (uint8_t)((raw[0] & 0x7f) | 0x40);
    BIGNUM *b = BN_bin2bn(raw, sizeof raw, NULL);
    bool ok = b && BN_to_ASN1_INTEGER(b, X509_get_serialNumber(c)) &&
              X509_set_version(c, X509_VERSION_3) &&
              X509_gmtime_adj(X509_getm_notBefore(c), -EARLY_S) &&
              X509_gmtime_adj(X509_getm_notAfter(c), seconds) &&
              set_name(X509_get_subject_name(c), nid, subject);
    BN_free(b);
    return ok;
}

static enum neb_status sign_cert(const uint8_t *seed, X509 *c) {
    EVP_PKEY *key = NULL;
    NEB_TRY(sec_ed25519_key(seed, &key));
    bool ok = X509_sign(c, key, NULL) > 0;
    EVP_PKEY_free(key);
    return ok ? NEB_OK : neb_fail(NEB_ERR_IO, "cannot sign a certificate: %s", sec_openssl_error());
}

static enum neb_status end_entity(const struct sec_ca *ca, const struct sec_public *p,
                                  const char *cn, EVP_PKEY *key, const char *usage, long seconds,
                                  X509 **out) {
    enum neb_status st = NEB_OK;
    const uint8_t *at = ca->der.p;
    X509 *c = X509_new(), *issuer = d2i_X509(NULL, &at, (long)ca->der.len);
    if (!c || !issuer || !key || !frame(c, NID_commonName, cn, seconds) ||
        !X509_set_pubkey(c, key) || !X509_set_issuer_name(c, X509_get_subject_name(issuer))) {
        st = neb_fail(NEB_ERR_IO, "cannot make a certificate: %s", sec_openssl_error());
        goto out;
    }
    NEB_TRY_GOTO(sec_cert_add(c, NID_basic_constraints, "critical,CA:FALSE"), out);
    NEB_TRY_GOTO(sec_cert_add(c, NID_key_usage, "critical,digitalSignature"), out);
    NEB_TRY_GOTO(sec_cert_add(c, NID_ext_key_usage, usage), out);
    NEB_TRY_GOTO(sec_cert_add_keys(c, p), out);
    NEB_TRY_GOTO(sign_cert(ca->secret, c), out);
    *out = c;
    c = NULL;
out:
    X509_free(c);
    X509_free(issuer);
    return st;
}

enum neb_status sec_ca_issue(const struct sec_ca *ca, const struct sec_public *p,
                             struct neb_buf *der) {
    X509 *c = NULL;
    EVP_PKEY *key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, p->sign, SEC_KEY_BYTES);
    long seconds = neb_fault("ca.brief") ? BRIEF_S : (long)SEC_MEMBER_DAYS * DAY_S;
    enum neb_status st = end_entity(ca, p, p->name, key, "clientAuth", seconds, &c);
    if (st == NEB_OK)
        st = sec_x509_der(c, der);
    X509_free(c);
    EVP_PKEY_free(key);
    return st;
}

enum neb_status sec_ca_issue_server(const struct sec_ca *ca, const struct sec_public *hub,
                                    EVP_PKEY *tls_key, X509 **out) {
    return end_entity(ca, hub, "nebula enrolment", tls_key, "serverAuth",
                      (long)SEC_SERVER_DAYS * DAY_S, out);
}

static enum neb_status self_sign(const uint8_t *seed, const char *name, struct neb_buf *der) {
    enum neb_status st;
    X509 *c = X509_new();
    EVP_PKEY *key = NULL;
    NEB_TRY_GOTO(sec_ed25519_key(seed, &key), out);
    if (!c || !frame(c, NID_organizationName, name, (long)SEC_CA_YEARS * 365 * DAY_S) ||
        !X509_set_pubkey(c, key) || !X509_set_issuer_name(c, X509_get_subject_name(c))) {
        st = neb_fail(NEB_ERR_IO, "cannot make the CA certificate: %s", sec_openssl_error());
        goto out;
    }
    NEB_TRY_GOTO(sec_cert_add(c, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"), out);
    NEB_TRY_GOTO(sec_cert_add(c, NID_key_usage, "critical,keyCertSign,cRLSign"), out);
    NEB_TRY_GOTO(sec_cert_add(c, NID_subject_key_identifier, "hash"), out);
    NEB_TRY_GOTO(sign_cert(seed, c), out);
    st = sec_x509_der(c, der);
out:
    EVP_PKEY_free(key);
    X509_free(c);
    return st;
}

// ---- backup ------------------------------------------------------------------------------------

// Seals the backup with a new recovery code. raw has room for BACKUP_MAX bytes.
static enum neb_status backup_make(const uint8_t *seed, const struct neb_buf *der,
                                   char code[SEC_CODE_TEXT], uint8_t *raw, size_t *len) {
    uint8_t key[SEC_SEAL_KEY_BYTES], plain[SEC_KEY_BYTES + SEC_CERT_MAX];
    size_t n = SEC_KEY_BYTES + der->len, head = MAGIC_BYTES + SEC_SEAL_SALT_BYTES;
    NEB_ASSERT(der->len <= SEC_CERT_MAX);
    sec_code_make(code);
    memcpy(raw, backup_magic, MAGIC_BYTES);
    randombytes_buf(raw + MAGIC_BYTES, SEC_SEAL_SALT_BYTES);
    NEB_TRY(sec_code_key(code, raw + MAGIC_BYTES, key));
    memcpy(plain, seed, SEC_KEY_BYTES);
    memcpy(plain + SEC_KEY_BYTES, der->p, der->len);
    sec_seal(key, plain, n, raw + head);
    sodium_memzero(key, sizeof key);
    sodium_memzero(plain, sizeof plain);
    *len = head + n + SEC_SEAL_EXTRA;
    return NEB_OK;
}

static enum neb_status backup_open(const char *path, const char *code, uint8_t *plain, size_t *n) {
    uint8_t raw[BACKUP_MAX], key[SEC_SEAL_KEY_BYTES];
    size_t len = 0, head = MAGIC_BYTES + SEC_SEAL_SALT_BYTES;
    enum neb_status st = sec_secret_read(path, raw, sizeof raw, &len);
    if (st == NEB_ERR_NOT_FOUND)
        return neb_fail(st, "%s: there is no such backup", path);
    NEB_TRY(st);
    if (len <= head + SEC_KEY_BYTES + SEC_SEAL_EXTRA || memcmp(raw, backup_magic, MAGIC_BYTES) != 0)
        return neb_fail(NEB_ERR_FORMAT, "%s: not the backup of a CA", path);
    NEB_TRY(sec_code_key(code, raw + MAGIC_BYTES, key));
    st = sec_unseal(key, raw + head, len - head, plain);
    sodium_memzero(key, sizeof key);
    if (st != NEB_OK)
        return neb_fail(st, "%s: this recovery code does not open it", path);
    *n = len - head - SEC_SEAL_EXTRA;
    return NEB_OK;
}

// ---- making a CA --------------------------------------------------------------------------------
//
//     ca/begun ─► backup ─► ca/ca.key ─► federation/ca.pem ─► the code is shown
//              ─► list version 1 ─► no ca/begun
//
// An init that stops before list version 1 leaves a CA that nobody knows. It may also leave a
// backup whose code nobody has seen. While ca/begun exists and no list does, the next init makes
// everything again.

// Writes the certificate last: without it there is no CA.
static enum neb_status install(const char *home, const uint8_t *secret, const uint8_t *der,
                               size_t len) {
    struct sec_federation *f = NULL;
    NEB_TRY(key_store(home, secret));
    NEB_TRY(sec_federation_create(home, der, len, &f));
    sec_federation_destroy(&f);
    return NEB_OK;
}

static enum neb_status list_exists(const char *home, bool *out) {
    char list[NEB_PATH_MAX], seen[NEB_PATH_MAX];
    NEB_TRY(neb_path(list, sizeof list, home, "federation/members.neb"));
    NEB_TRY(neb_path(seen, sizeof seen, home, "federation/seen"));
    *out = neb_fs_exists(list) || neb_fs_exists(seen);
    return NEB_OK;
}

// Records the digest of the backup that is about to be written.
static enum neb_status begin(const char *home, const uint8_t *raw, size_t len) {
    char dir[NEB_PATH_MAX], path[NEB_PATH_MAX];
    uint8_t sha[NEB_SHA256_BYTES];
    NEB_TRY(neb_path(dir, sizeof dir, home, "ca"));
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(ca_path(home, "begun", path));
    neb_sha256(raw, len, sha);
    return neb_fs_write(path, sha, sizeof sha, 0600);
}

enum neb_status sec_ca_finish(const char *home) {
    char path[NEB_PATH_MAX];
    NEB_TRY(ca_path(home, "begun", path));
    return neb_fs_exists(path) ? neb_fs_remove(path) : NEB_OK;
}

// Removes the backup of an interrupted init. Any other file stays, and make_room reports it.
static enum neb_status backup_forget(const char *begun, const char *backup) {
    struct neb_buf want = {0}, have = {0};
    uint8_t sha[NEB_SHA256_BYTES];
    if (!neb_fs_exists(backup))
        return NEB_OK;
    enum neb_status st = neb_fs_read(begun, sizeof sha, &want);
    if (st == NEB_OK)
        st = neb_fs_read(backup, BACKUP_MAX, &have);
    neb_sha256(have.p, have.len, sha);
    if (st == NEB_OK && want.len == sizeof sha && !memcmp(want.p, sha, sizeof sha))
        st = neb_fs_remove(backup);
    neb_buf_free(&want);
    neb_buf_free(&have);
    return st == NEB_ERR_LIMIT ? NEB_OK : st;
}

// Fails if no CA can be made here. Removes what an interrupted init left.
static enum neb_status make_room(const char *home, const char *backup) {
    char ca[NEB_PATH_MAX], key[NEB_PATH_MAX], begun[NEB_PATH_MAX];
    bool list;
    NEB_TRY(neb_path(ca, sizeof ca, home, "federation/ca.pem"));
    NEB_TRY(ca_path(home, "ca.key", key));
    NEB_TRY(ca_path(home, "begun", begun));
    NEB_TRY(list_exists(home, &list));
    if (!list && neb_fs_exists(begun)) {
        NEB_TRY(backup_forget(begun, backup));
        NEB_TRY(neb_fs_remove(ca));
    } else if (neb_fs_exists(ca)) {
        return neb_fail(NEB_ERR_EXISTS, "%s: this node is already in a federation", ca);
    } else if (neb_fs_exists(key)) {
        return neb_fail(NEB_ERR_EXISTS, "%s is the key of a CA whose federation/ca.pem is missing",
                        key);
    }
    return neb_fs_exists(backup)
               ? neb_fail(NEB_ERR_EXISTS, "%s exists already, and a backup never replaces a file",
                          backup)
               : NEB_OK;
}

enum neb_status sec_ca_create(const char *home, const char *name, const char *backup,
                              char code[SEC_CODE_TEXT]) {
    struct neb_buf der = {0};
    uint8_t pub[SEC_KEY_BYTES], raw[BACKUP_MAX];
    size_t len = 0;
    enum neb_status st;
    if (!sec_name_valid(name))
        return neb_fail(NEB_ERR_INVALID,
                        "federation name '%s' must have 1 to %d characters of a-z 0-9 _ . -", name,
                        SEC_NAME_MAX - 1);
    NEB_TRY(make_room(home, backup));
    NEB_TRY(sec_openssl_init());
    uint8_t *secret = sec_locked_alloc(crypto_sign_SECRETKEYBYTES);
    if (!secret)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for keys");
    crypto_sign_keypair(pub, secret);
    NEB_TRY_GOTO(self_sign(secret, name, &der), out);
    NEB_TRY_GOTO(backup_make(secret, &der, code, raw, &len), out);
    NEB_TRY_GOTO(begin(home, raw, len), out);
    NEB_TRY_GOTO(sec_secret_write(backup, raw, len), out);
    st = install(home, secret, der.p, der.len);
out:
    sodium_free(secret);
    neb_buf_free(&der);
    return st;
}

// ---- restoring a CA -----------------------------------------------------------------------------

// Refuses a member list that another CA has signed. Then the folder belongs to another federation,
// or the list was copied from one.
static enum neb_status list_is_of(const char *home, const uint8_t key[SEC_KEY_BYTES]) {
    char path[NEB_PATH_MAX];
    struct neb_buf list = {0};
    struct sec_list *l = NULL;
    NEB_TRY(neb_path(path, sizeof path, home, "federation/members.neb"));
    if (!neb_fs_exists(path))
        return NEB_OK; // only `seen` exists
    enum neb_status st = neb_fs_read(path, SEC_LIST_MAX, &list);
    if (st == NEB_OK && !(l = malloc(sizeof *l)))
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for a member list");
    if (st == NEB_OK)
        st = sec_list_verify(list.p, list.len, key, l);
    if (st == NEB_ERR_DENIED)
        st = neb_fail(NEB_ERR_EXISTS,
                      "%s belongs to another federation than the backup: use another folder "
                      "(--home), or copy the member list of the backup's federation",
                      path);
    free(l);
    neb_buf_free(&list);
    return st;
}

// Runs before anything is written. Without this check the CA could replace another federation's CA,
// whose key would be lost. Without the newest list the hub would sign a second version 1.
static enum neb_status may_restore(const char *home, const uint8_t *ca, size_t len) {
    char path[NEB_PATH_MAX], name[SEC_NAME_MAX];
    uint8_t key[SEC_KEY_BYTES], own[SEC_KEY_BYTES], pin[SEC_PIN_BYTES], have[SEC_PIN_BYTES];
    struct neb_buf der = {0};
    bool list;
    NEB_TRY(sec_ca_cert_parse(ca, len, own, pin, NULL));
    NEB_TRY(neb_path(path, sizeof path, home, "federation/ca.pem"));
    NEB_TRY(list_exists(home, &list));
    enum neb_status st = sec_pem_read(path, &der);
    if (st == NEB_OK)
        st = sec_ca_cert_parse(der.p, der.len, key, have, name);
    if (st == NEB_OK && memcmp(pin, have, sizeof pin) != 0)
        st = neb_fail(NEB_ERR_EXISTS,
                      "%s belongs to federation '%s', but the backup belongs to another one: use "
                      "another folder (--home)",
                      path, name);
    neb_buf_free(&der);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    if (!list)
        return neb_fail(
            NEB_ERR_STATE,
            "%s/federation holds no member list: first copy members.neb and seen from any member's "
            "federation folder, so that the list continues with the next version",
            home);
    return list_is_of(home, own);
}

enum neb_status sec_ca_restore(const char *home, const char *backup, const char *code) {
    size_t n = 0;
    NEB_TRY(sec_openssl_init());
    uint8_t *plain = sec_locked_alloc(BACKUP_MAX);
    if (!plain)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for keys");
    enum neb_status st = backup_open(backup, code, plain, &n);
    if (st == NEB_OK)
        st = may_restore(home, plain + SEC_KEY_BYTES, n - SEC_KEY_BYTES);
    if (st == NEB_OK)
        st = install(home, plain, plain + SEC_KEY_BYTES, n - SEC_KEY_BYTES);
    sodium_free(plain);
    return st;
}
