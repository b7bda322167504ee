// SPDX-License-Identifier: Apache-2.0
// Tokens on the wire: what a generator put in place of masked tokens, and text itself.
//
// Both sides know which positions are masked (intra/train/rtd.h), so only those where another token was drawn travel, counted among
// the masked ones:
//
//     masked positions   3    9   14   20   31          draws: same, 812, same, 17, 5
//     replaced                9        20   31          index 1, 3, 4   →  gaps 1 1 0, ids 812 17 5
//
// Frame: | version u8 | masked varint | replaced varint | gaps | ids, one byte plane after the other |
// Text:  | version u8 | tokens varint | planes |
// Each plane is | how u8: 0 raw, 1 zstd | bytes varint | … |, whichever is smaller. Gaps are bytes; 255 means 255 and more to
// come. Whether a token was replaced is not sent: it is where another one was drawn.
// Decoders take hostile bytes: NEB_ERR_FORMAT (logged) for whatever does not fit, and nothing is written outside the output.
#ifndef CMP_REPLACED_H
#define CMP_REPLACED_H
#include "agent/base/bytes.h"

enum { CMP_TOKENS_MAX = 1 << 24 }; // masked positions, or tokens, of one frame

struct cmp_tokens; // scratch and zstd contexts; one thread. NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status cmp_tokens_create(struct cmp_tokens **out);
void cmp_tokens_destroy(struct cmp_tokens **t);

// index: (n) ascending, below n_masked; ids: (n) in [0, vocab). Appended to out.
NEB_MUST_CHECK enum neb_status cmp_replaced_encode(struct cmp_tokens *t, uint32_t n_masked,
                                                   const int32_t *index, const int32_t *ids,
                                                   uint32_t n, int32_t vocab, struct neb_buf *out);
// Reads one frame from r. index, ids: (n_masked); *n of them are set. NEB_ERR_FORMAT: malformed, for another number of masked
// positions, or ids beyond vocab.
NEB_MUST_CHECK enum neb_status cmp_replaced_decode(struct cmp_tokens *t, struct neb_rd *r,
                                                   uint32_t n_masked, int32_t vocab, int32_t *index,
                                                   int32_t *ids, uint32_t *n);
// Reads past one frame without unpacking it. NEB_ERR_FORMAT: cut.
NEB_MUST_CHECK enum neb_status cmp_replaced_skip(struct neb_rd *r, int32_t vocab);
// ids: (n) in [0, vocab). Appended to out.
NEB_MUST_CHECK enum neb_status cmp_text_encode(struct cmp_tokens *t, const int32_t *ids, uint32_t n,
                                               int32_t vocab, struct neb_buf *out);
// ids: (n), exactly. NEB_ERR_FORMAT: malformed, another number of tokens, or ids beyond vocab.
NEB_MUST_CHECK enum neb_status cmp_text_decode(struct cmp_tokens *t, struct neb_rd *r,
                                               int32_t vocab, int32_t *ids, uint32_t n);

#endif
