// SPDX-License-Identifier: Apache-2.0
// The block codecs int8 and int4: a scale byte for each block, then the codes. int3 and int2 are
// int4 frames.
#include "kernels/blocks.h"
#include "compress/frame.h"
#include "kernels/quant.h"

#include <string.h>

enum neb_status cmp_blocks_encode(struct cmp_work *w, struct cmp_frame *h,
                                  const struct cmp_source *from, size_t n) {
    size_t block = h->codec.block, blocks = (n + block - 1) / block;
    bool four = h->codec.id == CMP_INT4, finite;
    if (n == 0)
        return NEB_OK;
    neb_buf_clear(&w->codes);
    uint16_t *steps =
        (uint16_t *)(void *)neb_buf_grow(&w->codes, blocks * sizeof *steps + 2 * block);
    struct kern_blocks b = {.x = from->x,
                            .n = n,
                            .block = block,
                            .levels = h->codec.levels,
                            .four = four,
                            .steps = steps,
                            .room = (int8_t *)(steps + blocks),
                            .scales = neb_buf_grow(&w->stream[0], blocks),
                            .codes = neb_buf_grow(&w->stream[1], four ? (n + 1) / 2 : n)};
    if (!steps || !b.scales || !b.codes)
        return neb_buf_check(!steps ? &w->codes : !b.scales ? &w->stream[0] : &w->stream[1]);
    if (from->learned) {
        const struct cmp_feedback *f = from->learned;
        b.u = f->u, b.theta = f->theta, b.theta_m = f->theta_m, b.sent = f->sent, b.beta = f->beta;
    }
    h->top = kern_blocks_encode(&b, &finite);
    return finite ? NEB_OK : cmp_frame_not_finite();
}

// Reads the two streams, scales and codes, and checks that an encoder can have written the codes.
enum neb_status cmp_blocks_open(struct cmp_work *w, struct neb_rd *r, const struct cmp_frame *h,
                                struct neb_buf stream[2], size_t n) {
    size_t block = h->codec.block, blocks = (n + block - 1) / block;
    bool four = h->codec.id == CMP_INT4;
    size_t bytes = four ? (n + 1) / 2 : n;
    NEB_TRY(cmp_frame_get_stream(w, r, NULL, blocks, blocks, &stream[0]));
    NEB_TRY(cmp_frame_get_stream(w, r, h, bytes, bytes, &stream[1]));
    const uint8_t *codes = stream[1].p;
    if (!four && n && memchr(codes, 0x80, n))
        return neb_fail(NEB_ERR_FORMAT, "codec frame: an 8-bit code out of range");
    if (four && !kern_check4(codes, n))
        return neb_fail(NEB_ERR_FORMAT, "codec frame: a 4-bit code out of range");
    return NEB_OK;
}

// Returns codes [at, at + n) as bytes. n <= PIECE.
enum { PIECE = 1024 };
static const int8_t *codes_at(const struct cmp_frame *h, const uint8_t *codes, size_t at, size_t n,
                              int8_t room[PIECE + 2]) {
    if (h->codec.id == CMP_INT8)
        return (const int8_t *)codes + at;
    size_t low = at & ~(size_t)1; // a byte holds two
    kern_expand4(room, codes + low / 2, (at + n - low + 1) / 2);
    return room + (at - low);
}

void cmp_blocks_read(const struct cmp_frame *h, const struct neb_buf stream[2], size_t at,
                     float *out, size_t n) {
    size_t block = h->codec.block, end = at + n;
    bool four = h->codec.id == CMP_INT4;
    int8_t room[PIECE + 2];
    if (block == KERN_DEFAULT_BLOCK && at % block == 0) {
        size_t whole = n / block * block;
        kern_blocks_decode(out, stream[0].p + at / block, stream[1].p + (four ? at / 2 : at), whole,
                           four, h->top);
        at += whole, out += whole;
    }
    while (at < end) {
        size_t len = block - at % block;
        len = len < end - at ? len : end - at;
        len = len < PIECE ? len : PIECE;
        const int8_t *q = codes_at(h, stream[1].p, at, len, room);
        kern_dequantise(out, q, kern_scale_value(stream[0].p[at / block], h->top), len);
        at += len, out += len;
    }
}

enum neb_status cmp_blocks_decode(struct cmp_work *w, struct neb_rd *r, const struct cmp_frame *h,
                                  float *out, size_t n) {
    NEB_TRY(cmp_blocks_open(w, r, h, w->stream, n));
    cmp_blocks_read(h, w->stream, 0, out, n);
    return NEB_OK;
}
