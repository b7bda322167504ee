// SPDX-License-Identifier: Apache-2.0
// Codecs (codec.h): names, frame headers, the plain codecs, and the entry points of all.
#include "compress/check.h"
#include "compress/frame.h"
#include "kernels/exact.h"
#include "kernels/quant.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x3246424e /* "NBF2" */ };

enum neb_status cmp_work_create(struct cmp_work **out) {
    struct cmp_work *w = calloc(1, sizeof *w);
    if (w) {
        w->cctx = ZSTD_createCCtx();
        w->dctx = ZSTD_createDCtx();
    }
    if (!w || !w->cctx || !w->dctx) {
        cmp_work_destroy(&w);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a codec's work space");
    }
    *out = w;
    return NEB_OK;
}

void cmp_work_destroy(struct cmp_work **wp) {
    struct cmp_work *w = *wp;
    if (!w)
        return;
    ZSTD_freeCCtx(w->cctx);
    ZSTD_freeDCtx(w->dctx);
    for (int i = 0; i < CMP_STREAMS_MAX; i++)
        neb_buf_free(&w->stream[i]);
    neb_buf_free(&w->codes);
    neb_buf_free(&w->counts);
    neb_buf_free(&w->plane);
    cmp_check_destroy(&w->check);
    free(w);
    *wp = NULL;
}

size_t cmp_work_bytes(const struct cmp_work *w) {
    return sizeof *w + ZSTD_sizeof_CCtx(w->cctx) + ZSTD_sizeof_DCtx(w->dctx);
}

// ---- names

// int4's step is a block's largest value / 5.5, not / 7: fewer bits for more error, which feedback
// returns (README.md). Three levels need the block's typical value instead of its largest.
static bool integer_codec(unsigned bits, struct cmp_codec *c) {
    c->id = bits == 8 ? CMP_INT8 : CMP_INT4;
    c->levels = bits == 8 ? 127 : bits == 4 ? 6 : bits == 3 ? 3 : bits == 2 ? 1 : 0;
    return c->levels > 0;
}

enum neb_status cmp_codec_parse(const char *text, struct cmp_codec *out) {
    unsigned a = 0, b = 0;
    int used = 0;
    struct cmp_codec c = {.block = 128, .chunk = 4096, .k = 64, .zstd_level = 1, .bits = 2};
    if (!strcmp(text, "fp32"))
        c.id = CMP_FP32;
    else if (!strcmp(text, "bf16"))
        c.id = CMP_BF16;
    else if (sscanf(text, "int%u%n", &a, &used) == 1 && integer_codec(a, &c) &&
             (!text[used] || (sscanf(text, "int%*u:%u%n", &c.block, &used) == 1 && !text[used])))
        ;
    else if (!strcmp(text, "topk"))
        c.id = CMP_TOPK;
    else if (sscanf(text, "topk:%u/%u%n", &a, &b, &used) == 2 &&
             (!text[used] || !strcmp(text + used, ":4") || !strcmp(text + used, ":2")))
        c.id = CMP_TOPK, c.k = a, c.chunk = b, c.bits = !strcmp(text + used, ":4") ? 4 : 2;
    else
        return neb_fail(
            NEB_ERR_INVALID,
            "codec \"%s\" is not known; use fp32, bf16, int8, int4, int3 or int2 (these four also "
            "with :BLOCK), topk, topk:K/CHUNK, topk:K/CHUNK:2 or topk:K/CHUNK:4",
            text);
    if (c.block < 8 || c.block > 65535 || c.chunk < 64 || c.chunk > 65536 || c.k < 1 ||
        c.k > c.chunk)
        return neb_fail(NEB_ERR_INVALID,
                        "codec \"%s\": BLOCK is 8..65535, CHUNK 64..65536, K 1..CHUNK", text);
    *out = c;
    return NEB_OK;
}

void cmp_codec_complete(struct cmp_codec *c) {
    if (c->levels < 1)
        c->levels = c->id == CMP_INT8 ? 127 : 6;
    if (c->bits != 4)
        c->bits = 2;
}

void cmp_codec_name(const struct cmp_codec *c, char *out, size_t cap) {
    switch (c->id) {
    case CMP_FP32: snprintf(out, cap, "fp32"); break;
    case CMP_BF16: snprintf(out, cap, "bf16"); break;
    case CMP_INT8:
    case CMP_INT4: {
        int bits = c->id == CMP_INT8 ? 8 : c->levels == 1 ? 2 : c->levels == 3 ? 3 : 4;
        snprintf(out, cap, c->block == 128 ? "int%d" : "int%d:%u", bits, c->block);
        break;
    }
    case CMP_TOPK:
        snprintf(out, cap, c->bits == 4 ? "topk:%u/%u:4" : "topk:%u/%u", c->k, c->chunk);
        break;
    }
}

uint64_t cmp_codec_bytes_max(const struct cmp_codec *c, uint64_t n, uint64_t units) {
    enum {
        HEADS = 512
    }; // bytes of a unit's heads: of the update, the frame, the streams; and the last block's scale
    // n / 16: row counts, a byte for a row of at least 16 columns
    uint64_t most = units * HEADS + n / 16;
    uint64_t chunks = n / c->chunk + units;
    switch (c->id) {
    case CMP_FP32: return most + 4 * n;
    case CMP_BF16: return most + 2 * n;
    case CMP_INT8: return most + n + n / c->block;
    case CMP_INT4: return most + n / 2 + n / c->block;
    // scale, gaps and values of chunks, and small arrays as int8; n / 16 has room for vectors
    case CMP_TOPK:
        most += n < units * CMP_DENSE_BELOW ? n : units * CMP_DENSE_BELOW;
        return most + chunks * (2 + c->chunk / CMP_GAP_ESCAPE + c->k) +
               chunks * c->k * (uint64_t)c->bits / 8;
    }
    return most;
}

// ---- header and streams

void cmp_frame_put(struct neb_buf *out, const struct cmp_frame *h, int streams) {
    neb_buf_u32(out, MAGIC);
    neb_buf_u8(out, (uint8_t)h->codec.id);
    neb_buf_u8(out, h->codec.id == CMP_TOPK && h->codec.bits == 4 ? 4 : 0);
    neb_buf_u16(out, (uint16_t)h->codec.block);
    neb_buf_u32(out, h->codec.chunk);
    neb_buf_u32(out, h->codec.k);
    neb_buf_u16(out, (uint16_t)(int16_t)h->top);
    neb_buf_f32(out, h->mags[0]);
    neb_buf_f32(out, h->mags[1]);
    neb_buf_u64(out, h->n);
    neb_buf_u32(out, 0);
    neb_buf_u8(out, (uint8_t)streams);
    for (int i = 2; h->codec.id == CMP_TOPK && i < cmp_frame_bins(h->codec.bits); i++)
        neb_buf_f32(out, h->mags[i]);
}

int cmp_frame_bins(int bits) { return bits == 4 ? CMP_MAGS : 2; }

static bool usable_mags(const float *m, int n) { // finite, ascending, not too large
    for (int i = 1; i < n; i++)
        if (!(m[i - 1] >= 0 && m[i] >= m[i - 1] && m[i] <= CMP_MAG_MAX))
            return false;
    return true;
}

int cmp_frame_streams(enum cmp_codec_id id) {
    switch (id) {
    case CMP_FP32: return 1;
    case CMP_BF16:
    case CMP_INT8:
    case CMP_INT4: return 2;
    case CMP_TOPK: return 3;
    }
    return 0;
}

enum neb_status cmp_frame_get(struct neb_rd *r, struct cmp_frame *h) {
    uint32_t magic = neb_rd_u32(r);
    uint8_t id = neb_rd_u8(r), bits = neb_rd_u8(r);
    h->codec = (struct cmp_codec){.block = neb_rd_u16(r), .bits = bits ? bits : 2};
    h->codec.chunk = neb_rd_u32(r);
    h->codec.k = neb_rd_u32(r);
    h->top = (int16_t)neb_rd_u16(r);
    h->mags[0] = neb_rd_f32(r);
    h->mags[1] = neb_rd_f32(r);
    h->n = neb_rd_u64(r);
    uint32_t zero2 = neb_rd_u32(r);
    uint8_t streams = neb_rd_u8(r);
    bool fine = id == CMP_TOPK && bits == 4; // the rest of the codebook follows
    for (int i = 2; fine && i < CMP_MAGS; i++)
        h->mags[i] = neb_rd_f32(r);
    if (!r->bad && magic != MAGIC && (magic & 0xffffff) == (MAGIC & 0xffffff))
        return neb_fail(
            NEB_ERR_FORMAT,
            "codec frame: version '%c', this program reads '2'; run the same release on all "
            "members",
            isprint((int)(magic >> 24)) ? (int)(magic >> 24) : '?');
    if (r->bad || magic != MAGIC || (bits && !fine) || zero2 || id < CMP_FP32 || id > CMP_ID_LAST)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: no valid header");
    h->codec.id = (enum cmp_codec_id)id;
    if (streams != cmp_frame_streams(h->codec.id) || h->n > CMP_ELEMENTS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: %u streams, %llu elements", streams,
                        (unsigned long long)h->n);
    if (h->codec.block < 8 || h->codec.chunk < 64 || h->codec.chunk > 65536 || h->codec.k < 1 ||
        h->codec.k > h->codec.chunk || h->top < -90 || h->top > 120 ||
        !usable_mags(h->mags, fine ? CMP_MAGS : 2))
        return neb_fail(NEB_ERR_FORMAT, "codec frame: parameters out of range");
    return NEB_OK;
}

// ---- encoders

enum neb_status cmp_frame_not_finite(void) {
    return neb_fail(NEB_ERR_INVALID,
                    "cannot encode: an element is NaN or infinite (training has diverged)");
}

const float *cmp_source_at(const struct cmp_source *s, size_t at, size_t n) {
    const struct cmp_feedback *f = s->learned;
    if (!f)
        return s->x + at;
    kern_exact_pseudo_gradient(f->u + at, f->theta + at, f->theta_m + at, f->beta, n);
    if (f->sent && n)
        memcpy(f->sent + at, f->theta_m + at, n * sizeof *f->sent);
    return f->u + at;
}

// Floats are little-endian on the wire, and mostly in memory too. Other processors take the loops.
static void put_floats(uint8_t *to, const float *x, size_t n) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (n)
        memcpy(to, x, n * 4);
#else
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        neb_put_u32(to + 4 * i, u);
    }
#endif
}

// fp32 and bf16
static enum neb_status encode_plain(struct cmp_work *w, const struct cmp_frame *h,
                                    const struct cmp_source *from, size_t n) {
    const float *x = cmp_source_at(from, 0, n);
    bool finite;
    (void)kern_absmax(x, n, &finite);
    if (!finite)
        return cmp_frame_not_finite();
    if (h->codec.id == CMP_FP32) {
        uint8_t *to = neb_buf_grow(&w->stream[0], n * 4);
        if (to)
            put_floats(to, x, n);
    } else {
        uint8_t *high = neb_buf_grow(&w->stream[0], n), *low = neb_buf_grow(&w->stream[1], n);
        if (high && low)
            kern_bf16_split(high, low, x, n);
    }
    return NEB_OK;
}

static enum neb_status encode(struct cmp_work *w, const struct cmp_codec *c,
                              const struct cmp_source *from, size_t n, struct neb_buf *out) {
    struct cmp_frame h = {.codec = *c, .n = n};
    NEB_ASSERT(n <= CMP_ELEMENTS_MAX);
    cmp_codec_complete(&h.codec);
    for (int i = 0; i < CMP_STREAMS_MAX; i++)
        neb_buf_clear(&w->stream[i]);
    if (h.codec.id == CMP_TOPK && n < CMP_DENSE_BELOW)
        integer_codec(8, &h.codec);
    switch (h.codec.id) {
    case CMP_FP32:
    case CMP_BF16: NEB_TRY(encode_plain(w, &h, from, n)); break;
    case CMP_INT8:
    case CMP_INT4: NEB_TRY(cmp_blocks_encode(w, &h, from, n)); break;
    case CMP_TOPK: NEB_TRY(cmp_topk_encode(w, &h, from, n)); break;
    }
    return cmp_frame_put_all(w, out, &h, c->zstd_level);
}

enum neb_status cmp_encode(struct cmp_work *w, const struct cmp_codec *c, const float *x, size_t n,
                           struct neb_buf *out) {
    unsigned was = kern_exact_enter();
    enum neb_status st = encode(w, c, &(struct cmp_source){.x = x}, n, out);
    kern_exact_leave(was);
    return st;
}

enum neb_status cmp_encode_feedback(struct cmp_work *w, const struct cmp_codec *c,
                                    const struct cmp_feedback *f, size_t n, struct neb_buf *out) {
    unsigned was = kern_exact_enter();
    enum neb_status st = encode(w, c, &(struct cmp_source){.learned = f}, n, out);
    kern_exact_leave(was);
    return st;
}

// ---- decoders

void cmp_frame_floats(float *out, const uint8_t *p, size_t n) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (n)
        memcpy(out, p, n * 4);
#else
    struct neb_rd f = neb_rd_make(p, n * 4);
    for (size_t i = 0; i < n; i++)
        out[i] = neb_rd_f32(&f);
#endif
}

enum neb_status cmp_frame_wrong_size(const struct cmp_frame *h, size_t n) {
    return neb_fail(NEB_ERR_FORMAT, "codec frame: %llu elements, %zu expected",
                    (unsigned long long)h->n, n);
}

static enum neb_status decode(struct cmp_work *w, const uint8_t *frame, size_t len, float *out,
                              size_t n) {
    struct neb_rd r = neb_rd_make(frame, len);
    struct cmp_frame h;
    NEB_TRY(cmp_frame_get(&r, &h));
    if (h.n != n)
        return cmp_frame_wrong_size(&h, n);
    switch (h.codec.id) {
    case CMP_FP32:
        NEB_TRY(cmp_frame_get_stream(w, &r, NULL, n * 4, n * 4, &w->stream[0]));
        cmp_frame_floats(out, w->stream[0].p, n);
        break;
    case CMP_BF16:
        NEB_TRY(cmp_frame_get_stream(w, &r, NULL, n, n, &w->stream[0]));
        NEB_TRY(cmp_frame_get_stream(w, &r, NULL, n, n, &w->stream[1]));
        kern_bf16_join(out, w->stream[0].p, w->stream[1].p, n);
        break;
    case CMP_INT8:
    case CMP_INT4: NEB_TRY(cmp_blocks_decode(w, &r, &h, out, n)); break;
    case CMP_TOPK:
        NEB_TRY(cmp_frame_get_topk(w, &r, &h, n, &(struct cmp_topk_sink){.out = out}));
        break;
    }
    // Values of int8 and int4 are always finite (127 * 2^120 * grid[7] is). topk checks each
    // chunk's values.
    bool finite = true;
    if (h.codec.id == CMP_FP32 || h.codec.id == CMP_BF16)
        (void)kern_absmax(out, n, &finite);
    if (!finite)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: a value is NaN or infinite");
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: bytes after its end");
}

enum neb_status cmp_decode(struct cmp_work *w, const uint8_t *frame, size_t len, float *out,
                           size_t n) {
    unsigned was = kern_exact_enter();
    enum neb_status st = decode(w, frame, len, out, n);
    kern_exact_leave(was);
    return st;
}

enum neb_status cmp_frame_peek(const uint8_t *frame, size_t len, struct cmp_frame_info *out) {
    struct neb_rd r = neb_rd_make(frame, len);
    struct cmp_frame h;
    NEB_TRY(cmp_frame_get(&r, &h));
    *out = (struct cmp_frame_info){.codec = h.codec, .n = h.n};
    return NEB_OK;
}
