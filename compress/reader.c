// SPDX-License-Identifier: Apache-2.0
// Frames that are read in strips (reader.h).
#include "compress/reader.h"
#include "compress/ops.h"
#include "kernels/exact.h"

#include <stdlib.h>
#include <string.h>

struct cmp_reader {
    struct cmp_frame h;
    struct neb_buf stream[CMP_STREAMS_MAX]; // as in the frame; sparse: indices, then values
    size_t entries;                         // sparse
};

enum neb_status cmp_reader_create(struct cmp_reader **out) {
    *out = calloc(1, sizeof **out);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for a frame's reader");
}

void cmp_reader_destroy(struct cmp_reader **rp) {
    struct cmp_reader *r = *rp;
    if (!r)
        return;
    for (int i = 0; i < CMP_STREAMS_MAX; i++)
        neb_buf_free(&r->stream[i]);
    free(r);
    *rp = NULL;
}

static enum neb_status open_sparse(struct cmp_reader *r, const struct neb_buf *raw, size_t n) {
    r->entries = cmp_ops(&r->h.codec)->entries(&r->h.codec, n);
    neb_buf_clear(&r->stream[0]);
    neb_buf_clear(&r->stream[1]);
    uint8_t *at = neb_buf_grow(&r->stream[0], r->entries * sizeof(uint32_t) + 1),
            *values = neb_buf_grow(&r->stream[1], r->entries * sizeof(float) + 1);
    if (!at || !values)
        return neb_buf_check(!at ? &r->stream[0] : &r->stream[1]);
    const struct cmp_sink to = {.at = (uint32_t *)(void *)at, .values = (float *)(void *)values};
    return cmp_ops(&r->h.codec)->unpack(&r->h, raw, n, &to);
}

static enum neb_status open_dense(struct cmp_reader *r, struct cmp_work *w, size_t n) {
    const size_t cap = sizeof w->strip / sizeof *w->strip;
    const struct cmp_codec_ops *ops = cmp_ops(&r->h.codec);
    if (ops->verify)
        NEB_TRY(ops->verify(&r->h, r->stream, n));
    for (size_t at = 0; ops->may_be_infinite && at < n; at += cap)
        NEB_TRY(cmp_frame_read(&r->h, r->stream, at, w->strip, n - at < cap ? n - at : cap));
    return NEB_OK;
}

static enum neb_status open(struct cmp_reader *r, struct cmp_work *w, const uint8_t *frame,
                            size_t len, size_t n) {
    struct cmp_frame_info info; // says whose buffers the streams need
    NEB_TRY(cmp_frame_peek(frame, len, &info));
    bool sparse = cmp_codec_sparse(&info.codec);
    NEB_TRY(cmp_frame_open(w, frame, len, n, &r->h, sparse ? w->stream : r->stream));
    return sparse ? open_sparse(r, w->stream, n) : open_dense(r, w, n);
}

enum neb_status cmp_reader_open(struct cmp_reader *r, struct cmp_work *w, const uint8_t *frame,
                                size_t len, size_t n) {
    unsigned was = kern_exact_enter();
    enum neb_status st = open(r, w, frame, len, n);
    kern_exact_leave(was);
    return st;
}

// Fills a strip with the chosen elements, whose indices ascend.
static void read_sparse(const struct cmp_reader *r, size_t from, float *out, size_t n) {
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
    if (cmp_codec_sparse(&r->h.codec))
        read_sparse(r, at, out, n);
    else
        cmp_ops(&r->h.codec)->read(&r->h, r->stream, at, out, n);
    kern_exact_leave(was);
}
