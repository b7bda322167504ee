// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are written while training goes on: the state is copied aside, a thread of its own brings the copy to disk.
//
//     training   ──step──step──│copy│──step──step──step──step──│copy│──step──
//     writer                        └─ write, fsync, rename, fsync ─┘
//
// Training stands still for the copy (memcpy on all threads of the pool), not for the disk. The copy needs as much memory as
// one checkpoint: taken when this is created, so that a machine that is too small says so at the start; what grows later
// (updates in flight) is only reserved, and costs nothing before it is used.
//
// One checkpoint is written at a time. Who begins the next one waits for it first (intra_ckpt_async_wait), rather than leaving one
// out: generations stay whole intervals apart, and what a resumed run reads does not depend on how fast the disk was.
//
// One thread calls. On disk nothing differs from intra_ckpt_create .. commit: the same bytes, written aside and renamed.
#ifndef INTRA_CHECKPOINT_ASYNC_H
#define INTRA_CHECKPOINT_ASYNC_H
#include "intra/ckpt/checkpoint.h"
#include "kernels/pool.h"

struct intra_ckpt_async;
struct intra_ckpt_async_result { // of one checkpoint that is on disk
    uint64_t bytes;              // of its sections
    double copy_s;               // from begin to submit: training stands still
    double write_s;              // from submit until it is durable
};

// touched: bytes of a copy as it is now; reserved: what it may become. vault (NULL: written in clear) and pool are borrowed. NEB_ERR_NOMEM is not logged: the
// caller may well write without a copy.
NEB_MUST_CHECK enum neb_status intra_ckpt_async_create(const struct neb_vault *vault,
                                                       struct kern_pool *pool, uint64_t touched,
                                                       uint64_t reserved,
                                                       struct intra_ckpt_async **out);
// Waits until what was submitted is written, or has failed.
void intra_ckpt_async_destroy(struct intra_ckpt_async **a);

// A writer that copies: sections are added to it as to any (checkpoint.h), then it is submitted. The result of the
// checkpoint before must have been taken (asserted).
NEB_MUST_CHECK enum neb_status intra_ckpt_async_begin(struct intra_ckpt_async *a,
                                                      struct intra_ckpt_writer **out);
// Hands the copy over: it is written to path, then all but the newest `keep` generations of dir are removed (keep 0: none; a part of a
// mesh's checkpoint, which is given up when it cannot be written, checkpoint_parts.h). *w is destroyed.
NEB_MUST_CHECK enum neb_status intra_ckpt_async_submit(struct intra_ckpt_async *a,
                                                       struct intra_ckpt_writer **w,
                                                       const char *dir, const char *path, int keep);
// While the thread moves bytes, this one tells (agent/base/moved.h).
void intra_ckpt_async_wait(struct intra_ckpt_async *a);
// Bytes of the copy that are still to be written.
uint64_t intra_ckpt_async_left(struct intra_ckpt_async *a);
// What became of the checkpoint that was submitted, once. NEB_ERR_NOT_FOUND: none was; NEB_ERR_AGAIN: it is being written
// (neither is logged); NEB_OK: it is durable; else why it is not, logged by the writer: older generations are untouched.
NEB_MUST_CHECK enum neb_status intra_ckpt_async_result(struct intra_ckpt_async *a,
                                                       struct intra_ckpt_async_result *out);

#endif
