// SPDX-License-Identifier: Apache-2.0
#include "security/cert.h"

#include "agent/base/fs.h"
#include "agent/base/sha256.h"
#include "security/locked.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sodium.h>
#include <string.h>
#include <time.h>

enum { SECURE_HEAP = 64 * 1024, SECURE_MIN = 64, PEM_MAX = 16 * 1024 };

enum neb_status sec_openssl_init(void) {
    NEB_TRY(sec_init());
    if (CRYPTO_secure_malloc_initialized())
        return NEB_OK;
    int got = CRYPTO_secure_malloc_init(SECURE_HEAP, SECURE_MIN);
    if (!got)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for keys");
    if (got == 2) // allocated, but not locked
        sec_locked_failed(0);
    return NEB_OK;
}

const char *sec_openssl_error(void) {
    unsigned long e = ERR_peek_last_error();
    const char *why = e ? ERR_reason_error_string(e) : NULL;
    ERR_clear_error();
    return why ? why : "no reason given";
}

static enum neb_status openssl_fail(const char *what) {
    return neb_fail(NEB_ERR_IO, "%s: OpenSSL: %s", what, sec_openssl_error());
}

enum neb_status sec_ed25519_key(const uint8_t seed[SEC_KEY_BYTES], EVP_PKEY **out) {
    NEB_TRY(sec_openssl_init());
    *out = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, seed, SEC_KEY_BYTES);
    return *out ? NEB_OK : openssl_fail("signing key");
}

// ---- the two extensions ------------------------------------------------------------------------

static X509_EXTENSION *key_extension(const char *oid, const uint8_t key[SEC_KEY_BYTES]) {
    uint8_t der[2 + SEC_KEY_BYTES] = {V_ASN1_OCTET_STRING, SEC_KEY_BYTES};
    memcpy(der + 2, key, SEC_KEY_BYTES);
    ASN1_OBJECT *o = OBJ_txt2obj(oid, 1);
    ASN1_OCTET_STRING *s = ASN1_OCTET_STRING_new();
    X509_EXTENSION *x = NULL;
    if (o && s && ASN1_OCTET_STRING_set(s, der, sizeof der))
        x = X509_EXTENSION_create_by_OBJ(NULL, o, 0, s);
    ASN1_OBJECT_free(o);
    ASN1_OCTET_STRING_free(s);
    return x;
}

// The key under oid, if the list has exactly one such extension, in the right form.
static bool extension_key(const STACK_OF(X509_EXTENSION) * list, const char *oid,
                          uint8_t key[SEC_KEY_BYTES]) {
    ASN1_OBJECT *o = OBJ_txt2obj(oid, 1);
    int at = o ? X509v3_get_ext_by_OBJ(list, o, -1) : -1;
    bool once = at >= 0 && X509v3_get_ext_by_OBJ(list, o, at) < 0;
    ASN1_OBJECT_free(o);
    const ASN1_OCTET_STRING *s = once ? X509_EXTENSION_get_data(X509v3_get_ext(list, at)) : NULL;
    if (!s || ASN1_STRING_length(s) != 2 + SEC_KEY_BYTES)
        return false;
    const uint8_t *p = ASN1_STRING_get0_data(s);
    if (p[0] != V_ASN1_OCTET_STRING || p[1] != SEC_KEY_BYTES)
        return false;
    memcpy(key, p + 2, SEC_KEY_BYTES);
    return true;
}

enum neb_status sec_cert_add(X509 *cert, int nid, const char *value) {
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, cert, cert, NULL, NULL, 0);
    X509_EXTENSION *x = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = x && X509_add_ext(cert, x, -1);
    X509_EXTENSION_free(x);
    return ok ? NEB_OK : openssl_fail("certificate extension");
}

enum neb_status sec_cert_add_keys(X509 *cert, const struct sec_public *p) {
    X509_EXTENSION *c = key_extension(SEC_OID_CURVE, p->curve);
    X509_EXTENSION *s = key_extension(SEC_OID_SIGN, p->sign);
    bool ok = c && s && X509_add_ext(cert, c, -1) && X509_add_ext(cert, s, -1);
    X509_EXTENSION_free(c);
    X509_EXTENSION_free(s);
    return ok ? NEB_OK : openssl_fail("certificate extension");
}

enum neb_status sec_cert_keys(const X509 *cert, uint8_t curve[SEC_KEY_BYTES],
                              uint8_t sign[SEC_KEY_BYTES]) {
    const STACK_OF(X509_EXTENSION) *list = X509_get0_extensions(cert);
    return list && extension_key(list, SEC_OID_CURVE, curve) &&
                   extension_key(list, SEC_OID_SIGN, sign)
               ? NEB_OK
               : NEB_ERR_FORMAT;
}

// ---- names and keys ----------------------------------------------------------------------------

// True if n has exactly one entry, of type nid, and it is a valid member name.
static bool only_name(const X509_NAME *n, int nid, char out[SEC_NAME_MAX]) {
    if (!n || X509_NAME_entry_count(n) != 1 || X509_NAME_get_index_by_NID(n, nid, -1) != 0)
        return false;
    const ASN1_STRING *s = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(n, 0));
    int len = ASN1_STRING_length(s);
    if (len < 1 || len >= SEC_NAME_MAX || memchr(ASN1_STRING_get0_data(s), 0, (size_t)len))
        return false;
    memset(out, 0, SEC_NAME_MAX);
    memcpy(out, ASN1_STRING_get0_data(s), (size_t)len);
    return sec_name_valid(out);
}

static bool raw_ed25519(EVP_PKEY *k, uint8_t out[SEC_KEY_BYTES]) {
    size_t n = SEC_KEY_BYTES;
    return k && EVP_PKEY_get_id(k) == EVP_PKEY_ED25519 &&
           EVP_PKEY_get_raw_public_key(k, out, &n) == 1 && n == SEC_KEY_BYTES;
}

static bool usable(const struct sec_public *p) {
    return crypto_core_ed25519_is_valid_point(p->sign) && !sodium_is_zero(p->curve, SEC_KEY_BYTES);
}

// ---- requests ----------------------------------------------------------------------------------

static bool csr_fill(X509_REQ *q, const struct sec_public *p, const char *name, EVP_PKEY *key) {
    STACK_OF(X509_EXTENSION) *list = sk_X509_EXTENSION_new_null();
    X509_EXTENSION *c = key_extension(SEC_OID_CURVE, p->curve);
    X509_EXTENSION *s = key_extension(SEC_OID_SIGN, p->sign);
    bool ok = list && c && sk_X509_EXTENSION_push(list, c);
    if (ok)
        c = NULL;
    ok = ok && s && sk_X509_EXTENSION_push(list, s);
    if (ok)
        s = NULL;
    X509_EXTENSION_free(c);
    X509_EXTENSION_free(s);
    ok = ok && X509_REQ_set_version(q, X509_REQ_VERSION_1) && X509_REQ_set_pubkey(q, key) &&
         X509_NAME_add_entry_by_NID(X509_REQ_get_subject_name(q), NID_commonName, MBSTRING_ASC,
                                    (const uint8_t *)name, -1, -1, 0) &&
         X509_REQ_add_extensions(q, list) && X509_REQ_sign(q, key, NULL) > 0;
    sk_X509_EXTENSION_pop_free(list, X509_EXTENSION_free);
    return ok;
}

enum neb_status sec_csr_make(const struct sec_identity *id, const char *name, struct neb_buf *der) {
    enum neb_status st;
    EVP_PKEY *key = NULL;
    uint8_t *p = NULL;
    const struct sec_public *pub = sec_identity_public(id);
    // libsodium's secret key is the seed, then the public key.
    NEB_TRY(sec_ed25519_key(sec_identity_sign_secret(id), &key));
    X509_REQ *q = X509_REQ_new();
    int n = q && csr_fill(q, pub, name ? name : pub->name, key) ? i2d_X509_REQ(q, &p) : -1;
    if (n < 0) {
        st = openssl_fail("certificate request");
    } else {
        neb_buf_clear(der);
        neb_buf_add(der, p, (size_t)n);
        st = neb_buf_check(der);
    }
    OPENSSL_free(p);
    X509_REQ_free(q);
    EVP_PKEY_free(key);
    return st;
}

static enum neb_status csr_read(X509_REQ *q, struct sec_public *p) {
    uint8_t named[SEC_KEY_BYTES];
    STACK_OF(X509_EXTENSION) *list = X509_REQ_get_extensions(q);
    bool ok = list && sk_X509_EXTENSION_num(list) == 2 && X509_REQ_get_attr_count(q) == 1 &&
              extension_key(list, SEC_OID_CURVE, p->curve) &&
              extension_key(list, SEC_OID_SIGN, p->sign);
    sk_X509_EXTENSION_pop_free(list, X509_EXTENSION_free);
    ok = ok && only_name(X509_REQ_get_subject_name(q), NID_commonName, p->name) &&
         raw_ed25519(X509_REQ_get0_pubkey(q), named) && usable(p);
    if (!ok)
        return neb_fail(NEB_ERR_FORMAT, "certificate request: does not follow the member profile");
    if (memcmp(named, p->sign, SEC_KEY_BYTES) != 0)
        return neb_fail(NEB_ERR_DENIED,
                        "certificate request: names a signing key that is not its own");
    if (X509_REQ_verify(q, X509_REQ_get0_pubkey(q)) != 1)
        return neb_fail(NEB_ERR_DENIED, "certificate request: not signed by the key that it names");
    return NEB_OK;
}

enum neb_status sec_csr_parse(const uint8_t *der, size_t len, struct sec_public *out) {
    struct sec_public p = {.name = ""};
    const uint8_t *at = der;
    X509_REQ *q = len > 0 && len <= SEC_CERT_MAX ? d2i_X509_REQ(NULL, &at, (long)len) : NULL;
    enum neb_status st = q && at == der + len
                             ? csr_read(q, &p)
                             : neb_fail(NEB_ERR_FORMAT, "certificate request: cannot be read");
    X509_REQ_free(q);
    ERR_clear_error();
    if (st == NEB_OK)
        *out = p;
    return st;
}

// ---- certificates ------------------------------------------------------------------------------

static X509 *cert_decode(const uint8_t *der, size_t len) {
    const uint8_t *at = der;
    X509 *c = len > 0 && len <= SEC_CERT_MAX ? d2i_X509(NULL, &at, (long)len) : NULL;
    if (c && at == der + len)
        return c;
    X509_free(c);
    ERR_clear_error();
    return NULL;
}

static int64_t seconds(const ASN1_TIME *t) {
    struct tm tm;
    return ASN1_TIME_to_tm(t, &tm) ? (int64_t)timegm(&tm) : -1;
}

static bool member_read(X509 *c, struct sec_cert *out) {
    uint8_t named[SEC_KEY_BYTES];
    out->not_before = seconds(X509_get0_notBefore(c));
    out->not_after = seconds(X509_get0_notAfter(c));
    return X509_get_version(c) == X509_VERSION_3 && X509_check_ca(c) == 0 &&
           X509_get_key_usage(c) == KU_DIGITAL_SIGNATURE &&
           only_name(X509_get_subject_name(c), NID_commonName, out->pub.name) &&
           sec_cert_keys(c, out->pub.curve, out->pub.sign) == NEB_OK &&
           raw_ed25519(X509_get0_pubkey(c), named) && !memcmp(named, out->pub.sign, sizeof named) &&
           usable(&out->pub) && out->not_before >= 0 && out->not_before < out->not_after;
}

enum neb_status sec_cert_parse(const uint8_t *der, size_t len, struct sec_cert *out) {
    struct sec_cert r = {.not_before = 0};
    X509 *c = cert_decode(der, len);
    bool ok = c && member_read(c, &r);
    X509_free(c);
    ERR_clear_error();
    if (!ok)
        return neb_fail(NEB_ERR_FORMAT, "certificate: does not follow the member profile");
    *out = r;
    return NEB_OK;
}

static const char *date(int64_t seconds, char out[32]) {
    time_t t = (time_t)seconds;
    struct tm tm;
    if (!gmtime_r(&t, &tm) || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm))
        snprintf(out, 32, "?");
    return out;
}

enum neb_status sec_cert_verify(const uint8_t *der, size_t len, const uint8_t *ca, size_t ca_len,
                                int64_t now, struct sec_cert *out) {
    struct sec_cert r;
    uint8_t key[SEC_KEY_BYTES], pin[SEC_PIN_BYTES];
    NEB_TRY(sec_ca_cert_parse(ca, ca_len, key, pin, NULL));
    NEB_TRY(sec_cert_parse(der, len, &r));
    X509 *c = cert_decode(der, len), *a = cert_decode(ca, ca_len);
    bool ok = c && a && X509_NAME_cmp(X509_get_issuer_name(c), X509_get_subject_name(a)) == 0 &&
              X509_verify(c, X509_get0_pubkey(a)) == 1;
    X509_free(c);
    X509_free(a);
    ERR_clear_error();
    if (!ok)
        return neb_fail(NEB_ERR_DENIED, "certificate of '%s': not signed by this federation's CA",
                        r.pub.name);
    if (now < r.not_before || now > r.not_after) {
        char from[32], until[32], is[32];
        return neb_fail(NEB_ERR_DENIED,
                        "certificate of '%s' is valid from %s to %s, but by this machine's clock "
                        "it is %s: set the clock if it is wrong, or renew the certificate (nebula "
                        "members --fetch HOST:PORT, the hub's enrolment address)",
                        r.pub.name, date(r.not_before, from), date(r.not_after, until),
                        date(now, is));
    }
    *out = r;
    return NEB_OK;
}

static bool ca_read(X509 *c, uint8_t key[SEC_KEY_BYTES], uint8_t pin[SEC_PIN_BYTES],
                    char name[SEC_NAME_MAX]) {
    char own[SEC_NAME_MAX];
    uint8_t *spki = NULL;
    EVP_PKEY *k = X509_get0_pubkey(c);
    if (!raw_ed25519(k, key) || X509_check_ca(c) != 1 || X509_verify(c, k) != 1 ||
        !only_name(X509_get_subject_name(c), NID_organizationName, own) ||
        X509_NAME_cmp(X509_get_issuer_name(c), X509_get_subject_name(c)) != 0)
        return false;
    int n = i2d_PUBKEY(k, &spki);
    if (n <= 0)
        return false;
    neb_sha256(spki, (size_t)n, pin);
    OPENSSL_free(spki);
    if (name)
        memcpy(name, own, sizeof own);
    return true;
}

enum neb_status sec_ca_cert_parse(const uint8_t *der, size_t len, uint8_t key[SEC_KEY_BYTES],
                                  uint8_t pin[SEC_PIN_BYTES], char name[SEC_NAME_MAX]) {
    X509 *c = cert_decode(der, len);
    bool ok = c && ca_read(c, key, pin, name);
    X509_free(c);
    ERR_clear_error();
    return ok ? NEB_OK
              : neb_fail(NEB_ERR_FORMAT,
                         "CA certificate: is not the certificate of a federation's CA");
}

enum neb_status sec_x509_der(const X509 *cert, struct neb_buf *out) {
    uint8_t *p = NULL;
    int n = i2d_X509(cert, &p);
    if (n < 0)
        return openssl_fail("certificate");
    neb_buf_clear(out);
    neb_buf_add(out, p, (size_t)n);
    OPENSSL_free(p);
    return neb_buf_check(out);
}

enum neb_status sec_pem_write(const char *path, const uint8_t *der, size_t len) {
    X509 *c = cert_decode(der, len);
    BIO *b = BIO_new(BIO_s_mem());
    char *text = NULL;
    enum neb_status st = NEB_ERR_NOMEM;
    if (!c || !b || !PEM_write_bio_X509(b, c))
        st = neb_fail(NEB_ERR_FORMAT, "%s: not a certificate", path);
    else
        st = neb_fs_write(path, (BIO_get_mem_data(b, &text), text), (size_t)BIO_pending(b), 0600);
    BIO_free(b);
    X509_free(c);
    return st;
}

enum neb_status sec_pem_read(const char *path, struct neb_buf *der) {
    struct neb_buf text = {0};
    if (!neb_fs_exists(path))
        return NEB_ERR_NOT_FOUND;
    enum neb_status st = neb_fs_read(path, PEM_MAX, &text);
    if (st != NEB_OK)
        return st;
    BIO *b = BIO_new_mem_buf(text.p, (int)text.len);
    X509 *c = b ? PEM_read_bio_X509(b, NULL, NULL, NULL) : NULL;
    st = c ? sec_x509_der(c, der) : neb_fail(NEB_ERR_FORMAT, "%s: not a certificate", path);
    X509_free(c);
    BIO_free(b);
    ERR_clear_error();
    neb_buf_free(&text);
    return st;
}
