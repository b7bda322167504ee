// SPDX-License-Identifier: Apache-2.0
// What the sides of modes rtd and distill refuse before their first step. Errors are logged, with
// what to change.
#ifndef AGENT_SIDE_CHECK_H
#define AGENT_SIDE_CHECK_H
#include "agent/job/config.h"
#include "intra/data/data.h"

// NEB_ERR_LIMIT: batches of so many bytes exceed what a stream takes. _streams_fit: those of all
// streams of the job.
NEB_MUST_CHECK enum neb_status agent_side_batch_fits(const struct agent_job *j, double bytes);
NEB_MUST_CHECK enum neb_status agent_side_streams_fit(const struct agent_job *j);
// NEB_ERR_INVALID: a side cannot use this corpus, or the job's vocabulary does not fit it.
NEB_MUST_CHECK enum neb_status agent_side_corpus_fits(const struct agent_job *j, int cluster,
                                                      const struct intra_corpus *corpus);
// For a student whose distill.cache is on this machine. NEB_ERR_INVALID: it holds labels of
// something else. NEB_ERR_NOT_FOUND: it lacks labels, and the job has no teacher.
NEB_MUST_CHECK enum neb_status agent_side_cache_fits(const struct agent_job *j, int cluster,
                                                     const struct intra_corpus *corpus);

#endif
