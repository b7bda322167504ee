// SPDX-License-Identifier: Apache-2.0
// Checks before training that the updates of a job can be sent: their size is bounded
// (INTER_BLOB_MAX, inter/record/types.h). It takes the largest size that any values can need.
#ifndef AGENT_UPDATE_SIZE_H
#define AGENT_UPDATE_SIZE_H
#include "agent/job/config.h"
#include "compress/codec.h"

// elements, units: size of the largest fragment.
bool agent_update_possible(const struct agent_job *job, const struct cmp_codec *codec,
                           uint64_t elements, uint64_t units);
// The same with the job's codec. largest: elements of the largest tensor, because fragments do not
// cut a tensor; 0: unknown. NEB_ERR_LIMIT: the message says what to change.
NEB_MUST_CHECK enum neb_status agent_update_fits(const struct agent_job *job, uint64_t elements,
                                                 uint64_t units, uint64_t largest);

#endif
