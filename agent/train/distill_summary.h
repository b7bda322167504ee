// SPDX-License-Identifier: Apache-2.0
// The part of summary.json that a run of mode distill adds.
#ifndef AGENT_DISTILL_SUMMARY_H
#define AGENT_DISTILL_SUMMARY_H
#include "agent/job/config.h"

// "quality" of summary.json, from the clusters' reports. Returns a new reference; NULL: out of
// memory. agent_distill_print prints it as text.
json_t *agent_distill_summary(const struct agent_job *job, json_t *const *reports, int n);
void agent_distill_print(const json_t *quality, FILE *out);

#endif
