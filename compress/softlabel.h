// SPDX-License-Identifier: Apache-2.0
// Soft labels on the wire: for every target token the k most likely tokens of a teacher, their
// probabilities, and the probability of all others (the tail).
//
//     row        ids 812 17 5 …      most likely first
//                gaps    9 3 …       to the log-probability before, in 1/8 nat, at most 255; in 1/4
//                                    nat behind a fall of 2 nats from the first
//                tail 61             log(tail / (1 - tail)) in 1/8, from -16 to 15.875
//
// The first log-probability is not sent: the k probabilities are (1 - tail) times a softmax of the
// gaps. So for any bytes a decoded row sums to one and is sorted, and no probability is 0, infinite
// or a NaN. Labels with a gap of 0 may change places.
//
// Frame: | version u8 | k u8 | rows varint | vocab varint | temperature f32 | bytes varint | rows |
//
// The rows are coded one after the other (softrows.h): a row takes fewer bytes if rows before it
// in the frame have the same tokens.
#ifndef CMP_SOFTLABEL_H
#define CMP_SOFTLABEL_H
#include "compress/softrows.h"

enum { CMP_SOFT_VERSION = 2 }; // of a frame
enum { CMP_SOFT_K_MIN = 1, CMP_SOFT_K_MAX = 64, CMP_SOFT_ROWS_MAX = 1 << 22 };

struct cmp_soft { // for one thread
    struct cmp_rows rows;
    struct neb_buf coded;
};
NEB_MUST_CHECK enum neb_status cmp_soft_create(struct cmp_soft **out);
void cmp_soft_destroy(struct cmp_soft **s);

struct cmp_soft_head {
    uint32_t rows;
    int32_t k, vocab;
    float temperature; // of the teacher's softmax, in (0, 100]
};

// Appends a frame to out. ids, logp (rows, k): most likely first, ids distinct and in [0, vocab).
// tail (rows): probability of all others. NEB_ERR_INVALID (logged): k or a value is out of range,
// or a row is unsorted or has a NaN.
NEB_MUST_CHECK enum neb_status cmp_soft_encode(struct cmp_soft *s, const struct cmp_soft_head *h,
                                               const int32_t *ids, const float *logp,
                                               const float *tail, struct neb_buf *out);
// Reads one frame, which must have want->rows and want->vocab. Sets want->k and want->temperature.
// ids, logp: room for (rows, CMP_SOFT_K_MAX), filled as (rows, k). tail: (rows). NEB_ERR_FORMAT
// (logged): malformed, other rows, another vocabulary, or an id that is out of range or twice in a
// row.
NEB_MUST_CHECK enum neb_status cmp_soft_decode(struct cmp_soft *s, struct neb_rd *r,
                                               struct cmp_soft_head *want, int32_t *ids,
                                               float *logp, float *tail);

struct cmp_soft_rows { // the labels of one teacher
    float weight;      // above 0
    int32_t k;
    const int32_t *ids;       // (rows, k)
    const float *logp, *tail; // (rows, k), (rows)
};
enum { CMP_SOFT_TEACHERS_MAX = 16 };
// Mixes the distributions of n teachers, by weight: of each row the k most likely tokens of the
// mixture, k being the largest of theirs, and the tail. A token that a teacher does not name is a
// part of its tail. Weights need not sum to 1. ids, logp: room for (rows, k). Returns k.
int32_t cmp_soft_mix(const struct cmp_soft_rows *in, int n, uint32_t rows, int32_t *ids,
                     float *logp, float *tail);

// Returns how many labels to send. It halves k_now, but not below k_min, until the bytes fit the
// link and leave a fifth of the goodput to others. Otherwise it doubles k_now, up to k_max, if the
// larger k fits with a third to spare, so that k does not swing. bytes_per_row: measured at k_now;
// 0: unknown, and k_now stays.
int32_t cmp_soft_k(int32_t k_now, int32_t k_min, int32_t k_max, double bytes_per_row,
                   double rows_per_s, double goodput_bytes_per_s);

#endif
