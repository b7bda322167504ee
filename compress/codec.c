// SPDX-License-Identifier: Apache-2.0
// Frame headers, and the entry points of all codecs (codec.h).
#include "compress/check.h"
#include "compress/ops.h"
#include "kernels/exact.h"
#include "kernels/quant.h"
#include "kernels/scale.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

void cmp_put_number(struct neb_buf *out, uint64_t x) {
    for (; x >= 0x80; x >>= 7)
        neb_buf_u8(out, (uint8_t)(x | 0x80));
    neb_buf_u8(out, (uint8_t)x);
}

uint64_t cmp_get_number(struct neb_rd *r) {
    uint64_t x = 0;
    for (int shift = 0; shift < 35 && !r->bad; shift += 7) {
        uint8_t byte = neb_rd_u8(r);
        x |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            r->bad = r->bad || (shift && !byte);
            return r->bad ? 0 : x;
        }
    }
    r->bad = true;
    return 0;
}

size_t cmp_head_begin(struct neb_buf *out) {
    neb_buf_u8(out, 0);
    return out->len;
}

void cmp_head_end(struct neb_buf *out, size_t at) {
    if (neb_buf_check(out) == NEB_OK)
        out->p[at - 1] = (uint8_t)(out->len - at);
}

struct neb_rd cmp_head_get(struct neb_rd *r, size_t most) {
    size_t n = neb_rd_u8(r);
    r->bad = r->bad || n >= most;
    const uint8_t *p = neb_rd_view(r, r->bad ? 0 : n);
    return neb_rd_make(p, r->bad ? 0 : n);
}

void cmp_frame_put(struct neb_buf *out, const struct cmp_frame *h) {
    const struct cmp_codec *c = &h->codec;
    size_t at = cmp_head_begin(out);
    neb_buf_u8(out, cmp_ops(c)->number);
    neb_buf_u8(out, wide(cmp_ops(c), c->bits) ? 4 : 0);
    neb_buf_u8(out, (uint8_t)(int8_t)h->top);
    cmp_put_number(out, h->n);
    if (cmp_codec_sparse(c)) {
        cmp_put_number(out, c->chunk);
        cmp_put_number(out, c->k);
        for (int i = 0; i < cmp_frame_bins(c->bits); i++)
            neb_buf_u16(out, (uint16_t)(kern_bits_of(h->mags[i]) >> 16));
    } else {
        cmp_put_number(out, c->block);
    }
    cmp_head_end(out, at);
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

enum neb_status cmp_frame_get(struct neb_rd *from, struct cmp_frame *h) {
    struct neb_rd r = cmp_head_get(from, CMP_FRAME_HEAD);
    struct cmp_codec *c = &h->codec;
    int format = cmp_format_numbered(neb_rd_u8(&r));
    uint8_t bits = neb_rd_u8(&r);
    *h = (struct cmp_frame){.top = (int8_t)neb_rd_u8(&r), .n = cmp_get_number(&r)};
    *c = (struct cmp_codec){.format = (uint8_t)(format < 0 ? 0 : format),
                            .block = 8,
                            .chunk = 64,
                            .k = 1,
                            .bits = bits ? bits : 2};
    bool fine = format >= 0 && wide(cmp_ops(c), bits);
    if (from->bad || format < 0 || (bits && !fine))
        return neb_fail(NEB_ERR_FORMAT, "codec frame: no valid header");
    uint64_t block = c->block, chunk = c->chunk, k = c->k;
    if (cmp_codec_sparse(c)) {
        chunk = cmp_get_number(&r);
        k = cmp_get_number(&r);
        for (int i = 0; i < cmp_frame_bins(c->bits); i++)
            h->mags[i] = kern_float_of((uint32_t)neb_rd_u16(&r) << 16);
    } else {
        block = cmp_get_number(&r);
    }
    if (!neb_rd_done(&r) || h->n > CMP_ELEMENTS_MAX || block < 8 || block > 65535 || chunk < 64 ||
        chunk > 65536 || k < 1 || k > chunk || h->top < -90 || h->top > 120 ||
        !usable_mags(h->mags, fine ? CMP_MAGS : 2))
        return neb_fail(NEB_ERR_FORMAT, "codec frame: parameters out of range");
    c->block = (uint32_t)block, c->chunk = (uint32_t)chunk, c->k = (uint32_t)k;
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
        NEB_TRY(cmp_frame_get_stream(w, &r, ops->streams[i], n, min[i], max[i], &raw[i]));
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
