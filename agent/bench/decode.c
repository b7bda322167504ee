// SPDX-License-Identifier: Apache-2.0
#include "intra/train/decode.h"
#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "agent/bench/bench.h"
#include "agent/bench/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS = 3,
    MANY = 16, // sequences at once
    PEAK = 512,
    LANES = 16,
    UNCACHED = 2, // tokens that are measured without a cache
};

struct bench {
    struct kern *K;
    struct intra_group *group;
    const struct bench_train_shape *shape;
    int32_t *tokens, *out; // (MANY, seq_len) each
    struct intra_prompt prompts[MANY];
    float *ab, *c; // (2, threads, PEAK, PEAK) (threads, PEAK, PEAK)
    float *sums;   // (threads, LANES)
    // bytes/s of the parameters, FLOP/s: the fastest so far, by the clock and by processor time
    struct limits {
        double read, sgemm;
    } wall, cpu;
};

// ---- the ceiling --------------------------------------------------------------------------------

static void read_part(void *arg, size_t i) {
    const struct bench *b = arg;
    const struct intra_model *m = intra_group_model(b->group);
    size_t threads = (size_t)kern_pool_threads(b->K->pool), each = m->n_params / threads / LANES;
    const float *x = m->params + i * each * LANES;
    float sum[LANES] = {0};
    for (size_t k = 0; k < each; k++)
        for (int j = 0; j < LANES; j++)
            sum[j] += x[k * LANES + (size_t)j];
    memcpy(b->sums + i * LANES, sum, sizeof sum);
}
static void product_part(void *arg, size_t i) {
    const struct bench *b = arg;
    size_t one = PEAK * PEAK, all = (size_t)kern_pool_threads(b->K->pool) * one;
    kern_cpu_product(PEAK, b->ab + i * one, b->ab + all + i * one, b->c + i * one);
}
static void rate(struct bench *b, double work, void (*part)(void *arg, size_t i), double *wall,
                 double *cpu) {
    double before = bench_cpu_seconds();
    neb_ns from = neb_now();
    kern_pool_run(b->K->pool, (size_t)kern_pool_threads(b->K->pool), part, b);
    *wall = fmax(*wall, work / neb_seconds(neb_now() - from));
    *cpu = fmax(*cpu, work / fmax(bench_cpu_seconds() - before, 1e-9));
}
static void measure_limits(struct bench *b) {
    double bytes = (double)intra_group_model(b->group)->n_params * sizeof(float),
           flops = 2.0 * PEAK * PEAK * PEAK * kern_pool_threads(b->K->pool);
    for (int i = 0; i < 3; i++) {
        rate(b, bytes, read_part, &b->wall.read, &b->cpu.read);
        rate(b, flops, product_part, &b->wall.sgemm, &b->cpu.sgemm);
    }
}

// A token of n sequences reads the parameters once and multiplies with them n times.
static double limit_of(const struct bench *b, const struct limits *x, int32_t n) {
    const struct intra_model *m = intra_group_model(b->group);
    double reads = (double)m->n_params * sizeof(float) / x->read,
           products = 2.0 * n * (double)intra_model_matmul_params(m) / x->sgemm;
    return n / fmax(reads, products);
}

// ---- decoding -----------------------------------------------------------------------------------

// Half of a sequence is the prompt.
static enum neb_status decode(struct bench *b, int32_t n, int32_t most, bool uncached, double *wall,
                              double *cpu) {
    const struct intra_decode_config c = {.eos = -1, .uncached = uncached};
    int32_t T = b->shape->seq_len;
    for (int32_t i = 0; i < n; i++)
        b->prompts[i] = (struct intra_prompt){
            .tokens = b->tokens + i * T, .n = T / 2, .most = most, .out = b->out + i * T};
    double before = bench_cpu_seconds();
    neb_ns from = neb_now();
    NEB_TRY(intra_decode(b->group, &c, b->prompts, n));
    *wall = neb_seconds(neb_now() - from);
    *cpu = bench_cpu_seconds() - before;
    return NEB_OK;
}

struct least { // seconds of the fastest calls so far
    double wall, cpu;
};

static enum neb_status attempt(struct bench *b, int32_t n, int32_t most, bool uncached,
                               struct least *best) {
    double wall, cpu;
    NEB_TRY(decode(b, n, most, uncached, &wall, &cpu));
    best->wall = fmin(best->wall, wall);
    best->cpu = fmin(best->cpu, cpu);
    return NEB_OK;
}

// A further token of all sequences: the time of many less that of one, which has the pass over the
// prompts.
static struct least further(const struct least *many, const struct least *one, int32_t tokens) {
    return (struct least){fmax((many->wall - one->wall) / tokens, 1e-9),
                          fmax((many->cpu - one->cpu) / tokens, 1e-9)};
}

static enum neb_status measure(struct bench *b, int32_t n, bool json) {
    const struct least none = {INFINITY, INFINITY};
    struct least one = none, cached = none, uncached = none;
    int32_t half = b->shape->seq_len / 2;
    double wall, cpu;
    char what[64];
    NEB_TRY(decode(b, n, 1, false, &wall, &cpu)); // warms up
    for (int i = 0; i < ROUNDS; i++) {            // in turn, so that all meet the same machine
        measure_limits(b);
        NEB_TRY(attempt(b, n, 1, false, &one));
        NEB_TRY(attempt(b, n, half, false, &cached));
        NEB_TRY(attempt(b, n, 1 + UNCACHED, true, &uncached));
    }
    cached = further(&cached, &one, half - 1);
    uncached = further(&uncached, &one, UNCACHED);
    const struct bench_field more[] = {{"tokens_per_cpu_s", n / cached.cpu},
                                       {"cpu_ratio", n / cached.cpu / limit_of(b, &b->cpu, n)},
                                       {"uncached_tokens_per_s", n / uncached.wall},
                                       {"of_uncached", uncached.cpu / cached.cpu},
                                       {"params", (double)intra_group_model(b->group)->n_params},
                                       {"threads", kern_pool_threads(b->K->pool)}};
    snprintf(what, sizeof what, "%dx%d seq %d, %d at once", b->shape->n_layers, b->shape->d_model,
             b->shape->seq_len, n);
    bench_line_with(json, "decode", what, n / cached.wall, "tokens/s", limit_of(b, &b->wall, n),
                    "reading or sgemm", more, sizeof more / sizeof *more);
    return NEB_OK;
}

static enum neb_status create(struct bench *b, int n_threads) {
    struct intra_trainer_config c = bench_train_config(b->shape);
    size_t tokens = MANY * (size_t)c.seq_len, threads, one = PEAK * PEAK;
    struct intra_model *m;
    struct neb_rng r = neb_rng_make(2, 2);
    NEB_TRY(kern_cpu_create(n_threads, &b->K));
    const struct intra_place at = {.K = b->K};
    NEB_TRY(intra_decode_group(&c.model, &c.trainable, &at, c.seq_len, MANY, 1, &b->group));
    m = intra_group_model(b->group);
    threads = (size_t)kern_pool_threads(b->K->pool);
    b->tokens = calloc(2 * tokens, sizeof *b->tokens);
    b->ab = calloc((3 * one + LANES) * threads, sizeof *b->ab);
    if (!b->tokens || !b->ab)
        return neb_fail(NEB_ERR_NOMEM, "bench decode: out of memory for its arrays");
    b->out = b->tokens + tokens;
    b->c = b->ab + 2 * threads * one;
    b->sums = b->c + threads * one;
    for (size_t i = 0; i < tokens; i++)
        b->tokens[i] = (int32_t)neb_rng_below(&r, (uint64_t)c.model.vocab);
    for (int32_t i = 0; i < m->n_tensors; i++)
        intra_model_draw(m, &m->tensors[i], 1, intra_param(m, &m->tensors[i]));
    return intra_group_push(b->group, NULL);
}

enum neb_status bench_decode(int n_threads, bool json, const struct bench_train_shape *shape) {
    struct bench b = {.shape = shape};
    enum neb_status st = NEB_OK;
    if (shape->seq_len < 32)
        return neb_fail(NEB_ERR_INVALID, "bench decode: sequences of %d tokens: at least 32",
                        shape->seq_len);
    st = create(&b, n_threads);
    for (int32_t n = 1; n <= MANY && st == NEB_OK; n *= MANY)
        st = measure(&b, n, json);
    intra_group_destroy(&b.group);
    kern_destroy(&b.K);
    free(b.tokens);
    free(b.ab);
    return st;
}
