// SPDX-License-Identifier: Apache-2.0
// The numeric check of updates (check.h).
// for ZSTD_d_stableOutBuffer: cmp_check_create finds out whether the library has it
#define ZSTD_STATIC_LINKING_ONLY
#include "compress/check.h"
#include "agent/base/sha256.h"
#include "compress/frame.h"
#include "kernels/blocks.h"
#include "kernels/clones.h"
#include "kernels/exact.h"
#include "kernels/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FRAME_BYTES = 39,
    CODEBOOK_BYTES = 24, // behind a frame's head if topk has values of 4 bits
    STREAM_BYTES = 9,
    ZSTD_MAGIC_BYTES = 4,
    LANES = 8,
    PIECE = 1024, // floats at a time
    BATCH = 64,   // blocks at a time
};

enum state { HEAD, UNIT, COUNTS, LENGTH, FRAME, CODEBOOK, STREAM, BODY, END };

struct cmp_check {
    enum state state;
    enum neb_status st;
    ZSTD_DCtx *dctx;
    struct neb_sha256 *sha; // of the shapes of units
    uint64_t elements_max;
    struct cmp_update_stats stats;
    // sums of squares: of finished units and of this unit's codes; of this unit's floats
    double sum, lane[LANES];

    uint8_t small[FRAME_BYTES + CODEBOOK_BYTES]; // the header that is being gathered
    size_t have, want;

    struct cmp_unit_shape shape; // the current unit
    uint32_t units_left, counts_len, frame_left;
    struct cmp_frame h;
    size_t n;
    int stream;

    struct neb_buf raw[CMP_STREAMS_MAX]; // unpacked streams, in full
    struct neb_buf counts;
    struct neb_buf *into; // the stream or counts that are being filled
    ZSTD_outBuffer out;
    // packed bytes to come; elements or blocks that are counted
    size_t left, done;
    bool packed, opened, ended; // it is zstd; its magic number has arrived; its end too
    bool sketching;
    bool nibbles;             // stage 2 (stage.c): the low nibbles come first,
    struct neb_buf low, high; // then zstd of the high ones; both make the stream
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
        neb_buf_free(&c->raw[i]);
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
    c->sum = 0;
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
KERN_CLONES static void add_squares(double lane[LANES], const float *x, size_t n) {
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (size_t j = 0; j < LANES; j++)
            lane[j] += (double)x[k + j] * (double)x[k + j];
    for (size_t j = 0; k + j < n; j++)
        lane[j] += (double)x[k + j] * (double)x[k + j];
}

// A block's codes are integers: the sum of their squares is exact, and so is the square of the
// scale.
static void add_block(struct cmp_check *c, uint64_t squares, size_t block) {
    double scale = (double)kern_scale_value(c->raw[0].p[block], c->h.top);
    c->sum += (double)squares * (scale * scale);
}

static enum neb_status out_of_range(const struct cmp_check *c) {
    return neb_fail(NEB_ERR_FORMAT, "codec frame: %s code out of range",
                    c->h.codec.id == CMP_INT4 ? "a 4-bit" : "an 8-bit");
}

// Takes codes [at, at + n) one by one: in blocks that are not of 128, and in the last one.
static bool squares_of(const struct cmp_check *c, size_t at, size_t n, uint64_t *sum) {
    bool four = c->h.codec.id == CMP_INT4, good = true;
    const uint8_t *p = c->raw[1].p;
    *sum = 0;
    for (size_t i = at; i < at + n; i++) {
        int q = four ? (int)(p[i / 2] >> (i % 2 * 4) & 15) - 8 : (int8_t)p[i];
        good = good && q != (four ? -8 : -128);
        *sum += (uint64_t)(q * q);
    }
    return good;
}

// Counts all blocks whose codes have arrived.
static enum neb_status take_codes(struct cmp_check *c, size_t bytes) {
    bool four = c->h.codec.id == CMP_INT4, last = bytes == c->into->len, good = true;
    size_t block = c->h.codec.block, codes = last ? c->n : four ? 2 * bytes : bytes;
    while (good && block == KERN_DEFAULT_BLOCK && (c->done + 1) * block <= codes) {
        uint32_t sums[BATCH];
        size_t whole = codes / block - c->done, k = whole < BATCH ? whole : BATCH;
        size_t at = c->done * block;
        good = kern_blocks_squares(sums, c->raw[1].p + (four ? at / 2 : at), k, four);
        for (size_t i = 0; i < k; i++)
            add_block(c, sums[i], c->done++);
    }
    while (good && c->done * block < codes && (last || (c->done + 1) * block <= codes)) {
        size_t at = c->done * block, len = codes - at < block ? codes - at : block;
        uint64_t sum;
        good = squares_of(c, at, len, &sum);
        add_block(c, sum, c->done++);
    }
    if (last && four && c->n % 2) // code 0 fills up the last byte
        good = good && c->raw[1].p[c->n / 2] >> 4 == 8;
    return good ? NEB_OK : out_of_range(c);
}

// Counts all floats that have arrived, in pieces that begin with lane 0.
static enum neb_status take_floats(struct cmp_check *c, size_t bytes) {
    bool plain = c->h.codec.id == CMP_FP32, finite = true;
    size_t here = plain ? bytes / 4 : bytes;
    here = here == c->n ? here : here / LANES * LANES;
    for (float x[PIECE]; c->done < here && finite;) {
        size_t n = here - c->done < PIECE ? here - c->done : PIECE;
        if (plain)
            cmp_frame_floats(x, c->raw[0].p + 4 * c->done, n);
        else
            kern_bf16_join(x, c->raw[0].p + c->done, c->raw[1].p + c->done, n);
        (void)kern_absmax(x, n, &finite);
        add_squares(c->lane, x, n);
        c->done += n;
    }
    return finite ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: a value is NaN or infinite");
}

// Checks that every gap leads to an index in its chunk, and that all gaps are used.
static enum neb_status take_gaps(const struct cmp_check *c) {
    const uint8_t *gap = c->raw[1].p, *end = gap + c->raw[1].len;
    for (size_t at = 0; at < c->n; at += c->h.codec.chunk) {
        size_t len = c->n - at < c->h.codec.chunk ? c->n - at : c->h.codec.chunk, i = 0;
        for (size_t k = cmp_frame_chunk_k(&c->h.codec, len); k > 0; k--, i++) {
            for (; gap < end && *gap == CMP_GAP_ESCAPE; gap++)
                i += CMP_GAP_ESCAPE;
            if (gap == end || (i += *gap++) >= len)
                return neb_fail(NEB_ERR_FORMAT, "codec frame: an index outside its chunk");
        }
    }
    return gap == end ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "codec frame: more indices than entries");
}

// A chunk's norm needs only the number of entries of each magnitude.
static enum neb_status take_values(struct cmp_check *c) {
    unsigned bits = (unsigned)c->h.codec.bits, each = 8 / bits,
             bins = (unsigned)cmp_frame_bins(c->h.codec.bits);
    size_t e = 0;
    for (size_t at = 0, chunk = 0; at < c->n; at += c->h.codec.chunk, chunk++) {
        size_t len = c->n - at < c->h.codec.chunk ? c->n - at : c->h.codec.chunk;
        float scale = kern_scale_value(c->raw[0].p[chunk], c->h.top);
        uint32_t count[CMP_MAGS] = {0};
        for (size_t k = cmp_frame_chunk_k(&c->h.codec, len); k > 0; k--, e++)
            count[(c->raw[2].p[e / each] >> (e % each * bits) & ((1u << bits) - 1)) >> 1]++;
        for (unsigned b = 0; b < bins; b++) {
            float value = c->h.mags[b] * scale;
            if (!isfinite(value))
                return neb_fail(NEB_ERR_FORMAT, "codec frame: a chunk's values are not finite");
            c->sum += (double)count[b] * ((double)value * (double)value);
        }
    }
    return NEB_OK;
}

// Counts what the first `bytes` bytes of a stream add. The rest has not arrived yet.
static enum neb_status take_stream(struct cmp_check *c, size_t bytes) {
    bool whole = bytes == c->into->len;
    switch (c->h.codec.id) {
    case CMP_FP32: return take_floats(c, bytes);
    case CMP_BF16: return c->stream == 1 ? take_floats(c, bytes) : NEB_OK;
    case CMP_INT8:
    case CMP_INT4: return c->stream == 1 ? take_codes(c, bytes) : NEB_OK;
    case CMP_TOPK:
        if (!whole || c->done++) // only once
            return NEB_OK;
        return c->stream == 1 ? take_gaps(c) : c->stream == 2 ? take_values(c) : NEB_OK;
    }
    return NEB_OK;
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
    c->into = into;
    c->out = (ZSTD_outBuffer){into->p, raw, 0};
    c->left = packed_len;
    c->packed = packed;
    c->opened = c->ended = c->nibbles = false;
    c->done = 0;
    (void)ZSTD_DCtx_reset(c->dctx, ZSTD_reset_session_only); // never fails
    return NEB_OK;
}

static enum neb_status on_head(struct cmp_check *c) {
    struct neb_rd r = neb_rd_make(c->small, c->want);
    uint32_t magic = neb_rd_u32(&r);
    c->units_left = c->stats.units = neb_rd_u32(&r);
    if (magic != CMP_UPDATE_MAGIC || c->units_left > CMP_UNITS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "update: no valid header");
    expect(c, c->units_left ? UNIT : END, 16);
    return NEB_OK;
}

static enum neb_status on_unit(struct cmp_check *c) {
    struct neb_rd r = neb_rd_make(c->small, c->want);
    struct cmp_unit_shape *s = &c->shape;
    uint8_t shape[13];
    s->unit = neb_rd_u32(&r);
    s->rows = neb_rd_u32(&r);
    s->cols = neb_rd_u32(&r);
    c->counts_len = neb_rd_u32(&r);
    s->counts = c->counts_len > 0;
    if (!cmp_unit_possible(s->rows, s->cols))
        return neb_fail(NEB_ERR_FORMAT, "update: unit %u claims %u x %u elements", s->unit, s->rows,
                        s->cols);
    c->n = (size_t)s->rows * s->cols;
    c->stats.elements += c->n;
    if (c->stats.elements > c->elements_max)
        return too_much(c);
    memcpy(shape, c->small, 12); // as cmp_shapes_hash lays it out
    shape[12] = s->counts;
    neb_sha256_add(c->sha, shape, sizeof shape);
    memset(c->lane, 0, sizeof c->lane);
    if (s->counts)
        return begin_body(c, COUNTS, &c->counts, s->rows, c->counts_len, true);
    expect(c, LENGTH, 4);
    return NEB_OK;
}

static enum neb_status spend(struct cmp_check *c, size_t bytes) {
    if (bytes > c->frame_left)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: cut short");
    c->frame_left -= (uint32_t)bytes;
    return NEB_OK;
}

static enum neb_status on_frame(struct cmp_check *c) {
    size_t len = c->want;
    if (c->state == FRAME && c->small[4] == CMP_TOPK && c->small[5] == 4) {
        c->state = CODEBOOK; // the codebook follows the head that was gathered
        c->want += CODEBOOK_BYTES;
        return spend(c, CODEBOOK_BYTES);
    }
    struct neb_rd r = neb_rd_make(c->small, len);
    NEB_TRY(cmp_frame_get(&r, &c->h));
    if (c->h.n != c->n || !neb_rd_done(&r))
        return neb_fail(NEB_ERR_FORMAT,
                        "update: unit %u is %u x %u, but its frame has %llu elements",
                        c->shape.unit, c->shape.rows, c->shape.cols, (unsigned long long)c->h.n);
    c->stream = 0;
    expect(c, STREAM, STREAM_BYTES);
    return spend(c, STREAM_BYTES);
}

// Least and most raw bytes of the current stream.
static void sizes_of(const struct cmp_check *c, size_t *min, size_t *max) {
    const struct cmp_codec *k = &c->h.codec;
    size_t n = c->n, entries = k->id == CMP_TOPK ? cmp_frame_entries(k, n) : 0,
           each = 8 / (size_t)k->bits, chunks = (n + k->chunk - 1) / k->chunk;
    const size_t exact[][CMP_STREAMS_MAX] = {
        [CMP_FP32] = {n * 4},
        [CMP_BF16] = {n, n},
        [CMP_INT8] = {(n + k->block - 1) / k->block, n},
        [CMP_INT4] = {(n + k->block - 1) / k->block, (n + 1) / 2},
        [CMP_TOPK] = {chunks, entries, (entries + each - 1) / each},
    };
    *min = *max = exact[k->id][c->stream];
    if (k->id == CMP_TOPK && c->stream == 1)
        *max += n / CMP_GAP_ESCAPE + chunks;
}

static enum neb_status begin_nibbles(struct cmp_check *c, size_t raw, size_t len) {
    size_t half = (raw + 1) / 2;
    if (raw == 0 || len < half)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: %zu bytes of nibbles, at least %zu expected",
                        len, half);
    neb_buf_clear(&c->low);
    NEB_TRY(neb_buf_reserve(&c->low, half));
    NEB_TRY(begin_body(c, BODY, &c->high, half, len, true));
    c->nibbles = true;
    return NEB_OK;
}

// Both planes are complete: joins them to the stream.
static enum neb_status end_nibbles(struct cmp_check *c) {
    struct neb_buf *to = &c->raw[c->stream];
    neb_buf_clear(to);
    NEB_TRY(neb_buf_reserve(to, c->n + 1));
    to->len = c->n;
    c->into = to;
    c->nibbles = false;
    NEB_TRY(cmp_frame_join(to->p, c->low.p, c->high.p, c->n));
    return take_stream(c, c->n);
}

static enum neb_status on_stream(struct cmp_check *c) {
    struct neb_rd r = neb_rd_make(c->small, c->want);
    uint8_t stage = neb_rd_u8(&r);
    size_t raw = neb_rd_u32(&r), len = neb_rd_u32(&r), min, max;
    sizes_of(c, &min, &max);
    if (stage > (c->stream == 1 ? cmp_frame_last_stage(&c->h) : 1) || raw < min || raw > max ||
        (stage == 0 && raw != len))
        return neb_fail(NEB_ERR_FORMAT, "codec frame: a stream of %zu bytes, %zu to %zu expected",
                        raw, min, max);
    NEB_TRY(spend(c, len));
    if (stage == 2)
        return begin_nibbles(c, raw, len);
    return begin_body(c, BODY, &c->raw[c->stream], raw, len, stage == 1);
}

static enum neb_status end_unit(struct cmp_check *c) {
    if (c->frame_left)
        return neb_fail(NEB_ERR_FORMAT, "codec frame: bytes after its end");
    c->sum += ((c->lane[0] + c->lane[4]) + (c->lane[1] + c->lane[5])) +
              ((c->lane[2] + c->lane[6]) + (c->lane[3] + c->lane[7]));
    if (c->sketching)
        cmp_sketch_add(c->sketch, c->shape.unit, &c->h, c->raw, c->n);
    expect(c, --c->units_left ? UNIT : END, 16);
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

static enum neb_status body(struct cmp_check *c, const uint8_t *p, size_t n) {
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
    if (c->out.pos != c->out.size || (c->packed && !c->ended))
        return not_zstd();
    if (c->nibbles)
        NEB_TRY(end_nibbles(c));
    if (c->state == COUNTS) {
        take_counts(c);
        expect(c, LENGTH, 4);
        return NEB_OK;
    }
    if (++c->stream == cmp_frame_streams(c->h.codec.id))
        return end_unit(c);
    expect(c, STREAM, STREAM_BYTES);
    return spend(c, STREAM_BYTES);
}

static enum neb_status on_gathered(struct cmp_check *c) {
    switch (c->state) {
    case HEAD: return on_head(c);
    case UNIT: return on_unit(c);
    case LENGTH: {
        struct neb_rd r = neb_rd_make(c->small, 4);
        c->frame_left = neb_rd_u32(&r);
        expect(c, FRAME, FRAME_BYTES);
        return spend(c, FRAME_BYTES);
    }
    case FRAME:
    case CODEBOOK: return on_frame(c);
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
        if (c->state == BODY && !c->nibbles)
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
        if (!c->nibbles)
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
    c->stats.norm = sqrt(c->sum);
    c->stats.sketch = c->sketching && c->st == NEB_OK ? c->sketch : NULL;
    neb_sha256_finish(c->sha, c->stats.shapes);
    *out = c->stats;
    return c->st;
}

bool cmp_check_is_update(const uint8_t *p, size_t n) {
    struct neb_rd r = neb_rd_make(p, n);
    return neb_rd_u32(&r) == CMP_UPDATE_MAGIC && !r.bad;
}
