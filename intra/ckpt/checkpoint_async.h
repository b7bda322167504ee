// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints while training goes on: the state is copied, and a thread writes the copy to
// disk.
//
//     training   ──step──step──│copy│──step──step──step──step──│copy│──step──
//     writer                        └─ write, fsync, rename, fsync ─┘
//
// Training stops for the copy (memcpy on all threads of the pool), not for the disk. The copy needs
// as much memory as one checkpoint. create allocates it, so that a machine that is too small fails
// at the start. Memory for what grows later (updates in flight) is only reserved, and costs nothing
// until it is used.
//
// One checkpoint is written at a time. The caller waits for it before it begins the next one
// (intra_ckpt_async_wait) and never skips one. So the intervals between generations do not depend
// on the speed of the disk.
//
// One thread makes all calls. The file is the same as with intra_ckpt_create .. commit: the same
// bytes, written aside and renamed.
#ifndef INTRA_CHECKPOINT_ASYNC_H
#define INTRA_CHECKPOINT_ASYNC_H
#include "intra/ckpt/checkpoint.h"
#include "kernels/pool.h"

struct intra_ckpt_async;
struct intra_ckpt_async_result { // of a checkpoint that is on disk
    uint64_t bytes;              // of its sections
    double copy_s;               // from begin to submit: training stops
    double write_s;              // from submit until it is durable
};

// touched: bytes of a copy now; reserved: bytes that it may grow to. vault (NULL: in clear) and
// pool are borrowed. NEB_ERR_NOMEM is not logged, because the caller can write without a copy.
NEB_MUST_CHECK enum neb_status intra_ckpt_async_create(const struct neb_vault *vault,
                                                       struct kern_pool *pool, uint64_t touched,
                                                       uint64_t reserved,
                                                       struct intra_ckpt_async **out);
// Waits until a submitted checkpoint is written or has failed.
void intra_ckpt_async_destroy(struct intra_ckpt_async **a);

// Makes a writer that copies: add sections as to any writer (checkpoint.h), then submit it. The
// result of the previous checkpoint must have been taken (asserted).
NEB_MUST_CHECK enum neb_status intra_ckpt_async_begin(struct intra_ckpt_async *a,
                                                      struct intra_ckpt_writer **out);
// Hands the copy to the thread, which writes it to path and then removes all but the newest `keep`
// generations of dir. keep 0: a part of a mesh's checkpoint; nothing is removed, and if the part
// cannot be written it is given up (checkpoint_parts.h). *w is destroyed.
NEB_MUST_CHECK enum neb_status intra_ckpt_async_submit(struct intra_ckpt_async *a,
                                                       struct intra_ckpt_writer **w,
                                                       const char *dir, const char *path, int keep);
// Waits for the thread. While the thread moves bytes, this call reports that through
// agent/base/moved.h.
void intra_ckpt_async_wait(struct intra_ckpt_async *a);
// Bytes of the copy that are not written yet.
uint64_t intra_ckpt_async_left(struct intra_ckpt_async *a);
// The result of the submitted checkpoint, once. NEB_OK: it is durable. NEB_ERR_NOT_FOUND: none was
// submitted; NEB_ERR_AGAIN: it is being written (neither is logged). Other errors: it failed, and
// the thread has logged why; older generations are untouched.
NEB_MUST_CHECK enum neb_status intra_ckpt_async_result(struct intra_ckpt_async *a,
                                                       struct intra_ckpt_async_result *out);

#endif
