// SPDX-License-Identifier: Apache-2.0
// One generation in several files, so that all ranks of a mesh write at once.
//
//     step-000000000120.ckpt                          rank 0's sections, and the number of parts
//     step-000000000120.ckpt.7f3a90c2d1e45b68-1.part  sections of one rank, as in checkpoint.h
//     step-000000000120.ckpt.7f3a90c2d1e45b68-2.part
//
// Readers see one checkpoint: intra_ckpt_open maps the parts with the file, and each tensor lies in
// one of them as a whole. Rank 0 renames its file last, when all parts exist; before that the
// generation does not exist. A random token is in the names of the parts and inside them. So a
// generation that is written a second time does not overwrite the parts of the first time. The next
// intra_ckpt_prune removes parts that no file names.
//
// Rank 0's file names the rank of each part, and the digest of each part in clear: the SHA-256 at
// its end, which is over its index and so over the digests of all its sections. A seal
// authenticates a part without that.
//
// In a sealed checkpoint each rank seals its own part with the job's key (agent/train/follow.h).
// The token, the part's number and the number of parts are in sealed bytes of the file and of the
// part. So a part of another generation, rank or job, or a part in clear, is refused.
//
// A rank may write its part while it trains (checkpoint_async.h); rank 0's thread waits for the
// parts. A rank that cannot write its part leaves an empty "….part.failed", so that rank 0 stops
// waiting.
//
// intra_trainer_save finds out which ranks see the folder. These ranks also write the tensors of
// the ranks that do not see it.
#ifndef INTRA_CHECKPOINT_PARTS_H
#define INTRA_CHECKPOINT_PARTS_H
#include "agent/base/clock.h"
#include "intra/ckpt/checkpoint.h"

#include <dirent.h>

// The section, of u64. In a file: token and n. In a part: token, number and n.
#define INTRA_PARTS_SECTION "checkpoint.parts"
// In a file: the rank of each part, u64 (n), for errors. May be missing.
#define INTRA_PARTS_RANKS "checkpoint.ranks"
// In a file: the digest of each part, 32 bytes each; zeros: of a sealed part. intra_ckpt_commit
// adds it. Missing in files of older versions.
#define INTRA_PARTS_DIGESTS "checkpoint.digests"

enum {
    INTRA_PARTS_MAX = 4096,
    // Seconds without a new byte of any part. It is long because over NFS a file's length can
    // appear a minute late, and the last fsync takes time.
    INTRA_PARTS_IDLE_S = 600,
};

NEB_MUST_CHECK enum neb_status intra_part_path(const char *file, uint64_t token, uint32_t number,
                                               char *out, size_t cap);
struct intra_part { // identifies a part
    uint64_t token;
    uint32_t number, n; // 1 … n
};
// Begins a part of the generation `file`; then use intra_ckpt_add and _commit. vault NULL: in
// clear.
NEB_MUST_CHECK enum neb_status intra_part_create(const struct neb_vault *vault, const char *file,
                                                 const struct intra_part *part,
                                                 struct intra_ckpt_writer **out);
// Adds the section that identifies the part, for a writer that intra_part_create did not make.
NEB_MUST_CHECK enum neb_status intra_part_sign(struct intra_ckpt_writer *w,
                                               const struct intra_part *part);
// Rank 0: notes in its file that there are part->n parts, and which rank writes each. ranks: (n).
NEB_MUST_CHECK enum neb_status
intra_parts_note(struct intra_ckpt_writer *w, const struct intra_part *part, const uint64_t *ranks);
// Tells the rank that waits for the part at `path` that it will not come. Does nothing if path is
// not a part's.
void intra_part_give_up(const char *path);
// Waits for n parts, as long as the missing ones grow. NEB_ERR_IO: a part was given up.
// NEB_ERR_TIMEOUT: no missing part has grown for `idle`; the log names one. Its rank has died, or
// its disk hangs.
NEB_MUST_CHECK enum neb_status intra_parts_wait(const char *file, uint64_t token, uint32_t n,
                                                neb_ns idle);
enum { INTRA_PART_DIGEST = 32 };
// The last bytes of a part in clear; zeros: it is sealed.
NEB_MUST_CHECK enum neb_status intra_part_digest(const char *path,
                                                 uint8_t digest[INTRA_PART_DIGEST]);
// Removes parts in `dir` that no file names, and half-written ones. A sealed file can be read only
// after all of it is authenticated, so it is read only if parts of several tokens lie beside it.
// Other leftovers are removed together with their generation.
NEB_MUST_CHECK enum neb_status intra_parts_prune(const struct neb_vault *vault, const char *dir);

// Names of the entries of a folder that `which` accepts, sorted, so that the oldest generation is
// first. A missing folder has none. A folder that cannot be read is an error, or a run would
// silently start from nothing. *names: free with intra_names_free, even if there are none.
NEB_MUST_CHECK enum neb_status intra_names_list(const char *dir,
                                                int (*which)(const struct dirent *e),
                                                struct dirent ***names, int *n);
void intra_names_free(struct dirent **names, int n);

#endif
