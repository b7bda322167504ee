// SPDX-License-Identifier: Apache-2.0
// The model calls of the modes rtd and distill on the emulated device, compared with the CPU. The
// cases: a discriminator's head; batches of any shape, with prefixes; a teacher's soft labels,
// which are made and learned from; samples; and a model that does not learn.
#include "agent/base/rng.h"
#include "intra/train/rtd.h"
#include "tests/cuda/train_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = 4, T = 12, N = B * T, V = 61, STEPS = 4, TOP = 5 };

static struct intra_trainer_config config(enum kern_mask mask) {
    struct intra_trainer_config c = small_config(V, B, T, 2);
    c.model.mask = mask;
    c.soft_k = TOP;
    return c;
}

static struct intra_trainer *made(struct intra_trainer_config c, struct kern *device,
                                  enum kern_type type) {
    struct intra_trainer *t = NULL;
    c.device = device;
    c.device_type = type;
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
    return t;
}

static void near(double a, double b, double allowed) {
    if (!(fabs(a - b) <= allowed * fmax(1e-3, fabs(a))))
        fail_msg("%.9g on the CPU, %.9g on the device", a, b);
}

static void same_params(struct intra_trainer *cpu, struct intra_trainer *dev) {
    assert_int_equal(intra_trainer_pull(dev, NULL), NEB_OK);
    for (size_t i = 0; i < cpu->model->n_params; i++)
        assert_true(fabsf(cpu->model->params[i] - dev->model->params[i]) < 2e-3f);
}

static void same_update(struct intra_trainer *cpu, struct intra_trainer *dev, double allowed) {
    struct intra_step_stats a, b;
    intra_trainer_update(cpu, &a);
    intra_trainer_update(dev, &b);
    assert_int_equal(b.status, NEB_OK);
    assert_int_equal(a.tokens, b.tokens);
    near(a.loss, b.loss, allowed);
    near(a.update.grad_norm, b.update.grad_norm, 50 * allowed);
}

// A batch with room for every optional part.
struct drawn {
    int32_t tokens[N], targets[N], prefix[N], ids[N * TOP];
    float logp[N * TOP], tail[N];
    struct kern_soft soft;
    struct intra_batch b;
};

static void draw_of(struct neb_rng *r, struct drawn *x, int b, int t, bool prefix, bool teacher,
                    double targets) { // share of all positions
    memset(x, 0, sizeof *x);
    x->b = (struct intra_batch){.tokens = x->tokens,
                                .targets = x->targets,
                                .B = b,
                                .T = t,
                                .prefix = prefix ? x->prefix : NULL,
                                .teacher = teacher ? &x->soft : NULL};
    x->soft = (struct kern_soft){.k = TOP,
                                 .lambda = 0.7f,
                                 .temperature = 2,
                                 .ids = x->ids,
                                 .logp = x->logp,
                                 .tail = x->tail};
    for (int i = 0; i < b; i++)
        x->prefix[i] = (int32_t)neb_rng_below(r, (uint64_t)t + 1);
    for (int i = 0; i < b * t; i++) {
        x->tokens[i] = (int32_t)neb_rng_below(r, V);
        x->targets[i] = neb_rng_unit(r) < targets ? (x->tokens[i] * 5 + 1) % V : KERN_IGNORE;
        double named = 0;
        for (int k = 0; k < TOP; k++) {
            x->ids[i * TOP + k] = (x->targets[i] + 1 + 7 * k) % V;
            double p = 0.9 * pow(0.5, k + 1);
            x->logp[i * TOP + k] = (float)log(p);
            named += p;
        }
        x->tail[i] = (float)(1 - named);
    }
}

static void draw(struct neb_rng *r, struct drawn *x, int b, int t, bool prefix, bool teacher) {
    draw_of(r, x, b, t, prefix, teacher, 0.75);
}

static void test_discriminator(void **state) {
    (void)state;
    for (int recompute = 0; recompute < 2; recompute++) {
        struct intra_trainer_config c = config(KERN_MASK_BIDIRECTIONAL);
        struct neb_rng r = neb_rng_make(1, 1);
        struct drawn x;
        double a, b;
        int64_t na, nb;
        float za[N], zb[N];
        c.model.head = INTRA_HEAD_RTD;
        c.recompute = recompute;
        struct intra_trainer *cpu = made(c, NULL, KERN_F32), *dev = made(c, D, KERN_F32);
        cpu->weight = dev->weight = 50;
        for (int s = 0; s < STEPS; s++) {
            for (int k = 0; k < c.accumulate; k++) {
                draw(&r, &x, B, T, false, false);
                for (int i = 0; i < N; i++)
                    x.targets[i] = x.targets[i] == KERN_IGNORE ? KERN_IGNORE : x.tokens[i] % 3 == 0;
                intra_trainer_micro(cpu, x.tokens, x.targets);
                intra_trainer_micro(dev, x.tokens, x.targets);
            }
            same_update(cpu, dev, 2e-5);
        }
        same_params(cpu, dev);
        x.b.B = B - 1;
        assert_int_equal(intra_device_pass(cpu->device, &x.b, 0, &a, &na), NEB_OK);
        assert_int_equal(intra_device_pass(dev->device, &x.b, 0, &b, &nb), NEB_OK);
        near(a, b, 1e-3);
        assert_int_equal(na, nb);
        assert_int_equal(intra_device_scores(cpu->device, N - T, za), NEB_OK);
        assert_int_equal(intra_device_scores(dev->device, N - T, zb), NEB_OK);
        for (int i = 0; i < N - T; i++)
            assert_true(fabsf(za[i] - zb[i]) < 2e-3f);
        intra_trainer_destroy(&cpu);
        intra_trainer_destroy(&dev);
    }
}

// Batch shapes vary as with pairs of texts: short and many, long and few; with and without prefixes
// and a teacher; with targets at most positions, at few (the output layer takes these rows only),
// or at none.
static const struct {
    int b, t;
    bool prefix, teacher;
    double targets;
} shapes[] = {{B, T, true, true, 0.8},  {16, 3, true, true, 0.3},   {1, T, true, false, 0.5},
              {B, T, false, true, 0.1}, {7, 5, true, false, 0.2},   {N, 1, true, true, 0.6},
              {B, T, true, true, 0},    {2, 9, false, false, 0.15}, {B, T, false, false, 0.15},
              {B, T, true, true, 1}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void learn_shapes(struct intra_trainer *cpu, struct intra_trainer *dev, double allowed) {
    struct neb_rng r = neb_rng_make(2, 2);
    for (int s = 0; s + 1 < SHAPES; s++) {
        for (int k = 0; k < 2; k++) {
            struct drawn x;
            draw_of(&r, &x, shapes[s + k].b, shapes[s + k].t, shapes[s + k].prefix,
                    shapes[s + k].teacher, shapes[s + k].targets);
            intra_trainer_micro_batch(cpu, &x.b, NULL);
            intra_trainer_micro_batch(dev, &x.b, NULL);
            assert_int_equal(cpu->loss_count, dev->loss_count);
        }
        same_update(cpu, dev, allowed);
    }
}

static void test_shapes(void **state) {
    (void)state;
    struct intra_trainer_config c = config(KERN_MASK_PREFIX);
    for (int tied = 0; tied < 2; tied++) {
        c.model.tied = tied;
        c.recompute = tied;
        struct intra_trainer *cpu = made(c, NULL, KERN_F32), *dev = made(c, D, KERN_F32);
        learn_shapes(cpu, dev, 3e-5);
        same_params(cpu, dev);
        intra_trainer_destroy(&cpu);
        intra_trainer_destroy(&dev);
    }
    c.model.n_heads = 1;
    c.model.head_dim = 32; // a shape for tensor cores
    struct intra_trainer *cpu = made(c, NULL, KERN_F32), *dev = made(c, D, KERN_BF16);
    learn_shapes(cpu, dev, 2e-2);
    intra_trainer_destroy(&cpu);
    intra_trainer_destroy(&dev);
}

// Compares all picks and samples of one pass. n positions, some of them repeated.
static void same_picks(struct intra_device *a, struct intra_device *b,
                       const struct intra_batch *x) {
    enum { PICKS = 40 };
    int32_t at[PICKS], ia[PICKS * TOP], ib[PICKS * TOP], equal = 0;
    float la[PICKS * TOP], lb[PICKS * TOP], ta[PICKS], tb[PICKS];
    double u[PICKS];
    struct intra_batch hidden = *x;
    hidden.targets = NULL;
    for (int i = 0; i < PICKS; i++)
        at[i] = i * 3 / 2 % (x->B * x->T);
    assert_int_equal(intra_device_pass(a, &hidden, 0, NULL, NULL), NEB_OK);
    assert_int_equal(intra_device_pass(b, &hidden, 0, NULL, NULL), NEB_OK);
    assert_int_equal(intra_device_labels(a, at, PICKS, TOP, 2, ia, la, ta), NEB_OK);
    assert_int_equal(intra_device_labels(b, at, PICKS, TOP, 2, ib, lb, tb), NEB_OK);
    for (int i = 0; i < PICKS * TOP; i++) {
        equal += ia[i] == ib[i];
        assert_true(fabsf(la[i] - lb[i]) < 1e-4f);
        assert_true(fabsf(ta[i / TOP] - tb[i / TOP]) < 1e-4f);
    }
    assert_true(equal >= PICKS * TOP - 2); // two equal values may change places
    intra_mask_draws(8, 9, PICKS, u);
    assert_int_equal(intra_device_sample(a, V - 1, at, PICKS, 1.5f, u, ia), NEB_OK);
    assert_int_equal(intra_device_sample(b, V - 1, at, PICKS, 1.5f, u, ib), NEB_OK);
    equal = 0;
    for (int i = 0; i < PICKS; i++) {
        assert_in_range(ib[i], 0, V - 2);
        equal += ia[i] == ib[i];
    }
    assert_true(equal >= PICKS - 1); // a sample may lie on the border between two tokens
    assert_int_equal(intra_device_sample(b, V - 1, at, 0, 1, u, ib), NEB_OK);
}

static void test_picks(void **state) {
    (void)state;
    struct intra_trainer_config c = config(KERN_MASK_PREFIX);
    struct intra_trainer *cpu = made(c, NULL, KERN_F32), *dev = made(c, D, KERN_F32);
    struct intra_device *a = cpu->device, *b = dev->device;
    struct neb_rng r = neb_rng_make(3, 3);
    struct drawn x;
    learn_shapes(cpu, dev, 3e-5);
    assert_int_equal(intra_trainer_pull(dev, NULL), NEB_OK);
    memcpy(cpu->model->params, dev->model->params, cpu->model->n_params * sizeof(float));
    draw(&r, &x, 7, 6, true, false);
    same_picks(a, b, &x.b);
    // Compares after a pass that also learned, and before the update.
    draw(&r, &x, B, T, true, false);
    intra_trainer_micro_batch(cpu, &x.b, NULL);
    intra_trainer_micro_batch(dev, &x.b, NULL);
    same_picks(a, b, &x.b);
    intra_trainer_destroy(&cpu);
    intra_trainer_destroy(&dev);
}

// A frozen teacher needs less memory for the same passes, independent of the number of layers.
static void test_frozen(void **state) {
    (void)state;
    struct intra_trainer_config c = config(KERN_MASK_PREFIX);
    c.model.n_layers = 5;
    struct intra_trainer *cpu = made(c, NULL, KERN_F32), *dev = made(c, D, KERN_F32);
    struct intra_device *a = cpu->device, *b = NULL;
    struct intra_device_config dc = {.D = D,
                                     .type = KERN_F32,
                                     .batch = B,
                                     .seq_len = T,
                                     .micros = 1,
                                     .recompute = true,
                                     .soft_k = TOP};
    struct neb_rng r = neb_rng_make(4, 4);
    assert_int_equal(intra_device_create(&dc, cpu->model, NULL, &b), NEB_OK);
    assert_true(3 * intra_device_bytes(b) < intra_device_bytes(dev->device));
    for (int s = 0; s < SHAPES; s++) {
        struct drawn x;
        double la, lb;
        int64_t na, nb;
        draw_of(&r, &x, shapes[s].b, shapes[s].t, shapes[s].prefix, false, shapes[s].targets);
        assert_int_equal(intra_device_pass(a, &x.b, 0, &la, &na), NEB_OK);
        assert_int_equal(intra_device_pass(b, &x.b, 0, &lb, &nb), NEB_OK);
        near(la, lb, 2e-5);
        assert_int_equal(na, nb);
        same_picks(a, b, &x.b);
    }
    intra_device_destroy(&b);
    intra_trainer_destroy(&cpu);
    intra_trainer_destroy(&dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_discriminator),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_picks),
        cmocka_unit_test(test_frozen),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
