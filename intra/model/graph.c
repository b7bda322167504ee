// SPDX-License-Identifier: Apache-2.0
// Records parts of a step as graphs (kern_ops.record). A pass over a micro-batch is some
// hundred ops in a fixed order. If they are short, the device waits for the host to enqueue them.
// So a part is recorded once and then replayed:
//
//     first time    op op op op …          one by one: scratch grows, the libraries choose kernels
//     second        record, replay
//     then          replay                 one call; some more with marks (pipeline, replicas)
//
// What differs between micro-batches is in device memory (struct device_batch); all other arguments
// stay. The update is not recorded: it has few calls, and AdamW's constants change with every step.
//
// With `auto` the choice is measured: some passes of each kind are timed at the start of training.
// Both kinds compute the same bits.
#include "agent/base/log.h"
#include "intra/model/state.h"

#include <math.h>
#include <stdlib.h>

// RUNS: timed passes of each kind. KINDS: graphs that one micro-batch in flight may have.
enum { RUNS = 5, KINDS = 4 };

enum device_graph_use { PLAIN, MEASURING, REPLAYED };

struct device_graph {
    enum device_part part;
    const struct device_acts *a;
    bool held; // backward found its last block still in memory
    int seen;
    struct kern_graph *graph;        // NULL: not recorded
    const struct device_acts *holds; // d->holds after it
};

struct device_graphs {
    enum device_graph_use use;
    struct device_graph *all;
    int n, most;
    bool said;
    // while measuring
    struct device_graph *timed;
    int runs; // passes measured so far
    double plain_ms, replay_ms;
};

enum neb_status device_graphs_create(struct intra_device *d) {
    struct device_graphs *g = d->graphs = calloc(1, sizeof *g);
    if (g) {
        g->most = KINDS * d->n_acts + 3; // DEVICE_PACK, DEVICE_UNPACK, DEVICE_MUON
        g->all = calloc((size_t)g->most, sizeof *g->all);
    }
    if (!g || !g->all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory listing graphs");
    if (d->c.graphs == INTRA_GRAPHS_OFF || device_host(d))
        return NEB_OK;
    if (device_cut(d)) {
        // ncclCommAbort waits until no graph holds the communicator's operations. While a rank
        // hangs, such a graph never ends.
        neb_info("cuda_graphs: tensor-parallel ranks launch ops one by one, because a communicator "
                 "in a graph cannot be aborted while a rank hangs");
        return NEB_OK;
    }
    g->use = d->c.graphs == INTRA_GRAPHS_ON ? REPLAYED : MEASURING;
    g->plain_ms = g->replay_ms = INFINITY;
    return NEB_OK;
}

static void forget(struct intra_device *d) {
    struct device_graphs *g = d->graphs;
    for (int i = 0; i < g->n; i++)
        device_ops(d)->forget(d->c.D, &g->all[i].graph);
}

void device_graphs_destroy(struct intra_device *d) {
    if (d->graphs && d->graphs->all)
        forget(d);
    if (d->graphs)
        free(d->graphs->all);
    free(d->graphs);
    d->graphs = NULL;
}

static void enqueue(struct intra_device *d, enum device_part part, struct device_acts *a, int B) {
    switch (part) {
    case DEVICE_TRAIN:
        device_forward(d, a, B, true, d->total);
        device_backward(d, a, B);
        break;
    case DEVICE_FORWARD: device_forward(d, a, B, true, d->total); break;
    case DEVICE_BACKWARD: device_backward(d, a, B); break;
    case DEVICE_EVAL: device_forward(d, a, B, false, d->eval_total); break;
    case DEVICE_PACK: device_params_pack(d); break;
    case DEVICE_UNPACK: device_params_unpack(d); break;
    case DEVICE_MUON: device_muon_all(d); break;
    }
}

// NULL: this part is not recorded.
static struct device_graph *graph_of(struct intra_device *d, enum device_part part,
                                     const struct device_acts *a, int B) {
    struct device_graphs *g = d->graphs;
    bool held = part == DEVICE_BACKWARD && d->c.recompute && d->holds == a;
    if (g->use == PLAIN || (a && !device_plain(d, a, B)))
        return NULL;
    for (int i = 0; i < g->n; i++)
        if (g->all[i].part == part && g->all[i].a == a && g->all[i].held == held)
            return &g->all[i];
    if (g->n == g->most)
        return NULL;
    g->all[g->n] = (struct device_graph){.part = part, .a = a, .held = held};
    return &g->all[g->n++];
}

static void give_up(struct intra_device *d, const char *why) {
    neb_warn("cuda_graphs: %s; ops are launched one by one", why);
    forget(d);
    d->graphs->use = PLAIN;
}

static bool recorded(struct intra_device *d, struct device_graph *g, struct device_acts *a, int B) {
    const struct kern_ops *K = device_ops(d);
    char why[KERN_WHY_MAX];
    if (g->graph)
        return true;
    const struct device_acts *before = d->holds;
    K->record(d->c.D);
    enqueue(d, g->part, a, B);
    g->holds = d->holds;
    if (K->record_end(d->c.D, &g->graph, why) == NEB_OK)
        return true;
    d->holds = before; // nothing has run
    give_up(d, why);
    return false;
}

static void replay(struct intra_device *d, struct device_graph *g, struct device_acts *a, int B) {
    if (!recorded(d, g, a, B)) {
        enqueue(d, g->part, a, B);
        return;
    }
    device_ops(d)->replay(d->c.D, g->graph);
    d->holds = g->holds;
}

static bool trains(const struct device_graph *g) { // a training pass, or the forward of a stage
    return g->part == DEVICE_TRAIN || g->part == DEVICE_FORWARD;
}

static void say(struct intra_device *d, const struct device_graph *g) {
    if (!g->graph || !trains(g) || d->graphs->said)
        return;
    neb_info("cuda_graphs: %d ops of a pass are enqueued by %d call%s", g->graph->ops,
             g->graph->parts, g->graph->parts == 1 ? "" : "s");
    d->graphs->said = true;
}

static void decide(struct intra_device *d, const struct device_graph *g) {
    struct device_graphs *all = d->graphs;
    bool pays = all->replay_ms < all->plain_ms;
    neb_info("cuda_graphs: a pass of %d ops takes %.3f ms launched one by one, %.3f ms as a graph: "
             "%s",
             g->graph->ops, all->plain_ms, all->replay_ms,
             pays ? "the graph is replayed" : "ops are launched one by one");
    all->use = pays ? REPLAYED : PLAIN;
    all->said = true;
    if (!pays)
        forget(d);
}

// Times RUNS passes of each kind and waits for each; the fastest counts.
static void measure(struct intra_device *d, struct device_graph *g, struct device_acts *a, int B) {
    const struct kern_ops *K = device_ops(d);
    struct device_graphs *all = d->graphs;
    bool plain = all->runs < RUNS;
    if (!plain && !recorded(d, g, a, B)) {
        enqueue(d, g->part, a, B);
        return;
    }
    K->mark(d->c.D, MARK_TIME);
    if (plain)
        enqueue(d, g->part, a, B);
    else
        replay(d, g, a, B);
    K->mark(d->c.D, MARK_TIME + 1);
    K->wait(d->c.D, MARK_TIME + 1);
    double ms = K->elapsed_ms(d->c.D, MARK_TIME, MARK_TIME + 1),
           *best = plain ? &all->plain_ms : &all->replay_ms;
    *best = fmin(*best, ms);
    if (++all->runs == 2 * RUNS)
        decide(d, g);
}

void device_run(struct intra_device *d, enum device_part part, struct device_acts *a, int B) {
    struct device_graphs *all = d->graphs;
    struct device_graph *g = graph_of(d, part, a, B);
    if (!g || g->seen++ == 0) {
        enqueue(d, part, a, B);
        return;
    }
    if (all->use == MEASURING && !all->timed && trains(g))
        all->timed = g;
    if (all->use == MEASURING && g == all->timed) {
        measure(d, g, a, B);
    } else if (all->use == MEASURING) {
        enqueue(d, part, a, B);
    } else {
        replay(d, g, a, B);
        say(d, g);
    }
}

int intra_device_graph_ops(const struct intra_device *d) {
    for (int i = 0; i < d->graphs->n; i++)
        if (d->graphs->all[i].graph && trains(&d->graphs->all[i]))
            return d->graphs->all[i].graph->ops;
    return 0;
}
