// SPDX-License-Identifier: Apache-2.0
// The agent of one cluster: a daemon on its head node. It holds the links to the other agents, the
// ledger, and the workers of the jobs in which this cluster takes part.
//
//     command line ──ipc──┐                              ┌──── ZeroMQ + CURVE ──── other agents
//     worker       ──ipc──┴── daemon (one poll loop) ────┤
//                                                        └──── ledger
//
// HOME contains keys/, members.json, agent.sock, ledger.db, blobs/ and jobs/ID/ (checkpoints,
// worker.log, and rank-N.log for a mesh).
#ifndef AGENT_DAEMON_H
#define AGENT_DAEMON_H
#include "agent/base/clock.h"
#include "agent/base/status.h"
#include "agent/web/web.h"
#include "inter/link/rate_limit.h"

enum { AGENT_STOP_WITHIN_S = 3600 };

struct agent_daemon_config {
    const char *home;       // folder with keys and members
    const char *listen;     // "HOST:PORT"; NULL: makes connections, accepts none
    const char *workers;    // "ADDRESS[:PORT]" for workers on other hosts; NULL: there are none
    unsigned n_bulk;        // bulk connections per peer; 0: as many as fill the link
    const char *congestion; // TCP congestion control; NULL: bbr if permitted
    struct inter_rate_limit limit; // of everything that this site sends
    neb_ns recycle;                // age at which connections are replaced; 0: one hour
    neb_ns overlap; // how long a member's old keys stay valid after a rotation; 0: ten minutes
    int renew_days; // renew the certificate if fewer days are left; 0: a third of its validity
    struct agent_web_config page; // listen NULL: no status page
    uint64_t
        // limit of the bytes of updates in HOME/blobs, as far as the ledger may drop them; 0: none
        blobs_max;
    unsigned ended_max; // ended jobs to keep of each other member; 0: DAEMON_ENDED_MAX
    // File of the sealing key; NULL: as HOME/seal.json or the systemd credential says
    // (agent/proc/seal.h).
    const char *seal_key;
    neb_ns stop_within; // how long an ending agent waits for checkpoints; 0: AGENT_STOP_WITHIN_S
    // May be NULL. Set to true if a signal ended the agent while a job ran; the job continues when
    // the agent is started again.
    bool *suspended;
};
// Runs until SIGTERM or SIGINT. Jobs are then suspended after a checkpoint: the agent waits for it
// while its bytes move, at most stop_within. A second signal, at least five seconds later, ends the
// agent at once. NEB_OK after an orderly end.
NEB_MUST_CHECK enum neb_status agent_daemon_run(const struct agent_daemon_config *c);

// Messages between agents (kinds of inter_service). "home" is the member that submitted the job.
enum agent_message {
    // {"id", "spec", "home", "sig", "run"}, reliable, from home. With "resume": from any cluster of
    // the job. With "again": unreliable, to a peer that came back, repeated until the link takes
    // it.
    AGENT_MSG_JOB = 1,
    AGENT_MSG_STOP, // reliable: {"id", "run"}; it and the next three come from a cluster of the job
    AGENT_MSG_REFUSED, // {"id", "reason"}; the answer to a JOB, sent once
    AGENT_MSG_REPORT,  // reliable: {"id", "report"}, to home
    // Telemetry, to home: {"id", "lines": [{"n", "line", "late_s"}]} (agent/daemon/lines.h).
    // Reliable: those that may be lost when the agent or the job ends.
    AGENT_MSG_METRICS,
    AGENT_MSG_LIST_STAND, // telemetry: version u64, digest (agent/daemon/spread.h)
    AGENT_MSG_LIST,       // telemetry: a signed member list
    AGENT_MSG_SUMS,       // telemetry: inter/round/sums.h
    AGENT_MSG_HAD,     // telemetry: {"id", "had"}, from home when the link or the job is up again
    AGENT_MSG_TENSORS, // telemetry: {"id"} with a question or an answer of tensor_list.h
};

#endif
