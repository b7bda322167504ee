// SPDX-License-Identifier: Apache-2.0
// An agent's status as Prometheus text (exposition format 0.0.4): base units, counters end in _total. README.md lists the names.
#ifndef AGENT_METRICS_H
#define AGENT_METRICS_H
#include "agent/base/bytes.h"

#include <jansson.h>

// From the JSON of `nebula status --json`. What it does not hold is left out. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status agent_metrics_text(const json_t *status, struct neb_buf *out);

#endif
