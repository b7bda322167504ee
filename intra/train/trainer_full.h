// SPDX-License-Identifier: Apache-2.0
// Moves the state of a mesh through its rank 0 one tensor at a time, so that rank 0 never holds a
// whole model. Internal to trainer_ckpt.c, trainer_full.c, trainer_parts.c and group.c.
#ifndef INTRA_TRAINER_FULL_H
#define INTRA_TRAINER_FULL_H
#include "intra/train/trainer.h"

// In trainer_ckpt.c.
// same_run: NEB_OK if c is a checkpoint of this run, with the same model and trainable set.
// read_rest: reads all but parameters and moments. steps: the updates made, and the step at which
// the optimiser's moments began. input, target: (V).
// push_all: copies host memory to the device, if there is one.
// x, of the model or of the whole model, has a first (second: a second) moment.
bool trainer_has_moment(const struct intra_trainer *t, const struct intra_tensor *x, bool second);
NEB_MUST_CHECK enum neb_status trainer_same_run(const struct intra_trainer *t,
                                                const struct intra_ckpt *c);
NEB_MUST_CHECK enum neb_status trainer_read_rest(const struct intra_trainer *t,
                                                 const struct intra_ckpt *c, uint64_t steps[2],
                                                 uint64_t *input, uint64_t *target);
NEB_MUST_CHECK enum neb_status trainer_push_all(struct intra_trainer *t);
// Marks the model as failed if st is an error. Use it in those steps of a save in which the ranks
// do not exchange their status: the rank that fails leaves others waiting, so it must end. If all
// ranks know of a failure, they may train on.
static inline enum neb_status trainer_kept(const struct intra_trainer *t, enum neb_status st) {
    intra_model_keep_failure(t->model, st);
    return st;
}

// In trainer_full.c. Rank 0 reads and sends the other ranks their parts. Collective; one status for
// all.
NEB_MUST_CHECK enum neb_status trainer_restore_mesh(struct intra_trainer *t,
                                                    const struct intra_ckpt *c);
// As intra_model_save of the whole model. w: NULL except on rank 0. Collective on a mesh, with one
// status for all.
NEB_MUST_CHECK enum neb_status intra_trainer_save_model(struct intra_trainer *t,
                                                        struct intra_ckpt_writer *w);

#endif
