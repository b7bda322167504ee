// SPDX-License-Identifier: Apache-2.0
// Codecs: they turn an array of fp32 into a self-describing frame and back.
//
//    frame = | "NBF2" | codec u8 | bits u8 | block u16 | chunk u32 | k u32 | top i16 |
//            | mags 2 x f32 | n u64 | 0 u32 | streams u8 |
//            | mags 6 x f32 (only topk of 4 bits) |
//            | per stream: stage u8 (0 raw, 1 zstd, 2 nibbles) | raw u32 | encoded u32 | bytes |
//
//    fp32   stream 0: the floats
//    bf16   0: high bytes   1: low bytes
//    int8   0: a scale byte a block   1: codes
//    int4   0: a scale byte a block   1: codes, two a byte
//           int3 and int2 are int4 frames whose encoder uses 7 and 3 codes: zstd removes the rest
//    topk   0: a scale byte a chunk   1: gaps between indices (bytes, 255 means "and 255 more")
//           2: values: a sign and a bin of the codebook `mags`, in 2 bits (header: bits 0) or 4
//
// The last stage of a stream is zstd if that helps (stage.c). For 8-bit codes it may be stage 2:
// the low nibbles as they are, then zstd of the high nibbles. A frame from elsewhere is hostile
// until it is checked: sizes are derived from the header and compared before anything is allocated
// or written.
//
// Sources: block quantisation as in QSGD and 8-bit optimisers; top-k by chunk with 2-bit values as
// in SparseLoCo (arXiv 2508.15706), with gaps in place of 12-bit indices.
#ifndef CMP_CODEC_H
#define CMP_CODEC_H
#include "agent/base/bytes.h"

enum cmp_codec_id {
    CMP_FP32 = 1,
    CMP_BF16 = 2,
    CMP_INT8 = 3,
    CMP_INT4 = 4,
    CMP_TOPK = 5,
    CMP_ID_LAST = 5
};

struct cmp_codec {
    enum cmp_codec_id id;
    uint32_t block;    // int8, int4: elements that share a scale
    uint32_t chunk, k; // topk: k of each `chunk` elements
    int zstd_level;
    int bits; // topk: bits of a value, 2 or 4
    // int8, int4: the encoder's codes lie in [-levels, levels] (int4 6, int3 3, int2 1); not in the
    // frame
    int levels;
};
enum {
    CMP_ELEMENTS_MAX = 1 << 28, // in one frame
    CMP_DENSE_BELOW = 1024,     // topk sends smaller arrays as int8, and vectors too (update.h)
};

// Parses "fp32", "bf16", "int8", "int4", "int4:64" (block), "int3", "int2" (likewise), "topk",
// "topk:64/4096" or "topk:64/4096:4". NEB_ERR_INVALID: the log lists what is allowed.
NEB_MUST_CHECK enum neb_status cmp_codec_parse(const char *text, struct cmp_codec *out);
// Writes the text form. cap >= 32.
void cmp_codec_name(const struct cmp_codec *c, char *out, size_t cap);

// Returns the most bytes that an update (update.h) of n elements in `units` units can take, for any
// values.
uint64_t cmp_codec_bytes_max(const struct cmp_codec *c, uint64_t n, uint64_t units);

// Scratch memory of an encoder or decoder. Each thread needs its own. It grows to the largest array
// and stays.
struct cmp_work;
// NEB_ERR_NOMEM. Every call that takes a cmp_work can return that too, when arrays grow.
NEB_MUST_CHECK enum neb_status cmp_work_create(struct cmp_work **out);
void cmp_work_destroy(struct cmp_work **w);
size_t cmp_work_bytes(const struct cmp_work *w); // without buffers that grow

// Appends the frame of x (n) to out. NEB_ERR_INVALID: x has a NaN or an infinity.
NEB_MUST_CHECK enum neb_status cmp_encode(struct cmp_work *w, const struct cmp_codec *c,
                                          const float *x, size_t n, struct neb_buf *out);
// The same for what a member has to send, formed in the same pass over memory:
// u = beta*u + (theta - theta_m).
struct cmp_feedback {
    float *u;                     // (n) the residual; becomes what is encoded
    const float *theta, *theta_m; // (n) global parameters, and the member's own
    float *sent;                  // (n) becomes a copy of theta_m; may be NULL
    float beta;
};
// NEB_ERR_INVALID: the new u has a NaN or an infinity. u and sent are set even then.
NEB_MUST_CHECK enum neb_status cmp_encode_feedback(struct cmp_work *w, const struct cmp_codec *c,
                                                   const struct cmp_feedback *f, size_t n,
                                                   struct neb_buf *out);
// Decodes a frame of exactly n elements, with the same bits on every machine. NEB_ERR_FORMAT:
// malformed.
NEB_MUST_CHECK enum neb_status cmp_decode(struct cmp_work *w, const uint8_t *frame, size_t len,
                                          float *out, size_t n);

struct cmp_frame_info {
    struct cmp_codec codec;
    uint64_t n;
};
// Reads the header only: codec and number of elements. NEB_ERR_FORMAT: no frame of a known version.
NEB_MUST_CHECK enum neb_status cmp_frame_peek(const uint8_t *frame, size_t len,
                                              struct cmp_frame_info *out);

#endif
