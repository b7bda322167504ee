// SPDX-License-Identifier: Apache-2.0
// An agent's status as Prometheus text (exposition format 0.0.4), in base units; names of counters
// end in _total.
#ifndef AGENT_METRICS_H
#define AGENT_METRICS_H
#include "agent/base/bytes.h"

#include <jansson.h>

// Takes the JSON of `nebula status --json`; leaves out what it lacks. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status agent_metrics_text(const json_t *status, struct neb_buf *out);

#endif
