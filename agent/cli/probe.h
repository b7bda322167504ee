// SPDX-License-Identifier: Apache-2.0
// A linear probe: how much of the topic of a text one linear layer can read from a model's hidden
// states, and whether that works in a language without training examples.
//
// The task is the manual section of a paragraph (1 commands, 2 system calls, 3 functions, …).
// Examples are paragraphs of at least `min_tokens` tokens in files NAME.SECTION.txt; features are
// the mean of the final hidden states over the tokens. The layer is trained on one language, on one
// half of all names, and tested on the other half, so that no test page is a translation of a
// training page.
#ifndef AGENT_PROBE_H
#define AGENT_PROBE_H
#include "intra/data/tokenizer.h"
#include "intra/model/device.h"

enum { AGENT_PROBE_CLASSES_MAX = 16, AGENT_PROBE_LABEL_MAX = 8 };

struct agent_probe_set { // examples of one language
    size_t n, cap;
    int32_t *labels; // (n)
    float *x;        // (n, d)
};
void agent_probe_set_free(struct agent_probe_set *s);

struct agent_probe {
    struct kern *K;
    struct intra_model *model; // borrowed, like K and tokenizer
    const struct intra_tokenizer *tokenizer;
    int32_t min_tokens, max_tokens; // of a paragraph; longer ones are cut
    int32_t most_a_page;            // paragraphs per page, so that long pages do not dominate
    int32_t n_classes;
    char classes[AGENT_PROBE_CLASSES_MAX][AGENT_PROBE_LABEL_MAX];
};

// Reads a folder of NAME.SECTION.txt, half 0 or 1 of its names. New sections are added to the
// classes, or with `fixed` left out. NEB_ERR_NOT_FOUND: there is no example. A folder that cannot
// be read gives the error of its errno.
NEB_MUST_CHECK enum neb_status agent_probe_read(struct agent_probe *p, const char *dir, int half,
                                                bool fixed, struct agent_probe_set *out);

struct agent_probe_result {
    double accuracy, balanced; // share of right answers; its mean over classes
    double majority;           // accuracy of always answering the most frequent training class
};
// Multinomial logistic regression on standardised features, L2 `decay`, full batch, Adam;
// deterministic. results: (n_tests)
NEB_MUST_CHECK enum neb_status agent_probe_fit(const struct agent_probe *p,
                                               const struct agent_probe_set *train,
                                               const struct agent_probe_set *tests, int n_tests,
                                               double decay, struct agent_probe_result *results);

#endif
