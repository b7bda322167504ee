// SPDX-License-Identifier: Apache-2.0
// Trainers that attach to a cluster with `launcher: attach` (libnebula.h), seen from the agent: who may, and who is gone.
//
//     no trainer ── attachable, attach ──► attached ── report ──► job ends
//         ▲────── detach, or its process is gone ──┘
//
// ZeroMQ does not tell when a client goes, so a trainer names its process, which is on this machine.
#ifndef AGENT_ATTACH_H
#define AGENT_ATTACH_H
#include "agent/daemon/jobs.h"

static inline bool agent_attach_waits(const struct agent_jobrun *j) {
    return j->used && !j->job.clusters[j->self].witness &&
           j->job.clusters[j->self].launcher == AGENT_LAUNCHER_ATTACH;
}
// The answer to "attachable": the job that this trainer may attach to, or why not.
//
//     {"op": "attachable", "api", "pid",
//      "job": id, its first digits, or name; "": any, "from": who submitted it; "": anybody}
//
// A loop that waits has its text and its parameters at hand, and no member shall take it by
// submitting a job, whatever it calls that. So it is given a job that was submitted here; another
// member's only where the request names that (by AGENT_ATTACH_DIGITS of its id or more, or by
// "from"), or the site's policy lists its submitter ("attach"). A job that it is not given is
// passed over: the loop waits on.
enum {
    AGENT_ATTACH_PREFIX = 8,  // digits that mean an id and no name
    AGENT_ATTACH_DIGITS = 16, // fewer can be met by trying
};
json_t *agent_attach_find(const struct agent_jobrun jobs[AGENT_JOBS_MAX],
                          const struct agent_ipc_msg *m);
// May the sender of "attach" become the worker of j? Otherwise *why, and nothing has changed.
bool agent_attach_admit(struct agent_jobrun *j, const struct agent_ipc_client *from,
                        const struct agent_ipc_msg *m, char *why, size_t cap);
// The trainer has said so, or its process is gone: the job waits for the next. False: there is none, or it lives.
bool agent_attach_left(struct agent_jobrun *j, bool said_so);

#endif
