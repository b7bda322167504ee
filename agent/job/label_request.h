// SPDX-License-Identifier: Apache-2.0
// What a student asks a teacher to label if only the student has the text (`distill.push_text:
// true`): the pairs of one step.
//
//     | step u64 | a batch for each micro-batch |
//     batch: | sequences varint | for each: prefix varint, targets varint | text (replaced.h) |
//
// The text is source, separator, target and EOS of each sequence in turn, without padding. The
// model's input follows from it (intra/data/pairs.h). Readers take untrusted bytes: NEB_ERR_FORMAT
// (logged) for a step that is not due, more text than the job's batch, or ids outside the
// vocabulary.
#ifndef AGENT_LABEL_REQUEST_H
#define AGENT_LABEL_REQUEST_H
#include "compress/replaced.h"
#include "intra/data/pairs.h"

struct agent_request_limits {
    int32_t vocab, eos;
    int32_t seq_len, tokens; // longest sequence; tokens of a batch, with padding
};

void agent_request_begin(int64_t step, struct neb_buf *out); // appended
// Appends b. ids: scratch of agent_request_ids() elements.
NEB_MUST_CHECK enum neb_status agent_request_add(struct cmp_tokens *t,
                                                 const struct agent_request_limits *l,
                                                 const struct intra_pair_batch *b, int32_t *ids,
                                                 struct neb_buf *out);
// Checks the step: `due`, in a job of `steps`. Then r is at the first batch.
NEB_MUST_CHECK enum neb_status agent_request_open(struct neb_rd *r, int64_t due, int64_t steps);
// Reads the next batch into *b, which has room for l->tokens. ids as above.
NEB_MUST_CHECK enum neb_status agent_request_next(struct cmp_tokens *t,
                                                  const struct agent_request_limits *l,
                                                  struct neb_rd *r, int32_t *ids,
                                                  struct intra_pair_batch *b);
// The most bytes of a step.
size_t agent_request_most(const struct agent_request_limits *l, int32_t accumulate);
// Elements of the scratch.
size_t agent_request_ids(const struct agent_request_limits *l);

#endif
