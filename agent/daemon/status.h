// SPDX-License-Identifier: Apache-2.0
// What an agent reports about itself, to nebula status, the status page and /metrics. And its
// messages to systemd.
#ifndef AGENT_STATUS_H
#define AGENT_STATUS_H
#include "agent/daemon/jobs.h"
#include "agent/web/view.h"
#include "agent/web/web.h"

// Names of the clusters in `who`, separated by commas.
void agent_status_names(const struct agent_job *job, struct member_set who, char *out, size_t cap);
// Gives status, history (if somebody watches) and metrics to the page; takes ownership of status.
void agent_status_publish(struct agent_web *w, struct agent_view *v, json_t *status);

// Sends a state to the service manager that started this process ("READY=1", "WATCHDOG=1",
// "STOPPING=1", "STATUS=…"); does nothing without one ($NOTIFY_SOCKET). See sd_notify(3).
void agent_notify(const char *state);

#endif
