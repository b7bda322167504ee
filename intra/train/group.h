// SPDX-License-Identifier: Apache-2.0
// The ranks of a cluster as one trainer: a process group. Rank 0 drives, the other ranks follow its
// orders. Only rank 0 knows about data, checkpoints and other clusters, so a caller that works with
// one rank works with any mesh. A job's batches do not depend on the mesh: rank 0 draws the
// micro-batches of a step and deals them to the replicas in turn.
//
//     rank 0                                           other ranks
//     intra_group_create ── configuration ───────────►  intra_group_serve
//     intra_group_micro, _update ── tokens ──────────►    train a step
//     intra_group_pass, _passed ─── tokens ──────────►    passes without learning
//                                ◄── draws, labels ────
//     intra_group_save, _restore, _pull, _push ──────►    gather, scatter
//     intra_group_call ── number ────────────────────►    run follower->called
//     intra_group_destroy ── end ────────────────────►  returns
//
// With a device, each rank uses one: rank 0 the caller's, each other rank the one that its
// launcher's environment variables name (kern_device_index). The collectives of a step use NCCL;
// orders and full tensors use `world`. A rank may have no device, or NCCL may be unable to join the
// ranks (two ranks on one card). All ranks learn this before training starts. With
// c->device_optional the whole group then trains on the CPU, and rank 0 logs why. Without it, no
// group is made.
//
// With world NULL there is one rank, and the calls are those of intra_trainer. Any failure ends the
// group: destroy it and restart from a checkpoint. While rank 0 does something else, the other
// ranks sleep.
#ifndef INTRA_GROUP_H
#define INTRA_GROUP_H
#include "intra/train/trainer.h"

struct intra_group;

// Where a side of modes rtd and distill makes its model. The side itself knows the configuration of
// the model. All borrowed.
struct intra_place {
    struct kern *K;
    struct kern *device;           // NULL: on processors
    enum kern_type type;           // intra_trainer_config.device_type
    bool device_optional;          // with a device and world (intra_trainer_config)
    enum intra_graphs graphs;      // with a device
    struct intra_mesh_config mesh; // with world
    struct intra_comm *world;      // NULL: one rank
};

// c->accumulate counts the micro-batches of one step of the whole cluster. NEB_ERR_INVALID:
// mesh->dp does not divide the sequences of a step (batch x accumulate). c->mesh and c->device_mesh
// are ignored. K, world and c->device are borrowed. Every other rank of world is in
// intra_group_serve, or about to enter it. NEB_ERR_UNSUPPORTED: the device is not optional, and a
// rank has none or NCCL is missing.
NEB_MUST_CHECK enum neb_status intra_group_create(const struct intra_trainer_config *c,
                                                  const struct intra_mesh_config *mesh,
                                                  struct intra_comm *world, struct kern *K,
                                                  struct intra_group **out);
// True if a step failed in the communication between devices. No rank can tell which rank, device
// or cable was the cause; restarting all ranks may help. NULL-safe.
bool intra_group_lost(const struct intra_group *group);
// Tells the other ranks to end. NULL-safe.
void intra_group_destroy(struct intra_group **group);
// Every rank but rank 0: follows rank 0 until it ends the group. NEB_OK also when rank 0 ends the
// group after a failure of its own. NEB_ERR_UNSUPPORTED: this rank and rank 0 are different builds.
// follower may be NULL if rank 0 never calls intra_group_call.
// called: does what intra_group_call asks of this rank; its failure ends the group.
// end: called once, before this rank's trainer and device are freed, because `called` may use them.
struct intra_group_follower {
    enum neb_status (*called)(void *user, struct intra_group *group, int32_t n);
    void (*end)(void *user);
    void *user;
};
NEB_MUST_CHECK enum neb_status intra_group_serve(struct intra_comm *world, struct kern *K,
                                                 const struct intra_group_follower *follower);

// The device that the group trains on: c->device, or NULL if it was optional and not available.
struct kern *intra_group_device(const struct intra_group *group);
// Rank 0's trainer. Its counts are those of the whole cluster.
struct intra_trainer *intra_group_trainer(struct intra_group *group);
// All parameters in canonical layout. With one rank this is the trainer's own model. With several
// it is a copy that pull fills and push distributes; the first pull allocates its memory, release
// frees it.
struct intra_model *intra_group_model(struct intra_group *group);
void intra_group_release(struct intra_group *group);
// Makes the other ranks run follower->called with n while the caller does its own part. Rank 0
// only; with one rank it does nothing. intra_group_world: NULL with one rank.
NEB_MUST_CHECK enum neb_status intra_group_call(struct intra_group *group, int32_t n);
struct intra_comm *intra_group_world(struct intra_group *group);

// One step: c->accumulate calls of micro, then one call of update (trainer.h).
void intra_group_micro(struct intra_group *group, const int32_t *tokens, const int32_t *targets);
// As intra_trainer_micro_batch, instead of micro. The arrays for the results of picks (NULL: none)
// are borrowed until the update, after which they are filled; with one rank they are filled at
// once.
void intra_group_micro_batch(struct intra_group *group, const struct intra_batch *b,
                             const struct intra_picks *picks);
NEB_MUST_CHECK enum neb_status intra_group_update(struct intra_group *group,
                                                  struct intra_step_stats *out);
// The same without learning: any number of passes, then _passed. *loss: the sum over all targets;
// *count: their number; 0 without targets.
void intra_group_pass(struct intra_group *group, const struct intra_batch *b,
                      const struct intra_picks *picks);
NEB_MUST_CHECK enum neb_status intra_group_passed(struct intra_group *group, double *loss,
                                                  int64_t *count);
// intra_trainer_cache on every rank, for passes that decode (intra_batch.decodes). Of such passes
// every replica takes one, in order: the caller adds a multiple of dp, some of them maybe without
// sequences. A replica that lacks memory is an error for all.
NEB_MUST_CHECK enum neb_status intra_group_cache(struct intra_group *group, int32_t slots,
                                                 int32_t longest);
// Skips n steps that this cluster does not train: schedules advance by n. The caller moves the data
// cursor.
NEB_MUST_CHECK enum neb_status intra_group_skip(struct intra_group *group, int64_t n);
// As intra_trainer_eval, _save and _restore. Only rank 0 has files.
NEB_MUST_CHECK enum neb_status intra_group_eval(struct intra_group *group, const int32_t *tokens,
                                                const int32_t *targets, int n, double *loss);
NEB_MUST_CHECK enum neb_status intra_group_save(struct intra_group *group,
                                                struct intra_ckpt_writer *w);
NEB_MUST_CHECK enum neb_status intra_group_restore(struct intra_group *group,
                                                   const struct intra_ckpt *c);
// Writes the whole model to w, as intra_model_save does. With several ranks it goes tensor by
// tensor, so that rank 0 holds one tensor at a time.
NEB_MUST_CHECK enum neb_status intra_group_save_model(struct intra_group *group,
                                                      struct intra_ckpt_writer *w);
// Copies the tensors of intra_group_model with wanted[index] (NULL: all) from the ranks (pull) or
// to them (push). With one rank: from or to its device, if it has one.
NEB_MUST_CHECK enum neb_status intra_group_pull(struct intra_group *group, const bool *wanted);
NEB_MUST_CHECK enum neb_status intra_group_push(struct intra_group *group, const bool *wanted);

#endif
