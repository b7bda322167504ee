// SPDX-License-Identifier: Apache-2.0
// Parts of frames (codec.h) that all codecs share: header, streams, and what is encoded. For the
// files of this folder.
#ifndef CMP_FRAME_H
#define CMP_FRAME_H
#include "compress/adaptive.h"
#include "compress/codec.h"

#include <zstd.h>

enum { CMP_MAGS = 8, CMP_STREAMS_MAX = 3 };
enum {                    // most bytes
    CMP_FRAME_HEAD = 40,  // of a frame's head
    CMP_STREAM_HEAD = 9,  // of a stream's head
    CMP_UNIT_HEAD = 16,   // of a unit's head (update.h)
    CMP_LENGTH_BYTES = 6, // of a length
    CMP_LENGTH_SHORT = 2, // of a length below CMP_LENGTH_LONG
};
enum {                             // of updates (update.h)
    CMP_UPDATE_MAGIC = 0x3355424e, // "NBU3"
    CMP_LENGTH_LONG = 0xffff,      // a length whose value follows in four bytes
    CMP_UNITS_MAX = 1 << 20,
    CMP_ROWS_MAX = 1 << 24,
    CMP_UNIT_ELEMENTS_MAX = 1 << 24, // limits what a hostile update can make us allocate: 64 MiB
};
#define CMP_MAG_MAX 1024.0f

enum cmp_stream { // what a stream holds; it decides the last stage (stage.c)
    CMP_NO_STREAM,
    CMP_BYTES,  // raw or zstd
    CMP_CODES2, // four symbols of 2 bits per byte
    CMP_CODES4, // codes of few levels, two per byte: also Huffman codes without matches
    CMP_CODES8, // 8-bit codes: also nibbles
    CMP_GAPS,   // geometric numbers; each raw byte stands for at most one of n / min elements
};

// A codec's work space: zstd's contexts, and buffers that grow to the largest array and stay, so
// that a round allocates nothing.
struct cmp_work {
    ZSTD_CCtx *cctx;
    ZSTD_DCtx *dctx;
    struct neb_buf stream[CMP_STREAMS_MAX];
    struct neb_buf codes;    // scratch of an encoder
    struct neb_buf counts;   // a byte for each row
    struct neb_buf plane;    // high nibbles of 8-bit codes (stage.c)
    struct cmp_check *check; // for whole updates; made when the first one is checked
    float strip[16384];      // elements
};

// Checks a unit that arrives. Every row has an element. So a limit on elements also limits the row
// counts, which are unpacked first.
static inline bool cmp_unit_possible(uint32_t rows, uint32_t cols) {
    return rows && cols && rows <= CMP_ROWS_MAX && (uint64_t)rows * cols <= CMP_UNIT_ELEMENTS_MAX;
}

struct cmp_unit_shape;
// update.c. Reads the head of a unit, and sets all of *s but counts. NEB_ERR_FORMAT.
NEB_MUST_CHECK enum neb_status cmp_unit_get(struct neb_rd *r, struct cmp_unit_shape *s);

struct cmp_frame { // the header
    struct cmp_codec codec;
    int top; // exponent that scales are relative to
    // topk: the codebook of magnitudes, ascending, in units of the chunk's scale; 2 or 8 of them
    float mags[CMP_MAGS];
    uint64_t n;
};
// codec.c. Numbers in heads have 7 bits a byte, the lowest first; a set high bit means that more
// follow. No encoder writes a last byte of 0. A head begins with the number of its other bytes.
// cmp_head_begin appends that byte, and cmp_head_end sets it. cmp_head_get reads it and makes *head
// a reader of these bytes; *r is behind them. A head of more than `most` bytes is malformed
// (r->bad).
void cmp_put_number(struct neb_buf *out, uint64_t x);
uint64_t cmp_get_number(struct neb_rd *r);
size_t cmp_head_begin(struct neb_buf *out);
void cmp_head_end(struct neb_buf *out, size_t at);
struct neb_rd cmp_head_get(struct neb_rd *r, size_t most);
// cmp_frame_put appends a head; the caller appends the streams after it. cmp_frame_get reads a head
// (NEB_ERR_FORMAT).
void cmp_frame_put(struct neb_buf *out, const struct cmp_frame *h);
NEB_MUST_CHECK enum neb_status cmp_frame_get(struct neb_rd *r, struct cmp_frame *h);
int cmp_frame_streams(const struct cmp_codec *c); // of its format
int cmp_frame_bins(int bits);                     // magnitudes of a codebook
// Reads a header and all streams of a frame of exactly n elements, and requires its end.
NEB_MUST_CHECK enum neb_status cmp_frame_open(struct cmp_work *w, const uint8_t *frame, size_t len,
                                              size_t n, struct cmp_frame *h,
                                              struct neb_buf raw[CMP_STREAMS_MAX]);
// Reads elements [at, at + n) of streams that are open. NEB_ERR_FORMAT: one is not finite.
NEB_MUST_CHECK enum neb_status cmp_frame_read(const struct cmp_frame *h, const struct neb_buf *raw,
                                              size_t at, float *out, size_t n);
// Logs what is wrong and returns NEB_ERR_INVALID.
NEB_MUST_CHECK enum neb_status cmp_frame_not_finite(void);

// stage.c. cmp_frame_put_all appends the header and w's streams, each through the stage that suits
// it (level 0: none). cmp_stage_get checks the head of a stream of min to max raw bytes.
NEB_MUST_CHECK enum neb_status cmp_frame_put_all(struct cmp_work *w, struct neb_buf *out,
                                                 const struct cmp_frame *h, int level);
enum cmp_stage { CMP_RAW, CMP_ZSTD, CMP_NIBBLES, CMP_ADAPTIVE };
struct cmp_stage_head {
    enum cmp_stage stage;
    size_t raw, len;
};
// What the adaptive coder knows of a stream of a frame of n elements; min as for cmp_stage_get.
struct cmp_adaptive cmp_stage_adaptive(enum cmp_stream kind, size_t n, size_t min);
extern const struct cmp_adaptive cmp_of_counts; // of row counts (update.h)
// NEB_ERR_FORMAT: bytes are left over. The second: there are more bytes than decoded ones.
NEB_MUST_CHECK enum neb_status cmp_adaptive_open(const struct cmp_adaptive *a, uint8_t *out,
                                                 size_t n, const uint8_t *p, size_t len);
NEB_MUST_CHECK enum neb_status cmp_adaptive_refuse(void);
// Bytes of the head of a stream that begins with `first`. sized: only one raw size is possible.
size_t cmp_stage_head_bytes(uint8_t first, bool sized);
NEB_MUST_CHECK enum neb_status cmp_stage_get(struct neb_rd *r, enum cmp_stream kind, size_t min,
                                             size_t max, struct cmp_stage_head *out);
NEB_MUST_CHECK enum neb_status cmp_frame_get_stream(struct cmp_work *w, struct neb_rd *r,
                                                    enum cmp_stream kind, size_t n, size_t min,
                                                    size_t max, struct neb_buf *into);
// Joins both planes of nibbles to codes. Refuses a nibble other than 0 after an odd last code.
NEB_MUST_CHECK enum neb_status cmp_frame_join(uint8_t *codes, const uint8_t *low,
                                              const uint8_t *high, size_t n);
// Writes one zstd frame of raw to out (cap: at least ZSTD_compressBound of it). Returns its size,
// or a zstd error code. Level CMP_HUFFMAN looks for no repeats.
enum { CMP_HUFFMAN = -2000 };
NEB_MUST_CHECK size_t cmp_work_pack(struct cmp_work *w, uint8_t *out, size_t cap,
                                    const struct neb_buf *raw, int level);

// Returns elements [at, at + n). For `learned` this forms them, so ask only once for each.
const float *cmp_source_at(const struct cmp_source *s, size_t at, size_t n);
// All n elements. NEB_ERR_INVALID: one is not finite.
NEB_MUST_CHECK enum neb_status cmp_source_all(const struct cmp_source *s, size_t n,
                                              const float **x);

#endif
