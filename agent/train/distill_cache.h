// SPDX-License-Identifier: Apache-2.0
// Soft labels kept on disk, a file a step: what a student received it can replay, also without the teacher.
//
//     DIR/key           digest of what labels depend on: shards, seed, batch, share of the batches, temperature
//     DIR/00000042.soft the labels of step 42 (agent/train/distill.h)
#ifndef AGENT_DISTILL_CACHE_H
#define AGENT_DISTILL_CACHE_H
#include "agent/job/config.h"

// dir: a folder of this student's; student: which of the job's. NEB_ERR_INVALID: it holds labels of something else; both digests are named.
NEB_MUST_CHECK enum neb_status agent_distill_cache_open(const char *dir, const struct agent_job *j,
                                                        int32_t student, const uint8_t corpus[32]);
// NEB_ERR_NOT_FOUND (not logged): none for this step.
NEB_MUST_CHECK enum neb_status agent_distill_cache_read(const char *dir, int64_t step,
                                                        struct neb_buf *out);
// Atomic and durable. Where other labels of this step are there they are another teacher's, or of another k: these are replaced, those
// of the steps behind it removed.
NEB_MUST_CHECK enum neb_status agent_distill_cache_write(const char *dir, int64_t step,
                                                         const void *p, size_t n);

#endif
