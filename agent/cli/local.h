// SPDX-License-Identifier: Apache-2.0
// `--local N`: the agents of all clusters on this machine, each a process of its own with its own keys and home, over
// loopback or over an emulated WAN. The same programs and messages as between real sites.
#ifndef AGENT_LOCAL_H
#define AGENT_LOCAL_H
#include "agent/job/config.h"
#include "agent/proc/child.h"
#include "agent/proc/gpus.h"

#include <signal.h>

struct agent_local {
    int n;
    struct agent_child agents[AGENT_CLUSTERS_MAX];
    struct agent_child wan;
    int wan_stdout;
    char homes[AGENT_CLUSTERS_MAX][NEB_PATH_MAX];
    char listen[AGENT_CLUSTERS_MAX][64], netns[AGENT_CLUSTERS_MAX][64]; // netns: "" on loopback
    char gpus[AGENT_CLUSTERS_MAX][AGENT_GPUS_TEXT]; // what it sees of several; "": all
    int restarts;
};

// Starts the first n agents of the job under DIR/clusters/NAME. wan: "RATE:DELAY[:LOSS]", or NULL for plain loopback.
// seal_key: file that all of them seal with; NULL: in clear. Returns when every agent answers on its socket.
NEB_MUST_CHECK enum neb_status agent_local_start(const struct agent_job *job, int n,
                                                 const char *dir, const char *wan,
                                                 const char *seal_key, struct agent_local *out);
// SIGTERM to all at once, so that each writes its checkpoint; waits up to 70 s, then kills. Fine after a failed start.
void agent_local_stop(struct agent_local *l);
// Starts agents again that were killed by a signal, as a service manager would, and waits until they answer; *again: the first
// of them, or -1. *asked: set by a handler when this process is asked to end. NEB_ERR_INTERRUPTED, not logged: so were they, and have ended
// first, as where a scheduler cancels or a service manager stops all of a group. NEB_ERR_STATE when a process of it ended in another way, or
// too often.
NEB_MUST_CHECK enum neb_status agent_local_tend(struct agent_local *l,
                                                const volatile sig_atomic_t *asked, int *again);

#endif
