// SPDX-License-Identifier: Apache-2.0
// A frozen teacher on a mesh: processor time of all ranks for a label, k of each position.
//
//     mesh_labels DP PP TP [key=value ...]
//
//     width=256 layers=6 vocab=8192 seq=96 batch=24   the teacher and its batches
//     k=16 steps=8                                    steps of two batches
//
// Prints microseconds of processor time for a label, and labels/s by the clock. tests/parallel/
// labels runs it on one rank and on meshes in turn.
#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "intra/train/group.h"
#include "tests/parallel/mesh_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MICROS = 2 };

struct options {
    struct intra_mesh_config mesh;
    int width, layers, vocab, seq, batch, k, steps;
};

static double cpu_seconds(void) {
    struct timespec t;
    NEB_ASSERT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Sums over the ranks; with one rank it does nothing.
static enum neb_status sum(struct intra_group *g, double *x) {
    struct intra_comm *world = intra_group_world(g);
    return world ? world->ops->all_reduce(world, x, 1, INTRA_COMM_F64, INTRA_COMM_SUM) : NEB_OK;
}
static enum neb_status called(void *user, struct intra_group *g, int32_t n) {
    double x = cpu_seconds();
    (void)user, (void)n;
    return sum(g, &x);
}
static void end(void *user) { (void)user; }
static enum neb_status total(struct intra_group *g, double *x) {
    NEB_TRY(intra_group_call(g, 0));
    *x = cpu_seconds();
    return sum(g, x);
}

struct labels {
    int32_t *tokens, *at, *ids;
    float *logp, *tail;
};

static enum neb_status step(const struct options *o, struct intra_group *g, struct labels *x,
                            struct neb_rng *r) {
    size_t n = (size_t)o->batch * (size_t)o->seq;
    double loss;
    int64_t count;
    for (size_t m = 0; m < MICROS; m++) {
        size_t to = m * n, k = (size_t)o->k;
        for (size_t i = 0; i < n; i++) {
            x->tokens[to + i] = (int32_t)neb_rng_below(r, (uint64_t)o->vocab);
            x->at[to + i] = (int32_t)i;
        }
        intra_group_pass(
            g, &(struct intra_batch){.tokens = x->tokens + to, .B = o->batch, .T = o->seq},
            &(struct intra_picks){.kind = INTRA_PICK_LABELS,
                                  .n = (int32_t)n,
                                  .at = x->at + to,
                                  .k = o->k,
                                  .temperature = 2,
                                  .ids = x->ids + to * k,
                                  .logp = x->logp + to * k,
                                  .tail = x->tail + to});
    }
    return intra_group_passed(g, &loss, &count);
}

static enum neb_status measure(const struct options *o, struct intra_group *g) {
    size_t n = MICROS * (size_t)o->batch * (size_t)o->seq, k = (size_t)o->k;
    struct neb_rng r = neb_rng_make(1, 1);
    struct labels x = {.tokens = calloc((2 + 2 * k + 1) * n, 4)};
    double before, after;
    neb_ns from = 0;
    if (!x.tokens)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for labels");
    x.at = x.tokens + n;
    x.ids = x.at + n;
    x.logp = (float *)(void *)(x.ids + n * k);
    x.tail = x.logp + n * k;
    enum neb_status st = step(o, g, &x, &r); // warms up
    if (st == NEB_OK)
        st = total(g, &before);
    from = neb_now();
    for (int i = 0; i < o->steps && st == NEB_OK; i++)
        st = step(o, g, &x, &r);
    double wall = neb_seconds(neb_now() - from), labels = (double)n * o->steps;
    if (st == NEB_OK)
        st = total(g, &after);
    if (st == NEB_OK)
        printf("%.3f %.1f\n", 1e6 * (after - before) / labels, labels / wall);
    free(x.tokens);
    return st;
}

static enum neb_status lead(const struct options *o, struct intra_comm *world, struct kern *K) {
    struct intra_trainer_config c = {.model = mesh_model(o->width, true, false),
                                     .trainable = {.mode = INTRA_TRAIN_FULL},
                                     .batch = o->batch,
                                     .seq_len = o->seq,
                                     .accumulate = MICROS,
                                     .varied = true,
                                     .frozen = true,
                                     .soft_k = o->k};
    struct intra_group *g = NULL;
    c.model.vocab = o->vocab;
    c.model.n_layers = o->layers;
    c.model.max_seq = o->seq;
    NEB_TRY(intra_group_create(&c, &o->mesh, world, K, &g));
    enum neb_status st = intra_group_pull(g, NULL);
    struct intra_model *m = intra_group_model(g);
    for (int32_t i = 0; i < m->n_tensors && st == NEB_OK; i++)
        intra_model_draw(m, &m->tensors[i], 1, intra_param(m, &m->tensors[i]));
    if (st == NEB_OK)
        st = intra_group_push(g, NULL);
    if (st == NEB_OK)
        st = measure(o, g);
    intra_group_destroy(&g);
    return st;
}

static enum neb_status run(const void *options, struct intra_comm *world, struct kern *K,
                           struct kern *D) {
    const struct intra_group_follower follower = {called, end, NULL};
    (void)D;
    return world && world->rank > 0 ? intra_group_serve(world, K, &follower)
                                    : lead(options, world, K);
}

int main(int argc, char **argv) {
    struct options o = {
        .width = 256, .layers = 6, .vocab = 8192, .seq = 96, .batch = 24, .k = 16, .steps = 8};
    const struct mesh_option list[] = {
        {.key = "width", .number = &o.width}, {.key = "layers", .number = &o.layers},
        {.key = "vocab", .number = &o.vocab}, {.key = "seq", .number = &o.seq},
        {.key = "batch", .number = &o.batch}, {.key = "k", .number = &o.k},
        {.key = "steps", .number = &o.steps}};
    return mesh_options(argc, argv, &o.mesh, list, sizeof list / sizeof *list)
               ? mesh_main(&o.mesh, NULL, true, run, &o)
               : 2;
}
