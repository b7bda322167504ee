// SPDX-License-Identifier: Apache-2.0
// Lines of other clusters that waited for a link, and came to the agent where their job was
// submitted while no command followed it. HOME/jobs/ID/late.jsonl keeps them until one does, also
// across restarts of the agent.
#ifndef AGENT_LATE_H
#define AGENT_LATE_H
#include "agent/base/status.h"

#include <jansson.h>
#include <stdint.h>

enum { AGENT_LATE_BYTES_MAX = 4 << 20 }; // of one job: what four clusters keep in an outage

// A line with its number at its agent, and its age. A new reference.
json_t *agent_late_line(int64_t n, double late_s, json_t *line);
// dir: of the job. Adds lines durably. NEB_ERR_LIMIT (not logged): too many are kept already.
NEB_MUST_CHECK enum neb_status agent_late_add(const char *dir, const json_t *lines);
// [{"n", "line", "late_s"}], in the order of their arrival, each number of a cluster once. late_s:
// the present age. NULL: there are none, or they cannot be read.
json_t *agent_late_read(const char *dir);
void agent_late_drop(const char *dir); // a command has them

#endif
