// SPDX-License-Identifier: Apache-2.0
// The key model.init: a checkpoint (such as one from `nebula import`) that gives the model its
// shape and initial parameters.
#ifndef AGENT_MODEL_INIT_H
#define AGENT_MODEL_INIT_H
#include "agent/job/config.h"

// Finds the checkpoint file of `path`: a file, a folder with model.ckpt, or the newest usable
// checkpoint of a folder. vault opens sealed ones; NULL: only clear ones.
struct neb_vault;
NEB_MUST_CHECK enum neb_status agent_checkpoint_file(const struct neb_vault *vault,
                                                     const char *path, char *out, size_t cap);

// If job->model_init is set: fills job->model from the checkpoint and sets job->init_from to its
// absolute path. Messages name `file`. NEB_ERR_INVALID: the job gives a shape that the checkpoint
// does not have, or gives init_from too.
//
// Warns if data.seq_len is above the model's length, if the corpus has another vocabulary than the
// checkpoint's folder, or if that folder has no vocabulary.
NEB_MUST_CHECK enum neb_status agent_job_model_init(struct agent_job *job, const char *file);
// The same for a resumed job that started as `was`, if its model.init or init_from is gone, or is a
// folder whose newest checkpoint may have changed. The job's own checkpoints hold the whole model.
// *kept: this was the case, and nothing else is left to do. NEB_ERR_INVALID: the job gives another
// shape than `was`.
NEB_MUST_CHECK enum neb_status agent_job_model_kept(struct agent_job *job,
                                                    const struct agent_job *was, const char *file,
                                                    bool *kept);
// Replaces init_from, if set, by the absolute path of its checkpoint file, and sets init_sha256 if
// it is empty (init_digest.h). NEB_ERR_NOT_FOUND, NEB_ERR_INVALID: no checkpoint there.
NEB_MUST_CHECK enum neb_status agent_job_init_from(struct agent_job *job);

#endif
