// SPDX-License-Identifier: Apache-2.0
// What crosses the enrolment connection, inside TLS 1.3: one request, one answer, then it ends.
//
//     joiner                                            hub
//        │── TLS 1.3 ─────────────────────────────────►│  certificate chain up to the CA
//        │   the CA in the chain has the token's pin?   │
//        │── u32 length, body, pop 32, proof 64 ──────►│  proof is right? then: CSR, invitation
//        │◄── u32 length, code u8, certificate, CA, list│  or of a refusal the code alone, of some u32 seconds
//
//     body  = "nebe1" 3 bytes 0 | kind u8 | id 8 | name str | endpoint str | CSR u16 length + bytes
//     x     = TLS exporter "EXPORTER-Channel-Binding", 32 bytes (RFC 9266): of this connection only
//     pop   = HMAC-SHA-256(X25519(own CURVE key, hub's CURVE key), "nebula curve pop v1" 0 || x || body)
//     proof = JOIN: HMAC-SHA-256(verifier of the invitation, x || body || pop), then 32 zeros
//             else: Ed25519ph by the member's present signing key over x || body || pop
//
// The hub's CURVE key comes from its endpoint certificate. The CSR is signed by the signing key it
// names; pop shows that the CURVE key is the sender's too. A refusal is SEC_ENROL_REFUSED and no detail, but for who has proved to be a
// member, or to hold the token of an invitation: these are told why.
#ifndef SEC_ENROL_WIRE_H
#define SEC_ENROL_WIRE_H
#include "security/cert.h"
#include "security/sign.h"
#include "security/token.h"

#define SEC_CONTEXT_ENROL "nebula enrolment v1"

enum {
    SEC_EXPORTER_BYTES = 32,
    SEC_POP_BYTES = 32,
    SEC_PROOF_BYTES = 64,
    SEC_ENROL_REQUEST_MAX = 8 * 1024, // bytes behind the length
    SEC_ENROL_ANSWER_MAX = 32 * 1024,
};

enum sec_enrol_kind {
    SEC_ENROL_JOIN = 1, // by an invitation
    SEC_ENROL_RENEW, // a member: another certificate, the newest list; new keys in the CSR rotate
};

enum sec_enrol_code {
    SEC_ENROL_OK,
    SEC_ENROL_REFUSED,
    SEC_ENROL_LATER, // a member that has just had new keys: u32 seconds until it may have others
    // of an invitation whose token the sender holds
    SEC_ENROL_EXPIRED,   // u32 seconds ago
    SEC_ENROL_USED,      // by other keys
    SEC_ENROL_WITHDRAWN, // nebula revoke NAME
    SEC_ENROL_FORMER,    // the keys were taken off the list before
    SEC_ENROL_TAKEN,     // a key, or the name, is a member's
    SEC_ENROL_CODES
};

struct sec_enrol_request {
    enum sec_enrol_kind kind;
    uint8_t id[SEC_INVITE_ID_BYTES]; // JOIN; zero otherwise
    char name[SEC_NAME_MAX];
    char endpoint[SEC_ENDPOINT_MAX]; // where others reach its agent, or ""
    const uint8_t *csr;              // borrowed
    size_t csr_len;
    uint8_t pop[SEC_POP_BYTES], proof[SEC_PROOF_BYTES];
    const uint8_t *body; // parse: borrowed, what pop and proof are over
    size_t body_len;
};

// The body alone; replaces out.
NEB_MUST_CHECK enum neb_status sec_enrol_body(const struct sec_enrol_request *r,
                                              struct neb_buf *out);
// Bytes behind the length. Strict; NEB_ERR_FORMAT, not logged: strangers reach it.
NEB_MUST_CHECK enum neb_status sec_enrol_parse(const uint8_t *p, size_t len,
                                               struct sec_enrol_request *out);

// own: CURVE secret key, other: CURVE public key; both sides compute the same. NEB_ERR_DENIED (not
// logged): a key of low order.
NEB_MUST_CHECK enum neb_status sec_enrol_pop(const uint8_t own[SEC_KEY_BYTES],
                                             const uint8_t other[SEC_KEY_BYTES],
                                             const uint8_t exporter[SEC_EXPORTER_BYTES],
                                             const uint8_t *body, size_t len,
                                             uint8_t out[SEC_POP_BYTES]);
// What the proof is over: exporter || body || pop; replaces out.
NEB_MUST_CHECK enum neb_status sec_enrol_proven(const uint8_t exporter[SEC_EXPORTER_BYTES],
                                                const uint8_t *body, size_t len,
                                                const uint8_t pop[SEC_POP_BYTES],
                                                struct neb_buf *out);
// JOIN's proof over those bytes.
void sec_enrol_hmac(const uint8_t verifier[32], const struct neb_buf *proven,
                    uint8_t proof[SEC_PROOF_BYTES]);

struct sec_enrol_answer {
    enum sec_enrol_code code;
    const uint8_t *cert, *ca, *list; // borrowed
    size_t cert_len, ca_len, list_len;
    uint32_t seconds; // LATER: from now on; EXPIRED: ago
};
// With its length in front; replaces out.
NEB_MUST_CHECK enum neb_status sec_enrol_answer_make(const struct sec_enrol_answer *a,
                                                     struct neb_buf *out);
NEB_MUST_CHECK enum neb_status sec_enrol_answer_parse(const uint8_t *p, size_t len,
                                                      struct sec_enrol_answer *out);

#endif
