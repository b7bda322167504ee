// SPDX-License-Identifier: Apache-2.0
// What an update reveals about its site's text to a member: the tokens of one step, from its row
// counts, and from the update alone. A site whose policy says only "data" refuses such jobs. Coarse
// counts name no rare token.
#include "agent/base/rng.h"
#include "agent/daemon/policy.h"
#include "agent/exchange/exchange.h"
#include "compress/codec.h"
#include "compress/update.h"
#include "intra/train/trainer.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 512, D = 8, BIGRAMS = 200, STEPS = 100 };

// ---- the policy ---------------------------------------------------------------------------------

static const char one_token_steps[] =
    "job: leak\nsteps: 400\nmodel: {vocab: 512, n_layers: 1, d_model: 8, n_heads: 2, d_ff: 16, "
    "tied: "
    "false}\ndata: {corpus: /data, seq_len: 1, batch: 1}\noptim: {lr: 0.01, beta1: 0}\n"
    "sync: {interval: 1, row_counts: exact, row_weights: %s}\nclusters:\n  - {name: paris}\n  - "
    "{name: mallory}\n";

static bool admitted(const char *policy, const char *row_weights, const char *set) {
    static const struct agent_policy_load none;
    char text[1024], why[1024] = "";
    struct agent_policy *p = malloc(sizeof *p);
    struct agent_job *j = calloc(1, sizeof *j);
    int n = snprintf(text, sizeof text, one_token_steps, row_weights);
    assert_int_equal(agent_job_parse(text, (size_t)n, "leak.yaml", j), NEB_OK);
    if (set)
        assert_int_equal(agent_job_set(j, set), NEB_OK);
    assert_int_equal(agent_policy_parse(policy, strlen(policy), "policy.json", p), NEB_OK);
    bool ok = agent_policy_admits(p, j, 0, "mallory", &none, why, sizeof why);
    free(j);
    free(p);
    return ok;
}

static void refuses(const char *row_weights) {
    static const char data_only[] = "{\"format\": 1, \"data\": [\"/\"]}";
    assert_false(admitted(data_only, row_weights, NULL));
    // A little more text an update does not change that. Nor do settings that only look safer.
    assert_false(admitted(data_only, row_weights, "data.batch=4"));
    assert_false(admitted(data_only, row_weights, "sync.interval=400"));
    assert_false(admitted(data_only, row_weights, "sync.gate=robust"));
    assert_true(admitted("{\"format\": 1, \"tokens_per_update\": 1, \"row_counts\": \"exact\"}",
                         row_weights, NULL));
}

// ---- row counts ---------------------------------------------------------------------------------

// The row counts of an update, as every member reads them. counts: (V)
static void told(const uint64_t *counts, uint32_t out[V]) {
    static const float zero[V * D];
    const struct cmp_unit_shape shape = {0, V, D, true};
    struct cmp_codec codec;
    struct cmp_work *w = NULL;
    struct cmp_update_unit unit;
    struct neb_buf b = {0};
    assert_int_equal(cmp_codec_parse("int4", &codec), NEB_OK);
    assert_int_equal(cmp_work_create(&w), NEB_OK);
    cmp_update_begin(&b, 1);
    assert_int_equal(cmp_update_add(w, &b, &shape, &codec, &(struct cmp_source){.x = zero}, counts),
                     NEB_OK);
    assert_int_equal(cmp_update_open(b.p, b.len, &shape, 1, &unit), NEB_OK);
    assert_int_equal(cmp_update_counts(w, &unit, V, out), NEB_OK);
    neb_buf_free(&b);
    cmp_work_destroy(&w);
}

// The only row that has a count; -1: there is none, or there are several.
static int named(const uint32_t counts[V]) {
    int found = -1;
    for (int r = 0; r < V; r++)
        if (counts[r])
            found = found < 0 ? r : V;
    return found < V ? found : -1;
}

static void coarse(const uint64_t *seen, const uint64_t *all, double share, uint64_t *out) {
    for (int r = 0; r < V; r++)
        out[r] = cmp_count_coarse(seen[r], all[r], share);
}

// With seq_len 1, batch 1, interval 1 the input row names the token, and the output row the next
// one.
static void test_bigrams_from_row_counts(void **state) {
    (void)state;
    int exact = 0, guessed = 0;
    for (int k = 0; k < BIGRAMS; k++) {
        struct neb_rng rng = neb_rng_make((uint64_t)k, 1);
        int token[2] = {(int)neb_rng_below(&rng, V), (int)neb_rng_below(&rng, V)}, right = 0,
            right_coarse = 0;
        for (int side = 0; side < 2; side++) {
            uint64_t seen[V] = {0}, rounded[V];
            uint32_t counts[V];
            seen[token[side]] = 1;
            told(seen, counts);
            right += named(counts) == token[side];
            coarse(seen, seen, 1, rounded);
            told(rounded, counts);
            right_coarse += named(counts) == token[side];
        }
        exact += right == 2;
        guessed += right_coarse > 0;
    }
    assert_int_equal(exact, BIGRAMS); // the attack works on exact counts
    assert_int_equal(guessed, 0);
    refuses("true");
}

// Random common words: a few rows have most of the tokens.
static void text(struct neb_rng *rng, uint64_t *counts, int tokens) {
    for (int i = 0; i < tokens; i++) {
        uint64_t a = neb_rng_below(rng, V - 1), b = neb_rng_below(rng, V - 1);
        counts[a * b / V]++;
    }
}

// Over many updates: a word that came fewer than eight times does not show in any of them.
static void test_coarse_counts_hide_rare_words(void **state) {
    (void)state;
    enum { TOKENS = 2048, UPDATES = 40, WORD = V - 1 };
    for (int times = 1; times < CMP_COUNT_FLOOR; times++)
        for (int when = 0; when < UPDATES; when += 13) {
            struct neb_rng rng = neb_rng_make((uint64_t)when, 2);
            uint64_t all[V] = {0}, with_all[V] = {0};
            for (int u = 0; u < UPDATES; u++) {
                uint64_t seen[V] = {0}, with[V], out[V], with_out[V];
                text(&rng, seen, TOKENS);
                memcpy(with, seen, sizeof with);
                with[WORD] += u == when ? (uint64_t)times : 0;
                for (int r = 0; r < V; r++) {
                    all[r] += seen[r];
                    with_all[r] += with[r];
                }
                coarse(seen, all, 1.0 / (u + 1), out);
                coarse(with, with_all, 1.0 / (u + 1), with_out);
                assert_memory_equal(out, with_out, sizeof out);
                for (int r = 0; r < V; r++) // a power of two, and 0 for a rare row
                    assert_true(!(out[r] & (out[r] - 1)) && (all[r] >= CMP_COUNT_FLOOR || !out[r]));
            }
        }
}

// The bytes of an update carry coarse counts unchanged, so members compute the same weights.
static void test_coarse_counts_travel(void **state) {
    (void)state;
    static const struct {
        uint64_t seen, all;
        double share;
        uint64_t told;
    } cases[] = {{0, 0, 1, 0},         {1, 1, 1, 0},
                 {7, 7, 1, 0},         {0, 7, 0.1, 0},
                 {8, 8, 1, 8},         {15, 15, 1, 8},
                 {16, 4000, 0.1, 16},  {UINT64_C(1) << 40, UINT64_C(1) << 40, 1, UINT64_C(1) << 40},
                 {0, 8, 0.001, 1}, // of the job, spread evenly
                 {7, 8, 0.001, 1}, // the value does not depend on what came now
                 {0, 100, 0.03, 2},    {3, 100, 0.05, 4},
                 {7, 1000, 0.9, 4}, // but not as if it had come eight times
                 {0, UINT64_MAX, 1, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t x = cmp_count_coarse(cases[i].seen, cases[i].all, cases[i].share);
        assert_int_equal(x, cases[i].told);
        uint32_t back = cmp_count_value(cmp_count_code(x));
        assert_true(back == x || x > UINT32_MAX / 2);
    }
}

// ---- the update alone ---------------------------------------------------------------------------

static struct intra_trainer *make(struct kern *K, enum intra_trainable_mode mode) {
    struct intra_trainer *t = NULL;
    const struct intra_trainer_config c = {
        .model = {.vocab = V,
                  .d_model = D,
                  .n_layers = 1,
                  .n_heads = 2,
                  .n_kv_heads = 2,
                  .head_dim = 4,
                  .d_ff = 16,
                  .max_seq = 1,
                  .rope_theta = 100,
                  .norm_eps = 1e-5f,
                  .mask = KERN_MASK_CAUSAL},
        .trainable = {.mode = mode, .last_layers = 1},
        .batch = 1,
        .seq_len = 1,
        .accumulate = 1,
        .seed = 4,
        .optim = {.schedule = {.kind = INTRA_SCHEDULE_CONSTANT, .lr = 0.01f},
                  .beta1 = 0,
                  .beta2 = 0.95f,
                  .eps = 1e-8f}};
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
    return t;
}

// Finds the row that differs from all others. Inputs: the only row that changed. Outputs (turned):
// the only row that moved in the other direction.
static int odd_row(const struct intra_model *m, const struct intra_tensor *w, const float *before,
                   bool turned) {
    const float *now = m->params + w->at;
    float mean[D] = {0};
    int found = -1;
    double best = 0;
    for (int r = 0; r < V; r++)
        for (int i = 0; i < D; i++)
            mean[i] += (now[r * D + i] - before[w->at + (size_t)(r * D + i)]) / V;
    for (int r = 0; r < V; r++) {
        double x = 0;
        for (int i = 0; i < D; i++) {
            double d = (double)now[r * D + i] - before[w->at + (size_t)(r * D + i)];
            x += turned ? -d * mean[i] : d * d;
        }
        if (x > best) {
            best = x;
            found = r;
        }
    }
    return found;
}

// One step of one token without momentum: embedding and output show it without row counts. With
// last_layers the output still shows the next token.
static void test_tokens_from_the_update(void **state) {
    (void)state;
    struct kern *K = NULL;
    assert_int_equal(kern_ref_create(&K), NEB_OK);
    for (int last = 0; last < 2; last++) {
        struct intra_trainer *t = make(K, last ? INTRA_TRAIN_LAST_LAYERS : INTRA_TRAIN_FULL);
        const struct intra_model *m = t->model;
        float *before = malloc(m->n_params * sizeof *before);
        int inputs = 0, outputs = 0;
        for (int k = 0; k < STEPS; k++) {
            struct neb_rng rng = neb_rng_make((uint64_t)k, 3);
            int32_t x = (int32_t)neb_rng_below(&rng, V), y = (int32_t)neb_rng_below(&rng, V);
            struct intra_step_stats s;
            memcpy(before, m->params, m->n_params * sizeof *before);
            intra_trainer_micro(t, &x, &y);
            intra_trainer_update(t, &s);
            inputs += odd_row(m, m->embed, before, false) == x;
            outputs += odd_row(m, m->head, before, true) == y;
        }
        assert_int_equal(outputs, STEPS);
        assert_int_equal(inputs, last ? 0 : STEPS);
        free(before);
        intra_trainer_destroy(&t);
    }
    kern_destroy(&K);
    refuses("false");
    static const char data_only[] = "{\"format\": 1, \"data\": [\"/\"]}";
    assert_false(admitted(data_only, "false", "trainable.mode=bitfit"));
}

// A policy's minimum also binds the leader of a round. Its record plans the intervals, and the
// steps that a cluster leaves out.
static void test_no_plan_shortens_an_update(void **state) {
    (void)state;
    static const struct {
        int mode;
        bool balance;
        uint32_t planned, becomes;
        uint8_t left_out;
    } cases[] = {{AGENT_TUNE_FIXED, true, 1, 10, 0},  {AGENT_TUNE_FIXED, true, 40, 10, 0},
                 {AGENT_TUNE_AUTO, true, 1, 10, 56},  {AGENT_TUNE_AUTO, false, 9, 10, 0},
                 {AGENT_TUNE_AUTO, true, 10, 10, 56}, {AGENT_TUNE_AUTO, false, 40, 40, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct agent_exchange *x = calloc(1, sizeof *x);
        x->job.sync.interval = 10;
        x->job.sync.fragments = 1;
        x->job.sync.tune.mode = cases[i].mode;
        x->job.sync.tune.balance = cases[i].balance;
        x->schedule = (struct agent_schedule){.steps = 100, .interval = 10, .fragments = 1};
        x->step = 10;
        x->kept[0].plans[0] = (struct inter_plan){.interval = cases[i].planned, .left_out = 56};
        exchange_plan_sent(x, 0);
        assert_int_equal(x->schedule.interval, cases[i].becomes);
        assert_int_equal(x->left_out, cases[i].left_out);
        free(x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bigrams_from_row_counts),
                                       cmocka_unit_test(test_coarse_counts_hide_rare_words),
                                       cmocka_unit_test(test_coarse_counts_travel),
                                       cmocka_unit_test(test_tokens_from_the_update),
                                       cmocka_unit_test(test_no_plan_shortens_an_update)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
