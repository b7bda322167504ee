// SPDX-License-Identifier: Apache-2.0
// A mesh's checkpoint, written by all its ranks: each tensor of the whole model, and its moments, by one owner in their canonical
// layout (checkpoint_parts.h). Inside of trainer_ckpt.c.
#ifndef INTRA_TRAINER_PARTS_H
#define INTRA_TRAINER_PARTS_H
#include "intra/ckpt/checkpoint_parts.h"
#include "intra/train/trainer.h"

// Writes a rank's part while training goes on (checkpoint_async.h); its memory, one copy of the part, is taken with the first.
// Destroying waits for what is being written.
struct intra_part_saver; // NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status intra_part_saver_create(struct intra_part_saver **out);
void intra_part_saver_destroy(struct intra_part_saver **s);

// What the owner's writer says of parts, known to all ranks. Collective.
struct intra_split {
    bool wanted;
    bool aside;              // into a copy, so do the others
    bool sealed;             // so are the parts: ranks without a vault write none
    char path[NEB_PATH_MAX]; // "" when only counting what the owner will write
};
NEB_MUST_CHECK enum neb_status intra_trainer_may_split(const struct intra_trainer *t,
                                                       const struct intra_ckpt_writer *w,
                                                       struct intra_split *out);
// Writes tensors, moments and what else the ranks hold (trainer.h): parts on other ranks, and into w (NULL there) what the owner of the mesh keeps, with the note of
// its parts. Parts are durable on return, or, when written aside, once the owner's file is: who writes that waits for them. What became of a part
// that was written aside is said by the owner's file, and by the next save. Collective; one status for all.
NEB_MUST_CHECK enum neb_status intra_trainer_save_parts(const struct intra_trainer *t,
                                                        struct intra_ckpt_writer *w,
                                                        const struct intra_split *split);

// Who writes what: the lightest so far of those that can, one thing after the other, so that all ranks come to the same. bytes, out: (n);
// able: (ranks), rank 0 always is; load: (ranks) bytes that each has to write already, raised. A rank that shall get nothing unless
// it is alone: INTRA_PARTS_NOTHING.
#define INTRA_PARTS_NOTHING (UINT64_MAX / 2)
void intra_parts_assign(const uint64_t *bytes, int32_t n, const uint64_t *able, int ranks,
                        uint64_t *load, int32_t *out);

#endif
