// SPDX-License-Identifier: Apache-2.0
// The hub's side of a federation: invitations, and every change of the member list.
//
//     HOME/ca/hub.json          where the enrolment endpoint listens, and its address from outside
//     HOME/ca/invites/ID.json   one invitation: name, role, expiry, the sealed verifier; once used,
//                               also the digest of the request that used it, and the certificate
//     HOME/ca/lock              flock: command line and agent change things one at a time
//
// The hub does not keep an invitation's secret. It keeps a verifier, SHA-256 over the secret,
// sealed with the CA's seal key. Using an invitation is one atomic file write. The list is changed
// after that. After a crash in between, the same request gets the same answer, and any other is
// refused.
//
// Threads: one user at a time in a process. The lock keeps several processes apart.
#ifndef SEC_HUB_H
#define SEC_HUB_H
#include "security/ca.h"
#include "security/enrol_wire.h"
#include "security/members.h"
#include "security/token.h"

enum {
    SEC_INVITES_MAX = 256,               // open invitations; also the limit of ended ones
    SEC_INVITE_TTL_MAX = 30 * 24 * 3600, // seconds
    // how many seconds an ended invitation stays after its expiry, to give the reason
    SEC_INVITE_KEPT = 30 * 24 * 3600,
    SEC_VERIFIER_BYTES = 32,
};

struct sec_hub_settings {
    char listen[SEC_ENDPOINT_MAX]; // where the enrolment endpoint listens, "0.0.0.0:7443"
    char reach[SEC_ENDPOINT_MAX];  // its address from outside, for tokens
};

struct sec_hub {
    struct sec_ca *ca;
    struct sec_federation *fed;
    struct sec_hub_settings settings;
    char *home, *dir; // HOME, HOME/ca
};

// After sec_ca_create: writes the settings, and list version 1 with the hub on it. link: where
// other members reach its agent, or "". After sec_ca_restore a list exists already: a link that is
// not "" becomes the hub's address.
NEB_MUST_CHECK enum neb_status sec_hub_create(const char *home, const struct sec_hub_settings *s,
                                              const struct sec_public *self, const char *link);
// NEB_ERR_NOT_FOUND (not logged): home is not a hub.
NEB_MUST_CHECK enum neb_status sec_hub_open(const char *home, struct sec_hub **out);
void sec_hub_destroy(struct sec_hub **h);

// Makes an invitation. The caller wipes the token after use. NEB_ERR_INVALID: name or ttl_s is out
// of range. NEB_ERR_EXISTS: name is a member. NEB_ERR_LIMIT: SEC_INVITES_MAX invitations are open.
NEB_MUST_CHECK enum neb_status sec_hub_invite(struct sec_hub *h, const char *name,
                                              enum sec_role role, int64_t ttl_s,
                                              struct sec_token *out);
void sec_invite_verifier(const struct sec_token *t, uint8_t out[SEC_VERIFIER_BYTES]);

// The verifier of an invitation, open or ended. A sender learns its state only after it proves that
// it holds the token. NEB_ERR_NOT_FOUND (not logged): no such invitation.
NEB_MUST_CHECK enum neb_status sec_hub_verifier(struct sec_hub *h,
                                                const uint8_t id[SEC_INVITE_ID_BYTES],
                                                uint8_t out[SEC_VERIFIER_BYTES]);
// Uses an invitation. The caller has checked the proof. cert is replaced. why: gets the code and
// the seconds for the answer to a refused site. NEB_ERR_DENIED: expired, withdrawn, used by another
// request, or for another name. NEB_ERR_EXISTS: a key or the name belongs to a member.
NEB_MUST_CHECK enum neb_status sec_hub_admit(struct sec_hub *h,
                                             const uint8_t id[SEC_INVITE_ID_BYTES],
                                             const uint8_t *csr, size_t len, const char *endpoint,
                                             struct neb_buf *cert, struct sec_enrol_answer *why);
// Renews a member that has proved its signing key. With the same keys it gets a new certificate,
// with other keys (rotation) also a new list. NEB_ERR_DENIED: not on the list, or the request has
// another name. NEB_ERR_AGAIN: it had new keys within the hour (rotated.h); *wait: seconds to go,
// else 0.
NEB_MUST_CHECK enum neb_status sec_hub_renew(struct sec_hub *h, const char *name,
                                             const uint8_t *csr, size_t len, struct neb_buf *cert,
                                             uint32_t *wait);
// Removes a member, and ends open invitations of the name. *member false: the name was no member,
// but had an invitation. NEB_ERR_NOT_FOUND: neither existed. NEB_ERR_STATE: the name is the hub's.
NEB_MUST_CHECK enum neb_status sec_hub_revoke(struct sec_hub *h, const char *name, bool *member);
// Gives a member, or the hub, another address on the list; "": it dials others. The same address
// makes no new list. NEB_ERR_NOT_FOUND: no such member. NEB_ERR_INVALID: not HOST:PORT.
NEB_MUST_CHECK enum neb_status sec_hub_move(struct sec_hub *h, const char *name, const char *link);
// Takes the vote of `lost`, which must be one of exactly two voters and not the hub. NEB_ERR_STATE:
// it is not.
NEB_MUST_CHECK enum neb_status sec_hub_promote(struct sec_hub *h, const char *lost);

#endif
