// SPDX-License-Identifier: Apache-2.0
// Keeps soft labels on disk, one file a step, so that a student can replay them without the
// teacher.
//
//     DIR/key            digest of what labels depend on: shards, seed, batch, temperature, and
//                        the student's share of the batches
//     DIR/00000042.soft  the labels of step 42 (agent/train/distill.h)
#ifndef AGENT_DISTILL_CACHE_H
#define AGENT_DISTILL_CACHE_H
#include "agent/job/config.h"

// dir: a folder of this student; student: which of the job's. NEB_ERR_INVALID: it holds labels of
// something else (logs both digests).
NEB_MUST_CHECK enum neb_status agent_distill_cache_open(const char *dir, const struct agent_job *j,
                                                        int32_t student, const uint8_t corpus[32]);
// NEB_ERR_NOT_FOUND (not logged): no labels of this step.
NEB_MUST_CHECK enum neb_status agent_distill_cache_read(const char *dir, int64_t step,
                                                        struct neb_buf *out);
// Atomic and durable. If the folder holds other labels of this step, they come from another teacher
// or have another k: they are replaced, and those of the steps after it removed.
NEB_MUST_CHECK enum neb_status agent_distill_cache_write(const char *dir, int64_t step,
                                                         const void *p, size_t n);

#endif
