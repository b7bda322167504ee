// SPDX-License-Identifier: Apache-2.0
// The daemon's part of streams: what workers ask for goes to inter/stream/streams.h, what comes from there goes to workers.
#ifndef AGENT_DAEMON_STREAMS_H
#define AGENT_DAEMON_STREAMS_H
#include "agent/daemon/jobs.h"

struct agent_streams { // plain references to the daemon's own; lives as long as its service
    struct inter_streams *streams;
    struct agent_ipc *ipc;
    struct agent_jobrun *jobs; // (AGENT_JOBS_MAX)
    const char *home;
    // inter_streams_callbacks.over: of a job that is not among those, or has ended
    bool (*over)(void *user, const uint8_t job[AGENT_JOB_ID_BYTES], uint32_t peer);
    void *user;
};

// Sets the callbacks of s->streams: once it is created.
void agent_streams_listen(struct agent_streams *s);
// A worker's request ("stream-…"): true when it was one. What goes wrong with it is told to the worker, which ends its job.
bool agent_streams_request(struct agent_streams *s, struct agent_jobrun *j,
                           const struct agent_ipc_msg *m);
// Bytes of batches that this cluster has put (producer) or got (consumer), and how often a batch was sent again.
json_t *agent_streams_report(const struct agent_streams *s, const struct agent_jobrun *j);

#endif
