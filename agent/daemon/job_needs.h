// SPDX-License-Identifier: Apache-2.0
// What a job asks of the site that runs one of its clusters, from its specification alone: for the site's policy (policy.h). About, as
// `nebula plan` reckons it (intra/cost/cost.h); where a job leaves something open, the most that it can come to. A teacher from a checkpoint has that one's shape,
// whatever the job says. Allocates nothing.
#ifndef AGENT_JOB_NEEDS_H
#define AGENT_JOB_NEEDS_H
#include "agent/job/config.h"

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

// What leaves the cluster of its text by what a job exchanges, whoever reads it (with sync.gate:
// private everybody reads the sums alone, but all others together know a member's own part).
struct agent_discloses {
    // Tokens that the least update rests on: of as many steps as agent_schedule_least has, and of
    // an eighth of them where sync.tune.balance may leave out the others; of one step where every
    // step is exchanged. 0: no update leaves.
    double update_tokens;
    // The widest input of a matrix of the model: the gradient of fewer tokens is spanned by what
    // each of them put in, so that a guess of one can be proven (DAGER, arXiv 2405.15586).
    int32_t width;
    enum agent_row_counts rows; // how exactly its tokens are counted out, row by row
    // What a model here makes of each place of this cluster's text goes to another one: a teacher's
    // labels, a generator's draws
    bool labels;
    bool text; // and the text itself (push_text)
};
void agent_job_discloses(const struct agent_job *job, int self, struct agent_discloses *out);
// Tokens that a held-out loss of one source rests on at most; 0: all that there are.
double agent_job_eval_tokens(const struct agent_job *job);
// job: valid. All 0: the cluster trains nothing (a witness).
void agent_job_needs(const struct agent_job *job, int self, const struct agent_found *found,
                     struct agent_needs *out);
// Whether the worker of cluster `self` does the part of another one: one process of a mode with roles has all of them.
bool agent_job_runs(const struct agent_job *job, int self, int part);
// Of all models that the worker holds; without embedding and output where the vocabulary is not known.
double agent_job_parameters(const struct agent_job *job, int self, const struct agent_found *found);

#endif
