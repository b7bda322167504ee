// SPDX-License-Identifier: Apache-2.0
// The federation's certificate authority, on the hub, in HOME/ca/ (0700):
//
//     seal.key   0600   32 bytes that open ca.key. As a systemd credential `nebula-ca-seal` it is
//                       read from $CREDENTIALS_DIRECTORY in its place and is not on this disk
//     ca.key     0600   "nebca1" 2 bytes 0, and the sealed Ed25519 seed
//     begun      0600   while it is made: SHA-256 of its backup. Gone once list version 1 is there
//
// The CA's certificate lies in HOME/federation/ca.pem like at every member. The backup file holds
// seed and certificate, sealed by a recovery code of 160 bits (Argon2id) that is shown once: the file
// is to be moved off the hub, the code kept elsewhere.
//
// The same Ed25519 key signs certificates (X.509, plain Ed25519) and member lists (Ed25519ph with a
// context); RFC 8032 keeps the two apart. Keys lie in locked memory and are wiped.
// Threads: read-only after open.
#ifndef SEC_CA_H
#define SEC_CA_H
#include "security/cert.h"
#include "security/seal.h"
#include "security/sign.h"

enum {
    SEC_CA_YEARS = 10,
    SEC_MEMBER_DAYS = 90, // a member's certificate; renewed once less than a third of it is left
    SEC_SERVER_DAYS = 7,  // the enrolment endpoint's; made anew each day, and when the clock is set
};

struct sec_ca;

// Makes a CA. backup: where its backup goes (new file; NEB_ERR_EXISTS otherwise); code: its recovery
// code, to be shown before the first list is published, and wiped. NEB_ERR_EXISTS: home has a CA or is
// in a federation. A CA of a call before this one that has no list yet is made anew, with its backup.
NEB_MUST_CHECK enum neb_status sec_ca_create(const char *home, const char *name, const char *backup,
                                             char code[SEC_CODE_TEXT]);
// There is a list: from now on it is never made anew.
NEB_MUST_CHECK enum neb_status sec_ca_finish(const char *home);
// Puts the CA of a backup into home, sealed anew. NEB_ERR_DENIED: another code; NEB_ERR_EXISTS: home is
// in another federation; NEB_ERR_STATE: it has no member list, so the hub could not go on from one.
// Nothing is changed then.
NEB_MUST_CHECK enum neb_status sec_ca_restore(const char *home, const char *backup,
                                              const char *code);
// NEB_ERR_NOT_FOUND (not logged): home is not a hub.
NEB_MUST_CHECK enum neb_status sec_ca_open(const char *home, struct sec_ca **out);
void sec_ca_destroy(struct sec_ca **ca);

const uint8_t *sec_ca_seal_key(const struct sec_ca *ca); // SEC_SEAL_KEY_BYTES
// A member's certificate, valid from five minutes ago; replaces der.
NEB_MUST_CHECK enum neb_status sec_ca_issue(const struct sec_ca *ca, const struct sec_public *p,
                                            struct neb_buf *der);
// The enrolment endpoint's: for TLS with tls_key, naming the hub's keys.
NEB_MUST_CHECK enum neb_status sec_ca_issue_server(const struct sec_ca *ca,
                                                   const struct sec_public *hub, EVP_PKEY *tls_key,
                                                   X509 **out);
// As sec_sign (security/sign.h), by the CA's key: member lists.
NEB_MUST_CHECK enum neb_status sec_ca_sign(const struct sec_ca *ca, const char *context,
                                           const void *msg, size_t len,
                                           uint8_t sig[SEC_SIGN_BYTES]);

#endif
