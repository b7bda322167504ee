// SPDX-License-Identifier: Apache-2.0
// Time of the ops of the modes rtd and distill, beside the product and the loss inside each.
#include "tests/gpu/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 10, WARM = 3, K = 16, BLOCK = 1024, HEAD_ROWS = 4096, OPERANDS = 24 };

struct heads {
    struct kern *D;
    int n, V, d;
    void *room[OPERANDS];
    int n_room;
    bool failed;
    struct kern_rows rows;
    struct kern_head head;
    struct kern_soft soft;
    struct kern_rtd rtd;
    void *u, *drawn, *names, *logp, *tail;
};

static void *room(struct heads *h, size_t bytes) {
    void *p = NULL;
    h->failed = h->failed || h->n_room == OPERANDS || h->D->ops->alloc(h->D, bytes, &p) != NEB_OK;
    if (!h->failed)
        h->D->ops->zero(h->D, h->room[h->n_room++] = p, bytes);
    return p;
}
// Normal numbers times size, as bf16.
static void *normals(struct heads *h, size_t n, float size) {
    struct neb_rng r = neb_rng_make(5, n);
    float *host = malloc(n * sizeof *host);
    void *wide = NULL, *p = room(h, 2 * n);
    h->failed = h->failed || !host || h->D->ops->alloc(h->D, n * sizeof *host, &wide) != NEB_OK;
    for (size_t i = 0; !h->failed && i < n; i++)
        host[i] = size * neb_rng_normal(&r);
    if (!h->failed) {
        h->D->ops->upload(h->D, wide, host, n * sizeof *host);
        h->D->ops->cast(h->D, KERN_BF16, p, wide, n);
        h->failed = h->D->ops->finish(h->D) != NEB_OK;
    }
    h->D->ops->release(h->D, wide);
    free(host);
    return p;
}
// (n) device: integers less than `below`; with 0 the number 0.5.
static void *numbers(struct heads *h, int n, int below) {
    struct neb_rng r = neb_rng_make(6, (uint64_t)n);
    const float half = 0.5f;
    int32_t *host = malloc((size_t)n * sizeof *host);
    void *p = room(h, (size_t)n * sizeof *host);
    h->failed = h->failed || !host;
    for (int i = 0; !h->failed && i < n; i++)
        if (below)
            host[i] = (int32_t)neb_rng_below(&r, (uint64_t)below);
        else
            ((float *)(void *)host)[i] = half;
    if (!h->failed) {
        h->D->ops->upload(h->D, p, host, (size_t)n * sizeof *host);
        h->failed = h->D->ops->finish(h->D) != NEB_OK;
    }
    free(host);
    return p;
}

static void make(struct heads *h) {
    size_t n = (size_t)h->n, V = (size_t)h->V, d = (size_t)h->d, ld = (size_t)kern_logits_ld(h->V);
    void *x = normals(h, n * d, 1), *w = normals(h, V * d, 3 / sqrtf((float)h->d)),
         *dx = room(h, n * d * 2), *dw = room(h, V * d * sizeof(float)),
         *losses = room(h, n * sizeof(float)), *total = room(h, sizeof(double)),
         *one = numbers(h, 1, 0);
    h->u = numbers(h, 2 * h->n, 0); // two floats of 1/2 are a double in [0, 1)
    h->drawn = room(h, n * sizeof(int32_t));
    h->names = room(h, n * K * sizeof(int32_t));
    h->logp = room(h, n * K * sizeof(float));
    h->tail = room(h, n * sizeof(float));
    h->rows = (struct kern_rows){.n = h->n,
                                 .d = h->d,
                                 .V = h->V,
                                 .x = x,
                                 .at = numbers(h, h->n, h->n),
                                 .w = w,
                                 .gathered = room(h, BLOCK * d * 2),
                                 .logits = room(h, BLOCK * ld * sizeof(float)),
                                 .block = BLOCK};
    h->head = (struct kern_head){.n = h->n,
                                 .d = h->d,
                                 .V = h->V,
                                 .x = x,
                                 .w = w,
                                 .targets = numbers(h, h->n, h->V),
                                 .grad_scale = one,
                                 .dx = dx,
                                 .dw = dw,
                                 .logits = room(h, HEAD_ROWS * ld * 2),
                                 .rows = HEAD_ROWS,
                                 .losses = losses,
                                 .total = total};
    h->soft = (struct kern_soft){.k = K,
                                 .lambda = 0.5f,
                                 .temperature = 2,
                                 .ids = h->names,
                                 .logp = h->logp,
                                 .tail = h->tail};
    h->rtd = (struct kern_rtd){.n = h->n,
                               .d = h->d,
                               .x = x,
                               .w = dw, // any numbers
                               .b = one,
                               .labels = numbers(h, h->n, 2),
                               .grad_scale = one,
                               .dx = dx,
                               .dw = room(h, d * sizeof(float)),
                               .db = room(h, sizeof(float)),
                               .scores = room(h, n * sizeof(float)),
                               .losses = losses,
                               .total = total};
}

static void product(struct heads *h) {
    for (int from = 0; from < h->n; from += BLOCK)
        h->D->ops->gemm(h->D, &(struct kern_gemm){.t = KERN_BF16,
                                                  .tb = KERN_T,
                                                  .m = h->n - from < BLOCK ? h->n - from : BLOCK,
                                                  .n = h->V,
                                                  .k = h->d,
                                                  .alpha = 1,
                                                  .a = h->rows.x,
                                                  .lda = h->d,
                                                  .b = h->rows.w,
                                                  .ldb = h->d,
                                                  .c = h->rows.logits,
                                                  .ldc = kern_logits_ld(h->V)});
}
static void labels(struct heads *h) {
    h->D->ops->label_rows(h->D, KERN_BF16, &h->rows, K, 2, h->names, h->logp, h->tail);
}
static void draws(struct heads *h) {
    h->D->ops->sample_rows(h->D, KERN_BF16, &h->rows, 1, h->u, h->drawn);
}
static void plain(struct heads *h) { h->D->ops->head_loss(h->D, KERN_BF16, &h->head, NULL); }
static void taught(struct heads *h) { h->D->ops->head_loss(h->D, KERN_BF16, &h->head, &h->soft); }
static void detection(struct heads *h) { h->D->ops->rtd_loss(h->D, KERN_BF16, &h->rtd); }

static double time_ms(struct heads *h, void (*op)(struct heads *h)) {
    double best = INFINITY;
    for (int i = -WARM; i < ROUNDS; i++) {
        h->D->ops->mark(h->D, GPU_FROM);
        op(h);
        h->D->ops->mark(h->D, GPU_TO);
        h->D->ops->wait(h->D, GPU_TO);
        double ms = h->D->ops->elapsed_ms(h->D, GPU_FROM, GPU_TO);
        best = i >= 0 && ms < best ? ms : best;
    }
    return best;
}

int gpu_heads(struct kern *D, int n, int V, int d) {
    static const struct {
        const char *name;
        void (*run)(struct heads *h);
    } ops[] = {{"the product to fp32 logits alone", product},
               // head_loss below reads its result
               {"label_rows, k 16 (with the product)", labels},
               {"sample_rows (with the product)", draws},
               {"head_loss", plain},
               {"head_loss with a teacher, k 16", taught},
               {"rtd_loss", detection}};
    struct heads h = {.D = D, .n = n, .V = V, .d = d};
    make(&h);
    if (!h.failed)
        printf("| op, %d rows of %d to %d | ms |\n| --- | --- |\n", n, d, V);
    for (size_t i = 0; !h.failed && i < sizeof ops / sizeof *ops; i++)
        printf("| %s | %.3f |\n", ops[i].name, time_ms(&h, ops[i].run));
    printf("\n");
    for (int i = 0; i < h.n_room; i++)
        D->ops->release(D, h.room[i]);
    return h.failed || D->ops->finish(D) != NEB_OK;
}
