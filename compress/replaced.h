// SPDX-License-Identifier: Apache-2.0
// Tokens on the wire: the tokens that a generator put in place of masked ones, and text.
//
// Both sides know which positions are masked (intra/train/rtd.h). So only the positions where
// another token was drawn are sent, counted among the masked ones:
//
//     masked positions   3    9   14   20   31      draws: same, 812, same, 17, 5
//     replaced                9        20   31      index 1, 3, 4  →  gaps 1 1 0, ids 812 17 5
//
// Frame: | version u8 | masked varint | replaced varint | gaps | ids, as byte planes |
// Text:  | version u8 | tokens varint | planes |
//
// A plane is | how u8: 0 raw, 1 zstd | bytes varint | … |, whichever is smaller. Gaps are bytes;
// 255 means "255, and more follows". The label of a position is not sent: it was replaced if
// another token was drawn there.
//
// Decoders take hostile bytes. They return NEB_ERR_FORMAT (logged) for whatever does not fit, and
// write nothing outside the output.
#ifndef CMP_REPLACED_H
#define CMP_REPLACED_H
#include "agent/base/bytes.h"

enum { CMP_TOKENS_MAX = 1 << 24 }; // masked positions, or tokens, in one frame

struct cmp_tokens; // scratch and zstd contexts for one thread. NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status cmp_tokens_create(struct cmp_tokens **out);
void cmp_tokens_destroy(struct cmp_tokens **t);

// Appends a frame to out. index (n): ascending, below n_masked. ids (n): in [0, vocab).
NEB_MUST_CHECK enum neb_status cmp_replaced_encode(struct cmp_tokens *t, uint32_t n_masked,
                                                   const int32_t *index, const int32_t *ids,
                                                   uint32_t n, int32_t vocab, struct neb_buf *out);
// Reads one frame from r. index and ids have room for n_masked; *n of them are set. NEB_ERR_FORMAT:
// malformed, another number of masked positions, or an id outside vocab.
NEB_MUST_CHECK enum neb_status cmp_replaced_decode(struct cmp_tokens *t, struct neb_rd *r,
                                                   uint32_t n_masked, int32_t vocab, int32_t *index,
                                                   int32_t *ids, uint32_t *n);
// Skips one frame without unpacking it. NEB_ERR_FORMAT: cut short.
NEB_MUST_CHECK enum neb_status cmp_replaced_skip(struct neb_rd *r, int32_t vocab);
// Appends text to out. ids (n): in [0, vocab).
NEB_MUST_CHECK enum neb_status cmp_text_encode(struct cmp_tokens *t, const int32_t *ids, uint32_t n,
                                               int32_t vocab, struct neb_buf *out);
// Reads text of exactly n tokens. NEB_ERR_FORMAT: malformed, another number of tokens, or an id
// outside vocab.
NEB_MUST_CHECK enum neb_status cmp_text_decode(struct cmp_tokens *t, struct neb_rd *r,
                                               int32_t vocab, int32_t *ids, uint32_t n);

#endif
