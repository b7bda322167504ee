// SPDX-License-Identifier: Apache-2.0
// What a training step costs on a mesh, before anything starts: FLOPs, seconds, bytes between
// ranks, memory. Pure: it computes figures from sizes and measured rates. `nebula plan` uses it
// (agent/cli/cmd_plan.c). inter/round/wan_cost.h has the costs between clusters.
//
// One rank's micro-batch of n = batch x seq_len tokens, a stage of L/pp blocks, tp ranks in a
// block:
//
//     forward   4 products a block (qkv, o, gate-up, down) + attention + row operations (norms,
//               rotary, SwiGLU) + 2 gathers and 2 sums of rows of (n, d) (rows.h)
//     backward  dW and dx of each product, attention at 2.5 times its forward, row operations,
//               4 gathers and 2 sums; with recompute also the forward
//     stage     (micros + pp - 1) times the slowest stage's forward and backward, and the
//               messages between stages
//     update    reduce-scatter and all-gather over dp, AdamW on 1/dp of the stage's parameters
//
// A product runs at the rate measured for its smallest side. Thin products are slow, which is why
// tensor parallelism does not pay for a small model. On the CPU nothing overlaps.
//
// On accelerators, one for each rank (device.c), rates are those of the job's type and also depend
// on the number of tokens. An operation takes at least its launch time, and the reduction of
// gradients over replicas overlaps with backward. Memory is counted as
// intra/model allocates it.
//
// exchange.c has the exchanges between clusters: the work of the busiest owner of shards, and the
// memory that their state takes.
//
// Sources: Narayanan et al. (SC 2021) for the pipeline's bubble, Korthikanti et al. (2022) for
// activations.
#ifndef INTRA_COST_H
#define INTRA_COST_H
#include "intra/model/model.h"
#include "kernels/device.h"

enum { INTRA_COST_SIDES = 6, INTRA_COST_HEADS = 4, INTRA_COST_TOKENS = 5 };
// 32 … 1024: smallest side of a measured product.
extern const int32_t intra_cost_sides[INTRA_COST_SIDES];
extern const int32_t intra_cost_heads[INTRA_COST_HEADS]; // 16 … 128: head_dim of measured attention
// 64 … 16384: tokens at once, on devices.
extern const int32_t intra_cost_tokens[INTRA_COST_TOKENS];

// Rates of a device with operands of one type. A size that takes too long to measure gets the rate
// of the largest size that was measured.
struct intra_type_rates {
    // FLOP/s of products (tokens, side) x (side, 2 side).
    double gemm[INTRA_COST_TOKENS][INTRA_COST_SIDES];
    // FLOP/s with heads that are 256 wide together.
    double attn_fwd[INTRA_COST_TOKENS][INTRA_COST_HEADS],
        attn_bwd[INTRA_COST_TOKENS][INTRA_COST_HEADS];
    double rows;   // bytes/s of row operations, counted as if all values were floats
    double logits; // logits/s of the loss and its gradient, without their products
    double update; // parameters/s of norms and AdamW
};

// One of a machine's accelerators. count 0: none, or nothing is known about them; the rest is then
// unset.
struct intra_device_rates {
    int32_t count;                 // in the machine
    double memory;                 // bytes of one
    struct intra_type_rates of[2]; // by enum kern_type
    double op_s;                   // seconds of the smallest operation in a queue
    double wait_s;                 // seconds until the host reads a number that the device computed
    double up, down;               // bytes/s from and to pinned host memory
    double link;                   // bytes/s between two of them; 0: unknown
    double link_s; // seconds of the smallest collective, with the wait for the queue
};

// Rates of one machine with all its processors, as `nebula plan` measures them. All are above 0
// unless a comment says otherwise.
struct intra_rates {
    int32_t processors;
    double gemm[INTRA_COST_SIDES]; // FLOP/s
    // FLOP/s with bf16 operands, including their conversion; 0: these processors have no bf16.
    double gemm_bf16[INTRA_COST_SIDES];
    double to_bf16; // parameters/s converted, once a step; 0 likewise
    // FLOP/s, see intra_cost_attn_flops.
    double attn_fwd[INTRA_COST_HEADS], attn_bwd[INTRA_COST_HEADS];
    double attn_fwd_bf16[INTRA_COST_HEADS], attn_bwd_bf16[INTRA_COST_HEADS]; // 0 likewise
    double rows; // bytes/s that row operations read and write
    // logits/s without their products: softmax and its gradient; the same with soft labels;
    // sampling a token; making labels.
    double logits, soft, draws, labels;
    double update; // parameters/s of norm, AdamW and zeroing
    double op_s;   // seconds to hand one operation to the threads
    double link;   // bytes/s between two ranks; 0: unknown, so several ranks cannot be judged
    double link_s; // seconds of the smallest collective
    double memory; // bytes of the machine
    struct intra_device_rates device;
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
    bool frozen; // does not train: no gradients, no moments, and all blocks share memory
    // Takes part in exchanges: θ, v, u and θ_m at the send, spread over the ranks (shards.h).
    bool outer;
    bool outer_single;    // but rank 0 holds all of it
    int32_t fragments;    // of the exchange; 0 means 1
    int32_t members;      // clusters whose updates are merged; 0 means 2
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

// Elements of the whole model; of those that are trainable; of one block, all and trainable; of the
// embedding.
struct intra_cost_params {
    int64_t all, trainable, block, block_trainable, embedding;
};
struct intra_cost_params intra_cost_count(const struct intra_model_config *m,
                                          const struct intra_trainable *t);

// FLOPs of attention over n tokens in sequences of T, forward; backward takes 2.5 times that. A
// block of 64 keys that the causal mask cuts counts in full, because it is computed in full.
double intra_cost_attn_flops(double n, int32_t T, int32_t heads, int32_t head_dim,
                             enum kern_mask mask);
// FLOP/s of a product with this smallest side, interpolated between measured sides.
double intra_cost_gemm_rate(const struct intra_rates *r, enum kern_type t, double side);

// True if the mesh divides the model. Like intra_mesh_check, but without a log, for searches.
bool intra_cost_mesh_fits(const struct intra_mesh_config *mesh, const struct intra_model_config *m);
// All times are INFINITY if there are several ranks and the link's rate is 0 (rates->link, or that
// of the devices), or if a host has more ranks than devices.
void intra_cost_step(const struct intra_cost_job *j, const struct intra_rates *r,
                     struct intra_cost *out);
// Only the memory, which needs no rates. The exchange's state is left out: j->outer is ignored.
void intra_cost_memory(const struct intra_cost_job *j, struct intra_cost *out);

// A side of a stream (modes rtd and distill), which is one rank. Some positions reach the output
// layer. Some have their logits computed once more, to sample tokens or to make labels; a device
// does that in fp32, at the rate of the loss in fp32.
enum intra_cost_head {
    INTRA_COST_HEAD_NONE,  // a frozen teacher: only hidden states
    INTRA_COST_HEAD_LOSS,  // cross-entropy
    INTRA_COST_HEAD_SOFT,  // with soft labels of a teacher
    INTRA_COST_HEAD_SCORE, // one number a position: a discriminator
};
struct intra_cost_side {
    double tokens;  // in a micro-batch, with padding
    double length;  // mean length of its sequences
    double targets; // tokens with a loss
    enum intra_cost_head head;
    bool learns;            // backward and an update follow
    double drawn, labelled; // positions where tokens are sampled; positions where labels are made
    int32_t soft_k; // room on a device for each position: 1 for a draw, k for labels; 0: none
};
// Costs of a step of j->micros such micro-batches. In *j: a mesh of one rank; batch x seq_len is
// the size that memory is allocated for; frozen is ignored, since side->learns replaces it.
void intra_cost_side_step(const struct intra_cost_job *j, const struct intra_cost_side *side,
                          const struct intra_rates *r, struct intra_cost *out);

// Only the memory, as intra_cost_memory. Of *side it reads head, learns, soft_k and whether
// labelled is above 0.
void intra_cost_side_memory(const struct intra_cost_job *j, const struct intra_cost_side *side,
                            struct intra_cost *out);

// Finds the fastest mesh, micro-batch and recomputation for `ranks` ranks that fit into memory.
// sequences: of a step (batch x accumulate); it does not change. In *j: everything but mesh, batch,
// micros and recompute. fix_*: keeps the value in *j.
struct intra_cost_choice {
    int32_t ranks;
    int32_t sequences;
    bool fix_mesh, fix_batch, fix_recompute;
    double memory;        // bytes of the machine that may be used
    double device_memory; // of one device, if j->device
};
// false: nothing fits; *j and *out are then the nearest choice.
bool intra_cost_choose(const struct intra_cost_choice *c, const struct intra_rates *r,
                       struct intra_cost_job *j, struct intra_cost *out);

#endif
