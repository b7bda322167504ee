// SPDX-License-Identifier: Apache-2.0
// Parts of frames (codec.h) that all codecs share: header, streams, and what is encoded. For the
// files of this folder.
#ifndef CMP_FRAME_H
#define CMP_FRAME_H
#include "compress/codec.h"

#include <zstd.h>

enum { CMP_MAGS = 8, CMP_STREAMS_MAX = 3 };
enum {
    CMP_FRAME_BYTES = 39,    // of a header
    CMP_CODEBOOK_BYTES = 24, // more, behind the header, if values have 4 bits
    CMP_STREAM_BYTES = 9,    // of a stream's head
};
enum {                             // of updates (update.h)
    CMP_UPDATE_MAGIC = 0x3155424e, // "NBU1"
    CMP_UNITS_MAX = 1 << 20,
    CMP_ROWS_MAX = 1 << 24,
    CMP_UNIT_ELEMENTS_MAX = 1 << 24, // limits what a hostile update can make us allocate: 64 MiB
};
#define CMP_MAG_MAX 1024.0f

enum cmp_stream { // what a stream holds; it decides the last stage (stage.c)
    CMP_NO_STREAM,
    CMP_BYTES,  // raw or zstd
    CMP_CODES4, // codes of few levels, two per byte: also Huffman codes without matches
    CMP_CODES8, // 8-bit codes: also nibbles
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

struct cmp_frame { // the header
    struct cmp_codec codec;
    int top; // exponent that scales are relative to
    // topk: the codebook of magnitudes, ascending, in units of the chunk's scale; 2 or 8 of them
    float mags[CMP_MAGS];
    uint64_t n;
};
// codec.c. cmp_frame_put appends a header; the caller appends the streams after it. cmp_frame_get
// reads a header (NEB_ERR_FORMAT). cmp_frame_more: bytes of the codebook that follow the
// CMP_FRAME_BYTES at p.
void cmp_frame_put(struct neb_buf *out, const struct cmp_frame *h);
NEB_MUST_CHECK enum neb_status cmp_frame_get(struct neb_rd *r, struct cmp_frame *h);
size_t cmp_frame_more(const uint8_t *p);
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
enum cmp_stage { CMP_RAW, CMP_ZSTD, CMP_NIBBLES };
struct cmp_stage_head {
    enum cmp_stage stage;
    size_t raw, len;
};
NEB_MUST_CHECK enum neb_status cmp_stage_get(struct neb_rd *r, enum cmp_stream kind, size_t min,
                                             size_t max, struct cmp_stage_head *out);
NEB_MUST_CHECK enum neb_status cmp_frame_get_stream(struct cmp_work *w, struct neb_rd *r,
                                                    enum cmp_stream kind, size_t min, size_t max,
                                                    struct neb_buf *into);
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
