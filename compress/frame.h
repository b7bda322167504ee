// SPDX-License-Identifier: Apache-2.0
// Parts of frames (codec.h) that the codecs of the processor and of a device share: header,
// streams, top-k entries. For the files of this folder.
#ifndef CMP_FRAME_H
#define CMP_FRAME_H
#include "compress/work.h"

enum { CMP_GAP_ESCAPE = 255, CMP_MAGS = 8 };
enum {                             // of updates (update.h)
    CMP_UPDATE_MAGIC = 0x3155424e, // "NBU1"
    CMP_UNITS_MAX = 1 << 20,
    CMP_ROWS_MAX = 1 << 24,
    CMP_UNIT_ELEMENTS_MAX = 1 << 24, // limits what a hostile update can make us allocate: 64 MiB
};
#define CMP_MAG_MAX 1024.0f

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
// cmp_frame_put appends a header, behind which `streams` streams follow. cmp_frame_get reads one
// (NEB_ERR_FORMAT). cmp_frame_streams: how many streams a codec has.
void cmp_frame_put(struct neb_buf *out, const struct cmp_frame *h, int streams);
NEB_MUST_CHECK enum neb_status cmp_frame_get(struct neb_rd *r, struct cmp_frame *h);
int cmp_frame_streams(enum cmp_codec_id id);
int cmp_frame_bins(int bits); // magnitudes of a codebook
// Sets the levels and bits of a codec that are not set, as after reading a frame's header.
void cmp_codec_complete(struct cmp_codec *c);
// Log what is wrong. They return NEB_ERR_INVALID and NEB_ERR_FORMAT.
NEB_MUST_CHECK enum neb_status cmp_frame_not_finite(void);
NEB_MUST_CHECK enum neb_status cmp_frame_wrong_size(const struct cmp_frame *h, size_t n);
void cmp_frame_floats(float *out, const uint8_t *p, size_t n); // reads a stream of fp32
// stage.c. cmp_frame_put_all appends the header and w's streams, each through the stage that suits
// it (level 0: none). cmp_frame_get_stream reads a stream of min to max raw bytes; h is NULL unless
// the stream holds a frame's codes.
NEB_MUST_CHECK enum neb_status cmp_frame_put_all(struct cmp_work *w, struct neb_buf *out,
                                                 const struct cmp_frame *h, int level);
NEB_MUST_CHECK enum neb_status cmp_frame_get_stream(struct cmp_work *w, struct neb_rd *r,
                                                    const struct cmp_frame *h, size_t min,
                                                    size_t max, struct neb_buf *into);
// The highest stage that a frame's codes may have. All other streams may have stage 1 at most.
uint8_t cmp_frame_last_stage(const struct cmp_frame *h);
// Joins both planes of nibbles to codes. Refuses a nibble other than 0 behind an odd last code.
NEB_MUST_CHECK enum neb_status cmp_frame_join(uint8_t *codes, const uint8_t *low,
                                              const uint8_t *high, size_t n);

struct cmp_source { // what is encoded: x, or `learned`
    const float *x;
    const struct cmp_feedback *learned;
};
// Returns elements [at, at + n). For `learned` this forms them, so ask only once for each.
const float *cmp_source_at(const struct cmp_source *s, size_t at, size_t n);

// The codecs on the processor. Encoders fill w's streams. Decoders read the streams of a frame
// whose header was read.
NEB_MUST_CHECK enum neb_status cmp_blocks_encode(struct cmp_work *w, struct cmp_frame *h,
                                                 const struct cmp_source *from, size_t n);
NEB_MUST_CHECK enum neb_status cmp_blocks_decode(struct cmp_work *w, struct neb_rd *r,
                                                 const struct cmp_frame *h, float *out, size_t n);
// cmp_blocks_open reads and checks the two streams. cmp_blocks_read decodes elements [at, at + n)
// of them; its caller is in kern_exact_enter.
NEB_MUST_CHECK enum neb_status cmp_blocks_open(struct cmp_work *w, struct neb_rd *r,
                                               const struct cmp_frame *h, struct neb_buf stream[2],
                                               size_t n);
void cmp_blocks_read(const struct cmp_frame *h, const struct neb_buf stream[2], size_t at,
                     float *out, size_t n);
NEB_MUST_CHECK enum neb_status cmp_topk_encode(struct cmp_work *w, struct cmp_frame *h,
                                               const struct cmp_source *from, size_t n);

// entries of a chunk of len elements
size_t cmp_frame_chunk_k(const struct cmp_codec *c, size_t len);
size_t cmp_frame_entries(const struct cmp_codec *c, size_t n); // of all chunks
struct cmp_topk { // state while a frame's chunks are put, one after the other
    double sum[CMP_MAGS];
    uint64_t count[CMP_MAGS], entries;
    uint8_t bits;
};
// Appends a chunk to w's streams. idx: indices in the chunk, ascending.
NEB_MUST_CHECK enum neb_status cmp_frame_put_chunk(struct cmp_work *w, const struct cmp_frame *h,
                                                   struct cmp_topk *t, const uint16_t *idx,
                                                   const float *values, size_t k, size_t len);
// Call this after the last chunk. It sets h's codebook to the mean of each bin.
void cmp_frame_end_topk(struct cmp_work *w, struct cmp_frame *h, struct cmp_topk *t);
struct cmp_topk_sink {
    float *out;   // (n); or NULL: at and values are set instead
    uint32_t *at; // (cmp_frame_entries) distinct
    float *values;
};
// Reads and checks all streams of a topk frame. n: elements of the frame. NEB_ERR_FORMAT.
NEB_MUST_CHECK enum neb_status cmp_frame_get_topk(struct cmp_work *w, struct neb_rd *r,
                                                  const struct cmp_frame *h, size_t n,
                                                  const struct cmp_topk_sink *to);

#endif
