// SPDX-License-Identifier: Apache-2.0
// Frames that are read in strips (reader.h).
#include "compress/reader.h"
#include "compress/frame.h"
#include "kernels/blocks.h"
#include "kernels/exact.h"
#include "kernels/quant.h"

#include <stdlib.h>
#include <string.h>

struct cmp_reader {
    struct cmp_frame h;
    struct neb_buf stream[2]; // as in the frame; topk: indices, then values
    size_t entries;           // topk
};

enum neb_status cmp_reader_create(struct cmp_reader **out) {
    *out = calloc(1, sizeof **out);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for a frame's reader");
}

void cmp_reader_destroy(struct cmp_reader **rp) {
    struct cmp_reader *r = *rp;
    if (!r)
        return;
    neb_buf_free(&r->stream[0]);
    neb_buf_free(&r->stream[1]);
    free(r);
    *rp = NULL;
}

static enum neb_status open_topk(struct cmp_reader *r, struct cmp_work *w, struct neb_rd *in,
                                 size_t n) {
    r->entries = cmp_frame_entries(&r->h.codec, n);
    neb_buf_clear(&r->stream[0]);
    neb_buf_clear(&r->stream[1]);
    uint8_t *at = neb_buf_grow(&r->stream[0], r->entries * sizeof(uint32_t) + 1),
            *values = neb_buf_grow(&r->stream[1], r->entries * sizeof(float) + 1);
    if (!at || !values)
        return neb_buf_check(!at ? &r->stream[0] : &r->stream[1]);
    const struct cmp_topk_sink to = {.at = (uint32_t *)(void *)at,
                                     .values = (float *)(void *)values};
    return cmp_frame_get_topk(w, in, &r->h, n, &to);
}

static bool all_finite(const struct cmp_reader *r, float *room, size_t cap, size_t n) {
    for (size_t at = 0; at < n; at += cap) {
        size_t len = n - at < cap ? n - at : cap;
        bool fine;
        cmp_reader_read(r, at, room, len);
        (void)kern_absmax(room, len, &fine);
        if (!fine)
            return false;
    }
    return true;
}

static enum neb_status open_streams(struct cmp_reader *r, struct cmp_work *w, struct neb_rd *in,
                                    size_t n) {
    switch (r->h.codec.id) {
    case CMP_FP32: NEB_TRY(cmp_frame_get_stream(w, in, NULL, n * 4, n * 4, &r->stream[0])); break;
    case CMP_BF16:
        NEB_TRY(cmp_frame_get_stream(w, in, NULL, n, n, &r->stream[0]));
        NEB_TRY(cmp_frame_get_stream(w, in, NULL, n, n, &r->stream[1]));
        break;
    case CMP_INT8:
    case CMP_INT4: return cmp_blocks_open(w, in, &r->h, r->stream, n);
    case CMP_TOPK: return open_topk(r, w, in, n);
    }
    if (!all_finite(r, w->values, sizeof w->values / sizeof *w->values, n))
        return neb_fail(NEB_ERR_FORMAT, "codec frame: a value is NaN or infinite");
    return NEB_OK;
}

enum neb_status cmp_reader_open(struct cmp_reader *r, struct cmp_work *w, const uint8_t *frame,
                                size_t len, size_t n) {
    struct neb_rd in = neb_rd_make(frame, len);
    NEB_TRY(cmp_frame_get(&in, &r->h));
    if (r->h.n != n)
        return cmp_frame_wrong_size(&r->h, n);
    unsigned was = kern_exact_enter();
    enum neb_status st = open_streams(r, w, &in, n);
    kern_exact_leave(was);
    NEB_TRY(st);
    return neb_rd_done(&in) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: bytes after its end");
}

// Fills a strip with the chosen elements, whose indices ascend.
static void read_topk(const struct cmp_reader *r, size_t from, float *out, size_t n) {
    const uint32_t *at = (const uint32_t *)(const void *)r->stream[0].p;
    const float *values = (const float *)(const void *)r->stream[1].p;
    size_t low = 0, high = r->entries;
    while (low < high) { // finds the first entry at or after from
        size_t mid = low + (high - low) / 2;
        if (at[mid] < from)
            low = mid + 1;
        else
            high = mid;
    }
    if (n)
        memset(out, 0, n * sizeof *out);
    for (; low < r->entries && at[low] < from + n; low++)
        out[at[low] - from] = values[low];
}

void cmp_reader_read(const struct cmp_reader *r, size_t at, float *out, size_t n) {
    unsigned was = kern_exact_enter();
    NEB_ASSERT(at + n <= r->h.n);
    switch (r->h.codec.id) {
    case CMP_FP32: cmp_frame_floats(out, r->stream[0].p + 4 * at, n); break;
    case CMP_BF16: kern_bf16_join(out, r->stream[0].p + at, r->stream[1].p + at, n); break;
    case CMP_INT8:
    case CMP_INT4: cmp_blocks_read(&r->h, r->stream, at, out, n); break;
    case CMP_TOPK: read_topk(r, at, out, n); break;
    }
    kern_exact_leave(was);
}
