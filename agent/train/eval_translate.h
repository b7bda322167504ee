// SPDX-License-Identifier: Apache-2.0
// nebula eval CKPT --task translate: translates a corpus's test pairs, and writes what a scorer needs.
#ifndef AGENT_EVAL_TRANSLATE_H
#define AGENT_EVAL_TRANSLATE_H
#include "agent/base/vault.h"

#include <stdbool.h>

struct agent_eval_translate {
    const char *checkpoint;        // file
    const struct neb_vault *vault; // opens it when it is sealed; NULL: only one in clear
    const char *corpus;            // folder
    // folder for hypotheses.txt, references.txt, sources.txt; NULL: none are written
    const char *out;
    int beam, windows, threads;
    int seq_len; // tokens of a pair and of a translation with its source; 0: 1,024, or what the model takes
    bool merge, json;
};
// Prints chrF, pairs and seconds, one JSON object with `json`. NEB_ERR_INVALID: no pairs, or another vocabulary than the model's.
NEB_MUST_CHECK enum neb_status agent_eval_translate(const struct agent_eval_translate *o);

#endif
