// SPDX-License-Identifier: Apache-2.0
// What an agent tells about itself: to nebula status, the status page and /metrics alike. And its word to systemd.
#ifndef AGENT_STATUS_H
#define AGENT_STATUS_H
#include "agent/daemon/jobs.h"
#include "agent/web/view.h"
#include "agent/web/web.h"

// Adds to a job's entry what rounds and curves know of it: leader, live, lag, voting, error, clusters.
// Names of clusters, a bit each, with commas.
void agent_status_names(const struct agent_job *job, uint16_t who, char *out, size_t cap);
void agent_status_job(json_t *entry, const struct agent_jobrun *j, const struct inter_service *s,
                      const struct agent_view *v);
// {kind: count} of faults, those that never happened included.
json_t *agent_status_faults(const uint64_t counts[INTER_FAULTS]);
// Hands status, history (when somebody watches) and metrics to the page; steals status.
void agent_status_publish(struct agent_web *w, struct agent_view *v, json_t *status);

// Tells the service manager that started this process ("READY=1", "WATCHDOG=1", "STOPPING=1", "STATUS=…"); nothing happens
// without one ($NOTIFY_SOCKET). See sd_notify(3); the protocol is one datagram.
void agent_notify(const char *state);

#endif
