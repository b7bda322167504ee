// SPDX-License-Identifier: Apache-2.0
// Training through intra/model/device.h on the emulated device against the CPU: losses, norms and
// parameters. The cases: every trainable set, with and without recomputation; checkpoints that move
// between device and CPU; learning in bf16.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "tests/cuda/train_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { B = 2, T = 12, V = 61, STEPS = 4, MICROS = 2 };

static struct intra_trainer_config config(void) {
    struct intra_trainer_config c = small_config(V, B, T, MICROS);
    c.model.n_layers = 3;
    c.model.n_heads = 4;
    c.model.n_kv_heads = 2;
    c.model.head_dim = 8;
    return c;
}

// A norm's row that exceeds the card's shared memory is refused before the first step, with both
// figures.
static void test_wide_rows(void **state) {
    struct intra_trainer_config c = config();
    struct intra_trainer *t = NULL;
    char text[256];
    int most = D->norm_most;
    (void)state;
    c.device = D;
    assert_true(most >= 48 << 8);
    D->norm_most = c.model.d_model - 1;
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_ERR_UNSUPPORTED);
    neb_last_error(text, sizeof text);
    assert_non_null(strstr(text, "model.d_model 32 is above 31"));
    D->norm_most = c.model.d_model;
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
    intra_trainer_destroy(&t);
    D->norm_most = most;
}

static void draw(struct neb_rng *r, int32_t *x, int32_t *y) {
    for (int b = 0; b < B; b++) {
        int32_t id = (int32_t)neb_rng_below(r, V);
        for (int t = 0; t < T; t++) {
            x[b * T + t] = id;
            id = (id * 5 + 1) % V;
            y[b * T + t] = neb_rng_below(r, 7) ? id : KERN_IGNORE;
        }
    }
}

static void train(struct intra_trainer *t, struct neb_rng *r, int steps,
                  struct intra_step_stats *stats) {
    int32_t x[B * T], y[B * T];
    for (int s = 0; s < steps; s++) {
        for (int a = 0; a < MICROS; a++) {
            draw(r, x, y);
            intra_trainer_micro(t, x, y);
        }
        intra_trainer_update(t, &stats[s]);
        assert_int_equal(stats[s].status, NEB_OK);
    }
}

static double params_apart(const struct intra_model *a, const struct intra_model *b) {
    double far = 0;
    for (size_t i = 0; i < a->n_params; i++)
        far = fmax(far, fabs((double)a->params[i] - (double)b->params[i]));
    return far;
}

// fp32 on the device and on the CPU are equal up to rounding.
static void same_training(struct intra_trainer_config c) {
    struct intra_trainer *cpu = NULL, *dev = NULL;
    struct intra_step_stats a[STEPS], b[STEPS];
    struct neb_rng ra = neb_rng_make(5, 5), rb = ra;
    assert_int_equal(intra_trainer_create(&c, K, &cpu), NEB_OK);
    c.device = D;
    c.device_type = KERN_F32;
    assert_int_equal(intra_trainer_create(&c, K, &dev), NEB_OK);
    train(cpu, &ra, STEPS, a);
    train(dev, &rb, STEPS, b);
    for (int s = 0; s < STEPS; s++) {
        assert_true(fabs(a[s].loss - b[s].loss) < 2e-5 * a[s].loss);
        assert_true(fabs(a[s].update.grad_norm - b[s].update.grad_norm) <
                    1e-3 * a[s].update.grad_norm);
        assert_int_equal(a[s].tokens, b[s].tokens);
        assert_int_equal(a[s].update.clipped, b[s].update.clipped);
    }
    assert_int_equal(intra_trainer_pull(dev, NULL), NEB_OK);
    assert_true(params_apart(cpu->model, dev->model) < 2e-3);
    int32_t x[3 * T], y[3 * T]; // not a multiple of the batch
    for (int i = 0; i < 3 * T; i++) {
        x[i] = i % V;
        y[i] = (i * 3) % V;
    }
    double la = intra_trainer_eval(cpu, x, y, 3), lb = intra_trainer_eval(dev, x, y, 3);
    assert_true(fabs(la - lb) < 1e-3 * la);
    for (int i = 0; i < V; i++)
        assert_int_equal(cpu->input_counts[i], dev->input_counts[i]);
    intra_trainer_destroy(&cpu);
    intra_trainer_destroy(&dev);
}

static void test_same_as_cpu(void **state) {
    (void)state;
    struct intra_trainer_config c = config();
    same_training(c);
    c.recompute = true;
    same_training(c);
    c.optim.kind = INTRA_OPTIM_MUON;
    c.optim.momentum = 0.95f;
    same_training(c);
    c.optim.kind = INTRA_OPTIM_ADAMW;
    setenv("EMU_NO_SUMS", "1", 1); // the bias's gradient in its own kernel
    c.seq_len = T - 1;             // a new shape
    same_training(c);
    unsetenv("EMU_NO_SUMS");
    c.seq_len = T;
    c.model.tied = c.model.qkv_bias = false;
    c.optim.clip = (struct intra_clip){
        .kind = INTRA_CLIP_ADAGC, .max_norm = 1, .ratio = 1.04f, .beta = 0.98f, .warmup = 2};
    same_training(c);
    c.model.mask = KERN_MASK_BIDIRECTIONAL;
    same_training(c);
}

static void test_trainable_sets(void **state) {
    (void)state;
    struct intra_trainer_config c = config();
    c.trainable =
        (struct intra_trainable){.mode = INTRA_TRAIN_LORA,
                                 .lora_rank = 3,
                                 .lora_alpha = 6,
                                 .lora_targets = INTRA_LORA_Q | INTRA_LORA_V | INTRA_LORA_O |
                                                 INTRA_LORA_UP | INTRA_LORA_DOWN};
    same_training(c);
    c.recompute = true;
    same_training(c);
    c.trainable = (struct intra_trainable){.mode = INTRA_TRAIN_BITFIT};
    same_training(c);
    c.trainable = (struct intra_trainable){.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1};
    same_training(c);
    c.trainable = (struct intra_trainable){.mode = INTRA_TRAIN_FULL, .freeze_embeddings = true};
    same_training(c);
}

static void save(struct intra_trainer *t, const char *path) {
    struct intra_ckpt_writer *w = NULL;
    assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
    assert_int_equal(intra_trainer_save(t, w), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
}
static void restore(struct intra_trainer *t, const char *path) {
    struct intra_ckpt *k = NULL;
    assert_int_equal(intra_ckpt_open(path, true, &k), NEB_OK);
    assert_int_equal(intra_trainer_restore(t, k), NEB_OK);
    intra_ckpt_close(&k);
}

// Saves, restores and goes on. The bits are those of a run without this. The CPU continues from a
// device's checkpoint.
static void test_checkpoint(void **state) {
    (void)state;
    char path[] = "/tmp/nebula-device-XXXXXX";
    struct intra_trainer_config c = config();
    struct intra_trainer *a = NULL, *b = NULL, *cpu = NULL;
    struct intra_step_stats sa[4], sb[4], sc[4];
    struct neb_rng r = neb_rng_make(6, 6), again;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(intra_trainer_create(&c, K, &cpu), NEB_OK);
    for (int type = 0; type < 2; type++) {
        c.device = D;
        c.device_type = (enum kern_type)type;
        assert_int_equal(intra_trainer_create(&c, K, &a), NEB_OK);
        train(a, &r, 3, sa);
        save(a, path);
        again = r;
        train(a, &r, 4, sa);
        c.seed++;
        assert_int_equal(intra_trainer_create(&c, K, &b), NEB_OK);
        c.seed--;
        restore(b, path);
        r = again;
        train(b, &r, 4, sb);
        assert_memory_equal(sa, sb, sizeof sa);
        restore(cpu, path);
        r = again;
        train(cpu, &r, 4, sc);
        for (int s = 0; s < 4; s++)
            assert_true(fabs(sa[s].loss - sc[s].loss) < (type ? 2e-2 : 2e-5) * sc[s].loss);
        intra_trainer_destroy(&a);
        intra_trainer_destroy(&b);
    }
    intra_trainer_destroy(&cpu);
    unlink(path);
}

// bf16 with fp32 masters follows fp32, and learns.
static void test_bf16(void **state) {
    (void)state;
    enum { LONG = 30 };
    struct intra_trainer_config c = config();
    struct intra_trainer *cpu = NULL, *dev = NULL;
    static struct intra_step_stats a[LONG], b[LONG];
    struct neb_rng ra = neb_rng_make(7, 7), rb = ra;
    c.model.n_heads = 2;
    c.model.n_kv_heads = 1;
    c.model.head_dim = 32; // a shape for tensor cores
    assert_int_equal(intra_trainer_create(&c, K, &cpu), NEB_OK);
    c.device = D;
    c.device_type = KERN_BF16;
    assert_int_equal(intra_trainer_create(&c, K, &dev), NEB_OK);
    train(cpu, &ra, LONG, a);
    train(dev, &rb, LONG, b);
    for (int s = 0; s < LONG; s++)
        if (!(fabs(a[s].loss - b[s].loss) < 0.03 * a[s].loss))
            fail_msg("step %d: %g on the CPU, %g in bf16", s, a[s].loss, b[s].loss);
    assert_true(b[LONG - 1].loss < 0.8 * b[0].loss);
    intra_trainer_destroy(&cpu);
    intra_trainer_destroy(&dev);
}

// A NaN is reported and skips the update; the next step is not affected.
static void test_not_finite(void **state) {
    (void)state;
    struct intra_trainer_config c = config();
    struct intra_trainer *t = NULL;
    struct intra_step_stats s[2];
    struct neb_rng r = neb_rng_make(8, 8);
    c.device = D;
    c.device_type = KERN_BF16;
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
    float *gain = intra_param(t->model, t->model->norm), was = gain[0];
    gain[0] = NAN;
    assert_int_equal(intra_trainer_push(t, NULL), NEB_OK);
    train(t, &r, 1, s);
    assert_false(isfinite(s[0].loss));
    assert_false(isfinite(s[0].update.grad_norm));
    gain[0] = was;
    assert_int_equal(intra_trainer_push(t, NULL), NEB_OK);
    train(t, &r, 1, s);
    assert_true(isfinite(s[0].loss) && isfinite(s[0].update.grad_norm));
    intra_trainer_destroy(&t);
}

static void test_refusals(void **state) {
    (void)state;
    struct intra_trainer_config c = config();
    struct intra_trainer *t = NULL;
    c.device = D;
    c.seq_len = T + 1;
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_ERR_INVALID);
    assert_null(t);
    c.seq_len = 1;
    c.batch = KERN_SEQUENCES_MAX + 1;
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_ERR_UNSUPPORTED);
    c.seq_len = T;
    c.batch = 16 * (KERN_SEQUENCES_MAX + 1) / T + 1; // pairs of texts: as many as fit
    c.model.mask = KERN_MASK_PREFIX;
    c.soft_k = 1;
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_cpu), cmocka_unit_test(test_trainable_sets),
        cmocka_unit_test(test_checkpoint),  cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_not_finite),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_wide_rows),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
