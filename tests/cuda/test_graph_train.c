// SPDX-License-Identifier: Apache-2.0
// Training with parts of a step as graphs (intra/model/graph.c) on the emulated device: the same
// bits as without graphs. The cases: every trainable set, fp32 and bf16, recomputation, several
// micro-batches, ignored targets, and evaluations in between. A scalar that a graph keeps from an
// old batch is detected. What cannot be recorded runs plainly, with one log line. EMU_LATE=1: the
// same with a queue that runs late.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "tests/cuda/train_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int emu_graph_fails, emu_graph_launches;

enum { B = 2, T = 10, V = 53, STEPS = 4, MICROS = 2, WINDOWS = 2 * B + 1 };

static struct intra_trainer_config config(void) {
    struct intra_trainer_config c = small_config(V, B, T, MICROS);
    c.device = D;
    return c;
}

// Batches with few and with many different tokens touch different numbers of embedding rows.
static void draw(struct neb_rng *r, int32_t *x, int32_t *y) {
    int32_t most = 2 + (int32_t)neb_rng_below(r, V - 2);
    for (int i = 0; i < B * T; i++) {
        x[i] = (int32_t)neb_rng_below(r, (uint64_t)most);
        y[i] = neb_rng_below(r, 5) ? (x[i] * 5 + 1) % V : KERN_IGNORE;
    }
}

struct outcome {
    struct intra_step_stats stats[STEPS];
    double eval[STEPS];
    float *params;
    size_t n;
    int ops, launches;
};

static int32_t kinds(const int32_t *x) { // number of different tokens
    bool seen[V] = {false};
    int32_t n = 0;
    for (int i = 0; i < B * T; i++) {
        n += !seen[x[i]];
        seen[x[i]] = true;
    }
    return n;
}
static int32_t kinds_now; // of the batch in the queue

static struct outcome train(struct intra_trainer_config c, enum intra_graphs graphs) {
    struct outcome out = {.ops = 0};
    struct intra_trainer *t = NULL;
    struct neb_rng r = neb_rng_make(5, 5);
    int32_t x[WINDOWS * T], y[WINDOWS * T], before = emu_graph_launches;
    c.device_graphs = graphs;
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
    for (int s = 0; s < STEPS; s++) {
        for (int a = 0; a < c.accumulate; a++) {
            draw(&r, x, y);
            kinds_now = kinds(x);
            t->weight = s % 2 ? 0.5f : 1; // changes the scale of the gradient
            intra_trainer_micro(t, x, y);
        }
        intra_trainer_update(t, &out.stats[s]);
        assert_int_equal(out.stats[s].status, NEB_OK);
        for (int i = 0; i < WINDOWS * T; i++) {
            x[i] = (i * 7 + s) % V;
            y[i] = (i * 3) % V;
        }
        out.eval[s] = intra_trainer_eval(t, x, y, WINDOWS); // the last batch is short
    }
    assert_int_equal(intra_trainer_pull(t, NULL), NEB_OK);
    out.n = t->model->n_params;
    out.params = malloc(out.n * sizeof *out.params);
    assert_non_null(out.params);
    memcpy(out.params, t->model->params, out.n * sizeof *out.params);
    out.ops = intra_device_graph_ops(t->device);
    out.launches = emu_graph_launches - before;
    intra_trainer_destroy(&t);
    return out;
}

static bool same(const struct outcome *a, const struct outcome *b) {
    return !memcmp(a->stats, b->stats, sizeof a->stats) &&
           !memcmp(a->eval, b->eval, sizeof a->eval) &&
           !memcmp(a->params, b->params, a->n * sizeof *a->params);
}

static void check(struct intra_trainer_config c) {
    struct outcome plain = train(c, INTRA_GRAPHS_OFF), with = train(c, INTRA_GRAPHS_ON);
    assert_int_equal(plain.launches, 0);
    assert_true(same(&plain, &with));
    assert_true(with.ops > 20);
    // all passes but the first of each kind: training, and evaluation of a full batch
    int muon = c.optim.kind == INTRA_OPTIM_MUON ? STEPS - 1 : 0;
    assert_int_equal(with.launches, STEPS * c.accumulate - 1 + STEPS * (WINDOWS / B) - 1 + muon);
    free(plain.params);
    free(with.params);
}

static void both_types(struct intra_trainer_config c) {
    for (int type = 0; type < 2; type++) {
        c.device_type = (enum kern_type)type;
        check(c);
    }
}

static void test_full(void **state) {
    (void)state;
    struct intra_trainer_config c = config();
    both_types(c);
    c.recompute = true;
    c.model.tied = c.model.qkv_bias = false;
    both_types(c);
    c.accumulate = 1;
    c.optim.clip = (struct intra_clip){
        .kind = INTRA_CLIP_ADAGC, .max_norm = 1, .ratio = 1.04f, .beta = 0.98f, .warmup = 2};
    both_types(c);
    c.optim.kind = INTRA_OPTIM_MUON;
    c.optim.momentum = 0.95f;
    both_types(c);
}

static void test_trainable_sets(void **state) {
    (void)state;
    struct intra_trainer_config c = config();
    c.trainable = (struct intra_trainable){.mode = INTRA_TRAIN_LORA,
                                           .lora_rank = 3,
                                           .lora_alpha = 6,
                                           .lora_targets = INTRA_LORA_Q | INTRA_LORA_V |
                                                           INTRA_LORA_O | INTRA_LORA_DOWN};
    both_types(c);
    c.recompute = true;
    check(c);
    c.trainable = (struct intra_trainable){.mode = INTRA_TRAIN_BITFIT};
    both_types(c);
    c.trainable = (struct intra_trainable){.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1};
    both_types(c);
    c.trainable = (struct intra_trainable){.mode = INTRA_TRAIN_FULL, .freeze_embeddings = true};
    both_types(c);
}

// ---- log lines ----

struct lines {
    int n, warnings;
    char last[1024];
};
static void keep(void *user, enum neb_log_level level, const char *text) {
    struct lines *l = user;
    if (!strstr(text, "cuda_graphs"))
        return;
    l->n++;
    l->warnings += level == NEB_LOG_WARN;
    snprintf(l->last, sizeof l->last, "%s", text);
}
static struct outcome train_heard(struct intra_trainer_config c, enum intra_graphs graphs,
                                  struct lines *l) {
    *l = (struct lines){0};
    neb_log_set_sink(keep, l);
    struct outcome o = train(c, graphs);
    neb_log_set_sink(NULL, NULL);
    return o;
}

// Plain and recorded passes are timed, the faster way is kept, and one log line has the result.
static void test_auto(void **state) {
    (void)state;
    struct intra_trainer_config c = config();
    c.accumulate = 2 * MICROS; // five passes of each kind, and some after them
    struct lines l;
    struct outcome plain = train(c, INTRA_GRAPHS_OFF), with = train_heard(c, INTRA_GRAPHS_AUTO, &l);
    assert_true(same(&plain, &with));
    assert_int_equal(l.n, 1);
    assert_int_equal(l.warnings, 0);
    assert_non_null(strstr(l.last, "ms launched one by one, "));
    assert_true(with.launches >= 5);
    assert_true(!with.ops == !!strstr(l.last, ": ops are launched one by one"));
    free(plain.params);
    free(with.params);
}

// The k-th call that makes a graph fails: training goes on with the same bits.
static void test_falls_back(void **state) {
    (void)state;
    struct intra_trainer_config c = config();
    struct lines l;
    struct outcome plain = train(c, INTRA_GRAPHS_OFF);
    // from the sixth call on, only the evaluation's graph fails: training is recorded by then
    for (int k = 1; k <= 10; k++) {
        emu_graph_fails = k;
        struct outcome with = train_heard(c, k % 2 ? INTRA_GRAPHS_ON : INTRA_GRAPHS_AUTO, &l);
        assert_true(emu_graph_fails == 0 || (k > 5 && k % 2 == 0));
        assert_true(same(&plain, &with));
        if (emu_graph_fails == 0) {
            assert_int_equal(with.ops, 0);
            assert_int_equal(l.warnings, 1);
            assert_non_null(strstr(l.last, "ops are launched one by one"));
        }
        emu_graph_fails = 0;
        free(with.params);
    }
    free(plain.params);
}

// ---- a faulty device ----

static const struct kern_ops *real;

// A planted bug: a pass gets the number of touched embedding rows by value, which a graph would
// keep.
static void embed_bwd_by_value(struct kern *d, float *dtable, const float *dout,
                               const struct kern_buckets *b, int n, int width) {
    (void)n;
    real->embed_bwd(d, dtable, dout, b, kinds_now, width);
}
static void rope_that_waits(struct kern *d, enum kern_type t, void *x, int ld, const float *cos_sin,
                            int n, int seq, int heads, int head_dim, bool inverse) {
    real->rope(d, t, x, ld, cos_sin, n, seq, heads, head_dim, inverse);
    real->mark(d, 15);
    real->wait(d, 15);
}

static void test_stale_is_noticed(void **state) {
    (void)state;
    struct intra_trainer_config c = config();
    struct kern_ops ops = *D->ops;
    real = D->ops;
    ops.embed_bwd = embed_bwd_by_value;
    struct outcome plain = train(c, INTRA_GRAPHS_OFF);
    D->ops = &ops;
    struct outcome by_value = train(c, INTRA_GRAPHS_OFF), stale = train(c, INTRA_GRAPHS_ON);
    D->ops = real;
    assert_true(same(&plain, &by_value)); // correct without a graph
    assert_false(same(&plain, &stale));
    free(plain.params);
    free(by_value.params);
    free(stale.params);
}

static void test_waiting_op(void **state) {
    (void)state;
    struct intra_trainer_config c = config();
    struct kern_ops ops = *D->ops;
    struct lines l;
    real = D->ops;
    ops.rope = rope_that_waits;
    struct outcome plain = train(c, INTRA_GRAPHS_OFF);
    D->ops = &ops;
    struct outcome with = train_heard(c, INTRA_GRAPHS_ON, &l);
    D->ops = real;
    assert_true(same(&plain, &with));
    assert_int_equal(with.launches, 0);
    assert_int_equal(l.n, 1);
    assert_non_null(strstr(l.last, "waiting for the device: not allowed while recording"));
    free(plain.params);
    free(with.params);
}

// Two models on one device take turns, each with its own graphs.
static void test_two(void **state) {
    (void)state;
    struct intra_trainer_config c = config();
    struct intra_trainer *t[4] = {NULL};
    struct intra_step_stats s[4];
    struct neb_rng r = neb_rng_make(6, 6);
    int32_t x[B * T], y[B * T];
    for (int i = 0; i < 4; i++) {
        c.device_graphs = i % 2 ? INTRA_GRAPHS_ON : INTRA_GRAPHS_OFF;
        c.seed = 3 + (uint64_t)i / 2;
        c.model.d_ff = i / 2 ? 400 : 40; // the second model needs more scratch
        assert_int_equal(intra_trainer_create(&c, K, &t[i]), NEB_OK);
    }
    for (int step = 0; step < 4; step++) {
        for (int a = 0; a < MICROS; a++) {
            draw(&r, x, y);
            for (int i = 0; i < 4; i++)
                intra_trainer_micro(t[i], x, y);
        }
        for (int i = 0; i < 4; i++)
            intra_trainer_update(t[i], &s[i]);
        assert_memory_equal(&s[0], &s[1], sizeof s[0]);
        assert_memory_equal(&s[2], &s[3], sizeof s[0]);
        assert_true(s[0].loss != s[2].loss);
    }
    for (int i = 0; i < 4; i++)
        intra_trainer_destroy(&t[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full),       cmocka_unit_test(test_trainable_sets),
        cmocka_unit_test(test_auto),       cmocka_unit_test(test_falls_back),
        cmocka_unit_test(test_waiting_op), cmocka_unit_test(test_stale_is_noticed),
        cmocka_unit_test(test_two),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
