// SPDX-License-Identifier: Apache-2.0
// The outer optimiser on an accelerator: the steps of encode.c and apply.c, unit by unit, in the
// device's one queue.
#include "inter/outer/state.h"

#include <stdlib.h>
#include <string.h>

struct outer_device {
    struct kern *D; // borrowed
    struct cmp_device *codec;
    float **theta_m;                   // (n_units) the worker's parameters, borrowed
    float *theta, *v, *u, *sent, *acc; // (n)
    float *part;                       // (largest unit) one decoded update
    float *weights;                    // (most rows of a unit)
    struct kern_digest *digests;       // (n_units)
    struct kern_digest *fetched;       // (n_units) on the host
};

static const struct kern_ops *ops(const struct outer_device *d) { return d->D->ops; }

// ---- memory -------------------------------------------------------------------------------------

void outer_device_destroy(struct outer_device **dp) {
    struct outer_device *d = *dp;
    if (!d)
        return;
    (void)ops(d)->finish(d->D); // a queued kernel may still use the memory
    void *all[] = {d->theta, d->v, d->u, d->sent, d->acc, d->part, d->weights, d->digests};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ops(d)->release(d->D, all[i]);
    cmp_device_destroy(&d->codec);
    free(d->theta_m);
    free(d->fetched);
    free(d);
    *dp = NULL;
}

static enum neb_status allocate_floats(struct outer_device *d, size_t n, float **out) {
    void *p = NULL;
    NEB_TRY(ops(d)->alloc(d->D, (n ? n : 1) * sizeof(float), &p));
    *out = p;
    return NEB_OK;
}

static enum neb_status leave_free(struct kern *D, size_t bytes) {
    size_t left = D->ops->free_bytes(D);
    return left >= bytes
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM,
                          "%s: the state of the exchange leaves %.1f GB of device memory free, but "
                          "training may need %.1f GB",
                          D->name, (double)left * 1e-9, (double)bytes * 1e-9);
}

static enum neb_status allocate(struct inter_outer *o, struct outer_device *d, size_t spare_bytes) {
    size_t most = 0, rows = 0;
    void *p = NULL;
    float **const whole[] = {&d->theta, &d->v, &d->u, &d->sent, &d->acc};
    for (int32_t i = 0; i < o->n_units; i++) {
        struct outer_slot *s = &o->slots[i];
        if (!s->mean && !(s->mean = calloc(s->n ? s->n : 1, sizeof(float))))
            return neb_fail(NEB_ERR_NOMEM, "out of memory for the outer state on %s", d->D->name);
        most = s->n > most ? s->n : most;
        rows = s->u.rows > rows ? s->u.rows : rows;
    }
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        NEB_TRY(allocate_floats(d, o->n, whole[i]));
    NEB_TRY(allocate_floats(d, most, &d->part));
    NEB_TRY(allocate_floats(d, rows, &d->weights));
    NEB_TRY(ops(d)->alloc(d->D, ((size_t)o->n_units + 1) * sizeof *d->digests, &p));
    d->digests = p;
    if (spare_bytes) // codecs need two more bytes per element (compress/device.c)
        NEB_TRY(leave_free(d->D, spare_bytes + 2 * most));
    return cmp_device_create(d->D, &d->codec);
}

enum neb_status inter_outer_to_device(struct inter_outer *o, struct kern *D, float *const *theta_m,
                                      size_t spare_bytes) {
    NEB_ASSERT(!o->device);
    size_t units = (size_t)o->n_units; // may be 0 on a rank of a mesh
    struct outer_device *d = calloc(1, sizeof *d);
    enum neb_status st = NEB_OK;
    if (d) {
        d->D = D;
        d->theta_m = calloc(units + 1, sizeof *d->theta_m);
        d->fetched = calloc(units + 1, sizeof *d->fetched);
    }
    if (!d || !d->theta_m || !d->fetched)
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for the outer state on %s", D->name);
    if (st == NEB_OK) {
        memcpy(d->theta_m, theta_m, units * sizeof *theta_m);
        st = allocate(o, d, spare_bytes);
    }
    if (st == NEB_OK) {
        o->device = d;
        st = inter_outer_push(o);
    }
    if (st != NEB_OK) {
        o->device = NULL;
        if (d)
            outer_device_destroy(&d);
    }
    return st;
}

enum neb_status inter_outer_to_host(struct inter_outer *o) {
    NEB_TRY(inter_outer_pull(o));
    outer_device_destroy(&o->device);
    // on the device, mean was only scratch
    for (int32_t i = 0; i < o->n_units && !o->c.robust; i++) {
        free(o->slots[i].mean);
        o->slots[i].mean = NULL;
    }
    return NEB_OK;
}

bool inter_outer_on_device(const struct inter_outer *o) { return o->device != NULL; }

static void arrays(const struct inter_outer *o, float *host[4], float *device[4]) {
    float *const h[4] = {o->theta, o->v, o->u, o->sent};
    float *const on[4] = {o->device->theta, o->device->v, o->device->u, o->device->sent};
    memcpy(host, h, sizeof h);
    memcpy(device, on, sizeof on);
}

enum neb_status inter_outer_pull(struct inter_outer *o) {
    float *host[4], *device[4];
    if (!o->device)
        return NEB_OK;
    arrays(o, host, device);
    for (int i = 0; i < 4; i++)
        kern_stage_download(o->device->D, host[i], device[i], o->n * sizeof(float));
    return kern_stage_end(o->device->D);
}

enum neb_status inter_outer_push(struct inter_outer *o) {
    float *host[4], *device[4];
    if (!o->device)
        return NEB_OK;
    arrays(o, host, device);
    for (int i = 0; i < 4; i++)
        kern_stage_upload(o->device->D, device[i], host[i], o->n * sizeof(float));
    return kern_stage_end(o->device->D);
}

enum neb_status outer_device_fetch_u(struct inter_outer *o, struct outer_slot *s) {
    struct outer_device *d = o->device;
    kern_stage_download(d->D, s->mean, d->u + s->at, s->n * sizeof(float));
    return kern_stage_end(d->D);
}

// ---- rounds -------------------------------------------------------------------------------------

enum neb_status outer_device_encode(struct inter_outer *o, int32_t f, const struct cmp_codec *codec,
                                    inter_outer_counts *counts, void *user) {
    struct outer_device *d = o->device;
    const struct outer_fragment *g = &o->fragments[f];
    for (int32_t i = 0; i < g->n; i++) {
        int32_t unit = g->units[i];
        struct outer_slot *s = &o->slots[unit];
        float *u = d->u + s->at, *sent = d->sent + s->at, *mine = d->theta_m[unit];
        if (g->in_flight) // sent again: progress since the send comes on top
            ops(d)->exact_pseudo_gradient(d->D, u, sent, mine, 1, s->n);
        else
            ops(d)->exact_pseudo_gradient(d->D, u, d->theta + s->at, mine,
                                          o->c.beta - outer_held(o), s->n);
        ops(d)->copy(d->D, sent, mine, s->n * sizeof(float));
        neb_buf_clear(&s->frame);
        s->st = cmp_update_add_device(d->codec, s->work, &s->frame, &g->shapes[i], codec, u,
                                      s->u.row_weights ? counts(user, unit) : NULL);
        NEB_TRY(s->st);
    }
    return ops(d)->finish(d->D);
}

static enum neb_status add_part(struct outer_apply *j, struct outer_slot *s, size_t p) {
    struct outer_device *d = j->o->device;
    const struct inter_outer_part *part = &j->r->parts[p];
    float *acc = d->acc + s->at;
    NEB_TRY(cmp_device_decode(d->codec, s->work, s->views[p].frame, s->views[p].frame_len, d->part,
                              s->n));
    if (!s->u.row_weights) {
        float w = part->clip == 1 ? j->share[p] : j->share[p] * part->clip;
        ops(d)->exact_add_scaled(d->D, acc, d->part, w, s->n);
        return NEB_OK;
    }
    float *weights = s->weights + p * s->u.rows;
    for (uint32_t row = 0; part->clip != 1 && row < s->u.rows; row++)
        weights[row] = weights[row] * part->clip;
    kern_stage_upload(d->D, d->weights, weights, s->u.rows * sizeof(float));
    ops(d)->exact_add_rows(d->D, acc, d->part, d->weights, s->u.rows, s->u.cols);
    return NEB_OK;
}

enum neb_status outer_device_sum(struct outer_apply *j) {
    struct outer_device *d = j->o->device;
    for (int32_t i = 0; i < j->g->n; i++) {
        struct outer_slot *s = &j->o->slots[j->g->units[i]];
        NEB_TRY(outer_read_counts(j, s));
        if (j->o->c.robust) { // a trimmed mean sorts, so it runs on the host
            NEB_TRY(outer_sum_robust(j, s));
            kern_stage_upload(d->D, d->acc + s->at, s->mean, s->n * sizeof(float));
            continue;
        }
        ops(d)->zero(d->D, d->acc + s->at, s->n * sizeof(float));
        for (size_t p = 0; p < j->r->n; p++)
            NEB_TRY(add_part(j, s, p));
    }
    return ops(d)->finish(d->D);
}

static enum neb_status settle_own(struct outer_apply *j, struct outer_slot *s) {
    struct outer_device *d = j->o->device;
    for (size_t p = 0; p < j->r->n; p++)
        if (j->r->parts[p].mine) {
            NEB_TRY(cmp_device_decode(d->codec, s->work, s->views[p].frame, s->views[p].frame_len,
                                      d->part, s->n));
            ops(d)->exact_residual(d->D, d->u + s->at, d->part, s->n);
        }
    return NEB_OK;
}

// outer_merge_strip for a whole unit.
static void merge_unit(const struct inter_outer *o, const struct outer_fragment *g, int32_t unit) {
    const struct outer_device *d = o->device;
    const struct outer_slot *s = &o->slots[unit];
    float *mine = d->theta_m[unit], *theta = d->theta + s->at, *sent = d->sent + s->at,
          *u = d->u + s->at;
    size_t bytes = s->n * sizeof(float);
    if (g->in_flight && o->c.blend > 0) {
        ops(d)->exact_pseudo_gradient(d->D, u, sent, mine, 1, s->n);
        ops(d)->copy(d->D, sent, mine, bytes);
        ops(d)->exact_add_scaled(d->D, sent, theta, -1, s->n);
        ops(d)->copy(d->D, mine, theta, bytes);
        ops(d)->exact_add_scaled(d->D, mine, sent, o->c.blend, s->n);
        ops(d)->exact_pseudo_gradient(d->D, u, mine, theta, 1, s->n);
        return;
    }
    ops(d)->exact_rebase(d->D, mine, theta, sent, s->n);
    if (g->in_flight && o->c.keep > 0)
        ops(d)->exact_add_scaled(d->D, mine, u, -o->c.keep, s->n);
}

enum neb_status outer_device_settle(struct outer_apply *j) {
    struct inter_outer *o = j->o;
    struct outer_device *d = o->device;
    const struct outer_fragment *g = j->g;
    for (int32_t i = 0; i < g->n; i++) {
        struct outer_slot *s = &o->slots[g->units[i]];
        float *theta = d->theta + s->at, *v = d->v + s->at, *acc = d->acc + s->at;
        size_t bytes = s->n * sizeof(float);
        if (!g->in_flight) // no update in flight: progress counts from θ
            ops(d)->copy(d->D, d->sent + s->at, theta, bytes);
        NEB_TRY(settle_own(j, s));
        if (j->r->merge)
            ops(d)->zero(d->D, v, bytes);
        ops(d)->exact_outer_step(d->D, theta, v, acc, j->r->merge ? 1 : j->r->eta,
                                 j->r->merge ? 0 : j->r->mu, s->n);
        if (j->r->merge)
            ops(d)->zero(d->D, v, bytes);
        merge_unit(o, g, g->units[i]);
    }
    outer_device_digests(o, (int32_t)(g - o->fragments));
    return ops(d)->finish(d->D);
}

void outer_device_digests(const struct inter_outer *o, int32_t f) {
    struct outer_device *d = o->device;
    const struct outer_fragment *g = &o->fragments[f];
    ops(d)->zero(d->D, d->digests, (size_t)o->n_units * sizeof *d->digests);
    for (int32_t i = 0; i < g->n; i++) {
        const struct outer_slot *s = &o->slots[g->units[i]];
        ops(d)->exact_digest(d->D, &d->digests[g->units[i]], d->theta + s->at, d->v + s->at,
                             s->place, s->n);
    }
    ops(d)->download(d->D, d->fetched, d->digests, (size_t)o->n_units * sizeof *d->digests);
    // A failed device is reported by the next call that can fail. Its digest here equals no other.
    if (ops(d)->finish(d->D) != NEB_OK)
        memset(d->fetched, 0, (size_t)o->n_units * sizeof *d->fetched);
    for (int32_t i = 0; i < g->n; i++)
        o->slots[g->units[i]].digest = d->fetched[g->units[i]];
}

void outer_device_skip(struct inter_outer *o, int32_t f) {
    const struct outer_fragment *g = &o->fragments[f];
    for (int32_t i = 0; g->in_flight && i < g->n; i++)
        merge_unit(o, g, g->units[i]);
}

void outer_device_finish(struct inter_outer *o, int32_t f) {
    struct outer_device *d = o->device;
    const struct outer_fragment *g = &o->fragments[f];
    for (int32_t i = 0; i < g->n; i++) {
        const struct outer_slot *s = &o->slots[g->units[i]];
        ops(d)->copy(d->D, d->theta_m[g->units[i]], d->theta + s->at, s->n * sizeof(float));
    }
}

void outer_device_reject(struct inter_outer *o, int32_t f) {
    struct outer_device *d = o->device;
    const struct outer_fragment *g = &o->fragments[f];
    for (int32_t i = 0; i < g->n; i++) {
        const struct outer_slot *s = &o->slots[g->units[i]];
        ops(d)->zero(d->D, d->u + s->at, s->n * sizeof(float));
        ops(d)->copy(d->D, d->theta_m[g->units[i]], d->theta + s->at, s->n * sizeof(float));
    }
}

void outer_device_adopt(struct inter_outer *o, int32_t f, const float *theta, const float *v) {
    struct outer_device *d = o->device;
    const struct outer_fragment *g = &o->fragments[f];
    for (int32_t i = 0; i < g->n; i++) {
        const struct outer_slot *s = &o->slots[g->units[i]];
        kern_stage_upload(d->D, d->theta + s->at, theta + s->at, s->n * sizeof(float));
        kern_stage_upload(d->D, d->v + s->at, v + s->at, s->n * sizeof(float));
    }
    outer_device_reject(o, f); // a failure is reported by the next call that can fail
}
