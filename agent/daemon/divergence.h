// SPDX-License-Identifier: Apache-2.0
// Finds members whose parameters have diverged: every entry of a record contains the digest of its
// member's parameters before the round. A Byzantine member can send a false digest about itself, so
// a member counts as diverged only against a majority. Between equal halves nobody can tell who is
// right, and a Byzantine leader could pair one member after the other with itself.
#ifndef AGENT_DIVERGENCE_H
#define AGENT_DIVERGENCE_H
#include "inter/record/types.h"

#include <stdbool.h>

struct agent_divergence {
    bool own;    // differs from most contributors, or from half if all of them are in the record
    bool others; // another member differs from most
    bool all;    // no digest has a majority
};
// contributors: number of members of the job that send updates and are not revoked.
struct agent_divergence agent_divergence_of(const struct inter_record *r, int self,
                                            int contributors);

#endif
