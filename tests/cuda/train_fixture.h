// SPDX-License-Identifier: Apache-2.0
// Shared by the tests that train on the emulated device: the device, the CPU kernels, and a small
// model.
#ifndef TRAIN_FIXTURE_H
#define TRAIN_FIXTURE_H
#include "intra/train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

kern_device_opener kern_cuda_open;

static struct kern *D;
static struct kern *K;

static inline int open_all(void **state) {
    char text[256];
    (void)state;
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION, 0, &D, text, sizeof text), NEB_OK);
    assert_int_equal(kern_cpu_create(1, &K), NEB_OK);
    return 0;
}
static inline int close_all(void **state) {
    (void)state;
    kern_destroy(&D);
    kern_destroy(&K);
    return 0;
}

// A configuration without a device: two layers, tied, with biases, all parameters trained.
static inline struct intra_trainer_config small_config(int vocab, int batch, int seq, int micros) {
    return (struct intra_trainer_config){
        .model = {.vocab = vocab,
                  .d_model = 32,
                  .n_layers = 2,
                  .n_heads = 2,
                  .n_kv_heads = 1,
                  .head_dim = 16,
                  .d_ff = 40,
                  .max_seq = seq,
                  .rope_theta = 10000,
                  .norm_eps = 1e-5f,
                  // some frequencies kept, some divided
                  .rope_scaling = {KERN_ROPE_LLAMA3, 4, 1, 4, 40},
                  .tied = true,
                  .qkv_bias = true,
                  .mask = KERN_MASK_CAUSAL},
        .trainable = {.mode = INTRA_TRAIN_FULL},
        .optim = {.schedule = {.kind = INTRA_SCHEDULE_CONSTANT, .lr = 3e-3f, .warmup = 2},
                  .clip = {.kind = INTRA_CLIP_GLOBAL_NORM, .max_norm = 0.5f},
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .weight_decay = 0.1f},
        .batch = batch,
        .seq_len = seq,
        .accumulate = micros,
        .seed = 3};
}

#endif
