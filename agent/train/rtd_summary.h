// SPDX-License-Identifier: Apache-2.0
// The part of summary.json that a run of mode rtd adds: `quality`.
#ifndef AGENT_RTD_SUMMARY_H
#define AGENT_RTD_SUMMARY_H
#include "agent/job/config.h"

#include <jansson.h>

// The report of a role's cluster; NULL: it has not reported. In the reference, cluster 0's report
// holds both sides.
const json_t *agent_rtd_report_of(const struct agent_job *job, json_t *const *reports,
                                  enum agent_role role);
// Returns a new reference: {"generator", "discriminator": what each measured,
// "stream_bytes_per_token", "wan_bytes_per_token": bytes on both clusters' sockets over the tokens
// that the discriminator was trained on, "fp16_gradient_bytes_per_token": what exchanging its
// gradients in fp16 every step would take}.
json_t *agent_rtd_summary(const struct agent_job *job, json_t *const *reports);
// Prints two lines of text.
void agent_rtd_print(const json_t *quality, FILE *out);

#endif
