// SPDX-License-Identifier: Apache-2.0
// Top-k by chunk: a scale byte for each chunk, gaps between the indices of the chosen elements, and
// for each of these a sign and a bin of magnitude.
//
//     stream 0   one scale byte per chunk
//     stream 1   gaps between indices: bytes, 255 means "and 255 more"
//     stream 2   values: a sign and a bin of the codebook `mags`, in 2 bits (header: bits 0) or 4
//
//     bins by |value| / scale   2 bits   0 ─────────────── 1.25 ──────────────►     two
//                               4 bits   0 ─ .84 .91 .98 1.06 1.2 1.45 1.9 ───►     eight
//
// The codebook holds each bin's mean over the frame, so decoders need not know the edges. One pass
// over the array chooses from all chunks. Scale bytes are relative to the largest value of all,
// which is known only after that pass.
//
// Source: top-k by chunk with 2-bit values as in SparseLoCo (arXiv 2508.15706), with gaps in place
// of 12-bit indices.
#include "compress/ops.h"
#include "kernels/exact.h"
#include "kernels/quant.h"
#include "kernels/scale.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { GAP_ESCAPE = 255 };

// ---- text and sizes -----------------------------------------------------------------------------

static bool parse(const char *text, struct cmp_codec *c) {
    unsigned k, chunk;
    int used = 0;
    if (!strcmp(text, "topk"))
        return true;
    if (sscanf(text, "topk:%u/%u%n", &k, &chunk, &used) != 2 ||
        (text[used] && strcmp(text + used, ":4") && strcmp(text + used, ":2")))
        return false;
    c->k = k, c->chunk = chunk, c->bits = !strcmp(text + used, ":4") ? 4 : 2;
    return true;
}

static void print(const struct cmp_codec *c, char *out, size_t cap) {
    snprintf(out, cap, c->bits == 4 ? "topk:%u/%u:4" : "topk:%u/%u", c->k, c->chunk);
}

static size_t chunk_k(const struct cmp_codec *c, size_t len) { // entries of a chunk
    size_t k = (c->k * len + c->chunk - 1) / c->chunk;
    return k < 1 ? 1 : k;
}

static size_t chunks_of(const struct cmp_codec *c, size_t n) {
    return (n + c->chunk - 1) / c->chunk;
}

static size_t entries_of(const struct cmp_codec *c, size_t n) {
    size_t whole = n / c->chunk, last = n % c->chunk;
    return whole * chunk_k(c, c->chunk) + (last ? chunk_k(c, last) : 0);
}

// The bytes of scales, gaps and values of chunks, and of small arrays as int8. The caller adds n /
// 16 for row counts, and vectors fit into that.
static uint64_t bound(const struct cmp_codec *c, uint64_t n, uint64_t units) {
    uint64_t chunks = n / c->chunk + units, dense = units * CMP_DENSE_BELOW;
    return (n < dense ? n : dense) + chunks * (2 + c->chunk / GAP_ESCAPE + c->k) +
           chunks * c->k * (uint64_t)c->bits / 8;
}

static void sizes(const struct cmp_codec *c, size_t n, size_t min[], size_t max[]) {
    size_t entries = entries_of(c, n), each = 8 / (size_t)c->bits;
    min[0] = max[0] = chunks_of(c, n);
    min[1] = entries, max[1] = entries + n / GAP_ESCAPE + chunks_of(c, n);
    min[2] = max[2] = (entries + each - 1) / each;
}

// ---- encoding -----------------------------------------------------------------------------------

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

struct put { // state while a frame's chunks are put, one after the other
    double sum[CMP_MAGS];
    uint64_t count[CMP_MAGS], entries;
    uint8_t bits;
};

// Appends a chunk to w's streams. idx: indices in the chunk, ascending. Not inlined, because
// inlining would leave the caller's loop too few registers.
__attribute__((noinline)) static enum neb_status put_chunk(struct cmp_work *w,
                                                           const struct cmp_frame *h, struct put *t,
                                                           const uint16_t *idx, const float *values,
                                                           size_t k, size_t len) {
    int bits = h->codec.bits;
    unsigned each = 8 / (unsigned)bits; // values per byte
    double mean = 0;
    size_t next = 0;
    for (size_t i = 0; i < k; i++)
        mean += fabs((double)values[i]);
    uint8_t code = kern_scale_code((float)(mean / (double)k), h->top);
    float scale = kern_scale_value(code, h->top);
    neb_buf_u8(&w->stream[0], code);
    if (neb_buf_reserve(&w->stream[1], k + len / GAP_ESCAPE) != NEB_OK)
        return NEB_ERR_NOMEM;
    uint8_t *gaps = w->stream[1].p + w->stream[1].len;
    for (size_t i = 0; i < k; i++, t->entries++) {
        size_t gap = idx[i] - next;
        next = (size_t)idx[i] + 1;
        for (; gap >= GAP_ESCAPE; gap -= GAP_ESCAPE)
            *gaps++ = GAP_ESCAPE;
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

// To the upper 16 bits, which a frame holds (codec.h).
static float rounded(float x) {
    uint32_t u = kern_bits_of(x);
    return kern_float_of((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u);
}

// After the last chunk: sets h's codebook to the mean of each bin.
static void put_codebook(struct cmp_work *w, struct cmp_frame *h, const struct put *t) {
    float last = 0;
    if (t->entries % (8 / (unsigned)h->codec.bits))
        neb_buf_u8(&w->stream[2], t->bits);
    for (int i = 0; i < cmp_frame_bins(h->codec.bits); i++) {
        float mean = t->count[i] ? (float)(t->sum[i] / (double)t->count[i]) : last;
        h->mags[i] = last = rounded(mean > CMP_MAG_MAX ? CMP_MAG_MAX : mean < last ? last : mean);
    }
}

static size_t scratch_words(const struct cmp_codec *c) { return 2 * (size_t)c->chunk; }

// Chooses from every chunk. w->codes receives the values of all chunks, one after the other, then
// the indices. kern_topk's scratch comes first.
static enum neb_status choose(struct cmp_work *w, const struct cmp_codec *c,
                              const struct cmp_source *from, size_t n, uint32_t *largest) {
    size_t entries = entries_of(c, n), e = 0;
    neb_buf_clear(&w->codes);
    uint32_t *scratch =
        (uint32_t *)(void *)neb_buf_grow(&w->codes, scratch_words(c) * 4 + entries * 6);
    if (!scratch)
        return neb_buf_check(&w->codes);
    float *values = (float *)(void *)(scratch + scratch_words(c));
    uint16_t *idx = (uint16_t *)(values + entries);

    for (size_t at = 0; at < n; at += c->chunk) {
        size_t len = n - at < c->chunk ? n - at : c->chunk, k = chunk_k(c, len);
        const float *x = cmp_source_at(from, at, len);
        kern_topk(idx + e, x, len, k, scratch);
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

// Puts all chunks. values and idx: the entries of all chunks, one chunk after the other.
static enum neb_status put_chunks(struct cmp_work *w, struct cmp_frame *h, const float *values,
                                  const uint16_t *idx, size_t n) {
    const struct cmp_codec *c = &h->codec;
    struct put t = {{0}, {0}, 0, 0};
    for (size_t at = 0; at < n; at += c->chunk) {
        size_t len = n - at < c->chunk ? n - at : c->chunk, k = chunk_k(c, len);
        NEB_TRY(put_chunk(w, h, &t, idx, values, k, len));
        idx += k, values += k;
    }
    put_codebook(w, h, &t);
    return NEB_OK;
}

static enum neb_status encode(struct cmp_work *w, struct cmp_frame *h,
                              const struct cmp_source *from, size_t n) {
    const struct cmp_codec *c = &h->codec;
    uint32_t largest = 0;
    NEB_TRY(choose(w, c, from, n, &largest));
    if (largest >= 0x7f800000u)
        return cmp_frame_not_finite();
    h->top = largest ? kern_scale_top(kern_float_of(largest), 1) : 0;
    const float *values = (const float *)(const void *)w->codes.p + scratch_words(c);
    return put_chunks(w, h, values, (const uint16_t *)(const void *)(values + entries_of(c, n)), n);
}

// ---- decoding -----------------------------------------------------------------------------------

static enum neb_status outside_chunk(void) {
    return neb_fail(NEB_ERR_FORMAT, "codec frame: an index outside its chunk");
}

static enum neb_status all_gaps(bool used) {
    return used ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: more indices than entries");
}

static enum neb_status not_finite(void) {
    return neb_fail(NEB_ERR_FORMAT, "codec frame: a chunk's values are not finite");
}

static enum neb_status unpack(const struct cmp_frame *h, const struct neb_buf *raw, size_t n,
                              const struct cmp_sink *to) {
    const struct cmp_codec *c = &h->codec;
    unsigned bits = (unsigned)c->bits, each = 8 / bits, bins = (unsigned)cmp_frame_bins(c->bits);
    const uint8_t *gap = raw[1].p, *end = gap + raw[1].len;
    size_t e = 0;
    if (to->out)
        memset(to->out, 0, n * sizeof *to->out);
    for (size_t at = 0, ch = 0; at < n; at += c->chunk, ch++) {
        size_t len = n - at < c->chunk ? n - at : c->chunk, k = chunk_k(c, len), i = 0;
        float scale = kern_scale_value(raw[0].p[ch], h->top), value[2 * CMP_MAGS];
        for (unsigned b = 0; b < bins; b++) {
            value[2 * b] = h->mags[b] * scale;
            value[2 * b + 1] = -value[2 * b];
        }
        if (!isfinite(value[2 * bins - 2])) // the largest
            return not_finite();
        for (size_t t = 0; t < k; t++, e++, i++) {
            while (gap < end && *gap == GAP_ESCAPE)
                i += GAP_ESCAPE, gap++;
            if (gap == end || (i += *gap++) >= len)
                return outside_chunk();
            float v = value[raw[2].p[e / each] >> (e % each * bits) & ((1u << bits) - 1)];
            if (to->out) {
                to->out[at + i] = v;
            } else {
                to->at[e] = (uint32_t)(at + i);
                to->values[e] = v;
            }
        }
    }
    return all_gaps(gap == end);
}

// The gate has checked the streams, so no index leaves its chunk.
static void sketch(const struct cmp_place *p, const struct cmp_frame *h, const struct neb_buf *raw,
                   size_t n) {
    unsigned bits = (unsigned)h->codec.bits, each = 8 / bits;
    const uint8_t *gap = raw[1].p;
    size_t e = 0;
    for (size_t at = 0, chunk = 0; at < n; at += h->codec.chunk, chunk++) {
        size_t len = n - at < h->codec.chunk ? n - at : h->codec.chunk, i = at;
        float scale = kern_scale_value(raw[0].p[chunk], h->top);
        for (size_t k = chunk_k(&h->codec, len); k > 0; k--, e++, i++) {
            for (; *gap == GAP_ESCAPE; gap++)
                i += GAP_ESCAPE;
            i += *gap++;
            unsigned code = raw[2].p[e / each] >> (e % each * bits) & ((1u << bits) - 1);
            float v = h->mags[code >> 1] * scale;
            cmp_place_add(p, i / p->length, p->sign[i % p->length] * (code & 1 ? -v : v));
        }
    }
}

// ---- the gate's check ---------------------------------------------------------------------------

// Checks that every gap leads to an index in its chunk, and that all gaps are used.
static enum neb_status count_gaps(const struct cmp_tally *t) {
    const struct cmp_codec *c = &t->h.codec;
    const uint8_t *gap = t->raw[1].p, *end = gap + t->raw[1].len;
    for (size_t at = 0; at < t->n; at += c->chunk) {
        size_t len = t->n - at < c->chunk ? t->n - at : c->chunk, i = 0;
        for (size_t k = chunk_k(c, len); k > 0; k--, i++) {
            for (; gap < end && *gap == GAP_ESCAPE; gap++)
                i += GAP_ESCAPE;
            if (gap == end || (i += *gap++) >= len)
                return outside_chunk();
        }
    }
    return all_gaps(gap == end);
}

// A chunk's norm needs only the number of entries of each magnitude.
static enum neb_status count_values(struct cmp_tally *t) {
    const struct cmp_codec *c = &t->h.codec;
    unsigned bits = (unsigned)c->bits, each = 8 / bits, bins = (unsigned)cmp_frame_bins(c->bits);
    size_t e = 0;
    for (size_t at = 0, chunk = 0; at < t->n; at += c->chunk, chunk++) {
        size_t len = t->n - at < c->chunk ? t->n - at : c->chunk;
        float scale = kern_scale_value(t->raw[0].p[chunk], t->h.top);
        uint32_t times[CMP_MAGS] = {0};
        for (size_t k = chunk_k(c, len); k > 0; k--, e++)
            times[(t->raw[2].p[e / each] >> (e % each * bits) & ((1u << bits) - 1)) >> 1]++;
        for (unsigned b = 0; b < bins; b++) {
            float value = t->h.mags[b] * scale;
            if (!isfinite(value))
                return not_finite();
            t->sum += (double)times[b] * ((double)value * (double)value);
        }
    }
    return NEB_OK;
}

// Counts a stream once, when all of it is there.
static enum neb_status count(struct cmp_tally *t, size_t bytes) {
    if (bytes != t->raw[t->stream].len || t->done++)
        return NEB_OK;
    return t->stream == 1 ? count_gaps(t) : t->stream == 2 ? count_values(t) : NEB_OK;
}

// ---- on a device --------------------------------------------------------------------------------

static enum neb_status device_encode(struct cmp_device *d, struct cmp_work *w, struct cmp_frame *h,
                                     const float *x, size_t n, float max) {
    const struct cmp_codec *c = &h->codec;
    size_t chunks = chunks_of(c, n), last = n - (chunks - 1) * c->chunk, all = chunks * c->k;
    uint8_t *idx, *values;
    h->top = max > 0 ? kern_scale_top(max, 1) : 0;
    NEB_TRY(cmp_device_streams(d, all * sizeof(uint16_t), all * sizeof(float), &idx, &values));
    d->D->ops->topk(d->D, (uint16_t *)(void *)idx, (float *)(void *)values, x, n, c->chunk, c->k,
                    (uint32_t)chunk_k(c, last));
    neb_buf_clear(&d->list);
    // so that the buffer does not move below
    NEB_TRY(neb_buf_reserve(&d->list, all * (sizeof(float) + sizeof(uint16_t))));
    NEB_TRY(cmp_device_fetch(d, &d->list, values, all * sizeof(float)));
    NEB_TRY(cmp_device_fetch(d, &d->list, idx, all * sizeof(uint16_t)));
    NEB_TRY(kern_stage_end(d->D));
    const float *chosen = (const float *)(const void *)d->list.p;
    return put_chunks(w, h, chosen, (const uint16_t *)(const void *)(chosen + all), n);
}

// ---- the vtable ---------------------------------------------------------------------------------

// The controller has no level with values of 4 bits: in the same bytes, more entries of 2 bits come
// closer (README.md).
enum { USES = CMP_PLANNED | CMP_LEVEL };
static const struct cmp_variant variants[] = {
    {"topk:512/4096", NULL, USES, 5, 0.76, 0.50, 512.0 / 4096},
    {"topk:256/4096", NULL, USES | CMP_BENCHED, 6, 0.45, 0.63, 256.0 / 4096},
    {"topk:128/4096", NULL, USES, 8, 0.255, 0.74, 128.0 / 4096},
    {"topk:64/4096", "topk", USES | CMP_BENCHED, 7, 0.145, 0.83, 64.0 / 4096},
    {"topk:64/4096:4", NULL, CMP_BENCHED, 0, 0.18, 0.82, 64.0 / 4096},
    {0}};

const struct cmp_codec_ops cmp_topk = {.name = "topk",
                                       .usage = "topk[:K/CHUNK[:2 or :4]]",
                                       .variants = variants,
                                       .number = 5,
                                       .streams = {CMP_BYTES, CMP_GAPS, CMP_CODES2},
                                       .codebook = true,
                                       .parse = parse,
                                       .print = print,
                                       .bound = bound,
                                       .sizes = sizes,
                                       .encode = encode,
                                       .entries = entries_of,
                                       .unpack = unpack,
                                       .sketch = sketch,
                                       .count = count,
                                       .device_encode = device_encode};
