// SPDX-License-Identifier: Apache-2.0
// Soft labels on the wire: for every target token the k most likely tokens of a teacher, how likely they are, and how much
// is left for all others (the tail).
//
//     row        ids 812 17 5 …      most likely first
//                gaps    9 3 …       from each log-probability to the one before it, in 1/16 nat, at most 255
//                tail 61             log(tail / (1 - tail)) in 1/8, from -16 to 15.875
//
// The first log-probability does not travel: the k probabilities are (1 - tail) times a softmax of the gaps. So a decoded row
// always sums to one and is sorted, whatever the bytes say, and no probability is 0, infinite or not a number.
//
// Frame: | version u8 | k u8 | rows varint | vocab varint | temperature f32 | ids | gaps | tails |
// A part is | how u8: 0 packed, 1 zstd | bytes varint | … |, whichever is smaller. Packed ids take as many bits as the largest
// of the vocabulary; in zstd they are byte planes, rank by rank. A row of k 8 and a vocabulary of 32,768 takes at most 15 + 7
// + 1 = 23 bytes, less where tokens repeat.
#ifndef CMP_SOFTLABEL_H
#define CMP_SOFTLABEL_H
#include "agent/base/bytes.h"

enum { CMP_SOFT_K_MIN = 1, CMP_SOFT_K_MAX = 64, CMP_SOFT_ROWS_MAX = 1 << 22 };

struct cmp_soft { // scratch and zstd contexts; one thread
    struct neb_buf plane, packed, scratch;
    void *c, *d;
};
NEB_MUST_CHECK enum neb_status cmp_soft_create(struct cmp_soft **out);
void cmp_soft_destroy(struct cmp_soft **s);

struct cmp_soft_head {
    uint32_t rows;
    int32_t k, vocab;
    float temperature; // of the teacher's softmax, in (0, 100]
};

// ids, logp: (rows, k), most likely first, ids distinct and in [0, vocab); tail: (rows) probability of all others. Appended to
// out. NEB_ERR_INVALID (logged): k or a value out of range, unsorted, or not a number.
NEB_MUST_CHECK enum neb_status cmp_soft_encode(struct cmp_soft *s, const struct cmp_soft_head *h,
                                               const int32_t *ids, const float *logp,
                                               const float *tail, struct neb_buf *out);
// Reads one frame of exactly want->rows rows and want->vocab; want->k and want->temperature are set. ids, logp: room for
// (rows, CMP_SOFT_K_MAX), filled as (rows, k); tail: (rows). NEB_ERR_FORMAT (logged): malformed, for other rows or another
// vocabulary, an id out of range or twice in a row.
NEB_MUST_CHECK enum neb_status cmp_soft_decode(struct cmp_soft *s, struct neb_rd *r,
                                               struct cmp_soft_head *want, int32_t *ids,
                                               float *logp, float *tail);

// How many labels to send: the largest k of {4, 8, 16, 32, 64} up to k_max whose bytes fit the link, with a fifth of the
// goodput left for others; k_min where none does. bytes_per_row: measured at k_now, 0 when not known yet. k grows by one
// step at most, and only when the larger fits with a third to spare, so that it does not swing.
int32_t cmp_soft_k(int32_t k_now, int32_t k_min, int32_t k_max, double bytes_per_row,
                   double rows_per_s, double goodput_bytes_per_s);

#endif
