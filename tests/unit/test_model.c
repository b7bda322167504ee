// SPDX-License-Identifier: Apache-2.0
// The transformer: gradients against finite differences, trainable sets, accumulation, learning,
// and checkpoints that resume bit for bit.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "intra/train/trainer.h"

#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kern *K;

static struct intra_model_config small(bool tied, bool bias) {
    return (struct intra_model_config){.vocab = 23,
                                       .d_model = 12,
                                       .n_layers = 2,
                                       .n_heads = 4,
                                       .n_kv_heads = 2,
                                       .head_dim = 6,
                                       .d_ff = 10,
                                       .max_seq = 8,
                                       .rope_theta = 100,
                                       .norm_eps = 1e-5f,
                                       .tied = tied,
                                       .qkv_bias = bias,
                                       .mask = KERN_MASK_CAUSAL};
}

static const struct intra_trainable full = {.mode = INTRA_TRAIN_FULL};
static const struct intra_trainable lora = {
    .mode = INTRA_TRAIN_LORA, .lora_rank = 3, .lora_alpha = 6, .lora_targets = 127};

static void fill(int32_t *ids, int n, int32_t V, uint64_t seed) {
    struct neb_rng r = neb_rng_make(seed, 9);
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)neb_rng_below(&r, (uint64_t)V);
}

// Moves all parameters (gains, biases and LoRA's B too) away from the symmetric start.
static void randomise(struct intra_model *m) {
    struct neb_rng r = neb_rng_make(3, 3);
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (size_t k = 0; k < intra_tensor_size(&m->tensors[i]); k++)
            intra_param(m, &m->tensors[i])[k] += 0.3f * neb_rng_normal(&r);
}

// Checks the loss's slope along each tensor's own gradient by central differences.
static void check_gradients(const struct intra_model_config *c, const struct intra_trainable *t,
                            bool recompute) {
    enum { B = 2, T = 7 };
    struct intra_model *m = NULL;
    struct intra_device *a = NULL;
    int32_t x[B * T], y[B * T];
    double loss, up, down;
    int64_t n;
    assert_int_equal(intra_model_create(c, t, 1, &m), NEB_OK);
    assert_int_equal(intra_device_on_host(K, m, B, T, true, recompute, &a), NEB_OK);
    randomise(m);
    fill(x, B * T, c->vocab, 1);
    fill(y, B * T, c->vocab, 2);
    y[3] = KERN_IGNORE;
    assert_int_equal(
        intra_device_pass(a, &(struct intra_batch){.tokens = x, .targets = y, .B = B, .T = T}, 1,
                          &loss, &n),
        NEB_OK);
    assert_int_equal(n, B * T - 1);
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *w = &m->tensors[i];
        if (!w->trainable)
            continue;
        size_t size = intra_tensor_size(w);
        float *p = intra_param(m, w), *keep = malloc(size * sizeof *keep);
        const float *g = intra_grad(m, w);
        double norm = 0;
        for (size_t k = 0; k < size; k++)
            norm += (double)g[k] * (double)g[k];
        norm = sqrt(norm);
        assert_true(norm > 1e-6);
        memcpy(keep, p, size * sizeof *keep);
        const double h = 2e-3;
        for (size_t k = 0; k < size; k++)
            p[k] = (float)((double)keep[k] + h * (double)g[k] / norm);
        assert_int_equal(
            intra_device_pass(a, &(struct intra_batch){.tokens = x, .targets = y, .B = B, .T = T},
                              0, &up, &n),
            NEB_OK);
        for (size_t k = 0; k < size; k++)
            p[k] = (float)((double)keep[k] - h * (double)g[k] / norm);
        assert_int_equal(
            intra_device_pass(a, &(struct intra_batch){.tokens = x, .targets = y, .B = B, .T = T},
                              0, &down, &n),
            NEB_OK);
        memcpy(p, keep, size * sizeof *keep);
        free(keep);
        double measured = (up - down) / (2 * h);
        if (fabs(measured - norm) > 5e-3 * norm + 1e-3)
            fail_msg("%s: gradient norm %g, measured slope %g", w->name, norm, measured);
    }
    intra_device_destroy(&a);
    intra_model_destroy(&m);
}

static void test_gradients(void **state) {
    (void)state;
    for (int v = 0; v < 8; v++) {
        struct intra_model_config c = small(v & 1, v & 2);
        check_gradients(&c, &full, v & 4);
    }
    struct intra_model_config c = small(false, true);
    check_gradients(&c, &lora, false);
    check_gradients(&c, &lora, true);
    for (uint32_t target = 1; target <= 64;
         target *= 2) { // each matrix alone; they are parts of the fused matrices
        struct intra_trainable one = lora;
        one.lora_targets = target;
        check_gradients(&c, &one, target > 8);
    }
    check_gradients(&c, &(struct intra_trainable){.mode = INTRA_TRAIN_BITFIT}, false);
    c.mask = KERN_MASK_BIDIRECTIONAL;
    check_gradients(&c, &full, true);
    c = small(true, true);
    check_gradients(&c, &lora, false);
    check_gradients(
        &c, &(struct intra_trainable){.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 2}, false);
    check_gradients(
        &c, &(struct intra_trainable){.mode = INTRA_TRAIN_FULL, .freeze_embeddings = true}, true);
    c = small(false, true);
    check_gradients(
        &c, &(struct intra_trainable){.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1}, false);
    check_gradients(
        &c, &(struct intra_trainable){.mode = INTRA_TRAIN_FULL, .freeze_embeddings = true}, false);
}

static struct intra_trainer_config config(const struct intra_trainable *t) {
    return (struct intra_trainer_config){
        .model = small(true, false),
        .trainable = *t,
        .batch = 2,
        .seq_len = 8,
        .accumulate = 1,
        .seed = 4,
        .optim = {.schedule = {.kind = INTRA_SCHEDULE_COSINE,
                               .lr = 0.01f,
                               .min_ratio = 0.1f,
                               .warmup = 5,
                               .steps = 200},
                  .clip = {.kind = INTRA_CLIP_GLOBAL_NORM, .max_norm = 1},
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .weight_decay = 0.1f}};
}

static double step(struct intra_trainer *t, uint64_t batch) {
    int32_t x[16], y[16];
    struct intra_step_stats s;
    fill(x, 16, 23, batch);
    memcpy(y, x + 1, sizeof y - sizeof *y);
    y[15] = x[0];
    intra_trainer_micro(t, x, y);
    intra_trainer_update(t, &s);
    return s.loss;
}

static void test_learns_a_batch(void **state) {
    (void)state;
    enum intra_clip_kind kinds[] = {INTRA_CLIP_GLOBAL_NORM, INTRA_CLIP_ADAGC, INTRA_CLIP_NONE};
    for (int i = 0; i < 3; i++) {
        struct intra_trainer_config c = config(&full);
        struct intra_trainer *t = NULL;
        c.optim.clip.kind = kinds[i];
        c.optim.clip.ratio = 1.04f, c.optim.clip.beta = 0.99f, c.optim.clip.warmup = 10;
        assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
        double first = step(t, 1), last = first;
        for (int k = 0; k < 150; k++)
            last = step(t, 1);
        assert_true(fabs(first - log(23)) < 0.3 && last < 0.2);
        intra_trainer_destroy(&t);
    }
}

static void test_frozen_stays(void **state) {
    (void)state;
    const struct intra_trainable sets[] = {lora,
                                           {.mode = INTRA_TRAIN_BITFIT},
                                           {.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1},
                                           {.mode = INTRA_TRAIN_FULL, .freeze_embeddings = true}};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        struct intra_trainer_config c = config(&sets[i]);
        struct intra_trainer *t = NULL;
        c.model = small(false, true);
        assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
        struct intra_model *m = t->model;
        float *before = malloc(m->n_params * sizeof *before);
        memcpy(before, m->params, m->n_params * sizeof *before);
        for (int k = 0; k < 6; k++)
            step(t, (uint64_t)k);
        int32_t learned = 0;
        for (int32_t k = 0; k < m->n_tensors; k++) {
            const struct intra_tensor *w = &m->tensors[k];
            bool same =
                !memcmp(before + w->at, intra_param(m, w), intra_tensor_size(w) * sizeof *before);
            assert_true(same == !w->trainable);
            learned += w->trainable;
        }
        struct intra_unit *units = NULL;
        int32_t n = 0;
        assert_int_equal(intra_units(m, &units, &n), NEB_OK);
        assert_int_equal(n, learned); // only trainable tensors are exchanged
        free(units);
        free(before);
        intra_trainer_destroy(&t);
    }
}

static void test_lora_merge_keeps_the_function(void **state) {
    (void)state;
    struct intra_trainer_config c = config(&lora);
    struct intra_trainer *t = NULL;
    int32_t x[16], y[16];
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
    for (int k = 0; k < 20; k++)
        step(t, (uint64_t)k);
    fill(x, 16, 23, 77);
    fill(y, 16, 23, 78);
    double adapted = intra_trainer_eval(t, x, y, 2), merged;
    intra_lora_merge(K, t->model);
    merged = intra_trainer_eval(t, x, y, 2);
    assert_true(fabs(adapted - merged) < 1e-5);
    intra_trainer_destroy(&t);
}

static void test_accumulation_is_a_larger_batch(void **state) {
    (void)state;
    struct intra_trainer_config c = config(&full), c2 = c;
    struct intra_trainer *one = NULL, *two = NULL;
    struct intra_step_stats s1, s2;
    int32_t x[32], y[32];
    c.batch = 4;
    c2.accumulate = 2;
    fill(x, 32, 23, 5);
    fill(y, 32, 23, 6);
    assert_int_equal(intra_trainer_create(&c, K, &one), NEB_OK);
    assert_int_equal(intra_trainer_create(&c2, K, &two), NEB_OK);
    intra_trainer_micro(one, x, y);
    intra_trainer_update(one, &s1);
    intra_trainer_micro(two, x, y);
    intra_trainer_micro(two, x + 16, y + 16);
    intra_trainer_update(two, &s2);
    assert_true(fabs(s1.loss - s2.loss) < 1e-6 &&
                fabs(s1.update.grad_norm - s2.update.grad_norm) < 1e-5);
    for (size_t i = 0; i < one->model->n_params; i++)
        assert_true(fabsf(one->model->params[i] - two->model->params[i]) < 1e-5f);
    intra_trainer_destroy(&one);
    intra_trainer_destroy(&two);
}

static char dir[] = "/tmp/nebula-model-XXXXXX";

static void save(struct intra_trainer *t, const char *path) {
    struct intra_ckpt_writer *w = NULL;
    assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
    assert_int_equal(intra_trainer_save(t, w), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
}

static void test_resume_is_bit_identical(void **state) {
    (void)state;
    const struct intra_trainable *sets[] = {&full, &lora};
    for (int i = 0; i < 2; i++) {
        struct intra_trainer_config c = config(sets[i]);
        struct intra_trainer *a = NULL, *b = NULL;
        struct intra_ckpt *k = NULL;
        char path[NEB_PATH_MAX];
        c.optim.clip = (struct intra_clip){
            .kind = INTRA_CLIP_ADAGC, .max_norm = 1, .ratio = 1.04f, .beta = 0.99f, .warmup = 4};
        assert_int_equal(intra_ckpt_step_path(dir, 7, path, sizeof path), NEB_OK);
        assert_int_equal(intra_trainer_create(&c, K, &a), NEB_OK);
        for (int s = 0; s < 7; s++)
            step(a, (uint64_t)s);
        save(a, path);
        c.seed = 99; // the seed of the start must not matter
        assert_int_equal(intra_trainer_create(&c, K, &b), NEB_OK);
        assert_int_equal(intra_ckpt_open_latest_in(NULL, dir, &k), NEB_OK);
        assert_int_equal(intra_trainer_restore(b, k), NEB_OK);
        for (int s = 7; s < 15; s++) {
            double x = step(a, (uint64_t)s), y = step(b, (uint64_t)s);
            assert_true(x == y);
        }
        assert_memory_equal(a->model->params, b->model->params, a->model->n_params * sizeof(float));
        struct intra_model *m = NULL;
        assert_int_equal(intra_model_load(k, &m), NEB_OK); // the file alone describes the model
        assert_int_equal(m->n_params, a->model->n_params);
        intra_model_destroy(&m);
        intra_ckpt_close(&k);
        intra_trainer_destroy(&a);
        intra_trainer_destroy(&b);
    }
}

static void swallow(void *user, enum neb_log_level level, const char *text) {
    if (level == NEB_LOG_ERROR)
        snprintf(user, 512, "%s", text);
}

static void test_damaged_checkpoint(void **state) {
    (void)state;
    char older[NEB_PATH_MAX], newer[NEB_PATH_MAX], message[512] = "";
    struct intra_trainer_config c = config(&full);
    struct intra_trainer *t = NULL;
    struct intra_ckpt *k = NULL;
    struct neb_buf file = {0};
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
    assert_int_equal(intra_ckpt_step_path(dir, 100, older, sizeof older), NEB_OK);
    assert_int_equal(intra_ckpt_step_path(dir, 200, newer, sizeof newer), NEB_OK);
    save(t, older);
    save(t, newer);
    neb_log_set_sink(swallow, message);
    assert_int_equal(neb_fs_read(newer, 1 << 26, &file), NEB_OK);
    for (size_t cut = 0; cut < file.len; cut += file.len / 23 + 1) { // cut at many places
        assert_int_equal(neb_fs_write(newer, file.p, cut, 0600), NEB_OK);
        assert_int_not_equal(intra_ckpt_open(newer, true, &k), NEB_OK);
        assert_non_null(strstr(message, newer));
    }
    int refused = 0, flips = 0;
    for (size_t at = 64; at < file.len;
         at += file.len / 61 + 1, flips++) { // one bit flipped at many places
        file.p[at] ^= 0x10;
        assert_int_equal(neb_fs_write(newer, file.p, file.len, 0600), NEB_OK);
        file.p[at] ^= 0x10;
        enum neb_status st = intra_ckpt_open(newer, true, &k);
        refused += st != NEB_OK;
        if (st == NEB_OK)
            intra_ckpt_close(&k); // only padding between sections has no checksum
    }
    assert_true(refused >= flips - 3);
    file.p[file.len / 2] ^= 1;
    assert_int_equal(neb_fs_write(newer, file.p, file.len, 0600), NEB_OK);
    assert_int_equal(intra_ckpt_open_latest_in(NULL, dir, &k),
                     NEB_OK); // the previous generation is used
    assert_string_equal(intra_ckpt_path(k), older);
    intra_ckpt_close(&k);
    struct intra_ckpt_writer *w = NULL; // on a full disk the existing file stays
    neb_fault_arm("fs.write:1");
    assert_int_equal(intra_ckpt_create(older, &w), NEB_OK);
    enum neb_status st = intra_trainer_save(t, w);
    if (st == NEB_OK)
        st = intra_ckpt_commit(w);
    neb_fault_arm(NULL);
    assert_int_equal(st, NEB_ERR_NOSPC);
    intra_ckpt_writer_destroy(&w);
    neb_log_set_sink(NULL, NULL);
    assert_int_equal(intra_ckpt_open(older, true, &k), NEB_OK);
    intra_ckpt_close(&k);
    assert_int_equal(intra_ckpt_prune(NULL, dir, 1), NEB_OK);
    assert_false(neb_fs_exists(older));
    assert_int_equal(neb_fs_remove(newer), NEB_OK);
    neb_buf_free(&file);
    intra_trainer_destroy(&t);
}

static void test_schedule(void **state) {
    (void)state;
    struct intra_schedule cosine = {INTRA_SCHEDULE_COSINE, 1, 0.1f, 0, 10, 110},
                          wsd = {INTRA_SCHEDULE_WSD, 1, 0, 0.2f, 10, 100};
    assert_true(fabsf(intra_schedule_lr(&cosine, 0) - 0.1f) < 1e-6f &&
                fabsf(intra_schedule_lr(&cosine, 9) - 1) < 1e-6f);
    assert_true(fabsf(intra_schedule_lr(&cosine, 60) - 0.55f) < 1e-3f &&
                fabsf(intra_schedule_lr(&cosine, 110) - 0.1f) < 1e-6f);
    assert_true(intra_schedule_lr(&wsd, 80) == 1 &&
                fabsf(intra_schedule_lr(&wsd, 90) - 0.5f) < 1e-6f);
}

static void test_bad_shapes(void **state) {
    (void)state;
    char message[512] = "";
    struct intra_model *m = NULL;
    neb_log_set_sink(swallow, message);
    struct intra_model_config c = small(true, false);
    c.n_kv_heads = 3;
    assert_int_equal(intra_model_create(&c, &full, 1, &m), NEB_ERR_INVALID);
    assert_non_null(strstr(message, "n_kv_heads: 3 does not divide n_heads 4"));
    c = small(true, false);
    assert_int_equal(intra_model_create(&c,
                                        &(struct intra_trainable){.mode = INTRA_TRAIN_LAST_LAYERS,
                                                                  .last_layers = 3},
                                        1, &m),
                     NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
}

// All processors draw a large model's first parameters. The values are those that one processor
// draws.
static void test_drawn_by_threads(void **state) {
    (void)state;
    struct intra_model_config c = small(true, false);
    struct intra_model *one = NULL, *all = NULL;
    cpu_set_t before, first;
    c.d_model = 512, c.d_ff = 1400, c.vocab = 700;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&first);
    for (size_t i = 0; i < CPU_SETSIZE && !CPU_COUNT(&first); i++)
        if (CPU_ISSET(i, &before))
            CPU_SET(i, &first);
    assert_int_equal(sched_setaffinity(0, sizeof first, &first), 0);
    assert_int_equal(intra_model_create(&c, &lora, 7, &one), NEB_OK);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(intra_model_create(&c, &lora, 7, &all), NEB_OK);
    assert_true(all->n_params > 1 << 22);
    assert_memory_equal(one->params, all->params, all->n_params * sizeof *all->params);
    intra_model_destroy(&one);
    intra_model_destroy(&all);
}

static int set_up(void **state) {
    (void)state;
    return mkdtemp(dir) && kern_ref_create(&K) == NEB_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    kern_destroy(&K);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_learns_a_batch),
        cmocka_unit_test(test_frozen_stays),
        cmocka_unit_test(test_lora_merge_keeps_the_function),
        cmocka_unit_test(test_accumulation_is_a_larger_batch),
        cmocka_unit_test(test_resume_is_bit_identical),
        cmocka_unit_test(test_damaged_checkpoint),
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_bad_shapes),
        cmocka_unit_test(test_drawn_by_threads),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
