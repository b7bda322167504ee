// SPDX-License-Identifier: Apache-2.0
// The numeric check of updates (check.h).
// ZSTD_STATIC_LINKING_ONLY declares ZSTD_d_stableOutBuffer; cmp_check_create finds out whether the
// library has it.
#define ZSTD_STATIC_LINKING_ONLY
#include "compress/check.h"
#include "agent/base/sha256.h"
#include "compress/ops.h"
#include "kernels/clones.h"
#include "kernels/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ZSTD_MAGIC_BYTES = 4,
    PIECE = 1024, // floats at a time
};

enum state { HEAD, UNIT, COUNTS_LENGTH, COUNTS, LENGTH, FRAME, STREAM, BODY, END };

struct cmp_check {
    enum state state;
    enum neb_status st;
    ZSTD_DCtx *dctx;
    struct neb_sha256 *sha; // of the shapes of units
    uint64_t elements_max;
    struct cmp_update_stats stats;
    // sums of squares: t.sum of finished units and of this unit's codes, t.lane of its floats
    struct cmp_tally t;

    uint8_t small[CMP_FRAME_HEAD]; // the head that is being gathered
    size_t have, want;

    struct cmp_unit_shape shape; // the current unit
    uint32_t units_left, frame_left;

    struct neb_buf counts;
    ZSTD_outBuffer out;         // the stream or counts that are being filled
    size_t left;                // packed bytes to come
    bool packed, opened, ended; // it is zstd; its magic number has arrived; its end too
    bool sketching;
    bool nibbles;             // stage 2 (stage.c): the low nibbles come first,
    struct neb_buf low, high; // then zstd of the high ones; both make the stream
    bool adaptive;            // stage 3: `low` gathers its bytes
    struct cmp_adaptive model;
    float sketch[CMP_SKETCH];
};

enum neb_status cmp_check_create(struct cmp_check **out) {
    struct cmp_check *c = calloc(1, sizeof *c);
    if (c)
        c->dctx = ZSTD_createDCtx();
    enum neb_status st = c && c->dctx
                             ? neb_sha256_create(&c->sha)
                             : neb_fail(NEB_ERR_NOMEM, "out of memory for the check of an update");
    // zstd writes straight into the full stream. So a match may reach as far back as in
    // ZSTD_decompressDCtx, which workers use. With a window of zstd's own, hostile bytes could
    // decode to one thing here and to another there.
    if (st == NEB_OK && ZSTD_isError(ZSTD_DCtx_setParameter(c->dctx, ZSTD_d_stableOutBuffer, 1)))
        st = neb_fail(NEB_ERR_UNSUPPORTED,
                      "libzstd %s cannot unpack in place; install version 1.5 or later",
                      ZSTD_versionString());
    if (st != NEB_OK) {
        cmp_check_destroy(&c);
        return st;
    }
    *out = c;
    return NEB_OK;
}

void cmp_check_destroy(struct cmp_check **cp) {
    struct cmp_check *c = *cp;
    if (!c)
        return;
    ZSTD_freeDCtx(c->dctx);
    neb_sha256_destroy(&c->sha);
    for (int i = 0; i < CMP_STREAMS_MAX; i++)
        neb_buf_free(&c->t.raw[i]);
    neb_buf_free(&c->counts);
    neb_buf_free(&c->low);
    neb_buf_free(&c->high);
    free(c);
    *cp = NULL;
}

static void expect(struct cmp_check *c, enum state next, size_t want) {
    c->state = next;
    c->have = 0;
    c->want = want;
}

void cmp_check_begin(struct cmp_check *c, uint64_t elements_max) {
    uint8_t rest[NEB_SHA256_BYTES];
    neb_sha256_finish(c->sha, rest); // drops an update that was given up
    c->st = NEB_OK;
    c->stats = (struct cmp_update_stats){0};
    c->elements_max = elements_max;
    c->sketching = false;
    c->t.sum = 0;
    expect(c, HEAD, 8);
}

void cmp_check_sketch(struct cmp_check *c) {
    memset(c->sketch, 0, sizeof c->sketch);
    c->sketching = true;
}

static enum neb_status too_much(const struct cmp_check *c) {
    return neb_fail(NEB_ERR_FORMAT, "update: it claims more than %llu elements, which is the limit",
                    (unsigned long long)c->elements_max);
}

// ---- elements

// Element i goes to lane i % 8. Lanes avoid one long chain of additions, and give the same order on
// every processor.
KERN_CLONES static void add_squares(double lane[CMP_LANES], const float *x, size_t n) {
    size_t k = 0;
    for (; k + CMP_LANES <= n; k += CMP_LANES)
        for (size_t j = 0; j < CMP_LANES; j++)
            lane[j] += (double)x[k + j] * (double)x[k + j];
    for (size_t j = 0; k + j < n; j++)
        lane[j] += (double)x[k + j] * (double)x[k + j];
}

// Counts all elements that have arrived, in pieces that begin with lane 0. A codec that verifies
// its streams waits for the last byte.
static enum neb_status take_floats(struct cmp_tally *t, size_t bytes) {
    const struct cmp_codec_ops *ops = cmp_ops(&t->h.codec);
    size_t len = t->raw[t->stream].len, here = bytes == len ? t->n : 0;
    if (t->stream + 1 < cmp_frame_streams(&t->h.codec))
        return NEB_OK;
    if (ops->verify && here)
        NEB_TRY(ops->verify(&t->h, t->raw, t->n));
    if (!ops->verify && !here && len % t->n == 0)
        here = bytes / (len / t->n) / CMP_LANES * CMP_LANES;
    for (float x[PIECE]; t->done < here;) {
        size_t n = here - t->done < PIECE ? here - t->done : PIECE;
        NEB_TRY(cmp_frame_read(&t->h, t->raw, t->done, x, n));
        add_squares(t->lane, x, n);
        t->done += n;
    }
    return NEB_OK;
}

// Counts what the first `bytes` bytes of a stream add. The rest has not arrived yet.
static enum neb_status take_stream(struct cmp_check *c, size_t bytes) {
    const struct cmp_codec_ops *ops = cmp_ops(&c->t.h.codec);
    return ops->count ? ops->count(&c->t, bytes) : take_floats(&c->t, bytes);
}

static void take_counts(struct cmp_check *c) {
    uint64_t by_code[256] = {0};
    for (size_t i = 0; i < c->counts.len; i++)
        by_code[c->counts.p[i]]++;
    for (unsigned code = 0; code < 256; code++)
        c->stats.counts += by_code[code] * cmp_count_value((uint8_t)code);
    c->stats.count_rows += c->counts.len - by_code[0];
}

// ---- headers

static enum neb_status begin_body(struct cmp_check *c, enum state state, struct neb_buf *into,
                                  size_t raw, size_t packed_len, bool packed) {
    neb_buf_clear(into);
    NEB_TRY(neb_buf_reserve(into, raw + 1));
    into->len = raw;
    expect(c, state, ZSTD_MAGIC_BYTES);
    c->out = (ZSTD_outBuffer){into->p, raw, 0};
    c->left = packed_len;
    c->packed = packed;
    c->opened = c->ended = c->nibbles = c->adaptive = false;
    c->t.done = 0;
    (void)ZSTD_DCtx_reset(c->dctx, ZSTD_reset_session_only); // never fails
    return NEB_OK;
}

static enum neb_status begin_adaptive(struct cmp_check *c, enum state state, struct neb_buf *into,
                                      size_t raw, size_t len, struct cmp_adaptive model) {
    neb_buf_clear(&c->low);
    NEB_TRY(neb_buf_reserve(&c->low, len));
    NEB_TRY(begin_body(c, state, into, raw, len, false));
    c->adaptive = true;
    c->model = model;
    return NEB_OK;
}

static enum neb_status on_head(struct cmp_check *c) {
    struct neb_rd r = neb_rd_make(c->small, c->want);
    uint32_t magic = neb_rd_u32(&r);
    c->units_left = c->stats.units = neb_rd_u32(&r);
    if (magic != CMP_UPDATE_MAGIC || c->units_left > CMP_UNITS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "update: no valid header");
    expect(c, c->units_left ? UNIT : END, 1);
    return NEB_OK;
}

// True if the first byte of a head, its length, has asked for more. A length that is too large
// leaves the head as it is, and its reader refuses it.
static bool head_needs_more(struct cmp_check *c, size_t most) {
    size_t more = c->want == 1 && c->small[0] < most ? c->small[0] : 0;
    c->want += more;
    return more;
}

static enum neb_status on_unit(struct cmp_check *c) {
    struct cmp_unit_shape *s = &c->shape;
    if (head_needs_more(c, CMP_UNIT_HEAD))
        return NEB_OK;
    struct neb_rd r = neb_rd_make(c->small, c->want);
    NEB_TRY(cmp_unit_get(&r, s));
    c->t.n = (size_t)s->rows * s->cols;
    c->stats.elements += c->t.n;
    if (c->stats.elements > c->elements_max)
        return too_much(c);
    memset(c->t.lane, 0, sizeof c->t.lane);
    expect(c, COUNTS_LENGTH, CMP_LENGTH_SHORT);
    return NEB_OK;
}

// A length that takes more bytes than have arrived: false.
static bool length_of(struct cmp_check *c, uint32_t *out) {
    struct neb_rd r = neb_rd_make(c->small, c->want);
    *out = neb_rd_u16(&r);
    if (*out != CMP_LENGTH_LONG)
        return true;
    if (c->want == CMP_LENGTH_SHORT) {
        c->want = CMP_LENGTH_BYTES;
        return false;
    }
    *out = neb_rd_u32(&r);
    return true;
}

static enum neb_status on_counts_length(struct cmp_check *c) {
    struct cmp_unit_shape *s = &c->shape;
    uint8_t shape[13];
    uint32_t len;
    if (!length_of(c, &len))
        return NEB_OK;
    s->counts = len > 0;
    neb_put_u32(shape, s->unit); // as cmp_shapes_hash lays it out
    neb_put_u32(shape + 4, s->rows);
    neb_put_u32(shape + 8, s->cols);
    shape[12] = s->counts;
    neb_sha256_add(c->sha, shape, sizeof shape);
    if (s->counts && s->rows <= CMP_ADAPTIVE_MOST)
        return len > cmp_adaptive_bound(s->rows)
                   ? cmp_adaptive_refuse()
                   : begin_adaptive(c, COUNTS, &c->counts, s->rows, len, cmp_of_counts);
    if (s->counts)
        return begin_body(c, COUNTS, &c->counts, s->rows, len, true);
    expect(c, LENGTH, CMP_LENGTH_SHORT);
    return NEB_OK;
}

static enum neb_status spend(struct cmp_check *c, size_t bytes) {
    if (bytes > c->frame_left)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: cut short");
    c->frame_left -= (uint32_t)bytes;
    return NEB_OK;
}

static enum neb_status on_length(struct cmp_check *c) {
    if (!length_of(c, &c->frame_left))
        return NEB_OK;
    expect(c, FRAME, 1);
    return spend(c, 1);
}

static enum neb_status on_frame(struct cmp_check *c) {
    if (head_needs_more(c, CMP_FRAME_HEAD))
        return spend(c, c->want - 1);
    struct neb_rd r = neb_rd_make(c->small, c->want);
    NEB_TRY(cmp_frame_get(&r, &c->t.h));
    if (c->t.h.n != c->t.n || !neb_rd_done(&r))
        return neb_fail(NEB_ERR_FORMAT,
                        "update: unit %u is %u x %u, but its frame has %llu elements",
                        c->shape.unit, c->shape.rows, c->shape.cols, (unsigned long long)c->t.h.n);
    c->t.stream = 0;
    expect(c, STREAM, 1);
    return spend(c, 1);
}

// The stream gets its place at once, and its bytes when both planes are complete.
static enum neb_status begin_nibbles(struct cmp_check *c, size_t raw, size_t len) {
    struct neb_buf *to = &c->t.raw[c->t.stream];
    size_t half = (raw + 1) / 2;
    neb_buf_clear(to);
    NEB_TRY(neb_buf_reserve(to, raw + 1));
    to->len = raw;
    neb_buf_clear(&c->low);
    NEB_TRY(neb_buf_reserve(&c->low, half));
    NEB_TRY(begin_body(c, BODY, &c->high, half, len, true));
    c->nibbles = true;
    return NEB_OK;
}

static enum neb_status end_nibbles(struct cmp_check *c) {
    const struct neb_buf *to = &c->t.raw[c->t.stream];
    c->nibbles = false;
    NEB_TRY(cmp_frame_join(to->p, c->low.p, c->high.p, to->len));
    return take_stream(c, to->len);
}

static enum neb_status on_stream(struct cmp_check *c) {
    struct neb_rd r = neb_rd_make(c->small, c->want);
    const struct cmp_codec *k = &c->t.h.codec;
    struct cmp_stage_head s;
    size_t min[CMP_STREAMS_MAX] = {0}, max[CMP_STREAMS_MAX] = {0};
    int i = c->t.stream;
    cmp_ops(k)->sizes(k, c->t.n, min, max);
    size_t all = cmp_stage_head_bytes(c->small[0], min[i] == max[i]);
    if (all > CMP_STREAM_HEAD)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: no valid head of a stream");
    if (c->want < all) {
        NEB_TRY(spend(c, all - c->want));
        c->want = all;
        return NEB_OK;
    }
    NEB_TRY(cmp_stage_get(&r, cmp_ops(k)->streams[i], min[i], max[i], &s));
    NEB_TRY(spend(c, s.len));
    if (s.stage == CMP_ADAPTIVE)
        return begin_adaptive(c, BODY, &c->t.raw[i], s.raw, s.len,
                              cmp_stage_adaptive(cmp_ops(k)->streams[i], c->t.n, min[i]));
    return s.stage == CMP_NIBBLES
               ? begin_nibbles(c, s.raw, s.len)
               : begin_body(c, BODY, &c->t.raw[i], s.raw, s.len, s.stage == CMP_ZSTD);
}

static enum neb_status end_unit(struct cmp_check *c) {
    if (c->frame_left)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: bytes after its end");
    c->t.sum += ((c->t.lane[0] + c->t.lane[4]) + (c->t.lane[1] + c->t.lane[5])) +
                ((c->t.lane[2] + c->t.lane[6]) + (c->t.lane[3] + c->t.lane[7]));
    if (c->sketching)
        cmp_sketch_add(c->sketch, c->shape.unit, &c->t.h, c->t.raw, c->t.n);
    expect(c, --c->units_left ? UNIT : END, 1);
    return NEB_OK;
}

// ---- bytes

static enum neb_status not_zstd(void) {
    return neb_fail(NEB_ERR_FORMAT, "codec frame: a zstd stream does not unpack to its size");
}

static enum neb_status unpack(struct cmp_check *c, const uint8_t *p, size_t n) {
    ZSTD_inBuffer in = {p, n, 0};
    while (in.pos < in.size) {
        size_t was = in.pos, had = c->out.pos;
        size_t left = c->ended ? 1 : ZSTD_decompressStream(c->dctx, &c->out, &in);
        if (c->ended || ZSTD_isError(left) || (in.pos == was && c->out.pos == had && left))
            return not_zstd(); // also if bytes follow its end
        c->ended = left == 0;
    }
    return NEB_OK;
}

// Accepts exactly one zstd frame. A library may accept more (old formats, skippable frames, several
// frames in a row), but no encoder writes that.
static enum neb_status open_zstd(struct cmp_check *c, const uint8_t **p, size_t *n) {
    size_t k = c->want - c->have < *n ? c->want - c->have : *n;
    memcpy(c->small + c->have, *p, k);
    c->have += k, *p += k, *n -= k;
    if (c->have < c->want)
        return NEB_OK;
    struct neb_rd r = neb_rd_make(c->small, ZSTD_MAGIC_BYTES);
    if (neb_rd_u32(&r) != ZSTD_MAGICNUMBER)
        return not_zstd();
    c->opened = true;
    return unpack(c, c->small, ZSTD_MAGIC_BYTES);
}

// True if the elements are not known before the last byte of the stream.
static bool late(const struct cmp_check *c) { return c->nibbles || c->adaptive; }

static enum neb_status body(struct cmp_check *c, const uint8_t *p, size_t n) {
    if (c->adaptive) {
        neb_buf_add(&c->low, p, n);
        return NEB_OK;
    }
    if (!c->packed) {
        if (n)
            memcpy((uint8_t *)c->out.dst + c->out.pos, p, n);
        c->out.pos += n;
        return NEB_OK;
    }
    if (c->nibbles && c->low.len < c->high.len) {
        size_t k = c->high.len - c->low.len < n ? c->high.len - c->low.len : n;
        neb_buf_add(&c->low, p, k);
        p += k, n -= k;
    }
    if (!c->opened && n)
        NEB_TRY(open_zstd(c, &p, &n));
    return n ? unpack(c, p, n) : NEB_OK;
}

static enum neb_status end_body(struct cmp_check *c) {
    if (c->adaptive) {
        NEB_TRY(cmp_adaptive_open(&c->model, c->out.dst, c->out.size, c->low.p, c->low.len));
        c->out.pos = c->out.size;
        if (c->state == BODY)
            NEB_TRY(take_stream(c, c->out.size));
    }
    if (c->out.pos != c->out.size || (c->packed && !c->ended))
        return not_zstd();
    if (c->nibbles)
        NEB_TRY(end_nibbles(c));
    if (c->state == COUNTS) {
        take_counts(c);
        expect(c, LENGTH, CMP_LENGTH_SHORT);
        return NEB_OK;
    }
    if (++c->t.stream == cmp_frame_streams(&c->t.h.codec))
        return end_unit(c);
    expect(c, STREAM, 1);
    return spend(c, 1);
}

static enum neb_status on_gathered(struct cmp_check *c) {
    switch (c->state) {
    case HEAD: return on_head(c);
    case UNIT: return on_unit(c);
    case COUNTS_LENGTH: return on_counts_length(c);
    case LENGTH: return on_length(c);
    case FRAME: return on_frame(c);
    case STREAM: return on_stream(c);
    case COUNTS:
    case BODY:
    case END: break;
    }
    return NEB_OK;
}

// Takes as much of n >= 1 bytes as the current state can use.
static enum neb_status feed_some(struct cmp_check *c, const uint8_t *p, size_t n, size_t *used) {
    if (c->state == END)
        return neb_fail(NEB_ERR_FORMAT, "update: bytes after its end");
    if (c->state == COUNTS || c->state == BODY) {
        *used = n < c->left ? n : c->left;
        c->left -= *used;
        NEB_TRY(body(c, p, *used));
        if (c->state == BODY && !late(c))
            NEB_TRY(take_stream(c, c->out.pos));
        return c->left ? NEB_OK : end_body(c);
    }
    *used = c->want - c->have < n ? c->want - c->have : n;
    memcpy(c->small + c->have, p, *used);
    c->have += *used;
    return c->have == c->want ? on_gathered(c) : NEB_OK;
}

// An empty stream is complete before any byte of it arrives.
static enum neb_status skip_empty(struct cmp_check *c) {
    while (c->state == BODY && c->left == 0) {
        if (!late(c))
            NEB_TRY(take_stream(c, c->out.pos));
        NEB_TRY(end_body(c));
    }
    return NEB_OK;
}

enum neb_status cmp_check_feed(struct cmp_check *c, const uint8_t *p, size_t n) {
    unsigned was = kern_exact_enter();
    for (size_t used; n > 0 && c->st == NEB_OK; p += used, n -= used) {
        used = 0;
        c->st = feed_some(c, p, n, &used);
        if (c->st == NEB_OK)
            c->st = skip_empty(c);
    }
    kern_exact_leave(was);
    return c->st;
}

enum neb_status cmp_check_end(struct cmp_check *c, struct cmp_update_stats *out) {
    if (c->st == NEB_OK && c->state != END)
        c->st = neb_fail(NEB_ERR_FORMAT, "update: cut short");
    c->stats.norm = sqrt(c->t.sum);
    c->stats.sketch = c->sketching && c->st == NEB_OK ? c->sketch : NULL;
    neb_sha256_finish(c->sha, c->stats.shapes);
    *out = c->stats;
    return c->st;
}

bool cmp_check_is_update(const uint8_t *p, size_t n) {
    struct neb_rd r = neb_rd_make(p, n);
    return neb_rd_u32(&r) == CMP_UPDATE_MAGIC && !r.bad;
}
