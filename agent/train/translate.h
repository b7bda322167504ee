// SPDX-License-Identifier: Apache-2.0
// Translates a corpus's test pairs, and scores the translations against the references: at the end
// of mode distill, and for `nebula eval CKPT --task translate`, which writes files for a scorer.
#ifndef AGENT_TRANSLATE_H
#define AGENT_TRANSLATE_H
#include "agent/train/decoder.h"
#include "intra/data/pairs.h"

#include <stdio.h>

// hypotheses, references, sources: files to write, or NULL.
struct agent_translate_options {
    int32_t beam, max_pairs; // in each source; 0: all
    int32_t longest;         // tokens of source and translation; longer pairs are left out
    int32_t max_tokens;
    float alpha;
    FILE *hypotheses, *references, *sources;
};
struct agent_translate_result {
    double chrf, bleu;
    int64_t pairs, tokens;
    double seconds;
};
// With the group's model, on its mesh and device (intra/train/decode.h). chrf, bleu: 0 to 100
// (intra/model/score.h), NAN if no pair of the split is short enough. tokens: of the hypotheses.
NEB_MUST_CHECK enum neb_status agent_translate(const struct intra_corpus *corpus,
                                               enum intra_split split, struct intra_group *group,
                                               const struct agent_translate_options *o,
                                               struct agent_translate_result *out);
// The split on which translations are measured: test, or the held-out one if the corpus has no test
// split.
enum intra_split agent_translate_split(const struct intra_corpus *corpus);

struct agent_eval_translate {
    const struct agent_decoder_options *model;
    const char *corpus; // a folder
    // Folder for hypotheses.txt, references.txt and sources.txt; NULL: writes none.
    const char *out;
    int beam, windows;
    // tokens of a pair, and of a source with its translation; 0: 1,024, or fewer if the model takes
    // fewer
    int seq_len;
    bool json;
};
// Prints chrF, BLEU, pairs and seconds; with `json` as one JSON object. NEB_ERR_INVALID: no pairs,
// or another vocabulary than the model's.
NEB_MUST_CHECK enum neb_status agent_eval_translate(const struct agent_eval_translate *o);

#endif
