// SPDX-License-Identifier: Apache-2.0
// One generation in several files: what the ranks of a mesh hold is written by all of them at once.
//
//     step-000000000120.ckpt                          the owner's sections, and how many parts there are
//     step-000000000120.ckpt.7f3a90c2d1e45b68-1.part  sections of one rank each, in the format of checkpoint.h
//     step-000000000120.ckpt.7f3a90c2d1e45b68-2.part
//
// Who reads sees one checkpoint: intra_ckpt_open maps the parts with the file, and every tensor lies whole in one of them.
// The file is renamed last, once all its parts are there: before that the generation does not exist. Its token (random) is in
// the names of its parts and inside them, so a generation that is written a second time replaces nothing of the first;
// parts that no file names are removed by the next intra_ckpt_prune.
//
// Of a sealed checkpoint each rank seals its own part with the job's key (agent/exchange/follow.h), and all is as above: the token, which part it is and of
// how many stand in sealed bytes on both sides. So a part of another generation, of another rank, of another job, or one in clear is none of it.
//
// Each rank may write its part while it trains on (checkpoint_async.h); the owner's thread waits for them. A part that could
// not be written leaves an empty "….part.failed" beside it, so that the owner does not wait for it.
//
// All ranks must see the folder: intra_trainer_save finds out which do, and the others' share is written by those.
#ifndef INTRA_CHECKPOINT_PARTS_H
#define INTRA_CHECKPOINT_PARTS_H
#include "agent/base/clock.h"
#include "intra/ckpt/checkpoint.h"

#include <dirent.h>

#define INTRA_PARTS_SECTION                                                                        \
    "checkpoint.parts" // u64: token and n of the file; token, number and n of a part
enum {
    INTRA_PARTS_MAX = 4096,
    // No byte more of any part. Long: over NFS a file's length may be seen a minute late, and the fsync of the last one takes its time.
    INTRA_PARTS_IDLE_S = 600,
};

NEB_MUST_CHECK enum neb_status intra_part_path(const char *file, uint64_t token, uint32_t number,
                                               char *out, size_t cap);
struct intra_part { // which it is
    uint64_t token;
    uint32_t number, n; // 1 … n
};
// Begins a part of the generation `file`; intra_ckpt_add and _commit as for any. vault NULL: in clear.
NEB_MUST_CHECK enum neb_status intra_part_create(const struct neb_vault *vault, const char *file,
                                                 const struct intra_part *part,
                                                 struct intra_ckpt_writer **out);
// The section that says so, where the writer was made otherwise.
NEB_MUST_CHECK enum neb_status intra_part_sign(struct intra_ckpt_writer *w,
                                               const struct intra_part *part);
// Tells whoever waits for the part at `path` that it will not come. Nothing where path is no part's.
void intra_part_give_up(const char *path);
// Until n parts are there, for as long as those that are not there yet grow. NEB_ERR_IO: one was given up; NEB_ERR_TIMEOUT: for `idle` none has
// grown; names one that is missing: its rank has died, or its disk hangs.
NEB_MUST_CHECK enum neb_status intra_parts_wait(const char *file, uint64_t token, uint32_t n,
                                                neb_ns idle);
// Removes parts in `dir` that no file names, and half-written ones. A sealed file is authenticated whole to be read, so it is asked only where
// parts of several tokens lie beside it; what is left over then goes with its generation.
NEB_MUST_CHECK enum neb_status intra_parts_prune(const struct neb_vault *vault, const char *dir);

// Entries of a folder that `which` takes, by name: of generations the oldest first. A missing folder has none; one that cannot be
// read is an error, or a run would quietly begin anew. *names: intra_names_free, also where there are none.
NEB_MUST_CHECK enum neb_status intra_names_list(const char *dir,
                                                int (*which)(const struct dirent *e),
                                                struct dirent ***names, int *n);
void intra_names_free(struct dirent **names, int n);

#endif
