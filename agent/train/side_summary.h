// SPDX-License-Identifier: Apache-2.0
// The part of summary.json that a run of mode rtd or distill adds: `quality`.
#ifndef AGENT_SIDE_SUMMARY_H
#define AGENT_SIDE_SUMMARY_H
#include "agent/job/config.h"

#include <jansson.h>

// Mode rtd: the report of a role's cluster; NULL: it has not reported. In the reference, cluster
// 0's report holds both sides.
const json_t *agent_side_report(const struct agent_job *job, json_t *const *reports,
                                enum agent_role role);
// From n reports, those of all clusters or the one of the reference. Returns a new reference; NULL:
// mode replicas, or out of memory.
//     rtd      "generator", "discriminator": what each measured
//     distill  "clusters": {name: what it measured}
//     both     bytes on the sockets for each token of the text, and what exchanging gradients or
//              logits in fp16 would take
json_t *agent_side_quality(const struct agent_job *job, json_t *const *reports, int n);
void agent_side_print(const json_t *quality, FILE *out); // as text

#endif
