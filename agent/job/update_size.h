// SPDX-License-Identifier: Apache-2.0
// Whether a job's updates can be sent at all: the bytes of one are bounded (INTER_BLOB_MAX, inter/record/types.h). Found out before anything is
// trained, for the worst that the values may be.
#ifndef AGENT_UPDATE_SIZE_H
#define AGENT_UPDATE_SIZE_H
#include "agent/job/config.h"
#include "compress/codec.h"

// By this codec: elements of the job's largest fragment, in so many units.
bool agent_update_possible(const struct agent_job *job, const struct cmp_codec *codec,
                           uint64_t elements, uint64_t units);
// By the job's codec. `largest`: of them, elements of one tensor, which fragments do not cut; 0: not known. NEB_ERR_LIMIT says what to change.
NEB_MUST_CHECK enum neb_status agent_update_fits(const struct agent_job *job, uint64_t elements,
                                                 uint64_t units, uint64_t largest);

#endif
