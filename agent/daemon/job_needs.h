// SPDX-License-Identifier: Apache-2.0
// What a job needs from the site that runs one of its clusters, computed from its specification,
// for the site's policy (policy.h). The figures are estimates, as those of `nebula plan`
// (intra/cost/cost.h); if the job leaves something open, they are the maximum. A teacher that
// starts from a checkpoint has the shape of that checkpoint. Memory is counted, not used.
#ifndef AGENT_JOB_NEEDS_H
#define AGENT_JOB_NEEDS_H
#include "agent/job/config.h"

struct agent_needs {
    double step_tokens; // of the cluster, per step
    // Bytes of the worker: memory of one machine for all ranks, which may all run there; memory of
    // each device. 0 for an attached trainer, and without devices.
    double memory, device_memory;
    double disk; // bytes of checkpoints, snapshots, models and labels (--blobs-max limits updates)
    bool on_processors, on_devices; // where it may train
};

struct agent_found {                   // what the job leaves open, taken from this site's files
    int32_t vocab;                     // of the cluster's corpus; 0: unknown
    struct intra_model_config teacher; // of the checkpoint distill.teacher.init; d_model 0: none
};

// What the job reveals about the cluster's text, to any reader of what it sends. (With sync.gate:
// private everybody reads only sums, but all other members together can compute one member's part.)
struct agent_discloses {
    // Tokens behind the smallest update: those of agent_schedule_least steps, of an eighth of these
    // if sync.tune.balance may leave out the others, or of one step if every step is exchanged. 0:
    // no update leaves the cluster.
    double update_tokens;
    // The widest input of a matrix of the model. The gradient of fewer tokens lies in the span of
    // their inputs, so a guess of a token can be verified (DAGER, arXiv 2405.15586).
    int32_t width;
    enum agent_row_counts rows; // how exactly the counts of its tokens are sent, row by row
    // A model's output for each position of this cluster's text goes to another cluster: a
    // teacher's labels, or a generator's draws.
    bool labels;
    bool text; // the text itself leaves the cluster (push_text)
};
void agent_job_discloses(const struct agent_job *job, int self, struct agent_discloses *out);
// At most so many tokens are behind a held-out loss of one source; 0: all held-out tokens.
double agent_job_eval_tokens(const struct agent_job *job);
// job: valid. All 0: the cluster trains nothing (a witness).
void agent_job_needs(const struct agent_job *job, int self, const struct agent_found *found,
                     struct agent_needs *out);
// True if the worker of cluster `self` also does the part of cluster `part`: in a mode with roles,
// one process may do all parts.
bool agent_job_runs(const struct agent_job *job, int self, int part);
// Parameters of all models that the worker holds; without embedding and output if the vocabulary is
// unknown.
double agent_job_parameters(const struct agent_job *job, int self, const struct agent_found *found);

#endif
