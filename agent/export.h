// The models that a run leaves in OUT/checkpoint, beside the vocabulary: what nebula eval and generate take.
//
//     replicas   model.ckpt
//     rtd        model.ckpt (the discriminator), generator.ckpt
//     distill    model.ckpt (the first student), NAME.ckpt (the others), teacher.ckpt (one that learned)
#ifndef AGENT_EXPORT_H
#define AGENT_EXPORT_H
#include "agent/config.h"

// dirs: the job's folder in the home of each cluster's agent; "" where that is not on this machine: its model is left out.
// A vocabulary that cannot be copied is a warning (logged): the models come first.
NEB_MUST_CHECK enum neb_status agent_export_models(const struct agent_job *job,
                                                   char (*dirs)[NEB_PATH_MAX], const char *out);

#endif
