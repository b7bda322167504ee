// SPDX-License-Identifier: Apache-2.0
// Renews this member's certificate before it ends, in a process of its own so that the agent never waits for the hub: once
// less than a third of its life is left, or it cannot be read; where that fails, again after 5 s, then after twice as long each time, up to an hour. Links are not touched: what they use
// are the keys and the member list, which stay.
#ifndef AGENT_RENEW_H
#define AGENT_RENEW_H
#include "agent/daemon/members.h"
#include "agent/proc/child.h"

struct agent_renew {
    const char *exe, *home; // borrowed
    int before_days; // renew with fewer days left than this; 0: a third of the certificate's life
    struct agent_child child;
    neb_ns next, wait;
};

// Looks at the certificate when it is time; starts and reaps the process. Never blocks.
void agent_renew_step(struct agent_renew *r, const struct agent_members *m);

#endif
