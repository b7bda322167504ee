// SPDX-License-Identifier: Apache-2.0
// Renews this member's certificate before it ends, in a separate process, so that the agent never
// waits for the hub. It starts when less than a third of the validity is left, or when the
// certificate cannot be read. After a failure it retries after 5 s, then after twice as long each
// time, at most an hour. Links use the keys and the member list, which do not change.
#ifndef AGENT_RENEW_H
#define AGENT_RENEW_H
#include "agent/daemon/members.h"
#include "agent/proc/child.h"

struct agent_renew {
    const char *exe, *home; // borrowed
    int before_days;        // renew if fewer days are left; 0: a third of the validity
    struct agent_child child;
    neb_ns next, wait;
};

// Looks at the certificate when it is time; starts and reaps the process. Never blocks.
void agent_renew_step(struct agent_renew *r, const struct agent_members *m);

#endif
