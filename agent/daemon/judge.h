// SPDX-License-Identifier: Apache-2.0
// Judges states of parameters: which members diverged, whether a member that catches up can
// succeed, and whether a state that it took is that of the others. Pure: no clock, no I/O.
#ifndef AGENT_JUDGE_H
#define AGENT_JUDGE_H
#include "agent/base/clock.h"
#include "inter/record/types.h"
#include "inter/round/node.h"
#include "inter/service/snapshot.h"

#include <stdbool.h>
#include <stddef.h>

// ---- divergence ----

// Finds members whose parameters have diverged: every entry of a record contains the digest of its
// member's parameters before the round. A Byzantine member can send a false digest about itself, so
// a member counts as diverged only against a majority. Between equal halves nobody can tell who is
// right, and a Byzantine leader could pair one member after the other with itself.

struct agent_divergence {
    bool own;    // differs from most contributors, or from half if all of them are in the record
    bool others; // another member differs from most
    bool all;    // no digest has a majority
};
// contributors: number of members of the job that send updates and are not revoked.
struct agent_divergence agent_divergence_of(const struct inter_record *r, int self,
                                            int contributors);

// ---- catching up ----

// Whether a member that is catching up can succeed: its link must carry more than the others commit
// meanwhile.
//
// While a snapshot is fetched, the link is as busy as it can be, so the bytes that arrived are its
// capacity. The rounds that the others committed in that time are what it has to carry later. If
// the capacity is lower, every snapshot is outdated when it arrives, and the member fetches one
// after the other for ever. So the member is refused, with both figures.

struct agent_join { // start of a fetch; since 0: none is measured
    neb_ns since;
    uint64_t recv_bytes; // on the sockets
    uint32_t lag;        // rounds that this member was behind
};

struct agent_join_verdict {
    double brings_bps, needs_bps;
    uint32_t rounds; // that the others committed meanwhile
    bool too_slow;
};

// round_bytes: bytes of the others' updates of one round, over all fragments. A fetch that is too
// short, or that saw too few rounds, proves nothing: not too slow.
struct agent_join_verdict agent_join_judge(const struct agent_join *begun, neb_ns now,
                                           uint64_t recv_bytes, uint32_t lag, uint64_t round_bytes);
void agent_join_explain(const struct agent_join_verdict *v, uint64_t round_bytes, char *out,
                        size_t cap);

// ---- proof of a snapshot ----

// Whether the state in a snapshot of another cluster is the state that the others have. The records
// of a snapshot prove themselves, but the digest of its state (θ, v) is only the giver's claim.
// Every member signs, with its update of the next round, the digest of its own state
// (inter_service_digests). These are counted before the worker continues with the snapshot.
//
//     snapshot here ──► WAITS ──► BORNE_OUT   a majority has this state: the worker starts with it
//                          ├────► REFUTED     a majority has another state: the snapshot is false
//                          ├────► DISPUTED    both are equally many: nobody can be believed
//                          └────► LATE        two minutes without any answer: the worker starts,
//                                             and the comparison continues
//
// If only the giver could answer, it is believed: with two clusters, if the others are gone, or
// after the last round.

enum agent_proof_verdict {
    AGENT_PROOF_CONFIRMED,
    AGENT_PROOF_WAITS,
    AGENT_PROOF_LATE,
    AGENT_PROOF_DISPUTED,
    AGENT_PROOF_REFUTED, // verdicts are in order: the last is the worst
};

// How long the worker waits for the others' digests.
static const neb_ns agent_proof_patience = 120 * NEB_S;

struct agent_proof {         // of one job; all zero: no snapshot was taken, or nothing is in doubt
    uint64_t open;           // fragments that are not confirmed yet, a bit each
    struct member_set giver; // one cluster; none: several gave parts, or unknown
    bool begun;              // the worker has started with it nevertheless
    neb_ns since;
    struct agent_proof_part {
        uint32_t round; // first round after the snapshot
        uint64_t digest[2];
    } parts[INTER_FRAGMENTS_MAX];
};

// Opens the fragments of s that contain a state and have further rounds.
void agent_proof_begin(struct agent_proof *p, const struct inter_snapshot *s,
                       struct member_set giver, neb_ns now);
// Judges one fragment. others: clusters that could answer, without this one and the giver. The
// giver's own update counts like any other; until it has sent one, the snapshot counts as
// its answer.
enum agent_proof_verdict agent_proof_judge(const struct inter_digests *said,
                                           struct member_set others, struct member_set giver);
// Judges all open fragments: the worst verdict; confirmed fragments are closed. said:
// (INTER_FRAGMENTS_MAX). own: this cluster. If it took part in the round before it lost its
// state, and had the same state, that counts. If it had another one, that may be why the snapshot
// was needed.
enum agent_proof_verdict agent_proof_look(struct agent_proof *p, const struct inter_digests *said,
                                          struct member_set others, struct member_set own,
                                          neb_ns now);

#endif
