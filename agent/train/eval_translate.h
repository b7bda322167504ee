// SPDX-License-Identifier: Apache-2.0
// `nebula eval CKPT --task translate`: translates a corpus's test pairs, and writes files for a
// scorer.
#ifndef AGENT_EVAL_TRANSLATE_H
#define AGENT_EVAL_TRANSLATE_H
#include "agent/base/vault.h"

#include <stdbool.h>

struct agent_eval_translate {
    const char *checkpoint; // a file
    // opens a sealed checkpoint; NULL: the checkpoint must be in clear
    const struct neb_vault *vault;
    const char *corpus; // a folder
    // Folder for hypotheses.txt, references.txt and sources.txt; NULL: writes none.
    const char *out;
    int beam, windows, threads;
    // tokens of a pair, and of a source with its translation; 0: 1,024, or fewer if the model takes
    // fewer
    int seq_len;
    bool merge, json;
};
// Prints chrF, pairs and seconds; with `json` as one JSON object. NEB_ERR_INVALID: no pairs, or
// another vocabulary than the model's.
NEB_MUST_CHECK enum neb_status agent_eval_translate(const struct agent_eval_translate *o);

#endif
