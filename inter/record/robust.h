// SPDX-License-Identifier: Apache-2.0
// The gate profile `robust`: it limits what one bad member can do to a sum of updates. Pure; on the
// exact path.
//
// 1. Norm clipping. The leader knows the norms of the updates that a record lists. It gives each
//    update the factor min(1, median / norm), and voters accept no other factor. The factors are in
//    the signed record, so that all members apply the same bits. A clipped update weighs no more
//    than a usual one.
// 2. Trimmed mean. Of n updates, the (n - 1) / 4 largest and smallest values of each element are
//    left out. The rest is averaged by weight. So 5 to 8 members tolerate one bad member, 9 to 12
//    two, and 13 to 16 three.
//
// Source: Yin et al. 2018 (arXiv 1803.01498), coordinate-wise trimmed mean.
#ifndef INTER_ROBUST_H
#define INTER_ROBUST_H
#include "inter/record/types.h"

#include <stdbool.h>
#include <stddef.h>

enum { INTER_ROBUST_MEMBERS = 5 }; // fewer members cannot outvote a bad one

// norms: by member, L2 of the decoded update. Sets the clip factors of the accepted entries.
void inter_robust_clip(struct inter_record *r, const float norms[NEB_MEMBERS_MAX]);
// True if the factors of another member's proposal are the same, up to rounding of the norms.
NEB_MUST_CHECK bool inter_robust_agrees(const struct inter_record *r,
                                        const float norms[NEB_MEMBERS_MAX]);
// Median of the norms of the accepted entries, the lower of the two middle ones. 0: no entries.
float inter_robust_median(const struct inter_record *r, const float norms[NEB_MEMBERS_MAX]);

static inline size_t inter_robust_trim(size_t n) { return (n - 1) / 4; }

// acc[i] = Σ w x / Σ w over the values of element i that remain. acc: (rows, cols); x: (n, rows,
// cols) decoded updates; w: (n, rows) weights > 0; clip: (n). n is at most NEB_MEMBERS_MAX. Equal
// values are ordered by member.
void inter_robust_mean(float *acc, const float *x, const float *w, const float *clip, size_t n,
                       size_t rows, size_t cols);

#endif
