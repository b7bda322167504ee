// SPDX-License-Identifier: Apache-2.0
// The hub's side of a federation: invitations, and every change of the member list.
//
//     HOME/ca/hub.json            where the enrolment endpoint listens, and its address from outside
//     HOME/ca/invites/ID.json     one invitation: name, role, expiry, the sealed verifier; once used,
//                                 the digest of the request that used it and the certificate
//     HOME/ca/lock                flock: command line and agent change things one at a time
//
// An invitation's secret is nowhere on the hub: the verifier is SHA-256 over it, and sealed by the
// CA's seal key. Using an invitation is one atomic file write; only then the list is changed. After a
// crash between the two the same request is answered again, another one is refused.
//
// Threads: one user at a time in a process; several processes are kept apart by the lock.
#ifndef SEC_HUB_H
#define SEC_HUB_H
#include "security/ca.h"
#include "security/enrol_wire.h"
#include "security/federation.h"
#include "security/token.h"

enum {
    SEC_INVITES_MAX = 256,               // open ones; and at most so many that have ended
    SEC_INVITE_TTL_MAX = 30 * 24 * 3600, // seconds
    SEC_INVITE_KEPT = 30 * 24 * 3600,    // seconds behind its expiry, to say so
    SEC_VERIFIER_BYTES = 32,
};

struct sec_hub_settings {
    char listen[SEC_ENDPOINT_MAX]; // of the enrolment endpoint, "0.0.0.0:7443"
    char reach[SEC_ENDPOINT_MAX];  // the same from outside; goes into tokens
};

struct sec_hub {
    struct sec_ca *ca;
    struct sec_federation *fed;
    struct sec_hub_settings settings;
    char *home, *dir; // HOME, HOME/ca
};

// After sec_ca_create: writes the settings and list version 1 with the hub itself on it. link: where
// other members reach its agent, or "". After sec_ca_restore there is a list: a link that is not "" is
// the hub's address from now on.
NEB_MUST_CHECK enum neb_status sec_hub_create(const char *home, const struct sec_hub_settings *s,
                                              const struct sec_public *self, const char *link);
// NEB_ERR_NOT_FOUND (not logged): home is not a hub.
NEB_MUST_CHECK enum neb_status sec_hub_open(const char *home, struct sec_hub **out);
void sec_hub_destroy(struct sec_hub **h);

// Makes an invitation; wipe the token after use. NEB_ERR_EXISTS: name is a member; NEB_ERR_LIMIT.
NEB_MUST_CHECK enum neb_status sec_hub_invite(struct sec_hub *h, const char *name,
                                              enum sec_role role, int64_t ttl_s,
                                              struct sec_token *out);
void sec_invite_verifier(const struct sec_token *t, uint8_t out[SEC_VERIFIER_BYTES]);

// The verifier of an invitation, also of one that has ended: only who proves to hold its token is told that. NEB_ERR_NOT_FOUND (not
// logged): none is here.
NEB_MUST_CHECK enum neb_status sec_hub_verifier(struct sec_hub *h,
                                                const uint8_t id[SEC_INVITE_ID_BYTES],
                                                uint8_t out[SEC_VERIFIER_BYTES]);
// Uses an invitation whose proof was checked. NEB_ERR_DENIED: expired, withdrawn, used by another request, for
// another name; NEB_ERR_EXISTS: a key or the name is a member's; why: the code and the seconds that the site is told then. cert: replaced.
NEB_MUST_CHECK enum neb_status sec_hub_admit(struct sec_hub *h,
                                             const uint8_t id[SEC_INVITE_ID_BYTES],
                                             const uint8_t *csr, size_t len, const char *endpoint,
                                             struct neb_buf *cert, struct sec_enrol_answer *why);
// A member asks again with a proof by its signing key: same keys give a new certificate, other keys
// (rotation) also a new list. NEB_ERR_DENIED: not on the list, or the request has another name.
// NEB_ERR_AGAIN: it has had other keys within the hour (rotated.h), and may in *wait seconds (else 0).
NEB_MUST_CHECK enum neb_status sec_hub_renew(struct sec_hub *h, const char *name,
                                             const uint8_t *csr, size_t len, struct neb_buf *cert,
                                             uint32_t *wait);
// Open invitations of the name end too. *member false: it was none, and there were such. NEB_ERR_NOT_FOUND:
// neither was there. NEB_ERR_STATE: it is the hub itself.
NEB_MUST_CHECK enum neb_status sec_hub_revoke(struct sec_hub *h, const char *name, bool *member);
// Gives a member, or the hub itself, another address on the list; "": it dials. One that it has already makes no new list. NEB_ERR_NOT_FOUND:
// no such member; NEB_ERR_INVALID: no HOST:PORT.
NEB_MUST_CHECK enum neb_status sec_hub_move(struct sec_hub *h, const char *name, const char *link);
// Takes the vote of `lost` away, one of exactly two voters, which is not the hub. NEB_ERR_STATE otherwise.
NEB_MUST_CHECK enum neb_status sec_hub_promote(struct sec_hub *h, const char *lost);

#endif
