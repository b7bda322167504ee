// SPDX-License-Identifier: Apache-2.0
// Updates (update.h).
#include "compress/update.h"
#include "agent/base/sha256.h"
#include "compress/check.h"
#include "compress/device.h"
#include "compress/frame.h"

#include <stdlib.h>
#include <string.h>

enum {
    COUNT_CODE_MAX = 231,
    COUNTS_ZSTD_LEVEL = 3,
};

// Codes 0..15 are exact. Above that, c has the mantissa 8 + (c & 7) and the exponent (c >> 3) - 1:
// 16, 18, 20, … Code 231 is 15 << 27.
uint32_t cmp_count_value(uint8_t code) {
    if (code < 16)
        return code;
    uint8_t c = code > COUNT_CODE_MAX ? COUNT_CODE_MAX : code;
    return (uint32_t)(8 + (c & 7)) << ((c >> 3) - 1);
}

uint8_t cmp_count_code(uint64_t count) {
    uint64_t top = cmp_count_value(COUNT_CODE_MAX);
    if (count < 16)
        return (uint8_t)count;
    if (count >= top)
        return COUNT_CODE_MAX;
    int shift = 60 - __builtin_clzll(count); // leaves four significant bits
    uint8_t low = (uint8_t)(((shift + 1) << 3) + (int)((count >> shift) - 8));
    return count - cmp_count_value(low) <= cmp_count_value((uint8_t)(low + 1)) - count
               ? low
               : (uint8_t)(low + 1);
}

static uint64_t power_below(uint64_t n) { return n ? UINT64_C(1) << (63 - __builtin_clzll(n)) : 0; }

uint64_t cmp_count_coarse(uint64_t seen, uint64_t all, double share) {
    if (seen >= CMP_COUNT_FLOOR)
        return power_below(seen);
    if (all < CMP_COUNT_FLOOR)
        return 0;
    double even = (double)all * share;
    return even >= CMP_COUNT_FLOOR ? CMP_COUNT_FLOOR / 2
           : even >= 1             ? power_below((uint64_t)even)
                                   : 1;
}

void cmp_update_begin(struct neb_buf *out, uint32_t n_units) {
    neb_buf_u32(out, CMP_UPDATE_MAGIC);
    neb_buf_u32(out, n_units);
}

// A length is known when its bytes are there. Few bytes are moved, so that it takes two bytes.
static size_t length_begin(struct neb_buf *out) {
    (void)neb_buf_grow(out, CMP_LENGTH_BYTES);
    return out->len;
}

static enum neb_status length_end(struct neb_buf *out, size_t at) {
    NEB_TRY(neb_buf_check(out));
    size_t n = out->len - at;
    uint8_t *p = out->p + at - CMP_LENGTH_BYTES;
    if (n < CMP_LENGTH_LONG) {
        memmove(p + CMP_LENGTH_SHORT, out->p + at, n);
        out->len -= CMP_LENGTH_BYTES - CMP_LENGTH_SHORT;
        p[0] = (uint8_t)n, p[1] = (uint8_t)(n >> 8);
    } else {
        p[0] = p[1] = CMP_LENGTH_LONG & 0xff;
        neb_put_u32(p + CMP_LENGTH_SHORT, (uint32_t)n);
    }
    return NEB_OK;
}

static enum neb_status put_counts(struct cmp_work *w, struct neb_buf *out, const uint64_t *counts,
                                  uint32_t rows) {
    size_t at = length_begin(out), bound = ZSTD_compressBound(rows);
    if (!counts)
        return length_end(out, at);
    neb_buf_clear(&w->counts);
    NEB_TRY(neb_buf_reserve(&w->counts, (size_t)rows + 1));
    for (uint32_t i = 0; i < rows; i++)
        w->counts.p[i] = cmp_count_code(counts[i]);
    w->counts.len = rows;
    if (rows <= CMP_ADAPTIVE_MOST) {
        NEB_TRY(cmp_adaptive_put(&cmp_of_counts, w->counts.p, rows, out));
        if (out->len == at) // no bytes would mean no counts
            neb_buf_u8(out, 0);
        return length_end(out, at);
    }
    NEB_TRY(neb_buf_reserve(out, bound));
    size_t n = cmp_work_pack(w, out->p + out->len, bound, &w->counts, COUNTS_ZSTD_LEVEL);
    NEB_ASSERT(!ZSTD_isError(n));
    out->len += n;
    return length_end(out, at);
}

enum neb_status cmp_update_add(struct cmp_work *w, struct neb_buf *out,
                               const struct cmp_unit_shape *s, const struct cmp_codec *codec,
                               const struct cmp_source *from, const uint64_t *counts) {
    size_t n = (size_t)s->rows * s->cols, at = cmp_head_begin(out);
    // Vectors (norms, biases) are few and important: no codec makes them sparse.
    struct cmp_codec c = s->rows == 1 || s->cols == 1 ? cmp_codec_dense(codec) : *codec;
    cmp_put_number(out, s->unit);
    cmp_put_number(out, s->rows);
    cmp_put_number(out, s->cols);
    cmp_head_end(out, at);
    NEB_TRY(put_counts(w, out, s->counts ? counts : NULL, s->rows));
    at = length_begin(out);
    NEB_TRY(from->device    ? cmp_device_encode(from->device, w, &c, from->x, n, out)
            : from->learned ? cmp_encode_feedback(w, &c, from->learned, n, out)
                            : cmp_encode(w, &c, from->x, n, out));
    return length_end(out, at);
}

static size_t get_length(struct neb_rd *r) {
    size_t n = neb_rd_u16(r);
    return n == CMP_LENGTH_LONG ? neb_rd_u32(r) : n;
}

enum neb_status cmp_unit_get(struct neb_rd *r, struct cmp_unit_shape *s) {
    struct neb_rd head = cmp_head_get(r, CMP_UNIT_HEAD);
    uint64_t unit = cmp_get_number(&head), rows = cmp_get_number(&head),
             cols = cmp_get_number(&head);
    if (r->bad)
        return neb_fail(NEB_ERR_FORMAT, "update: cut short");
    if (!neb_rd_done(&head) || unit > UINT32_MAX || rows > UINT32_MAX || cols > UINT32_MAX ||
        !cmp_unit_possible((uint32_t)rows, (uint32_t)cols))
        return neb_fail(NEB_ERR_FORMAT, "update: unit %llu claims %llu x %llu elements",
                        (unsigned long long)unit, (unsigned long long)rows,
                        (unsigned long long)cols);
    *s = (struct cmp_unit_shape){.unit = (uint32_t)unit, (uint32_t)rows, (uint32_t)cols, false};
    return NEB_OK;
}

static enum neb_status next_unit(struct neb_rd *r, struct cmp_unit_shape *s,
                                 struct cmp_update_unit *u) {
    NEB_TRY(cmp_unit_get(r, s));
    u->counts_len = get_length(r);
    u->counts = neb_rd_view(r, u->counts_len);
    u->frame_len = get_length(r);
    u->frame = neb_rd_view(r, u->frame_len);
    s->counts = u->counts_len > 0;
    return r->bad ? neb_fail(NEB_ERR_FORMAT, "update: cut short") : NEB_OK;
}

static enum neb_status open_header(struct neb_rd *r, uint32_t *n) {
    uint32_t magic = neb_rd_u32(r);
    *n = neb_rd_u32(r);
    if (r->bad || magic != CMP_UPDATE_MAGIC || *n > CMP_UNITS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "update: no valid header");
    return NEB_OK;
}

enum neb_status cmp_update_open(const uint8_t *p, size_t len, const struct cmp_unit_shape *expect,
                                uint32_t n, struct cmp_update_unit *out) {
    struct neb_rd r = neb_rd_make(p, len);
    uint32_t units;
    NEB_TRY(open_header(&r, &units));
    if (units != n)
        return neb_fail(
            NEB_ERR_FORMAT,
            "update: %u units, but the fragment has %u; do all members run the same job?", units,
            n);
    for (uint32_t i = 0; i < n; i++) {
        struct cmp_unit_shape s;
        NEB_TRY(next_unit(&r, &s, &out[i]));
        if (s.unit != expect[i].unit || s.rows != expect[i].rows || s.cols != expect[i].cols ||
            s.counts != expect[i].counts)
            return neb_fail(NEB_ERR_FORMAT,
                            "update: unit %u is %u x %u, expected unit %u of %u x %u", s.unit,
                            s.rows, s.cols, expect[i].unit, expect[i].rows, expect[i].cols);
    }
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "update: bytes after its end");
}

enum neb_status cmp_update_cut(const uint8_t *p, size_t len, const int32_t *owner,
                               uint32_t n_shards, int32_t who, struct neb_buf *out) {
    struct neb_rd r = neb_rd_make(p, len);
    uint32_t units, taken = 0;
    size_t head = out->len;
    NEB_TRY(open_header(&r, &units));
    cmp_update_begin(out, 0);
    for (uint32_t i = 0; i < units; i++) {
        struct cmp_unit_shape s;
        struct cmp_update_unit u;
        size_t at = len - neb_rd_left(&r);
        NEB_TRY(next_unit(&r, &s, &u));
        if (s.unit >= n_shards)
            return neb_fail(NEB_ERR_FORMAT, "update: unit %u, but the job has only %u units",
                            s.unit, n_shards);
        if (owner[s.unit] != who)
            continue;
        neb_buf_add(out, p + at, len - neb_rd_left(&r) - at);
        taken++;
    }
    NEB_TRY(neb_buf_check(out));
    neb_put_u32(out->p + head + 4, taken);
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "update: bytes after its end");
}

enum neb_status cmp_update_owned(const uint8_t *p, size_t len, const int32_t *owner,
                                 uint32_t n_shards, int32_t who) {
    struct neb_rd r = neb_rd_make(p, len);
    uint32_t units, next = 0;
    NEB_TRY(open_header(&r, &units));
    for (uint32_t i = 0; i < units; i++) {
        struct cmp_unit_shape s;
        struct cmp_update_unit u;
        NEB_TRY(next_unit(&r, &s, &u));
        if (s.unit < next || s.unit >= n_shards || owner[s.unit] != who)
            return neb_fail(NEB_ERR_FORMAT, "update: unit %u is not one of rank %d", s.unit, who);
        next = s.unit + 1;
    }
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "update: bytes after its end");
}

struct join { // one piece, and how far it has been read
    struct neb_rd r;
    uint32_t left;    // units after the next one
    uint32_t unit;    // number of the next one
    const uint8_t *p; // bytes of the next one; NULL: none is left
    size_t len;
};

static enum neb_status join_next(struct join *j) {
    struct cmp_unit_shape s;
    struct cmp_update_unit u;
    size_t before = neb_rd_left(&j->r);
    j->p = NULL;
    if (!j->left)
        return neb_rd_done(&j->r) ? NEB_OK
                                  : neb_fail(NEB_ERR_FORMAT, "update: bytes after its end");
    const uint8_t *p = j->r.p + j->r.off;
    NEB_TRY(next_unit(&j->r, &s, &u));
    j->p = p;
    j->len = before - neb_rd_left(&j->r);
    j->unit = s.unit;
    j->left--;
    return NEB_OK;
}

enum neb_status cmp_update_join(const struct cmp_update_piece *pieces, size_t n,
                                struct neb_buf *out) {
    enum neb_status st = NEB_OK;
    uint32_t units = 0;
    struct join *all = calloc(n + 1, sizeof *all), *first = all;
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory joining %zu updates", n);
    for (size_t i = 0; i < n && st == NEB_OK; i++) {
        all[i].r = neb_rd_make(pieces[i].p, pieces[i].len);
        st = open_header(&all[i].r, &all[i].left);
        units += st == NEB_OK ? all[i].left : 0;
        if (st == NEB_OK)
            st = join_next(&all[i]);
    }
    cmp_update_begin(out, units);
    while (first && st == NEB_OK) {
        first = NULL;
        for (size_t i = 0; i < n; i++)
            if (all[i].p && (!first || all[i].unit < first->unit))
                first = &all[i];
        if (!first)
            break;
        neb_buf_add(out, first->p, first->len);
        st = join_next(first);
    }
    free(all);
    return st == NEB_OK ? neb_buf_check(out) : st;
}

enum neb_status cmp_update_counts(struct cmp_work *w, const struct cmp_update_unit *u,
                                  uint32_t rows, uint32_t *counts) {
    neb_buf_clear(&w->counts);
    NEB_TRY(neb_buf_reserve(&w->counts, (size_t)rows + 1));
    size_t n = rows;
    if (rows <= CMP_ADAPTIVE_MOST)
        NEB_TRY(cmp_adaptive_open(&cmp_of_counts, w->counts.p, rows, u->counts, u->counts_len));
    else
        n = ZSTD_decompressDCtx(w->dctx, w->counts.p, rows, u->counts, u->counts_len);
    if (ZSTD_isError(n) || n != rows)
        return neb_fail(NEB_ERR_FORMAT, "update: row counts do not unpack to %u rows", rows);
    for (uint32_t i = 0; i < rows; i++)
        counts[i] = cmp_count_value(w->counts.p[i]);
    return NEB_OK;
}

// Reads headers only, before any unit is unpacked.
enum neb_status cmp_update_shapes(const uint8_t *p, size_t len, struct cmp_unit_shape *shapes,
                                  uint32_t cap, uint32_t *n) {
    struct neb_rd r = neb_rd_make(p, len);
    NEB_TRY(open_header(&r, n));
    for (uint32_t i = 0; i < *n; i++) {
        struct cmp_unit_shape s;
        struct cmp_update_unit u;
        struct cmp_frame_info info;
        NEB_TRY(next_unit(&r, &s, &u));
        NEB_TRY(cmp_frame_peek(u.frame, u.frame_len, &info));
        if (info.n != (uint64_t)s.rows * s.cols)
            return neb_fail(NEB_ERR_FORMAT, "update: unit %u claims %u x %u elements in %zu bytes",
                            s.unit, s.rows, s.cols, u.frame_len);
        if (i < cap)
            shapes[i] = s;
    }
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "update: bytes after its end");
}

void cmp_shapes_hash(const struct cmp_unit_shape *shapes, uint32_t n,
                     uint8_t out[NEB_SHA256_BYTES]) {
    struct neb_buf b = {0};
    for (uint32_t i = 0; i < n; i++) {
        neb_buf_u32(&b, shapes[i].unit);
        neb_buf_u32(&b, shapes[i].rows);
        neb_buf_u32(&b, shapes[i].cols);
        neb_buf_u8(&b, shapes[i].counts);
    }
    NEB_ASSERT(!b.oom); // 13 bytes per unit
    neb_sha256(b.p, b.len, out);
    neb_buf_free(&b);
}

static enum neb_status check_frames(struct cmp_work *w, const uint8_t *p, size_t len,
                                    uint64_t elements_max, bool sketch,
                                    struct cmp_update_stats *out) {
    *out = (struct cmp_update_stats){0};
    if (!w->check)
        NEB_TRY(cmp_check_create(&w->check));
    cmp_check_begin(w->check, elements_max);
    if (sketch)
        cmp_check_sketch(w->check);
    enum neb_status st = cmp_check_feed(w->check, p, len), end = cmp_check_end(w->check, out);
    return st == NEB_OK ? end : st;
}

enum neb_status cmp_update_check_max(struct cmp_work *w, const uint8_t *p, size_t len,
                                     uint64_t elements_max, struct cmp_update_stats *out) {
    return check_frames(w, p, len, elements_max, false, out);
}

enum neb_status cmp_update_check_sketch(struct cmp_work *w, const uint8_t *p, size_t len,
                                        uint64_t elements_max, struct cmp_update_stats *out) {
    return check_frames(w, p, len, elements_max, true, out);
}
