// SPDX-License-Identifier: Apache-2.0
// What a training step costs on a mesh, before anything is started: FLOPs, seconds, bytes between ranks, memory. Pure: sizes
// and measured rates go in, figures come out. Used by `nebula plan` (agent/cli/cmd_plan.c); inter/round/wan_cost.h is its other half.
//
//     one rank's micro-batch of n = batch x seq_len tokens, stage of L/pp blocks, tp ranks sharing each block:
//
//     forward   4 products a block (qkv, o, gate-up, down) + attention + rows (norms, rotary, SwiGLU) + 2 gathers and 2 sums
//               of rows of (n, d) (seqpar.h)
//     backward  dW and dx of each, attention twice to three times, rows, 4 gathers and 2 sums; with recompute the forward again
//     stage     (micros + pp - 1) times the slowest stage's forward and backward, and the messages between stages
//     update    reduce-scatter and all-gather over dp, AdamW on 1/dp of the stage's parameters
//
// A product runs at the rate that was measured at its smallest side: thin products are slow, and that is what makes
// tensor parallelism of a small model a bad idea. Nothing is assumed to overlap: nothing does on the CPU.
//
// On accelerators, one a rank (cost_device.c): rates are in the job's type and go by how much there is to do at once as well, an
// operation takes at least its launch, and reducing gradients over replicas hides behind backward. Memory is as
// device_memory.c takes it.
//
// Exchanges between clusters (cost_exchange.c): what the busiest owner has to do, and what of their state is where.
//
// Sources: Narayanan et al. (SC 2021) for the pipeline's bubble, Korthikanti et al. (2022) for activations.
#ifndef INTRA_COST_H
#define INTRA_COST_H
#include "intra/model/model.h"
#include "kernels/device.h"

enum { INTRA_COST_SIDES = 6, INTRA_COST_HEADS = 4, INTRA_COST_TOKENS = 5 };
// 32 … 1024: smallest side of a measured product
extern const int32_t intra_cost_sides[INTRA_COST_SIDES];
extern const int32_t intra_cost_heads[INTRA_COST_HEADS]; // 16 … 128: head_dim of measured attention
// 64 … 16384: tokens at once, on devices
extern const int32_t intra_cost_tokens[INTRA_COST_TOKENS];

// What a device does with operands of one type. Where something at the larger sizes takes too long to be measured, it has the rate of
// the largest that was.
struct intra_type_rates {
    // FLOP/s of products of so many tokens, a side and twice that side
    double gemm[INTRA_COST_TOKENS][INTRA_COST_SIDES];
    // FLOP/s of heads that are 256 wide together
    double attn_fwd[INTRA_COST_TOKENS][INTRA_COST_HEADS],
        attn_bwd[INTRA_COST_TOKENS][INTRA_COST_HEADS];
    double rows;   // bytes/s of row operations, as if all of them were floats
    double logits; // logits/s of the loss and its gradient, beside their products
    double update; // parameters/s of norms and AdamW
};

// One of a machine's accelerators. count 0: there is none, or nothing is known of it, and nothing else is set.
struct intra_device_rates {
    int32_t count;                 // of the machine
    double memory;                 // bytes of one
    struct intra_type_rates of[2]; // by enum kern_type
    double op_s;                   // of the smallest operation among others
    double wait_s;                 // until the host has a number that the device made
    double up, down;               // bytes/s from and to pinned host memory
    double link;                   // bytes/s between two of them; 0: not known
    double link_s; // seconds of the smallest collective, waiting for the queue included
};

// What one machine does with all its processors, as nebula plan measures it. All rates are above 0.
struct intra_rates {
    int32_t processors;
    double gemm[INTRA_COST_SIDES]; // FLOP/s
    // with operands in bf16 and what their conversion takes; 0: these processors cannot
    double gemm_bf16[INTRA_COST_SIDES];
    double to_bf16; // parameters/s converted, once a step; 0 likewise
    // FLOP/s, see intra_cost_attn_flops
    double attn_fwd[INTRA_COST_HEADS], attn_bwd[INTRA_COST_HEADS];
    double attn_fwd_bf16[INTRA_COST_HEADS], attn_bwd_bf16[INTRA_COST_HEADS]; // 0 likewise
    double rows; // bytes/s read and written by row operations
    // logits/s beside their products: softmax and its gradient; the same with a teacher's labels; drawing a token; labelling
    double logits, soft, draws, labels;
    double update; // parameters/s of norm, AdamW and zeroing
    double op_s;   // seconds to hand one operation to the threads
    double link;   // bytes/s between two ranks; 0: not known, several ranks cannot be judged
    double link_s; // seconds of the smallest collective
    double memory; // bytes of the machine
    struct intra_device_rates device;
};

struct intra_cost_job {
    struct intra_model_config model; // vocab, head_dim and n_kv_heads set
    struct intra_trainable trainable;
    struct intra_mesh_config mesh;
    int32_t batch, seq_len;
    // of a step of the whole cluster; a replica gets an equal share of its sequences
    int32_t micros;
    bool recompute;
    bool frozen; // looks on: no gradients, no moments, and all blocks share memory
    // takes part in exchanges: θ, v, u and θ_m at the send, spread over the ranks (shards.h)
    bool outer;
    bool outer_single;    // but all of it on the first
    int32_t fragments;    // of the exchange, 0 is 1
    int32_t members;      // clusters whose updates are merged, 0 is 2
    bool copy;            // each rank keeps one of its part of a checkpoint (checkpoint_async.h)
    int32_t ranks_a_host; // that share the machine of the rates; at least 1
    // of the machine that this cluster gets, (0, 1]; of its devices, where it has them
    double share;
    bool device;         // on devices, one a rank, of the machine of the rates
    enum kern_type type; // there: of activations and products; on processors of products
    bool outer_device;   // the exchange's state is there too
};

struct intra_cost {
    double flops; // of a step and rank, matrix products and attention
    double compute_s, tp_s, pp_s, dp_s, update_s; // of a step; pp_s: bubble and messages
    double step_s;                                // their sum
    double tp_bytes, pp_bytes, dp_bytes;          // sent by a rank in a step
    // of the fullest stage's rank; params: with gradients
    double params_bytes, optim_bytes, acts_bytes;
    // a rank's share of the exchange's state, without frames; a copy of it where it is on devices
    double exchange_bytes;
    double frames_bytes; // what encoding and merging need besides, about
    double copy_bytes;   // on the host: of a rank's part of a checkpoint, while it is written
    double owner_bytes;  // what rank 0 holds besides: the exchange's state where it has all of it
    double rank_bytes, host_bytes; // a rank but for the latter; all ranks of rank 0's machine
    // On a device: params, optim and acts are in its memory; rank, owner and host bytes are of the host, which has copies of
    // parameters and moments.
    double outer_bytes;     // the exchange's state there
    double workspace_bytes; // what products and reductions want besides
    double device_bytes;    // all that a rank has on its device; 0: processors
    // Of an exchange: the rank that owns most of it (shards.h), in elements; its units, and the largest.
    double owner_params, owner_units, owner_largest;
    // Parameters to their owners, once when an update is made and once when one is merged; and back to all that train them.
    double gather_s, scatter_s;
};

// Elements of the whole model, and of those in matrix products; trainable ones of the blocks and final norm, and of
// embedding and output.
struct intra_cost_params {
    int64_t all, trainable, block, block_trainable, embedding;
};
struct intra_cost_params intra_cost_count(const struct intra_model_config *m,
                                          const struct intra_trainable *t);

// FLOPs of causal or full attention over n tokens in sequences of T: forward; backward is 2.5 times that. Blocks of 64
// keys that a causal mask cuts through count whole, as they are computed.
double intra_cost_attn_flops(double n, int32_t T, int32_t heads, int32_t head_dim,
                             enum kern_mask mask);
// FLOP/s of a product with this smallest side, between the measured ones.
double intra_cost_gemm_rate(const struct intra_rates *r, enum kern_type t, double side);

// Does the mesh divide the model? As intra_mesh_check, without a complaint: for searching.
bool intra_cost_mesh_fits(const struct intra_mesh_config *mesh, const struct intra_model_config *m);
// rates->link (of devices: theirs) 0 with several ranks, or more ranks a host than devices: every time is INFINITY.
void intra_cost_step(const struct intra_cost_job *j, const struct intra_rates *r,
                     struct intra_cost *out);
// Only the memory, which no rate is needed for; without the exchange's state: j->outer is not looked at.
void intra_cost_memory(const struct intra_cost_job *j, struct intra_cost *out);

// A side of a stream (modes rtd and distill), which is one rank: some positions meet the output layer, some
// have their logits formed once more, to draw tokens from them or to label them: on a device in fp32, at the rate of the loss in fp32.
enum intra_cost_head {
    INTRA_COST_HEAD_NONE,  // a frozen teacher: hidden states are enough
    INTRA_COST_HEAD_LOSS,  // cross-entropy
    INTRA_COST_HEAD_SOFT,  // with a teacher's labels
    INTRA_COST_HEAD_SCORE, // one number a position: a discriminator
};
struct intra_cost_side {
    double tokens;  // of a micro-batch, padding included
    double length;  // of its sequences
    double targets; // tokens with a loss
    enum intra_cost_head head;
    bool learns;            // backward and an update follow
    double drawn, labelled; // positions that tokens are drawn for, or labels are made of
    int32_t soft_k; // tokens that a position has room for on a device: a draw, a label's; 0: none
};
// Of a step of j->micros such micro-batches. In *j: mesh of one rank; batch x seq_len is what memory is made for; frozen is not looked at, as
// side->learns says it.
void intra_cost_side_step(const struct intra_cost_job *j, const struct intra_cost_side *side,
                          const struct intra_rates *r, struct intra_cost *out);

// Only the memory, as intra_cost_memory. Of *side: head, learns, whether it labels, soft_k.
void intra_cost_side_memory(const struct intra_cost_job *j, const struct intra_cost_side *side,
                            struct intra_cost *out);

// The fastest mesh, micro-batch and recomputation for `ranks` ranks that fit into memory. sequences: of a step (batch x
// accumulate), which stays as it is. In *j: everything but mesh, batch, micros and recompute. fix_*: keep what *j says.
struct intra_cost_choice {
    int32_t ranks;
    int32_t sequences;
    bool fix_mesh, fix_batch, fix_recompute;
    double memory;        // of the machine that may be used, bytes
    double device_memory; // of a device, where j->device
};
// false: nothing fits; *j and *out are then what comes nearest.
bool intra_cost_choose(const struct intra_cost_choice *c, const struct intra_rates *r,
                       struct intra_cost_job *j, struct intra_cost *out);

#endif
