// SPDX-License-Identifier: Apache-2.0
// How signed member lists reach every agent: each agent sends the version of its list to the others
// every second, and an agent that sees an older version than its own sends the full list (at most
// 16 KiB: one control message).
//
//     A: version 8 ── LIST_STAND{8, digest} ──► B: version 7
//     A            ◄── LIST_STAND{7, digest} ── B
//     A            ── LIST{signed bytes} ─────► B  checks CA, version, history; fsyncs; uses it;
//                                                  sends it on
//
// So a revocation that one agent knows is in use on all reachable agents, over any number of hops,
// within seconds. A member that was away gets it when it comes back. Lists that contradict each
// other are a fork: then no job may continue.
#ifndef AGENT_SPREAD_H
#define AGENT_SPREAD_H
#include "agent/base/throttle.h"
#include "agent/daemon/members.h"
#include "inter/service/service.h"

struct agent_spread {
    struct agent_members *members;
    struct inter_service *service;
    // From when on a list of each peer is checked again, and one is sent to it again.
    neb_ns looks[NEB_MEMBERS_MAX], sends[NEB_MEMBERS_MAX];
    bool forked[NEB_MEMBERS_MAX]; // its list and ours contradict each other
    struct neb_throttle malformed;
};

// Once a second: sends the version of our list to every peer that is up (up: by peer).
void agent_spread_stand(struct agent_spread *s, const bool *up);
// After a change: sends the list to every peer that is up.
void agent_spread_list(struct agent_spread *s, const bool *up);
// Handles a LIST_STAND or LIST message of a peer, with any bytes. True: it was one of these.
bool agent_spread_message(struct agent_spread *s, uint32_t peer, uint32_t kind, const uint8_t *p,
                          size_t n, struct agent_members_change *out);

#endif
