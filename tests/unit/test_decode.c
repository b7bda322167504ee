// SPDX-License-Identifier: Apache-2.0
// Decoding against the plain forward pass, batches against single prompts, and bad input. Meshes:
// tests/parallel/test_mesh_decode.sh; devices: tests/cuda/test_mesh_decode.sh.
#include "agent/base/rng.h"
#include "intra/train/decode.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 40, SEQ = 24, EOS = 2, PROMPTS = 9 };

static struct kern *K;

static struct intra_model_config shape(enum kern_mask mask) {
    return (struct intra_model_config){.vocab = V,
                                       .d_model = 32,
                                       .n_layers = 3,
                                       .n_heads = 4,
                                       .n_kv_heads = 2,
                                       .head_dim = 8,
                                       .d_ff = 48,
                                       .max_seq = SEQ,
                                       .rope_theta = 10000,
                                       .norm_eps = 1e-5f,
                                       .tied = true,
                                       .qkv_bias = true,
                                       .mask = mask};
}

static struct intra_group *make(bool lora, enum kern_mask mask, int32_t rows) {
    struct intra_model_config c = shape(mask);
    struct intra_trainable t = {.mode = lora ? INTRA_TRAIN_LORA : INTRA_TRAIN_FULL,
                                .lora_rank = lora ? 3 : 0,
                                .lora_alpha = 6,
                                .lora_targets = lora ? 127 : 0};
    const struct intra_place at = {.K = K};
    struct intra_group *g = NULL;
    struct intra_model *m = NULL;
    struct neb_rng rng = neb_rng_make(11, 4);
    assert_int_equal(intra_decode_group(&c, &t, &at, SEQ, rows, KERN_SOFT_K_MAX, &g), NEB_OK);
    assert_int_equal(intra_model_create(&c, &t, 3, &m), NEB_OK);
    for (size_t i = 0; i < m->n_params; i++) // large enough that tokens differ
        intra_group_model(g)->params[i] = m->params[i] + 0.15f * neb_rng_normal(&rng);
    assert_int_equal(intra_group_push(g, NULL), NEB_OK);
    intra_model_destroy(&m);
    return g;
}

static double log_prob(struct intra_device *a, const int32_t *tokens, int32_t n, int32_t prefix,
                       int32_t next, int32_t *best) {
    float z[V];
    double sum = 0;
    assert_int_equal(intra_device_pass(
                         a,
                         &(struct intra_batch){.tokens = tokens, .B = 1, .T = n, .prefix = &prefix},
                         0, NULL, NULL),
                     NEB_OK);
    intra_device_logits(a, n - 1, 1, z);
    *best = 0;
    for (int32_t i = 0; i < V; i++) {
        sum += exp((double)z[i]);
        *best = z[i] > z[*best] ? i : *best;
    }
    return (double)z[next < 0 ? *best : next] - log(sum);
}

static struct intra_device *passes(struct intra_group *g) {
    struct intra_device *a = NULL;
    assert_int_equal(intra_device_on_host(K, intra_group_model(g), 1, SEQ, false, false, &a),
                     NEB_OK);
    return a;
}

static int32_t one(struct intra_group *g, const struct intra_decode_config *c,
                   const int32_t *tokens, int32_t n, int32_t most, int32_t *out) {
    struct intra_prompt p = {.tokens = tokens, .n = n, .most = most, .out = out};
    assert_int_equal(intra_decode(g, c, &p, 1), NEB_OK);
    return p.got;
}

// Greedy decoding gives the most likely token of the forward pass at each step.
static void greedy_is_the_forward_pass(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct intra_group *g = make(kind & 1, kind & 2 ? KERN_MASK_CAUSAL : KERN_MASK_PREFIX, 1);
        struct intra_device *a = passes(g);
        const struct intra_decode_config c = {.eos = EOS, .prefix = true};
        for (int32_t n = 1; n < SEQ; n += 5) {
            int32_t tokens[SEQ + 1], out[SEQ], best, len = n;
            for (int32_t i = 0; i < n; i++)
                tokens[i] = (i * 7 + n + kind) % V;
            int32_t got = one(g, &c, tokens, n, SEQ, out);
            for (int32_t i = 0; len < SEQ; i++, len++) {
                log_prob(a, tokens, len, n, -1, &best);
                if (best == EOS) {
                    assert_int_equal(i, got);
                    break;
                }
                assert_true(i < got);
                assert_int_equal(out[i], best);
                tokens[len] = best;
            }
            assert_int_equal(got, len - n);
        }
        intra_device_destroy(&a);
        intra_group_destroy(&g);
    }
}

static double score_of(struct intra_device *a, const int32_t *prefix, int32_t n, const int32_t *out,
                       int32_t got, int32_t limit) {
    int32_t tokens[SEQ + 1], best;
    double sum = 0;
    memcpy(tokens, prefix, sizeof(int32_t) * (size_t)n);
    for (int32_t i = 0; i < got; i++) {
        sum += log_prob(a, tokens, n + i, n, out[i], &best);
        tokens[n + i] = out[i];
    }
    if (got < limit)
        sum += log_prob(a, tokens, n + got, n, EOS, &best);
    return sum;
}

// A wide beam finds scores at least as good as greedy decoding; the slots follow their beams.
static void wide_beam_is_exhaustive(void **state) {
    (void)state;
    struct intra_group *g = make(false, KERN_MASK_PREFIX, 4);
    struct intra_device *a = passes(g);
    int better = 0;
    for (int32_t seed = 0; seed < 12; seed++) {
        int32_t prefix[4] = {seed, 3 * seed % V, 7, 1}, greedy[6], wide[6], whole[6];
        struct intra_decode_config c = {.eos = EOS, .prefix = true};
        int32_t n1 = one(g, &c, prefix, 4, 6, greedy);
        c.beam = INTRA_BEAM_MAX;
        int32_t n2 = one(g, &c, prefix, 4, 6, wide);
        double s = score_of(a, prefix, 4, greedy, n1, 6), w = score_of(a, prefix, 4, wide, n2, 6);
        // both hypotheses have ended, or neither has: their sums can be compared
        if (n2 < 6 || n1 == 6)
            assert_true(w >= s - 1e-3 || n1 < 6);
        better += w > s + 1e-3;
        c.uncached = true;
        assert_int_equal(one(g, &c, prefix, 4, 6, whole), n2);
        assert_memory_equal(whole, wide, (size_t)n2 * sizeof *wide);
    }
    assert_true(better > 0); // otherwise the search proves nothing
    intra_device_destroy(&a);
    intra_group_destroy(&g);
}

// A decoder for fewer tokens than the model takes ends at its limit. Its tokens are the same until
// then.
static void limits_hold(void **state) {
    (void)state;
    struct intra_group *g = make(false, KERN_MASK_PREFIX, 4);
    for (int beam = 1; beam < 4; beam += 2)
        for (int32_t seed = 0; seed < 12; seed++) {
            int32_t prefix[4] = {seed, 3 * seed % V, 7, 1}, all[6], cut[6];
            struct intra_decode_config c = {.eos = EOS, .prefix = true};
            int32_t n1 = one(g, &c, prefix, 4, 6, all);
            c.longest = 4 + 3;
            int32_t n2 = one(g, &c, prefix, 4, 6, cut);
            assert_int_equal(n2, n1 < 3 ? n1 : 3);
            assert_memory_equal(cut, all, (size_t)n2 * sizeof *cut);
            assert_int_equal(one(g, &c, prefix, 4, 0, cut), 0);
        }
    intra_group_destroy(&g);
}

struct texts {
    int32_t tokens[PROMPTS][SEQ], out[PROMPTS][SEQ];
    struct intra_prompt p[PROMPTS];
};
static void prompts_of(struct texts *x) {
    for (int i = 0; i < PROMPTS; i++) {
        x->p[i] = (struct intra_prompt){
            .tokens = x->tokens[i], .n = 1 + i * 5 % 17, .most = SEQ - i, .out = x->out[i]};
        for (int32_t j = 0; j < x->p[i].n; j++)
            x->tokens[i][j] = (i * 11 + j * 3 + 1) % V;
    }
}

static const struct intra_decode_config ways[] = {
    {.eos = EOS, .prefix = true},
    {.eos = -1, .temperature = 0.8f, .seed = 5},
    {.eos = EOS, .temperature = 1.4f, .top_k = 6, .seed = 5},
    {.eos = EOS, .beam = 3, .alpha = 1, .prefix = true},
    {.eos = -1, .longest = 9, .slides = true},
};

// Batches give each prompt the tokens that it gets alone, whatever their size; so do passes without
// a cache.
static void batches_are_single_prompts(void **state) {
    (void)state;
    static struct texts a, b;
    for (int32_t rows = 1; rows < 12; rows += 5) {
        struct intra_group *g = make(false, KERN_MASK_PREFIX, rows);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            struct intra_decode_config c = ways[w];
            prompts_of(&a);
            if (c.longest && !c.slides)
                continue;
            assert_int_equal(intra_decode(g, &c, a.p, PROMPTS), NEB_OK);
            for (int again = 0; again < 2; again++) {
                prompts_of(&b);
                c.uncached = again;
                assert_int_equal(intra_decode(g, &c, b.p, PROMPTS), NEB_OK);
                for (int i = 0; i < PROMPTS; i++) {
                    assert_int_equal(a.p[i].got, b.p[i].got);
                    assert_int_equal(a.p[i].ended, b.p[i].ended);
                    assert_memory_equal(a.out[i], b.out[i], (size_t)a.p[i].got * sizeof(int32_t));
                }
            }
            c.uncached = false;
            for (int i = 0; i < PROMPTS && c.temperature <= 0; i++) {
                int32_t out[SEQ];
                int32_t n = one(g, &c, a.tokens[i], a.p[i].n, a.p[i].most, out);
                assert_int_equal(n, a.p[i].got);
                assert_memory_equal(out, a.out[i], (size_t)n * sizeof *out);
            }
        }
        intra_group_destroy(&g);
    }
}

// A prompt draws from a stream of its own: its tokens do not depend on prompts after it, and
// another seed gives others.
static void draws_are_seeded(void **state) {
    (void)state;
    static struct texts a, b;
    struct intra_group *g = make(false, KERN_MASK_CAUSAL, 4);
    struct intra_decode_config c = {.eos = -1, .temperature = 1, .seed = 8};
    int differ = 0;
    prompts_of(&a);
    prompts_of(&b);
    assert_int_equal(intra_decode(g, &c, a.p, PROMPTS), NEB_OK);
    assert_int_equal(intra_decode(g, &c, b.p, 3), NEB_OK);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(a.out[i], b.out[i], (size_t)b.p[i].got * sizeof(int32_t));
    c.seed = 9;
    prompts_of(&b);
    assert_int_equal(intra_decode(g, &c, b.p, PROMPTS), NEB_OK);
    for (int i = 0; i < PROMPTS; i++)
        differ += memcmp(a.out[i], b.out[i], (size_t)b.p[i].got * sizeof(int32_t)) != 0;
    assert_true(differ > PROMPTS / 2);
    intra_group_destroy(&g);
}

// The shares of drawn tokens are the probabilities, at a temperature too.
static void draws_follow_the_model(void **state) {
    (void)state;
    enum { MANY = 4000 };
    static struct intra_prompt p[MANY];
    static int32_t out[MANY];
    const int32_t tokens[3] = {7, 1, 30};
    struct intra_group *g = make(false, KERN_MASK_CAUSAL, 200);
    struct intra_device *a = passes(g);
    float z[V];
    for (int k = 0; k < 2; k++) {
        struct intra_decode_config c = {
            .eos = -1, .temperature = 0.7f, .top_k = k ? 5 : 0, .seed = 1};
        double share[V] = {0}, want[V], sum = 0;
        for (int i = 0; i < MANY; i++)
            p[i] = (struct intra_prompt){.tokens = tokens, .n = 3, .most = 1, .out = &out[i]};
        assert_int_equal(intra_decode(g, &c, p, MANY), NEB_OK);
        for (int i = 0; i < MANY; i++)
            share[out[i]] += 1.0 / MANY;
        assert_int_equal(intra_device_pass(a,
                                           &(struct intra_batch){.tokens = tokens, .B = 1, .T = 3},
                                           0, NULL, NULL),
                         NEB_OK);
        intra_device_logits(a, 2, 1, z);
        for (int i = 0; i < V; i++) {
            int larger = 0;
            for (int j = 0; j < V; j++)
                larger += z[j] > z[i];
            want[i] = k && larger >= 5 ? 0 : exp((double)z[i] / 0.7);
            sum += want[i];
        }
        for (int i = 0; i < V; i++)
            assert_true(fabs(share[i] - want[i] / sum) < 0.035);
    }
    intra_device_destroy(&a);
    intra_group_destroy(&g);
}

static void bad_input_is_refused(void **state) {
    (void)state;
    struct intra_group *g = make(false, KERN_MASK_CAUSAL, 1);
    int32_t tokens[SEQ] = {1}, out[6];
    struct intra_prompt p = {.tokens = tokens, .n = 2, .most = 6, .out = out};
    const struct intra_decode_config good = {.eos = EOS};
    const struct intra_decode_config bad[] = {{.beam = INTRA_BEAM_MAX + 1},
                                              {.beam = -1},
                                              {.top_k = KERN_SOFT_K_MAX + 1, .temperature = 1},
                                              {.temperature = NAN},
                                              {.beam = 2, .temperature = 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(intra_decode(g, &bad[i], &p, 1), NEB_ERR_INVALID);
    for (int i = 0; i < 4; i++) {
        p.n = i == 0 ? 0 : i == 1 ? SEQ : 2;
        tokens[1] = i == 2 ? V : i == 3 ? -1 : 0;
        assert_int_equal(intra_decode(g, &good, &p, 1), NEB_ERR_INVALID);
    }
    tokens[1] = 0;
    assert_int_equal(intra_decode(g, &good, &p, 0), NEB_OK);
    assert_int_equal(intra_decode(g, &good, &p, 1), NEB_OK);
    intra_group_destroy(&g);
    g = make(false, KERN_MASK_BIDIRECTIONAL, 1);
    assert_int_equal(intra_decode(g, &good, &p, 1), NEB_ERR_UNSUPPORTED);
    intra_group_destroy(&g);
}

// Between two steps of training a group decodes with its newest parameters. The text becomes longer
// than the window.
static void a_model_that_learns_decodes(void **state) {
    (void)state;
    struct intra_trainer_config c = {.model = shape(KERN_MASK_CAUSAL),
                                     .trainable = {.mode = INTRA_TRAIN_FULL},
                                     .optim = {.schedule = {.kind = INTRA_SCHEDULE_COSINE,
                                                            .lr = 0.01f,
                                                            .min_ratio = 0.1f,
                                                            .warmup = 5,
                                                            .steps = 200},
                                               .beta1 = 0.9f,
                                               .beta2 = 0.95f,
                                               .eps = 1e-8f},
                                     .batch = 2,
                                     .seq_len = 8,
                                     .accumulate = 1,
                                     .soft_k = 1};
    struct intra_group *g = NULL;
    const struct intra_mesh_config mesh = {1, 1, 1};
    const struct intra_decode_config greedy = {.eos = -1, .slides = true};
    int32_t x[16], y[16], out[12], count = 0;
    const int32_t tokens[3] = {1, 2, 3};
    assert_int_equal(intra_group_create(&c, &mesh, NULL, K, &g), NEB_OK);
    for (int i = 0; i < 16; i++)
        x[i] = i % 8 + 1, y[i] = (i + 1) % 8 + 1;
    for (int k = 0; k < 200; k++) {
        struct intra_step_stats s;
        intra_group_micro(g, x, y);
        assert_int_equal(intra_group_update(g, &s), NEB_OK);
        if (k % 50 == 49) {
            assert_int_equal(one(g, &greedy, tokens, 3, 12, out), 12);
            count = 0;
            while (count < 5 && out[count] == count + 4)
                count++;
        }
    }
    assert_int_equal(count, 5); // it learned to count
    intra_group_destroy(&g);
}

static int set_up(void **state) {
    (void)state;
    return kern_cpu_create(2, &K) == NEB_OK ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    kern_destroy(&K);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_is_the_forward_pass),
        cmocka_unit_test(wide_beam_is_exhaustive),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(batches_are_single_prompts),
        cmocka_unit_test(draws_are_seeded),
        cmocka_unit_test(draws_follow_the_model),
        cmocka_unit_test(bad_input_is_refused),
        cmocka_unit_test(a_model_that_learns_decodes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
