// SPDX-License-Identifier: Apache-2.0
// Recorded passes (intra/model/graph.c) against single launches, with the same training: equal
// bits, time of the device, and time of the host per pass.
#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "tests/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM = 4, PASSES = 40, SIDES = 2 };

struct side {
    double device_ms[PASSES], host_ms[PASSES], step_ms[PASSES], loss[WARM + PASSES];
    int ops;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *x) {
    qsort(x, PASSES, sizeof *x, by_value);
    return x[PASSES / 2];
}

static bool train(struct kern *D, struct intra_trainer_config c, struct kern *K,
                  enum intra_graphs graphs, struct side *out) {
    const struct kern_ops *ops = D->ops;
    struct intra_trainer *t = NULL;
    struct neb_rng r = neb_rng_make(4, 4);
    size_t n = (size_t)c.batch * (size_t)c.seq_len;
    int32_t *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    c.device_graphs = graphs;
    bool well = x && y && intra_trainer_create(&c, K, &t) == NEB_OK;
    for (int i = -WARM; well && i < PASSES; i++) {
        struct intra_step_stats s;
        gpu_draw(&r, &c, x, y);
        well = ops->finish(D) == NEB_OK;
        neb_ns from = neb_now();
        ops->mark(D, GPU_FROM);
        intra_trainer_micro(t, x, y);
        ops->mark(D, GPU_TO);
        double host = neb_seconds(neb_now() - from) * 1e3;
        ops->wait(D, GPU_TO);
        double device = ops->elapsed_ms(D, GPU_FROM, GPU_TO);
        intra_trainer_update(t, &s);
        well = well && ops->finish(D) == NEB_OK && s.status == NEB_OK;
        out->loss[i + WARM] = s.loss;
        if (i < 0)
            continue;
        out->host_ms[i] = host;
        out->device_ms[i] = device;
        out->step_ms[i] = neb_seconds(neb_now() - from) * 1e3;
    }
    out->ops = well ? intra_device_graph_ops(t->device) : 0;
    intra_trainer_destroy(&t);
    free(x);
    free(y);
    return well;
}

int gpu_graphs(struct kern *D) {
    static const struct {
        const char *name;
        int layers, width, heads, ff, vocab, seq, batch;
    } shapes[] = {{"4x128", 4, 128, 2, 352, 4096, 128, 1},
                  {"8x256", 8, 256, 4, 688, 8192, 256, 1},
                  {"8x256", 8, 256, 4, 688, 8192, 256, 8},
                  {"12x768", 12, 768, 12, 2048, 50304, 256, 1},
                  {"12x768", 12, 768, 12, 2048, 50304, 1024, 8}};
    static struct side side[SIDES];
    struct kern *K = NULL;
    int wrong = kern_cpu_create(0, &K) != NEB_OK;
    printf("| model | batch | ops of a pass | ms of the device, one by one | replayed | ms of the "
           "host, one by "
           "one | replayed | ms a step, one by one | replayed | same losses |\n"
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; !wrong && i < sizeof shapes / sizeof shapes[0]; i++) {
        struct intra_trainer_config c =
            gpu_config(shapes[i].layers, shapes[i].width, shapes[i].heads, shapes[i].ff,
                       shapes[i].vocab, shapes[i].seq, shapes[i].batch);
        c.device = D;
        c.device_type = KERN_BF16;
        if (!train(D, c, K, INTRA_GRAPHS_OFF, &side[0]) ||
            !train(D, c, K, INTRA_GRAPHS_ON, &side[1]))
            return 1;
        bool same = !memcmp(side[0].loss, side[1].loss, sizeof side[0].loss);
        wrong += !same + !side[1].ops;
        printf("| %s | %d x %d | %d | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %s |\n",
               shapes[i].name, shapes[i].batch, shapes[i].seq, side[1].ops,
               median(side[0].device_ms), median(side[1].device_ms), median(side[0].host_ms),
               median(side[1].host_ms), median(side[0].step_ms), median(side[1].step_ms),
               !same         ? "**no**"
               : side[1].ops ? "yes"
                             : "**not recorded**");
    }
    printf("\n");
    kern_destroy(&K);
    return wrong;
}
