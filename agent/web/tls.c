// SPDX-License-Identifier: Apache-2.0
#include "agent/web/tls.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "security/locked.h"
#include "security/seal.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PEM_BYTES_MAX = 1 << 16,
    YEARS = 10,
    EARLY_S = 300,
    NAMES_MAX = 1024,
    NAME_MAX_CN = 64,
    DAYS_LEFT = 14
};

// ---- reading ------------------------------------------------------------------------------------

// Without this, OpenSSL would ask for a passphrase on the terminal.
static int no_passphrase(char *buf, int size, int writing, void *user) {
    (void)buf, (void)size, (void)writing, (void)user;
    return -1;
}

static enum neb_status read_pem(const char *path, struct neb_buf *b) {
    NEB_TRY(neb_fs_read(path, PEM_BYTES_MAX, b));
    neb_buf_add(b, "", 1);
    return neb_buf_check(b);
}

// Like all keys, the file must belong to this user and be closed to others. The path may be a link,
// as is usual for renewed keys.
static enum neb_status read_key(const char *path, char **out) {
    struct stat s;
    char *real = realpath(path, NULL);
    enum neb_status st = NEB_OK;
    size_t n = 0, cap = 0;
    if (!real || stat(real, &s) != 0) {
        st = neb_fail_errno("cannot read %s", path);
        goto out;
    }
    // sec_secret_read refuses a larger file
    cap = s.st_size < PEM_BYTES_MAX ? (size_t)s.st_size : PEM_BYTES_MAX;
    if (!(*out = sec_locked_alloc(cap + 1)))
        st = neb_fail(NEB_ERR_NOMEM, "out of memory reading %s", path);
    NEB_TRY_GOTO(st, out);
    NEB_TRY_GOTO(sec_secret_read(real, *out, cap, &n), out);
    (*out)[n] = 0;
out:
    free(real);
    return st;
}

static bool expired(const X509 *x) { return X509_cmp_current_time(X509_get0_notAfter(x)) <= 0; }

static void warn_of_end(const X509 *x, const char *cert_path) {
    int days = 0, seconds = 0;
    if (ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(x)) == 1 && days < DAYS_LEFT)
        neb_warn("%s expires in %d days; the agent loads a renewed certificate without a restart",
                 cert_path, days);
}

enum neb_status agent_web_tls_load(const char *cert_path, const char *key_path,
                                   struct agent_web_tls *out) {
    EVP_PKEY *key = NULL;
    BIO *c = NULL, *k = NULL;
    enum neb_status st;
    memset(out, 0, sizeof *out);
    NEB_TRY_GOTO(read_pem(cert_path, &out->cert), out);
    NEB_TRY_GOTO(read_key(key_path, &out->key), out);
    c = BIO_new_mem_buf(out->cert.p, (int)out->cert.len - 1);
    k = BIO_new_mem_buf(out->key, -1);
    st = c && k ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for %s", cert_path);
    NEB_TRY_GOTO(st, out);
    if (!(out->x509 = PEM_read_bio_X509(c, NULL, no_passphrase, NULL)))
        st = neb_fail(NEB_ERR_FORMAT, "%s: no certificate in PEM (-----BEGIN CERTIFICATE-----)",
                      cert_path);
    else if (!(key = PEM_read_bio_PrivateKey(k, NULL, no_passphrase, NULL)))
        st = neb_fail(NEB_ERR_FORMAT, "%s: no private key in PEM without a passphrase", key_path);
    else if (X509_check_private_key(out->x509, key) != 1)
        st = neb_fail(NEB_ERR_FORMAT, "%s is not the key of %s", key_path, cert_path);
    else if (expired(out->x509))
        st = neb_fail(NEB_ERR_INVALID, "%s has expired; renew it", cert_path);
    else
        warn_of_end(out->x509, cert_path);
out:
    BIO_free(c);
    BIO_free(k);
    EVP_PKEY_free(key);
    if (st != NEB_OK)
        agent_web_tls_free(out);
    return st;
}

void agent_web_tls_free(struct agent_web_tls *t) {
    sodium_free(t->key);
    t->key = NULL;
    neb_buf_free(&t->cert);
    X509_free(t->x509);
    t->x509 = NULL;
}

void agent_web_tls_fingerprint(const struct agent_web_tls *t, char out[AGENT_WEB_FINGERPRINT]) {
    uint8_t raw[EVP_MAX_MD_SIZE] = {0};
    unsigned n = 0;
    NEB_ASSERT(X509_digest(t->x509, EVP_sha256(), raw, &n) == 1 && n * 3 == AGENT_WEB_FINGERPRINT);
    for (unsigned i = 0; i < n; i++)
        snprintf(out + 3 * i, 4, "%02X%s", raw[i], i + 1 < n ? ":" : "");
}

// ---- renewal ------------------------------------------------------------------------------------

static void mark(const struct agent_web_tls_files *f, struct agent_web_tls_mark *m) {
    const char *const paths[2] = {f->cert, f->key};
    memset(m, 0, sizeof *m);
    for (int i = 0; i < 2; i++) {
        struct stat s;
        if (stat(paths[i], &s) != 0) {
            memset(m, 0, sizeof *m);
            return;
        }
        m->inode[i] = (uint64_t)s.st_ino;
        m->size[i] = (uint64_t)s.st_size;
        m->changed_ns[i] = (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec;
    }
}

enum neb_status agent_web_tls_files(struct agent_web_tls_files *f, const char *cert,
                                    const char *key) {
    memset(f, 0, sizeof *f);
    if (strlen(cert) >= sizeof f->cert || strlen(key) >= sizeof f->key)
        return neb_fail(NEB_ERR_LIMIT, "%s: path too long",
                        strlen(cert) >= sizeof f->cert ? cert : key);
    memcpy(f->cert, cert, strlen(cert));
    memcpy(f->key, key, strlen(key));
    mark(f, &f->loaded);
    f->seen = f->loaded;
    return NEB_OK;
}

bool agent_web_tls_renewed(struct agent_web_tls_files *f) {
    struct agent_web_tls_mark now;
    mark(f, &now);
    bool still = memcmp(&now, &f->seen, sizeof now) == 0, there = now.size[0] && now.size[1];
    f->seen = now;
    if (!still || !there || memcmp(&now, &f->loaded, sizeof now) == 0)
        return false;
    f->loaded = now;
    return true;
}

// ---- making -------------------------------------------------------------------------------------

static bool is_any(const char *host) { return !strcmp(host, "0.0.0.0") || !strcmp(host, "::"); }

static bool add_extension(X509 *x, int nid, const char *value) {
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, x, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = e && X509_add_ext(x, e, -1) == 1;
    X509_EXTENSION_free(e);
    return ok;
}

static bool fill_certificate(X509 *x, EVP_PKEY *key, const char *host) {
    char machine[NAME_MAX_CN + 1] = "", names[NAMES_MAX];
    uint8_t serial[16];
    BIGNUM *n = NULL;
    X509_NAME *name = X509_get_subject_name(x);
    if (gethostname(machine, NAME_MAX_CN) != 0 || !machine[0])
        snprintf(machine, sizeof machine, "nebula");
    snprintf(names, sizeof names, "DNS:localhost,IP:127.0.0.1,IP:::1,DNS:%s%s%s", machine,
             is_any(host) ? "" : ",IP:", is_any(host) ? "" : host);
    RAND_bytes(serial, sizeof serial);
    serial[0] &= 0x7f;
    bool ok = (n = BN_bin2bn(serial, sizeof serial, NULL)) &&
              BN_to_ASN1_INTEGER(n, X509_get_serialNumber(x)) &&
              X509_set_version(x, X509_VERSION_3) &&
              X509_gmtime_adj(X509_getm_notBefore(x), -EARLY_S) &&
              X509_time_adj_ex(X509_getm_notAfter(x), YEARS * 365, 0, NULL) &&
              X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const uint8_t *)machine, -1,
                                         -1, 0) &&
              X509_set_issuer_name(x, name) && X509_set_pubkey(x, key) &&
              add_extension(x, NID_basic_constraints, "critical,CA:FALSE") &&
              add_extension(x, NID_key_usage, "critical,digitalSignature") &&
              add_extension(x, NID_ext_key_usage, "serverAuth") &&
              add_extension(x, NID_subject_alt_name, names) && X509_sign(x, key, EVP_sha256()) > 0;
    BN_free(n);
    return ok;
}

static enum neb_status store(BIO *b, const char *path) {
    char *p = NULL;
    long n = BIO_get_mem_data(b, &p);
    enum neb_status st = neb_fs_write(path, p, (size_t)n, 0600);
    sodium_memzero(p, (size_t)n);
    return st;
}

// Writes the key first: a certificate on disk then always has a key. After a crash in between, the
// pair is made again.
static enum neb_status make(const char *cert_path, const char *key_path, const char *host) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    BIO *c = BIO_new(BIO_s_mem()), *k = BIO_new(BIO_s_mem());
    enum neb_status st = NEB_OK;
    if (!key || !x || !c || !k || !fill_certificate(x, key, host) ||
        PEM_write_bio_X509(c, x) != 1 ||
        PEM_write_bio_PrivateKey(k, key, NULL, NULL, 0, NULL, NULL) != 1)
        st = neb_fail(NEB_ERR_UNSUPPORTED, "OpenSSL could not make a certificate for the status "
                                           "page; give one with --page-cert and --page-key");
    NEB_TRY_GOTO(st, out);
    NEB_TRY_GOTO(store(k, key_path), out);
    NEB_TRY_GOTO(store(c, cert_path), out);
out:
    EVP_PKEY_free(key);
    X509_free(x);
    BIO_free(c);
    BIO_free(k);
    return st;
}

enum neb_status agent_web_tls_own(const char *home, const char *host, struct agent_web_tls *out,
                                  struct agent_web_tls_files *files) {
    char dir[NEB_PATH_MAX], cert[NEB_PATH_MAX], key[NEB_PATH_MAX];
    memset(out, 0, sizeof *out);
    NEB_TRY(neb_path(dir, sizeof dir, home, "page"));
    NEB_TRY(neb_path(cert, sizeof cert, dir, "cert.pem"));
    NEB_TRY(neb_path(key, sizeof key, dir, "key.pem"));
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(agent_web_tls_files(files, cert, key));
    if (neb_fs_exists(cert) && neb_fs_exists(key)) {
        enum neb_status st = agent_web_tls_load(cert, key, out);
        if (st == NEB_OK && (is_any(host) || X509_check_ip_asc(out->x509, host, 0) == 1))
            return NEB_OK;
        if (st != NEB_OK && st != NEB_ERR_FORMAT && st != NEB_ERR_INVALID)
            return st;
        agent_web_tls_free(out);
        neb_warn("the status page gets a new certificate, so its fingerprint changes");
    }
    NEB_TRY(make(cert, key, host));
    NEB_TRY(agent_web_tls_files(files, cert, key));
    return agent_web_tls_load(cert, key, out);
}
