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

size_t cmp_device_bytes(const struct cmp_device *c) { return c->bytes; }

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
// The streams of a kept frame: of a sparse codec its indices and values; of a codec without a
// kernel its elements; of all others what the frame has.

static bool by_kernel(const struct cmp_codec *c) { return cmp_ops(c)->device_decode; }

// Bytes of the first stream (which: 0) or of the second one.
static size_t stream_bytes(const struct cmp_codec *c, size_t n, int which) {
    const struct cmp_codec_ops *ops = cmp_ops(c);
    size_t min[CMP_STREAMS_MAX] = {0}, max[CMP_STREAMS_MAX] = {0};
    if (cmp_codec_sparse(c))
        return up(ops->entries(c, n) * (which ? sizeof(float) : sizeof(uint32_t)));
    if (!by_kernel(c))
        return which ? 0 : up(n * sizeof(float));
    ops->sizes(c, n, min, max);
    return up(max[which]);
}

size_t cmp_device_kept_bytes(const struct cmp_codec *c, size_t n) {
    return stream_bytes(c, n, 0) + stream_bytes(c, n, 1);
}

enum neb_status cmp_device_frame_bytes(const uint8_t *frame, size_t len, size_t n, size_t *out) {
    struct neb_rd r = neb_rd_make(frame, len);
    struct cmp_frame h;
    NEB_TRY(cmp_frame_get(&r, &h));
    if (h.n != n)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: it has %llu elements, not %zu",
                        (unsigned long long)h.n, n);
    *out = cmp_device_kept_bytes(&h.codec, n);
    return NEB_OK;
}

static uint8_t *second_of(const struct cmp_device_frame *f) {
    return f->streams + stream_bytes(&f->codec, f->n, 0);
}

static enum neb_status put_sparse(struct cmp_device *c, const struct cmp_device_frame *f,
                                  const struct cmp_frame *h, const struct neb_buf *raw) {
    size_t m = cmp_ops(&f->codec)->entries(&f->codec, f->n);
    neb_buf_clear(&c->list);
    if (!neb_buf_grow(&c->list, m * (sizeof(uint32_t) + sizeof(float)) + 1))
        return neb_buf_check(&c->list);
    struct cmp_sink to = {.at = (uint32_t *)(void *)c->list.p,
                          .values = (float *)(void *)(c->list.p + m * sizeof(uint32_t))};
    NEB_TRY(cmp_ops(&f->codec)->unpack(h, raw, f->n, &to));
    kern_stage_upload(c->D, f->streams, to.at, m * sizeof *to.at);
    kern_stage_upload(c->D, second_of(f), to.values, m * sizeof *to.values);
    return NEB_OK;
}

static enum neb_status put_elements(struct cmp_device *c, const struct cmp_device_frame *f,
                                    const struct cmp_frame *h, const struct neb_buf *raw) {
    neb_buf_clear(&c->list);
    float *x = (float *)(void *)neb_buf_grow(&c->list, f->n * sizeof *x + 1);
    if (!x)
        return neb_buf_check(&c->list);
    if (cmp_ops(&f->codec)->verify)
        NEB_TRY(cmp_ops(&f->codec)->verify(h, raw, f->n));
    NEB_TRY(cmp_frame_read(h, raw, 0, x, f->n));
    kern_stage_upload(c->D, f->streams, x, f->n * sizeof *x);
    return NEB_OK;
}

static enum neb_status put_streams(struct cmp_device *c, const struct cmp_device_frame *f,
                                   const struct cmp_frame *h, const struct neb_buf *raw) {
    if (cmp_codec_sparse(&f->codec))
        return put_sparse(c, f, h, raw);
    if (!by_kernel(&f->codec))
        return put_elements(c, f, h, raw);
    kern_stage_upload(c->D, f->streams, raw[0].p, raw[0].len);
    if (cmp_frame_streams(&f->codec) > 1)
        kern_stage_upload(c->D, second_of(f), raw[1].p, raw[1].len);
    return NEB_OK;
}

void cmp_device_read(struct cmp_device *c, const struct cmp_device_frame *f, float *out) {
    const struct cmp_codec_ops *ops = cmp_ops(&f->codec);
    if (cmp_codec_sparse(&f->codec))
        c->D->ops->scatter(c->D, out, f->n, (uint32_t *)(void *)f->streams,
                           (float *)(void *)second_of(f), ops->entries(&f->codec, f->n));
    else if (by_kernel(&f->codec))
        ops->device_decode(c, f, second_of(f), out);
    else
        c->D->ops->copy(c->D, out, f->streams, f->n * sizeof *out);
}

// Kernels note bad codes in the flag. Elements may be infinite only if the codec allows it.
static enum neb_status check_elements(struct cmp_device *c, const struct cmp_device_frame *f,
                                      const float *out) {
    const struct cmp_codec_ops *ops = cmp_ops(&f->codec);
    bool finite = true;
    uint32_t bad = 0;
    float max;
    if (ops->may_be_infinite && by_kernel(&f->codec))
        NEB_TRY(largest(c, out, f->n, &max, &finite));
    else if (by_kernel(&f->codec) && f->n)
        c->D->ops->download(c->D, &bad, c->room, sizeof bad);
    NEB_TRY(c->D->ops->finish(c->D));
    if (bad)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: a code of %s is out of range", ops->name);
    return finite ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: a value is NaN or infinite");
}

enum neb_status cmp_device_keep(struct cmp_device *c, struct cmp_work *w, const uint8_t *frame,
                                size_t len, float *out, size_t n, uint8_t *streams,
                                struct cmp_device_frame *kept) {
    uint8_t *a, *b;
    NEB_TRY(cmp_device_streams(c, 0, 0, &a, &b)); // the flag
    struct cmp_frame h;
    NEB_TRY(cmp_frame_open(w, frame, len, n, &h, w->stream));
    *kept = (struct cmp_device_frame){h.codec, h.top, streams, n};
    unsigned was = kern_exact_enter();
    enum neb_status st = put_streams(c, kept, &h, w->stream);
    if (st == NEB_OK) {
        cmp_device_read(c, kept, out);
        st = check_elements(c, kept, out);
    }
    kern_exact_leave(was);
    return st;
}

enum neb_status cmp_device_decode(struct cmp_device *c, struct cmp_work *w, const uint8_t *frame,
                                  size_t len, float *out, size_t n) {
    struct cmp_device_frame kept;
    uint8_t *streams, *none;
    size_t bytes = 0;
    NEB_TRY(cmp_device_frame_bytes(frame, len, n, &bytes));
    NEB_TRY(cmp_device_streams(c, bytes, 0, &streams, &none));
    return cmp_device_keep(c, w, frame, len, out, n, streams, &kept);
}
