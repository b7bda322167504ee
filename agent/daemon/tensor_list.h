// SPDX-License-Identifier: Apache-2.0
// Do two clusters have the same tensors? The first data cluster's list is the reference; every
// other cluster asks its agent. Messages may be lost, so the agent that asks repeats its question,
// and the agent that answers keeps no state but its list. A list may be longer than a message, so
// halving finds the first difference:
//
//     asks                                   answers
//     {"n", "prefix": p, "sha"}              {"prefix": p, "n", "same"}   of the first p tensors
//     {"n", "at": p, "tensors"}              {"at": p, "tensors"}         p: the first that differs
//
// Then both agents know both descriptions of this tensor. No I/O, no clock.
#ifndef AGENT_TENSOR_LIST_H
#define AGENT_TENSOR_LIST_H
#include "agent/exchange/manifest.h"

#include <jansson.h>

enum { AGENT_TENSORS_TEXT = 1024 };

enum agent_tensors_result {
    AGENT_TENSORS_OPEN,   // ask again
    AGENT_TENSORS_SAME,   // the whole lists are equal
    AGENT_TENSORS_DIFFER, // *text names the first difference
};

struct agent_tensor_list {
    struct exchange_manifest *own; // owned; NULL: not known yet
    int32_t n;                     // its tensors
    uint8_t sha[NEB_SHA256_BYTES];
    // At the agent that asks: the first `low` tensors are equal, the first `high` are not all
    // equal. high 0: nothing is known.
    int32_t low, high;
};

// Takes m (owned from now on) as the own list.
NEB_MUST_CHECK enum neb_status agent_tensors_take(struct agent_tensor_list *t,
                                                  struct exchange_manifest *m);
void agent_tensors_clear(struct agent_tensor_list *t);
// A new reference; NULL: out of memory, or there is no own list.
json_t *agent_tensors_question(const struct agent_tensor_list *t);
// The answer to a question; NULL: there is none, for instance because there is no own list.
// *result: SAME and DIFFER are final. own, other: names of the clusters, for text.
json_t *agent_tensors_answer(const struct agent_tensor_list *t, const json_t *question,
                             const char *own, const char *other, enum agent_tensors_result *result,
                             char text[AGENT_TENSORS_TEXT]);
// Takes the answer to the last question. Any other one is ignored.
enum agent_tensors_result agent_tensors_learn(struct agent_tensor_list *t, const json_t *answer,
                                              const char *own, const char *other,
                                              char text[AGENT_TENSORS_TEXT]);
// True for an answer, false for a question.
bool agent_tensors_is_answer(const json_t *message);

#endif
