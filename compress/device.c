// SPDX-License-Identifier: Apache-2.0
// Codecs for arrays on a device (device.h).
#include "compress/device.h"
#include "compress/ops.h"
#include "kernels/exact.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, FLAG_BYTES = 256 };

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

enum neb_status cmp_device_streams(struct cmp_device *c, size_t a, size_t b, uint8_t **first,
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

enum neb_status cmp_device_fetch(struct cmp_device *c, struct neb_buf *to, const void *from,
                                 size_t n) {
    uint8_t *p = neb_buf_grow(to, n);
    if (n && !p)
        return neb_buf_check(to);
    kern_stage_download(c->D, p, from, n);
    return NEB_OK;
}

static enum neb_status largest(struct cmp_device *c, const float *x, size_t n, float *max,
                               bool *finite) {
    uint32_t bits = 0;
    uint8_t *a, *b;
    NEB_TRY(cmp_device_streams(c, 0, 0, &a, &b));
    c->D->ops->absmax(c->D, (uint32_t *)(void *)c->room, x, n);
    c->D->ops->download(c->D, &bits, c->room, sizeof bits);
    NEB_TRY(c->D->ops->finish(c->D));
    memcpy(max, &bits, sizeof *max);
    *finite = bits < 0x7f800000u;
    return NEB_OK;
}

// ---- encoding

static enum neb_status encode_on_host(struct cmp_device *c, struct cmp_work *w,
                                      const struct cmp_codec *codec, const float *x, size_t n,
                                      struct neb_buf *out) {
    neb_buf_clear(&c->list);
    NEB_TRY(cmp_device_fetch(c, &c->list, x, n * sizeof *x));
    NEB_TRY(kern_stage_end(c->D));
    return cmp_encode(w, codec, (const float *)(const void *)c->list.p, n, out);
}

enum neb_status cmp_device_encode(struct cmp_device *c, struct cmp_work *w,
                                  const struct cmp_codec *codec, const float *x, size_t n,
                                  struct neb_buf *out) {
    const struct cmp_codec_ops *ops = cmp_ops(codec);
    struct cmp_frame h = {.codec = *codec, .n = n};
    bool finite;
    float max;
    NEB_ASSERT(n <= CMP_ELEMENTS_MAX);
    if (n == 0 || !ops->device_encode || (ops->device_takes && !ops->device_takes(codec, n)) ||
        (cmp_codec_sparse(codec) && n < CMP_DENSE_BELOW))
        return encode_on_host(c, w, codec, x, n, out);
    NEB_TRY(largest(c, x, n, &max, &finite));
    if (!finite)
        return cmp_frame_not_finite();
    for (int i = 0; i < CMP_STREAMS_MAX; i++)
        neb_buf_clear(&w->stream[i]);
    unsigned was = kern_exact_enter();
    // also after an error
    enum neb_status st = ops->device_encode(c, w, &h, x, n, max), end = kern_stage_end(c->D);
    kern_exact_leave(was);
    NEB_TRY(st);
    NEB_TRY(end);
    return cmp_frame_put_all(w, out, &h, codec->zstd_level);
}

// ---- decoding

static enum neb_status decode_sparse(struct cmp_device *c, const struct cmp_frame *h,
                                     const struct neb_buf *raw, float *out, size_t n) {
    size_t m = cmp_ops(&h->codec)->entries(&h->codec, n);
    uint8_t *at, *values;
    neb_buf_clear(&c->list);
    if (!neb_buf_grow(&c->list, m * (sizeof(uint32_t) + sizeof(float)) + 1))
        return neb_buf_check(&c->list);
    struct cmp_sink to = {.at = (uint32_t *)(void *)c->list.p,
                          .values = (float *)(void *)(c->list.p + m * sizeof(uint32_t))};
    NEB_TRY(cmp_ops(&h->codec)->unpack(h, raw, n, &to));
    NEB_TRY(cmp_device_streams(c, m * sizeof *to.at, m * sizeof *to.values, &at, &values));
    kern_stage_upload(c->D, at, to.at, m * sizeof *to.at);
    kern_stage_upload(c->D, values, to.values, m * sizeof *to.values);
    c->D->ops->scatter(c->D, out, n, (uint32_t *)(void *)at, (float *)(void *)values, m);
    return c->D->ops->finish(c->D);
}

static enum neb_status decode_on_host(struct cmp_device *c, const struct cmp_frame *h,
                                      const struct neb_buf *raw, float *out, size_t n) {
    neb_buf_clear(&c->list);
    float *x = (float *)(void *)neb_buf_grow(&c->list, n * sizeof *x + 1);
    if (!x)
        return neb_buf_check(&c->list);
    if (cmp_ops(&h->codec)->verify)
        NEB_TRY(cmp_ops(&h->codec)->verify(h, raw, n));
    NEB_TRY(cmp_frame_read(h, raw, 0, x, n));
    kern_stage_upload(c->D, out, x, n * sizeof *x);
    return c->D->ops->finish(c->D);
}

static enum neb_status decode(struct cmp_device *c, struct cmp_work *w, const uint8_t *frame,
                              size_t len, float *out, size_t n) {
    struct cmp_frame h;
    bool finite = true;
    float max;
    NEB_TRY(cmp_frame_open(w, frame, len, n, &h, w->stream));
    const struct cmp_codec_ops *ops = cmp_ops(&h.codec);
    if (cmp_codec_sparse(&h.codec))
        return decode_sparse(c, &h, w->stream, out, n);
    if (!ops->device_decode)
        return decode_on_host(c, &h, w->stream, out, n);
    NEB_TRY(ops->device_decode(c, &h, w->stream, out, n));
    if (ops->may_be_infinite)
        NEB_TRY(largest(c, out, n, &max, &finite));
    return finite ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: a value is NaN or infinite");
}

enum neb_status cmp_device_decode(struct cmp_device *c, struct cmp_work *w, const uint8_t *frame,
                                  size_t len, float *out, size_t n) {
    unsigned was = kern_exact_enter();
    enum neb_status st = decode(c, w, frame, len, out, n);
    kern_exact_leave(was);
    return st;
}
