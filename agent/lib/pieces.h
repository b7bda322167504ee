// SPDX-License-Identifier: Apache-2.0
// Which elements of a tensor a rank holds, and what has to travel between the holders of a unit and
// its owner. Pure: no messages and no parameters here.
//
// A box is a rectangle of a tensor in its own dimensions: elements [at, at + n) in each of them. A
// unit of the exchange is a contiguous range of the tensor's elements in row-major order (rows, or
// columns of one row: agent/exchange/manifest.h), so the part of a box in a unit is a list of runs:
//
//     shape (4, 6), box at (0, 2), n (4, 3)      unit: elements 6 … 18
//       . . x x x .
//       . . x x x .    ◄─┐                       runs: 8 … 11 and 14 … 17, as one block:
//       . . x x x .    ◄─┘                       2 runs of 3, 6 elements apart
//       . . x x x .
#ifndef AGENT_LIB_PIECES_H
#define AGENT_LIB_PIECES_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PIECES_DIMS_MAX = 8 };

struct pieces_box {
    int64_t at[PIECES_DIMS_MAX], n[PIECES_DIMS_MAX];
};

struct pieces_boxes { // zeroed: none
    struct pieces_box *p;
    size_t len, cap;
};
NEB_MUST_CHECK enum neb_status pieces_add(struct pieces_boxes *b, const struct pieces_box *box);
void pieces_free(struct pieces_boxes *b);

// The product of the extents. dims: 0 to PIECES_DIMS_MAX; a scalar has one element. The caller has
// checked that the product of the shape fits.
int64_t pieces_size(int32_t dims, const int64_t *n);
bool pieces_overlap(int32_t dims, const struct pieces_box *a, const struct pieces_box *b);
// Removes the elements of `without` from *from. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status pieces_subtract(int32_t dims, struct pieces_boxes *from,
                                               const struct pieces_boxes *without);
// The first element of the boxes in row-major order; -1: they are empty.
int64_t pieces_first(int32_t dims, const int64_t *shape, const struct pieces_boxes *b);
// How many elements of the box lie in elements [begin, end) of the tensor.
int64_t pieces_count(int32_t dims, const int64_t *shape, const struct pieces_box *box,
                     int64_t begin, int64_t end);
static inline int64_t pieces_count_all(int32_t dims, const int64_t *shape,
                                       const struct pieces_boxes *b, int64_t begin, int64_t end) {
    int64_t sum = 0;
    for (size_t i = 0; i < b->len; i++)
        sum += pieces_count(dims, shape, &b->p[i], begin, end);
    return sum;
}

// `runs` runs of `len` elements; the first begins at element `at` of the tensor, the next one
// `pitch` elements later.
struct pieces_block {
    int64_t at, len, runs, pitch;
};
// Calls each(user, block) for the elements of the box in [begin, end), in row-major order. Stops at
// the first failure.
typedef enum neb_status pieces_each(void *user, const struct pieces_block *b);
NEB_MUST_CHECK enum neb_status pieces_walk(int32_t dims, const int64_t *shape,
                                           const struct pieces_box *box, int64_t begin, int64_t end,
                                           pieces_each *each, void *user);

// What a rank sends to the owner of a unit. Nobody sends the elements that the owner holds itself.
// Each other element is sent by the lowest rank that holds it. held: (ranks) what each rank holds,
// without overlaps inside a rank. out: what rank `from` sends to rank `owner`.
NEB_MUST_CHECK enum neb_status pieces_sent(int32_t dims, const struct pieces_boxes *held, int from,
                                           int owner, struct pieces_boxes *out);

#endif
