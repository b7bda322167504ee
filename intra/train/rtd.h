// SPDX-License-Identifier: Apache-2.0
// Masked language modelling and replaced-token detection: what a generator and a discriminator
// compute beyond a transformer's pass. Both models attend to all positions (mask: bidirectional).
//
//     text       the  cat  sat  on  the  mat
//     masked     the  [M]  sat  on  the  [M]     generator: loss at [M] only, then it samples
//     sampled    the  dog  sat  on  the  mat     discriminator: label 1 where the token differs
//     labels      0    1    0   0    0    0
//
// Over a text in two languages side by side, the first is translation language modelling (TLM), the
// second its detection (TRTD). Sampling is discrete, so no gradient flows back, and the two models
// can train far apart. Sources: Clark et al. 2020 (ELECTRA), Chi et al. 2021 (XLM-E).
#ifndef INTRA_RTD_H
#define INTRA_RTD_H
#include "kernels/kern.h"

// Chooses each position of tokens (n) with probability `rate`. The random stream depends on (seed,
// index) alone, so that both sides get the same positions. Ids below n_special (control pieces, end
// of text) are never masked. If chance chooses no position, the first allowed one is masked.
// positions: (n), ascending. Returns their count.
int32_t intra_mask_positions(uint64_t seed, uint64_t index, double rate, int32_t n_special,
                             const int32_t *tokens, int32_t n, int32_t *positions);
// inputs (n): the tokens, with mask_id at the positions. targets (n): the original tokens at the
// positions, KERN_IGNORE elsewhere.
void intra_mask_apply(const int32_t *tokens, int32_t n, const int32_t *positions, int32_t n_masked,
                      int32_t mask_id, int32_t *inputs, int32_t *targets);

// The numbers with which n tokens are drawn (intra_picks.u): a stream that depends on (seed, index).
void intra_mask_draws(uint64_t seed, uint64_t index, int32_t n, double *u);

// inputs (n): the tokens, with ids at the positions. labels (n): 1 where the input differs from the
// token. Returns the count of such positions.
int32_t intra_rtd_apply(const int32_t *tokens, int32_t n, const int32_t *positions,
                        const int32_t *ids, int32_t n_masked, int32_t *inputs, int32_t *labels);

// The probability that a replaced position scores above one that is not replaced (area under the
// ROC curve; a tie counts half). NAN: only one kind of position, a score that is NaN, or no memory.
double intra_rtd_auc(const float *scores, const int32_t *labels, size_t n);

#endif
