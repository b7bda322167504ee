// SPDX-License-Identifier: Apache-2.0
// Masked LM and replaced-token detection: masks and draws depend only on their seeds, labels are
// right, and the gradients of both losses through a bidirectional model match finite differences.
#include "agent/base/rng.h"
#include "intra/model/device.h"
#include "intra/train/rtd.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 2, T = 12, N = B * T, V = 40, MASK = V - 1 };

static struct intra_model *make(enum intra_head head) {
    struct intra_model_config c = {.vocab = V,
                                   .d_model = 16,
                                   .n_layers = 2,
                                   .n_heads = 2,
                                   .n_kv_heads = 1,
                                   .head_dim = 8,
                                   .d_ff = 24,
                                   .max_seq = T,
                                   .rope_theta = 10000,
                                   .norm_eps = 1e-5f,
                                   .tied = true,
                                   .mask = KERN_MASK_BIDIRECTIONAL,
                                   .head = head};
    struct intra_model *m = NULL;
    assert_int_equal(intra_model_create(&c, &(struct intra_trainable){0}, 11, &m), NEB_OK);
    struct neb_rng r = neb_rng_make(3, 3);
    // Moves away from the initial point, where many gradients are tiny.
    for (size_t i = 0; i < m->n_params; i++)
        m->params[i] += 0.1f * neb_rng_normal(&r);
    return m;
}

static void text(int32_t *tokens, int32_t n) {
    struct neb_rng r = neb_rng_make(5, 5);
    for (int32_t i = 0; i < n; i++)
        tokens[i] = 3 + (int32_t)neb_rng_below(&r, V - 4);
}

static double loss_of(struct intra_device *a, const int32_t *in, const int32_t *targets,
                      float scale) {
    double loss = 0;
    int64_t count = 0;
    assert_int_equal(intra_device_pass(
                         a, &(struct intra_batch){.tokens = in, .targets = targets, .B = B, .T = T},
                         scale, &loss, &count),
                     NEB_OK);
    return loss;
}

static void check_gradients(enum intra_head head, const int32_t *in, const int32_t *targets) {
    struct kern *K = NULL;
    struct intra_model *m = make(head);
    struct intra_device *a = NULL;
    assert_int_equal(kern_ref_create(&K), NEB_OK);
    assert_int_equal(intra_device_on_host(K, m, B, T, true, false, &a), NEB_OK);
    const float scale = 0.25f;
    (void)loss_of(a, in, targets, scale);
    bool saw_head = false;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        struct neb_rng r = neb_rng_make(9, (uint64_t)i);
        size_t n = intra_tensor_size(t);
        float *p = intra_param(m, t), *g = intra_grad(m, t), *dir = malloc(n * sizeof *dir),
              *keep = malloc(n * sizeof *keep);
        double want, got = 0, norm = 0;
        saw_head |= !strncmp(t->name, "rtd_head.", 9);
        for (size_t k = 0; k < n; k++) { // along a random direction
            dir[k] = neb_rng_normal(&r);
            got += (double)g[k] * (double)dir[k];
            norm += (double)g[k] * (double)g[k];
        }
        const float eps = 2e-3f / sqrtf((float)n);
        memcpy(keep, p, n * sizeof *keep);
        for (size_t k = 0; k < n; k++)
            p[k] = keep[k] + eps * dir[k];
        want = loss_of(a, in, targets, 0);
        for (size_t k = 0; k < n; k++)
            p[k] = keep[k] - eps * dir[k];
        want = (want - loss_of(a, in, targets, 0)) / (2 * (double)eps) * (double)scale;
        memcpy(p, keep, n * sizeof *keep);
        if (fabs(got - want) > 0.02 * (sqrt(norm) + 1e-3) + 2e-4)
            fail_msg("%s: gradient along a direction %.6g, finite differences %.6g (norm %.3g)",
                     t->name, got, want, sqrt(norm));
        free(dir);
        free(keep);
    }
    assert_int_equal(saw_head, head == INTRA_HEAD_RTD);
    intra_device_destroy(&a);
    intra_model_destroy(&m);
    kern_destroy(&K);
}

static void test_masked_lm_gradients(void **state) {
    (void)state;
    int32_t tokens[N], in[N], targets[N], at[N];
    text(tokens, N);
    int32_t k = intra_mask_positions(1, 2, 0.3, 3, tokens, N, at);
    intra_mask_apply(tokens, N, at, k, MASK, in, targets);
    check_gradients(INTRA_HEAD_LM, in, targets);
}

static void test_detection_gradients(void **state) {
    (void)state;
    int32_t tokens[N], in[N], labels[N], at[N], ids[N];
    text(tokens, N);
    int32_t k = intra_mask_positions(1, 2, 0.4, 3, tokens, N, at);
    for (int32_t i = 0; i < k; i++)
        ids[i] = i % 3 ? 3 + i % (V - 4) : tokens[at[i]];
    assert_true(intra_rtd_apply(tokens, N, at, ids, k, in, labels) > 2);
    labels[5] = KERN_IGNORE;
    check_gradients(INTRA_HEAD_RTD, in, labels);
}

// Every position sees every other one: the last token changes the loss at the first position.
static void test_bidirectional(void **state) {
    (void)state;
    struct kern *K = NULL;
    struct intra_model *m = make(INTRA_HEAD_LM);
    struct intra_device *a = NULL;
    int32_t tokens[N], targets[N];
    text(tokens, N);
    for (int i = 0; i < N; i++)
        targets[i] = i ? KERN_IGNORE : 7;
    assert_int_equal(kern_cpu_create(1, &K), NEB_OK);
    assert_int_equal(intra_device_on_host(K, m, B, T, true, false, &a), NEB_OK);
    double before = loss_of(a, tokens, targets, 0);
    tokens[T - 1] = tokens[T - 1] == 9 ? 10 : 9;
    assert_true(fabs(loss_of(a, tokens, targets, 0) - before) > 1e-6);
    double same = loss_of(a, tokens, targets, 0);
    tokens[T] = tokens[T] == 9 ? 10 : 9; // in the next sequence
    assert_true(loss_of(a, tokens, targets, 0) == same);
    intra_device_destroy(&a);
    intra_model_destroy(&m);
    kern_destroy(&K);
}

static void test_masks(void **state) {
    (void)state;
    enum { MANY = 20000 };
    int32_t *tokens = calloc(5 * MANY, sizeof *tokens), *a = tokens + MANY, *b = a + MANY,
            *in = b + MANY, *out = in + MANY;
    for (int i = 0; i < MANY; i++)
        tokens[i] = i % 10; // three in ten are special
    int32_t n = intra_mask_positions(1, 1, 0.15, 3, tokens, MANY, a);
    assert_true(n > 0.7 * 0.14 * MANY && n < 0.7 * 0.16 * MANY);
    for (int32_t i = 0; i < n; i++)
        assert_true(tokens[a[i]] >= 3 && (!i || a[i] > a[i - 1]));
    assert_int_equal(intra_mask_positions(1, 1, 0.15, 3, tokens, MANY, b), n);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
    int32_t other = intra_mask_positions(1, 2, 0.15, 3, tokens, MANY, b);
    assert_true(other != n || memcmp(a, b, (size_t)n * sizeof *a));
    intra_mask_apply(tokens, MANY, a, n, MASK, in, out);
    int32_t counted = 0;
    for (int i = 0; i < MANY; i++) {
        counted += out[i] != KERN_IGNORE;
        assert_true(out[i] == KERN_IGNORE ? in[i] == tokens[i]
                                          : in[i] == MASK && out[i] == tokens[i]);
    }
    assert_int_equal(counted, n);
    assert_int_equal(intra_mask_positions(1, 1, 0.001, 3, tokens + 3, 5, a), 1); // at least one
    // There is no position where a token may be masked.
    assert_int_equal(intra_mask_positions(1, 1, 0.9, 3, tokens, 3, a), 0);
    free(tokens);
}

// Draws follow the model's distribution, do not depend on the number of threads, and stay below
// n_ids.
static void test_draws(void **state) {
    (void)state;
    enum { DRAWS = 4000, IDS = 20 };
    struct intra_model *m = make(INTRA_HEAD_LM);
    int32_t tokens[N], targets[N], at[DRAWS], first[DRAWS], ids[DRAWS];
    float logits[V];
    static double u[DRAWS];
    text(tokens, N);
    for (int i = 0; i < N; i++)
        targets[i] = 5;
    for (int i = 0; i < DRAWS; i++)
        at[i] = 3; // the same position each time
    for (int threads = 1; threads <= 3; threads += 2) {
        struct kern *K = NULL;
        struct intra_device *a = NULL;
        assert_int_equal(kern_cpu_create(threads, &K), NEB_OK);
        struct intra_device_config c = {.D = K, .batch = DRAWS / T + 1, .seq_len = T, .soft_k = 1};
        assert_int_equal(intra_device_create(&c, m, NULL, &a), NEB_OK);
        (void)loss_of(a, tokens, targets, 0);
        intra_mask_draws(4, 4, DRAWS, u);
        assert_int_equal(intra_device_sample(a, IDS, at, DRAWS, 1, u, threads == 1 ? first : ids),
                         NEB_OK);
        intra_device_logits(a, 3, 1, logits);
        intra_device_destroy(&a);
        kern_destroy(&K);
    }
    assert_memory_equal(first, ids, sizeof ids);
    double sum = 0, distance = 0;
    int counts[IDS] = {0};
    for (int i = 0; i < DRAWS; i++) {
        assert_in_range(ids[i], 0, IDS - 1);
        counts[ids[i]]++;
    }
    for (int k = 0; k < IDS; k++)
        sum += exp((double)logits[k]);
    for (int k = 0; k < IDS; k++)
        distance += fabs(counts[k] / (double)DRAWS - exp((double)logits[k]) / sum);
    assert_true(distance < 0.08); // the expected distance of 4,000 draws from 20 ids is about 0.05
    intra_model_destroy(&m);
}

static void test_auc(void **state) {
    (void)state;
    const float s[] = {0.1f, 0.9f, 0.4f, 0.4f, 0.2f};
    const int32_t l[] = {0, 1, 1, 0, 0};
    assert_true(fabs(intra_rtd_auc(s, l, 5) - 5.5 / 6) < 1e-12); // one pair is tied
    assert_true(isnan(intra_rtd_auc(s, l, 1)));
    assert_true(isnan(intra_rtd_auc((const float[]){1, NAN, 2}, l, 3)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_masked_lm_gradients),
        cmocka_unit_test(test_detection_gradients),
        cmocka_unit_test(test_bidirectional),
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_auc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
