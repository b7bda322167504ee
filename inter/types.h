// What members tell each other about updates: manifests, commit records, and their bytes.
//
// Update key = (federation, job, round, fragment, member, attempt). A member is its index in the job's member list.
// All structs are plain data, written and read field by field; parsers take hostile bytes.
#ifndef INTER_TYPES_H
#define INTER_TYPES_H
#include "agent/base/bytes.h"

enum {
    INTER_MEMBERS_MAX = 16,
    INTER_FRAGMENTS_MAX = 64,
    INTER_ID_BYTES = 16,
    INTER_SHA_BYTES = 32,
    INTER_SIG_BYTES = 64,
    INTER_BLOB_MAX = 1 << 30, // bytes of one update
    INTER_CHUNK_MIN = 16 << 10,
    INTER_CHUNK_MAX = 1 << 20,
    INTER_CHUNKS_MAX = 1 << 16, // of one blob: its bitmap fits a control message
};

struct inter_key {
    uint8_t job[INTER_ID_BYTES];
    uint32_t round, fragment;
    uint8_t member;
    uint32_t attempt;
};
bool inter_key_equal(const struct inter_key *a, const struct inter_key *b);

enum {
    INTER_FINAL = 1
}; // manifest flag: nothing follows this update; the member has made all its steps

// What a member says about one of its updates; signed by it.
struct inter_manifest {
    struct inter_key key;
    uint8_t sha256[INTER_SHA_BYTES]; // of the blob
    uint32_t bytes, chunk_bytes;
    uint64_t tokens;        // behind it since the member's last committed update
    uint32_t steps, missed; // inner steps behind it; intervals missed before it
    uint8_t flags;
    uint64_t
        digest[2]; // (θ, v) of the fragment after its previous commit, as this member computed it
    uint8_t sig[INTER_SIG_BYTES];
};

struct inter_entry { // one committed update
    uint8_t member, flags;
    uint32_t attempt, bytes;
    uint8_t sha256[INTER_SHA_BYTES];
    uint64_t tokens;
    float clip; // the gate's factor, 1: as sent
};

enum { INTER_MERGE = 1 }; // record flag: merge round (η 1, μ 0, v 0)

// A commit record: a proposal of the leader until a majority of the voters has it on disk.
struct inter_record {
    uint8_t job[INTER_ID_BYTES];
    uint32_t round, fragment, term;
    uint8_t leader, flags;
    float eta, mu;
    uint8_t previous[INTER_SHA_BYTES]; // SHA-256 of the fragment's record before: a chain
    uint8_t n;
    struct inter_entry entries[INTER_MEMBERS_MAX]; // by member, ascending
    uint32_t plan_interval, plan_overlap;          // for round + 2
    uint8_t sig[INTER_SIG_BYTES];                  // of the leader
};

// What is signed (without the signature), and the whole.
void inter_manifest_put_body(struct neb_buf *out, const struct inter_manifest *m);
void inter_manifest_put(struct neb_buf *out, const struct inter_manifest *m);
NEB_MUST_CHECK bool inter_manifest_get(struct neb_rd *r,
                                       struct inter_manifest *m); // false: malformed
void inter_record_put_body(struct neb_buf *out, const struct inter_record *r);
void inter_record_put(struct neb_buf *out, const struct inter_record *r);
NEB_MUST_CHECK bool inter_record_get(struct neb_rd *r, struct inter_record *rec);
// SHA-256 of the record's body: its name in votes and in the chain.
void inter_record_hash(const struct inter_record *r, uint8_t out[INTER_SHA_BYTES]);

void inter_key_put(struct neb_buf *out, const struct inter_key *k);
void inter_key_get(struct neb_rd *r, struct inter_key *k);

static inline uint32_t inter_chunks(uint32_t bytes, uint32_t chunk_bytes) {
    return (bytes + chunk_bytes - 1) / chunk_bytes;
}

#endif
