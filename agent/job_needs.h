// What a job asks of the site that runs one of its clusters, from its specification alone: for the site's policy (policy.h). About, as
// `nebula plan` reckons it (intra/cost.h); where a job leaves something open, the most that it can come to. A teacher from a checkpoint counts with the shape that the job says:
// its file is this site's own. Allocates nothing.
#ifndef AGENT_JOB_NEEDS_H
#define AGENT_JOB_NEEDS_H
#include "agent/config.h"

struct agent_needs {
    double step_tokens; // of the cluster, in one step
    // Bytes of the worker: in a machine's memory, of all its ranks, which may all be there; in that of each device. 0: of a trainer of the
    // site's own, and where no device is used.
    double memory, device_memory;
    double disk; // bytes of checkpoints, snapshots, models and labels; updates are --blobs-max's
    bool on_processors, on_devices; // where it may train
};

// job: valid. vocab: of the cluster's corpus, used where the job leaves it open. All 0: the cluster trains nothing (a witness).
void agent_job_needs(const struct agent_job *job, int self, int32_t vocab, struct agent_needs *out);

#endif
