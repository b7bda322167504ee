// SPDX-License-Identifier: Apache-2.0
// Whether a member that is catching up can: its link must bring more than the others commit meanwhile.
//
// While a snapshot is fetched the link is as busy as it can be, so what arrived is what it brings; the rounds that the others
// committed in that time, each of so many bytes of updates, are what it will have to bring from then on. Where that is less, every
// snapshot is old when it arrives, and the next one is fetched, without end: the member is refused instead, with both figures.
#ifndef AGENT_JOIN_RATE_H
#define AGENT_JOIN_RATE_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stddef.h>

struct agent_join { // when a fetch began; since 0: none is measured
    neb_ns since;
    uint64_t recv_bytes; // on the sockets
    uint32_t lag;        // rounds that this member was behind
};

struct agent_join_verdict {
    double brings_bps, needs_bps;
    uint32_t rounds; // that the others committed meanwhile
    bool too_slow;
};

// round_bytes: of the others' updates of one round, all fragments. Too short or too quiet a fetch proves nothing: not too slow.
struct agent_join_verdict agent_join_judge(const struct agent_join *begun, neb_ns now,
                                           uint64_t recv_bytes, uint32_t lag, uint64_t round_bytes);
void agent_join_explain(const struct agent_join_verdict *v, uint64_t round_bytes, char *out,
                        size_t cap);

#endif
