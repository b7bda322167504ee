// SPDX-License-Identifier: Apache-2.0
// Masked language modelling and replaced-token detection: what a generator and a discriminator compute beyond a
// transformer's pass. Both models see all positions (mask: bidirectional).
//
//     text       the  cat  sat  on  the  mat
//     masked     the  [M]  sat  on  the  [M]      generator: loss at [M] only, then one sample each: dog, mat
//     sampled    the  dog  sat  on  the  mat      discriminator: label 1 where the token is not the text's: 0 1 0 0 0 0
//
// Over text in two languages side by side the first is translation language modelling (TLM), the second its detection
// (TRTD). Sampling is discrete: no gradient flows back, so the two can train far apart.
// Sources: Clark et al. 2020 (ELECTRA), Chi et al. 2021 (XLM-E).
#ifndef INTRA_RTD_H
#define INTRA_RTD_H
#include "intra/model/model.h"
#include "intra/model/rtd_head.h"

// Chooses positions of tokens (n) with probability `rate` each, by a random stream of (seed, index) alone, so that both sides
// know them. Ids below n_special (control pieces, end of text) are never masked; where chance chooses none, the first
// allowed position is. positions: (n), ascending; returns how many.
int32_t intra_mask_positions(uint64_t seed, uint64_t index, double rate, int32_t n_special,
                             const int32_t *tokens, int32_t n, int32_t *positions);
// inputs (n): tokens with mask_id at the positions; targets (n): the tokens there, KERN_IGNORE elsewhere.
void intra_mask_apply(const int32_t *tokens, int32_t n, const int32_t *positions, int32_t n_masked,
                      int32_t mask_id, int32_t *inputs, int32_t *targets);

// Draws a token from the model's distribution at each position of its last pass, among ids [0, n_ids), for up to n_most positions. The
// draws are those of (seed, index). One rank only.
struct intra_mask_sampler; // scratch
struct intra_runner;       // runner.h
// r is borrowed for the call. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_mask_sampler_create(const struct intra_runner *r,
                                                         int32_t n_ids, int32_t n_most,
                                                         struct intra_mask_sampler **out);
void intra_mask_sampler_destroy(struct intra_mask_sampler **s);
// positions, ids: (n). Fails with a device only.
NEB_MUST_CHECK enum neb_status intra_mask_sample(struct intra_mask_sampler *s,
                                                 const struct intra_runner *r,
                                                 const int32_t *positions, int32_t n, uint64_t seed,
                                                 uint64_t index, int32_t *ids);

// inputs (n): tokens with ids at positions; labels (n): 1 where that is another token. Returns how many are.
int32_t intra_rtd_apply(const int32_t *tokens, int32_t n, const int32_t *positions,
                        const int32_t *ids, int32_t n_masked, int32_t *inputs, int32_t *labels);

// Chance that a replaced position scores above one that is not (area under the ROC curve; ties count half). NAN where there is
// but one kind, a score that is no number, or no memory.
double intra_rtd_auc(const float *scores, const int32_t *labels, size_t n);

#endif
