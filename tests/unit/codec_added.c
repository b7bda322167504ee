// SPDX-License-Identifier: Apache-2.0
// A codec that only tests have: bf16 with stochastic rounding. It shows all that a new codec needs:
// this file, its line in compress/table.c, and tests/golden/codec/bf16s. CMake builds the tests of
// codecs a second time with it (codec_added.cmake).
//
//     stream 0   high bytes
//     stream 1   low bytes
//
// An element rounds up with the probability of its lower half, by a hash of its bits and place. So
// the frame depends on the elements alone.
#include "compress/ops.h"
#include "kernels/quant.h"

#include <string.h>

static const struct cmp_variant variants[] = {{.name = "bf16s",
                                               .uses = CMP_BENCHED | CMP_PLANNED | CMP_LEVEL,
                                               .level = 200,
                                               .bits = 11.6,
                                               .error = 0.0033,
                                               .density = 1},
                                              {0}};

static void sizes(const struct cmp_codec *c, size_t n, size_t min[], size_t max[]) {
    (void)c;
    min[0] = max[0] = min[1] = max[1] = n;
}

static uint32_t rounded(float x, size_t i) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t up = bits + (uint32_t)(cmp_mix((uint64_t)i << 32 | bits) & 0xffff);
    return (up & 0x7f800000u) == 0x7f800000u ? bits : up; // never to infinity
}

static enum neb_status encode(struct cmp_work *w, struct cmp_frame *h,
                              const struct cmp_source *from, size_t n) {
    const float *x;
    (void)h;
    NEB_TRY(cmp_source_all(from, n, &x));
    uint8_t *high = neb_buf_grow(&w->stream[0], n), *low = neb_buf_grow(&w->stream[1], n);
    for (size_t i = 0; high && low && i < n; i++) {
        uint32_t bits = rounded(x[i], i);
        high[i] = (uint8_t)(bits >> 24);
        low[i] = (uint8_t)(bits >> 16);
    }
    return NEB_OK;
}

static void read(const struct cmp_frame *h, const struct neb_buf *raw, size_t at, float *out,
                 size_t n) {
    (void)h;
    kern_bf16_join(out, raw[0].p + at, raw[1].p + at, n);
}

const struct cmp_codec_ops codec_added = {.name = "bf16s",
                                          .usage = "bf16s",
                                          .variants = variants,
                                          .number = 200,
                                          .streams = {CMP_BYTES, CMP_BYTES},
                                          .may_be_infinite = true,
                                          .sizes = sizes,
                                          .encode = encode,
                                          .read = read};
