// SPDX-License-Identifier: Apache-2.0
// The state of a mesh that passes through its rank 0 tensor by tensor, so that this never holds a whole model. Inside of trainer_ckpt.c
// and group.c.
#ifndef INTRA_TRAINER_FULL_H
#define INTRA_TRAINER_FULL_H
#include "intra/train/trainer.h"

// trainer_ckpt.c: a model's description; whether c is of this run; everything of a checkpoint but parameters and moments (steps: made,
// and of the optimiser's birth; input, target: (V)); host memory to the device, where there is one.
NEB_MUST_CHECK enum neb_status trainer_put_config(const struct intra_model *m,
                                                  struct intra_ckpt_writer *w);
NEB_MUST_CHECK enum neb_status trainer_same_run(const struct intra_trainer *t,
                                                const struct intra_ckpt *c);
NEB_MUST_CHECK enum neb_status trainer_read_rest(const struct intra_trainer *t,
                                                 const struct intra_ckpt *c, uint64_t steps[2],
                                                 uint64_t *input, uint64_t *target);
NEB_MUST_CHECK enum neb_status trainer_push_all(struct intra_trainer *t);
// Of a part of a save that the ranks do not agree upon: whoever fails there leaves others waiting for it, and has to end. (After a failure that
// all know of they may train on.)
static inline enum neb_status trainer_kept(const struct intra_trainer *t, enum neb_status st) {
    intra_model_keep_failure(t->model, st);
    return st;
}

// trainer_full.c
// Rank 0 reads; the others get their parts from it. Collective; one status for all.
NEB_MUST_CHECK enum neb_status trainer_restore_mesh(struct intra_trainer *t,
                                                    const struct intra_ckpt *c);
// As intra_model_save of the whole model; w is NULL but on rank 0. Collective on a mesh, with one status for all.
NEB_MUST_CHECK enum neb_status intra_trainer_save_model(struct intra_trainer *t,
                                                        struct intra_ckpt_writer *w);

#endif
