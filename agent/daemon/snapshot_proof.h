// SPDX-License-Identifier: Apache-2.0
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
#ifndef AGENT_SNAPSHOT_PROOF_H
#define AGENT_SNAPSHOT_PROOF_H
#include "agent/base/clock.h"
#include "inter/round/node.h"
#include "inter/service/snapshot.h"

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
