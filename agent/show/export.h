// SPDX-License-Identifier: Apache-2.0
// The models that a run leaves in OUT/checkpoint, beside the vocabulary: what nebula eval and generate take.
//
//     replicas   model.ckpt
//     rtd        model.ckpt (the discriminator), generator.ckpt
//     distill    model.ckpt (the first student that is here), NAME.ckpt (the others), teacher.ckpt (one that learned)
#ifndef AGENT_EXPORT_H
#define AGENT_EXPORT_H
#include "agent/job/config.h"

// dirs: the job's folder in the home of each cluster's agent, by the cluster's index; "" where that is not on this machine: its model is left
// out. Of a synchronous job, which one process trains, dirs[0] has it all. Where there is no model.ckpt the warning says which cluster has it,
// by the job's id. A vocabulary that cannot be copied is a warning (logged): the models come first.
NEB_MUST_CHECK enum neb_status agent_export_models(const struct agent_job *job, const char *id,
                                                   char (*dirs)[NEB_PATH_MAX], const char *out);

#endif
