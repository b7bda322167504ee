// SPDX-License-Identifier: Apache-2.0
// The controller's bounds (inter/record/tune.h) from the keys of a job.
#ifndef AGENT_TUNE_H
#define AGENT_TUNE_H
#include "agent/job/config.h"
#include "inter/record/outlier.h"
#include "inter/record/tune.h"

// True if sync.tune: auto may start with this codec: a level between finest and coarsest.
bool agent_tune_admits(const struct agent_tune *t, const char *codec);
struct inter_tune_config agent_tune_config(const struct agent_job *job);
// The learning rate over the job's steps, for inter_reach. All zero if a cluster attaches a
// trainer.
void agent_tune_pace(const struct agent_job *job, float pace[INTER_PACE]);

#endif
