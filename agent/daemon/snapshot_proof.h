// SPDX-License-Identifier: Apache-2.0
// Whether a state that was taken from another cluster is the one that the others have. Its records prove themselves, but not what (θ, v)
// must digest to: that is the giver's word alone. Every member's signed update of the round that the state begins with says what it has
// itself (inter_service_digests), so those are counted before the worker goes on with it.
//
//     snapshot here ──► WAITS ──► BORNE_OUT    most say the same: the worker begins with it
//                          ├────► REFUTED      most say another one: what was given is false
//                          ├────► DISPUTED     as many do: who is right cannot be told, and nobody is believed
//                          └────► LATE         nobody has said anything for two minutes: the worker begins, and it is looked at on
//
// Where nobody but the giver could say anything, it is believed: of two clusters, where the others are gone, or after the last round.
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
    AGENT_PROOF_REFUTED, // from here up: the worse
};

// How long the worker waits for the others' word.
static const neb_ns agent_proof_patience = 120 * NEB_S;

struct agent_proof { // of the state of one job; all zero: none was taken, or nothing is in doubt
    uint64_t open;   // fragments that are not borne out yet, bit each
    uint16_t giver;  // bit of the cluster; 0: several gave parts of it, or it is not known
    bool begun;      // the worker has it all the same
    neb_ns since;
    struct agent_proof_part {
        uint32_t round; // the first one after it
        uint64_t digest[2];
    } parts[INTER_FRAGMENTS_MAX];
};

// Of the fragments of s that hold something, and whose rounds are not over.
void agent_proof_begin(struct agent_proof *p, const struct inter_snapshot *s, uint16_t giver,
                       neb_ns now);
// Of one fragment. others: clusters that could say something, without this one and the giver, bit each. What the giver's own update says
// counts like any other's; until it has said anything, what it gave is its word.
enum agent_proof_verdict agent_proof_judge(const struct inter_digests *said, uint16_t others,
                                           uint16_t giver);
// Of all open fragments, the worst of them; those that are borne out are open no more. said: (INTER_FRAGMENTS_MAX). own: bit of this cluster,
// which may have been in the round itself, before its state was lost: where it had the same, that counts. Where it had not, it may be why.
enum agent_proof_verdict agent_proof_look(struct agent_proof *p, const struct inter_digests *said,
                                          uint16_t others, uint16_t own, neb_ns now);

#endif
