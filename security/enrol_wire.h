// SPDX-License-Identifier: Apache-2.0
// What crosses the enrolment connection inside TLS 1.3: one request and one answer, then it ends.
//
//     joiner                                            hub
//        │── TLS 1.3 ─────────────────────────────────►│  certificate chain up to the CA
//        │   the CA in the chain has the token's pin?   │
//        │── u32 length, body, pop 32, proof 64 ──────►│  proof is correct? then: CSR, invitation
//        │◄── u32 length, code u8, certificate, CA, list│  refusal: the code; LATER and EXPIRED add
//                                                          u32 seconds
//
//     body  = "nebe1", 3 zero bytes | kind u8 | id 8 | name str | endpoint str
//             | CSR u16 length and bytes
//     x     = TLS exporter "EXPORTER-Channel-Binding", 32 bytes (RFC 9266), of this connection only
//     pop   = HMAC-SHA-256(X25519(own CURVE key, hub's CURVE key),
//                          "nebula curve pop v1" 0 || x || body)
//     proof = JOIN: HMAC-SHA-256(verifier of the invitation, x || body || pop), then 32 zero bytes
//             RENEW: Ed25519ph by the member's present signing key over x || body || pop
//
// The hub's CURVE key comes from its endpoint certificate. The CSR is signed with the signing key
// that it names. pop shows that the CURVE key is the sender's too. Strangers get SEC_ENROL_REFUSED
// without a reason. A sender that has proved to be a member, or to hold a token, gets the reason.
#ifndef SEC_ENROL_WIRE_H
#define SEC_ENROL_WIRE_H
#include "security/cert.h"
#include "security/sign.h"
#include "security/token.h"

#include <openssl/ssl.h>

#define SEC_CONTEXT_ENROL "nebula enrolment v1"

enum {
    SEC_EXPORTER_BYTES = 32,
    SEC_POP_BYTES = 32,
    SEC_PROOF_BYTES = 64,
    SEC_ENROL_REQUEST_MAX = 8 * 1024, // bytes after the length
    SEC_ENROL_ANSWER_MAX = 32 * 1024,
};

enum sec_enrol_kind {
    SEC_ENROL_JOIN = 1, // with an invitation
    // a member gets a new certificate and list; new keys in the CSR replace its keys
    SEC_ENROL_RENEW,
};

enum sec_enrol_code {
    SEC_ENROL_OK,
    SEC_ENROL_REFUSED,
    SEC_ENROL_LATER, // this member had new keys just now: u32 seconds until it may have others
    // About an invitation, to a sender that holds its token:
    SEC_ENROL_EXPIRED,   // u32 seconds ago
    SEC_ENROL_USED,      // with other keys
    SEC_ENROL_WITHDRAWN, // nebula revoke NAME
    SEC_ENROL_FORMER,    // the keys were removed from the list before
    SEC_ENROL_TAKEN,     // another member has this name or one of these keys
    SEC_ENROL_CODES
};

struct sec_enrol_request {
    enum sec_enrol_kind kind;
    uint8_t id[SEC_INVITE_ID_BYTES]; // JOIN; otherwise zero
    char name[SEC_NAME_MAX];
    char endpoint[SEC_ENDPOINT_MAX]; // where others reach its agent, or ""
    const uint8_t *csr;              // borrowed
    size_t csr_len;
    uint8_t pop[SEC_POP_BYTES], proof[SEC_PROOF_BYTES];
    const uint8_t *body; // set by parse, borrowed: pop and proof cover it
    size_t body_len;
};

// Writes the body. Replaces out.
NEB_MUST_CHECK enum neb_status sec_enrol_body(const struct sec_enrol_request *r,
                                              struct neb_buf *out);
// Parses the bytes after the length. Strict. NEB_ERR_FORMAT is not logged, because strangers can
// cause it.
NEB_MUST_CHECK enum neb_status sec_enrol_parse(const uint8_t *p, size_t len,
                                               struct sec_enrol_request *out);

// own: a CURVE secret key. other: a CURVE public key. Both sides compute the same. NEB_ERR_DENIED
// (not logged): a key of low order.
NEB_MUST_CHECK enum neb_status sec_enrol_pop(const uint8_t own[SEC_KEY_BYTES],
                                             const uint8_t other[SEC_KEY_BYTES],
                                             const uint8_t exporter[SEC_EXPORTER_BYTES],
                                             const uint8_t *body, size_t len,
                                             uint8_t out[SEC_POP_BYTES]);
// The bytes that the proof covers: exporter || body || pop. Replaces out.
NEB_MUST_CHECK enum neb_status sec_enrol_proven(const uint8_t exporter[SEC_EXPORTER_BYTES],
                                                const uint8_t *body, size_t len,
                                                const uint8_t pop[SEC_POP_BYTES],
                                                struct neb_buf *out);
// The proof of JOIN over those bytes.
void sec_enrol_hmac(const uint8_t verifier[32], const struct neb_buf *proven,
                    uint8_t proof[SEC_PROOF_BYTES]);

struct sec_enrol_answer {
    enum sec_enrol_code code;
    const uint8_t *cert, *ca, *list; // borrowed
    size_t cert_len, ca_len, list_len;
    uint32_t seconds; // LATER: from now; EXPIRED: ago
};
// Makes an answer with its length in front. Replaces out.
NEB_MUST_CHECK enum neb_status sec_enrol_answer_make(const struct sec_enrol_answer *a,
                                                     struct neb_buf *out);
NEB_MUST_CHECK enum neb_status sec_enrol_answer_parse(const uint8_t *p, size_t len,
                                                      struct sec_enrol_answer *out);

// ---- why a TLS call failed ----------------------------------------------------------------------
//
// The text says only what OpenSSL and the system know.

enum { SEC_TLS_REASON = 160 };

// For a call that returned r. Call it before any other call that sets errno. Keeps OpenSSL's error
// queue as it is.
void sec_tls_reason(const SSL *ssl, int r, char out[SEC_TLS_REASON]);
// True if the other end closed the connection in the middle, without an alert. Call it
// under the conditions of sec_tls_reason.
bool sec_tls_closed(const SSL *ssl, int r);

#endif
