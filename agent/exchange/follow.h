// SPDX-License-Identifier: Apache-2.0
// What the ranks of a worker other than rank 0 have and do when it calls (intra_group_call): their share of the exchange (agent/exchange/shards.h), and
// the job's key, with which they seal their parts of its checkpoints.
#ifndef AGENT_FOLLOW_H
#define AGENT_FOLLOW_H
#include "agent/exchange/shards.h"
#include "security/vault.h"

// Zeroed but for the pool. The vault is destroyed by its caller once the group is: a part may still be written while that ends.
struct agent_follower {
    struct agent_shards_follower exchange;
    struct sec_vault *vault; // NULL: nothing is sealed
};
// intra_group_follower's called and end; user: a struct agent_follower.
enum neb_status agent_follow(void *user, struct intra_group *group, int32_t n);
void agent_follow_end(void *user);

// Rank 0: hands the key of its vault to all ranks (security/hand.h), which from then on seal parts of checkpoints. vault is borrowed and outlives
// the group. NEB_ERR_DENIED; as of the communicator.
NEB_MUST_CHECK enum neb_status agent_follow_seal(struct intra_group *group,
                                                 const struct sec_vault *vault);

#endif
