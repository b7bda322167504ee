// SPDX-License-Identifier: Apache-2.0
// What members tell each other about updates: manifests, commit records, and their bytes.
//
// Update key = (federation, job, round, fragment, member, attempt). A member is its index in the job's member list.
// All structs are plain data, written and read field by field; parsers take hostile bytes.
#ifndef INTER_TYPES_H
#define INTER_TYPES_H
#include "agent/base/bytes.h"

enum {
    INTER_MEMBERS_MAX = 16,
    INTER_FRAGMENTS_MAX = 64, // sets of them are 64 bits
    INTER_ID_BYTES = 32,      // of a job: the whole digest of what it is (agent/job/id.h)
    INTER_SHA_BYTES = 32,
    INTER_SIG_BYTES = 64,
    INTER_CHUNK_MIN = 16 << 10,
    INTER_CHUNK_MAX = 1 << 20,
    INTER_RECORD_VERSION = 2,   // 2: weights and absences
    INTER_CHUNKS_MAX = 1 << 16, // of one blob: its bitmap fits a control message
};

// Bytes of one update: just below 4 GiB, so that it fits a u32 when rounded up to chunks, and in 65,536 of them. A job whose fragments
// can come to more is refused before it trains (agent/plan/plan.h).
#define INTER_BLOB_MAX 0xfff00000u

#define INTER_TOKENS_MAX (1ull << 56) // behind one update, exclusive
#define INTER_OTHERS_MAX (1ull << 60) // sums of them stop here

// Votes that decide, of so many voters: any two such sets share a voter that is not one of the
// `lying`. It counts accepts, and promises too.
static inline uint8_t inter_quorum(uint8_t voters, uint8_t lying) {
    return (uint8_t)((voters + lying) / 2 + 1);
}

// Terms (inter/round/node.h) only rise, and none is above INTER_TERM_MAX, in no message, record or ledger: whoever adds members to one does
// not wrap. A equivocator could use them up at once; so nobody takes part in a term beyond the last one of its time of day: four a second
// since 2025, until 2059, and INTER_TERMS_AHEAD for a clock that is wrong. Members fill at most four a second: each asks after
// four silent seconds, for one of the next n. All members have the same bound, but for their clocks: to whatever term one honest member
// was brought, the others follow it.
#define INTER_TERM_MAX (UINT32_MAX - 255)
enum { INTER_TERMS_A_SECOND = 4, INTER_TERMS_AHEAD = 1 << 16 };
uint32_t inter_term_last(uint64_t day); // day: ns since 1970

struct inter_key {
    uint8_t job[INTER_ID_BYTES];
    uint32_t round, fragment;
    uint8_t member;
    uint32_t attempt;
};
bool inter_key_equal(const struct inter_key *a, const struct inter_key *b);

// Attempts. The first of a ledger follows from its epoch (time of day in ns when it first opened the job): four a second since 2025,
// until 2059; a round's update is taken back for a newer one three times at most. So those of a ledger that was lost and of the next
// one never meet, unless both opened the job within one second; a life that has submitted is older. Never 0, which means any in a WANT.
enum { INTER_RETRIES_MAX = 3 };
uint32_t inter_attempt_first(uint64_t epoch);
// The last epoch that a member lets others say it had (the end of 2054): attempts would end.
#define INTER_EPOCH_MAX 2682374400000000000ull
// More attempts of one update are not taken in a round: a member whose disk was lost three times has sent as many.
enum { INTER_ATTEMPTS_MAX = 4 * (INTER_RETRIES_MAX + 1) };

// manifest flag: nothing follows this update; the member has made all its steps
enum { INTER_FINAL = 1 };

// What a member has measured, for the plans to come (inter/record/tune.h). Zeros: not known.
struct inter_measure {
    uint32_t goodput_kbps; // to the slowest member that takes its updates
    uint32_t rtt_us, step_us;
    float error;   // relative, of the update's codec
    uint8_t codec; // of the update: enum inter_codec_level
    bool full;     // the goodput is what the path can do, not only what was asked of it
};

// What a member says about one of its updates; signed by it.
struct inter_manifest {
    struct inter_key key;
    uint8_t sha256[INTER_SHA_BYTES]; // of the blob
    uint32_t bytes, chunk_bytes;
    uint64_t tokens;        // behind it since the member's last committed update
    uint64_t step;          // inner steps that the member had made in all: its data cursor
    uint32_t steps, missed; // inner steps behind it; intervals missed before it
    uint8_t flags;
    // (θ, v) of the fragment after its previous commit, as this member computed it
    uint64_t digest[2];
    struct inter_measure measure;
    uint8_t sig[INTER_SIG_BYTES];
};

enum inter_verdict {
    INTER_ACCEPTED,
    INTER_REJECTED, // by the gate: counts nothing; its member drops it and starts again from θ
};

struct inter_entry { // one committed update
    uint8_t member, flags, verdict;
    uint32_t attempt, bytes;
    uint8_t sha256[INTER_SHA_BYTES];
    uint64_t tokens;
    // by which it counts (inter/record/weights.h): its tokens, but for one that was away longer than others
    uint64_t weight;
    // (θ, v) before this round, as the member computed it: who differs has diverged
    uint64_t digest[2];
    float clip; // the gate's factor, 1: as sent
};

struct inter_absence { // of a member, after a record
    uint32_t base;     // round after its newest update in a record; 0: none yet
    uint64_t others;   // tokens of all others committed since then
};

enum { INTER_STEPS_CYCLE = 64, INTER_LEFT_OUT_MAX = 56 };

struct inter_plan { // what a member does in round + 2
    uint32_t interval, overlap;
    uint8_t codec, reason; // enum inter_codec_level, enum inter_reason
    // of every INTER_STEPS_CYCLE inner steps: a slow member makes fewer in the same interval
    uint8_t left_out;
};

struct inter_accept { // a voter's signed word that a record is on its disk
    uint8_t member;
    uint64_t epoch; // of the voter's ledger: a vote of a disk that was lost counts no more
    uint8_t sig[INTER_SIG_BYTES];
};

// A voter's signed word to whoever asks for a term: it accepts nothing below that term any more, and this is what it has accepted of a
// fragment so far. Job and fragment are those of the record that it is part of.
struct inter_promise {
    uint8_t member;
    uint32_t term;
    uint64_t epoch; // of the voter's ledger
    uint32_t round; // open there
    bool voted;     // in that round: for the value `vote_hash`, at vote_term
    uint32_t vote_term;
    uint8_t vote_hash[INTER_SHA_BYTES];
    uint8_t sig[INTER_SIG_BYTES];
};

// Of a record: five terms of nine of sixteen members, more of fewer. What is older is left out.
enum { INTER_PROMISES_MAX = 48 };

enum { INTER_MERGE = 1 }; // record flag: merge round (η 1, μ 0, v 0)

// A commit record. Without accepts it is a proposal; with those of a majority it proves itself to whoever knows the keys.
// Its value is all but term, leader, signature, accepts and promises: a new leader proposes the same value in its own term. A
// proposal carries its leader's own accept, so that two of one term are proof against it (inter/record/evidence.h); one of a term above 0
// also the promises of a majority, which show that its leader was free to propose this value. Where they tell of a vote for it in an
// earlier term, those of that term follow, and so on, down to one that was free.
struct inter_record {
    uint8_t job[INTER_ID_BYTES];
    uint32_t round, fragment, term;
    uint8_t leader, flags;
    float eta, mu;
    uint8_t previous[INTER_SHA_BYTES]; // hash of the value of the fragment's record before: a chain
    uint8_t n;
    struct inter_entry entries[INTER_MEMBERS_MAX]; // by member, ascending
    uint8_t n_plans;                               // members of the job
    struct inter_plan plans[INTER_MEMBERS_MAX];
    // inner steps of each member that the commits up to this one hold (n_plans)
    uint64_t cursors[INTER_MEMBERS_MAX];
    struct inter_absence absences[INTER_MEMBERS_MAX]; // (n_plans)
    uint8_t sig[INTER_SIG_BYTES];                     // of the leader
    uint8_t n_accepts;
    struct inter_accept accepts[INTER_MEMBERS_MAX]; // by member, ascending
    uint8_t n_promises;
    struct inter_promise promises[INTER_PROMISES_MAX]; // by term, descending; of a term by member
};

// What a node must remember of a job besides votes, across any crash.
struct inter_standing {
    uint8_t job[INTER_ID_BYTES];
    uint32_t term;    // highest promised: nothing is accepted below it
    bool joined;      // it may vote: its disk holds all it ever promised
    uint64_t epoch;   // of its own ledger
    uint16_t renewed; // bit per member: has come back with an empty disk and does not vote yet
    uint64_t epochs[INTER_MEMBERS_MAX]; // of the members' ledgers, 0: never heard
};

// What is signed (without the signature), and the whole.
void inter_manifest_put_body(struct neb_buf *out, const struct inter_manifest *m);
void inter_manifest_put(struct neb_buf *out, const struct inter_manifest *m);
// false: malformed
NEB_MUST_CHECK bool inter_manifest_get(struct neb_rd *r, struct inter_manifest *m);
// What the leader signs; and all of it, accepts and signatures too. get: false when malformed.
void inter_record_put_body(struct neb_buf *out, const struct inter_record *r);
void inter_record_put(struct neb_buf *out, const struct inter_record *r);
NEB_MUST_CHECK bool inter_record_get(struct neb_rd *r, struct inter_record *rec);
// SHA-256 of the record's value: its name in votes and in the chain.
void inter_record_hash(const struct inter_record *r, uint8_t out[INTER_SHA_BYTES]);
// What a voter signs when it accepts the record `hash` of the round in `r` at r's term.
void inter_accept_put_body(struct neb_buf *out, const struct inter_record *r,
                           const uint8_t hash[INTER_SHA_BYTES], uint64_t epoch);
// What a voter signs when it promises.
void inter_promise_put_body(struct neb_buf *out, const uint8_t job[INTER_ID_BYTES],
                            uint32_t fragment, const struct inter_promise *p);
// On the node's own disk (little-endian, checked all the same); false: malformed.
void inter_standing_put(struct neb_buf *out, const struct inter_standing *s);
NEB_MUST_CHECK bool inter_standing_get(struct neb_rd *r, struct inter_standing *s);

// 45 bytes; what was cut short shows in r->bad.
void inter_key_put(struct neb_buf *out, const struct inter_key *k);
void inter_key_get(struct neb_rd *r, struct inter_key *k);
struct inter_key inter_entry_key(const struct inter_record *r, uint8_t i); // of its i-th entry

static inline uint32_t inter_chunks(uint32_t bytes, uint32_t chunk_bytes) {
    return (bytes + chunk_bytes - 1) / chunk_bytes;
}

#endif
