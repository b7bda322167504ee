// SPDX-License-Identifier: Apache-2.0
// Codecs for arrays on a device (device.h).
#include "compress/device.h"
#include "compress/frame.h"
#include "kernels/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, FLAG_BYTES = 256 };

struct cmp_device {
    struct kern *D;
    uint8_t *room; // on the device: flags, then the streams of a call
    size_t bytes;
    struct neb_buf list; // topk: indices and values on the host
};

static size_t up(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

enum neb_status cmp_device_create(struct kern *D, struct cmp_device **out) {
    struct cmp_device *c = calloc(1, sizeof *c);
    if (!c)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a codec on %s", D->name);
    c->D = D;
    enum neb_status st = kern_stage_acquire(D);
    if (st == NEB_OK)
        *out = c;
    else
        free(c);
    return st;
}

void cmp_device_destroy(struct cmp_device **cp) {
    struct cmp_device *c = *cp;
    if (!c)
        return;
    (void)c->D->ops->finish(c->D);
    c->D->ops->release(c->D, c->room);
    kern_stage_release(c->D);
    neb_buf_free(&c->list);
    free(c);
    *cp = NULL;
}

// Gives memory on the device for streams of a and b bytes, after the flags.
static enum neb_status streams(struct cmp_device *c, size_t a, size_t b, uint8_t **first,
                               uint8_t **second) {
    size_t want = FLAG_BYTES + up(a) + up(b);
    if (want > c->bytes) {
        void *p;
        NEB_TRY(c->D->ops->finish(c->D));
        c->D->ops->release(c->D, c->room);
        c->room = NULL;
        c->bytes = 0;
        NEB_TRY(c->D->ops->alloc(c->D, want, &p));
        c->room = p;
        c->bytes = want;
    }
    *first = c->room + FLAG_BYTES;
    *second = *first + up(a);
    return NEB_OK;
}

// ---- encoding

static enum neb_status largest(struct cmp_device *c, const float *x, size_t n, float *max,
                               bool *finite) {
    uint32_t bits = 0;
    uint8_t *a, *b;
    NEB_TRY(streams(c, 0, 0, &a, &b));
    c->D->ops->absmax(c->D, (uint32_t *)(void *)c->room, x, n);
    c->D->ops->download(c->D, &bits, c->room, sizeof bits);
    NEB_TRY(c->D->ops->finish(c->D));
    memcpy(max, &bits, sizeof *max);
    *finite = bits < 0x7f800000u;
    return NEB_OK;
}

// The bytes have arrived after kern_stage_end.
static enum neb_status fetch(struct cmp_device *c, struct neb_buf *to, const void *from, size_t n) {
    uint8_t *p = neb_buf_grow(to, n);
    if (n && !p)
        return neb_buf_check(to);
    kern_stage_download(c->D, p, from, n);
    return NEB_OK;
}

static enum neb_status encode_blocks(struct cmp_device *c, struct cmp_work *w, struct cmp_frame *h,
                                     const float *x, size_t n, float max) {
    bool four = h->codec.id == CMP_INT4;
    size_t blocks = (n + h->codec.block - 1) / h->codec.block, bytes = four ? (n + 1) / 2 : n;
    uint8_t *scales, *codes;
    h->top = max > 0 ? kern_scale_top(max, h->codec.levels) : 0;
    NEB_TRY(streams(c, blocks, bytes, &scales, &codes));
    c->D->ops->encode_blocks(c->D, scales, codes, x, n, h->codec.block, h->codec.levels, four,
                             h->top);
    NEB_TRY(fetch(c, &w->stream[0], scales, blocks));
    return fetch(c, &w->stream[1], codes, bytes);
}

static enum neb_status encode_topk(struct cmp_device *c, struct cmp_work *w, struct cmp_frame *h,
                                   const float *x, size_t n, float max) {
    const struct cmp_codec *k = &h->codec;
    size_t chunks = (n + k->chunk - 1) / k->chunk, last = n - (chunks - 1) * k->chunk,
           all = chunks * k->k;
    struct cmp_topk t = {{0}, {0}, 0, 0};
    uint8_t *idx, *values;
    h->top = max > 0 ? kern_scale_top(max, 1) : 0;
    NEB_TRY(streams(c, all * sizeof(uint16_t), all * sizeof(float), &idx, &values));
    c->D->ops->topk(c->D, (uint16_t *)(void *)idx, (float *)(void *)values, x, n, k->chunk, k->k,
                    (uint32_t)cmp_frame_chunk_k(k, last));
    neb_buf_clear(&c->list);
    // so that the buffer does not move below
    NEB_TRY(neb_buf_reserve(&c->list, all * (sizeof(float) + sizeof(uint16_t))));
    NEB_TRY(fetch(c, &c->list, values, all * sizeof(float)));
    NEB_TRY(fetch(c, &c->list, idx, all * sizeof(uint16_t)));
    NEB_TRY(kern_stage_end(c->D));
    for (size_t i = 0; i < chunks; i++) {
        size_t len = i + 1 == chunks ? last : k->chunk, entries = cmp_frame_chunk_k(k, len);
        memcpy(w->values, c->list.p + i * k->k * sizeof(float), entries * sizeof(float));
        memcpy(w->idx, c->list.p + all * sizeof(float) + i * k->k * sizeof(uint16_t),
               entries * sizeof(uint16_t));
        NEB_TRY(cmp_frame_put_chunk(w, h, &t, w->idx, w->values, entries, len));
    }
    cmp_frame_end_topk(w, h, &t);
    return NEB_OK;
}

static enum neb_status encode(struct cmp_device *c, struct cmp_work *w, struct cmp_frame *h,
                              const float *x, size_t n, float max) {
    uint8_t *high, *low;
    switch (h->codec.id) {
    case CMP_FP32: return fetch(c, &w->stream[0], x, n * sizeof *x);
    case CMP_BF16:
        NEB_TRY(streams(c, n, n, &high, &low));
        c->D->ops->bf16_split(c->D, high, low, x, n);
        NEB_TRY(fetch(c, &w->stream[0], high, n));
        return fetch(c, &w->stream[1], low, n);
    case CMP_INT8:
    case CMP_INT4: return encode_blocks(c, w, h, x, n, max);
    case CMP_TOPK: return encode_topk(c, w, h, x, n, max);
    }
    return NEB_OK;
}

// The device has no kernel for some shapes (no elements, or odd blocks whose codes share bytes).
// The processor encodes these.
static enum neb_status encode_on_host(struct cmp_device *c, struct cmp_work *w,
                                      const struct cmp_codec *codec, const float *x, size_t n,
                                      struct neb_buf *out) {
    neb_buf_clear(&c->list);
    NEB_TRY(fetch(c, &c->list, x, n * sizeof *x));
    NEB_TRY(kern_stage_end(c->D));
    return cmp_encode(w, codec, (const float *)(const void *)c->list.p, n, out);
}

enum neb_status cmp_device_encode(struct cmp_device *c, struct cmp_work *w,
                                  const struct cmp_codec *codec, const float *x, size_t n,
                                  struct neb_buf *out) {
    struct cmp_frame h = {.codec = *codec, .n = n};
    bool finite, shared = codec->id == CMP_INT4 && codec->block % 2 && n > codec->block;
    float max;
    NEB_ASSERT(n <= CMP_ELEMENTS_MAX);
    if (shared || n == 0 || (codec->id == CMP_TOPK && n < CMP_DENSE_BELOW))
        return encode_on_host(c, w, codec, x, n, out);
    cmp_codec_complete(&h.codec);
    NEB_TRY(largest(c, x, n, &max, &finite));
    if (!finite)
        return neb_fail(NEB_ERR_INVALID,
                        "cannot encode: an element is NaN or infinite (training has diverged)");
    for (int i = 0; i < CMP_STREAMS_MAX; i++)
        neb_buf_clear(&w->stream[i]);
    unsigned was = kern_exact_enter();
    // also after an error
    enum neb_status st = encode(c, w, &h, x, n, max), end = kern_stage_end(c->D);
    kern_exact_leave(was);
    NEB_TRY(st);
    NEB_TRY(end);
    return cmp_frame_put_all(w, out, &h, codec->zstd_level);
}

// ---- decoding

static enum neb_status decode_blocks(struct cmp_device *c, struct cmp_work *w, struct neb_rd *r,
                                     const struct cmp_frame *h, float *out, size_t n) {
    bool four = h->codec.id == CMP_INT4;
    size_t blocks = (n + h->codec.block - 1) / h->codec.block, bytes = four ? (n + 1) / 2 : n;
    uint8_t *scales, *codes;
    uint32_t bad = 0, *flag;
    NEB_TRY(cmp_frame_get_stream(w, r, NULL, blocks, blocks, &w->stream[0]));
    NEB_TRY(cmp_frame_get_stream(w, r, h, bytes, bytes, &w->stream[1]));
    NEB_TRY(streams(c, blocks, bytes, &scales, &codes));
    flag = (uint32_t *)(void *)c->room;
    kern_stage_upload(c->D, scales, w->stream[0].p, blocks);
    kern_stage_upload(c->D, codes, w->stream[1].p, bytes);
    c->D->ops->decode_blocks(c->D, out, scales, codes, n, h->codec.block, four, h->top, flag);
    if (n)
        c->D->ops->download(c->D, &bad, flag, sizeof bad);
    NEB_TRY(c->D->ops->finish(c->D));
    return bad ? neb_fail(NEB_ERR_FORMAT, "codec frame: %s code out of range",
                          four ? "a 4-bit" : "an 8-bit")
               : NEB_OK;
}

static enum neb_status decode_topk(struct cmp_device *c, struct cmp_work *w, struct neb_rd *r,
                                   const struct cmp_frame *h, float *out, size_t n) {
    size_t m = cmp_frame_entries(&h->codec, n);
    uint8_t *at, *values;
    neb_buf_clear(&c->list);
    if (!neb_buf_grow(&c->list, m * (sizeof(uint32_t) + sizeof(float)) + 1))
        return neb_buf_check(&c->list);
    struct cmp_topk_sink to = {.at = (uint32_t *)(void *)c->list.p,
                               .values = (float *)(void *)(c->list.p + m * sizeof(uint32_t))};
    NEB_TRY(cmp_frame_get_topk(w, r, h, n, &to));
    NEB_TRY(streams(c, m * sizeof *to.at, m * sizeof *to.values, &at, &values));
    kern_stage_upload(c->D, at, to.at, m * sizeof *to.at);
    kern_stage_upload(c->D, values, to.values, m * sizeof *to.values);
    c->D->ops->scatter(c->D, out, n, (uint32_t *)(void *)at, (float *)(void *)values, m);
    return c->D->ops->finish(c->D);
}

static enum neb_status decode_plain(struct cmp_device *c, struct cmp_work *w, struct neb_rd *r,
                                    const struct cmp_frame *h, float *out, size_t n) {
    uint8_t *high, *low;
    bool finite, wide = h->codec.id == CMP_FP32;
    float max;
    NEB_TRY(cmp_frame_get_stream(w, r, NULL, wide ? n * 4 : n, wide ? n * 4 : n, &w->stream[0]));
    if (wide) {
        kern_stage_upload(c->D, out, w->stream[0].p, n * 4);
    } else {
        NEB_TRY(cmp_frame_get_stream(w, r, NULL, n, n, &w->stream[1]));
        NEB_TRY(streams(c, n, n, &high, &low));
        kern_stage_upload(c->D, high, w->stream[0].p, n);
        kern_stage_upload(c->D, low, w->stream[1].p, n);
        c->D->ops->bf16_join(c->D, out, high, low, n);
    }
    NEB_TRY(largest(c, out, n, &max, &finite));
    return finite ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: a value is NaN or infinite");
}

enum neb_status cmp_device_decode(struct cmp_device *c, struct cmp_work *w, const uint8_t *frame,
                                  size_t len, float *out, size_t n) {
    struct neb_rd r = neb_rd_make(frame, len);
    struct cmp_frame h;
    enum neb_status st = NEB_OK;
    NEB_TRY(cmp_frame_get(&r, &h));
    if (h.n != n)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: %llu elements, %zu expected",
                        (unsigned long long)h.n, n);
    unsigned was = kern_exact_enter();
    switch (h.codec.id) {
    case CMP_FP32:
    case CMP_BF16: st = decode_plain(c, w, &r, &h, out, n); break;
    case CMP_INT8:
    case CMP_INT4: st = decode_blocks(c, w, &r, &h, out, n); break;
    case CMP_TOPK: st = decode_topk(c, w, &r, &h, out, n); break;
    }
    kern_exact_leave(was);
    NEB_TRY(st);
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: bytes after its end");
}
