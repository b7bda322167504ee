// SPDX-License-Identifier: Apache-2.0
// The block codecs int8 and int4: a block of elements shares a scale.
//
//     stream 0   one scale byte per block
//     stream 1   codes: int8 one per byte, int4 two per byte
//
// int3 and int2 are int4 frames whose encoder uses 7 and 3 codes. zstd removes the rest.
//
// Source: block quantisation as in QSGD and 8-bit optimisers.
#include "kernels/blocks.h"
#include "compress/ops.h"
#include "kernels/quant.h"

#include <stdio.h>
#include <string.h>

enum {
    PIECE = 1024,
    BATCH = 64, // blocks that the gate counts at a time
};

extern const struct cmp_codec_ops cmp_int8, cmp_int4;

static bool is_four(const struct cmp_codec *c) { return cmp_ops(c) == &cmp_int4; }

// int4's step is a block's largest value / 5.5, not / 7: fewer bits but a larger error, which error
// feedback sends later (README.md). Three levels need the block's typical value instead of its
// largest.
static const struct {
    unsigned bits;
    int levels;
} kinds[] = {{8, 127}, {4, 6}, {3, 3}, {2, 1}};

static int levels_of(const struct cmp_codec *c) {
    return c->levels > 0 ? c->levels : is_four(c) ? 6 : 127;
}

static size_t blocks_of(const struct cmp_codec *c, size_t n) {
    return (n + c->block - 1) / c->block;
}

static size_t code_bytes(const struct cmp_codec *c, size_t n) {
    return is_four(c) ? (n + 1) / 2 : n;
}

// ---- text and sizes -----------------------------------------------------------------------------

static bool parse(const char *text, struct cmp_codec *c) {
    unsigned bits, block;
    int used = 0;
    if (sscanf(text, "int%u%n", &bits, &used) != 1)
        return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].bits == bits && is_four(c) == (bits < 8))
            c->levels = kinds[i].levels;
    if (!c->levels || !text[used])
        return c->levels > 0;
    if (sscanf(text, "int%*u:%u%n", &block, &used) != 1 || text[used])
        return false;
    c->block = block;
    return true;
}

static void print(const struct cmp_codec *c, char *out, size_t cap) {
    unsigned bits = is_four(c) ? 4 : 8;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].levels == c->levels)
            bits = kinds[i].bits;
    snprintf(out, cap, c->block == KERN_DEFAULT_BLOCK ? "int%u" : "int%u:%u", bits, c->block);
}

static void sizes(const struct cmp_codec *c, size_t n, size_t min[], size_t max[]) {
    min[0] = max[0] = blocks_of(c, n);
    min[1] = max[1] = code_bytes(c, n);
}

// ---- encoding and decoding ----------------------------------------------------------------------

static enum neb_status encode(struct cmp_work *w, struct cmp_frame *h,
                              const struct cmp_source *from, size_t n) {
    size_t block = h->codec.block, blocks = blocks_of(&h->codec, n);
    bool finite;
    if (n == 0)
        return NEB_OK;
    neb_buf_clear(&w->codes);
    uint16_t *steps =
        (uint16_t *)(void *)neb_buf_grow(&w->codes, blocks * sizeof *steps + 2 * block);
    struct kern_blocks b = {.x = from->x,
                            .n = n,
                            .block = block,
                            .levels = levels_of(&h->codec),
                            .four = is_four(&h->codec),
                            .steps = steps,
                            .room = (int8_t *)(steps + blocks),
                            .scales = neb_buf_grow(&w->stream[0], blocks),
                            .codes = neb_buf_grow(&w->stream[1], code_bytes(&h->codec, n))};
    if (!steps || !b.scales || !b.codes)
        return neb_buf_check(!steps ? &w->codes : !b.scales ? &w->stream[0] : &w->stream[1]);
    if (from->learned) {
        const struct cmp_feedback *f = from->learned;
        b.u = f->u, b.theta = f->theta, b.theta_m = f->theta_m, b.sent = f->sent, b.beta = f->beta;
    }
    h->top = kern_blocks_encode(&b, &finite);
    return finite ? NEB_OK : cmp_frame_not_finite();
}

static enum neb_status out_of_range(const struct cmp_frame *h) {
    return neb_fail(NEB_ERR_FORMAT, "codec frame: %s code out of range",
                    is_four(&h->codec) ? "a 4-bit" : "an 8-bit");
}

static enum neb_status verify(const struct cmp_frame *h, const struct neb_buf *raw, size_t n) {
    bool good = is_four(&h->codec) ? kern_check4(raw[1].p, n) : !n || !memchr(raw[1].p, 0x80, n);
    return good ? NEB_OK : out_of_range(h);
}

// Returns codes [at, at + n) as bytes. n <= PIECE.
static const int8_t *codes_at(const struct cmp_frame *h, const uint8_t *codes, size_t at, size_t n,
                              int8_t room[PIECE + 2]) {
    if (!is_four(&h->codec))
        return (const int8_t *)codes + at;
    size_t low = at & ~(size_t)1; // a byte holds two
    kern_expand4(room, codes + low / 2, (at + n - low + 1) / 2);
    return room + (at - low);
}

static void read(const struct cmp_frame *h, const struct neb_buf *raw, size_t at, float *out,
                 size_t n) {
    size_t block = h->codec.block, end = at + n;
    bool four = is_four(&h->codec);
    int8_t room[PIECE + 2];
    if (block == KERN_DEFAULT_BLOCK && at % block == 0) {
        size_t whole = n / block * block;
        kern_blocks_decode(out, raw[0].p + at / block, raw[1].p + (four ? at / 2 : at), whole, four,
                           h->top);
        at += whole, out += whole;
    }
    while (at < end) {
        size_t len = block - at % block;
        len = len < end - at ? len : end - at;
        len = len < PIECE ? len : PIECE;
        const int8_t *q = codes_at(h, raw[1].p, at, len, room);
        kern_dequantise(out, q, kern_scale_value(raw[0].p[at / block], h->top), len);
        at += len, out += len;
    }
}

// ---- the gate's check ---------------------------------------------------------------------------
// Codes never become floats: a block's sum of squares is an exact integer, and so is the square of
// its scale.

static void add_block(struct cmp_tally *t, uint64_t squares, size_t block) {
    double scale = (double)kern_scale_value(t->raw[0].p[block], t->h.top);
    t->sum += (double)squares * (scale * scale);
}

// Takes codes [at, at + n) one by one: in blocks that are not of 128, and in the last one.
static bool squares_of(const struct cmp_tally *t, size_t at, size_t n, uint64_t *sum) {
    bool four = is_four(&t->h.codec), good = true;
    const uint8_t *p = t->raw[1].p;
    *sum = 0;
    for (size_t i = at; i < at + n; i++) {
        int q = four ? (int)(p[i / 2] >> (i % 2 * 4) & 15) - 8 : (int8_t)p[i];
        good = good && q != (four ? -8 : -128);
        *sum += (uint64_t)(q * q);
    }
    return good;
}

// Counts all blocks whose codes have arrived.
static enum neb_status count(struct cmp_tally *t, size_t bytes) {
    bool four = is_four(&t->h.codec), last = bytes == t->raw[t->stream].len, good = true;
    size_t block = t->h.codec.block, codes = last ? t->n : four ? 2 * bytes : bytes;
    if (t->stream == 0)
        return NEB_OK;
    while (good && block == KERN_DEFAULT_BLOCK && (t->done + 1) * block <= codes) {
        uint32_t sums[BATCH];
        size_t whole = codes / block - t->done, k = whole < BATCH ? whole : BATCH;
        size_t at = t->done * block;
        good = kern_blocks_squares(sums, t->raw[1].p + (four ? at / 2 : at), k, four);
        for (size_t i = 0; i < k; i++)
            add_block(t, sums[i], t->done++);
    }
    while (good && t->done * block < codes && (last || (t->done + 1) * block <= codes)) {
        size_t at = t->done * block, len = codes - at < block ? codes - at : block;
        uint64_t sum;
        good = squares_of(t, at, len, &sum);
        add_block(t, sum, t->done++);
    }
    if (last && four && t->n % 2) // code 0 fills up the last byte
        good = good && t->raw[1].p[t->n / 2] >> 4 == 8;
    return good ? NEB_OK : out_of_range(&t->h);
}

// ---- on a device --------------------------------------------------------------------------------

// The codes of odd blocks share bytes.
static bool device_takes(const struct cmp_codec *c, size_t n) {
    return !is_four(c) || c->block % 2 == 0 || n <= c->block;
}

static enum neb_status device_encode(struct cmp_device *d, struct cmp_work *w, struct cmp_frame *h,
                                     const float *x, size_t n, float max) {
    const struct cmp_codec *c = &h->codec;
    size_t blocks = blocks_of(c, n), bytes = code_bytes(c, n);
    uint8_t *scales, *codes;
    h->top = max > 0 ? kern_scale_top(max, levels_of(c)) : 0;
    NEB_TRY(cmp_device_streams(d, blocks, bytes, &scales, &codes));
    d->D->ops->encode_blocks(d->D, scales, codes, x, n, c->block, levels_of(c), is_four(c), h->top);
    NEB_TRY(cmp_device_fetch(d, &w->stream[0], scales, blocks));
    return cmp_device_fetch(d, &w->stream[1], codes, bytes);
}

static void device_decode(struct cmp_device *d, const struct cmp_device_frame *f,
                          const uint8_t *codes, float *out) {
    d->D->ops->decode_blocks(d->D, out, f->streams, codes, f->n, f->codec.block, is_four(&f->codec),
                             f->top, (uint32_t *)(void *)d->room);
}

// ---- the vtables --------------------------------------------------------------------------------

enum { USES = CMP_BENCHED | CMP_PLANNED | CMP_LEVEL };
static const struct cmp_variant variants8[] = {{"int8", NULL, USES, 1, 6.8, 0.011, 1}, {0}};
static const struct cmp_variant variants4[] = {{"int4", NULL, USES, 2, 2.9, 0.15, 1},
                                               {"int3", NULL, USES, 3, 2.1, 0.28, 1},
                                               {"int2", NULL, USES, 4, 1.5, 0.55, 1},
                                               {0}};

#define BLOCKS                                                                                     \
    .parse = parse, .print = print, .sizes = sizes, .encode = encode, .verify = verify,            \
    .read = read, .count = count, .device_takes = device_takes, .device_encode = device_encode,    \
    .device_decode = device_decode

const struct cmp_codec_ops cmp_int8 = {.name = "int8",
                                       .usage = "int8[:BLOCK]",
                                       .variants = variants8,
                                       .number = 3,
                                       .streams = {CMP_BYTES, CMP_CODES8},
                                       BLOCKS};
const struct cmp_codec_ops cmp_int4 = {.name = "int4",
                                       .usage = "int4[:BLOCK], int3[:BLOCK], int2[:BLOCK]",
                                       .variants = variants4,
                                       .number = 4,
                                       .streams = {CMP_BYTES, CMP_CODES4},
                                       BLOCKS};
