// SPDX-License-Identifier: Apache-2.0
// Parts of a checkpoint (checkpoint_parts.h) that ranks other than 0 write while training goes on:
// each copies its part, and a thread writes the copy (checkpoint_async.h). Rank 0's thread waits
// for the parts.
#ifndef INTRA_CHECKPOINT_SAVER_H
#define INTRA_CHECKPOINT_SAVER_H
#include "intra/ckpt/checkpoint_parts.h"
#include "kernels/pool.h"

struct intra_part_saver; // one a rank; it takes memory with the first part
NEB_MUST_CHECK enum neb_status intra_part_saver_create(struct intra_part_saver **out); // NOMEM
void intra_part_saver_destroy(struct intra_part_saver **s); // waits for the thread. NULL-safe

// Begins this rank's part of the generation `file`. vault (NULL: in clear) and pool are borrowed
// until destroy. bytes: of the part. *out stays NULL if there is no memory for a copy (logged
// once): then intra_part_create writes it while training waits. Fails if the part before could not
// be written.
NEB_MUST_CHECK enum neb_status
intra_part_saver_begin(struct intra_part_saver *s, const struct neb_vault *vault,
                       struct kern_pool *pool, uint64_t bytes, const char *file,
                       const struct intra_part *part, struct intra_ckpt_writer **out);
// Hands the copy to the thread. *w is destroyed.
NEB_MUST_CHECK enum neb_status intra_part_saver_submit(struct intra_part_saver *s,
                                                       struct intra_ckpt_writer **w);

#endif
