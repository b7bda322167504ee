// SPDX-License-Identifier: Apache-2.0
// A worker of a job with differential privacy, for every kind of trainable set. One length limit
// covers all that is exchanged, each tensor has its share, and scale and noise follow the job's
// keys.
#include "agent/base/log.h"
#include "agent/job/private.h"
#include "agent/train/worker.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char yaml[] =
    "job: t\nsteps: 40\n"
    "model: {vocab: 5, n_layers: 1, d_model: 4, n_heads: 2, n_kv_heads: 1, head_dim: 2, d_ff: 3, "
    "qkv_bias: true}\n"
    "data: {corpus: none, seq_len: 4, batch: 1}\noptim: {lr: 1e-2}\n"
    "sync: {interval: 4, codec: bf16, row_weights: false, gate: private, fragments: 1,\n"
    "  dp: {clip: 0.25, noise: 2}}\n"
    "clusters: [{name: a}, {name: b}, {name: c}]\n";

enum { N = 3, MOST = 4096 };
static uint8_t secrets[N][32], publics[N][32];

struct run {
    struct agent_exchange x;
    struct kern *K;
    struct intra_trainer *trainer;
    struct worker_tensors tensors;
};

static struct run *make(struct intra_trainable what) {
    static const struct agent_trainer_ops ops = {WORKER_TENSORS_OPS};
    struct run *r = calloc(1, sizeof *r);
    struct agent_exchange *x = &r->x;
    struct intra_trainer_config t = testing_small_trainer(what);
    uint8_t keys[N][SEC_SUM_KEY_BYTES];
    static const uint8_t job[SEC_SUM_JOB_BYTES] = {4};
    assert_non_null(r);
    assert_int_equal(agent_job_parse(yaml, sizeof yaml - 1, "t.yaml", &x->job), NEB_OK);
    assert_int_equal(agent_job_validate(&x->job, "t.yaml"), NEB_OK);
    assert_int_equal(kern_cpu_create(1, &r->K), NEB_OK);
    assert_int_equal(intra_trainer_create(&t, r->K, &r->trainer), NEB_OK);
    assert_int_equal(worker_tensors_create(NULL, r->trainer, &r->tensors), NEB_OK);
    x->trainer = worker_tensors_trainer(&r->tensors, &ops);
    x->federated = true;
    sec_sum_own_key(secrets[0], job, keys[0]);
    for (int k = 1; k < N; k++)
        assert_int_equal(sec_sum_pair_key(secrets[0], publics[0], publics[k], job, keys[k]),
                         NEB_OK);
    assert_int_equal(exchange_masked_keys(x, keys, sizeof keys), NEB_OK);
    assert_int_equal(exchange_create(x), NEB_OK);
    return r;
}

static void destroy(struct run *r) {
    exchange_destroy(&r->x);
    worker_tensors_destroy(&r->tensors);
    intra_trainer_destroy(&r->trainer);
    kern_destroy(&r->K);
    free(r);
}

static void check(const struct agent_exchange *x) {
    static int16_t q[MOST], clean[MOST];
    struct sec_privacy p;
    struct sec_sum_head h;
    const uint8_t *body;
    uint64_t all = 0;
    double noise = 0;
    const struct neb_buf *blob = &x->flight[0].blob;
    assert_true(agent_private_noise(&x->job, &p));
    assert_int_equal(sec_sum_open(blob->p, blob->len, &h, &body), NEB_OK);
    assert_int_equal(h.count, x->elements);
    assert_in_range(h.count, 4, MOST);
    sec_sum_take_off(x->sum, &h, body, 0, h.count, q);
    memcpy(clean, q, sizeof clean);
    sec_sum_noise(x->sum, &h, p.variance, 0, h.count, true, clean);
    size_t at = 0;
    for (int32_t i = 0; i < x->trainer.n_units; i++) { // each tensor has its share of the length
        uint64_t unit = 0;
        size_t n = agent_unit_size(&x->trainer.units[i]);
        for (size_t k = at; k < at + n; k++) {
            unit += (uint64_t)((int32_t)clean[k] * clean[k]);
            noise += pow(q[k] - clean[k], 2);
        }
        double share = (double)p.squared / (double)h.count * (double)n;
        assert_true((double)unit > 0.7 * share && (double)unit < 1.3 * share);
        all += unit;
        at += n;
    }
    assert_int_equal(at, h.count);
    assert_true(all <= p.squared && (double)all > 0.9 * (double)p.squared);
    noise /= (double)h.count * p.variance;
    assert_true(fabs(noise - 1) < 5 * sqrt(2.0 / h.count));
    // The bound as an integer is the length that the job names.
    assert_true(fabs((double)agent_private_scale(&x->job) * p.bound / 0.25 - 1) < 1e-6);
}

static void test_all_that_is_exchanged(void **state) {
    (void)state;
    const struct intra_trainable of[] = {
        {.mode = INTRA_TRAIN_FULL},
        {.mode = INTRA_TRAIN_FULL, .freeze_embeddings = true},
        {.mode = INTRA_TRAIN_LORA, .lora_rank = 2, .lora_alpha = 4, .lora_targets = 9},
        {.mode = INTRA_TRAIN_BITFIT},
        {.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct run *r = make(of[i]);
        for (int32_t u = 0; u < r->x.trainer.n_units; u++)
            for (size_t k = 0; k < agent_unit_size(&r->x.trainer.units[u]); k++)
                r->x.trainer.units[u].data[k] += k % 2 ? 3.0f : -3.0f;
        assert_int_equal(exchange_encode(&r->x, 0, &r->x.kept[0].codec), NEB_OK);
        check(&r->x);
        destroy(r);
    }
}

static int setup(void **state) {
    (void)state;
    testing_key_pairs(N, secrets, publics);
    neb_log_set_sink(testing_drop, NULL);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_that_is_exchanged)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
