// SPDX-License-Identifier: Apache-2.0
// What soft labels take on the wire, before a teacher has made any.
#ifndef AGENT_LABEL_BYTES_H
#define AGENT_LABEL_BYTES_H
#include "agent/base/status.h"

#include <stdint.h>

// Bytes a target token of frames of `rows` targets with k labels each (compress/softlabel.h), of text whose pieces are as
// unequally frequent as words are: encodes a sample. k in 1..64; k 0 (all logits, which never travel) gives 0.
NEB_MUST_CHECK enum neb_status agent_label_bytes(int32_t k, int32_t vocab, double rows,
                                                 double *out);

#endif
