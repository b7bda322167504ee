// How a job's words become the controller's bounds (inter/tune.h).
#ifndef AGENT_TUNE_H
#define AGENT_TUNE_H
#include "agent/config.h"
#include "inter/tune.h"

struct inter_tune_config agent_tune_config(const struct agent_job *job);

#endif
