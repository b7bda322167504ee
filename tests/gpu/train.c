// SPDX-License-Identifier: Apache-2.0
// Training on the device compared with the CPU, and its speed.
#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "intra/train/trainer.h"
#include "tests/gpu/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct intra_trainer_config gpu_config(int layers, int width, int heads, int ff, int vocab, int seq,
                                       int batch) {
    return (struct intra_trainer_config){
        .model = {.vocab = vocab,
                  .d_model = width,
                  .n_layers = layers,
                  .n_heads = heads,
                  .n_kv_heads = heads,
                  .head_dim = width / heads,
                  .d_ff = ff,
                  .max_seq = seq,
                  .rope_theta = 10000,
                  .norm_eps = 1e-5f,
                  .tied = true,
                  .mask = KERN_MASK_CAUSAL},
        .trainable = {.mode = INTRA_TRAIN_FULL},
        .optim = {.schedule = {.kind = INTRA_SCHEDULE_CONSTANT, .lr = 1e-3f, .warmup = 10},
                  .clip = {.kind = INTRA_CLIP_GLOBAL_NORM, .max_norm = 1},
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .weight_decay = 0.1f},
        .batch = batch,
        .seq_len = seq,
        .accumulate = 1,
        .seed = 1};
}

// The next token is mostly a function of this one, so that the model can learn.
void gpu_draw(struct neb_rng *r, const struct intra_trainer_config *c, int32_t *x, int32_t *y) {
    uint64_t V = (uint64_t)c->model.vocab;
    for (int32_t b = 0; b < c->batch; b++) {
        uint64_t id = neb_rng_below(r, V);
        for (int32_t t = 0; t < c->seq_len; t++) {
            size_t at = (size_t)b * c->seq_len + t;
            x[at] = (int32_t)id;
            id = neb_rng_below(r, 8) ? (id * 5 + 1) % V : neb_rng_below(r, V);
            y[at] = (int32_t)id;
        }
    }
}

// Rank r has a frequency of about 1 / r, like words: the most frequent token is one in sixteen of a
// vocabulary of 50,304.
void gpu_zipf(struct neb_rng *r, const struct intra_trainer_config *c, int32_t *x, int32_t *y) {
    double top = log(c->model.vocab + 1.0);
    for (int32_t b = 0; b < c->batch; b++)
        for (int32_t t = 0; t <= c->seq_len; t++) {
            double u = (double)neb_rng_below(r, 1u << 30) / (1u << 30);
            int32_t id = (int32_t)exp(u * top) - 1;
            id = id < c->model.vocab ? id : c->model.vocab - 1;
            size_t at = (size_t)b * c->seq_len + t;
            if (t < c->seq_len)
                x[at] = id;
            if (t > 0)
                y[at - 1] = id;
        }
}

enum { STEPS = 60, TRAINERS = 3 };

int gpu_train(struct kern *D) {
    struct kern *K = NULL;
    struct intra_trainer_config c = gpu_config(4, 256, 4, 688, 1024, 128, 8);
    struct intra_trainer *t[TRAINERS] = {NULL}; // CPU, fp32, bf16
    static double loss[TRAINERS][STEPS];
    static const double allowed[TRAINERS] = {0, 2e-4, 1e-2};
    size_t n = (size_t)c.batch * (size_t)c.seq_len;
    int32_t *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    double worst[TRAINERS] = {0};
    int wrong = 0;
    if (!x || !y || kern_cpu_create(0, &K) != NEB_OK)
        return 1;
    for (int i = 0; i < TRAINERS; i++) {
        c.device = i ? D : NULL;
        c.device_type = i == 2 ? KERN_BF16 : KERN_F32;
        if (intra_trainer_create(&c, K, &t[i]) != NEB_OK) { // the other trainers still report
            for (int s = 0; s < STEPS; s++)
                loss[i][s] = NAN;
            worst[i] = INFINITY;
            continue;
        }
        struct neb_rng r = neb_rng_make(9, 9);
        for (int s = 0; s < STEPS; s++) {
            struct intra_step_stats stats;
            gpu_draw(&r, &c, x, y);
            intra_trainer_micro(t[i], x, y);
            intra_trainer_update(t[i], &stats);
            wrong += stats.status != NEB_OK;
            loss[i][s] = stats.loss;
            double off = fabs(stats.loss - loss[0][s]) / loss[0][s];
            worst[i] = isfinite(off) ? fmax(worst[i], off) : INFINITY;
        }
    }
    printf("| step | CPU fp32 | CUDA fp32 | CUDA bf16 |\n| --- | --- | --- | --- |\n");
    for (int s = 0; s < STEPS; s += s + 10 < STEPS ? 10 : STEPS - 1 - s > 0 ? STEPS - 1 - s : 1)
        printf("| %d | %.5f | %.5f | %.5f |\n", s + 1, loss[0][s], loss[1][s], loss[2][s]);
    for (int i = 1; i < TRAINERS; i++) {
        wrong += !(worst[i] <= allowed[i]);
        printf("\n%s: loss at most %.2g relative from the CPU's, allowed %.2g%s\n",
               i == 1 ? "fp32" : "bf16", worst[i], allowed[i],
               worst[i] <= allowed[i] ? "" : " — **too far**");
    }
    wrong += !(loss[0][STEPS - 1] < 0.9 * loss[0][0]);
    printf("\n");
    for (int i = 0; i < TRAINERS; i++)
        intra_trainer_destroy(&t[i]);
    kern_destroy(&K);
    free(x);
    free(y);
    return wrong;
}

double gpu_peak(struct kern *D) {
    enum { SIDE = 8192, ROUNDS = 12 };
    const struct kern_ops *K = D->ops;
    size_t n = (size_t)SIDE * SIDE, part = 1 << 20;
    void *a, *b, *c, *from;
    float *host = malloc(part * sizeof *host);
    struct neb_rng r = neb_rng_make(3, 3);
    double best = 0;
    if (!host || K->alloc(D, n * 2, &a) || K->alloc(D, n * 2, &b) || K->alloc(D, n * 2, &c) ||
        K->alloc(D, part * sizeof *host, &from))
        return 0;
    for (size_t i = 0; i < part; i++)
        host[i] = neb_rng_normal(&r);
    K->upload(D, from, host, part * sizeof *host);
    for (size_t at = 0; at < n; at += part) { // random values: zeros are faster than real data
        K->cast(D, KERN_BF16, (char *)a + 2 * at, from, part);
        K->cast(D, KERN_BF16, (char *)b + 2 * at, from, part);
    }
    for (int i = 0; i < ROUNDS; i++) {
        K->mark(D, 4);
        K->gemm(D, &(struct kern_gemm){.t = KERN_BF16,
                                       .tc = KERN_BF16,
                                       .tb = KERN_T,
                                       .m = SIDE,
                                       .n = SIDE,
                                       .k = SIDE,
                                       .alpha = 1,
                                       .a = a,
                                       .lda = SIDE,
                                       .b = b,
                                       .ldb = SIDE,
                                       .c = c,
                                       .ldc = SIDE});
        K->mark(D, 5);
        K->wait(D, 5);
        double rate = 2.0 * SIDE * SIDE * SIDE / (K->elapsed_ms(D, 4, 5) * 1e-3);
        best = i > 2 && rate > best ? rate : best;
    }
    K->release(D, a);
    K->release(D, b);
    K->release(D, c);
    K->release(D, from);
    free(host);
    return best;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int gpu_speed(struct kern *D, const char *shape, int batch, int steps) {
    bool large = !strcmp(shape, "350m");
    enum { SEQ = 1024, VOCAB = 50304, MOST = 200, WARM = 3 };
    struct kern *K = NULL;
    struct intra_trainer *t = NULL;
    double seconds[MOST], pass_ms[MOST];
    if ((!large && strcmp(shape, "124m")) || steps < 1 || steps > MOST) {
        fprintf(stderr, "gpu_check speed: 124m or 350m, 1 to %d steps\n", MOST);
        return 1;
    }
    batch = batch ? batch : large ? 16 : 32;
    struct intra_trainer_config c = large ? gpu_config(24, 1024, 16, 2736, VOCAB, SEQ, batch)
                                          : gpu_config(12, 768, 12, 2048, VOCAB, SEQ, batch);
    double peak = gpu_peak(D), tokens = (double)batch * SEQ;
    size_t n = (size_t)batch * SEQ;
    int32_t *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    struct neb_rng r = neb_rng_make(4, 4);
    struct intra_step_stats s = {0};
    c.device = D;
    c.device_type = KERN_BF16;
    if (!x || !y || kern_cpu_create(0, &K) != NEB_OK || intra_trainer_create(&c, K, &t) != NEB_OK)
        return 1;
    for (int i = -WARM; i < steps; i++) {
        gpu_zipf(&r, &c, x, y);
        neb_ns from = neb_now();
        D->ops->mark(D, GPU_FROM);
        intra_trainer_micro(t, x, y);
        D->ops->mark(D, GPU_TO);
        intra_trainer_update(t, &s);
        if (D->ops->finish(D) != NEB_OK || s.status != NEB_OK)
            return 1;
        if (i < 0)
            continue;
        seconds[i] = neb_seconds(neb_now() - from);
        pass_ms[i] = D->ops->elapsed_ms(D, GPU_FROM, GPU_TO);
    }
    qsort(seconds, (size_t)steps, sizeof *seconds, by_value);
    qsort(pass_ms, (size_t)steps, sizeof *pass_ms, by_value);
    double median = seconds[steps / 2],
           flops = tokens * (6.0 * (double)intra_model_matmul_params(t->model) +
                             6.0 * (SEQ + 1.0) * c.model.d_model * c.model.n_layers);
    printf("| %s | %d x %d | %.0f | %.1f | %.1f | %.1f %% | %.1f | %.3f | %.1f |\n", shape, batch,
           SEQ, tokens / median, median * 1e3, flops / median * 1e-12, 100 * flops / median / peak,
           (double)intra_device_bytes(t->device) * 1e-9, s.loss, pass_ms[steps / 2]);
    int wrong = !isfinite(s.loss);
    intra_trainer_destroy(&t);
    kern_destroy(&K);
    free(x);
    free(y);
    return wrong;
}
