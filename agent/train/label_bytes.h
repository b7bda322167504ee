// SPDX-License-Identifier: Apache-2.0
// Estimates the wire size of soft labels before a teacher has made any.
#ifndef AGENT_LABEL_BYTES_H
#define AGENT_LABEL_BYTES_H
#include "agent/base/status.h"

#include <stdint.h>

// Bytes for each target token, in frames of `rows` targets with k labels each
// (compress/softlabel.h). Encodes a sample of text whose pieces are as unequally frequent as words.
// k: 1 to 64; k 0 (all logits, which are never sent) gives 0.
NEB_MUST_CHECK enum neb_status agent_label_bytes(int32_t k, int32_t vocab, double rows,
                                                 double *out);

#endif
