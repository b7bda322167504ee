// SPDX-License-Identifier: Apache-2.0
// Scores of translations, as sacrebleu computes them by default: chrF and BLEU.
#ifndef INTRA_SCORE_H
#define INTRA_SCORE_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stdint.h>

// chrF (Popović 2015) of a corpus: character n-grams of order
// 1 to 6 without white space, counts summed over all sentences, F with β 2 of the mean precision
// and recall, 0 to 100.
struct intra_chrf {
    double match[6], hypothesis[6], reference[6];
};
// Adds one sentence pair, UTF-8, NUL-terminated. c starts as all zero. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_chrf_add(struct intra_chrf *c, const char *hypothesis,
                                              const char *reference);
double intra_chrf_score(const struct intra_chrf *c); // 0 if nothing matched

// BLEU (Papineni et al. 2002) of a corpus with one reference: n-grams of 1 to 4 words of the 13a
// tokenizer (that of the WMT's mteval-v13a), upper and lower case as they are, exponential
// smoothing, 0 to 100.
struct intra_bleu {
    int64_t match[4], hypothesis[4]; // n-grams
    int64_t hypothesis_words, reference_words;
};
// Adds one sentence pair, UTF-8, NUL-terminated. b starts as all zero. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_bleu_add(struct intra_bleu *b, const char *hypothesis,
                                              const char *reference);
double intra_bleu_score(const struct intra_bleu *b); // 0 if no word matched

// The code point at *p, which moves behind it. Bytes that are no UTF-8 give some code point.
uint32_t intra_score_char(const unsigned char **p);
// The white space of Python's str.split(), which sacrebleu uses.
bool intra_score_space(uint32_t c);

#endif
