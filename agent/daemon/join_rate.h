// SPDX-License-Identifier: Apache-2.0
// Whether a member that is catching up can succeed: its link must carry more than the others commit
// meanwhile.
//
// While a snapshot is fetched, the link is as busy as it can be, so the bytes that arrived are its
// capacity. The rounds that the others committed in that time are what it has to carry later. If
// the capacity is lower, every snapshot is outdated when it arrives, and the member fetches one
// after the other for ever. So the member is refused, with both figures.
#ifndef AGENT_JOIN_RATE_H
#define AGENT_JOIN_RATE_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stddef.h>

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

#endif
