// SPDX-License-Identifier: Apache-2.0
#include "agent/base/log.h"
#include "intra/ranks/comm.h"

struct failure { // of the first rank that fails
    int32_t status;
    char why[400];
};

enum neb_status intra_comm_agree(struct intra_comm *world, enum neb_status st) {
    uint64_t first = world && st != NEB_OK ? (uint64_t)(world->size - world->rank) : 0;
    if (!world)
        return st;
    NEB_TRY(world->ops->all_reduce(world, &first, 1, INTRA_COMM_U64, INTRA_COMM_MAX));
    if (!first)
        return NEB_OK;
    struct failure x = {.status = (int32_t)st};
    int from = world->size - (int)first;
    neb_last_error(x.why, sizeof x.why);
    NEB_TRY(world->ops->broadcast(world, &x, sizeof x, from));
    if (world->rank == 0 && from != 0)
        return neb_fail((enum neb_status)x.status, "rank %d: %s", from,
                        x.why[0] ? x.why : neb_status_name((enum neb_status)x.status));
    return (enum neb_status)x.status;
}
