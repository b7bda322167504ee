// SPDX-License-Identifier: Apache-2.0
// Training with bf16 products on processors (intra_trainer_config.device_type without a device):
// gradients and losses close to fp32's, the same bits with weights converted once or for each
// product.
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "intra/train/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { V = 256, T = 64, B = 8, N = B * T, STEPS = 100 };

static struct intra_trainer_config config(enum kern_type type, const struct intra_trainable *what) {
    return (struct intra_trainer_config){
        .model = {.vocab = V,
                  .d_model = 64,
                  .n_layers = 3,
                  .n_heads = 4,
                  .n_kv_heads = 2,
                  .head_dim = 16,
                  .d_ff = 160,
                  .max_seq = T,
                  .rope_theta = 1000,
                  .norm_eps = 1e-5f,
                  .tied = true,
                  .mask = KERN_MASK_CAUSAL},
        .trainable = *what,
        .batch = B,
        .seq_len = T,
        .accumulate = 1,
        .seed = 4,
        .device_type = type,
        .optim = {.schedule = {.kind = INTRA_SCHEDULE_CONSTANT, .lr = 1e-3f, .warmup = 10},
                  .clip = {.kind = INTRA_CLIP_GLOBAL_NORM, .max_norm = 1},
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .weight_decay = 0.1f}};
}
static const struct intra_trainable full = {.mode = INTRA_TRAIN_FULL};
static const struct intra_trainable lora = {
    .mode = INTRA_TRAIN_LORA, .lora_rank = 4, .lora_alpha = 8, .lora_targets = 127};

struct side {
    struct kern *K;
    struct intra_trainer *t;
};
static struct side make(const struct intra_trainer_config *c) {
    struct side s = {0};
    assert_int_equal(kern_cpu_create(2, &s.K), NEB_OK);
    assert_int_equal(intra_trainer_create(c, s.K, &s.t), NEB_OK);
    assert_true((c->device_type == KERN_BF16) == !!strcmp(kern_cpu_products(s.K), "fp32"));
    return s;
}
static void done(struct side *s) {
    intra_trainer_destroy(&s->t);
    kern_destroy(&s->K);
}

// Text of a licence: every Debian has it, and it never changes.
static const char licence[] = "/usr/share/common-licenses/GPL-3";
static struct neb_map text;

static void draw(uint64_t batch, int32_t *x, int32_t *y) {
    struct neb_rng r = neb_rng_make(batch, 9);
    for (int b = 0; b < B; b++) {
        const uint8_t *at = text.p + neb_rng_below(&r, text.len - T - 1);
        for (int i = 0; i < T; i++) {
            x[b * T + i] = at[i];
            y[b * T + i] = at[i + 1];
        }
    }
}

static double step(struct side *s, uint64_t batch) {
    int32_t x[N], y[N];
    struct intra_step_stats stats;
    draw(batch, x, y);
    intra_trainer_micro(s->t, x, y);
    intra_trainer_update(s->t, &stats);
    return stats.loss;
}

// The distance of two gradients of a tensor, relative to the norm of the second.
static double off(const float *a, const float *b, size_t n) {
    double far = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        far += d * d;
        size += (double)b[i] * (double)b[i];
    }
    return size > 0 ? sqrt(far / size) : far > 0 ? INFINITY : 0;
}

// After some steps, the gradient of each tensor is within 2 % of that of fp32, by norm. Each
// product on the way adds up to 2^-9, the largest error of a rounded operand.
static void compare_gradients(const struct intra_trainable *what) {
    struct intra_trainer_config c32 = config(KERN_F32, what), c16 = config(KERN_BF16, what);
    struct side a = make(&c32), b = make(&c16);
    int32_t x[N], y[N];
    double worst = 0;
    for (uint64_t k = 0; k < 5; k++)
        step(&a, k);
    memcpy(b.t->model->params, a.t->model->params, a.t->model->n_params * sizeof(float));
    draw(99, x, y);
    intra_trainer_micro(a.t, x, y);
    intra_trainer_micro(b.t, x, y);
    const struct intra_model *m = a.t->model;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *w = &m->tensors[i];
        if (!w->trainable)
            continue;
        double far = off(intra_grad(b.t->model, &b.t->model->tensors[i]), intra_grad(m, w),
                         intra_tensor_size(w));
        worst = fmax(worst, far);
        if (!(far < 0.02))
            fail_msg("gradient of %s is off by %.4f of its norm", w->name, far);
    }
    assert_true(worst > 1e-4); // this shows that it was not fp32
    print_message("%s: gradients within %.2f %%\n", kern_cpu_products(b.K), 100 * worst);
    done(&a);
    done(&b);
}
static void test_gradients(void **state) {
    (void)state;
    compare_gradients(&full);
    compare_gradients(&lora);
}

// The bits are the same with recomputed blocks, and with weights that are converted once for two
// micro-batches or for each product.
static void test_same_bits(void **state) {
    (void)state;
    struct intra_trainer_config c = config(KERN_BF16, &full), again = c;
    again.recompute = true;
    struct side a = make(&c), b = make(&again), d = make(&c);
    int32_t x[N], y[N];
    size_t bytes = a.t->model->n_trainable * sizeof(float);
    for (uint64_t k = 0; k < 3; k++) {
        struct intra_step_stats s;
        for (uint64_t micro = 0; micro < 2; micro++) {
            draw(2 * k + micro, x, y);
            intra_trainer_micro(a.t, x, y);
            intra_trainer_micro(b.t, x, y);
            // without a promise that parameters do not change
            struct intra_batch batch = {.tokens = x, .targets = y, .B = B, .T = T};
            d.t->loss_count += intra_device_micro(d.t->device, &batch, 1.0f / N);
            assert_int_equal(a.t->loss_count, d.t->loss_count);
        }
        assert_memory_equal(a.t->model->grads, b.t->model->grads, bytes);
        assert_memory_equal(a.t->model->grads, d.t->model->grads, bytes);
        intra_trainer_update(a.t, &s);
        intra_trainer_update(b.t, &s);
        intra_trainer_update(d.t, &s);
    }
    assert_memory_equal(a.t->model->params, d.t->model->params,
                        a.t->model->n_params * sizeof(float));
    // The next evaluation and the next pass use parameters that changed outside of steps.
    double before = intra_trainer_eval(a.t, x, y, B), loss = 0;
    int64_t count = 0;
    for (size_t i = 0; i < a.t->model->n_params; i++)
        a.t->model->params[i] *= 1.25f;
    assert_true(fabs(intra_trainer_eval(a.t, x, y, B) - before) > 1e-3);
    for (size_t i = 0; i < a.t->model->n_params; i++)
        a.t->model->params[i] /= 1.25f; // exact except for some last bits
    assert_int_equal(
        intra_device_pass(a.t->device,
                          &(struct intra_batch){.tokens = x, .targets = y, .B = B, .T = T}, 0,
                          &loss, &count),
        NEB_OK);
    assert_true(fabs(loss / (double)count - before) < 1e-4);
    done(&a);
    done(&b);
    done(&d);
}

// 100 steps on real text: bf16 learns as fast as fp32, within 0.05 nats in the mean of the last ten
// steps. A small change at the start makes fp32 itself differ by nearly half of that.
static void test_loss_parity(void **state) {
    (void)state;
    struct intra_trainer_config c32 = config(KERN_F32, &full), c16 = config(KERN_BF16, &full);
    struct side a = make(&c32), b = make(&c16);
    double first = 0, last[2] = {0};
    int equal = 0;
    for (uint64_t k = 0; k < STEPS; k++) {
        double x = step(&a, k), y = step(&b, k);
        first = k ? first : x;
        equal += x == y;
        if (k >= STEPS - 10)
            last[0] += x / 10, last[1] += y / 10;
    }
    print_message("loss %.4f, after %d steps %.4f in fp32, %.4f in bf16\n", first, STEPS, last[0],
                  last[1]);
    assert_true(last[0] < first - 2);
    assert_true(fabs(last[0] - last[1]) < 0.05);
    assert_true(equal < STEPS / 10);
    done(&a);
    done(&b);
}

int main(void) {
    if (access(licence, R_OK) != 0 || neb_map_open(licence, &text) != NEB_OK) {
        print_message("there is no %s\n", licence);
        return 77;
    }
    const struct CMUnitTest brief[] = {cmocka_unit_test(test_gradients),
                                       cmocka_unit_test(test_same_bits)};
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients),
                                       cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_loss_parity)};
    // Runs with this processor's bf16 instructions if it has them, and with plain code. The long
    // test runs once only.
    struct kern *K = NULL;
    int bad = 0;
    unsetenv("NEBULA_BF16");
    bool here = kern_cpu_create(1, &K) == NEB_OK && kern_cpu_bf16_possible(K);
    if (here)
        bad = cmocka_run_group_tests_name("this processor", tests, NULL, NULL);
    setenv("NEBULA_BF16", "plain", 1);
    bad += here ? cmocka_run_group_tests_name("plain", brief, NULL, NULL)
                : cmocka_run_group_tests_name("plain", tests, NULL, NULL);
    kern_destroy(&K);
    neb_map_close(&text);
    return bad;
}
