// SPDX-License-Identifier: Apache-2.0
// Token embeddings that generator and discriminator share (`rtd.share_embeddings: H`): after every H events each takes half of
// the way to the other, for one block of rows at a time, in turn, so that an exchange stays below 64 KiB each way.
//
//     generator, event kH                                    discriminator, event kH
//       takes its half of exchange k - 1
//       trains, then sends its rows of block k  ── batch ──►  trains
//                                           ◄── reply ──────  sends its rows as they are, then takes its half
//
// The generator is ahead of the discriminator, so the reply reaches it an interval later, on a stream of its own; what it has
// learned meanwhile stays. Both reckon with the rows as they travelled (int8, compress/codec.h), in a fixed order: two clusters
// end with the bits of one process. The last exchange is one that can still be answered.
#ifndef AGENT_RTD_SHARE_H
#define AGENT_RTD_SHARE_H
#include "compress/codec.h"
#include "intra/ckpt/checkpoint.h"
#include "intra/model/model.h"

enum { RTD_SHARE_BYTES = 64 << 10, RTD_SHARE_FRAME_MAX = 2 * RTD_SHARE_BYTES + 4096 };
enum { RTD_SHARE_AWAY = 8 }; // of a row, in lengths of this side's: what is further away is refused

struct rtd_share {
    struct cmp_work *work;
    struct cmp_codec codec;
    struct intra_model *model; // borrowed
    int32_t block, n_blocks;   // rows of one; how many
    float *ours, *theirs;      // (block, d_model) as they travelled
    int64_t pending;           // generator: exchange whose reply is due; -1: none
    struct neb_buf frame;      // ours of the newest exchange, encoded
    bool answered;             // generator: theirs of it is here
};
// NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status rtd_share_create(struct intra_model *m, struct rtd_share **out);
void rtd_share_destroy(struct rtd_share **s);
// Our rows of exchange x, into s->frame and s->ours. NEB_ERR_INVALID: they are not finite.
NEB_MUST_CHECK enum neb_status rtd_share_send(struct rtd_share *s, int64_t x);
// Theirs. NEB_ERR_FORMAT (logged): not such rows, or too far away from this side's to be of the same job.
NEB_MUST_CHECK enum neb_status rtd_share_take(struct rtd_share *s, int64_t x, const uint8_t *p,
                                              size_t n);
// Half of the way from ours to theirs, added to what the rows are now.
void rtd_share_merge(struct rtd_share *s, int64_t x);
// What the generator's checkpoint holds of an exchange under way.
NEB_MUST_CHECK enum neb_status rtd_share_save(const struct rtd_share *s,
                                              struct intra_ckpt_writer *w);
NEB_MUST_CHECK enum neb_status rtd_share_restore(struct rtd_share *s, const struct intra_ckpt *c);

#endif
