// A mesh's checkpoint, written by all its ranks: each tensor of the whole model, and its moments, by one owner in their canonical
// layout (checkpoint_parts.h). Inside of trainer_ckpt.c.
#ifndef INTRA_TRAINER_PARTS_H
#define INTRA_TRAINER_PARTS_H
#include "intra/checkpoint_parts.h"
#include "intra/trainer.h"

// What the owner's writer says of parts, known to all ranks: path (NEB_PATH_MAX), "" when only counting. Collective.
NEB_MUST_CHECK enum neb_status intra_trainer_may_split(const struct intra_trainer *t,
                                                       const struct intra_ckpt_writer *w,
                                                       char *path, bool *split);
// Writes tensors and moments: parts on other ranks, and into w (NULL there) what the owner of the mesh keeps, with the note of
// its parts. Parts are durable on return. Collective; one status for all.
NEB_MUST_CHECK enum neb_status intra_trainer_save_parts(const struct intra_trainer *t,
                                                        struct intra_ckpt_writer *w,
                                                        const char *path);

// Who writes which tensor: the lightest so far of those that can, tensor by tensor, so that all ranks come to the same. Rank 0
// has the exchange's state to write already, and gets tensors only when it is alone. bytes, out: (n); able: (ranks).
void intra_parts_deal(const uint64_t *bytes, int32_t n, const uint64_t *able, int ranks,
                      int32_t *out);

#endif
