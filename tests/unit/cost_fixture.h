// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of cost models: a small model, machines and devices with round numbers, and a
// comparison with a relative tolerance.
#ifndef COST_FIXTURE_H
#define COST_FIXTURE_H
#include "intra/cost/cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

static const struct intra_model_config model = {.vocab = 512,
                                                .d_model = 64,
                                                .n_layers = 4,
                                                .n_heads = 8,
                                                .n_kv_heads = 4,
                                                .head_dim = 8,
                                                .d_ff = 160,
                                                .max_seq = 32,
                                                .rope_theta = 100,
                                                .norm_eps = 1e-5f,
                                                .tied = true};

// The step rate is the same for every size, and threads do not wait. Updates are almost free.
static inline struct intra_rates even_host(double products) {
    struct intra_rates r = {
        .processors = 8, .update = 1e12, .link = 1e9, .link_s = 1e-6, .memory = 1e9};
    for (int i = 0; i < INTRA_COST_WIDTHS; i++) {
        r.step[KERN_F32][i] = products;
        r.one[KERN_F32][i] = products / r.processors;
    }
    return r;
}

// Eight devices with the rates of even_host; bf16 is four times as fast.
static inline struct intra_device_rates even_device(double products) {
    struct intra_device_rates r = {.count = 8,
                                   .memory = 1e9,
                                   .wait_s = 1e-15,
                                   .up = 1e12,
                                   .down = 1e12,
                                   .link = 1e9,
                                   .link_s = 1e-9};
    for (int t = 0; t < 2; t++) {
        r.update[t] = 1e15;
        for (int i = 0; i < INTRA_COST_STEPS; i++)
            r.step[t][i] = t ? 4 * products : products;
    }
    return r;
}

static inline struct intra_cost_job mesh_job(int dp, int pp, int tp, int batch, int micros) {
    return (struct intra_cost_job){.model = model,
                                   .trainable = {.mode = INTRA_TRAIN_FULL},
                                   .mesh = {dp, pp, tp},
                                   .batch = batch,
                                   .seq_len = 32,
                                   .micros = micros,
                                   .ranks_a_host = dp * pp * tp,
                                   .share = 1};
}

static inline void near(double a, double b, double rel, const char *what) {
    if (!(fabs(a - b) <= rel * fabs(b)))
        fail_msg("%s: %g, not %g", what, a, b);
}

#endif
