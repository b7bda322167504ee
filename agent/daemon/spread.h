// SPDX-License-Identifier: Apache-2.0
// How signed member lists reach every agent: each tells the others every second which version it has, and whoever
// hears of an older one than its own sends the whole list (at most 16 KiB: one control message).
//
//     A: version 8 ── LIST_STAND{8, digest} ──► B: version 7
//     A            ◄── LIST_STAND{7, digest} ── B
//     A            ── LIST{signed bytes} ─────► B  checks CA, version and history; fsyncs; uses it; tells others
//
// So a revocation that one agent learns of is in use on all that can be reached, over however many hops, within a few
// seconds; a member that was away has it when it comes back. Lists that do not follow from each other are a fork: nobody may go on.
#ifndef AGENT_SPREAD_H
#define AGENT_SPREAD_H
#include "agent/base/throttle.h"
#include "agent/daemon/members.h"
#include "inter/service/service.h"

struct agent_spread {
    struct agent_members *members;
    struct inter_service *service;
    // When a list of each peer is looked at, and when it is sent one, again.
    neb_ns looks[SEC_MEMBERS_MAX], sends[SEC_MEMBERS_MAX];
    bool forked[SEC_MEMBERS_MAX]; // it was no list that ours follows from, or the other way round
    struct neb_throttle malformed;
};

// Says to every peer that is up (up: by peer) what this agent has: once a second.
void agent_spread_stand(struct agent_spread *s, const bool *up);
// Sends the list itself to every peer that is up: after a change.
void agent_spread_list(struct agent_spread *s, const bool *up);
// A LIST_STAND or LIST message of a peer, hostile bytes or not; true: it was one of these.
bool agent_spread_message(struct agent_spread *s, uint32_t peer, uint32_t kind, const uint8_t *p,
                          size_t n, struct agent_members_change *out);

#endif
