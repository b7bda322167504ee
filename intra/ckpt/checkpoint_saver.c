// SPDX-License-Identifier: Apache-2.0
#include "intra/ckpt/checkpoint_saver.h"
#include "agent/base/log.h"
#include "intra/ckpt/checkpoint_async.h"

#include <stdlib.h>

struct intra_part_saver {
    struct intra_ckpt_async *async; // made with the first part
    bool refused;                   // no memory for a copy: training waits for this rank's disk
    char path[NEB_PATH_MAX];        // of the part that is being copied
};

enum neb_status intra_part_saver_create(struct intra_part_saver **out) {
    *out = calloc(1, sizeof **out);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory creating a checkpoint saver");
}

void intra_part_saver_destroy(struct intra_part_saver **s) {
    if (*s)
        intra_ckpt_async_destroy(&(*s)->async);
    free(*s);
    *s = NULL;
}

static enum neb_status create(struct intra_part_saver *s, const struct neb_vault *vault,
                              struct kern_pool *pool, uint64_t bytes) {
    enum neb_status st = intra_ckpt_async_create(vault, pool, 0, bytes, &s->async);
    s->refused = st == NEB_ERR_NOMEM;
    if (s->refused)
        neb_warn("no memory for a copy of this rank's part of the checkpoint (%.0f MB): training "
                 "waits for each checkpoint to be written",
                 (double)bytes * 1e-6);
    return s->refused ? NEB_OK : st;
}

enum neb_status intra_part_saver_begin(struct intra_part_saver *s, const struct neb_vault *vault,
                                       struct kern_pool *pool, uint64_t bytes, const char *file,
                                       const struct intra_part *part,
                                       struct intra_ckpt_writer **out) {
    struct intra_ckpt_async_result before;
    NEB_TRY(intra_part_path(file, part->token, part->number, s->path, sizeof s->path));
    if (!s->async && !s->refused)
        NEB_TRY(create(s, vault, pool, bytes));
    if (s->refused)
        return NEB_OK;
    intra_ckpt_async_wait(s->async); // short: rank 0 has waited for its file, and so for this part
    enum neb_status st = intra_ckpt_async_result(s->async, &before);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    NEB_TRY(intra_ckpt_async_begin(s->async, out));
    return intra_part_sign(*out, part);
}

enum neb_status intra_part_saver_submit(struct intra_part_saver *s, struct intra_ckpt_writer **w) {
    return intra_ckpt_async_submit(s->async, w, "", s->path, 0);
}
