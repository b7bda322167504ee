// SPDX-License-Identifier: Apache-2.0
// What an agent adds to its worker's update for the controller, and what a record plans for the
// worker.
#ifndef AGENT_MEASURE_H
#define AGENT_MEASURE_H
#include "agent/daemon/jobs.h"

// Combines the worker's report (step time, error, codec) with the paths to the members that take
// its updates: the slowest path counts.
void agent_measure(struct inter_service *s, const struct agent_jobrun *j, const json_t *worker,
                   struct inter_measure *out);
json_t *agent_plan_json(const struct inter_record *r, int member); // empty: no plan for this member

#endif
