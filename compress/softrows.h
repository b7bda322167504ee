// SPDX-License-Identifier: Apache-2.0
// The entropy coder of soft labels: rows of token ids, gaps and a tail. Both sides learn from the
// rows before, within a frame only.
//
//     tokens        A token that occurred in the frame has a slot. Its weight is its count, and
//                   more for each earlier row that has it and shares tokens with this row.
//     ties          Of labels with equal probability, the order carries nothing: slots rise.
//     a new token   is spelt: its highest 8 bits with adaptive probabilities, then the others.
//
// One function codes in both directions, so that the two cannot differ.
#ifndef CMP_SOFTROWS_H
#define CMP_SOFTROWS_H
#include "compress/range.h"

enum { CMP_ROWS_SLOTS = 1 << 14, CMP_ROWS_BLOCK = 64, CMP_ROWS_REACH = 32 };
enum { CMP_ROWS_RANKS = 16, CMP_ROWS_KINDS = 4 };

struct cmp_rows { // 3 MB; all zero before the first frame
    bool reads;
    struct cmp_range_writer to;
    struct cmp_range_reader from;
    int32_t k, bits;     // of an id
    uint32_t n, counted; // slots in use; sum of their counts
    uint32_t reach;      // rows before that a token recalls
    unsigned shift;      // keeps the sum of all weights below CMP_RANGE_TOTAL_MOST
    // Of a slot. The last place is for tokens without a slot, and the weight there stays 0.
    uint32_t count[CMP_ROWS_SLOTS + CMP_ROWS_BLOCK];
    uint32_t weight[CMP_ROWS_SLOTS + CMP_ROWS_BLOCK];
    uint32_t open[CMP_ROWS_SLOTS + CMP_ROWS_BLOCK];      // all ones: not in this row yet; or 0
    uint32_t block[CMP_ROWS_SLOTS / CMP_ROWS_BLOCK + 1]; // sums of weights
    int32_t id[CMP_ROWS_SLOTS];
    uint32_t seen[CMP_ROWS_SLOTS], rows_with[CMP_ROWS_SLOTS][CMP_ROWS_REACH];
    // slot + 1 of each id (u16), slots of each row (u16), likeness of each row to this one (u32)
    struct neb_buf slot_of, rows, likeness;
    struct cmp_node gaps[CMP_ROWS_RANKS][CMP_ROWS_KINDS][256], tails[8][256], high[256];
    struct cmp_node fresh[CMP_ROWS_RANKS];
};
void cmp_rows_free(struct cmp_rows *s); // what it points at

// Begin a frame. NEB_ERR_NOMEM. out, p: borrowed until the end.
NEB_MUST_CHECK enum neb_status cmp_rows_write(struct cmp_rows *s, int32_t k, int32_t vocab,
                                              uint32_t rows, struct neb_buf *out);
NEB_MUST_CHECK enum neb_status cmp_rows_read(struct cmp_rows *s, int32_t k, int32_t vocab,
                                             uint32_t rows, const uint8_t *p, size_t n);
// Codes row `row`; rows come in order. ids (k), gaps (k; the first is 0) and tail are read, or
// written. A writer sorts ids of equal probability. False: an id is out of range.
bool cmp_rows_code(struct cmp_rows *s, uint32_t row, int32_t *ids, uint8_t *gaps, uint8_t *tail);

#endif
