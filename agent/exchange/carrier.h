// SPDX-License-Identifier: Apache-2.0
// The connection of a rank other than 0 with the agent. It carries the rank's own part of updates
// (struct agent_carrier_ops) and nothing else; rank 0 decides when.
//
//     rank 0   attach, session S, R ranks ──►  agent
//     rank r   rank r of S, the job's secret ►        admitted for S only
//     rank 0   shape, owner of each unit ────►        knows which units are whose
//
//     rank r   part of an update ────────────►  ┐
//     rank 0   update, with its own part ────►  ┘     joins them: one update, units in order
//
//     rank r   ◄── frames of a commit: its units      cuts each update by owners
//     rank 0   ◄── commit, with its own part
//
// On the agent's host a rank uses the agent's socket, else TCP with the keys of the job. An agent
// that was restarted has new keys: rank 0 gets them when it attaches again, and hands them on.
//
// If an answer is overdue, the rank says who it is once more and asks again; after
// AGENT_CARRIER_PATIENCE it fails. The agent asks rank 0 for parts of an update that are overdue.
#ifndef AGENT_CARRIER_H
#define AGENT_CARRIER_H
#include "agent/exchange/trainer.h"
#include "agent/proc/credential.h"

enum { AGENT_CARRIER_PATIENCE = 20 }; // seconds

struct agent_carrier;
struct agent_carrier_config {
    const char *socket_path, *job;
    const struct agent_credential *credential; // borrowed
    int64_t session;
    int rank;
};
// Connects and says who it is; does not wait for an answer. NEB_ERR_UNSUPPORTED: this is another
// host than the agent's, and the agent does not listen for other hosts.
NEB_MUST_CHECK enum neb_status agent_carrier_create(const struct agent_carrier_config *c,
                                                    struct agent_carrier **out);
// After a restart of the agent, when the credential has its new keys: connects once more if the
// connection is over TCP, and says who it is. Errors as create.
NEB_MUST_CHECK enum neb_status agent_carrier_again(struct agent_carrier *c);
void agent_carrier_destroy(struct agent_carrier **c); // NULL-safe
extern const struct agent_carrier_ops agent_carrier_ops;

#endif
