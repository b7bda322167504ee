// SPDX-License-Identifier: Apache-2.0
#include "agent/bench/mesh.h"
#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "agent/bench/bench.h"
#include "intra/train/group.h"

#include <math.h>
#include <stdlib.h>

enum { SLICES = 40, SLICES_MAX = 10000, WARM = 2 };
#define ALLOWED      1.0   // per cent
#define MEDIAN_ERROR 0.929 // times quartile distance / sqrt(n): standard error of a normal median

struct side {
    struct intra_comm *world; // NULL: bare
    struct intra_group *group;
    double loss;
};

struct bench {
    struct kern *K;
    struct side bare, mesh;
    int32_t *tokens, *targets;
    double *ratios, *walls; // (slices) mesh / bare: processor time, clock
    double *seconds;        // (slices) processor time, bare
};

static void destroy(struct bench *b) {
    intra_group_destroy(&b->bare.group);
    intra_group_destroy(&b->mesh.group);
    intra_comm_destroy(&b->mesh.world);
    kern_destroy(&b->K);
    free(b->tokens);
    free(b->targets);
    free(b->ratios);
    free(b->walls);
    free(b->seconds);
}

static enum neb_status create(struct bench *b, int n_threads, const struct bench_train_shape *shape,
                              int slices) {
    struct intra_trainer_config c = bench_train_config(shape);
    const struct intra_mesh_config one = {1, 1, 1};
    size_t tokens = (size_t)c.batch * (size_t)c.seq_len;
    NEB_TRY(kern_cpu_create(n_threads, &b->K));
    NEB_TRY(intra_comm_self(&b->mesh.world));
    NEB_TRY(intra_group_create(&c, &one, NULL, b->K, &b->bare.group));
    NEB_TRY(intra_group_create(&c, &one, b->mesh.world, b->K, &b->mesh.group));
    b->tokens = calloc(tokens, sizeof *b->tokens);
    b->targets = calloc(tokens, sizeof *b->targets);
    b->ratios = calloc((size_t)slices, sizeof *b->ratios);
    b->walls = calloc((size_t)slices, sizeof *b->walls);
    b->seconds = calloc((size_t)slices, sizeof *b->seconds);
    return b->tokens && b->targets && b->ratios && b->walls && b->seconds
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "bench train: out of memory for a batch");
}

static enum neb_status step(struct bench *b, struct side *s, double *seconds, double *wall) {
    struct intra_step_stats stats;
    double cpu = bench_cpu_seconds();
    neb_ns from = neb_now();
    intra_group_micro(s->group, b->tokens, b->targets);
    NEB_TRY(intra_group_update(s->group, &stats));
    *wall = neb_seconds(neb_now() - from);
    *seconds = bench_cpu_seconds() - cpu;
    s->loss = stats.loss;
    return NEB_OK;
}

// Runs one step of each side. The order alternates, because the second one finds warm caches.
static enum neb_status slice(struct bench *b, int i, size_t n, uint64_t vocab) {
    struct neb_rng r = neb_rng_make(3, (uint64_t)i);
    double seconds[2], wall[2];
    for (size_t k = 0; k < n; k++) {
        b->tokens[k] = (int32_t)neb_rng_below(&r, vocab);
        b->targets[k] = (int32_t)neb_rng_below(&r, vocab);
    }
    for (int turn = 0; turn < 2; turn++) {
        int who = (i + turn) % 2;
        NEB_TRY(step(b, who ? &b->mesh : &b->bare, &seconds[who], &wall[who]));
    }
    if (b->bare.loss != b->mesh.loss)
        return neb_fail(NEB_ERR_STATE,
                        "bench train: step %d: loss %.9g with a mesh of one rank, %.9g without", i,
                        b->mesh.loss, b->bare.loss);
    if (i < WARM)
        return NEB_OK;
    b->ratios[i - WARM] = seconds[1] / seconds[0];
    b->walls[i - WARM] = wall[1] / wall[0];
    b->seconds[i - WARM] = seconds[0];
    return NEB_OK;
}

enum neb_status bench_mesh_measure(int n_threads, const struct bench_train_shape *shape, int slices,
                                   struct bench_mesh_result *out) {
    struct bench b = {0};
    enum neb_status st = create(&b, n_threads, shape, slices);
    for (int i = 0; i < slices + WARM && st == NEB_OK; i++) {
        const struct intra_trainer_config *c = &intra_group_trainer(b.bare.group)->c;
        st = slice(&b, i, (size_t)c->batch * (size_t)c->seq_len, (uint64_t)c->model.vocab);
    }
    if (st == NEB_OK) {
        size_t n = (size_t)slices;
        bench_sort(b.ratios, n);
        bench_sort(b.walls, n);
        bench_sort(b.seconds, n);
        double low = b.ratios[n / 4] - 1, high = b.ratios[n - 1 - n / 4] - 1;
        *out = (struct bench_mesh_result){.overhead = b.ratios[n / 2] - 1,
                                          .low = low,
                                          .high = high,
                                          .error = MEDIAN_ERROR * (high - low) / sqrt((double)n),
                                          .wall = b.walls[n / 2] - 1,
                                          .step_s = b.seconds[n / 2]};
    }
    destroy(&b);
    return st;
}

enum neb_status bench_mesh(int n_threads, bool json, const struct bench_train_shape *shape) {
    struct bench_mesh_result r;
    char what[64];
    int slices = shape->steps ? shape->steps : SLICES;
    if (slices < 1 || slices > SLICES_MAX)
        return neb_fail(NEB_ERR_INVALID, "bench train: %d steps: expected 1 to %d", slices,
                        SLICES_MAX);
    NEB_TRY(bench_mesh_measure(n_threads, shape, slices, &r));
    const struct bench_field more[] = {
        {"error", 100 * r.error},        {"clock", 100 * r.wall},
        {"low_quartile", 100 * r.low},   {"high_quartile", 100 * r.high},
        {"step_cpu_ms", 1e3 * r.step_s}, {"pairs", slices}};
    snprintf(what, sizeof what, "%dx%d seq %d, mesh of one rank", shape->n_layers, shape->d_model,
             shape->seq_len);
    bench_line_with(json, "train", what, 100 * r.overhead, "%", ALLOWED, "allowed", more,
                    sizeof more / sizeof *more);
    return NEB_OK;
}
