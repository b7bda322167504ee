// SPDX-License-Identifier: Apache-2.0
// fp32: the elements as they are.
//
//     stream 0   the floats, little-endian
#include "compress/ops.h"

#include <string.h>

static const struct cmp_variant variants[] = {
    {.name = "fp32", .uses = CMP_BENCHED, .bits = 32, .density = 1}, {0}};

static void sizes(const struct cmp_codec *c, size_t n, size_t min[], size_t max[]) {
    (void)c;
    min[0] = max[0] = 4 * n;
}

// Memory is mostly little-endian too. Other processors take the loops.
static enum neb_status encode(struct cmp_work *w, struct cmp_frame *h,
                              const struct cmp_source *from, size_t n) {
    const float *x;
    (void)h;
    NEB_TRY(cmp_source_all(from, n, &x));
    uint8_t *to = neb_buf_grow(&w->stream[0], n * 4);
    if (!to || !n)
        return neb_buf_check(&w->stream[0]);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(to, x, n * 4);
#else
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        neb_put_u32(to + 4 * i, u);
    }
#endif
    return NEB_OK;
}

static void read(const struct cmp_frame *h, const struct neb_buf *raw, size_t at, float *out,
                 size_t n) {
    const uint8_t *p = raw[0].p + 4 * at;
    (void)h;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (n)
        memcpy(out, p, n * 4);
#else
    struct neb_rd f = neb_rd_make(p, n * 4);
    for (size_t i = 0; i < n; i++)
        out[i] = neb_rd_f32(&f);
#endif
}

static enum neb_status device_encode(struct cmp_device *d, struct cmp_work *w, struct cmp_frame *h,
                                     const float *x, size_t n, float max) {
    (void)h, (void)max;
    return cmp_device_fetch(d, &w->stream[0], x, n * sizeof *x);
}

static void device_decode(struct cmp_device *d, const struct cmp_device_frame *f,
                          const uint8_t *second, float *out) {
    (void)second;
    d->D->ops->copy(d->D, out, f->streams, f->n * sizeof *out);
}

const struct cmp_codec_ops cmp_fp32 = {.name = "fp32",
                                       .usage = "fp32",
                                       .variants = variants,
                                       .number = 1,
                                       .streams = {CMP_BYTES},
                                       .may_be_infinite = true,
                                       .sizes = sizes,
                                       .encode = encode,
                                       .read = read,
                                       .device_encode = device_encode,
                                       .device_decode = device_decode};
