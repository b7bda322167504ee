// SPDX-License-Identifier: Apache-2.0
// Edge cases of training: AdaGC with zero gradients at first, ignored targets, recomputation bit
// for bit, checkpoints of another model, and invalid descriptions.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "intra/train/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { V = 23, T = 8, B = 2, N = B * T };

static struct kern *K;
static char dir[] = "/tmp/nebula-trainer-XXXXXX", path[NEB_PATH_MAX], message[1024], warning[1024];

static void swallow(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    if (level == NEB_LOG_ERROR)
        snprintf(message, sizeof message, "%s", text);
    if (level == NEB_LOG_WARN)
        snprintf(warning, sizeof warning, "%s", text);
}

static const struct intra_trainable full = {.mode = INTRA_TRAIN_FULL};
static const struct intra_trainable lora = {
    .mode = INTRA_TRAIN_LORA, .lora_rank = 3, .lora_alpha = 6, .lora_targets = 127};

static struct intra_trainer_config config(const struct intra_trainable *t) {
    return (struct intra_trainer_config){
        .model = {.vocab = V,
                  .d_model = 12,
                  .n_layers = 3,
                  .n_heads = 4,
                  .n_kv_heads = 2,
                  .head_dim = 6,
                  .d_ff = 10,
                  .max_seq = T,
                  .rope_theta = 100,
                  .norm_eps = 1e-5f,
                  .tied = true,
                  .mask = KERN_MASK_CAUSAL},
        .trainable = *t,
        .batch = B,
        .seq_len = T,
        .accumulate = 1,
        .seed = 4,
        .optim = {.schedule = {.kind = INTRA_SCHEDULE_CONSTANT, .lr = 0.01f},
                  .clip = {.kind = INTRA_CLIP_GLOBAL_NORM, .max_norm = 1},
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .weight_decay = 0.1f}};
}

static struct intra_trainer *make(const struct intra_trainer_config *c) {
    struct intra_trainer *t = NULL;
    assert_int_equal(intra_trainer_create(c, K, &t), NEB_OK);
    return t;
}

static void draw(int32_t *x, int32_t *y, uint64_t batch) {
    struct neb_rng r = neb_rng_make(batch, 9);
    for (int i = 0; i < N; i++) {
        x[i] = (int32_t)neb_rng_below(&r, V);
        y[i] = (x[i] * 7 + 3) % V;
    }
}

static struct intra_step_stats step(struct intra_trainer *t, uint64_t batch) {
    int32_t x[N], y[N];
    struct intra_step_stats s;
    draw(x, y, batch);
    intra_trainer_micro(t, x, y);
    intra_trainer_update(t, &s);
    return s;
}

static void save(const struct intra_trainer *t) {
    struct intra_ckpt_writer *w = NULL;
    assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
    assert_int_equal(intra_trainer_save(t, w), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
}

// LoRA's A learns after AdaGC's warm-up, although its first gradient is exactly 0 (B starts at 0).
static void test_adagc_with_lora(void **state) {
    (void)state;
    for (int64_t warmup = 0; warmup <= 4; warmup += 4) {
        struct intra_trainer_config c = config(&lora);
        c.optim.clip = (struct intra_clip){.kind = INTRA_CLIP_ADAGC,
                                           .max_norm = 1,
                                           .ratio = 1.04f,
                                           .beta = 0.99f,
                                           .warmup = warmup};
        c.optim.weight_decay = 0; // decay alone would move the parameters
        struct intra_trainer *t = make(&c);
        const struct intra_model *m = t->model;
        for (uint64_t k = 0; k < 6; k++)
            step(t, k);
        float *before = malloc(m->n_params * sizeof *before);
        memcpy(before, m->params, m->n_params * sizeof *before);
        for (int32_t i = 0; i < m->n_tensors; i++) // momentum alone would move them too
            if (m->tensors[i].trainable)
                memset(t->optim->m + m->tensors[i].grad_at, 0,
                       intra_tensor_size(&m->tensors[i]) * sizeof(float));
        step(t, 6);
        for (int32_t i = 0; i < m->n_tensors; i++) {
            const struct intra_tensor *w = &m->tensors[i];
            if (w->trainable &&
                !memcmp(before + w->at, intra_param(m, w), intra_tensor_size(w) * sizeof *before))
                fail_msg("%s does not learn", w->name);
            assert_true(!w->trainable || t->optim->gamma[i] > 0);
        }
        free(before);
        intra_trainer_destroy(&t);
    }
}

// A skipped first step leaves AdaGC without norms, not with a limit of 0.
static void test_adagc_after_a_skipped_step(void **state) {
    (void)state;
    struct intra_trainer_config c = config(&full);
    c.optim.clip = (struct intra_clip){
        .kind = INTRA_CLIP_ADAGC, .max_norm = 1, .ratio = 1.04f, .beta = 0.99f, .warmup = 2};
    struct intra_trainer *t = make(&c);
    struct intra_step_stats s = {0};
    float first = t->model->params[0];
    t->model->grads[0] = INFINITY;
    intra_trainer_update(t, &s);
    assert_false(isfinite(s.update.grad_norm));
    assert_true(t->model->params[0] == first && t->model->grads[0] == 0 && t->optim->t == 1);
    double loss = step(t, 1).loss, last = loss;
    for (uint64_t k = 2; k < 60; k++)
        last = step(t, k % 3).loss;
    assert_true(isfinite(last) && last < loss - 0.5);
    intra_trainer_destroy(&t);
}

// The mean losses do not include a step that overflows.
static void test_mean_loss(void **state) {
    (void)state;
    double first = NAN, last = NAN;
    const double losses[] = {INFINITY, 4, NAN, 3, -INFINITY};
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++)
        intra_loss_add(&first, &last, losses[i]);
    assert_true(first == 4 && fabs(last - 3.9) < 1e-12);
    first = last = NAN; // the checkpoint includes such a step
    intra_loss_add(&first, &last, 2);
    assert_true(first == 2 && last == 2);
}

// If the targets of the second sequence are ignored, a step equals a step on the first sequence
// alone, because the mean is over counted targets.
static void test_ignored_targets(void **state) {
    (void)state;
    struct intra_trainer_config c = config(&full), half = c;
    half.batch = 1;
    c.optim.clip.kind = half.optim.clip.kind = INTRA_CLIP_NONE;
    struct intra_trainer *a = make(&c), *b = make(&half);
    struct intra_step_stats sa, sb;
    int32_t x[N], y[N];
    draw(x, y, 1);
    for (int i = T; i < N; i++)
        y[i] = KERN_IGNORE;
    intra_trainer_micro(a, x, y);
    intra_trainer_micro(b, x, y);
    intra_trainer_update(a, &sa);
    intra_trainer_update(b, &sb);
    assert_true(sa.tokens == T && sb.tokens == T && sa.loss == sb.loss);
    assert_true(fabs(sa.update.grad_norm / sb.update.grad_norm - 1) < 1e-5);
    uint64_t inputs = 0, targets = 0;
    for (int i = 0; i < V; i++)
        inputs += a->input_counts[i], targets += a->target_counts[i];
    assert_true(inputs == N && targets == T);
    for (int i = 0; i < N; i++)
        y[i] = KERN_IGNORE;
    intra_trainer_micro(a, x, y); // nothing to learn from: no division by zero
    intra_trainer_update(a, &sa);
    assert_true(sa.tokens == 0 && sa.loss == 0 && sa.update.grad_norm == 0);
    assert_true(isfinite(a->model->params[0]));
    intra_trainer_destroy(&a);
    intra_trainer_destroy(&b);
}

static void test_recompute_is_bit_identical(void **state) {
    (void)state;
    const struct intra_trainable sets[] = {full,
                                           lora,
                                           {.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 2},
                                           {.mode = INTRA_TRAIN_BITFIT}};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        struct intra_trainer_config c = config(&sets[i]);
        c.model.qkv_bias = true;
        struct intra_trainer *a = make(&c), *b;
        c.recompute = true;
        b = make(&c);
        for (uint64_t k = 0; k < 5; k++)
            assert_true(step(a, k).loss == step(b, k).loss);
        assert_memory_equal(a->model->params, b->model->params, a->model->n_params * sizeof(float));
        intra_trainer_destroy(&a);
        intra_trainer_destroy(&b);
    }
}

static void test_kinds_of_tensors(void **state) {
    (void)state;
    struct intra_trainable one = lora;
    struct intra_model *m = NULL;
    struct intra_model_config c = config(&full).model;
    one.lora_rank = 1;
    c.qkv_bias = true;
    assert_int_equal(intra_model_create(&c, &one, 1, &m), NEB_OK);
    // An adapter of rank 1 has one row and is still a matrix.
    for (int32_t i = 0; i < m->n_tensors; i++) {
        bool vector =
            strstr(m->tensors[i].name, "norm.weight") || strstr(m->tensors[i].name, ".bias");
        assert_true(m->tensors[i].decay == !vector);
    }
    intra_model_destroy(&m);
    c.d_ff = 1; // matrices of one row
    assert_int_equal(
        intra_model_create(&c, &(struct intra_trainable){.mode = INTRA_TRAIN_BITFIT}, 1, &m),
        NEB_OK);
    assert_false(intra_model_find(m, "model.layers.0.mlp.up_proj.weight")->trainable);
    assert_true(intra_model_find(m, "model.layers.0.self_attn.k_proj.bias")->trainable);
    intra_model_destroy(&m);
    // Values of another mode are ignored.
    struct intra_trainer_config tc = config(
        &(struct intra_trainable){.lora_rank = -5, .lora_targets = 1u << 31, .last_layers = -1});
    struct intra_trainer *t = make(&tc);
    assert_true(t->model->trainable.lora_rank == 0 && t->model->trainable.lora_targets == 0 &&
                t->model->trainable.last_layers == 0);
    assert_true(isfinite(step(t, 1).loss));
    intra_trainer_destroy(&t);
    one.lora_alpha = NAN;
    assert_int_equal(intra_model_create(&c, &one, 1, &m), NEB_ERR_INVALID);
    c.mask = (enum kern_mask)3; // an unknown mask
    assert_int_equal(intra_model_create(&c, &full, 1, &m), NEB_ERR_UNSUPPORTED);
    c.mask = KERN_MASK_CAUSAL;
    c.max_seq = 1 << 20;
    c.head_dim = 256;
    assert_int_equal(intra_model_create(&c, &full, 1, &m), NEB_ERR_INVALID);
}

static void refuse(struct intra_trainer_config c, bool resume, const char *why) {
    struct intra_trainer *t = make(&c);
    struct intra_ckpt *k = NULL;
    message[0] = 0;
    assert_int_equal(intra_ckpt_open(path, true, &k), NEB_OK);
    assert_int_equal(resume ? intra_trainer_restore(t, k) : intra_model_load_params(k, t->model),
                     NEB_ERR_INVALID);
    if (!strstr(message, why))
        fail_msg("\"%s\" does not say %s", message, why);
    intra_ckpt_close(&k);
    intra_trainer_destroy(&t);
}

static void accept(struct intra_trainer_config c, bool resume) {
    struct intra_trainer *t = make(&c);
    struct intra_ckpt *k = NULL;
    assert_int_equal(intra_ckpt_open(path, true, &k), NEB_OK);
    assert_int_equal(resume ? intra_trainer_restore(t, k) : intra_model_load_params(k, t->model),
                     NEB_OK);
    intra_ckpt_close(&k);
    intra_trainer_destroy(&t);
}

static void test_another_models_checkpoint(void **state) {
    (void)state;
    struct intra_trainer_config c = config(&full), d;
    struct intra_trainer *t = make(&c);
    save(t);
    for (int resume = 0; resume < 2; resume++) {
        accept(c, resume);
        // the same shapes
        d = c, d.model.n_heads = 2, d.model.n_kv_heads = 1, d.model.head_dim = 12;
        refuse(d, resume, "model.n_heads is 4, the job's is 2");
        d = c, d.model.n_layers = 2; // the file has all tensors that this model needs
        refuse(d, resume, "model.n_layers is 3, the job's is 2");
        d = c, d.model.tied = false;
        refuse(d, resume, "model.tied");
        d = c, d.model.qkv_bias = true;
        refuse(d, resume, "model.qkv_bias");
        d = c, d.model.max_seq = 2 * T; // another sequence length is not another model
        accept(d, resume);
    }
    d = c, d.model.rope_theta = 500;
    accept(d, false); // fine-tuning may change it
    refuse(d, true, "rope_theta");
    d = c;
    d.model.rope_scaling = (struct kern_rope_scaling){.type = KERN_ROPE_LINEAR, .factor = 2};
    accept(d, false);
    assert_non_null(strstr(warning, "default, 1e-05, 0; here 100, linear, factor 2, 1e-05, 0)"));
    refuse(d, true, "rope_scaling");
    d = c, d.trainable = lora;
    accept(d, false); // fresh adapters on a trained base
    refuse(d, true, "trainable");
    intra_trainer_destroy(&t);
    c = config(&lora);
    t = make(&c);
    save(t);
    intra_trainer_destroy(&t);
    accept(c, false);
    accept(c, true);
    refuse(config(&full), false, "adapters"); // the adapters would be dropped without a message
    d = c, d.trainable.lora_targets = INTRA_LORA_Q;
    refuse(d, false, "adapters");
    d = c, d.trainable.lora_alpha = 7;
    refuse(d, false, "adapters of alpha 6, but this model has alpha 7");
    refuse(d, true, "trainable");
}

// A description reserves no more memory than the file has data for, and invalid values are refused.
static void test_invalid_descriptions(void **state) {
    (void)state;
    enum { WORDS = 19 };
    static const float table[4];
    const uint32_t good[WORDS] = {2, 2, 1, 1, 1, 2, 1, 8, 1};
    const struct {
        int word;
        uint32_t value;
        enum neb_status st;
    } bad[] = {
        {0, 0, NEB_ERR_INVALID},          {0, 3, NEB_ERR_FORMAT},
        {2, 1024, NEB_ERR_FORMAT},        {6, 1 << 20, NEB_ERR_FORMAT},
        {2, UINT32_MAX, NEB_ERR_INVALID}, {7, 0, NEB_ERR_INVALID},
        {8, 2, NEB_ERR_FORMAT},           {9, UINT32_MAX, NEB_ERR_FORMAT},
        {10, 3, NEB_ERR_FORMAT},          {11, 4, NEB_ERR_FORMAT},
        {11, UINT32_MAX, NEB_ERR_FORMAT}, {11, INTRA_TRAIN_LORA, NEB_ERR_INVALID},
        {15, 3, NEB_ERR_FORMAT},          {16, 0x7fc00000, NEB_ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct neb_buf b = {0};
        struct intra_ckpt_writer *w = NULL;
        struct intra_ckpt *k = NULL;
        struct intra_model *m = NULL;
        for (int n = 0; n < 16; n++)
            neb_buf_u32(&b, n == bad[i].word ? bad[i].value : good[n]);
        if (bad[i].word == 16)
            neb_buf_u32(&b, bad[i].value);
        else
            neb_buf_f32(&b, 100);
        neb_buf_f32(&b, 1e-5f);
        neb_buf_f32(&b, 0);
        assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
        assert_int_equal(intra_ckpt_add(w, "model.config", INTRA_BYTES, b.len, 1, b.p), NEB_OK);
        assert_int_equal(intra_ckpt_add(w, "model.embed_tokens.weight", INTRA_F32, 2, 2, table),
                         NEB_OK);
        assert_int_equal(intra_ckpt_commit(w), NEB_OK);
        intra_ckpt_writer_destroy(&w);
        assert_int_equal(intra_ckpt_open(path, true, &k), NEB_OK);
        enum neb_status st = intra_model_load(k, &m);
        if (st != bad[i].st)
            fail_msg("description %zu: status %d", i, st);
        assert_null(m);
        intra_ckpt_close(&k);
        neb_buf_free(&b);
    }
}

static void test_loaded_model_is_for_use(void **state) {
    (void)state;
    struct intra_trainer_config c = config(&lora);
    struct intra_trainer *t = make(&c);
    struct intra_ckpt *k = NULL;
    struct intra_model *m = NULL;
    struct intra_device *a = NULL;
    int32_t x[N], y[N];
    double loss;
    int64_t count;
    for (uint64_t s = 0; s < 5; s++)
        step(t, s);
    save(t);
    assert_int_equal(intra_ckpt_open(path, true, &k), NEB_OK);
    assert_int_equal(intra_model_load(k, &m), NEB_OK);
    intra_ckpt_close(&k);
    assert_null(m->grads);
    assert_memory_equal(m->params, t->model->params, m->n_params * sizeof(float));
    draw(x, y, 3);
    assert_int_equal(intra_device_on_host(K, m, B, T, false, false, &a), NEB_OK);
    assert_int_equal(
        intra_device_pass(a, &(struct intra_batch){.tokens = x, .targets = y, .B = B, .T = T}, 0,
                          &loss, &count),
        NEB_OK);
    assert_true(loss / (double)count == intra_trainer_eval(t, x, y, B));
    intra_device_destroy(&a);
    intra_model_destroy(&m);
    intra_trainer_destroy(&t);
}

static int set_up(void **state) {
    (void)state;
    neb_log_set_sink(swallow, NULL);
    return mkdtemp(dir) && neb_path(path, sizeof path, dir, "one.ckpt") == NEB_OK &&
                   kern_ref_create(&K) == NEB_OK
               ? 0
               : -1;
}

static int tear_down(void **state) {
    (void)state;
    kern_destroy(&K);
    neb_log_set_sink(NULL, NULL);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adagc_with_lora),
        cmocka_unit_test(test_adagc_after_a_skipped_step),
        cmocka_unit_test(test_mean_loss),
        cmocka_unit_test(test_ignored_targets),
        cmocka_unit_test(test_recompute_is_bit_identical),
        cmocka_unit_test(test_kinds_of_tensors),
        cmocka_unit_test(test_another_models_checkpoint),
        cmocka_unit_test(test_invalid_descriptions),
        cmocka_unit_test(test_loaded_model_is_for_use),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
