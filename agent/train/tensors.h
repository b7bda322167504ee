// SPDX-License-Identifier: Apache-2.0
// The tensors of an intra_trainer as units of the exchange: what the built-in worker, its other
// ranks and federated students share. Each rank of a mesh has its own. An owner adds its part of
// checkpoints and what else its operations need; user of them is a struct worker_tensors.
#ifndef AGENT_TENSORS_H
#define AGENT_TENSORS_H
#include "agent/exchange/shards.h"
#include "intra/train/group.h"

struct worker_tensors {
    void *owner;                   // for the owner's own operations
    struct intra_group *group;     // borrowed; NULL: one rank without a group
    struct intra_trainer *trainer; // borrowed
    struct intra_unit *rows;       // (n)
    struct agent_unit *units;      // (n) the same
    int32_t n;
    bool *wanted; // (tensors) scratch
    struct intra_trainer_extra extra;
};

// trainer: the group's, or without a group any trainer of one rank. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status worker_tensors_create(struct intra_group *group,
                                                     struct intra_trainer *trainer,
                                                     struct worker_tensors *out);
void worker_tensors_destroy(struct worker_tensors *t);
// t as a trainer of the exchange. ops: those below, and the owner's.
struct agent_trainer worker_tensors_trainer(struct worker_tensors *t,
                                            const struct agent_trainer_ops *ops);
// With several ranks: from now on this rank's part of a checkpoint includes its shard.
void worker_tensors_add_shards(struct worker_tensors *t, struct agent_shards *shards);

enum neb_status worker_tensors_read(void *user, const struct agent_move *moves, int32_t n);
enum neb_status worker_tensors_write(void *user, const struct agent_move *moves, int32_t n,
                                     bool there);
enum neb_status worker_tensors_counts(void *user, uint64_t *out);
enum neb_status worker_tensors_call(void *user, int32_t n);
float *worker_tensors_there(void *user, int32_t unit);
// The five above.
#define WORKER_TENSORS_OPS                                                                         \
    .read = worker_tensors_read, .write = worker_tensors_write, .counts = worker_tensors_counts,   \
    .call = worker_tensors_call, .there = worker_tensors_there

#endif
