// SPDX-License-Identifier: Apache-2.0
// Exports the models of a run to OUT/checkpoint, beside the vocabulary. nebula eval and generate
// read them.
//
//     replicas   model.ckpt
//     rtd        model.ckpt (the discriminator), generator.ckpt
//     distill    model.ckpt (the first student on this machine), NAME.ckpt (other students),
//                teacher.ckpt (if the teacher learned)
#ifndef AGENT_EXPORT_H
#define AGENT_EXPORT_H
#include "agent/job/config.h"

// dirs: by cluster, the job's folder in its agent's home; "" if that home is on another machine;
// then its model is left out. A synchronous job runs in one process: dirs[0] has all its models. If
// there is no model.ckpt, a warning names the cluster that has it, and the job's id. A vocabulary
// that cannot be copied is only a warning.
NEB_MUST_CHECK enum neb_status agent_export_models(const struct agent_job *job, const char *id,
                                                   char (*dirs)[NEB_PATH_MAX], const char *out);

#endif
