// SPDX-License-Identifier: Apache-2.0
// The vtable of a codec. A codec is one file with one vtable, and a row in table.c. Everything else
// asks the table: parser, encoder, decoder, reader, gate, sketch, device, controller, planner,
// bench and tests.
//
// A dense codec has `read`. A sparse codec has `entries`, `unpack` and `sketch` instead. Slots
// marked "optional" may be NULL. Encoders and decoders run inside kern_exact_enter, so their bits
// are the same on every machine.
#ifndef CMP_OPS_H
#define CMP_OPS_H
#include "compress/device.h"
#include "compress/frame.h"
#include "compress/sketch.h"

enum { CMP_LANES = 8 };
struct cmp_tally { // the frame whose bytes arrive (check.c)
    struct cmp_frame h;
    size_t n;                            // elements
    struct neb_buf raw[CMP_STREAMS_MAX]; // unpacked streams; len is the full length
    int stream;                          // number of the stream that is arriving
    size_t done;                 // how much of this stream is counted, in the codec's own measure
    double sum, lane[CMP_LANES]; // of squares
};

struct cmp_sink { // where a sparse codec puts its elements
    float *out;   // (n); or NULL: at and values are set instead
    uint32_t *at; // (entries) ascending
    float *values;
};

struct cmp_codec_ops {
    const char *name;                   // of the format, and of its file in tests/golden/codec
    const char *usage;                  // its text forms: "int4[:BLOCK]"
    const struct cmp_variant *variants; // finest first; a row without a name ends them
    uint8_t number;                     // in frames; never changes
    enum cmp_stream streams[CMP_STREAMS_MAX];
    bool may_be_infinite; // `read` can return a NaN or an infinity: callers check the elements
    bool codebook;        // 4-bit values have six more magnitudes behind the header

    // Optional: text. NULL: the name alone. `parse` gets a codec with the defaults; false: the text
    // is not of this codec. The caller checks ranges. `print` writes a text that `parse` takes; cap
    // >= 32.
    bool (*parse)(const char *text, struct cmp_codec *c);
    void (*print)(const struct cmp_codec *c, char *out, size_t cap);

    // Optional: the most bytes of all streams of n elements in `units` frames, without heads. NULL:
    // the sizes of one frame of n elements, with at most 128 bytes more for each unit.
    uint64_t (*bound)(const struct cmp_codec *c, uint64_t n, uint64_t units);
    // Raw bytes of each stream of n elements; min[i] and max[i] are equal if only one size is
    // possible. Both are 0 before the call.
    void (*sizes)(const struct cmp_codec *c, size_t n, size_t min[], size_t max[]);

    // Fills w's streams, which are empty, and sets top and mags of h. NEB_ERR_INVALID: an element
    // is not finite (cmp_frame_not_finite). NEB_ERR_NOMEM.
    enum neb_status (*encode)(struct cmp_work *w, struct cmp_frame *h,
                              const struct cmp_source *from, size_t n);

    // raw: the unpacked streams. Their sizes are right, their bytes may be anything. `verify` is
    // optional: NEB_ERR_FORMAT if no encoder writes such bytes. `read` is called after it, and
    // cannot fail.
    enum neb_status (*verify)(const struct cmp_frame *h, const struct neb_buf *raw, size_t n);
    void (*read)(const struct cmp_frame *h, const struct neb_buf *raw, size_t at, float *out,
                 size_t n); // elements [at, at + n)

    // Sparse codecs. `unpack` also verifies. `entries` counts the elements that a frame carries.
    size_t (*entries)(const struct cmp_codec *c, size_t n);
    enum neb_status (*unpack)(const struct cmp_frame *h, const struct neb_buf *raw, size_t n,
                              const struct cmp_sink *to);
    void (*sketch)(const struct cmp_place *p, const struct cmp_frame *h, const struct neb_buf *raw,
                   size_t n);

    // Optional: adds to `sum` or `lane` what the first `bytes` bytes of a stream add, and verifies
    // them. It is called each time that bytes have arrived. NULL: the elements are read and counted
    // when the last stream arrives; `verify` runs before that.
    enum neb_status (*count)(struct cmp_tally *t, size_t bytes);

    // Optional: on a device. NULL: the processor does it. x and out lie on the device.
    // `device_encode` gets the largest magnitude. `device_takes` (optional): false for arrays that
    // the device has no kernel for. `device_decode` enqueues its kernel, over f's stream and
    // the second one, which `verify` has not seen; unless may_be_infinite, the kernel sets the flag
    // at d->room: 0, or another value if a code is out of range.
    bool (*device_takes)(const struct cmp_codec *c, size_t n);
    enum neb_status (*device_encode)(struct cmp_device *d, struct cmp_work *w, struct cmp_frame *h,
                                     const float *x, size_t n, float max);
    void (*device_decode)(struct cmp_device *d, const struct cmp_device_frame *f,
                          const uint8_t *second, float *out);
};

// table.c
extern const struct cmp_codec_ops *const cmp_codecs[]; // finest first; NULL ends the table
int cmp_format_numbered(uint8_t number);               // the row of a frame's number; -1: none
static inline const struct cmp_codec_ops *cmp_ops(const struct cmp_codec *c) {
    return cmp_codecs[c->format];
}
static inline bool cmp_codec_sparse(const struct cmp_codec *c) {
    return cmp_ops(c)->entries != NULL;
}

// For device hooks. cmp_device_streams gives memory on the device for a and b bytes.
// cmp_device_fetch appends bytes of the device to a buffer; they have arrived after kern_stage_end,
// and the buffer may not move before.
struct cmp_device {
    struct kern *D;
    uint8_t *room; // on the device: flags, then the streams of a call
    size_t bytes;
    struct neb_buf list; // on the host: elements, or indices and values
};
NEB_MUST_CHECK enum neb_status cmp_device_streams(struct cmp_device *d, size_t a, size_t b,
                                                  uint8_t **first, uint8_t **second);
NEB_MUST_CHECK enum neb_status cmp_device_fetch(struct cmp_device *d, struct neb_buf *to,
                                                const void *from, size_t n);

#endif
