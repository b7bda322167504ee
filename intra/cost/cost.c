// SPDX-License-Identifier: Apache-2.0
#include "intra/cost/parts.h"

#include <math.h>

enum {
    PIECES = 8, // least number of pieces in which gradients are reduced; the same for every rank
    AHEAD_BLOCKS = 10, // blocks whose tensor-parallel collectives are in flight at once
};
static const double BACKWARD = 2.0 / 3; // share of a micro-batch's time

const int32_t intra_cost_widths[INTRA_COST_WIDTHS] = {64, 256, 1024};
const int32_t intra_cost_tokens[INTRA_COST_TOKENS] = {64, 1024, 16384};

// ---- rates --------------------------------------------------------------------------------------

// y at x, interpolated between measured points on logarithmic axes. Above the last point: its y.
// Below the first: with the slope of the first two points, at most proportional to x.
static double between(const int32_t *xs, const double *ys, int n, double x) {
    if (x <= xs[0]) {
        double slope = log(ys[1] / ys[0]) / log((double)xs[1] / xs[0]);
        return ys[0] * pow(x / xs[0], fmin(1, fmax(0, slope)));
    }
    for (int i = 1; i < n; i++)
        if (x <= xs[i]) {
            double share = log(x / xs[i - 1]) / log((double)xs[i] / xs[i - 1]);
            return ys[i - 1] * pow(ys[i] / ys[i - 1], share);
        }
    return ys[n - 1];
}

// The smallest side of a block's products on this mesh: thin products are slow.
static double width_of(const struct intra_cost_job *j) {
    const struct intra_model_config *m = &j->model;
    return fmin(m->d_model, fmin(m->n_heads * m->head_dim, m->d_ff) / j->mesh.tp);
}

double intra_cost_rate(const struct intra_cost_job *j, const struct intra_rates *r, double n) {
    double at[INTRA_COST_TOKENS];
    if (!j->device) { // threads that wait for each other are less than as many times as fast
        double w = width_of(j), threads = r->processors * j->share / j->ranks_a_host,
               one = between(intra_cost_widths, r->one[j->type], INTRA_COST_WIDTHS, w),
               all = between(intra_cost_widths, r->step[j->type], INTRA_COST_WIDTHS, w);
        return threads <= 1 || r->processors == 1
                   ? one * threads
                   : one * pow(threads, log(all / one) / log(r->processors));
    }
    for (int i = 0; i < INTRA_COST_TOKENS; i++)
        at[i] = between(intra_cost_widths, r->device.step[j->type] + i * INTRA_COST_WIDTHS,
                        INTRA_COST_WIDTHS, width_of(j));
    return j->share * between(intra_cost_tokens, at, INTRA_COST_TOKENS, n);
}

// ---- one step -----------------------------------------------------------------------------------

bool intra_cost_mesh_fits(const struct intra_mesh_config *c, const struct intra_model_config *m) {
    return c->dp >= 1 && c->pp >= 1 && c->tp >= 1 && m->n_layers % c->pp == 0 &&
           m->n_heads % c->tp == 0 && m->n_kv_heads % c->tp == 0 && m->d_ff % c->tp == 0 &&
           m->vocab >= c->tp;
}

struct links { // between the ranks: of devices, or of processors
    double rate, each_s;
};
static double wire(const struct links *l, double bytes, double messages) {
    return bytes > 0 || messages > 0 ? bytes / l->rate + messages * l->each_s : 0;
}

// Every stage but the ends has two neighbours.
static void pipeline(const struct intra_cost_job *j, const struct links *l, double message,
                     int32_t micros, struct intra_cost *c) {
    const struct intra_mesh_config *k = &j->mesh;
    if (k->pp == 1)
        return;
    c->pp_bytes = (k->pp > 2 ? 2 : 1) * micros * message;
    c->pp_s = wire(l, 2 * micros * message, 2.0 * micros) +
              (k->pp - 1) * ((c->compute_s + c->tp_s) / micros + 2 * wire(l, message, 1));
}

// On devices gradients are reduced during the last micro-batch's backward, except for its last
// piece. Parameters are gathered after the update. With tensor parallelism the host runs only
// AHEAD_BLOCKS ahead (intra/ranks), so only those blocks of backward overlap.
static double data_parallel_s(const struct intra_cost_job *j, const struct links *l, double bytes,
                              double micro_s) {
    int32_t dp = j->mesh.dp;
    if (dp == 1)
        return 0;
    if (!j->device)
        return wire(l, bytes, 2.0 * (dp - 1));
    double pieces = dp * ceil((double)PIECES / dp), half = wire(l, bytes / 2, pieces),
           ahead =
               j->mesh.tp > 1 ? fmin(1, AHEAD_BLOCKS * (double)j->mesh.pp / j->model.n_layers) : 1,
           hidden = fmin(half * (pieces - 1) / pieces, ahead * BACKWARD * micro_s);
    return half - hidden + wire(l, bytes / 2, 1);
}

static double update_s(const struct intra_cost_job *j, const struct intra_rates *r, double updated,
                       int32_t ranks) {
    if (j->device)
        return updated / (j->share * r->device.update[j->type]) + r->device.wait_s;
    // Ranks on the same processors also broadcast the data of every step.
    return updated * j->ranks_a_host / (j->share * r->update) + 6 * r->link_s * (ranks - 1);
}

// The job as the replicas run it (group.c): micro-batches are cut smaller where dp does not divide
// them, if they can be cut.
static struct intra_cost_job as_run(const struct intra_cost_job *given,
                                    const struct intra_cost_side *side) {
    NEB_ASSERT(given->ranks_a_host >= 1 && given->batch >= 1 && given->micros >= 1);
    struct intra_cost_job j = *given;
    int32_t sequences = j.batch * j.micros, batch = intra_mesh_batch(sequences, j.batch, j.mesh.dp);
    if (side && j.micros % j.mesh.dp) { // each replica takes a part of every micro-batch
        j.batch = j.batch / j.mesh.dp + 1;
        j.micros *= j.mesh.dp;
    } else if (batch) {
        j.batch = batch;
        j.micros = sequences / batch;
    }
    j.frozen = side ? !side->learns : j.frozen;
    return j;
}

// What one replica does with a micro-batch.
static struct intra_cost_side part_of(const struct intra_cost_job *given,
                                      const struct intra_cost_side *side) {
    struct intra_cost_side s = *side;
    double ways = given->micros % given->mesh.dp ? given->mesh.dp : 1;
    s.tokens /= ways;
    s.targets /= ways;
    s.again /= ways;
    return s;
}

void intra_cost_time(const struct intra_cost_job *given, const struct intra_cost_side *whole,
                     const struct intra_rates *r, struct intra_cost *c) {
    struct intra_cost_job own = as_run(given, whole);
    struct intra_cost_side part = whole ? part_of(given, whole) : (struct intra_cost_side){0};
    const struct intra_cost_side *side = whole ? &part : NULL;
    const struct intra_cost_job *j = &own;
    const struct intra_mesh_config *k = &j->mesh;
    struct links l = {j->device ? r->device.link : r->link,
                      j->device ? r->device.link_s : r->link_s};
    int32_t ranks = k->dp * k->pp * k->tp, micros = (j->micros + k->dp - 1) / k->dp;
    double n = side ? side->tokens : (double)j->batch * j->seq_len,
           times = micros * (double)(side ? 1 : j->batch); // the counted micro-batch
    struct cost_work w = cost_work(j, side);
    NEB_ASSERT(j->share > 0 && (!j->device || r->device.count > 0));
    *c = (struct intra_cost){.flops = times * w.flops + w.update_flops,
                             .tp_bytes = times * w.tp.bytes,
                             .dp_bytes = w.dp_bytes};
    c->compute_s = c->flops / intra_cost_rate(j, r, n);
    if (j->device) // tokens, targets, and lists that say where each token is
        c->compute_s += micros * 5 * n * (double)sizeof(int32_t) / r->device.up;
    // a ring over TCP takes a message for each rank
    c->tp_s = wire(&l, c->tp_bytes, micros * w.tp.calls * (j->device ? 1 : k->tp - 1));
    pipeline(j, &l, (side ? 1 : j->batch) * w.pp_bytes, micros, c);
    c->dp_s = data_parallel_s(j, &l, c->dp_bytes, c->compute_s / micros);
    c->update_s = j->frozen ? 0 : update_s(j, r, w.updated, ranks);
    c->step_s = c->compute_s + c->tp_s + c->pp_s + c->dp_s + c->update_s;
    if (j->batch * j->micros % k->dp || (ranks > 1 && !(l.rate > 0)) ||
        (j->device && j->ranks_a_host > r->device.count))
        c->step_s = INFINITY;
}

static void add_memory(const struct intra_cost_job *given, const struct intra_cost_side *side,
                       const struct intra_rates *r, struct intra_cost *c) {
    struct intra_cost_job j = as_run(given, side);
    cost_exchange(&j, r, c);
    cost_memory(&j, side, r->device.memory, c);
}

void intra_cost_step(const struct intra_cost_job *j, const struct intra_cost_side *side,
                     const struct intra_rates *r, struct intra_cost *out) {
    intra_cost_time(j, side, r, out);
    add_memory(j, side, r, out);
}

void intra_cost_memory(const struct intra_cost_job *given, const struct intra_cost_side *side,
                       struct intra_cost *out) {
    const struct intra_rates unknown = {.device.memory = INFINITY};
    *out = (struct intra_cost){0};
    add_memory(given, side, &unknown, out);
    out->gather_s = out->scatter_s = 0;
}

void intra_cost_exchange(const struct intra_cost_job *j, const struct intra_rates *r,
                         struct intra_cost *c) {
    struct intra_cost_params p = intra_cost_count(&j->model, &j->trainable);
    *c = (struct intra_cost){.params_bytes = 4 * (double)p.all};
    cost_exchange(j, r, c);
    c->copy_bytes = j->copy ? c->params_bytes + COST_EXCHANGE_BYTES * c->owner_params : 0;
    c->rank_bytes = c->params_bytes + c->exchange_bytes + c->frames_bytes + c->copy_bytes;
}

// ---- search for the best ------------------------------------------------------------------------

struct best {
    const struct intra_cost_choice *c;
    const struct intra_rates *r;
    struct intra_cost_job job;
    struct intra_cost cost;
    bool any, fits;
};

// Counting memory takes longer than all else, so a choice that is too slow is dropped before.
static void try_one(struct best *b, const struct intra_cost_job *j) {
    struct intra_cost cost;
    intra_cost_time(j, NULL, b->r, &cost);
    // Of equally fast choices the earlier one wins: fewer cuts.
    bool faster = cost.step_s < b->cost.step_s * 0.999;
    if ((b->fits && !faster) || (b->c->beat_s > 0 && !(cost.step_s < b->c->beat_s)))
        return;
    add_memory(j, NULL, b->r, &cost);
    bool fits = cost.host_bytes <= b->c->memory && cost.device_bytes <= b->c->device_memory;
    bool better =
        !b->any           ? true
        : fits != b->fits ? fits
        : fits            ? faster
               : cost.host_bytes + cost.device_bytes < b->cost.host_bytes + b->cost.device_bytes;
    if (!better)
        return;
    b->job = *j;
    b->cost = cost;
    b->any = true;
    b->fits = fits;
}

bool intra_cost_choose(const struct intra_cost_choice *c, const struct intra_rates *r,
                       struct intra_cost_job *j, struct intra_cost *out) {
    struct best b = {.c = c, .r = r};
    struct intra_cost_job at = *j;
    for (int32_t tp = 1; tp <= c->ranks; tp++)
        for (int32_t pp = 1; tp * pp <= c->ranks; pp++) {
            struct intra_mesh_config mesh = {c->ranks / (tp * pp), pp, tp};
            if (c->fix_mesh)
                mesh = j->mesh;
            else if (c->ranks % (tp * pp) || !intra_cost_mesh_fits(&mesh, &j->model))
                continue;
            int32_t sequences = j->batch * j->micros;
            if (sequences % mesh.dp)
                continue;
            at.mesh = mesh;
            try_one(&b, &at);
            if (c->fix_mesh)
                goto done;
        }
done:
    if (b.any) {
        *j = b.job;
        *out = b.cost;
    } else {
        *out = (struct intra_cost){.step_s = INFINITY};
    }
    return b.fits;
}
