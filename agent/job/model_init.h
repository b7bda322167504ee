// SPDX-License-Identifier: Apache-2.0
// model.init of a job: a checkpoint, such as `nebula import` makes, that gives the model its shape and first parameters.
#ifndef AGENT_MODEL_INIT_H
#define AGENT_MODEL_INIT_H
#include "agent/job/config.h"

// The checkpoint file that PATH means: a file, a folder with model.ckpt, or the newest usable one of a folder of generations.
// vault: opens sealed ones; NULL: only those in clear.
struct neb_vault;
NEB_MUST_CHECK enum neb_status agent_checkpoint_file(const struct neb_vault *vault,
                                                     const char *path, char *out, size_t cap);

// When job->model_init is set: fills job->model from the checkpoint, and points job->init_from at its file (absolute path);
// else nothing. `file` is for messages. NEB_ERR_INVALID when something of the shape that the job gives is not the checkpoint's, or
// init_from is given too. Warns when sequences are longer than the model's, or the corpus has another vocabulary than the one beside the
// checkpoint, or there is none beside it.
NEB_MUST_CHECK enum neb_status agent_job_model_init(struct agent_job *job, const char *file);
// The same for a job that goes on and was begun as `was`, where what it began from (model.init or init_from) is not there any more, or is
// a folder, whose newest checkpoint may be another by now: its own checkpoints hold all of the model. *kept: so it is, and there is
// nothing else to do. NEB_ERR_INVALID: the job gives another shape than `was` has.
NEB_MUST_CHECK enum neb_status agent_job_model_kept(struct agent_job *job,
                                                    const struct agent_job *was, const char *file,
                                                    bool *kept);
// Points init_from, where the job has it, at the checkpoint file that it means (agent_checkpoint_file), by its absolute path.
// NEB_ERR_NOT_FOUND, NEB_ERR_INVALID: it means none.
// Fills in init_sha256 where the job has none (agent/job/init_digest.h).
NEB_MUST_CHECK enum neb_status agent_job_init_from(struct agent_job *job);

#endif
