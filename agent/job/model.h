// SPDX-License-Identifier: Apache-2.0
// What a job says of model and data, as intra/ takes it.
#ifndef AGENT_JOB_MODEL_H
#define AGENT_JOB_MODEL_H
#include "agent/job/config.h"
#include "intra/data/data.h"

// The job's model, or one that differs from it as `shape` says (NULL: it does not), with everything filled in.
struct intra_model_config agent_job_model(const struct agent_job *job,
                                          const struct agent_shape *shape, int32_t vocab,
                                          enum kern_mask mask);
// That a cluster's corpus has the job's vocabulary. NEB_ERR_INVALID: another one, so that parameters of other pieces would be averaged.
NEB_MUST_CHECK enum neb_status agent_job_vocabulary(const struct agent_job *job, int cluster,
                                                    const struct intra_corpus *corpus);
// That a cluster's corpus has no more pieces than the job's model.vocab, and the cluster's sources. NEB_ERR_INVALID.
NEB_MUST_CHECK enum neb_status agent_job_corpus_fits(const struct agent_job *job, int cluster,
                                                     const struct intra_corpus *corpus);
// Which of a source's windows are a cluster's: those that train on the source of that name in the same corpus, as the job names it, divide
// them in its order. The job alone says so: all sites come to the same.
struct intra_share agent_job_share(const struct agent_job *job, int cluster, const char *source);
// Windows of the sources that a cluster trains on, its share of each. NEB_ERR_NOT_FOUND: the corpus lacks one of them.
NEB_MUST_CHECK enum neb_status agent_job_sampler(const struct agent_job *job, int cluster,
                                                 const struct intra_corpus *corpus,
                                                 struct intra_sampler **out);
// Of the text that a cluster's cursors count, and in synchronous training those of all clusters: what it trains on in this corpus.
NEB_MUST_CHECK enum neb_status agent_job_text_digest(const struct agent_job *job, int cluster,
                                                     const struct intra_corpus *corpus,
                                                     uint8_t out[INTRA_SHA_BYTES]);

#endif
