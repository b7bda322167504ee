// SPDX-License-Identifier: Apache-2.0
// How a job's words become the controller's bounds (inter/record/tune.h).
#ifndef AGENT_TUNE_H
#define AGENT_TUNE_H
#include "agent/job/config.h"
#include "inter/record/outlier.h"
#include "inter/record/tune.h"

// Whether sync.tune: auto can begin with a codec: one between its finest and coarsest.
bool agent_tune_admits(const struct agent_tune *t, const char *codec);
struct inter_tune_config agent_tune_config(const struct agent_job *job);
// Its learning rate over its steps, for inter_reach; all zero where a cluster has a trainer of its own.
void agent_tune_pace(const struct agent_job *job, float pace[INTER_PACE]);

#endif
