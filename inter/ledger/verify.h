// SPDX-License-Identifier: Apache-2.0
// Checks everything that a ledger holds against everything else in it:
//
//     chain (first, next, hash of the last record)
//       └─ records, each with the SHA-256 of the previous one ── their signatures
//            └─ entries ── manifests (digest, size, tokens) ── their signatures ── blobs (SHA-256)
//     votes ── their signatures
//     of each round: how many manifests and which vote were stored
//     structure of the database
//
// A row that was altered, removed or added is found and named. No check inside one folder can find
// that the complete folder was put back to an earlier state, or that the newest records were cut
// off together with the chain's row. Compare `nebula ledger show` with other members for that.
// Messages and job texts have no digest and are not checked.
#ifndef INTER_LEDGER_VERIFY_H
#define INTER_LEDGER_VERIFY_H
#include "inter/ledger/ledger.h"
#include "inter/round/node.h"

enum inter_damage_kind {
    INTER_DAMAGE_DATABASE, // SQLite finds its file damaged; no place
    // a record is missing, extra, unreadable, or not the one that the next one names
    INTER_DAMAGE_CHAIN,
    INTER_DAMAGE_SIGNATURE,
    INTER_DAMAGE_MANIFEST, // missing, extra, unreadable, or not what the record lists
    INTER_DAMAGE_VOTE,
    INTER_DAMAGE_BLOB, // missing or other bytes
};
const char *inter_damage_name(enum inter_damage_kind k);

struct inter_damage {
    enum inter_damage_kind kind;
    bool placed; // job, fragment and round are known
    uint8_t job[INTER_ID_BYTES];
    uint32_t fragment, round;
    int member;       // -1: no particular one
    const char *text; // what is wrong
};

struct inter_ledger_check {
    void *user;
    // Checks that `member` of a job signed msg for this context: NEB_OK; NEB_ERR_DENIED: it did
    // not; NEB_ERR_NOT_FOUND: the job or the member is not known. NULL: signatures are not checked.
    enum neb_status (*verify)(void *user, const uint8_t job[INTER_ID_BYTES], uint8_t member,
                              const char *context, const void *msg, size_t len,
                              const uint8_t sig[INTER_SIG_BYTES]);
    void (*damage)(void *user, const struct inter_damage *d); // optional
    // Fills in what decides how many votes are enough (inter_job_quorum): `robust`, `masked`,
    // `colluders`; and `removed`: the members that lost their vote by a signed list (of two
    // members, the lost one). A record that a remaining member led needs only a quorum of the rest.
    // NULL: none of that.
    void (*about)(void *user, const uint8_t job[INTER_ID_BYTES], struct inter_job_config *out);
};

struct inter_ledger_counts {
    uint64_t fragments, records, manifests, votes, signatures, blobs, blob_bytes;
    uint64_t strays; // files that belong to no update: harmless, the next opening removes them
    uint64_t damages;
};

// NEB_OK: no damage. NEB_ERR_CORRUPT: c->damage was called for each damage. Other errors: the
// ledger could not be read to the end. Changes nothing; sees one moment of the ledger, even while
// an agent writes it.
NEB_MUST_CHECK enum neb_status inter_ledger_verify(struct inter_ledger *l,
                                                   const struct inter_ledger_check *c,
                                                   struct inter_ledger_counts *out);

#endif
