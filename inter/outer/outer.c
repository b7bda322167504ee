// SPDX-License-Identifier: Apache-2.0
// The state of the outer optimiser: creation, digests, rounds without an update, checkpoints.
// encode.c and apply.c hold the steps of a round.
#include "agent/base/memory.h"
#include "agent/base/rng.h"
#include "inter/outer/state.h"

#include <stdlib.h>
#include <string.h>

// A strip's sum and one update of it fit in the first-level cache.
enum { STRIP = 4096 };

static float *floats(size_t n) { return calloc(n ? n : 1, sizeof(float)); }

static enum neb_status make_slot(struct inter_outer *o, struct outer_slot *s,
                                 const struct inter_outer_unit *u,
                                 const struct inter_outer_position *place) {
    s->u = *u;
    s->u.row_weights = u->row_weights && o->c.row_weights;
    s->n = (size_t)u->rows * u->cols;
    s->at = o->n;
    s->shape = (struct cmp_unit_shape){place ? place->number : (uint32_t)(s - o->slots), u->rows,
                                       u->cols, s->u.row_weights};
    s->theta_m = u->theta_m;
    s->place = place ? place->at : o->n;
    o->n += s->n;
    s->strip = o->c.sum            ? s->n
               : !s->u.row_weights ? STRIP
               : u->cols >= STRIP  ? u->cols
                                   : STRIP / u->cols * u->cols;
    s->acc = neb_large_alloc(s->strip * sizeof(float)); // aligned: each strip passes through them
    s->part = neb_large_alloc(s->strip * sizeof(float));
    s->mean = o->c.robust ? floats(s->n) : NULL;
    s->weights = s->u.row_weights ? floats((size_t)u->rows * INTER_PARTS_MAX) : NULL;
    s->row_counts =
        s->u.row_weights ? calloc((size_t)u->rows * INTER_PARTS_MAX, sizeof *s->row_counts) : NULL;
    if (!s->acc || !s->part || (o->c.robust && !s->mean) ||
        (s->u.row_weights && (!s->weights || !s->row_counts)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the outer state of %u x %u parameters",
                        u->rows, u->cols);
    return NEB_OK;
}

static enum neb_status make_fragment(struct inter_outer *o, int32_t f) {
    struct outer_fragment *g = &o->fragments[f];
    g->units = calloc((size_t)o->n_units + 1, sizeof *g->units);
    g->shapes = calloc((size_t)o->n_units + 1, sizeof *g->shapes);
    if (!g->units || !g->shapes)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for fragment %d", f);
    for (int32_t i = 0; i < o->n_units; i++)
        if (o->slots[i].u.fragment == f) {
            g->shapes[g->n] = o->slots[i].shape;
            g->units[g->n++] = i;
            o->slots[i].from = g->elements;
            g->elements += o->slots[i].n;
        }
    g->count = g->n;
    g->begins = g->completes = true;
    int32_t wave = o->c.wave && o->c.wave < g->n ? o->c.wave : g->n;
    o->most_units = wave > o->most_units ? wave : o->most_units;
    return g->n || o->part
               ? NEB_OK
               : neb_fail(NEB_ERR_INVALID,
                          "sync.fragments: fragment %d of %d is empty; use fewer fragments", f,
                          o->c.fragments);
}

enum neb_status inter_outer_create(const struct inter_outer_config *c,
                                   const struct inter_outer_unit *units, int32_t n,
                                   struct kern_pool *pool, struct inter_outer **out) {
    enum neb_status st = NEB_OK;
    struct inter_outer *o = calloc(1, sizeof *o);
    if (!o)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the outer optimiser");
    NEB_ASSERT(c->fragments >= 1 && (n >= 1 || c->places));
    o->c = *c;
    o->c.places = NULL;
    o->part = c->places != NULL;
    o->pool = pool;
    o->n_units = n;
    o->slots = calloc((size_t)n + 1, sizeof *o->slots);
    o->fragments = calloc((size_t)c->fragments, sizeof *o->fragments);
    o->buffers = calloc((size_t)n + 1, sizeof *o->buffers);
    o->views = calloc((size_t)n + 1, sizeof *o->views);
    if (!o->slots || !o->fragments || !o->buffers || !o->views) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for the outer optimiser");
        goto fail;
    }
    for (int32_t i = 0; i < n; i++)
        NEB_TRY_GOTO(make_slot(o, &o->slots[i], &units[i], c->places ? &c->places[i] : NULL), fail);
    for (int32_t f = 0; f < c->fragments; f++)
        NEB_TRY_GOTO(make_fragment(o, f), fail);
    for (int32_t k = 0; k < o->most_units; k++)
        NEB_TRY_GOTO(cmp_work_create(&o->buffers[k].work), fail);
    NEB_TRY_GOTO(kern_exact_create(&o->host.K), fail);
    o->host.theta = floats(o->n);
    o->host.v = floats(o->n);
    o->host.u = floats(o->n);
    o->host.sent = floats(o->n);
    o->host.digests = calloc((size_t)n + 1, sizeof *o->host.digests);
    if (!o->host.theta || !o->host.v || !o->host.u || !o->host.sent || !o->host.digests) {
        st = neb_fail(NEB_ERR_NOMEM,
                      "out of memory for the outer state of %zu parameters (16 bytes each)", o->n);
        goto fail;
    }
    for (int32_t i = 0; !o->part && i < n; i++)
        memcpy(o->host.theta + o->slots[i].at, units[i].theta_m, o->slots[i].n * sizeof(float));
    o->now = o->host;
    *out = o;
    return NEB_OK;
fail:
    inter_outer_destroy(&o);
    return st;
}

void inter_outer_destroy(struct inter_outer **op) {
    struct inter_outer *o = *op;
    if (!o)
        return;
    for (int32_t i = 0; o->slots && i < o->n_units; i++) {
        struct outer_slot *s = &o->slots[i];
        free(s->acc);
        free(s->part);
        free(s->mean);
        free(s->weights);
        free(s->row_counts);
    }
    for (int32_t k = 0; o->buffers && k < o->most_units; k++) {
        struct outer_buffers *b = &o->buffers[k];
        cmp_work_destroy(&b->work);
        neb_buf_free(&b->frame);
        for (size_t p = 0; p < INTER_PARTS_MAX; p++)
            cmp_reader_destroy(&b->readers[p]);
    }
    for (int32_t f = 0; o->fragments && f < o->c.fragments; f++) {
        free(o->fragments[f].units);
        free(o->fragments[f].shapes);
    }
    free(o->slots);
    free(o->buffers);
    free(o->fragments);
    free(o->views);
    outer_device_destroy(o);
    kern_destroy(&o->host.K);
    free(o->host.theta);
    free(o->host.v);
    free(o->host.u);
    free(o->host.sent);
    free(o->host.digests);
    free(o);
    *op = NULL;
}

// ---- units --------------------------------------------------------------------------------------

void inter_outer_wave(struct inter_outer *o, int32_t f, int32_t first, int32_t n, bool begins,
                      bool completes) {
    struct outer_fragment *g = &o->fragments[f];
    NEB_ASSERT(first >= 0 && n >= 0 && first + n <= g->n && n <= o->most_units);
    g->first = first;
    g->count = n;
    g->begins = begins;
    g->completes = completes;
}

struct each {
    const struct inter_outer *o;
    const struct outer_fragment *g;
    outer_task *task;
    void *arg;
};
static void one_of_each(void *arg, size_t i) {
    const struct each *e = arg;
    struct outer_slot *s = &e->o->slots[e->g->units[e->g->first + (int32_t)i]];
    size_t buffers = (size_t)e->o->most_units; // fewer than units: see outer_whole()
    s->b = i < buffers ? &e->o->buffers[i] : e->o->device ? &e->o->buffers[i % buffers] : NULL;
    s->st = e->task(e->arg, s);
}

enum neb_status outer_each(const struct inter_outer *o, const struct outer_fragment *g,
                           outer_task *task, void *arg) {
    struct each e = {o, g, task, arg};
    if (!o->device)
        kern_pool_run(o->pool, (size_t)g->count, one_of_each, &e);
    for (int32_t i = 0; i < g->count; i++) {
        if (o->device)
            one_of_each(&e, (size_t)i);
        NEB_TRY(o->slots[g->units[g->first + i]].st);
    }
    return NEB_OK;
}

// ---- digests ------------------------------------------------------------------------------------

struct kern_digest inter_outer_version_digest(uint32_t version) {
    return (struct kern_digest){neb_mix64(version + 1), neb_mix64((uint64_t)version << 32 | 7)};
}

static size_t digests_bytes(const struct inter_outer *o) {
    return (size_t)o->n_units * sizeof *o->now.digests;
}

void outer_digests_zero(const struct inter_outer *o) {
    o->now.K->ops->zero(o->now.K, o->now.digests, digests_bytes(o));
}

void outer_digest(const struct inter_outer *o, const struct outer_slot *s,
                  const struct outer_arrays *m, size_t at, size_t n) {
    struct kern *K = o->now.K;
    K->ops->exact_digest(K, &o->now.digests[s - o->slots], m->theta + at, m->v + at, s->place + at,
                         n);
}

struct kern_digest outer_digests_sum(const struct inter_outer *o, const struct outer_fragment *g) {
    struct kern *K = o->now.K;
    struct kern_digest d = {0, 0};
    if (!o->part)
        d = inter_outer_version_digest(g->version);
    if (o->device)
        K->ops->download(K, o->host.digests, o->now.digests, digests_bytes(o));
    // A failed device is reported by the next call that can fail. Its digest here equals no other.
    if (K->ops->finish(K) != NEB_OK)
        memset(o->host.digests, 0, digests_bytes(o));
    for (int32_t i = 0; i < g->n; i++)
        d = kern_digest_add(d, o->host.digests[g->units[i]]);
    return d;
}

struct walk { // a task over the units of a fragment
    const struct inter_outer *o;
    const struct outer_fragment *g;
    const float *theta, *v; // adopt: parameters to take over
};

static enum neb_status digest_unit(void *arg, struct outer_slot *s) {
    const struct inter_outer *o = ((const struct walk *)arg)->o;
    const struct outer_arrays m = outer_in(o, s, OUTER_THETA | OUTER_V);
    outer_digest(o, s, &m, 0, s->n);
    return NEB_OK;
}

struct outer_fragment outer_whole(const struct outer_fragment *g) {
    struct outer_fragment all = *g;
    all.first = 0;
    all.count = g->n;
    return all;
}

// Digests the units from the current parameters.
static struct kern_digest digest_now(const struct inter_outer *o, const struct outer_fragment *g) {
    const struct outer_fragment all = outer_whole(g);
    outer_digests_zero(o);
    outer_each(o, &all, digest_unit, &(struct walk){.o = o});
    return outer_digests_sum(o, g);
}

// ---- rounds without an applied update, and state from elsewhere ---------------------------------
// These tasks fail only if the device fails. The next call that can fail reports that.

static enum neb_status skip_unit(void *arg, struct outer_slot *s) {
    const struct walk *w = arg;
    const struct outer_arrays m = outer_in(w->o, s, OUTER_THETA | OUTER_U | OUTER_SENT);
    outer_merge(w->o, w->g, s, &m, 0, s->n);
    outer_out(w->o, s, OUTER_U | OUTER_SENT);
    return NEB_OK;
}

void inter_outer_skip(struct inter_outer *o, int32_t f, struct kern_digest *digest) {
    struct outer_fragment *g = &o->fragments[f];
    if (g->in_flight)
        outer_each(o, g, skip_unit, &(struct walk){.o = o, .g = g});
    if (!g->completes)
        return;
    g->in_flight = false;
    g->version++;
    *digest = digest_now(o, g);
}

static enum neb_status finish_unit(void *arg, struct outer_slot *s) {
    const struct inter_outer *o = ((const struct walk *)arg)->o;
    const struct outer_arrays m = outer_in(o, s, OUTER_THETA);
    o->now.K->ops->copy(o->now.K, s->theta_m, m.theta, s->n * sizeof(float));
    return NEB_OK;
}

void inter_outer_finish(struct inter_outer *o, int32_t f) {
    outer_each(o, &o->fragments[f], finish_unit, &(struct walk){.o = o});
}

static enum neb_status reset_unit(void *arg, struct outer_slot *s) {
    const struct inter_outer *o = ((const struct walk *)arg)->o;
    const struct outer_arrays m = outer_in(o, s, 0);
    o->now.K->ops->zero(o->now.K, m.u, s->n * sizeof(float));
    outer_out(o, s, OUTER_U);
    return finish_unit(arg, s);
}

void inter_outer_reset(struct inter_outer *o, int32_t f) {
    if (o->device) // a commit that was opened has the residual of before
        o->device->opened = NULL;
    outer_each(o, &o->fragments[f], reset_unit, &(struct walk){.o = o});
}

void inter_outer_reject(struct inter_outer *o, int32_t f) {
    inter_outer_reset(o, f);
    o->fragments[f].in_flight = false;
}

bool inter_outer_in_flight(const struct inter_outer *o, int32_t f) {
    return o->fragments[f].in_flight;
}
uint32_t inter_outer_version(const struct inter_outer *o, int32_t f) {
    return o->fragments[f].version;
}

static enum neb_status adopt_unit(void *arg, struct outer_slot *s) {
    const struct walk *w = arg;
    const struct outer_place *m = &w->o->now;
    if (w->theta != m->theta)
        outer_set(w->o, m->theta + s->at, w->theta + s->at, s->n);
    if (w->v != m->v)
        outer_set(w->o, m->v + s->at, w->v + s->at, s->n);
    return NEB_OK;
}

void inter_outer_adopt(struct inter_outer *o, int32_t f, const float *theta, const float *v,
                       uint32_t version) {
    struct outer_fragment *g = &o->fragments[f];
    const struct outer_fragment all = outer_whole(g);
    outer_each(o, &all, adopt_unit, &(struct walk){.o = o, .theta = theta, .v = v});
    if (g->count == g->n)
        inter_outer_reset(o, f);
    g->in_flight = false;
    g->version = version;
}

struct kern_digest inter_outer_fragment_digest(const struct inter_outer *o, int32_t f) {
    return digest_now(o, &o->fragments[f]);
}

struct kern_digest inter_outer_digest(const struct inter_outer *o) {
    struct kern_digest d = {0, 0};
    for (int32_t f = 0; f < o->c.fragments; f++)
        d = kern_digest_add(d, inter_outer_fragment_digest(o, f));
    return d;
}

void inter_outer_arrays(struct inter_outer *o, struct inter_outer_array out[INTER_OUTER_ARRAYS]) {
    const struct inter_outer_array all[INTER_OUTER_ARRAYS] = {{"outer.theta", o->host.theta, o->n},
                                                              {"outer.v", o->host.v, o->n},
                                                              {"outer.u", o->host.u, o->n},
                                                              {"outer.sent", o->host.sent, o->n}};
    memcpy(out, all, sizeof all);
    if (o->device)
        o->device->copies = true; // the caller may write them
    if (o->device && o->device->pinned)
        (void)o->now.K->ops->finish(o->now.K); // pull tells of a failure
}

size_t inter_outer_unit_at(const struct inter_outer *o, int32_t i) { return o->slots[i].at; }

uint64_t inter_outer_bytes(const struct inter_outer *o) {
    bool copies = !o->device || o->device->pinned || o->device->copies;
    uint64_t floats = copies ? INTER_OUTER_ARRAYS * (uint64_t)o->n : 0, bytes = 0;
    for (int32_t i = 0; i < o->n_units; i++) {
        const struct outer_slot *s = &o->slots[i];
        floats += 2 * s->strip + (s->mean ? s->n : 0) +
                  (s->weights ? 2ull * s->u.rows * INTER_PARTS_MAX : 0); // weights and row counts
        bytes += sizeof *s + sizeof *o->host.digests;
    }
    if (o->device)
        bytes += outer_device_host_bytes(o);
    for (int32_t k = 0; k < o->most_units; k++)
        bytes += sizeof *o->buffers + cmp_work_bytes(o->buffers[k].work);
    return bytes + floats * sizeof(float);
}

void inter_outer_set_fragment(struct inter_outer *o, int32_t f, uint32_t version, bool in_flight) {
    o->fragments[f].version = version;
    o->fragments[f].in_flight = in_flight;
}
