// SPDX-License-Identifier: Apache-2.0
// What a member keeps about its federation, in HOME/federation/:
//
//     ca.pem        the CA's certificate; whoever it signs for is believed
//     member.pem    this member's certificate
//     members.neb   the newest signed member list (memberlist.h)
//     hub           where the hub's enrolment endpoint was last reached
//     former.json   signing keys of who is on it no more (former.h)
//     forked        forks of the list that were proven here (forks.h)
//     seen          highest version that was ever in use here, and its digest
//
// A list takes effect only once both files hold it: first the list, then `seen`, each fsynced. After
// a crash between the two the list on disk is newer than `seen` and is taken.
//
//     version < seen                        a roll-back: NEB_ERR_DENIED
//     version = seen, same digest           nothing new: NEB_OK
//     version = seen, another digest        a fork: NEB_ERR_CORRUPT, names both digests
//     version < seen, not of our history    a fork as well: ours does not follow from it
//     version > seen, ours in its history   taken
//     version > seen, not in its history    a fork: NEB_ERR_CORRUPT
//     its history does not reach to ours    NEB_ERR_CORRUPT: more than SEC_MEMBERLIST_HISTORY versions
//                                           were missed, or somebody made it so that nobody can tell
//
//     any of these, of a branch that was    NEB_ERR_DENIED, said once: whoever started this agent has
//     known for forked at the start         seen the fork
//
// Nothing that is refused as NEB_ERR_CORRUPT heals by a later version: an operator has to say which
// list is right, by copying members.neb and seen from a member that has it while the agent is down.
// The branch that is in use when the agent starts again is the right one; the other proves nothing
// new, neither by an old list nor by one that its hub signs later.
//
// Who can write to this folder can roll back both files; that is outside what this protects.
// Threads: one user at a time.
#ifndef SEC_FEDERATION_H
#define SEC_FEDERATION_H
#include "security/cert.h"
#include "security/forks.h"
#include "security/memberlist.h"

struct sec_federation {
    char *dir; // HOME/federation
    char name[SEC_NAME_MAX];
    uint8_t ca_key[SEC_KEY_BYTES], pin[SEC_PIN_BYTES];
    struct neb_buf ca;          // DER
    struct neb_buf signed_list; // bytes of `list`; empty before the first
    struct sec_memberlist list; // version 0 before the first
    uint8_t digest[NEB_SHA256_BYTES];
    struct sec_forks forks; // known when this was opened
    bool settled;           // the list that was looked at last is of one of these
    bool said_settled;
    bool hush, hush_forks; // the caller counts lists that are refused, or prove a fork: not logged
};

// NEB_ERR_NOT_FOUND (not logged): this home is in no federation. Otherwise the list on disk is
// checked against `seen` as above.
NEB_MUST_CHECK enum neb_status sec_federation_open(const char *home, struct sec_federation **out);
// Makes the folder around a CA's certificate. NEB_ERR_EXISTS: it is in another federation already.
NEB_MUST_CHECK enum neb_status sec_federation_create(const char *home, const uint8_t *ca,
                                                     size_t ca_len, struct sec_federation **out);
void sec_federation_destroy(struct sec_federation **f);

// Takes signed bytes by the rules above. changed (may be NULL): it was a newer list.
NEB_MUST_CHECK enum neb_status sec_federation_apply(struct sec_federation *f, const uint8_t *p,
                                                    size_t len, bool *changed);
// Looks at the file again.
NEB_MUST_CHECK enum neb_status sec_federation_reload(struct sec_federation *f, bool *changed);

// "HOST:PORT" of the hub, kept for renewals. NEB_ERR_NOT_FOUND (not logged): none was stored.
NEB_MUST_CHECK enum neb_status sec_federation_set_hub(struct sec_federation *f, const char *hub);
NEB_MUST_CHECK enum neb_status sec_federation_hub(const struct sec_federation *f,
                                                  char out[SEC_ENDPOINT_MAX]);

// This member's certificate; it is verified before it is stored.
NEB_MUST_CHECK enum neb_status sec_federation_set_cert(struct sec_federation *f, const uint8_t *p,
                                                       size_t len);
// NEB_ERR_NOT_FOUND (not logged): none yet.
NEB_MUST_CHECK enum neb_status sec_federation_cert(const struct sec_federation *f,
                                                   struct sec_cert *out);

#endif
