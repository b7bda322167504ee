// SPDX-License-Identifier: Apache-2.0
// `--local N`: the agents of all clusters on this machine, over loopback or an emulated WAN. Each
// is a process with its own keys and home. Programs and messages are those between real sites.
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
    char gpus[AGENT_CLUSTERS_MAX][AGENT_GPUS_TEXT]; // the GPUs that an agent may see; "": all
    int restarts;
};

// Starts the first n agents of the job under DIR/clusters/NAME, and returns when each answers on
// its socket. wan: "RATE:DELAY[:LOSS]", or NULL for plain loopback. seal_key: the file with which
// all of them seal; NULL: they do not.
NEB_MUST_CHECK enum neb_status agent_local_start(const struct agent_job *job, int n,
                                                 const char *dir, const char *wan,
                                                 const char *seal_key, struct agent_local *out);
// Sends SIGTERM to all at once, so that each writes its checkpoint; waits, then kills. May follow a
// failed start.
void agent_local_stop(struct agent_local *l);
// Restarts agents that a signal has killed, as a service manager would, and waits until they
// answer. *again: the first of them, or -1. *asked: a handler sets it when this process is asked to
// end. NEB_ERR_INTERRUPTED (not logged): the agents were asked to end too and ended first, as when
// a scheduler stops a whole group. NEB_ERR_STATE: a process ended in another way, or too often.
NEB_MUST_CHECK enum neb_status agent_local_tend(struct agent_local *l,
                                                const volatile sig_atomic_t *asked, int *again);

#endif
