// SPDX-License-Identifier: Apache-2.0
// What a run of mode distill leaves behind: its part of summary.json.
#ifndef AGENT_DISTILL_SUMMARY_H
#define AGENT_DISTILL_SUMMARY_H
#include "agent/job/config.h"

// "quality" of summary.json, from the clusters' reports (new reference, NULL when out of memory).
json_t *agent_distill_summary(const struct agent_job *job, json_t *const *reports, int n);
void agent_distill_print(const json_t *quality, FILE *out);

#endif
