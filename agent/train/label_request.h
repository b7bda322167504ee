// SPDX-License-Identifier: Apache-2.0
// What a student asks a teacher to label, where the text is the student's alone (`distill.data: pushed`): the pairs of one step.
//
//     | step u64 | a batch for each micro-batch |
//     batch: | sequences varint | of each: prefix varint, targets varint | text (compress/replaced.h) |
//
// The text is source, separator, target and EOS of one sequence after the other, without padding; what the model gets
// (intra/data/pairs.h) follows from it. Readers take hostile bytes: a step that is not due, more text than the job's batch, ids out
// of the vocabulary are NEB_ERR_FORMAT (logged).
#ifndef AGENT_LABEL_REQUEST_H
#define AGENT_LABEL_REQUEST_H
#include "compress/replaced.h"
#include "intra/data/pairs.h"

struct agent_request_limits {
    int32_t vocab, eos;
    int32_t seq_len, tokens; // longest sequence; tokens of a batch, padding included
};

void agent_request_begin(int64_t step, struct neb_buf *out); // appended
// Appends b. ids: scratch for tokens + tokens / INTRA_PAIRS_SEQ_MIN.
NEB_MUST_CHECK enum neb_status agent_request_add(struct cmp_tokens *t,
                                                 const struct agent_request_limits *l,
                                                 const struct intra_pair_batch *b, int32_t *ids,
                                                 struct neb_buf *out);
// Step `due` of a job of `steps`; r then stands at the first batch.
NEB_MUST_CHECK enum neb_status agent_request_open(struct neb_rd *r, int64_t due, int64_t steps);
// The next batch into *b, which has room for l->tokens. ids as above.
NEB_MUST_CHECK enum neb_status agent_request_next(struct cmp_tokens *t,
                                                  const struct agent_request_limits *l,
                                                  struct neb_rd *r, int32_t *ids,
                                                  struct intra_pair_batch *b);
// Most bytes of a step.
size_t agent_request_most(const struct agent_request_limits *l, int32_t accumulate);
// Of the scratch.
size_t agent_request_ids(const struct agent_request_limits *l);

#endif
