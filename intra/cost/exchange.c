// SPDX-License-Identifier: Apache-2.0
// What an exchange between clusters costs the ranks of one cluster, without encoding and decoding:
// which rank owns how much of the state, in which memory, and how parameters get to their owners
// and back (agent/exchange/shards.h, agent/exchange/shards_device.c).
//
//     gather    each owner gets its units from the ranks of its replica that train them, before an
//               update is made and before one is merged; on a device it gets nothing if it trains
//               the full tensor itself
//     scatter   back to the owner's replica, then to all replicas, and to the devices of all ranks
//
// Units are assigned as in a run (shards.h), so the busiest owner is the same.
#include "intra/cost/parts.h"
#include "intra/train/shards.h"
#include "intra/train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICE_UNITS = 2 }; // of scratch: the sum of updates, one of them
// Device memory for each element of the largest unit, in bytes: codes, or indices and values.
static const double CODEC_BYTES = 1.25;

struct rank_share {
    double own, units, largest; // elements of its units; of the largest one
    // gathered elements of one fragment: so far, the most, and the most in its device's memory
    double at, room, device_room;
    double at_units, room_units;   // the same of units
    double away;                   // gathered on its device, of all fragments
    double pulled, sent, received; // in a gather
    double given, taken;           // in a scatter, within a replica
    int32_t fragment, last_pulled; // fragment of the last unit; index of the last pulled tensor
};

struct shares {
    const struct intra_cost_job *j;
    struct intra_model *layout;
    struct intra_unit *units;
    int32_t n, ranks;
    int32_t *fragment, *owner;
    struct rank_share *of; // (ranks)
    double *held; // (pp, tp) elements of the exchange that a rank of this stage and part trains
};

static double size_of(const struct intra_unit *u) { return (double)u->rows * u->cols; }

static int32_t parts_of(const struct shares *s, const struct intra_tensor *t) {
    return t->cut == INTRA_CUT_NONE ? 1 : s->j->mesh.tp;
}

static int32_t stage_of(const struct shares *s, const struct intra_tensor *t) {
    int32_t pp = s->j->mesh.pp, L = s->j->model.n_layers;
    return t->layer < 0 ? 0 : t->layer == L ? pp - 1 : t->layer / (L / pp);
}

static bool on_last_too(const struct shares *s, const struct intra_tensor *t) {
    return t->layer < 0 && s->j->model.tied && s->j->mesh.pp > 1;
}

// ---- which rank owns what -----------------------------------------------------------------------

static void deal(struct shares *s) {
    size_t n = (size_t)s->n + 1;
    uint64_t *elements = calloc(n, sizeof *elements),
             *load = calloc((size_t)s->ranks, sizeof *load);
    int32_t *layer = calloc(n, sizeof *layer);
    NEB_ASSERT(elements && load && layer); // a few bytes a unit
    for (int32_t i = 0; i < s->n; i++) {
        elements[i] = (uint64_t)size_of(&s->units[i]);
        layer[i] = s->units[i].tensor->layer;
    }
    intra_shards_fragments(elements, layer, s->n, s->j->model.n_layers,
                           s->j->fragments > 1 ? s->j->fragments : 1, s->fragment);
    intra_shards_assign(elements, s->fragment, s->n, s->j->outer_single ? 1 : s->ranks, NULL, NULL,
                        load, s->owner);
    free(elements);
    free(load);
    free(layer);
}

static void shares_make(const struct intra_cost_job *j, struct shares *s) {
    const struct intra_mesh_config *k = &j->mesh;
    size_t cells = (size_t)k->pp * (size_t)k->tp;
    *s = (struct shares){.j = j, .ranks = k->dp * k->pp * k->tp};
    s->layout = intra_cost_layout(&j->model, &j->trainable);
    enum neb_status st = intra_units(s->layout, &s->units, &s->n);
    NEB_ASSERT(st == NEB_OK); // a few bytes a unit
    s->fragment = calloc((size_t)s->n + 1, sizeof *s->fragment);
    s->owner = calloc((size_t)s->n + 1, sizeof *s->owner);
    s->of = calloc((size_t)s->ranks, sizeof *s->of);
    s->held = calloc(cells, sizeof *s->held);
    NEB_ASSERT(s->fragment && s->owner && s->of && s->held);
    for (int32_t r = 0; r < s->ranks; r++)
        s->of[r].fragment = s->of[r].last_pulled = -1;
    deal(s);
}

static void shares_free(struct shares *s) {
    free(s->units);
    free(s->fragment);
    free(s->owner);
    free(s->of);
    free(s->held);
    intra_model_destroy(&s->layout);
}

// ---- what each rank has to do -------------------------------------------------------------------

// The owner's memory for θ_m holds one fragment at a time.
static void add_own(struct rank_share *o, const struct intra_unit *u, int32_t fragment, bool here) {
    double n = size_of(u);
    o->own += n;
    o->units++;
    o->largest = fmax(o->largest, n);
    o->at = (o->fragment == fragment ? o->at : 0) + n;
    o->at_units = (o->fragment == fragment ? o->at_units : 0) + 1;
    o->fragment = fragment;
    o->room = fmax(o->room, o->at);
    o->room_units = fmax(o->room_units, o->at_units);
    o->device_room = here ? o->device_room : fmax(o->device_room, o->at);
    o->away += here ? 0 : n;
}

// A tensor leaves the device once, as a whole, for all of its units.
static void gather(struct shares *s, const struct intra_unit *u, int32_t owner) {
    const struct intra_mesh_config *k = &s->j->mesh;
    int32_t replica = intra_mesh_replica(k, owner), parts = parts_of(s, u->tensor);
    for (int32_t p = 0; p < parts; p++) {
        int32_t from = intra_mesh_rank(k, replica, stage_of(s, u->tensor), p);
        struct rank_share *x = &s->of[from];
        if (x->last_pulled != u->tensor->index)
            x->pulled += (double)u->tensor->rows * u->tensor->cols / parts;
        x->last_pulled = u->tensor->index;
        if (from == owner)
            continue;
        x->sent += size_of(u) / parts;
        s->of[owner].received += size_of(u) / parts;
    }
}

static void scatter(struct shares *s, const struct intra_unit *u, int32_t owner) {
    const struct intra_mesh_config *k = &s->j->mesh;
    int32_t replica = intra_mesh_replica(k, owner), stages[2] = {stage_of(s, u->tensor), k->pp - 1},
            n = on_last_too(s, u->tensor) ? 2 : 1;
    double part = size_of(u) / parts_of(s, u->tensor);
    for (int32_t i = 0; i < n; i++)
        for (int32_t p = 0; p < k->tp; p++) {
            int32_t to = intra_mesh_rank(k, replica, stages[i], p);
            s->held[stages[i] * k->tp + p] += part;
            if (to == owner)
                continue;
            s->of[owner].given += part;
            s->of[to].taken += part;
        }
}

static void walk(struct shares *s) {
    for (int32_t i = 0; i < s->n; i++) {
        const struct intra_unit *u = &s->units[i];
        int32_t o = s->owner[i];
        bool here = s->j->device && s->j->outer_device && parts_of(s, u->tensor) == 1 &&
                    o == intra_mesh_rank(&s->j->mesh, intra_mesh_replica(&s->j->mesh, o),
                                         stage_of(s, u->tensor), 0);
        add_own(&s->of[o], u, s->fragment[i], here);
        if (!here)
            gather(s, u, o);
        scatter(s, u, o);
    }
}

// ---- the busiest rank ---------------------------------------------------------------------------

struct busiest {
    double n; // units of all ranks
    double own, units, largest, away, pulled, gathered, scattered, held, host, frames, device;
};

static struct busiest busiest_of(const struct shares *s) {
    const struct intra_mesh_config *k = &s->j->mesh;
    struct busiest b = {.n = s->n};
    bool there = s->j->device && s->j->outer_device;
    const struct intra_cost_frames *f = &s->j->frames;
    double updates =
        1 + (s->j->members > 0 ? s->j->members : 2); // the own one, and the merged ones
    for (int32_t r = 0; r < s->ranks; r++) {
        const struct rank_share *x = &s->of[r];
        if (x->own > b.own)
            b.units = x->units;
        b.own = fmax(b.own, x->own);
        b.largest = fmax(b.largest, x->largest);
        b.away = fmax(b.away, x->away);
        b.pulled = fmax(b.pulled, x->pulled);
        b.gathered = fmax(b.gathered, fmax(x->sent, x->received));
        b.scattered = fmax(b.scattered, fmax(x->given, x->taken));
        b.host = fmax(b.host, 4 * (COST_EXCHANGE_FLOATS * x->own + (there ? x->largest : 0) +
                                   (s->ranks > 1 ? x->room : 0)));
        // a device merges unit by unit
        b.frames = fmax(b.frames, f->unit * x->room_units + updates * f->update * x->own +
                                      (there ? 0 : f->work * x->room));
        b.device = fmax(b.device, 4 * (COST_EXCHANGE_FLOATS * x->own + DEVICE_UNITS * x->largest +
                                       (s->ranks > 1 ? x->device_room : 0)) +
                                      CODEC_BYTES * x->largest + f->kept * x->room);
    }
    for (int32_t i = 0; i < k->pp * k->tp; i++) {
        b.held = fmax(b.held, s->held[i]);
    }
    return b;
}

// ---- seconds ------------------------------------------------------------------------------------

static double over(double elements, double rate) { return elements > 0 ? 4 * elements / rate : 0; }

// Everything passes through host memory, also between devices.
static void times(const struct intra_cost_job *j, const struct busiest *b,
                  const struct intra_rates *r, struct intra_cost *c) {
    int32_t dp = j->mesh.dp, ranks = dp * j->mesh.pp * j->mesh.tp;
    double link = r->link > 0 ? r->link : r->device.link;
    bool there = j->device && j->outer_device;
    if (ranks > 1) {
        double messages = b->n * r->link_s;
        // with two replicas a copy to the other one; with more, ranks pass rows on to each other
        double spread = dp == 1 ? 0 : dp == 2 ? 1 : 2.0 * (dp - 1) / dp;
        c->gather_s = over(b->gathered, link) + (b->gathered > 0 ? messages : 0);
        c->scatter_s = over(b->scattered, link) + over(spread * b->held, link) + messages;
    }
    if (!j->device || (there && ranks == 1))
        return;
    c->gather_s += over(b->pulled, r->device.down) + (there ? over(b->away, r->device.up) : 0);
    c->scatter_s += over(b->held, r->device.up) + (there ? over(b->own, r->device.down) : 0);
}

static struct busiest find_busiest(const struct intra_cost_job *j) {
    static struct cost_memo memo;
    _Static_assert(sizeof(struct busiest) <= sizeof memo.at->value, "a memo has room for it");
    struct intra_cost_job key;
    struct shares s;
    bool known;
    memset(&key, 0, sizeof key);
    key.model = j->model;
    key.trainable = j->trainable;
    key.mesh = j->mesh;
    key.share = 1;
    key.fragments = j->fragments;
    key.members = j->members;
    key.frames = j->frames;
    key.outer_single = j->outer_single;
    key.device = j->device;
    key.outer_device = j->outer_device;
    struct busiest *b = cost_memo(&memo, &key, &known);
    if (known)
        return *b;
    shares_make(&key, &s);
    walk(&s);
    *b = busiest_of(&s);
    shares_free(&s);
    return *b;
}

void cost_exchange(const struct intra_cost_job *j, const struct intra_rates *r,
                   struct intra_cost *c) {
    if (!j->outer)
        return;
    struct busiest b = find_busiest(j);
    c->owner_params = b.own;
    c->owner_units = b.units;
    c->owner_largest = b.largest;
    c->frames_bytes = b.frames;
    if (j->outer_single && j->mesh.dp * j->mesh.pp * j->mesh.tp > 1)
        c->owner_bytes = b.host + b.frames;
    else
        c->exchange_bytes = b.host;
    if (j->device && j->outer_device)
        c->outer_bytes = b.device;
    times(j, &b, r, c);
}
