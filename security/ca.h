// SPDX-License-Identifier: Apache-2.0
// The federation's certificate authority (CA), on the hub, in HOME/ca/ (0700):
//
//     seal.key   0600   32 bytes that open ca.key. If the systemd credential `nebula-ca-seal`
//                       exists in $CREDENTIALS_DIRECTORY, it is used instead
//     ca.key     0600   "nebca1", 2 zero bytes, and the sealed Ed25519 seed
//     begun      0600   while a CA is being made: SHA-256 of its backup. Removed once list version
//                       1 exists
//
// The CA's certificate is HOME/federation/ca.pem, as at every member. The backup file holds seed
// and certificate. It is sealed with a recovery code of 160 bits (Argon2id), which is shown once.
// The operator moves the file off the hub and keeps the code elsewhere.
//
// The same Ed25519 key signs certificates (X.509, plain Ed25519) and member lists (Ed25519ph with a
// context). RFC 8032 keeps the two apart. Keys lie in locked memory and are wiped.
//
// Threads: read-only after open.
#ifndef SEC_CA_H
#define SEC_CA_H
#include "security/cert.h"
#include "security/seal.h"
#include "security/sign.h"

enum {
    SEC_CA_YEARS = 10,
    SEC_MEMBER_DAYS = 90, // a member's certificate; renewed when less than a third is left
    SEC_SERVER_DAYS = 7,  // the enrolment endpoint's; replaced daily, and after a clock change
};

struct sec_ca;

// Makes a CA. backup: path of the backup, a new file. code: gets the recovery code. Show it before
// the first list is published, then wipe it. If an earlier call made a CA that has no list yet,
// both the CA and its backup are made again. NEB_ERR_EXISTS: home has a CA or is in a federation,
// or backup exists. NEB_ERR_INVALID: name is not valid.
NEB_MUST_CHECK enum neb_status sec_ca_create(const char *home, const char *name, const char *backup,
                                             char code[SEC_CODE_TEXT]);
// Marks the CA as complete, because a list exists: sec_ca_create then never replaces it.
NEB_MUST_CHECK enum neb_status sec_ca_finish(const char *home);
// Puts the CA of a backup into home and seals it. Changes nothing on these errors:
// NEB_ERR_NOT_FOUND: no backup; NEB_ERR_DENIED: the code is wrong; NEB_ERR_EXISTS: home is in
// another federation; NEB_ERR_STATE: home has no member list, so the hub could not continue its
// versions.
NEB_MUST_CHECK enum neb_status sec_ca_restore(const char *home, const char *backup,
                                              const char *code);
// NEB_ERR_NOT_FOUND (not logged): home is not a hub.
NEB_MUST_CHECK enum neb_status sec_ca_open(const char *home, struct sec_ca **out);
void sec_ca_destroy(struct sec_ca **ca);

const uint8_t *sec_ca_seal_key(const struct sec_ca *ca); // SEC_SEAL_KEY_BYTES
// Issues a member's certificate, valid from five minutes ago. Replaces der.
NEB_MUST_CHECK enum neb_status sec_ca_issue(const struct sec_ca *ca, const struct sec_public *p,
                                            struct neb_buf *der);
// Issues the enrolment endpoint's certificate for TLS with tls_key. It names the hub's keys. The
// caller frees *out.
NEB_MUST_CHECK enum neb_status sec_ca_issue_server(const struct sec_ca *ca,
                                                   const struct sec_public *hub, EVP_PKEY *tls_key,
                                                   X509 **out);
// Signs with the CA's key, as sec_sign (security/sign.h) does: for member lists.
NEB_MUST_CHECK enum neb_status sec_ca_sign(const struct sec_ca *ca, const char *context,
                                           const void *msg, size_t len,
                                           uint8_t sig[SEC_SIGN_BYTES]);

#endif
