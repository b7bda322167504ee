// SPDX-License-Identifier: Apache-2.0
// Codecs: they turn an array of fp32 into a self-describing frame and back. A codec is one file
// that fills in a vtable (ops.h), and a row of the table (table.c).
//
//    frame  = | length u8 | codec u8 | bits u8 | top i8 | n | block, or chunk, k, mags | stream |
//    stream = | stage and width u8 | raw size | packed size | bytes |
//
// length is that of the head behind it. A sparse codec has chunk, k and the codebook (mags: 2
// values of bits 2, 8 of bits 4, the upper 16 bits of an f32 each), the others have block. n,
// block, chunk and k are numbers of 7 bits a byte (frame.h). The first byte of a stream is its
// stage (0 raw, 1 zstd, 2 nibbles, 3 adaptive) + 4 x the bytes of each size (1 to 4,
// little-endian). A raw size that follows from the head is left out, and so is the packed size of
// raw bytes.
//
// The file of a codec says what its streams hold. The last stage of a short stream is the adaptive
// coder, that of a longer one zstd, if that helps (stage.c). A frame from elsewhere is hostile
// until it is checked: sizes are derived from the header and compared before anything is allocated
// or written.
#ifndef CMP_CODEC_H
#define CMP_CODEC_H
#include "agent/base/bytes.h"

struct cmp_codec_ops;
struct cmp_codec {
    // The row in cmp_codecs, so that a codec has no pointer: ranks of a mesh send it to each other.
    uint8_t format;
    uint32_t block;    // int8, int4: elements that share a scale
    uint32_t chunk, k; // topk: k of each `chunk` elements
    int zstd_level;
    int bits; // topk: bits of a value, 2 or 4
    // int8, int4: the encoder's codes lie in [-levels, levels]; not in the frame. 0: all codes
    int levels;
};
enum {
    CMP_ELEMENTS_MAX = 1 << 28, // in one frame
    CMP_DENSE_BELOW = 1024,     // no codec makes smaller arrays sparse, nor vectors (update.h)
};

// Parses a codec's text, such as "int4", "int4:64" or "topk:64/4096". NEB_ERR_INVALID: the log
// lists what is allowed.
NEB_MUST_CHECK enum neb_status cmp_codec_parse(const char *text, struct cmp_codec *out);
// Writes the text form. cap >= 32.
void cmp_codec_name(const struct cmp_codec *c, char *out, size_t cap);
// Writes the text forms of all codecs: "fp32, bf16, int8[:BLOCK], ...".
void cmp_codec_usage(char *out, size_t cap);

// The share of elements that an update carries; 1: the codec is dense.
double cmp_codec_density(const struct cmp_codec *c);
// What a sparse codec uses instead for small arrays and vectors. A dense codec uses itself.
struct cmp_codec cmp_codec_dense(const struct cmp_codec *c);
// Bytes of an integer code before zstd; 0: the codec has no integer code for every element.
double cmp_codec_code_bytes(const struct cmp_codec *c);
// True if the codec is coarser than int8. A merge round carries much, and does not use it.
bool cmp_codec_coarse(const struct cmp_codec *c);
// Returns the most bytes that an update (update.h) of n elements in `units` units can take, for any
// values.
uint64_t cmp_codec_bytes_max(const struct cmp_codec *c, uint64_t n, uint64_t units);

// A codec with the parameters that programs choose by themselves. Rows of the vtables.
enum cmp_use {
    CMP_BENCHED = 1, // `nebula bench codec` measures it
    CMP_PLANNED = 2, // profiles measure it, and the planner may choose it
    CMP_LEVEL = 4,   // a codec level: the controller may choose it (inter/record/tune.h)
};
struct cmp_variant {
    const char *name, *alias; // texts for cmp_codec_parse; alias may be NULL
    unsigned uses;
    uint8_t level; // number of a codec level in records and checkpoints; it never changes
    // Typical bits per parameter and relative error on pseudo-gradients, from `nebula bench codec`;
    // density as above. The controller uses their ratios only.
    double bits, error, density;
};
enum { CMP_LEVEL_JOB = 0, CMP_LEVELS_MAX = 15, CMP_PLANNED_MAX = 16 };
// The i-th variant with one of these uses, from 0, finest first. NULL: there are fewer.
const struct cmp_variant *cmp_variant(int i, unsigned uses);
// Codec levels count from 1, finest first. CMP_LEVEL_JOB stands for the job's own codec;
// cmp_level_of returns it if no level has this text. Records and checkpoints hold the number of a
// level: cmp_level_number gives it, and cmp_level_numbered the level (-1: there is none).
const struct cmp_variant *cmp_level(int level); // NULL: no such level, or CMP_LEVEL_JOB
bool cmp_level_valid(int level);                // a level, or CMP_LEVEL_JOB
int cmp_level_of(const char *text);
uint8_t cmp_level_number(int level);
int cmp_level_numbered(uint8_t number);

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
struct cmp_device;
struct cmp_source { // what is encoded: x, or what `learned` describes
    const float *x;
    const struct cmp_feedback *learned;
    struct cmp_device *device; // x lies in its memory (device.h); NULL: on the host
};
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
