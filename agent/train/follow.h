// SPDX-License-Identifier: Apache-2.0
// What the ranks of a worker other than rank 0 hold, and what they do when rank 0 calls them
// (intra_group_call): their part of the exchange (agent/exchange/shards.h), and the key of the job,
// with which they seal their parts of its checkpoints.
#ifndef AGENT_FOLLOW_H
#define AGENT_FOLLOW_H
#include "agent/train/tensors.h"
#include "security/vault.h"

// Zeroed at first. The caller destroys the vault after the group: until the group ends, a part of a
// checkpoint may still be written.
struct agent_follower {
    struct worker_tensors tensors;
    struct agent_shards *shards;
    struct sec_vault *vault; // NULL: checkpoints are not sealed
};
// The called and end callbacks of intra_group_follower; user is a struct agent_follower.
enum neb_status agent_follow(void *user, struct intra_group *group, int32_t n);
void agent_follow_end(void *user);

// Rank 0: gives the key of its vault to all ranks (security/seal_key.h). From then on they seal
// their parts of checkpoints. vault is borrowed and must outlive the group. NEB_ERR_DENIED, and the
// errors of the communicator.
NEB_MUST_CHECK enum neb_status agent_follow_seal(struct intra_group *group,
                                                 const struct sec_vault *vault);

#endif
