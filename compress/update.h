// SPDX-License-Identifier: Apache-2.0
// An update: what one member sends for one fragment in one round. It holds the frames of the
// fragment's units, and how often each row of an embedding or output matrix was seen.
//
//     | "NBU3" | units u32 | then for each unit:
//     | length u8 | unit | rows | cols | counts: length, bytes | frame: length, bytes |
//
// The first length is that of unit, rows and cols, which are numbers of 7 bits a byte (frame.h).
// The others are u16; 0xffff means that a u32 follows, which is the length. No counts have length
// 0. A unit has at least one row and one column. A row count is one logarithmic byte (8 values per
// octave, exact below 16). The counts of at most CMP_ADAPTIVE_MOST rows go through the adaptive
// coder (adaptive.h), others through zstd.
#ifndef CMP_UPDATE_H
#define CMP_UPDATE_H
#include "compress/codec.h"

struct cmp_unit_shape { // what the receiver expects of a unit
    uint32_t unit, rows, cols;
    bool counts; // rows are weighted
};

// Appends the head. Then the caller adds exactly n_units units, in the order that receivers expect.
void cmp_update_begin(struct neb_buf *out, uint32_t n_units);
// Adds a unit of (rows, cols) elements. topk sends a vector (one row or one column) as int4. counts
// (rows): tokens seen of each row; NULL: rows are not weighted. NEB_ERR_INVALID: an element is a
// NaN or an infinity.
NEB_MUST_CHECK enum neb_status cmp_update_add(struct cmp_work *w, struct neb_buf *out,
                                              const struct cmp_unit_shape *shape,
                                              const struct cmp_codec *codec,
                                              const struct cmp_source *from,
                                              const uint64_t *counts);

struct cmp_update_unit { // views into the update
    const uint8_t *counts, *frame;
    size_t counts_len, frame_len;
};
// Finds the units of an update. They must be exactly the expected ones, in order (NEB_ERR_FORMAT
// otherwise). out: (n).
NEB_MUST_CHECK enum neb_status cmp_update_open(const uint8_t *p, size_t len,
                                               const struct cmp_unit_shape *expect, uint32_t n,
                                               struct cmp_update_unit *out);
// For a mesh whose ranks hold some units each (agent/exchange/shards.h). cut appends an update of
// the units u with owner[u] == who, in their order; owner lists n_shards units. join makes one
// update of the units of all pieces, ordered by number. The bytes of a unit are copied as they are.
// NEB_ERR_FORMAT: malformed, or a unit that is not listed.
struct cmp_update_piece {
    const uint8_t *p;
    size_t len;
};
NEB_MUST_CHECK enum neb_status cmp_update_cut(const uint8_t *p, size_t len, const int32_t *owner,
                                              uint32_t n_shards, int32_t who, struct neb_buf *out);
NEB_MUST_CHECK enum neb_status cmp_update_join(const struct cmp_update_piece *pieces, size_t n,
                                               struct neb_buf *out);
// NEB_ERR_FORMAT: the update is malformed, its units do not ascend, or one of them has not the
// owner `who`.
NEB_MUST_CHECK enum neb_status cmp_update_owned(const uint8_t *p, size_t len, const int32_t *owner,
                                                uint32_t n_shards, int32_t who);
// For tools: *n = number of units; shapes receives the first cap of their shapes. NEB_ERR_FORMAT:
// malformed, or a unit's frame has another number of elements than rows x columns.
NEB_MUST_CHECK enum neb_status cmp_update_shapes(const uint8_t *p, size_t len,
                                                 struct cmp_unit_shape *shapes, uint32_t cap,
                                                 uint32_t *n);
// One digest of the shapes of all units of an update.
void cmp_shapes_hash(const struct cmp_unit_shape *shapes, uint32_t n, uint8_t out[32]);
// Unpacks the row counts of a unit: (rows). NEB_ERR_FORMAT: their number is wrong.
NEB_MUST_CHECK enum neb_status cmp_update_counts(struct cmp_work *w,
                                                 const struct cmp_update_unit *u, uint32_t rows,
                                                 uint32_t *counts);
// The exact value of a count's byte; and the byte of a count, rounded to nearest.
uint32_t cmp_count_value(uint8_t code);
uint8_t cmp_count_code(uint64_t count);
// What a member reports of a row's count if the job has coarse counts (sync.row_counts).
//
//     seen     tokens of the row in the steps behind this update
//     all      tokens of the row in the member's job so far, seen included
//     share    the fraction of the job's tokens that those steps trained on
//
//     seen >= 8:    the largest 2^k <= seen
//     all >= 8:     the largest 2^k <= all x share, but at least 1 and at most 4
//     otherwise:    0
//
// So fewer than CMP_COUNT_FLOOR occurrences in these steps do not show. The member then reports the
// row's count in the whole job, spread evenly over the steps, once that count has reached
// CMP_COUNT_FLOOR. No update shows whether a row came once, seven times or never. All updates of a
// job together show which rows have come eight times so far.
enum { CMP_COUNT_FLOOR = 8 };
uint64_t cmp_count_coarse(uint64_t seen, uint64_t all, double share);

struct cmp_update_stats {
    uint32_t units;
    uint64_t elements;
    uint64_t counts;     // sum of all row counts
    uint64_t count_rows; // rows whose count is not 0
    // L2 norm of all decoded elements, from codes and scales (compress/check.h): the same bits
    // everywhere
    double norm;
    uint8_t shapes[32];  // cmp_shapes_hash of its units
    const float *sketch; // if it was asked for (compress/check.h); otherwise NULL
};
// Checks an update without knowing the model: structure, frames, finiteness, norm. An agent does
// this before a commit. Here all bytes come at once; compress/check.h takes them as they arrive.
// NEB_ERR_FORMAT: the log says what is wrong. elements_max limits all elements together. It is
// checked on each unit's header before the unit is unpacked, since a few kilobytes can claim, and
// cost, billions of elements.
NEB_MUST_CHECK enum neb_status cmp_update_check_max(struct cmp_work *w, const uint8_t *p,
                                                    size_t len, uint64_t elements_max,
                                                    struct cmp_update_stats *out);
// The same, and a sketch (compress/sketch.h), which is valid until w is used again.
NEB_MUST_CHECK enum neb_status cmp_update_check_sketch(struct cmp_work *w, const uint8_t *p,
                                                       size_t len, uint64_t elements_max,
                                                       struct cmp_update_stats *out);

#endif
