// SPDX-License-Identifier: Apache-2.0
// The parts of gpu_check. tests/gpu/run calls gpu_check on a machine with a GPU. Each part prints
// Markdown on stdout and returns the number of failures.
#ifndef TESTS_GPU_H
#define TESTS_GPU_H
#include "agent/base/rng.h"
#include "intra/train/trainer.h"

// Marks of the queue that neither the trainer (intra/model/state.h) nor device_stage.c uses.
enum { GPU_FROM = 2, GPU_TO = 3 };

int gpu_train(struct kern *D);
int gpu_graphs(struct kern *D);
int gpu_epilogues(struct kern *D);
int gpu_heads(struct kern *D, int n, int V, int d); // rows, vocabulary, width
// head_dim 0: 128 and 64; B 0: 4 x 4,096 and 32 x 1,024. Opens its own device beside D.
int gpu_attn(struct kern *D, int head_dim, int B, int T);
int gpu_codec(struct kern *D, size_t n); // elements, a power of two, at least 4,096
// shape: "124m" or "350m"; batch 0: the usual batch of the shape. peak: FLOP/s of a large bf16
// product, measured here.
int gpu_speed(struct kern *D, const char *shape, int batch, int steps);
int gpu_modes(struct kern *D, bool small);
double gpu_peak(struct kern *D);
// A model and learnable batches for it.
struct intra_trainer_config gpu_config(int layers, int width, int heads, int ff, int vocab, int seq,
                                       int batch);
void gpu_draw(struct neb_rng *r, const struct intra_trainer_config *c, int32_t *x, int32_t *y);
// Batches with the token frequencies of a text: for timings.
void gpu_zipf(struct neb_rng *r, const struct intra_trainer_config *c, int32_t *x, int32_t *y);
// Opens the device in child processes, before this process has touched it.
int gpu_nccl(int ranks);

#endif
