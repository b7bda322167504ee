// SPDX-License-Identifier: Apache-2.0
// Certificates of members, and the requests for them.
//
// X.509 v3, Ed25519 throughout. A member's certificate has
//     subject            CN = the member's name, nothing else
//     public key         the member's Ed25519 signing key
//     SEC_OID_CURVE      OCTET STRING, 32 bytes: the member's CURVE25519 key for links
//     SEC_OID_SIGN       OCTET STRING, 32 bytes: the signing key again. So both keys that members
//                        use are side by side. A certificate that is only for TLS has neither
//     basicConstraints CA:FALSE (critical), keyUsage digitalSignature (critical)
// A request (PKCS #10) carries subject, key and both extensions, and nothing else.
//
// The private arc is 2.25.UUID (ITU-T X.667: it needs no registration). Below it, .1 is the CURVE
// key and .2 the signing key. Other numbers are free.
//
// Threads: no shared state. Errors are logged unless a call says otherwise. Parsers return
// NEB_ERR_FORMAT for what does not follow the profile, NEB_ERR_DENIED for wrong signatures.
#ifndef SEC_CERT_H
#define SEC_CERT_H
#include "agent/base/bytes.h"
#include "security/identity.h"

#include <openssl/x509.h>

#define SEC_OID_ARC   "2.25.142247084265771787288937373693357787110"
#define SEC_OID_CURVE SEC_OID_ARC ".1"
#define SEC_OID_SIGN  SEC_OID_ARC ".2"

// DER bytes of a certificate or a request; SHA-256
enum { SEC_CERT_MAX = 4096, SEC_PIN_BYTES = 32 };

struct sec_cert {
    struct sec_public pub;
    int64_t not_before, not_after; // seconds since 1970
};

// Gives OpenSSL locked memory for keys. Call before any private key reaches OpenSSL. Idempotent.
NEB_MUST_CHECK enum neb_status sec_openssl_init(void);
// The newest error of OpenSSL as text, for messages. Empties its error queue.
const char *sec_openssl_error(void);
// An OpenSSL key from a 32-byte Ed25519 seed. It lies in locked memory. The caller frees it.
NEB_MUST_CHECK enum neb_status sec_ed25519_key(const uint8_t seed[SEC_KEY_BYTES], EVP_PKEY **out);
// Adds the extension nid. value: in the syntax of OpenSSL's configuration files.
NEB_MUST_CHECK enum neb_status sec_cert_add(X509 *cert, int nid, const char *value);
// Adds both keys as extensions.
NEB_MUST_CHECK enum neb_status sec_cert_add_keys(X509 *cert, const struct sec_public *p);
NEB_MUST_CHECK enum neb_status sec_x509_der(const X509 *cert, struct neb_buf *out); // replaces out

// Makes a request for the identity under `name` (NULL: its own name), signed with its signing key.
// Replaces der.
NEB_MUST_CHECK enum neb_status sec_csr_make(const struct sec_identity *id, const char *name,
                                            struct neb_buf *der);
// Strict: exactly the profile above, with no bytes after it, and signed with the key that it names.
NEB_MUST_CHECK enum neb_status sec_csr_parse(const uint8_t *der, size_t len,
                                             struct sec_public *out);
// Checks the profile only, not the signature or the time.
NEB_MUST_CHECK enum neb_status sec_cert_parse(const uint8_t *der, size_t len, struct sec_cert *out);
// Both keys of a certificate. The certificate of an enrolment endpoint has them too, without a
// member's subject. NEB_ERR_FORMAT (not logged): it has none.
NEB_MUST_CHECK enum neb_status sec_cert_keys(const X509 *cert, uint8_t curve[SEC_KEY_BYTES],
                                             uint8_t sign[SEC_KEY_BYTES]);
// Checks the profile, the CA's signature, and that `now` (seconds since 1970) is within its
// validity. ca: DER. NEB_ERR_DENIED: wrong signature or time.
NEB_MUST_CHECK enum neb_status sec_cert_verify(const uint8_t *der, size_t len, const uint8_t *ca,
                                               size_t ca_len, int64_t now, struct sec_cert *out);

// Reads a CA's certificate: self-signed Ed25519, CA:TRUE. Gives its public key and the pin, which
// is SHA-256 of its SubjectPublicKeyInfo. name (may be NULL) gets its organisation, the
// federation's name.
NEB_MUST_CHECK enum neb_status sec_ca_cert_parse(const uint8_t *der, size_t len,
                                                 uint8_t key[SEC_KEY_BYTES],
                                                 uint8_t pin[SEC_PIN_BYTES],
                                                 char name[SEC_NAME_MAX]);
// Writes a PEM file of one certificate, 0600.
NEB_MUST_CHECK enum neb_status sec_pem_write(const char *path, const uint8_t *der, size_t len);
// Reads a PEM file of one certificate. Replaces der. NEB_ERR_NOT_FOUND is not logged.
NEB_MUST_CHECK enum neb_status sec_pem_read(const char *path, struct neb_buf *der);

#endif
