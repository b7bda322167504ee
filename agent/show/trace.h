// SPDX-License-Identifier: Apache-2.0
// A run as a trace for Perfetto (ui.perfetto.dev): where the time went. It comes from
// metrics.jsonl alone (agent/show/report.h), and has the format of Chrome's trace events:
//
//     process    a cluster: pid 1, 2, … in the order of their first lines
//     thread     train: steps between two lines; exchange: encode, merge; wait: training stood
//                still, with the cluster or the line that it waited for; checkpoint
//     async      an update on its way, from its send until its commit is here
//     flow       from the send of an update at one cluster to its merge at each other cluster
//     counter    bit/s and bytes, sent and received, by link if there is more than one; RTT
//     instant    held-out losses, new plans, labels, notes, faults
//
// Times are those of the submitting site. A line of another site has the time at which it was made
// there, as far as the agents know each other's clocks.
#ifndef AGENT_TRACE_H
#define AGENT_TRACE_H
#include "agent/base/status.h"

#include <stdint.h>
#include <stdio.h>

// metrics: path of metrics.jsonl. *events: number of events; 0: the run has no lines yet.
// The caller checks whether `out` took them, because it knows the name of that file.
// NEB_ERR_IO, NEB_ERR_NOMEM (logged); NEB_ERR_NOT_FOUND: no such file.
NEB_MUST_CHECK enum neb_status agent_trace_write(const char *metrics, const char *job, FILE *out,
                                                 int64_t *events);

#endif
