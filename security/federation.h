// SPDX-License-Identifier: Apache-2.0
// What a member keeps about its federation, in HOME/federation/:
//
//     ca.pem        the CA's certificate; what this CA signs is trusted
//     member.pem    this member's certificate
//     members.neb   the newest signed member list (memberlist.h)
//     hub           the last known address of the hub's enrolment endpoint
//     former.json   signing keys that the list no longer has (former.h)
//     forked        forks of the list that were proven here (forks.h)
//     seen          the highest version that was ever in use here, and its digest
//
// A list takes effect once it is in both files: first in members.neb, then in `seen`, each fsynced.
// After a crash in between, the list on disk is newer than `seen` and is accepted.
//
//     version < seen                          a roll-back: NEB_ERR_DENIED
//     version = seen, same digest             nothing new: NEB_OK
//     version = seen, another digest          a fork: NEB_ERR_CORRUPT, names both digests
//     version < seen, not in our history      a fork too: our list does not follow from it
//     version > seen, ours in its history     accepted
//     version > seen, ours not in it          a fork: NEB_ERR_CORRUPT
//     its history does not reach to ours      NEB_ERR_CORRUPT: more than SEC_MEMBERLIST_HISTORY
//                                             versions were missed, or somebody hides a fork
//
//     any of these, on a branch that was      NEB_ERR_DENIED, logged once: the operator has seen
//     known as forked at the start            that fork
//
// No later version repairs what NEB_ERR_CORRUPT refuses. An operator decides which list is right,
// by copying members.neb and seen from a member that has it while the agent is stopped. The branch
// in use when the agent starts again is the right one. The other branch then proves nothing new, by
// an old list or by one that its hub signs later.
//
// Whoever can write to this folder can roll back both files; nothing here protects from that.
//
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
    bool settled;           // the last list that was offered is on one of their other branches
    bool said_settled;
    bool hush, hush_forks; // set by the caller: log no refused lists, no proofs of a fork
};

// NEB_ERR_NOT_FOUND (not logged): home is in no federation. Otherwise the list on disk is checked
// against `seen`, as above.
NEB_MUST_CHECK enum neb_status sec_federation_open(const char *home, struct sec_federation **out);
// Makes the folder with a CA's certificate. NEB_ERR_EXISTS: it belongs to another federation.
NEB_MUST_CHECK enum neb_status sec_federation_create(const char *home, const uint8_t *ca,
                                                     size_t ca_len, struct sec_federation **out);
void sec_federation_destroy(struct sec_federation **f);

// Applies signed bytes by the rules above. changed (may be NULL): the list was newer.
NEB_MUST_CHECK enum neb_status sec_federation_apply(struct sec_federation *f, const uint8_t *p,
                                                    size_t len, bool *changed);
// Reads the file again.
NEB_MUST_CHECK enum neb_status sec_federation_reload(struct sec_federation *f, bool *changed);

// Address of the hub, "HOST:PORT", for renewals. NEB_ERR_NOT_FOUND (not logged): none was stored.
NEB_MUST_CHECK enum neb_status sec_federation_set_hub(struct sec_federation *f, const char *hub);
NEB_MUST_CHECK enum neb_status sec_federation_hub(const struct sec_federation *f,
                                                  char out[SEC_ENDPOINT_MAX]);

// Verifies this member's certificate, then stores it. p: DER.
NEB_MUST_CHECK enum neb_status sec_federation_set_cert(struct sec_federation *f, const uint8_t *p,
                                                       size_t len);
// NEB_ERR_NOT_FOUND (not logged): there is none yet.
NEB_MUST_CHECK enum neb_status sec_federation_cert(const struct sec_federation *f,
                                                   struct sec_cert *out);

#endif
