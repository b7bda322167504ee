// SPDX-License-Identifier: Apache-2.0
// A codec's work space, for the files of this folder: zstd's contexts, and buffers that grow to the
// largest array and stay, so that a round allocates nothing.
#ifndef CMP_WORK_H
#define CMP_WORK_H
#include "compress/codec.h"

#include <zstd.h>

enum { CMP_STREAMS_MAX = 3 };

struct cmp_work {
    ZSTD_CCtx *cctx;
    ZSTD_DCtx *dctx;
    struct neb_buf stream[CMP_STREAMS_MAX];
    struct neb_buf codes;        // scratch of an encoder
    struct neb_buf counts;       // a byte for each row
    struct neb_buf plane;        // high nibbles of 8-bit codes (stage.c)
    struct cmp_check *check;     // for whole updates; made when the first one is checked
    uint32_t scratch[2 * 65536]; // topk
    uint16_t idx[65536];
    float values[65536]; // entries of one chunk
};

// stage.c. Writes one zstd frame of raw to out (cap: at least ZSTD_compressBound of it). Returns
// its size, or a zstd error code. Level CMP_HUFFMAN looks for no repeats.
enum { CMP_HUFFMAN = -2000 };
NEB_MUST_CHECK size_t cmp_work_pack(struct cmp_work *w, uint8_t *out, size_t cap,
                                    const struct neb_buf *raw, int level);

#endif
