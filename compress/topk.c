// SPDX-License-Identifier: Apache-2.0
// Top-k by chunk: a scale byte for each chunk, gaps between the indices of the chosen elements, and
// for each of these a sign and a bin of magnitude.
//
//     bins by |value| / scale   2 bits   0 ─────────────── 1.25 ──────────────►     two
//                               4 bits   0 ─ .84 .91 .98 1.06 1.2 1.45 1.9 ───►     eight
//
// The codebook holds each bin's mean over the frame, so decoders need not know the edges. One pass
// over the array chooses from all chunks. Scale bytes are relative to the largest value of all,
// which is known only after that pass.
#include "compress/frame.h"
#include "kernels/exact.h"
#include "kernels/quant.h"
#include "kernels/scale.h"

#include <math.h>
#include <string.h>

size_t cmp_frame_chunk_k(const struct cmp_codec *c, size_t len) {
    size_t k = (c->k * len + c->chunk - 1) / c->chunk;
    return k < 1 ? 1 : k;
}

size_t cmp_frame_entries(const struct cmp_codec *c, size_t n) {
    size_t whole = n / c->chunk, last = n % c->chunk;
    return whole * cmp_frame_chunk_k(c, c->chunk) + (last ? cmp_frame_chunk_k(c, last) : 0);
}

// A chunk's scale is the mean magnitude of its chosen elements. These edges are near the best ones,
// for pseudo-gradients and for heavy tails.
static const float edges[] = {0.84f, 0.91f, 0.98f, 1.06f, 1.2f, 1.45f, 1.9f}, edge_of_two = 1.25f;

static unsigned bin_of(float mag, float scale, int bits) {
    unsigned bin = 0;
    if (bits == 2)
        return mag >= scale * edge_of_two;
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        bin += mag >= scale * edges[i];
    return bin;
}

enum neb_status cmp_frame_put_chunk(struct cmp_work *w, const struct cmp_frame *h,
                                    struct cmp_topk *t, const uint16_t *idx, const float *values,
                                    size_t k, size_t len) {
    int bits = h->codec.bits;
    unsigned each = 8 / (unsigned)bits; // values a byte
    double mean = 0;
    size_t next = 0;
    for (size_t i = 0; i < k; i++)
        mean += fabs((double)values[i]);
    uint8_t code = kern_scale_code((float)(mean / (double)k), h->top);
    float scale = kern_scale_value(code, h->top);
    neb_buf_u8(&w->stream[0], code);
    if (neb_buf_reserve(&w->stream[1], k + len / CMP_GAP_ESCAPE) != NEB_OK)
        return NEB_ERR_NOMEM;
    uint8_t *gaps = w->stream[1].p + w->stream[1].len;
    for (size_t i = 0; i < k; i++, t->entries++) {
        size_t gap = idx[i] - next;
        next = (size_t)idx[i] + 1;
        for (; gap >= CMP_GAP_ESCAPE; gap -= CMP_GAP_ESCAPE)
            *gaps++ = CMP_GAP_ESCAPE;
        *gaps++ = (uint8_t)gap;
        float v = values[i], mag = fabsf(v);
        unsigned bin = bin_of(mag, scale, bits), in = (unsigned)(t->entries % each);
        if (scale > 0) {
            t->sum[bin] += (double)(mag / scale);
            t->count[bin]++;
        }
        t->bits |= (uint8_t)(((v < 0) | bin << 1) << (in * (unsigned)bits));
        if (in == each - 1) {
            neb_buf_u8(&w->stream[2], t->bits);
            t->bits = 0;
        }
    }
    w->stream[1].len = (size_t)(gaps - w->stream[1].p);
    return NEB_OK;
}

void cmp_frame_end_topk(struct cmp_work *w, struct cmp_frame *h, struct cmp_topk *t) {
    float last = 0;
    if (t->entries % (8 / (unsigned)h->codec.bits))
        neb_buf_u8(&w->stream[2], t->bits);
    for (int i = 0; i < cmp_frame_bins(h->codec.bits); i++) {
        float mean = t->count[i] ? (float)(t->sum[i] / (double)t->count[i]) : last;
        h->mags[i] = mean > CMP_MAG_MAX ? CMP_MAG_MAX : mean < last ? last : mean;
        last = h->mags[i];
    }
}

// Chooses from every chunk. w->codes receives the values of all chunks, one after the other, and
// behind them the indices.
static enum neb_status choose(struct cmp_work *w, const struct cmp_codec *c,
                              const struct cmp_source *from, size_t n, uint32_t *largest) {
    size_t entries = cmp_frame_entries(c, n), e = 0;
    neb_buf_clear(&w->codes);
    float *values = (float *)(void *)neb_buf_grow(&w->codes, entries * 6);
    if (!values)
        return neb_buf_check(&w->codes);
    uint16_t *idx = (uint16_t *)(values + entries);

    for (size_t at = 0; at < n; at += c->chunk) {
        size_t len = n - at < c->chunk ? n - at : c->chunk, k = cmp_frame_chunk_k(c, len);
        const float *x = cmp_source_at(from, at, len);
        kern_topk(idx + e, x, len, k, w->scratch);
        for (size_t i = 0; i < k; i++, e++) {
            values[e] = x[idx[e]];
            uint32_t bits = kern_bits_of(values[e]) & 0x7fffffffu;
            *largest = bits > *largest
                           ? bits
                           : *largest; // a NaN or an infinity is larger than all, so it is chosen
        }
    }
    return NEB_OK;
}

enum neb_status cmp_topk_encode(struct cmp_work *w, struct cmp_frame *h,
                                const struct cmp_source *from, size_t n) {
    const struct cmp_codec *c = &h->codec;
    struct cmp_topk t = {{0}, {0}, 0, 0};
    uint32_t largest = 0;
    NEB_TRY(choose(w, c, from, n, &largest));
    if (largest >= 0x7f800000u)
        return cmp_frame_not_finite();
    h->top = largest ? kern_scale_top(kern_float_of(largest), 1) : 0;
    const float *values = (const float *)(const void *)w->codes.p;
    const uint16_t *idx = (const uint16_t *)(const void *)(values + cmp_frame_entries(c, n));
    for (size_t at = 0; at < n; at += c->chunk) {
        size_t len = n - at < c->chunk ? n - at : c->chunk, k = cmp_frame_chunk_k(c, len);
        NEB_TRY(cmp_frame_put_chunk(w, h, &t, idx, values, k, len));
        idx += k, values += k;
    }
    cmp_frame_end_topk(w, h, &t);
    return NEB_OK;
}

enum neb_status cmp_frame_get_topk(struct cmp_work *w, struct neb_rd *r, const struct cmp_frame *h,
                                   size_t n, const struct cmp_topk_sink *to) {
    const struct cmp_codec *c = &h->codec;
    size_t chunks = (n + c->chunk - 1) / c->chunk, entries = cmp_frame_entries(c, n);
    unsigned bits = (unsigned)c->bits, each = 8 / bits, bins = (unsigned)cmp_frame_bins(c->bits);
    size_t packed = (entries + each - 1) / each;
    NEB_TRY(cmp_frame_get_stream(w, r, NULL, chunks, chunks, &w->stream[0]));
    NEB_TRY(cmp_frame_get_stream(w, r, NULL, entries, entries + n / CMP_GAP_ESCAPE + chunks,
                                 &w->stream[1]));
    NEB_TRY(cmp_frame_get_stream(w, r, NULL, packed, packed, &w->stream[2]));
    if (to->out)
        memset(to->out, 0, n * sizeof *to->out);
    const uint8_t *gap = w->stream[1].p, *end = gap + w->stream[1].len;
    size_t e = 0;
    for (size_t at = 0, ch = 0; at < n; at += c->chunk, ch++) {
        size_t len = n - at < c->chunk ? n - at : c->chunk, k = cmp_frame_chunk_k(c, len), i = 0;
        float scale = kern_scale_value(w->stream[0].p[ch], h->top), value[2 * CMP_MAGS];
        for (unsigned b = 0; b < bins; b++) {
            value[2 * b] = h->mags[b] * scale;
            value[2 * b + 1] = -value[2 * b];
        }
        if (!isfinite(value[2 * bins - 2])) // the largest
            return neb_fail(NEB_ERR_FORMAT, "codec frame: a chunk's values are not finite");
        for (size_t t = 0; t < k; t++, e++, i++) {
            while (gap < end && *gap == CMP_GAP_ESCAPE)
                i += CMP_GAP_ESCAPE, gap++;
            if (gap == end || (i += *gap++) >= len)
                return neb_fail(NEB_ERR_FORMAT, "codec frame: an index outside its chunk");
            float v = value[w->stream[2].p[e / each] >> (e % each * bits) & ((1u << bits) - 1)];
            if (to->out) {
                to->out[at + i] = v;
            } else {
                to->at[e] = (uint32_t)(at + i);
                to->values[e] = v;
            }
        }
    }
    return gap == end ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: more indices than entries");
}
