// SPDX-License-Identifier: Apache-2.0
// `nebula bench train`: training steps (forward, backward, clipping, AdamW or Muon) on random
// tokens with the CPU backend, beside the machine's sgemm peak, measured between the steps of the
// same call.
//
// What is counted: N parameters in matrix products (blocks and output layer; no embedding look-ups,
// no gains), T tokens of a sequence, H heads of D, L layers. A token costs
//
//     6 N                        2 per multiply-add, one product forward and two backward
//   + 6 (T + 1) H D L            attention: (T + 1) / 2 visible keys per query, 4 H D each forward
//                                (scores and values), twice that backward
//
// The rest of a step (norms, rotary, SwiGLU, softmax, scores computed again in backward, recomputed
// blocks, the optimiser) takes time but counts as nothing. So the ratio to sgemm shows how well the
// step uses the machine.
#ifndef AGENT_BENCH_TRAIN_H
#define AGENT_BENCH_TRAIN_H
#include "intra/train/trainer.h"

struct bench_train_shape {
    int32_t n_layers;
    int32_t d_model; // a multiple of 32; heads are 64 wide (32 below width 128)
    int32_t seq_len;
    int32_t batch; // sequences of a step; 0: about 2,048 tokens
    int32_t vocab; // 0: 4,096
    int32_t steps; // measured steps, after one warm-up step; 0: 10
    bool recompute;
    bool muon; // optimiser (intra/model/optim.h); else AdamW
    bool bf16; // also steps with products in bf16
};
// "default" (8 x 256, sequence 256), "small" (4 x 128, sequence 128), or LAYERSxWIDTHxSEQUENCE
// ("12x512x256"). NEB_ERR_INVALID: anything else.
NEB_MUST_CHECK enum neb_status bench_train_shape_parse(const char *text,
                                                       struct bench_train_shape *out);

// FLOP of one token of a training step, counted as above.
double bench_train_token_flops(const struct intra_model *m, int32_t seq_len);

struct intra_trainer_config bench_train_config(const struct bench_train_shape *s);

// `nebula bench decode`: tokens/s of greedy decoding (intra/train/decode.h) on the CPU, of one
// sequence and of 16 at once. Half of a sequence is the prompt, whose pass does not count. The
// limit: the parameters are read once for each token of all sequences, as fast as they can be
// summed, and multiplied as fast as sgemm. Further fields: tokens_per_cpu_s; cpu_ratio (value /
// limit, both by processor time); uncached_tokens_per_s (all positions computed again for each
// token); of_uncached (what the cache gains in processor time); params; threads. NEB_ERR_INVALID: a
// sequence is too short.
NEB_MUST_CHECK enum neb_status bench_decode(int n_threads, bool json,
                                            const struct bench_train_shape *shape);

// Prints one line: GFLOP/s of the median step; limit: the fastest sgemm. Further fields:
// tokens_per_s; tokens_per_cpu_s (per second of processor time of all threads, for busy machines);
// cpu_ratio (value / limit, both by processor time); step_ms; best_step_ms; update_share (of
// clipping and optimiser); muon_share (of Muon's iterations; 0 with AdamW); params; threads; loss
// (the last). With bf16 also a line of steps in bf16, which take turns with those in fp32: its
// limit is the fastest bf16 product, and of_fp32 its speed over that of fp32 (median of pairs,
// processor time). n_threads as in kern_pool_create.
NEB_MUST_CHECK enum neb_status bench_train(int n_threads, bool json,
                                           const struct bench_train_shape *shape);

#endif
