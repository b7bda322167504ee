// SPDX-License-Identifier: Apache-2.0
// Translating with a prefix language model, and measuring it.
//
// Decoding keeps keys and values of every layer, so that a step costs one token: the prefix runs once, then each step runs
// the beams as one small batch. Greedy is a beam of one. Hypotheses are scored by log-probability / length^alpha.
#ifndef INTRA_TRANSLATE_H
#define INTRA_TRANSLATE_H
#include "intra/model/model.h"

struct intra_decoder; // KV cache and scratch for one model; one thread
enum { INTRA_BEAM_MAX = 16 };

struct intra_beam_config {
    int32_t beam;       // 1..INTRA_BEAM_MAX; 1: greedy
    int32_t max_tokens; // of the translation, EOS not counted
    float alpha;        // length penalty; 0: none
    int32_t eos;
};
// Adapters count as trained; a model of several ranks, or one that does not continue text, is refused (NEB_ERR_UNSUPPORTED). Both are borrowed. longest: tokens of
// prefix and translation, at most the model's max_seq: caches are of this length, and a model may take many times what is translated.
// NEB_ERR_INVALID: beam_max is not in 1..INTRA_BEAM_MAX; NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_decoder_create(struct kern *K, const struct intra_model *m,
                                                    int32_t beam_max, int32_t longest,
                                                    struct intra_decoder **out);
void intra_decoder_destroy(struct intra_decoder **d);
// prefix: (n) source and separator. out: (max_tokens) the best hypothesis without EOS, *out_n tokens; it ends at EOS, at
// max_tokens, or where `longest` does. NEB_ERR_INVALID: a prefix too long, or beam out of range.
NEB_MUST_CHECK enum neb_status intra_decode(struct intra_decoder *d, const int32_t *prefix,
                                            int32_t n, const struct intra_beam_config *c,
                                            int32_t *out, int32_t *out_n);

// chrF (Popović 2015) over a corpus as sacrebleu computes it by default: character n-grams of order 1 to 6 without white space,
// counts summed over all sentences, F with β 2 of the mean precision and recall, 0 to 100.
struct intra_chrf {
    double match[6], hypothesis[6], reference[6];
};
// One sentence pair, UTF-8, NUL-terminated; c begins as all zero. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_chrf_add(struct intra_chrf *c, const char *hypothesis,
                                              const char *reference);
double intra_chrf_score(const struct intra_chrf *c); // 0 where nothing matched

#endif
