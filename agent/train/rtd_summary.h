// SPDX-License-Identifier: Apache-2.0
// What a run of mode rtd leaves behind beyond the common files: `quality` of summary.json.
#ifndef AGENT_RTD_SUMMARY_H
#define AGENT_RTD_SUMMARY_H
#include "agent/job/config.h"

#include <jansson.h>

// The reports of the job's clusters by cluster; of the reference, cluster 0's holds both sides. A side that has not reported: NULL.
const json_t *agent_rtd_report_of(const struct agent_job *job, json_t *const *reports,
                                  enum agent_role role);
// New reference: {"generator", "discriminator": what each measured, "stream_bytes_per_token", "wan_bytes_per_token": both clusters'
// sockets over the tokens that the discriminator was trained on, "fp16_gradient_bytes_per_token": what exchanging its gradients in
// fp16 every step would take}.
json_t *agent_rtd_summary(const struct agent_job *job, json_t *const *reports);
// Two lines for people.
void agent_rtd_print(const json_t *quality, FILE *out);

#endif
