// SPDX-License-Identifier: Apache-2.0
// Codec frames and updates from a hostile peer: a decoder returns OK or NEB_ERR_FORMAT, writes
// nothing outside its output, and never outputs a NaN or an infinity. An accepted frame decodes
// again to the same result. tests/unit/test_codec_golden.c writes the corpus.
#include "compress/check.h"
#include "compress/frame.h"
#include "compress/reader.h"
#include "compress/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_MAX = 1 << 18 }; // elements; a larger claim would only cost time here
static const uint32_t sentinel = 0x5ca1ab1e;

static void require(bool good) {
    if (!good)
        abort();
}

static void decode_frame(struct cmp_work *w, const uint8_t *p, size_t len) {
    struct cmp_frame_info info;
    if (cmp_frame_peek(p, len, &info) != NEB_OK || info.n > N_MAX)
        return;
    size_t n = info.n;
    float *x = malloc((n + 1) * sizeof *x), *y = malloc((n + 1) * sizeof *y);
    require(x && y);
    memcpy(&x[n], &sentinel, sizeof sentinel);
    enum neb_status st = cmp_decode(w, p, len, x, n);
    require(st == NEB_OK || st == NEB_ERR_FORMAT);
    require(memcmp(&x[n], &sentinel, sizeof sentinel) == 0);
    require(cmp_decode(w, p, len, y, n + 1) == NEB_ERR_FORMAT); // never as another size
    if (st == NEB_OK) {
        for (size_t i = 0; i < n; i++)
            require(isfinite(x[i]));
        require(cmp_decode(w, p, len, y, n) == NEB_OK && memcmp(x, y, n * sizeof *x) == 0);
    }
    // Reading in strips accepts exactly what decoding accepts, with the same elements.
    static struct cmp_reader *r;
    if (!r)
        require(cmp_reader_create(&r) == NEB_OK);
    require(cmp_reader_open(r, w, p, len, n) == st);
    if (st == NEB_OK) {
        memcpy(&y[n], &sentinel, sizeof sentinel);
        for (size_t at = 0, strip = 1 + len % 1000; at < n; at += strip)
            cmp_reader_read(r, at, y + at, n - at < strip ? n - at : strip);
        require(memcmp(x, y, n * sizeof *x) == 0 && memcmp(&y[n], &sentinel, sizeof sentinel) == 0);
    }
    free(x);
    free(y);
}

// The same in pieces of lengths from the input: the same verdict and the same bits.
static void check_in_pieces(const uint8_t *p, size_t len, enum neb_status whole,
                            const struct cmp_update_stats *expected) {
    static struct cmp_check *c;
    struct cmp_update_stats stats;
    if (!c)
        require(cmp_check_create(&c) == NEB_OK);
    cmp_check_begin(c, UINT64_MAX);
    for (size_t at = 0, n; at < len; at += n) {
        n = 1 + (p[at] ^ p[len - 1 - at]) % (size_t)(at % 3 ? 7 : 100);
        n = n < len - at ? n : len - at;
        uint8_t *piece = malloc(n); // of exact size
        require(piece != NULL);
        memcpy(piece, p + at, n);
        enum neb_status st = cmp_check_feed(c, piece, n);
        require(st == NEB_OK || st == whole);
        free(piece);
    }
    require(cmp_check_end(c, &stats) == whole);
    require(whole != NEB_OK ||
            (memcmp(&stats.norm, &expected->norm, sizeof stats.norm) == 0 &&
             stats.elements == expected->elements && stats.counts == expected->counts &&
             memcmp(stats.shapes, expected->shapes, sizeof stats.shapes) == 0));
}

// Wraps the input as a frame in an update of one unit, so that it need not guess the update's
// header.
static void wrap_frame(struct cmp_work *w, const uint8_t *p, size_t len) {
    static struct neb_buf b;
    static float x[N_MAX];
    struct cmp_frame_info info;
    struct cmp_update_stats stats;
    if (cmp_frame_peek(p, len, &info) != NEB_OK || info.n > N_MAX)
        return;
    neb_buf_clear(&b);
    cmp_update_begin(&b, 1);
    size_t at = cmp_head_begin(&b);
    cmp_put_number(&b, 0);
    cmp_put_number(&b, 1);
    cmp_put_number(&b, info.n);
    cmp_head_end(&b, at);
    neb_buf_u16(&b, 0); // no counts
    neb_buf_u16(&b, CMP_LENGTH_LONG);
    neb_buf_u32(&b, (uint32_t)len);
    neb_buf_add(&b, p, len);
    require(!b.oom);
    enum neb_status st = cmp_update_check_max(w, b.p, b.len, UINT64_MAX, &stats);
    require(st == NEB_OK || st == NEB_ERR_FORMAT);
    check_in_pieces(b.p, b.len, st, &stats);
    if (st != NEB_OK)
        return;
    double sum = 0; // an accepted update decodes, with the declared norm
    require(cmp_decode(w, p, len, x, info.n) == NEB_OK);
    for (size_t i = 0; i < info.n; i++)
        sum += (double)x[i] * (double)x[i];
    require(fabs(sqrt(sum) - stats.norm) <= 1e-5 * sqrt(sum) + 1e-30);
}

static void open_update(struct cmp_work *w, const uint8_t *p, size_t len) {
    // as in the corpus
    static const struct cmp_unit_shape shapes[2] = {{0, 50, 8, true}, {3, 1, 77, false}};
    struct cmp_update_unit units[2];
    struct cmp_update_stats stats;
    uint32_t counts[50];
    float x[400];
    enum neb_status st = cmp_update_check_max(w, p, len, UINT64_MAX, &stats);
    require(st == NEB_OK || st == NEB_ERR_FORMAT);
    require(st != NEB_OK || (isfinite(stats.norm) && stats.norm >= 0));
    // the elements bound the work of every unit
    require(st != NEB_OK || stats.elements >= stats.units);
    check_in_pieces(p, len, st, &stats);
    if (cmp_update_open(p, len, shapes, 2, units) != NEB_OK)
        return;
    enum neb_status st_counts = cmp_update_counts(w, &units[0], 50, counts);
    enum neb_status st_first = cmp_decode(w, units[0].frame, units[0].frame_len, x, 400);
    enum neb_status st_second = cmp_decode(w, units[1].frame, units[1].frame_len, x, 77);
    // The gate's check and the worker must agree: an update that passed can be applied.
    if (st == NEB_OK)
        require(st_counts == NEB_OK && st_first == NEB_OK && st_second == NEB_OK &&
                stats.elements == 477);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct cmp_work *w; // one per process: its buffers are reused on purpose
    if (!w)
        require(cmp_work_create(&w) == NEB_OK);
    decode_frame(w, data, size);
    open_update(w, data, size);
    wrap_frame(w, data, size);
    return 0;
}
