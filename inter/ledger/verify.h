// SPDX-License-Identifier: Apache-2.0
// Checks everything a ledger says against everything else it says:
//
//     chain (first, next, hash of the last record) ── records, each naming the SHA-256 of the one before ── their signatures
//       └─ entries of a record ── manifests (digest, size, tokens) ── their signatures ── blobs (SHA-256)
//     votes ── their signatures; per round, how many manifests and which vote were stored; the database's own structure
//
// A row that was altered, removed or put in is found and named. What no check inside one folder can find: the whole folder
// put back to an earlier state, or the newest records cut off together with the chain's row; compare `nebula ledger show`
// with the other members' for that. Messages and job texts have no digest and are not checked.
#ifndef INTER_LEDGER_VERIFY_H
#define INTER_LEDGER_VERIFY_H
#include "inter/ledger/ledger.h"
#include "inter/round/node.h"

enum inter_damage_kind {
    INTER_DAMAGE_DATABASE, // SQLite finds its file damaged; no place
    INTER_DAMAGE_CHAIN, // a record is missing, too many, unreadable, or not the one that the next one names
    INTER_DAMAGE_SIGNATURE,
    INTER_DAMAGE_MANIFEST, // missing, too many, unreadable, or not what the record lists
    INTER_DAMAGE_VOTE,
    INTER_DAMAGE_BLOB, // missing or other bytes
};
const char *inter_damage_name(enum inter_damage_kind k);

struct inter_damage {
    enum inter_damage_kind kind;
    bool placed; // job, fragment and round are known
    uint8_t job[INTER_ID_BYTES];
    uint32_t fragment, round;
    int member;       // -1: none in particular
    const char *text; // what is wrong
};

struct inter_ledger_check {
    void *user;
    // Whether `member` of a job signed msg for this context: NEB_OK, NEB_ERR_DENIED: no; NEB_ERR_NOT_FOUND: the job or its
    // member is not known. NULL: signatures are not checked.
    enum neb_status (*verify)(void *user, const uint8_t job[INTER_ID_BYTES], uint8_t member,
                              const char *context, const void *msg, size_t len,
                              const uint8_t sig[INTER_SIG_BYTES]);
    void (*damage)(void *user, const struct inter_damage *d); // optional
    // What decides how many votes are enough (inter_job_quorum): `robust`, `masked`, `colluders`;
    // and `removed`, whose vote a signed list took (of two, the one given up): the rest is enough
    // where one of them led. NULL: nothing of that.
    void (*about)(void *user, const uint8_t job[INTER_ID_BYTES], struct inter_job_config *out);
};

struct inter_ledger_counts {
    uint64_t fragments, records, manifests, votes, signatures, blobs, blob_bytes;
    uint64_t strays; // files that belong to no update: harmless, gone with the next opening
    uint64_t damages;
};

// NEB_OK: all is well. NEB_ERR_CORRUPT: c->damage was called for each damage. Other errors: could not be read to the end.
// Changes nothing; sees one moment of the ledger, also while an agent goes on writing it.
NEB_MUST_CHECK enum neb_status inter_ledger_verify(struct inter_ledger *l,
                                                   const struct inter_ledger_check *c,
                                                   struct inter_ledger_counts *out);

#endif
