// SPDX-License-Identifier: Apache-2.0
// Time of the bias's gradient as an epilogue of dW (kern_ops.linear_bwd), and as separate
// kernels.
#include "tests/gpu/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 30, WARM = 5 };

struct grads {
    int m, n, k;
    void *dy, *x;
    float *dw, *db;
};

static double time_ms(struct kern *D, const struct grads *g, bool fused) {
    const struct kern_ops *K = D->ops;
    double best = INFINITY;
    for (int i = -WARM; i < ROUNDS; i++) {
        K->mark(D, GPU_FROM);
        struct kern_linear_bwd both = {.t = KERN_BF16,
                                       .n = g->k,
                                       .out = g->m,
                                       .in = g->n,
                                       .dy = g->dy,
                                       .ld = g->m,
                                       .x = g->x,
                                       .dw = g->dw,
                                       .db = fused ? g->db : NULL};
        if (!fused)
            K->bias_bwd(D, KERN_BF16, g->db, g->dy, g->k, g->m);
        K->linear_bwd(D, &both);
        K->mark(D, GPU_TO);
        K->wait(D, GPU_TO);
        double ms = K->elapsed_ms(D, GPU_FROM, GPU_TO);
        best = i >= 0 && ms < best ? ms : best;
    }
    return best;
}

// The sums of dy's first column, computed both ways.
static double sum_of(struct kern *D, const struct grads *g, bool fused) {
    float first = 0;
    D->ops->zero(D, g->db, (size_t)g->m * sizeof(float));
    (void)time_ms(D, g, fused);
    D->ops->download(D, &first, g->db, sizeof first);
    return D->ops->finish(D) == NEB_OK ? (double)first : NAN;
}

static bool make(struct kern *D, struct grads *g) {
    const struct kern_ops *K = D->ops;
    size_t dy = (size_t)g->k * (size_t)g->m, x = (size_t)g->k * (size_t)g->n,
           dw = (size_t)g->m * (size_t)g->n, most = dy > x ? dy : x;
    float *host = malloc(most * sizeof *host);
    void *from = NULL, *p = NULL, *q = NULL;
    struct neb_rng r = neb_rng_make(7, 7);
    bool made = host && K->alloc(D, most * sizeof *host, &from) == NEB_OK &&
                K->alloc(D, dy * 2, &g->dy) == NEB_OK && K->alloc(D, x * 2, &g->x) == NEB_OK &&
                K->alloc(D, dw * sizeof(float), &p) == NEB_OK &&
                K->alloc(D, (size_t)g->m * sizeof(float), &q) == NEB_OK;
    g->dw = p;
    g->db = q;
    if (made) {
        for (size_t i = 0; i < most; i++)
            host[i] = neb_rng_normal(&r);
        K->upload(D, from, host, most * sizeof *host);
        K->cast(D, KERN_BF16, g->dy, from, dy);
        K->cast(D, KERN_BF16, g->x, from, x);
        K->zero(D, g->dw, dw * sizeof(float));
        made = K->finish(D) == NEB_OK;
    }
    K->release(D, from);
    free(host);
    return made;
}

int gpu_epilogues(struct kern *D) {
    static const int shapes[][3] = {{1152, 896, 8192}, {3072, 2048, 8192}, {6144, 4096, 8192}};
    int wrong = 0;
    printf("| dW (out, in), tokens | with the bias's gradient, ms | two kernels, ms | sums agree "
           "|\n| --- | --- | --- | --- |\n");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct grads g = {.m = shapes[i][0], .n = shapes[i][1], .k = shapes[i][2]};
        if (!make(D, &g))
            return 1;
        double a = sum_of(D, &g, true), b = sum_of(D, &g, false);
        bool same = fabs(a - b) <= 1e-3 * (1 + fabs(b));
        wrong += !same;
        printf("| %d, %d, %d | %.3f | %.3f | %s |\n", g.m, g.n, g.k, time_ms(D, &g, true),
               time_ms(D, &g, false), same ? "yes" : "**no**");
        D->ops->release(D, g.dy);
        D->ops->release(D, g.x);
        D->ops->release(D, g.dw);
        D->ops->release(D, g.db);
    }
    printf("\n");
    return wrong;
}
