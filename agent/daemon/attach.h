// SPDX-License-Identifier: Apache-2.0
// Trainers that attach to a cluster with `launcher: attach` (libnebula.h), as the agent sees them:
// which of them may attach, and whether one is gone.
//
//     no trainer ── attachable, attach ──► attached ── report ──► job ends
//         ▲── detach, or its process is gone ──┘
//
// ZeroMQ does not report that a client is gone. So a trainer sends the id of its process, which is
// on this machine.
#ifndef AGENT_ATTACH_H
#define AGENT_ATTACH_H
#include "agent/daemon/jobs.h"

static inline bool agent_attach_waits(const struct agent_jobrun *j) {
    return j->state != AGENT_JOB_NONE && !j->job.clusters[j->self].witness &&
           j->job.clusters[j->self].launcher == AGENT_LAUNCHER_ATTACH;
}
// The answer to "attachable": the job that this trainer may attach to, or the reason why there is
// none.
//
//     {"op": "attachable", "api", "pid",
//      "job": id, its first digits, or name; "": any, "from": who submitted it; "": anybody}
//
// A waiting loop gives its text and its parameters to the job that it gets, so a member must not
// obtain it by submitting a job, whatever the name of that job is. The loop gets a job that was
// submitted here. It gets another member's job only if the request names that job (with
// AGENT_ATTACH_DIGITS of its id or more, or with "from"), or if the site's policy lists the
// submitter ("attach"). All other jobs are skipped, and the loop keeps waiting.
enum {
    AGENT_ATTACH_PREFIX = 8,  // so many digits are an id, not a name
    AGENT_ATTACH_DIGITS = 16, // fewer digits can be matched by trial and error
};
json_t *agent_attach_find(const struct agent_jobrun jobs[AGENT_JOBS_MAX],
                          const struct agent_ipc_msg *m);
// True if the sender of "attach" becomes the trainer of j. False: *why, and nothing has changed.
bool agent_attach_admit(struct agent_jobrun *j, const struct agent_ipc_client *from,
                        const struct agent_ipc_msg *m, char *why, size_t cap);
// The trainer has detached (said_so), or its process is gone: the job waits for the next one.
// False: there is no trainer, or it is alive.
bool agent_attach_left(struct agent_jobrun *j, bool said_so);

#endif
