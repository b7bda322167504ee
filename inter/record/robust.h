// SPDX-License-Identifier: Apache-2.0
// The gate profile `robust`: what one bad member can do to a sum of updates is bounded.
//
// 1. Norm clipping. The leader knows the norms of the updates that a record lists and gives each the factor
//    min(1, median / norm); voters who know the norms too accept no other. Factors are in the signed record, so that
//    all members apply the same bits. A scaled update then weighs no more than a usual one.
// 2. Trimmed mean. Of n updates the (n - 1) / 4 largest and smallest values of each element are left out, and the rest is
//    weighted as ever: 5 to 8 members bear one bad one, 9 to 12 two, 13 to 16 three.
//
// Source: Yin et al. 2018 (arXiv 1803.01498), coordinate-wise trimmed mean. Pure; on the exact path.
#ifndef INTER_ROBUST_H
#define INTER_ROBUST_H
#include "inter/record/types.h"

#include <stdbool.h>
#include <stddef.h>

enum { INTER_ROBUST_MEMBERS = 5 }; // fewer cannot outvote one

// norms: by member, L2 of the decoded update. Sets the clip factors of the record's accepted entries.
void inter_robust_clip(struct inter_record *r, const float norms[INTER_MEMBERS_MAX]);
// Whether the record's factors are those (a proposal of another member): up to rounding of the norm.
NEB_MUST_CHECK bool inter_robust_agrees(const struct inter_record *r,
                                        const float norms[INTER_MEMBERS_MAX]);
// Median of the norms of the accepted entries (the lower of two).
float inter_robust_median(const struct inter_record *r, const float norms[INTER_MEMBERS_MAX]);

static inline size_t inter_robust_trim(size_t n) { return (n - 1) / 4; }

// acc[i] = Σ w x / Σ w over the parts that remain of element i. x: (n, rows, cols) decoded parts; w: (n, rows) weights > 0;
// clip: (n). n at most INTER_MEMBERS_MAX, trim from inter_robust_trim(n). Ties are broken by member order.
void inter_robust_mean(float *acc, const float *x, const float *w, const float *clip, size_t n,
                       size_t rows, size_t cols);

#endif
