// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of cost models: a small model, machines and devices with round numbers, and a
// comparison with a relative tolerance.
#ifndef COST_FIXTURE_H
#define COST_FIXTURE_H
#include "intra/cost/cost.h"
#include "intra/train/shards.h"
#include "intra/train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

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

// The elements that the fullest of `ranks` ranks owns. *largest: the elements of its largest unit;
// may be NULL.
static inline double fullest_owner(const struct intra_cost_job *j, int ranks, double *largest) {
    enum { UNITS = 256, RANKS = 16 };
    struct intra_model *m = NULL;
    struct intra_unit *units = NULL;
    int32_t n, fragment[UNITS] = {0}, owner[UNITS];
    uint64_t elements[UNITS], load[RANKS];
    double widest = 0;
    int most = 0;
    assert_in_range(ranks, 1, RANKS);
    assert_int_equal(intra_model_layout(&j->model, &j->trainable, &m), NEB_OK);
    assert_int_equal(intra_units(m, &units, &n), NEB_OK);
    assert_in_range(n, 1, UNITS);
    for (int32_t i = 0; i < n; i++)
        elements[i] = (uint64_t)units[i].rows * (uint64_t)units[i].cols;
    intra_shards_assign(elements, fragment, n, ranks, NULL, NULL, load, owner);
    for (int r = 0; r < ranks; r++)
        most = load[r] > load[most] ? r : most;
    for (int32_t i = 0; i < n; i++)
        widest = fmax(widest, owner[i] == most ? (double)elements[i] : 0);
    if (largest)
        *largest = widest;
    free(units);
    intra_model_destroy(&m);
    return (double)load[most];
}

static inline void near(double a, double b, double rel, const char *what) {
    if (!(fabs(a - b) <= rel * fabs(b)))
        fail_msg("%s: %g, not %g", what, a, b);
}

#endif
