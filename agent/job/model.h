// SPDX-License-Identifier: Apache-2.0
// Translates the model and data keys of a job to the types of intra/.
#ifndef AGENT_JOB_MODEL_H
#define AGENT_JOB_MODEL_H
#include "agent/job/config.h"
#include "intra/data/data.h"

// The job's model with every field set; `shape` replaces some of its sizes (NULL: none).
struct intra_model_config agent_job_model(const struct agent_job *job,
                                          const struct agent_shape *shape, int32_t vocab,
                                          enum kern_mask mask);
// Checks that a cluster's corpus has the job's vocabulary. NEB_ERR_INVALID: it has another one, and
// clusters would average parameters of different tokens.
NEB_MUST_CHECK enum neb_status agent_job_vocabulary(const struct agent_job *job, int cluster,
                                                    const struct intra_corpus *corpus);
// Checks a cluster's corpus: it has at most model.vocab pieces and all sources of the cluster.
// NEB_ERR_INVALID otherwise.
NEB_MUST_CHECK enum neb_status agent_job_corpus_fits(const struct agent_job *job, int cluster,
                                                     const struct intra_corpus *corpus);
// The share of a source's windows that belongs to a cluster. Clusters that train on a source in the
// same corpus folder divide its windows in the order of the job. It depends on the job alone, so
// all sites compute the same share.
struct intra_share agent_job_share(const struct agent_job *job, int cluster, const char *source);
// A sampler over the cluster's sources and its share of each. NEB_ERR_NOT_FOUND: the corpus lacks a
// source.
NEB_MUST_CHECK enum neb_status agent_job_sampler(const struct agent_job *job, int cluster,
                                                 const struct intra_corpus *corpus,
                                                 struct intra_sampler **out);
// The digest of the text whose windows the cluster's cursors count: its sources in this corpus, or
// in synchronous training the sources of all clusters.
NEB_MUST_CHECK enum neb_status agent_job_text_digest(const struct agent_job *job, int cluster,
                                                     const struct intra_corpus *corpus,
                                                     uint8_t out[INTRA_SHA_BYTES]);

#endif
