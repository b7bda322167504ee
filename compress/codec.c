// SPDX-License-Identifier: Apache-2.0
// Frame headers, and the entry points of all codecs (codec.h).
#include "compress/check.h"
#include "compress/ops.h"
#include "kernels/exact.h"
#include "kernels/quant.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x3246424e /* "NBF2" */, NUMBER_AT = 4, BITS_AT = 5 };

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

// ---- header and streams

static bool wide(const struct cmp_codec_ops *ops, int bits) { return ops->codebook && bits == 4; }

void cmp_frame_put(struct neb_buf *out, const struct cmp_frame *h) {
    const struct cmp_codec *c = &h->codec;
    neb_buf_u32(out, MAGIC);
    neb_buf_u8(out, cmp_ops(c)->number);
    neb_buf_u8(out, wide(cmp_ops(c), c->bits) ? 4 : 0);
    neb_buf_u16(out, (uint16_t)c->block);
    neb_buf_u32(out, c->chunk);
    neb_buf_u32(out, c->k);
    neb_buf_u16(out, (uint16_t)(int16_t)h->top);
    neb_buf_f32(out, h->mags[0]);
    neb_buf_f32(out, h->mags[1]);
    neb_buf_u64(out, h->n);
    neb_buf_u32(out, 0);
    neb_buf_u8(out, (uint8_t)cmp_frame_streams(c));
    for (int i = 2; wide(cmp_ops(c), c->bits) && i < CMP_MAGS; i++)
        neb_buf_f32(out, h->mags[i]);
}

size_t cmp_frame_more(const uint8_t *p) {
    int format = cmp_format_numbered(p[NUMBER_AT]);
    return format >= 0 && wide(cmp_codecs[format], p[BITS_AT]) ? CMP_CODEBOOK_BYTES : 0;
}

int cmp_frame_bins(int bits) { return bits == 4 ? CMP_MAGS : 2; }

int cmp_frame_streams(const struct cmp_codec *c) {
    int n = 0;
    while (n < CMP_STREAMS_MAX && cmp_ops(c)->streams[n] != CMP_NO_STREAM)
        n++;
    return n;
}

static bool usable_mags(const float *m, int n) { // finite, ascending, not too large
    for (int i = 1; i < n; i++)
        if (!(m[i - 1] >= 0 && m[i] >= m[i - 1] && m[i] <= CMP_MAG_MAX))
            return false;
    return true;
}

enum neb_status cmp_frame_get(struct neb_rd *r, struct cmp_frame *h) {
    uint32_t magic = neb_rd_u32(r);
    struct cmp_codec *c = &h->codec;
    int format = cmp_format_numbered(neb_rd_u8(r));
    uint8_t bits = neb_rd_u8(r);
    *c = (struct cmp_codec){.format = (uint8_t)(format < 0 ? 0 : format),
                            .block = neb_rd_u16(r),
                            .bits = bits ? bits : 2};
    c->chunk = neb_rd_u32(r);
    c->k = neb_rd_u32(r);
    h->top = (int16_t)neb_rd_u16(r);
    h->mags[0] = neb_rd_f32(r);
    h->mags[1] = neb_rd_f32(r);
    h->n = neb_rd_u64(r);
    uint32_t zero = neb_rd_u32(r);
    uint8_t streams = neb_rd_u8(r);
    bool fine = format >= 0 && wide(cmp_ops(c), bits); // the rest of the codebook follows
    for (int i = 2; fine && i < CMP_MAGS; i++)
        h->mags[i] = neb_rd_f32(r);
    if (!r->bad && magic != MAGIC && (magic & 0xffffff) == (MAGIC & 0xffffff))
        return neb_fail(
            NEB_ERR_FORMAT,
            "codec frame: version '%c', this program reads '2'; run the same release on all "
            "members",
            isprint((int)(magic >> 24)) ? (int)(magic >> 24) : '?');
    if (r->bad || magic != MAGIC || format < 0 || (bits && !fine) || zero)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: no valid header");
    if (streams != cmp_frame_streams(c) || h->n > CMP_ELEMENTS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: %u streams, %llu elements", streams,
                        (unsigned long long)h->n);
    if (c->block < 8 || c->chunk < 64 || c->chunk > 65536 || c->k < 1 || c->k > c->chunk ||
        h->top < -90 || h->top > 120 || !usable_mags(h->mags, fine ? CMP_MAGS : 2))
        return neb_fail(NEB_ERR_FORMAT, "codec frame: parameters out of range");
    return NEB_OK;
}

enum neb_status cmp_frame_peek(const uint8_t *frame, size_t len, struct cmp_frame_info *out) {
    struct neb_rd r = neb_rd_make(frame, len);
    struct cmp_frame h;
    NEB_TRY(cmp_frame_get(&r, &h));
    *out = (struct cmp_frame_info){.codec = h.codec, .n = h.n};
    return NEB_OK;
}

enum neb_status cmp_frame_open(struct cmp_work *w, const uint8_t *frame, size_t len, size_t n,
                               struct cmp_frame *h, struct neb_buf raw[CMP_STREAMS_MAX]) {
    struct neb_rd r = neb_rd_make(frame, len);
    size_t min[CMP_STREAMS_MAX] = {0}, max[CMP_STREAMS_MAX] = {0};
    NEB_TRY(cmp_frame_get(&r, h));
    if (h->n != n)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: %llu elements, %zu expected",
                        (unsigned long long)h->n, n);
    const struct cmp_codec_ops *ops = cmp_ops(&h->codec);
    ops->sizes(&h->codec, n, min, max);
    for (int i = 0; i < cmp_frame_streams(&h->codec); i++)
        NEB_TRY(cmp_frame_get_stream(w, &r, ops->streams[i], min[i], max[i], &raw[i]));
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: bytes after its end");
}

enum neb_status cmp_frame_read(const struct cmp_frame *h, const struct neb_buf *raw, size_t at,
                               float *out, size_t n) {
    bool finite = true;
    cmp_ops(&h->codec)->read(h, raw, at, out, n);
    if (cmp_ops(&h->codec)->may_be_infinite)
        (void)kern_absmax(out, n, &finite);
    return finite ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: a value is NaN or infinite");
}

// ---- encoding

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

enum neb_status cmp_source_all(const struct cmp_source *s, size_t n, const float **x) {
    bool finite;
    *x = cmp_source_at(s, 0, n);
    (void)kern_absmax(*x, n, &finite);
    return finite ? NEB_OK : cmp_frame_not_finite();
}

static enum neb_status encode(struct cmp_work *w, const struct cmp_codec *c,
                              const struct cmp_source *from, size_t n, struct neb_buf *out) {
    struct cmp_frame h = {.codec = n < CMP_DENSE_BELOW ? cmp_codec_dense(c) : *c, .n = n};
    NEB_ASSERT(n <= CMP_ELEMENTS_MAX);
    for (int i = 0; i < CMP_STREAMS_MAX; i++)
        neb_buf_clear(&w->stream[i]);
    unsigned was = kern_exact_enter();
    enum neb_status st = cmp_ops(&h.codec)->encode(w, &h, from, n);
    if (st == NEB_OK)
        st = cmp_frame_put_all(w, out, &h, c->zstd_level);
    kern_exact_leave(was);
    return st;
}

enum neb_status cmp_encode(struct cmp_work *w, const struct cmp_codec *c, const float *x, size_t n,
                           struct neb_buf *out) {
    return encode(w, c, &(struct cmp_source){.x = x}, n, out);
}

enum neb_status cmp_encode_feedback(struct cmp_work *w, const struct cmp_codec *c,
                                    const struct cmp_feedback *f, size_t n, struct neb_buf *out) {
    return encode(w, c, &(struct cmp_source){.learned = f}, n, out);
}

// ---- decoding

static enum neb_status decode(struct cmp_work *w, const uint8_t *frame, size_t len, float *out,
                              size_t n) {
    struct cmp_frame h;
    NEB_TRY(cmp_frame_open(w, frame, len, n, &h, w->stream));
    const struct cmp_codec_ops *ops = cmp_ops(&h.codec);
    if (ops->unpack)
        return ops->unpack(&h, w->stream, n, &(struct cmp_sink){.out = out});
    if (ops->verify)
        NEB_TRY(ops->verify(&h, w->stream, n));
    return cmp_frame_read(&h, w->stream, 0, out, n);
}

enum neb_status cmp_decode(struct cmp_work *w, const uint8_t *frame, size_t len, float *out,
                           size_t n) {
    unsigned was = kern_exact_enter();
    enum neb_status st = decode(w, frame, len, out, n);
    kern_exact_leave(was);
    return st;
}
