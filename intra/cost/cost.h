// SPDX-License-Identifier: Apache-2.0
// What a training step costs on a mesh, before anything starts: FLOPs, seconds, bytes between
// ranks, memory. `nebula plan` uses it (agent/cli/cmd_plan.c). inter/round/wan_cost.h has the costs
// between clusters.
//
// Memory, FLOPs and bytes between ranks are not computed from the shape of a model. count.c makes
// the rank's trainer and runs a step of it under an allocator, on a device and with communicators
// that only count. So whatever a trainer allocates, computes and sends is in the figures. Seconds
// follow from these counts and from the rates of micro-steps that were timed on the machine
// (agent/plan/profile.h):
//
//     stage     (micros + pp - 1) times the time of the fullest stage's forward and backward, and
//               the messages between stages
//     tensors   gathers and sums of rows in a block (rows.h), and of the loss
//     update    reduction of gradients and gather of parameters over dp, AdamW on the rank's part
//
// On the CPU nothing overlaps. On accelerators, one for each rank, the reduction of gradients over
// replicas overlaps with backward.
//
// exchange.c has the exchanges between clusters: the work of the busiest owner of shards, and the
// memory that their state takes.
//
// Sources: Narayanan et al. (SC 2021) for the pipeline's bubble.
#ifndef INTRA_COST_H
#define INTRA_COST_H
#include "intra/model/model.h"
#include "kernels/kern.h"

enum {
    INTRA_COST_WIDTHS = 3,
    INTRA_COST_TOKENS = 3,
    INTRA_COST_STEPS = INTRA_COST_TOKENS * INTRA_COST_WIDTHS
};
extern const int32_t intra_cost_widths[INTRA_COST_WIDTHS]; // d_model of the timed models
extern const int32_t intra_cost_tokens[INTRA_COST_TOKENS]; // of their micro-batches, on devices

// One of a machine's accelerators. count 0: none, or nothing is known about them; the rest is then
// unset. Rates of steps are FLOP/s of a micro-batch, forward and backward; a size that takes too
// long to time has the rate of the largest that was timed.
struct intra_device_rates {
    int32_t count;                    // in the machine
    double memory;                    // bytes of one
    double step[2][INTRA_COST_STEPS]; // by enum kern_type; (tokens, widths)
    double update[2];                 // parameters/s of norms and AdamW
    double wait_s;   // seconds until the host reads a number that the device computed
    double up, down; // bytes/s from and to pinned host memory
    double link;     // bytes/s between two of them; 0: unknown
    double link_s;   // seconds of the smallest collective, with the wait for the queue
};

// Rates of one machine with all its processors, as `nebula plan` measures them. All are above 0
// unless a comment says otherwise.
struct intra_rates {
    int32_t processors;
    // FLOP/s of a micro-batch with all processors, and with one; 0 with bf16: there is none
    double step[2][INTRA_COST_WIDTHS], one[2][INTRA_COST_WIDTHS];
    double update; // parameters/s of norm, AdamW and zeroing
    double link;   // bytes/s between two ranks; 0: unknown, so several ranks cannot be judged
    double link_s; // seconds of the smallest collective
    double memory; // bytes of the machine
    struct intra_device_rates device;
};

// Host memory that encoding and merging take beside the state of an exchange. It depends on the
// codec, which this layer does not know (agent_profile_frames).
struct intra_cost_frames {
    double unit;   // bytes for each unit of a fragment
    double work;   // bytes for each element of a fragment
    double update; // bytes of an update for each element
    double kept;   // on a device: bytes of all updates of a commit, unpacked, for each element
};

struct intra_cost_job {
    struct intra_model_config model; // vocab, head_dim and n_kv_heads must be set
    struct intra_trainable trainable;
    struct intra_mesh_config mesh;
    int32_t batch, seq_len;
    // Micro-batches in a step of the whole cluster; each replica gets an equal share of the
    // sequences.
    int32_t micros;
    bool recompute;
    bool muon;   // optim.name is muon
    bool frozen; // does not train: no gradients, no moments, and all blocks share memory
    // Takes part in exchanges: θ, v, u and θ_m at the send, spread over the ranks (shards.h).
    bool outer;
    bool outer_single; // but rank 0 holds all of it
    int32_t fragments; // of the exchange; 0 means 1
    int32_t members;   // clusters whose updates are merged; 0 means 2
    struct intra_cost_frames frames;
    bool copy;            // each rank keeps a copy of its part of a checkpoint (checkpoint_async.h)
    int32_t ranks_a_host; // ranks on the machine that the rates describe; at least 1
    // This cluster's share of the machine, (0, 1]; with devices, of the devices.
    double share;
    bool device;         // on devices of the machine, one for each rank
    enum kern_type type; // with devices: of activations and products; on the CPU: of products
    bool outer_device;   // the exchange's state is on the devices too
};

struct intra_cost {
    double flops; // of a step and rank: matrix products and attention
    double compute_s, tp_s, pp_s, dp_s, update_s; // of a step; pp_s: bubble and messages
    double step_s;                                // their sum
    double tp_bytes, pp_bytes, dp_bytes;          // that a rank sends in a step
    // Of the rank with the most memory in use. params: with gradients.
    double params_bytes, optim_bytes, acts_bytes;
    // A rank's shard of the exchange's state, without frames (encoded updates); with devices a copy
    // of it on the host.
    double exchange_bytes;
    double frames_bytes; // estimate of what encoding and merging need in addition
    double copy_bytes;  // on the host: a copy of a rank's part of a checkpoint, while it is written
    double owner_bytes; // what rank 0 holds in addition if it has all of the exchange's state
    // of a rank without owner_bytes; of all ranks on rank 0's machine
    double rank_bytes, host_bytes;
    // With a device, params, optim and acts are in its memory. rank, owner and host bytes are on
    // the host, which holds copies of parameters and moments.
    double outer_bytes;     // the exchange's state on the device
    double workspace_bytes; // that products and reductions need in addition
    double device_bytes;    // all that a rank has on its device; 0: no device
    // Of an exchange: elements of the rank that owns most (shards.h), number of its units, elements
    // of the largest unit.
    double owner_params, owner_units, owner_largest;
    // Seconds to gather parameters on their owners, once to make an update and once to merge; and
    // to scatter them to all ranks that train them.
    double gather_s, scatter_s;
};

// The layout of a job's full model without parameters; the caller destroys it. Values that no size
// depends on are replaced, so that a bad one does not fail here: other code refuses the job.
struct intra_model *intra_cost_layout(const struct intra_model_config *m,
                                      const struct intra_trainable *t);
// Elements of the whole model, and of those that are trainable.
struct intra_cost_params {
    int64_t all, trainable;
    int64_t second; // of trainable: those with a second moment if Muon trains
};
// The shape is that of a valid job. With vocab 0: without embeddings and output head.
struct intra_cost_params intra_cost_count(const struct intra_model_config *m,
                                          const struct intra_trainable *t);

// A side of a stream (modes rtd and distill). Some positions reach the output
// layer. Some have their logits computed once more, to sample tokens or to make labels.
struct intra_cost_side {
    double tokens;  // in a micro-batch, with padding
    double length;  // mean length of its sequences
    double targets; // tokens with a loss; 0: only hidden states (a frozen teacher)
    bool learns;    // backward and an update follow
    bool labels;    // it makes or reads labels
    double again;   // positions whose logits are computed once more
    int32_t soft_k; // room for each position: 1 for a draw, k for labels; 0: none
    // Sequences of seq_len tokens that a replica decodes at once when it ends, at most; 0: none.
    int32_t decodes;
};

// True if the mesh divides the model. Like intra_mesh_check, but without a log, for searches.
bool intra_cost_mesh_fits(const struct intra_mesh_config *mesh, const struct intra_model_config *m);
// FLOPs of a micro-batch on a rank of the last stage, counted. INFINITY: it cannot be made.
double intra_cost_flops(const struct intra_cost_job *j, const struct intra_cost_side *side);
// FLOP/s of a micro-batch of n tokens, for one of the job's ranks.
double intra_cost_rate(const struct intra_cost_job *j, const struct intra_rates *r, double n);
// Costs of a step. side NULL: of a trainer. All times are INFINITY if there are several ranks and
// the link's rate is 0 (rates->link, or that of the devices), or if a host has more ranks than
// devices. With a side batch x seq_len is the size that memory is allocated for, and side->learns
// replaces frozen.
void intra_cost_step(const struct intra_cost_job *j, const struct intra_cost_side *side,
                     const struct intra_rates *r, struct intra_cost *out);
// The first half of it: FLOPs and times.
void intra_cost_time(const struct intra_cost_job *j, const struct intra_cost_side *side,
                     const struct intra_rates *r, struct intra_cost *out);
// Only the memory, which needs no rates.
void intra_cost_memory(const struct intra_cost_job *j, const struct intra_cost_side *side,
                       struct intra_cost *out);

// Of a trainer that is another program: what libnebula does and holds in it for an exchange. The
// other figures stay 0.
void intra_cost_exchange(const struct intra_cost_job *j, const struct intra_rates *r,
                         struct intra_cost *out);

// Finds the fastest mesh of `ranks` ranks that fits into memory. In *j: everything but the mesh.
struct intra_cost_choice {
    int32_t ranks;
    bool fix_mesh;        // keeps the mesh in *j
    double memory;        // bytes of the machine that may be used
    double device_memory; // of one device, if j->device
    double beat_s;        // seconds of a step: slower choices are left out; 0: none
};
// false: nothing fits; *j and *out are then the nearest choice.
bool intra_cost_choose(const struct intra_cost_choice *c, const struct intra_rates *r,
                       struct intra_cost_job *j, struct intra_cost *out);

#endif
