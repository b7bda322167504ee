// SPDX-License-Identifier: Apache-2.0
// The last stage of a frame's streams: raw, zstd, nibbles or adaptive.
//
//     raw        stage 0
//     zstd       stage 1: one zstd frame
//     nibbles    stage 2, for 8-bit codes only: the low nibbles, (raw + 1) / 2 bytes,
//                then one zstd frame of the high nibbles, which unpack to as many bytes
//     adaptive   stage 3, for at most CMP_ADAPTIVE_MOST bytes (adaptive.h)
//
// An entropy decoder's time depends on symbols, not on bits. The low nibble of an 8-bit code is
// nearly noise. Without it zstd has half the symbols, for few more bytes (README.md has the
// figures).
#define ZSTD_STATIC_LINKING_ONLY // for ZSTD_c_literalCompressionMode
#include "compress/ops.h"
#include "kernels/blocks.h"

#include <math.h>
#include <string.h>
#include <zstd.h>

// Codes hold few repeats except runs. At level 1 a small table, used for long matches only, leaves
// the work to the entropy coder (README.md has what else was tried). If the library does not know
// the mode of literals, CMP_HUFFMAN is level 1.
size_t cmp_work_pack(struct cmp_work *w, uint8_t *out, size_t cap, const struct neb_buf *raw,
                     int level) {
    bool huffman = level == CMP_HUFFMAN &&
                   !ZSTD_isError(ZSTD_CCtx_setParameter(w->cctx, ZSTD_c_literalCompressionMode,
                                                        ZSTD_ps_enable));
    if (level == CMP_HUFFMAN && !huffman)
        level = 1;
    const struct {
        ZSTD_cParameter name;
        int value; // 0: the level's own
    } parameters[] = {{ZSTD_c_compressionLevel, level},
                      {ZSTD_c_hashLog, level == 1 ? 6 : 0},
                      {ZSTD_c_minMatch, level == 1 ? 7 : 0}};
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++)
        NEB_ASSERT(!ZSTD_isError(
            ZSTD_CCtx_setParameter(w->cctx, parameters[i].name, parameters[i].value)));
    size_t n = ZSTD_compress2(w->cctx, out, cap, raw->p, raw->len);
    if (huffman)
        NEB_ASSERT(!ZSTD_isError(
            ZSTD_CCtx_setParameter(w->cctx, ZSTD_c_literalCompressionMode, ZSTD_ps_auto)));
    return n;
}

// ---- the stage that suits 8-bit codes

static double entropy(const uint32_t *count, int n) { // bits per symbol
    double sum = 0, bits = 0;
    for (int i = 0; i < n; i++)
        sum += count[i];
    for (int i = 0; i < n; i++)
        bits -= count[i] ? count[i] / sum * log2(count[i] / sum) : 0;
    return bits;
}

// Decides by the entropy of a sixteenth of the codes. A gain below 3 % is not worth an entropy
// decoder. If full rows are zero, the low nibbles are not noise, and zstd takes the codes unsplit.
static enum cmp_stage stage8(const struct neb_buf *codes) {
    enum { RUN = 64, STEP = 16 * RUN };
    uint32_t whole[256] = {0}, high[16] = {0};
    for (size_t at = 0; at < codes->len; at += STEP)
        for (size_t i = at; i < at + RUN && i < codes->len; i++) {
            whole[codes->p[i]]++;
            high[(uint8_t)(codes->p[i] + 8) >> 4]++;
        }
    double all = entropy(whole, 256), split = 4 + entropy(high, 16);
    if (all > 8 * 0.97)
        return CMP_RAW;
    return split < 1.06 * all && split < 8 * 0.97 ? CMP_NIBBLES : CMP_ZSTD;
}

// Codes of few levels repeat often but briefly. Such matches cost more bits and time than Huffman
// codes, unless many rows of a table are equal (rows that learned alike, or not at all). A test on
// an eighth of the codes, at most one zstd block, decides.
static int level_of_codes(struct cmp_work *w, const struct neb_buf *codes, int level) {
    enum { LEAST = 1 << 12, MOST = 1 << 17 };
    size_t n = codes->len / 8 < MOST ? codes->len / 8 : MOST, cap = ZSTD_compressBound(n);
    if (level != 1 || n < LEAST)
        return level;
    const struct neb_buf part = {.p = codes->p + codes->len / 2 - n / 2, .len = n};
    neb_buf_clear(&w->plane);
    uint8_t *room = neb_buf_grow(&w->plane, cap);
    if (!room)
        return level;
    size_t matched = cmp_work_pack(w, room, cap, &part, level),
           plain = cmp_work_pack(w, room, cap, &part, CMP_HUFFMAN);
    bool fine = !ZSTD_isError(matched) && !ZSTD_isError(plain);
    return fine && plain <= matched + matched / 128 ? CMP_HUFFMAN : level;
}

// ---- encoding

// Writes the body of stage 2 to out. Returns its size, or 0 if zstd failed.
static size_t put_nibbles(struct cmp_work *w, uint8_t *out, size_t cap, const struct neb_buf *raw) {
    size_t half = (raw->len + 1) / 2;
    neb_buf_clear(&w->plane);
    uint8_t *high = neb_buf_grow(&w->plane, half);
    if (!high)
        return 0;
    kern_split8(out, high, raw->p, raw->len);
    size_t n = cmp_work_pack(w, out + half, cap - half, &w->plane, 1);
    return ZSTD_isError(n) ? 0 : half + n;
}

static int width_of(size_t n) { return n < 1 << 8 ? 1 : n < 1 << 16 ? 2 : n < 1 << 24 ? 3 : 4; }

static uint8_t *put_size(uint8_t *at, size_t n, int width) {
    for (int i = 0; i < width; i++)
        *at++ = (uint8_t)(n >> 8 * i);
    return at;
}

const struct cmp_adaptive cmp_of_counts = {.width = 8};

struct cmp_adaptive cmp_stage_adaptive(enum cmp_stream kind, size_t n, size_t min) {
    unsigned width = kind == CMP_CODES2 ? 2 : kind == CMP_CODES4 ? 4 : 8;
    size_t mean = kind == CMP_GAPS && min ? (n - min) / min : 0;
    return (struct cmp_adaptive){width, mean < UINT16_MAX ? (uint32_t)mean : UINT16_MAX};
}

// sized: its raw size follows from the frame's head. Packed bytes are fewer than raw ones, so the
// width of the raw size is enough for both.
static enum neb_status put_stream(struct cmp_work *w, struct neb_buf *out,
                                  const struct neb_buf *raw, int level, enum cmp_stage stage,
                                  const struct cmp_adaptive *a, bool sized) {
    size_t bound = ZSTD_compressBound(raw->len) + raw->len;
    int width = width_of(raw->len);
    NEB_TRY(neb_buf_reserve(out, CMP_STREAM_HEAD + bound));
    uint8_t *at = out->p + out->len, *sizes = at + 1 + (sized ? 0 : width);
    size_t n = 0;
    if (raw->len && level && raw->len <= CMP_ADAPTIVE_MOST) {
        neb_buf_clear(&w->plane);
        NEB_TRY(cmp_adaptive_put(a, raw->p, raw->len, &w->plane));
        stage = CMP_ADAPTIVE, n = w->plane.len;
        memcpy(sizes + width, w->plane.p, n < raw->len ? n : raw->len);
    } else if (raw->len && level && stage == CMP_NIBBLES)
        n = put_nibbles(w, sizes + width, bound, raw);
    else if (raw->len && level && stage == CMP_ZSTD)
        n = cmp_work_pack(w, sizes + width, bound, raw, level);
    if (!n || ZSTD_isError(n) || n >= raw->len) {
        stage = CMP_RAW;
        if ((n = raw->len))
            memcpy(sizes, raw->p, n);
    } else {
        n += (size_t)(put_size(sizes, n, width) - sizes);
    }
    at[0] = (uint8_t)(stage | width << 2);
    if (!sized)
        (void)put_size(at + 1, raw->len, width);
    out->len += (size_t)(sizes - at) + n;
    return NEB_OK;
}

enum neb_status cmp_frame_put_all(struct cmp_work *w, struct neb_buf *out,
                                  const struct cmp_frame *h, int level) {
    size_t min[CMP_STREAMS_MAX] = {0}, max[CMP_STREAMS_MAX] = {0};
    cmp_frame_put(out, h);
    cmp_ops(&h->codec)->sizes(&h->codec, h->n, min, max);
    for (int i = 0; i < cmp_frame_streams(&h->codec); i++) {
        const struct neb_buf *raw = &w->stream[i];
        enum cmp_stream kind = cmp_ops(&h->codec)->streams[i];
        const struct cmp_adaptive a = cmp_stage_adaptive(kind, h->n, min[i]);
        NEB_TRY(neb_buf_check(raw));
        NEB_TRY(put_stream(w, out, raw, kind == CMP_CODES4 ? level_of_codes(w, raw, level) : level,
                           kind == CMP_CODES8 && level ? stage8(raw) : CMP_ZSTD, &a,
                           min[i] == max[i]));
    }
    return neb_buf_check(out);
}

// ---- decoding

static enum neb_status unpack(struct cmp_work *w, uint8_t *out, size_t raw, const uint8_t *p,
                              size_t len) {
    // zstd refuses to write past `raw` bytes, even if its frame claims more.
    size_t n = ZSTD_decompressDCtx(w->dctx, out, raw, p, len);
    if (ZSTD_isError(n) || n != raw)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: a zstd stream does not unpack to its size");
    return NEB_OK;
}

enum neb_status cmp_frame_join(uint8_t *codes, const uint8_t *low, const uint8_t *high, size_t n) {
    size_t half = (n + 1) / 2;
    if (n % 2 && (low[half - 1] >> 4 || high[half - 1] >> 4))
        return neb_fail(NEB_ERR_FORMAT, "codec frame: a nibble after the last code");
    kern_join8(codes, low, high, n);
    return NEB_OK;
}

static enum neb_status get_nibbles(struct cmp_work *w, uint8_t *out, size_t raw, const uint8_t *p,
                                   size_t len) {
    size_t half = (raw + 1) / 2;
    neb_buf_clear(&w->plane);
    NEB_TRY(neb_buf_reserve(&w->plane, half + 1));
    NEB_TRY(unpack(w, w->plane.p, half, p + half, len - half));
    return cmp_frame_join(out, p, w->plane.p, raw);
}

size_t cmp_stage_head_bytes(uint8_t first, bool sized) {
    return 1 + (size_t)(first >> 2) * ((sized ? 0 : 1) + ((first & 3) != CMP_RAW));
}

static size_t get_size(struct neb_rd *r, int width) {
    size_t n = 0;
    for (int i = 0; i < width; i++)
        n |= (size_t)neb_rd_u8(r) << 8 * i;
    return n;
}

enum neb_status cmp_stage_get(struct neb_rd *r, enum cmp_stream kind, size_t min, size_t max,
                              struct cmp_stage_head *out) {
    uint8_t first = neb_rd_u8(r), stage = first & 3;
    int width = first >> 2;
    if (r->bad || (stage == CMP_NIBBLES && kind != CMP_CODES8) || width < 1 || width > 4)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: no valid head of a stream");
    size_t raw = min == max ? min : get_size(r, width),
           len = stage == CMP_RAW ? raw : get_size(r, width);
    *out = (struct cmp_stage_head){(enum cmp_stage)stage, raw, len};
    if (r->bad || raw < min || raw > max)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: a stream of %zu bytes, %zu to %zu expected",
                        raw, min, max);
    if (stage == CMP_NIBBLES && (raw == 0 || len < (raw + 1) / 2))
        return neb_fail(NEB_ERR_FORMAT, "codec frame: %zu bytes of nibbles, at least %zu expected",
                        len, (raw + 1) / 2);
    if (stage == CMP_ADAPTIVE && (raw > CMP_ADAPTIVE_MOST || len > raw))
        return cmp_adaptive_refuse();
    return NEB_OK;
}

enum neb_status cmp_adaptive_open(const struct cmp_adaptive *a, uint8_t *out, size_t n,
                                  const uint8_t *p, size_t len) {
    return cmp_adaptive_get(a, out, n, p, len)
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT, "codec frame: bytes after an adaptive stream");
}

enum neb_status cmp_adaptive_refuse(void) {
    return neb_fail(NEB_ERR_FORMAT, "codec frame: an adaptive stream is too long");
}

enum neb_status cmp_frame_get_stream(struct cmp_work *w, struct neb_rd *r, enum cmp_stream kind,
                                     size_t n, size_t min, size_t max, struct neb_buf *into) {
    struct cmp_stage_head s;
    NEB_TRY(cmp_stage_get(r, kind, min, max, &s));
    const uint8_t *p = neb_rd_view(r, s.len);
    if (r->bad)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: cut short");
    neb_buf_clear(into);
    NEB_TRY(neb_buf_reserve(into, s.raw + 1));
    into->len = s.raw;
    if (s.stage == CMP_NIBBLES)
        return get_nibbles(w, into->p, s.raw, p, s.len);
    const struct cmp_adaptive a = cmp_stage_adaptive(kind, n, min);
    if (s.stage == CMP_ADAPTIVE)
        return cmp_adaptive_open(&a, into->p, s.raw, p, s.len);
    if (s.stage == CMP_ZSTD)
        return unpack(w, into->p, s.raw, p, s.len);
    if (s.raw)
        memcpy(into->p, p, s.raw);
    return NEB_OK;
}
