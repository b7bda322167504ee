// SPDX-License-Identifier: Apache-2.0
// The ranks of a cluster as one trainer: the owner (rank 0) drives, the others follow its orders. Only the owner knows about
// data, checkpoints and other clusters, so a caller that works with one rank works with any mesh, and a job's batches are
// the same whatever the mesh: a step's micro-batches are drawn by the owner and dealt to the replicas in turn.
//
//     owner                                            other ranks
//     intra_group_create ── configuration ───────────►  intra_group_serve
//     intra_group_micro, _update ── tokens ──────────►    train a step
//     intra_group_save, _restore, _pull, _push ──────►    gather, scatter
//     intra_group_call ── number ────────────────────►    what its caller does on all ranks (agent/exchange/shards.h)
//     intra_group_destroy ── end ────────────────────►  returns
//
// With a device every rank has one: the owner its caller's, each other the one that its launcher's variables name
// (kern_device_index); collectives of a step go over NCCL, orders and whole tensors over world. Where a rank has none, or NCCL cannot
// join them (two ranks on one card), all ranks know of it before anything is trained: with c->device_optional the whole group
// trains on processors, and the owner logs why; otherwise there is no group.
//
// With world NULL there are no others, and the calls are those of intra_trainer. Any failure ends the group: destroy it and
// start again from a checkpoint. While the owner does something else, the others sleep.
#ifndef INTRA_GROUP_H
#define INTRA_GROUP_H
#include "intra/train/trainer.h"

struct intra_group;

// c->accumulate is of a step of the whole cluster; NEB_ERR_INVALID when dp does not divide its sequences (batch x
// accumulate). c->mesh and c->device_mesh are ignored. K, world and c->device are borrowed. All ranks of world are in
// intra_group_serve, or about to be. NEB_ERR_UNSUPPORTED: with a device that is not optional, a rank has none, or there is no NCCL.
NEB_MUST_CHECK enum neb_status intra_group_create(const struct intra_trainer_config *c,
                                                  const struct intra_mesh_config *mesh,
                                                  struct intra_comm *world, struct kern *K,
                                                  struct intra_group **out);
// Has a step failed in what devices say to one another? Which rank, device or cable was the reason no rank can tell: starting all of them
// again may help. NULL-safe.
bool intra_group_lost(const struct intra_group *group);
// Tells the others to end. NULL-safe.
void intra_group_destroy(struct intra_group **group);
// Every other rank: follows until the owner ends the group. NEB_OK also when the owner ended for a failure of its own.
// NEB_ERR_UNSUPPORTED: this rank is of another build than the owner. called: what intra_group_call makes this rank do; its failure ends the
// group. end: once, before this rank's trainer and device go, which what was called may have used. NULL: there are no such calls.
struct intra_group_follower {
    enum neb_status (*called)(void *user, struct intra_group *group, int32_t n);
    void (*end)(void *user);
    void *user;
};
NEB_MUST_CHECK enum neb_status intra_group_serve(struct intra_comm *world, struct kern *K,
                                                 const struct intra_group_follower *follower);

// On what the group trains: c->device, or NULL where that was optional and could not be had.
struct kern_device *intra_group_device(const struct intra_group *group);
// The owner's trainer: its counts are those of the whole cluster.
struct intra_trainer *intra_group_trainer(struct intra_group *group);
// All parameters in canonical layout: the trainer's own model with one rank; else a copy that pull fills and push gives out, whose memory is
// taken with the first pull and given back by release.
struct intra_model *intra_group_model(struct intra_group *group);
void intra_group_release(struct intra_group *group);
// Between the ranks of a group, from the owner: the others enter `called` with n, while the caller does its own part. NULL: one rank
NEB_MUST_CHECK enum neb_status intra_group_call(struct intra_group *group, int32_t n);
struct intra_comm *intra_group_world(struct intra_group *group);

// A step: c->accumulate calls of micro, then update; as in trainer.h.
void intra_group_micro(struct intra_group *group, const int32_t *tokens, const int32_t *targets);
NEB_MUST_CHECK enum neb_status intra_group_update(struct intra_group *group,
                                                  struct intra_step_stats *out);
// n steps that this cluster does not make: schedules go on behind them. The caller moves the data cursor.
NEB_MUST_CHECK enum neb_status intra_group_skip(struct intra_group *group, int64_t n);
// As intra_trainer_eval, _save and _restore; the owner alone has files.
NEB_MUST_CHECK enum neb_status intra_group_eval(struct intra_group *group, const int32_t *tokens,
                                                const int32_t *targets, int n, double *loss);
NEB_MUST_CHECK enum neb_status intra_group_save(struct intra_group *group,
                                                struct intra_ckpt_writer *w);
NEB_MUST_CHECK enum neb_status intra_group_restore(struct intra_group *group,
                                                   const struct intra_ckpt *c);
// The whole model into w, as intra_model_save: with several ranks tensor by tensor, so that the owner holds one at a time.
NEB_MUST_CHECK enum neb_status intra_group_save_model(struct intra_group *group,
                                                      struct intra_ckpt_writer *w);
// Tensors of intra_group_model with wanted[index] (NULL: all), from and to the ranks. Nothing to do with one rank.
NEB_MUST_CHECK enum neb_status intra_group_pull(struct intra_group *group, const bool *wanted);
NEB_MUST_CHECK enum neb_status intra_group_push(struct intra_group *group, const bool *wanted);

#endif
