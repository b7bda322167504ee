// SPDX-License-Identifier: Apache-2.0
// The agent's part of streams: passes requests of workers to inter/stream/streams.h, and its events
// to workers.
#ifndef AGENT_DAEMON_STREAMS_H
#define AGENT_DAEMON_STREAMS_H
#include "agent/daemon/jobs.h"

struct agent_streams { // references to the daemon's own objects; lives as long as its service
    struct inter_streams *streams;
    struct agent_ipc *ipc;
    struct agent_jobrun *jobs; // (AGENT_JOBS_MAX)
    const char *home;          // HOME, for messages
    // inter_streams_callbacks.over, for a job that is not in `jobs` or has ended.
    bool (*over)(void *user, const uint8_t job[AGENT_JOB_ID_BYTES], uint32_t peer);
    void *user;
};

// Sets the callbacks of s->streams; call it after their creation.
void agent_streams_listen(struct agent_streams *s);
// Handles a worker's request ("stream-…"); true: it was one. Errors go to the worker, which ends
// its job.
bool agent_streams_request(struct agent_streams *s, struct agent_jobrun *j,
                           const struct agent_ipc_msg *m);
// Per stream: bytes of batches that this cluster has put (producer) or got (consumer), and how
// often a batch was sent again.
json_t *agent_streams_report(const struct agent_streams *s, const struct agent_jobrun *j);

#endif
