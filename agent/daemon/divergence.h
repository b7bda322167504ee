// SPDX-License-Identifier: Apache-2.0
// Whose parameters differ: every entry of a record says what those of its member digested to before the round. What one says of
// itself may be a lie, so nobody differs but from most: of as many on either side nobody can tell who is right, and a leader
// that lies could pair one member after the other with itself.
#ifndef AGENT_DIVERGENCE_H
#define AGENT_DIVERGENCE_H
#include "inter/record/types.h"

#include <stdbool.h>

struct agent_divergence {
    bool
        own; // this member's differ from most contributors'; where all have contributed, also with half of them
    bool others; // those of somebody else do
    bool all;    // nobody has most on its side
};
// contributors: members of the job that have updates, and are members still.
struct agent_divergence agent_divergence_of(const struct inter_record *r, int self,
                                            int contributors);

#endif
