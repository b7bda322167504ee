// SPDX-License-Identifier: Apache-2.0
// Ten training steps of four tiny models against figures of an independent definition
// (make_golden.py: float64, automatic derivatives), step by step: loss, gradient norm, and the
// parameters at the end, on the reference backend and on the fast one. With NEBULA_WRITE_CORPUS set
// it also writes the corpus of tests/fuzz/fuzz_checkpoint.c. This is needed after a change of the
// format.
#include "agent/base/rng.h"
#include "intra/train/trainer.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 29, T = 12, B = 2, N = B * T, STEPS = 10 };

static const struct golden {
    double step[STEPS][2]; // loss, gradient norm
    double check;
} goldens[] = {
#include "tests/golden/model_golden.inc"
};

static const struct golden_case {
    struct intra_trainable trainable;
    int32_t kv_heads;
    bool tied, bias;
    enum kern_mask mask;
    enum intra_schedule_kind schedule;
    enum intra_clip_kind clip;
    int32_t micros;
    bool ignore; // only some positions have targets
} cases[] = {
    // the same names and values as in make_golden.py
    {{.mode = INTRA_TRAIN_FULL},
     2,
     true,
     false,
     KERN_MASK_CAUSAL,
     INTRA_SCHEDULE_COSINE,
     INTRA_CLIP_GLOBAL_NORM,
     1,
     false},
    {{.mode = INTRA_TRAIN_FULL},
     2,
     false,
     true,
     KERN_MASK_CAUSAL,
     INTRA_SCHEDULE_WSD,
     INTRA_CLIP_ADAGC,
     2,
     true},
    {{.mode = INTRA_TRAIN_LORA,
      .lora_rank = 3,
      .lora_alpha = 6,
      .lora_targets = INTRA_LORA_Q | INTRA_LORA_V | INTRA_LORA_GATE | INTRA_LORA_DOWN},
     4,
     true,
     true,
     KERN_MASK_CAUSAL,
     INTRA_SCHEDULE_CONSTANT,
     INTRA_CLIP_NONE,
     1,
     false},
    {{.mode = INTRA_TRAIN_BITFIT},
     1,
     false,
     true,
     KERN_MASK_BIDIRECTIONAL,
     INTRA_SCHEDULE_COSINE,
     INTRA_CLIP_GLOBAL_NORM,
     1,
     true},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };
_Static_assert(sizeof goldens / sizeof goldens[0] == N_CASES,
               "a case without figures, or figures without a case");

static double checksum(const struct intra_model *m) {
    double sum = 0;
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (size_t k = 0; k < intra_tensor_size(&m->tensors[i]); k++)
            sum += (double)intra_param(m, &m->tensors[i])[k] *
                   testing_unit("check ", m->tensors[i].name, k);
    return sum;
}

static uint64_t draw(int index, int step, int micro, int purpose, int i) {
    return neb_mix64(
        (uint64_t)((((index * 100 + step) * 10 + micro) * 10 + purpose) * 1000 + i + 1));
}

static struct intra_step_stats step(struct intra_trainer *t, int index, int s) {
    struct intra_step_stats stats;
    for (int micro = 0; micro < cases[index].micros; micro++) {
        int32_t x[N], y[N];
        for (int i = 0; i < N; i++) {
            x[i] = (int32_t)(draw(index, s, micro, 0, i) % V);
            y[i] = (int32_t)((3 * (uint64_t)x[i] + draw(index, s, micro, 1, i) % 3) % V);
            if (cases[index].ignore && draw(index, s, micro, 2, i) % 5 == 0)
                y[i] = KERN_IGNORE;
        }
        intra_trainer_micro(t, x, y);
    }
    intra_trainer_update(t, &stats);
    return stats;
}

static struct intra_trainer *make(struct kern *K, const struct golden_case *c, bool recompute) {
    struct intra_trainer *t = NULL;
    struct intra_trainer_config config = {
        .model = {.vocab = V,
                  .d_model = 16,
                  .n_layers = 2,
                  .n_heads = 4,
                  .n_kv_heads = c->kv_heads,
                  .head_dim = 6,
                  .d_ff = 20,
                  .max_seq = T,
                  .rope_theta = 100,
                  .norm_eps = 1e-5f,
                  .tied = c->tied,
                  .qkv_bias = c->bias,
                  .mask = c->mask},
        .trainable = c->trainable,
        .batch = B,
        .seq_len = T,
        .accumulate = c->micros,
        .recompute = recompute,
        .optim = {
            .schedule = {c->schedule, 0.02f, 0.1f, 0.4f, 3, STEPS},
            .clip = {.kind = c->clip, .max_norm = 0.5f, .ratio = 1.04f, .beta = 0.99f, .warmup = 3},
            .beta1 = 0.9f,
            .beta2 = 0.95f,
            .eps = 1e-8f,
            .weight_decay = 0.1f}};
    assert_int_equal(intra_trainer_create(&config, K, &t), NEB_OK);
    testing_set_params(t->model);
    return t;
}

static void check_case(struct kern *K, int index, bool recompute) {
    const struct golden *g = &goldens[index];
    struct intra_trainer *t = make(K, &cases[index], recompute);
    for (int s = 0; s < STEPS; s++) {
        struct intra_step_stats stats = step(t, index, s);
        if (!(fabs(stats.loss - g->step[s][0]) < 2e-5) ||
            !(fabs(stats.update.grad_norm / g->step[s][1] - 1) < 2e-4))
            fail_msg("%s, case %d, step %d: loss %.9f, gradient norm %.9f; expected %.9f, %.9f",
                     K->ops->name, index, s, stats.loss, stats.update.grad_norm, g->step[s][0],
                     g->step[s][1]);
    }
    double check = checksum(t->model);
    if (!(fabs(check - g->check) < 1e-3))
        fail_msg("%s, case %d: checksum of the parameters %.7f, expected %.7f", K->ops->name, index,
                 check, g->check);
    intra_trainer_destroy(&t);
}

static void test_reference(void **state) {
    (void)state;
    struct kern *K = NULL;
    assert_int_equal(kern_ref_create(&K), NEB_OK);
    for (int i = 0; i < N_CASES; i++)
        check_case(K, i, i % 2);
    kern_destroy(&K);
}

static void test_fast(void **state) {
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        struct kern *K = NULL;
        assert_int_equal(kern_cpu_create(threads, &K), NEB_OK);
        for (int i = 0; i < N_CASES; i++)
            check_case(K, i, threads == 2);
        kern_destroy(&K);
    }
}

// ---- the fuzz corpus ----

static const struct {
    const char *file;
    struct intra_trainable trainable;
    bool whole; // with the trainer's state; false: parameters only
} corpus[] = {
    {"trainer", {.mode = INTRA_TRAIN_FULL}, true},
    {"last-layers",
     {.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1, .freeze_embeddings = true},
     false},
    {"lora",
     {.mode = INTRA_TRAIN_LORA,
      .lora_rank = 1,
      .lora_alpha = 2,
      .lora_targets = INTRA_LORA_K | INTRA_LORA_O},
     false},
};
enum { N_CORPUS = sizeof corpus / sizeof corpus[0] };

static void corpus_path(const char *name, char *out) {
    char file[64];
    snprintf(file, sizeof file, "tests/fuzz/corpus/checkpoint/%s", name);
    testing_source(file, out);
}

static struct intra_trainer *corpus_trainer(struct kern *K, int i) {
    struct intra_trainer *t = NULL;
    struct intra_trainer_config c = testing_small_trainer(corpus[i].trainable);
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
    testing_set_params(t->model);
    return t;
}

static void write_corpus(struct kern *K) {
    for (int i = 0; i < N_CORPUS; i++) {
        char path[NEB_PATH_MAX];
        struct intra_trainer *t = corpus_trainer(K, i);
        struct intra_ckpt_writer *w = NULL;
        corpus_path(corpus[i].file, path);
        assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
        assert_int_equal(corpus[i].whole ? intra_trainer_save(t, w) : intra_model_save(t->model, w),
                         NEB_OK);
        assert_int_equal(intra_ckpt_commit(w), NEB_OK);
        intra_ckpt_writer_destroy(&w);
        intra_trainer_destroy(&t);
    }
}

// Files of an earlier build open with the same content. This shows that the format has not changed.
static void test_format(void **state) {
    (void)state;
    struct kern *K = NULL;
    assert_int_equal(kern_ref_create(&K), NEB_OK);
    if (getenv("NEBULA_WRITE_CORPUS"))
        write_corpus(K);
    for (int i = 0; i < N_CORPUS; i++) {
        char path[NEB_PATH_MAX];
        struct intra_trainer *t = corpus_trainer(K, i);
        struct intra_ckpt *k = NULL;
        struct intra_model *m = NULL;
        corpus_path(corpus[i].file, path);
        assert_int_equal(intra_ckpt_open(path, true, &k), NEB_OK);
        assert_int_equal(intra_model_load(k, &m), NEB_OK);
        assert_int_equal(m->n_params, t->model->n_params);
        assert_memory_equal(m->params, t->model->params, m->n_params * sizeof(float));
        assert_true(m->trainable.mode == corpus[i].trainable.mode &&
                    m->trainable.lora_rank == corpus[i].trainable.lora_rank &&
                    m->n_trainable == t->model->n_trainable);
        if (corpus[i].whole)
            assert_int_equal(intra_trainer_restore(t, k), NEB_OK);
        intra_model_destroy(&m);
        intra_ckpt_close(&k);
        intra_trainer_destroy(&t);
    }
    kern_destroy(&K);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference),
                                       cmocka_unit_test(test_fast), cmocka_unit_test(test_format)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
