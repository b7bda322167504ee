// SPDX-License-Identifier: Apache-2.0
// An update: what one member sends for one fragment in one round. Frames of its units, and how often each row of an
// embedding or output matrix was seen.
//
//     | "NBU1" | units u32 | per unit: unit u32 | rows u32 | cols u32 | counts u32 length, bytes | frame u32 length, bytes |
//
// A unit has at least one row and one column. Row counts are one logarithmic byte a row (8 values an octave, exact below 16), packed by zstd: zero runs vanish.
#ifndef CMP_UPDATE_H
#define CMP_UPDATE_H
#include "compress/codec.h"

struct cmp_unit_shape { // what the receiver expects of a unit
    uint32_t unit, rows, cols;
    bool counts; // rows are weighted
};

// Appends the head; then exactly n_units units follow, one add each, in the order that receivers expect.
void cmp_update_begin(struct neb_buf *out, uint32_t n_units);
// x: (rows, cols); one row or one column is a vector, which topk sends as int8. counts: (rows) tokens seen of each row, or NULL when the unit's rows are not weighted. NEB_ERR_INVALID: a NaN or
// an infinity in x.
NEB_MUST_CHECK enum neb_status cmp_update_add(struct cmp_work *w, struct neb_buf *out,
                                              const struct cmp_unit_shape *shape,
                                              const struct cmp_codec *codec, const float *x,
                                              const uint64_t *counts);
// The same of what a member learned: see cmp_encode_feedback.
NEB_MUST_CHECK enum neb_status cmp_update_add_feedback(struct cmp_work *w, struct neb_buf *out,
                                                       const struct cmp_unit_shape *shape,
                                                       const struct cmp_codec *codec,
                                                       const struct cmp_feedback *f,
                                                       const uint64_t *counts);

// The same with x on an accelerator.
struct cmp_device;
NEB_MUST_CHECK enum neb_status cmp_update_add_device(struct cmp_device *c, struct cmp_work *w,
                                                     struct neb_buf *out,
                                                     const struct cmp_unit_shape *shape,
                                                     const struct cmp_codec *codec, const float *x,
                                                     const uint64_t *counts);

struct cmp_update_unit { // views into the update
    const uint8_t *counts, *frame;
    size_t counts_len, frame_len;
};
// Finds the units of an update; they must be exactly the expected ones in order. out: (n). NEB_ERR_FORMAT otherwise.
NEB_MUST_CHECK enum neb_status cmp_update_open(const uint8_t *p, size_t len,
                                               const struct cmp_unit_shape *expect, uint32_t n,
                                               struct cmp_update_unit *out);
// Owners of a mesh hold some units each (agent/exchange/shards.h). cut: appends an update of those units u with owner[u] == who, n_shards of them listed,
// in the order that they have; join: one update of the units of all pieces, by number. A unit's bytes are copied as they are. NEB_ERR_FORMAT:
// malformed, or a number that is not listed.
struct cmp_update_piece {
    const uint8_t *p;
    size_t len;
};
NEB_MUST_CHECK enum neb_status cmp_update_cut(const uint8_t *p, size_t len, const int32_t *owner,
                                              uint32_t n_shards, int32_t who, struct neb_buf *out);
NEB_MUST_CHECK enum neb_status cmp_update_join(const struct cmp_update_piece *pieces, size_t n,
                                               struct neb_buf *out);
// What an update says of itself, for tools: *n units, and the shapes of the first cap of them. NEB_ERR_FORMAT when a unit's
// frame holds another number of elements than its rows and columns say.
NEB_MUST_CHECK enum neb_status cmp_update_shapes(const uint8_t *p, size_t len,
                                                 struct cmp_unit_shape *shapes, uint32_t cap,
                                                 uint32_t *n);
// One digest for what all units of an update must look like.
void cmp_shapes_hash(const struct cmp_unit_shape *shapes, uint32_t n, uint8_t out[32]);
// Row counts as numbers, (rows). NEB_ERR_FORMAT: they are not as many.
NEB_MUST_CHECK enum neb_status cmp_update_counts(struct cmp_work *w,
                                                 const struct cmp_update_unit *u, uint32_t rows,
                                                 uint32_t *counts);
// What the byte of a count stands for, exactly; and the byte of a count (rounded to nearest).
uint32_t cmp_count_value(uint8_t code);
uint8_t cmp_count_code(uint64_t count);
// What is told of a count where a job has coarse ones (sync.row_counts). Fewer than CMP_COUNT_FLOOR
// occurrences in the stretch that an update rests on look like none: what is told then is how often
// the row came in the member's whole job so far, spread evenly over it, and that from
// CMP_COUNT_FLOOR occurrences on as well. All of it as powers of two, rounded down.
//
//     seen     of the stretch: tokens of the row   told:  seen >= 8:          2^k <= seen
//     all      of the job so far, seen with them   else all >= 8: 2^k <= all x share, 1 to 4
//     share    the stretch's part of the job's tokens   else:               0
//
// So no update says of a row that it came once, seven times or never. What it says in the course of
// a job is which rows have come eight times by now.
enum { CMP_COUNT_FLOOR = 8 };
uint64_t cmp_count_coarse(uint64_t seen, uint64_t all, double share);

struct cmp_update_stats {
    uint32_t units;
    uint64_t elements;
    uint64_t counts;     // sum of all row counts
    uint64_t count_rows; // rows whose count is not 0
    // L2 of all decoded elements: from codes and scales (compress/check.h), the same bits everywhere
    double norm;
    uint8_t shapes[32];  // cmp_shapes_hash of its units
    const float *sketch; // where it was asked for (compress/check.h); else NULL
};
// Checks an update without knowing the model: structure, frames, finiteness, norm. What an agent does before a commit, here
// with all bytes at once; compress/check.h takes them as they come. NEB_ERR_FORMAT: what of it is wrong is logged.
// elements_max: bound on all elements together, which is checked on each unit's header before it is unpacked: a few
// kilobytes can claim, and cost, billions of elements.
NEB_MUST_CHECK enum neb_status cmp_update_check_max(struct cmp_work *w, const uint8_t *p,
                                                    size_t len, uint64_t elements_max,
                                                    struct cmp_update_stats *out);
// And its sketch (compress/sketch.h), valid until w is used again.
NEB_MUST_CHECK enum neb_status cmp_update_check_sketch(struct cmp_work *w, const uint8_t *p,
                                                       size_t len, uint64_t elements_max,
                                                       struct cmp_update_stats *out);

#endif
