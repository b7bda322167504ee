// What a job asks of the site that runs one of its clusters, from its specification alone: for the site's policy (policy.h). About, as
// `nebula plan` reckons it (intra/cost.h); where a job leaves something open, the most that it can come to. A teacher from a checkpoint has that one's shape,
// whatever the job says. Allocates nothing.
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

struct agent_found { // what a job leaves open, and this site's own files say
    int32_t vocab;   // of the cluster's corpus; 0: not known
    struct intra_model_config
        teacher; // of the checkpoint distill.teacher.init; d_model 0: there is none
};

// job: valid. All 0: the cluster trains nothing (a witness).
void agent_job_needs(const struct agent_job *job, int self, const struct agent_found *found,
                     struct agent_needs *out);
// Whether the worker of cluster `self` does the part of another one: one process of a mode with roles has all of them.
bool agent_job_runs(const struct agent_job *job, int self, int part);
// Of all models that the worker holds; without embedding and output where the vocabulary is not known.
double agent_job_parameters(const struct agent_job *job, int self, const struct agent_found *found);

#endif
