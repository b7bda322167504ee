// SPDX-License-Identifier: Apache-2.0
// A linear probe: how much of what a text is about can be read off a model's hidden states with one linear layer, and whether
// that carries over to a language in which the layer saw no example.
//
// Task: which section of the manual (1 commands, 2 system calls, 3 functions, …) a paragraph is from. Examples are paragraphs of
// at least `min_tokens` tokens out of files NAME.SECTION.txt; features are the mean of the final hidden states over a
// paragraph's tokens. The layer is trained on one language's pages of one half of all names and tested on the other half, so
// that no page it is tested on was a translation of one that it was trained on.
#ifndef AGENT_PROBE_H
#define AGENT_PROBE_H
#include "intra/data/tokenizer.h"
#include "intra/model/model.h"

enum { AGENT_PROBE_CLASSES_MAX = 16, AGENT_PROBE_LABEL_MAX = 8 };

struct agent_probe_set { // examples of one language
    size_t n, cap;
    int32_t *labels; // (n)
    float *x;        // (n, d)
};
void agent_probe_set_free(struct agent_probe_set *s);

struct agent_probe {
    struct kern *K;
    struct intra_model *model; // borrowed, as are K and tokenizer
    const struct intra_tokenizer *tokenizer;
    int32_t min_tokens, max_tokens; // of a paragraph; longer ones are cut
    int32_t most_a_page;            // paragraphs: long pages must not drown the others
    int32_t n_classes;
    char classes[AGENT_PROBE_CLASSES_MAX][AGENT_PROBE_LABEL_MAX];
};

// Reads a folder of NAME.SECTION.txt; half 0 or 1 of the names. Sections that `fixed` classes lack are left out; else they are
// added as they come. NEB_ERR_NOT_FOUND: no such folder, or no example in it.
NEB_MUST_CHECK enum neb_status agent_probe_read(struct agent_probe *p, const char *dir, int half,
                                                bool fixed, struct agent_probe_set *out);

struct agent_probe_result {
    double accuracy, balanced; // share that is right; mean over classes of the share that is right
    double majority;           // accuracy of always naming the training set's most frequent class
};
// Multinomial logistic regression on standardised features, L2 `decay`, full batch, Adam: deterministic. results: (n_tests)
NEB_MUST_CHECK enum neb_status agent_probe_fit(const struct agent_probe *p,
                                               const struct agent_probe_set *train,
                                               const struct agent_probe_set *tests, int n_tests,
                                               double decay, struct agent_probe_result *results);

#endif
