// SPDX-License-Identifier: Apache-2.0
// Token embeddings that generator and discriminator share (`rtd.share_embeddings: H`). After every
// H events each side moves half of the way to the other. One exchange covers one block of rows, in
// turn, so that it stays below 64 KiB each way.
//
//     generator, event kH                                  discriminator, event kH
//       applies its half of exchange k - 1
//       trains, then sends its rows of block k ── batch ─► trains
//                                           ◄── reply ──── sends its rows, then applies its half
//
// The generator is ahead, so the reply reaches it one interval later, on a separate stream. What it
// has learned meanwhile stays. Both sides compute with the rows as they were sent (int8,
// compress/codec.h), in a fixed order, so two clusters end with the same bits as one process. Only
// exchanges that can still be answered take place.
#ifndef AGENT_RTD_SHARE_H
#define AGENT_RTD_SHARE_H
#include "compress/codec.h"
#include "intra/ckpt/checkpoint.h"
#include "intra/model/model.h"

enum { RTD_SHARE_BYTES = 64 << 10, RTD_SHARE_FRAME_MAX = 2 * RTD_SHARE_BYTES + 4096 };
// the largest accepted distance of a row, in lengths of this side's row
enum { RTD_SHARE_AWAY = 8 };

struct rtd_share {
    struct cmp_work *work;
    struct cmp_codec codec;
    struct intra_model *model; // borrowed
    int32_t block, n_blocks;   // rows in a block; number of blocks
    float *ours, *theirs;      // (block, d_model) as they were sent
    int64_t pending;           // generator: exchange whose reply is due; -1: none
    struct neb_buf frame;      // our rows of the newest exchange, encoded
    bool answered;             // generator: the other side's rows of this exchange have arrived
};
// NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status rtd_share_create(struct intra_model *m, struct rtd_share **out);
void rtd_share_destroy(struct rtd_share **s);
// Encodes our rows of exchange x into s->frame, and decodes them into s->ours. NEB_ERR_INVALID:
// they are not finite.
NEB_MUST_CHECK enum neb_status rtd_share_send(struct rtd_share *s, int64_t x);
// Takes their rows. NEB_ERR_FORMAT (logged): they are not such rows, or too far from ours to be of
// the same job.
NEB_MUST_CHECK enum neb_status rtd_share_take(struct rtd_share *s, int64_t x, const uint8_t *p,
                                              size_t n);
// Adds half of the way from ours to theirs to the current rows.
void rtd_share_merge(struct rtd_share *s, int64_t x);
// The part of an unfinished exchange in the generator's checkpoint.
NEB_MUST_CHECK enum neb_status rtd_share_save(const struct rtd_share *s,
                                              struct intra_ckpt_writer *w);
NEB_MUST_CHECK enum neb_status rtd_share_restore(struct rtd_share *s, const struct intra_ckpt *c);

#endif
