// How a job's words become the controller's bounds (inter/tune.h).
#ifndef AGENT_TUNE_H
#define AGENT_TUNE_H
#include "agent/config.h"
#include "inter/outlier.h"
#include "inter/tune.h"

struct inter_tune_config agent_tune_config(const struct agent_job *job);
// Its learning rate over its steps, for inter_reach; all zero where a cluster has a trainer of its own.
void agent_tune_pace(const struct agent_job *job, float pace[INTER_PACE]);

#endif
