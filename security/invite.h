// SPDX-License-Identifier: Apache-2.0
// One invitation as the hub keeps it, in a file (hub.h).
#ifndef SEC_INVITE_H
#define SEC_INVITE_H
#include "security/hub.h"

struct sec_invite {
    uint8_t id[SEC_INVITE_ID_BYTES];
    char name[SEC_NAME_MAX];
    enum sec_role role;
    int64_t expires; // seconds since 1970
    uint8_t sealed[SEC_VERIFIER_BYTES + SEC_SEAL_EXTRA];
    bool withdrawn;                // by nebula revoke of its name
    bool used;                     // then the four fields below are valid
    uint8_t csr[NEB_SHA256_BYTES]; // digest of the request that used it
    bool listed;                   // the new member is on the list
    uint8_t cert[SEC_CERT_MAX];
    size_t cert_len;
};

// dir: HOME/ca. NEB_ERR_NOT_FOUND is not logged.
NEB_MUST_CHECK enum neb_status
sec_invite_load(const char *dir, const uint8_t id[SEC_INVITE_ID_BYTES], struct sec_invite *out);
NEB_MUST_CHECK enum neb_status sec_invite_store(const char *dir, const struct sec_invite *v);
struct sec_invites_swept {
    unsigned left, ended; // left: stay open. ended: open ones of the name, now withdrawn
    unsigned kept;        // ended ones that stay, so that the hub can give the reason
};

// Withdraws all invitations of a name (NULL: none), and removes damaged ones. Ended ones stay for
// SEC_INVITE_KEPT seconds, at most SEC_INVITES_MAX of them, so that a holder of the token gets the
// reason. A file that cannot be read now ends the sweep, and stays.
NEB_MUST_CHECK enum neb_status sec_invites_sweep(const char *dir, int64_t now, const char *name,
                                                 struct sec_invites_swept *out);

// ---- when members last had new keys -------------------------------------------------------------
//
// The file HOME/ca/rotated.json of the hub holds when each member last got new keys. Each rotation
// makes a version of the list, and a list carries only the last 255. A member that rotated without
// end would use them up, and a site that was away could take no newer list.
//
//     {"format": 1, "rotated": {"rome": 1764144000}}      seconds since 1970; of the last hour
//
// Threads: one user at a time, which holds the hub's lock.

enum { SEC_ROTATE_EVERY = 3600 }; // seconds

// *wait: seconds until the member may have new keys again; 0: now. NEB_ERR_FORMAT: the file is
// damaged.
NEB_MUST_CHECK enum neb_status sec_rotated_wait(const char *dir, const char *name, int64_t now,
                                                uint32_t *wait);
NEB_MUST_CHECK enum neb_status sec_rotated_note(const char *dir, const char *name, int64_t now);

#endif
