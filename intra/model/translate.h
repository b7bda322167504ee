// SPDX-License-Identifier: Apache-2.0
// Translates with a prefix language model, and measures translations.
//
// The decoder keeps keys and values of every layer, so a step costs one token: the prefix runs
// once, then each step runs the beams as a small batch. Greedy search is a beam of one. The score
// of a hypothesis is log-probability / length^alpha.
#ifndef INTRA_TRANSLATE_H
#define INTRA_TRANSLATE_H
#include "intra/model/model.h"

struct intra_decoder; // KV cache and scratch for one model; one thread at a time
enum { INTRA_BEAM_MAX = 16 };

struct intra_beam_config {
    int32_t beam;       // 1..INTRA_BEAM_MAX; 1: greedy
    int32_t max_tokens; // of the translation, without EOS
    float alpha;        // length penalty; 0: none
    int32_t eos;
};
// K and m are borrowed; adapters are applied. longest: tokens of prefix and translation, at most
// max_seq; the caches have this length, because max_seq may be much larger than needed.
// NEB_ERR_UNSUPPORTED: a model on a mesh, or one that does not predict the next token;
// NEB_ERR_INVALID: beam_max is not in 1..INTRA_BEAM_MAX; NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_decoder_create(struct kern *K, const struct intra_model *m,
                                                    int32_t beam_max, int32_t longest,
                                                    struct intra_decoder **out);
void intra_decoder_destroy(struct intra_decoder **d);
// prefix: (n) source and separator. out: (max_tokens) the *out_n tokens of the best hypothesis,
// without EOS. It ends at EOS, at max_tokens, or at `longest`. NEB_ERR_INVALID: a prefix too long,
// a token outside the vocabulary, or beam or max_tokens out of range; NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_decode(struct intra_decoder *d, const int32_t *prefix,
                                            int32_t n, const struct intra_beam_config *c,
                                            int32_t *out, int32_t *out_n);

// chrF (Popović 2015) of a corpus, as sacrebleu computes it by default: character n-grams of order
// 1 to 6 without white space, counts summed over all sentences, F with β 2 of the mean precision
// and recall, 0 to 100.
struct intra_chrf {
    double match[6], hypothesis[6], reference[6];
};
// Adds one sentence pair, UTF-8, NUL-terminated. c starts as all zero. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_chrf_add(struct intra_chrf *c, const char *hypothesis,
                                              const char *reference);
double intra_chrf_score(const struct intra_chrf *c); // 0 if nothing matched

#endif
