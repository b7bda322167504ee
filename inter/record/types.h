// SPDX-License-Identifier: Apache-2.0
// What members send about updates: manifests, votes, promises and commit records, and their bytes.
//
// An update's key is (job, round, fragment, member, attempt). A member is its index in the job's
// member list. All structs are plain data. They are written and read field by field, little-endian.
// The get functions accept hostile bytes.
#ifndef INTER_TYPES_H
#define INTER_TYPES_H
#include "agent/base/member_set.h"

enum {
    INTER_FRAGMENTS_MAX = 64, // a set of fragments is 64 bits
    INTER_ID_BYTES = 32,      // of a job: a digest of its text and submitter (agent/job/id.h)
    INTER_SHA_BYTES = 32,
    INTER_SIG_BYTES = 64,
    INTER_CHUNK_MIN = 16 << 10,
    INTER_CHUNK_MAX = 1 << 20,
    INTER_RECORD_VERSION = 2,
    INTER_CHUNKS_MAX = 1 << 16, // of one blob: its bitmap fits a control message
};

// Largest update in bytes: just below 4 GiB, so that its size still fits 32 bits when it is rounded
// up to whole chunks. A job whose fragments can be larger is refused before it trains
// (agent/plan/plan.h).
#define INTER_BLOB_MAX 0xfff00000u

#define INTER_TOKENS_MAX (1ull << 56) // exclusive limit of the tokens behind one update
#define INTER_OTHERS_MAX (1ull << 60) // sums of tokens saturate here

// The quorum among `voters` members, at most `lying` of them Byzantine: any two quorums share an
// honest voter. It applies to accepts and to promises.
static inline uint8_t inter_quorum(uint8_t voters, uint8_t lying) {
    return (uint8_t)((voters + lying) / 2 + 1);
}

// Limits of terms (inter/round/node.h). A term never decreases. No message, record or ledger holds
// a term above INTER_TERM_MAX, so that adding a number of members cannot wrap.
//
// A Byzantine member could use up all terms at once. So no node takes part in a term above
// inter_term_last(time of day): four terms a second since 2025, which last until 2059, plus
// INTER_TERMS_AHEAD for a wrong clock. Honest members use at most four terms a second, because each
// asks after four silent seconds for one of the next n. All members have the same limit, apart from
// their clocks, so they can follow one honest member into any term.
#define INTER_TERM_MAX (UINT32_MAX - 255)
enum { INTER_TERMS_A_SECOND = 4, INTER_TERMS_AHEAD = 1 << 16 };
uint32_t inter_term_last(uint64_t day); // day: time of day in ns since 1970

struct inter_key {
    uint8_t job[INTER_ID_BYTES];
    uint32_t round, fragment;
    uint8_t member;
    uint32_t attempt;
};
bool inter_key_equal(const struct inter_key *a, const struct inter_key *b);

// Attempts tell the updates of one member in one round apart. The first attempt of a ledger follows
// from the ledger's epoch, which is the time of day in ns when the ledger first opened the job:
// four attempts a second since 2025, until 2059. An update is replaced by a newer one at most
// INTER_RETRIES_MAX times. So a lost ledger and its successor never use the same attempts, unless
// both opened the job within one second. The lost ledger has the smaller attempts. An attempt is
// never 0; in a WANT, 0 means any attempt.
enum { INTER_RETRIES_MAX = 3 };
uint32_t inter_attempt_first(uint64_t epoch);
// The highest epoch that other members can make a node adopt (the end of 2054). Beyond it attempts
// would run out.
#define INTER_EPOCH_MAX 2682374400000000000ull
// Attempts of one update that a node takes in a round. A member whose disk was lost three times
// sends as many.
enum { INTER_ATTEMPTS_MAX = 4 * (INTER_RETRIES_MAX + 1) };

// Manifest flag: the member has made all its steps; no update follows this one.
enum { INTER_FINAL = 1 };

// What a member has measured, for the next plans (inter/record/tune.h). 0: not known.
struct inter_measure {
    uint32_t goodput_kbps; // to the slowest member that takes its updates
    uint32_t rtt_us, step_us;
    float error;   // relative error of the update's codec
    uint8_t codec; // of the update: a codec level (compress/codec.h)
    bool full;     // the goodput is what the path can carry, not only what was sent
};

// A member's signed description of one of its updates.
struct inter_manifest {
    struct inter_key key;
    uint8_t sha256[INTER_SHA_BYTES]; // of the blob
    uint32_t bytes, chunk_bytes;
    uint64_t tokens;        // trained on since the member's last committed update
    uint64_t step;          // inner steps that the member has made in all: its data cursor
    uint32_t steps, missed; // inner steps in the update; intervals missed before it
    uint8_t flags;
    // digest of (θ, v) of the fragment after its previous commit, as this member computed it
    uint64_t digest[2];
    struct inter_measure measure;
    uint8_t sig[INTER_SIG_BYTES];
};

enum inter_verdict {
    INTER_ACCEPTED,
    INTER_REJECTED, // by the gate: it has no effect, and its member drops it and restarts from θ
};

struct inter_entry { // one update of a record
    uint8_t member, flags, verdict;
    uint32_t attempt, bytes;
    uint8_t sha256[INTER_SHA_BYTES];
    uint64_t tokens;
    // weight of the update (inter/record/weights.h): its tokens, or less after a longer absence
    uint64_t weight;
    // digest of (θ, v) before this round, as the member computed it; other digest: diverged
    uint64_t digest[2];
    float clip; // factor of the gate; 1: unchanged
};

struct inter_absence { // how long a member has been absent, after a record
    uint32_t base;     // round after its newest update in a record; 0: none yet
    uint64_t others;   // tokens of all other members committed since then
};

enum { INTER_STEPS_CYCLE = 64, INTER_LEFT_OUT_MAX = 56 };

struct inter_plan { // what a member does in round + 2
    uint32_t interval, overlap;
    uint8_t codec, reason; // codec level, enum inter_reason
    // steps left out of every INTER_STEPS_CYCLE: a slow member makes fewer in the same interval
    uint8_t left_out;
};

struct inter_accept { // a voter's signed vote: the record is on its disk
    uint8_t member;
    uint64_t epoch; // of the voter's ledger: votes of a lost disk no longer count
    uint8_t sig[INTER_SIG_BYTES];
};

// A voter's signed promise to the candidate of a term, for one fragment: it accepts nothing below
// that term any more. The promise also reports what the voter has accepted so far. Job and fragment
// are those of the record that holds the promise.
struct inter_promise {
    uint8_t member;
    uint32_t term;
    uint64_t epoch; // of the voter's ledger
    uint32_t round; // open at the voter
    bool voted;     // in that round, for the value vote_hash, at vote_term
    uint32_t vote_term;
    uint8_t vote_hash[INTER_SHA_BYTES];
    uint8_t sig[INTER_SIG_BYTES];
};

// Of one record: enough for five terms of nine voters. Older promises are left out.
enum { INTER_PROMISES_MAX = 48 };

enum { INTER_MERGE = 1 }; // record flag: merge round (η 1, μ 0, v 0)

// A commit record. Without accepts it is a proposal. With the accepts of a majority it proves
// itself to anyone who has the keys. Its value is everything except term, leader, signature,
// accepts and promises: a new leader proposes the same value in its own term.
//
// A proposal holds its leader's own accept, so two proposals of one term are evidence against the
// leader (inter/record/evidence.h). A proposal of a term above 0 also holds the promises of a
// majority, which show that the leader was free to propose this value. If these promises report a
// vote for the value in an earlier term, the promises of that term follow, and so on, down to a
// term whose leader was free.
struct inter_record {
    uint8_t job[INTER_ID_BYTES];
    uint32_t round, fragment, term;
    uint8_t leader, flags;
    float eta, mu;
    // hash of the value of the fragment's previous record: a chain
    uint8_t previous[INTER_SHA_BYTES];
    uint8_t n;
    struct inter_entry entries[NEB_MEMBERS_MAX]; // by member, ascending
    uint8_t n_plans;                             // members of the job
    struct inter_plan plans[NEB_MEMBERS_MAX];
    // (n_plans) inner steps of each member in the commits up to this one
    uint64_t cursors[NEB_MEMBERS_MAX];
    struct inter_absence absences[NEB_MEMBERS_MAX]; // (n_plans)
    uint8_t sig[INTER_SIG_BYTES];                   // of the leader
    uint8_t n_accepts;
    struct inter_accept accepts[NEB_MEMBERS_MAX]; // by member, ascending
    uint8_t n_promises;
    // by term, descending; within a term by member, ascending
    struct inter_promise promises[INTER_PROMISES_MAX];
};

// What a node must keep of a job across any crash, besides its votes.
struct inter_standing {
    uint8_t job[INTER_ID_BYTES];
    uint32_t term;                    // highest promised: the node accepts nothing below it
    bool joined;                      // the node may vote: its disk holds all that it ever promised
    uint64_t epoch;                   // of its own ledger
    struct member_set renewed;        // came back with an empty disk and do not vote yet
    uint64_t epochs[NEB_MEMBERS_MAX]; // of the members' ledgers; 0: never heard
};

// put_body appends what is signed; put appends all of it, the signature too.
void inter_manifest_put_body(struct neb_buf *out, const struct inter_manifest *m);
void inter_manifest_put(struct neb_buf *out, const struct inter_manifest *m);
// A codec level, whose number cmp_level_number puts. False: no level has it.
bool inter_level_get(struct neb_rd *r, uint8_t *level);
// False: malformed.
NEB_MUST_CHECK bool inter_manifest_get(struct neb_rd *r, struct inter_manifest *m);
// put_body appends what the leader signs; put appends all of it, with accepts and promises. get is
// false if the bytes are malformed.
void inter_record_put_body(struct neb_buf *out, const struct inter_record *r);
void inter_record_put(struct neb_buf *out, const struct inter_record *r);
NEB_MUST_CHECK bool inter_record_get(struct neb_rd *r, struct inter_record *rec);
// Appends the record's value.
void inter_record_put_value(struct neb_buf *out, const struct inter_record *r);
// SHA-256 of the record's value. It names the record in votes and in the chain.
void inter_record_hash(const struct inter_record *r, uint8_t out[INTER_SHA_BYTES]);
// What a voter signs when it accepts, at r's term, the value `hash` for r's round and fragment.
void inter_accept_put_body(struct neb_buf *out, const struct inter_record *r,
                           const uint8_t hash[INTER_SHA_BYTES], uint64_t epoch);
// What a voter signs when it promises.
void inter_promise_put_body(struct neb_buf *out, const uint8_t job[INTER_ID_BYTES],
                            uint32_t fragment, const struct inter_promise *p);
// Bytes on the node's own disk, checked all the same. get is false if they are malformed.
void inter_standing_put(struct neb_buf *out, const struct inter_standing *s);
NEB_MUST_CHECK bool inter_standing_get(struct neb_rd *r, struct inter_standing *s);

// 45 bytes. A key that is cut short sets r->bad.
void inter_key_put(struct neb_buf *out, const struct inter_key *k);
void inter_key_get(struct neb_rd *r, struct inter_key *k);
struct inter_key inter_entry_key(const struct inter_record *r, uint8_t i); // of its i-th entry

static inline uint32_t inter_chunks(uint32_t bytes, uint32_t chunk_bytes) {
    return (bytes + chunk_bytes - 1) / chunk_bytes;
}

#endif
