// SPDX-License-Identifier: Apache-2.0
// Hostile codec frames, decoded for an accelerator: checks the host's part. The device is host
// memory. Its ops only check that they read inside their arrays and scatter inside the output. A
// frame is accepted here if the CPU decodes it; otherwise only frames of block codecs may pass,
// because only the device reads their codes.
#include "compress/device.h"
#include "compress/ops.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_MAX = 1 << 16 };

static enum neb_status alloc(struct kern *D, size_t bytes, void **out) {
    (void)D;
    return (*out = malloc(bytes)) ? NEB_OK : NEB_ERR_NOMEM;
}
static void release(struct kern *D, void *p) {
    (void)D;
    free(p);
}
static void copy(struct kern *D, void *dst, const void *src, size_t bytes) {
    (void)D;
    memcpy(dst, src, bytes);
}
static void mark(struct kern *D, int slot) { (void)D, (void)slot; }
static enum neb_status finish(struct kern *D) {
    (void)D;
    return NEB_OK;
}

static void absmax(struct kern *D, uint32_t *out, const float *x, size_t n) {
    (void)D;
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= INT32_MAX;
        *out = bits > *out ? bits : *out;
    }
}

static void decode_blocks(struct kern *D, float *out, const uint8_t *scales, const uint8_t *codes,
                          size_t n, uint32_t block, bool four_bits, int top, uint32_t *bad) {
    (void)D, (void)top;
    *bad = 0;
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(scales[i / block] + codes[four_bits ? i / 2 : i]);
}

static void bf16_join(struct kern *D, float *out, const uint8_t *high, const uint8_t *low,
                      size_t n) {
    (void)D;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)high[i] << 24 | (uint32_t)low[i] << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

static void scatter(struct kern *D, float *out, size_t n, const uint32_t *at, const float *x,
                    size_t m) {
    (void)D;
    memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < m; i++) {
        NEB_ASSERT(at[i] < n && (i == 0 || at[i] > at[i - 1]));
        out[at[i]] = x[i];
    }
}

static const struct kern_ops ops = {.name = "none",
                                    .alloc = alloc,
                                    .release = release,
                                    .alloc_pinned = alloc,
                                    .release_pinned = release,
                                    .upload = copy,
                                    .download = copy,
                                    .copy = copy,
                                    .mark = mark,
                                    .wait = mark,
                                    .finish = finish,
                                    .absmax = absmax,
                                    .decode_blocks = decode_blocks,
                                    .bf16_join = bf16_join,
                                    .scatter = scatter};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct kern D = {.ops = &ops, .name = "none"};
    static struct cmp_work *w;
    static struct cmp_device *kept; // holds the stage; its buffers are reused on purpose
    struct cmp_device *c = NULL;
    struct cmp_frame_info info;
    if (!w)
        NEB_ASSERT(cmp_work_create(&w) == NEB_OK && cmp_device_create(&D, &kept) == NEB_OK);
    if (cmp_frame_peek(data, size, &info) != NEB_OK || info.n > N_MAX)
        return 0;
    size_t n = (size_t)info.n;
    float *x = malloc(n ? n * sizeof *x : 1), *y = malloc(n ? n * sizeof *y : 1);
    NEB_ASSERT(x && y && cmp_device_create(&D, &c) == NEB_OK);
    enum neb_status here = cmp_decode(w, data, size, x, n),
                    there = cmp_device_decode(c, w, data, size, y, n);
    bool blocks = cmp_ops(&info.codec)->verify && cmp_ops(&info.codec)->device_decode;
    NEB_ASSERT(there == NEB_OK || there == NEB_ERR_FORMAT);
    NEB_ASSERT(there == here || (blocks && here != NEB_OK));
    NEB_ASSERT(there != NEB_OK || blocks || !n || !memcmp(x, y, n * sizeof *x));
    NEB_ASSERT(cmp_device_decode(kept, w, data, size, y, n) == there);
    NEB_ASSERT(cmp_device_decode(kept, w, data, size, y, n + 1) == NEB_ERR_FORMAT);
    cmp_device_destroy(&c);
    free(x);
    free(y);
    return 0;
}
