// SPDX-License-Identifier: Apache-2.0
// What a job will do, from its file alone: sizes and bytes, without making the model.
#ifndef AGENT_PLAN_H
#define AGENT_PLAN_H
#include "agent/job/config.h"

struct agent_plan {
    int64_t params, trainable;       // elements; with vocab 0: of the blocks and final norm only
    int64_t tokens_per_step, tokens; // of one cluster: a step's, and of the whole run
    // of the whole model, per cluster (a fragment's are as many); mode rtd: batches
    int64_t exchanges;
    double bits_per_param;     // of the codec, measured on normally distributed values
    int32_t others;            // that a cluster sends each update to; 0: no updates travel
    double bytes_per_exchange; // encoded update of one cluster, without row counts and transport
    double bytes;              // of all exchanges, per cluster: to all others
    double label_bytes;        // mode distill, where labels travel: of a target token; else 0
    double reduction;          // fp32 every step / bytes; NAN when nothing is sent
    int64_t tensor,
        fragment; // elements: of the largest tensor that is trained; of the largest fragment, no fewer
    int64_t memory_bytes; // parameters, gradients, AdamW state and outer state of a worker
};

// vocab: of the corpus, used where the job leaves it to the corpus; 0: not known. Encodes a sample to learn what the
// codec makes of it, nothing else. NEB_ERR_NOMEM; NEB_ERR_INVALID: more labels than pieces. The job must be valid.
NEB_MUST_CHECK enum neb_status agent_job_plan(const struct agent_job *job, int32_t vocab,
                                              struct agent_plan *out);

#endif
