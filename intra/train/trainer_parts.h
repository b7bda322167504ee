// SPDX-License-Identifier: Apache-2.0
// A mesh's checkpoint, written by all its ranks. One rank writes each tensor of the whole model,
// with its moments, in canonical layout (checkpoint_parts.h). Internal to intra/train, but for
// intra_split_ask and intra_parts_find_able, which libnebula uses too.
#ifndef INTRA_TRAINER_PARTS_H
#define INTRA_TRAINER_PARTS_H
#include "intra/ckpt/checkpoint_saver.h"
#include "intra/train/trainer.h"

// What rank 0's writer allows, broadcast to all ranks. Collective.
struct intra_split {
    bool wanted;
    bool aside;              // rank 0 writes to a copy in memory, so the others do too
    bool sealed;             // the parts are sealed too: a rank without a vault writes none
    char path[NEB_PATH_MAX]; // "" while only counting what rank 0 will write
};
NEB_MUST_CHECK enum neb_status intra_split_ask(struct intra_comm *world,
                                               const struct intra_ckpt_writer *w,
                                               struct intra_split *out);
// Writes tensors, moments and `extra` (trainer.h): into parts on the other ranks, and into w on
// rank 0 (w is NULL elsewhere), with a note that lists the parts. On return the parts are durable.
// Parts written aside are durable once rank 0's file is, because its writer waits for them. A
// failure of a part written aside shows when rank 0's file is written, and in the next save.
// Collective; one status for all.
NEB_MUST_CHECK enum neb_status intra_trainer_save_parts(const struct intra_trainer *t,
                                                        struct intra_ckpt_writer *w,
                                                        const struct intra_split *split);

// Finds the ranks that see the folder of `file` and can write there: rank 0 leaves an empty file
// with a random name, and the others look for it. sealed: a rank without a vault cannot write, but
// for rank 0. *token: the random name, the same on all ranks. able: (ranks), zeroed. Collective.
NEB_MUST_CHECK enum neb_status intra_parts_find_able(struct intra_comm *world, const char *file,
                                                     bool sealed, bool vault, uint64_t *token,
                                                     uint64_t *able);

// Decides which rank writes each thing. In turn, each thing goes to the rank with the smallest load
// among those that can write. All ranks get the same result. bytes, out: (n). able: (ranks),
// nonzero if the rank can write; rank 0 always can. load: (ranks), the bytes that each rank writes
// already; this call adds to them. A load of INTRA_PARTS_NOTHING keeps a rank from getting anything
// unless it is alone.
#define INTRA_PARTS_NOTHING (UINT64_MAX / 2)
void intra_parts_assign(const uint64_t *bytes, int32_t n, const uint64_t *able, int ranks,
                        uint64_t *load, int32_t *out);

#endif
