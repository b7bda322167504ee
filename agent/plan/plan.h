// SPDX-License-Identifier: Apache-2.0
// Sizes and bytes of a job, computed from its file alone, without a model in memory.
#ifndef AGENT_PLAN_H
#define AGENT_PLAN_H
#include "agent/job/config.h"

struct agent_plan {
    int64_t params, trainable;       // elements; with vocab 0: without embeddings and output head
    int64_t tokens_per_step, tokens; // one cluster's: of a step, of the whole run
    // Exchanges of the whole model per cluster (each fragment has as many). Mode rtd: batches.
    int64_t exchanges;
    double bits_per_param;     // of the updates, measured on normally distributed values
    int32_t others;            // clusters that get the update of one; 0: no updates are sent
    double bits_most;          // the same for any values; 0: unknown
    double bytes_per_exchange; // the updates of one cluster, without row counts and transport
    double bytes;              // of all exchanges to all others, per cluster
    double label_bytes;        // mode distill, if labels are sent: bytes per target token; else 0
    double reduction;          // bytes of fp32 after every step / bytes; NAN if nothing is sent
    // Elements of the largest trained tensor, and of the largest fragment (at least as many).
    int64_t tensor, fragment;
    double attached_bytes; // memory of libnebula in an attached trainer; 0: no cluster has one
};

// Sets what depends on the codec in the costs of a cluster that exchanges.
struct intra_cost_job;
NEB_MUST_CHECK enum neb_status agent_plan_frames(const struct agent_job *job,
                                                 struct intra_cost_job *out);

// Bits per parameter of a codec, on normally distributed values. Errors of encoding.
NEB_MUST_CHECK enum neb_status agent_codec_bits(const char *codec, double *bits);

// "4.18 bits per parameter", or "about 4.18 bits per parameter, at most 5.13" if values change the
// size. most 0: unknown. Returns out; cap >= 80.
const char *agent_bits_text(double bits, double most, char *out, size_t cap);

// With `model: attached` the sizes stay 0, since only the loops know their tensors.
// vocab: the corpus's vocabulary (0: not known), used if the job sets none. Encodes a sample,
// because the size of an update depends on the codec. The job must be valid. NEB_ERR_NOMEM;
// NEB_ERR_INVALID: more labels than pieces.
NEB_MUST_CHECK enum neb_status agent_job_plan(const struct agent_job *job, int32_t vocab,
                                              struct agent_plan *out);

// One sentence on what to set if the job's scheme departs from the measured recipes
// (configs/COMPARE.md). NULL: it does not, or nothing was measured with such jobs (LoRA, other
// modes, attached trainers, short runs, a chosen interval that is not known yet).
const char *agent_plan_advice(const struct agent_job *job);

#endif
