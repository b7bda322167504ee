// SPDX-License-Identifier: Apache-2.0
// bf16: the upper half of each float, rounded to nearest even.
//
//     stream 0   high bytes
//     stream 1   low bytes
#include "compress/ops.h"
#include "kernels/quant.h"

static const struct cmp_variant variants[] = {
    {.name = "bf16", .uses = CMP_BENCHED | CMP_PLANNED, .bits = 16, .error = 0.002, .density = 1},
    {0}};

static void sizes(const struct cmp_codec *c, size_t n, size_t min[], size_t max[]) {
    (void)c;
    min[0] = max[0] = min[1] = max[1] = n;
}

static enum neb_status encode(struct cmp_work *w, struct cmp_frame *h,
                              const struct cmp_source *from, size_t n) {
    const float *x;
    (void)h;
    NEB_TRY(cmp_source_all(from, n, &x));
    uint8_t *high = neb_buf_grow(&w->stream[0], n), *low = neb_buf_grow(&w->stream[1], n);
    if (high && low)
        kern_bf16_split(high, low, x, n);
    return NEB_OK;
}

static void read(const struct cmp_frame *h, const struct neb_buf *raw, size_t at, float *out,
                 size_t n) {
    (void)h;
    kern_bf16_join(out, raw[0].p + at, raw[1].p + at, n);
}

static enum neb_status device_encode(struct cmp_device *d, struct cmp_work *w, struct cmp_frame *h,
                                     const float *x, size_t n, float max) {
    uint8_t *high, *low;
    (void)h, (void)max;
    NEB_TRY(cmp_device_streams(d, n, n, &high, &low));
    d->D->ops->bf16_split(d->D, high, low, x, n);
    NEB_TRY(cmp_device_fetch(d, &w->stream[0], high, n));
    return cmp_device_fetch(d, &w->stream[1], low, n);
}

static void device_decode(struct cmp_device *d, const struct cmp_device_frame *f,
                          const uint8_t *low, float *out) {
    d->D->ops->bf16_join(d->D, out, f->streams, low, f->n);
}

const struct cmp_codec_ops cmp_bf16 = {.name = "bf16",
                                       .usage = "bf16",
                                       .variants = variants,
                                       .number = 2,
                                       .streams = {CMP_BYTES, CMP_BYTES},
                                       .may_be_infinite = true,
                                       .sizes = sizes,
                                       .encode = encode,
                                       .read = read,
                                       .device_encode = device_encode,
                                       .device_decode = device_decode};
