// SPDX-License-Identifier: Apache-2.0
// The agent of one cluster: a daemon on its head node. Holds the links to the other agents, the ledger, and the workers of
// the jobs that this cluster takes part in.
//
//     command line ──ipc──┐                              ┌──── ZeroMQ + CURVE ──── other agents
//     worker       ──ipc──┴── daemon (one poll loop) ────┤
//                                                        └──── ledger
//
// HOME holds keys/, members.json, agent.sock, ledger.db, blobs/ and jobs/ID/ (checkpoints, worker.log, of meshes rank-N.log).
#ifndef AGENT_DAEMON_H
#define AGENT_DAEMON_H
#include "agent/base/clock.h"
#include "agent/base/status.h"
#include "agent/web/web.h"
#include "inter/link/rate_limit.h"

enum { AGENT_STOP_WITHIN_S = 3600 };

struct agent_daemon_config {
    const char *home;       // folder with keys and members
    const char *listen;     // "HOST:PORT"; NULL: dial only
    const char *workers;    // "ADDRESS[:PORT]" for workers of other hosts; NULL: there are none
    unsigned n_bulk;        // bulk connections a peer, 0: as many as fill the link
    const char *congestion; // TCP's; NULL: bbr where permitted
    struct inter_rate_limit limit; // of all that this site sends
    neb_ns recycle;                // age at which connections are replaced; 0: one hour
    neb_ns overlap; // how long a member's former keys stay good after its rotation; 0: ten minutes
    int renew_days; // renew the certificate with fewer days left; 0: a third of its life
    struct agent_web_config page; // listen NULL: no status page
    uint64_t
        blobs_max; // bytes of updates in HOME/blobs, as far as the ledger may drop any; 0: no limit
    unsigned ended_max; // ended jobs that are kept of each other member; 0: DAEMON_ENDED_MAX
    // file; NULL: what HOME/seal.json or the systemd credential says (agent/proc/seal.h)
    const char *seal_key;
    neb_ns
        stop_within; // once told to end: for checkpoints that are being written; 0: AGENT_STOP_WITHIN_S
    // may be NULL; set when a signal found a job running, which goes on when the agent is started again
    bool *suspended;
};
// Runs until SIGTERM or SIGINT: jobs are suspended after a checkpoint, for which it waits as long as bytes of it move, within stop_within; a
// second signal, five seconds later or more, ends it at once. NEB_OK after an orderly end.
NEB_MUST_CHECK enum neb_status agent_daemon_run(const struct agent_daemon_config *c);

// Messages between agents (inter_service kinds).
enum agent_message {
    // {"id", "spec", "home", "sig", "run"}, reliable, from home; with "resume": from any cluster of the job; unreliable with "again": to a
    // peer that came back, until the link has taken it
    AGENT_MSG_JOB = 1,
    AGENT_MSG_STOP,    // reliable: {"id", "run"}, from a cluster of the job, as the next three
    AGENT_MSG_REFUSED, // {"id", "reason"}; once, as the answer to a JOB
    AGENT_MSG_REPORT,  // reliable: {"id", "report"}, to home
    // {"id", "lines": [{"n", "line", "late_s"}]} (agent/daemon/lines.h), to home: telemetry; reliable where the link is down and the agent, or
    // the job, ends
    AGENT_MSG_METRICS,
    AGENT_MSG_LIST_STAND, // telemetry: version u64, digest (agent/daemon/spread.h)
    AGENT_MSG_LIST,       // telemetry: a signed member list
    AGENT_MSG_SUMS,       // telemetry: inter/round/sums.h
    AGENT_MSG_HAD,        // telemetry: {"id", "had"}, from home when the link is up again
};

#endif
