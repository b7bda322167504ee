// SPDX-License-Identifier: Apache-2.0
// The outer optimiser on an accelerator: its memory, and the copies there and back.
//
//     in its memory            θ, v, u, sent │ sum and part of one unit, frames of a commit
//     in pinned host memory    θ, v, u, sent of one unit │ the same
#include "inter/outer/state.h"

#include <stdlib.h>
#include <string.h>

enum { FRAMES_STEP = 1 << 16 }; // bytes

static void release(struct outer_device **dp, struct outer_place *at) {
    struct outer_device *d = *dp;
    struct kern *D = at->K;
    if (!d)
        return;
    (void)D->ops->finish(D); // a queued kernel may still use the memory
    void *all[] = {d->acc,    d->part,   d->frames,    d->means,   d->unit.theta,
                   d->unit.v, d->unit.u, d->unit.sent, at->digests};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        D->ops->release(D, all[i]);
    void *state[] = {at->theta, at->v, at->u, at->sent};
    for (size_t i = 0; i < INTER_OUTER_ARRAYS; i++)
        (d->pinned ? D->ops->release_pinned : D->ops->release)(D, state[i]);
    cmp_device_destroy(&d->codec);
    free(d->image);
    free(d->kept);
    free(d);
    *dp = NULL;
}

void outer_device_destroy(struct inter_outer *o) {
    if (o->device && o->device->pinned)
        o->host.theta = o->host.v = o->host.u = o->host.sent = NULL;
    release(&o->device, &o->now);
}

static enum neb_status allocate_floats(struct kern *D, struct outer_device *d, size_t n,
                                       float **out) {
    void *p = NULL;
    NEB_TRY(D->ops->alloc(D, (n ? n : 1) * sizeof(float), &p));
    *out = p;
    d->bytes += n * sizeof(float);
    return NEB_OK;
}

enum neb_status outer_device_room(struct inter_outer *o, size_t bytes) {
    struct outer_device *d = o->device;
    struct kern *D = o->now.K;
    size_t most = 0;
    void *p;
    for (int32_t f = 0; f < o->c.fragments && o->c.robust; f++)
        most = o->fragments[f].elements > most ? o->fragments[f].elements : most;
    if (most && !d->means)
        NEB_TRY(allocate_floats(D, d, most, &d->means));
    if (bytes <= d->frames_bytes)
        return NEB_OK;
    NEB_TRY(D->ops->finish(D));
    D->ops->release(D, d->frames);
    d->frames = NULL;
    d->bytes -= d->frames_bytes;
    d->frames_bytes = 0;
    bytes = (bytes + FRAMES_STEP - 1) / FRAMES_STEP * FRAMES_STEP;
    NEB_TRY(D->ops->alloc(D, bytes, &p));
    d->frames = p;
    d->bytes += bytes;
    d->frames_bytes = bytes;
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

static size_t largest_unit(const struct inter_outer *o) {
    size_t most = 0;
    for (int32_t i = 0; i < o->n_units; i++)
        most = o->slots[i].n > most ? o->slots[i].n : most;
    return most;
}

uint64_t outer_device_host_bytes(const struct inter_outer *o) {
    return sizeof *o->device + largest_unit(o) * sizeof *o->device->image +
           (uint64_t)o->n_units * INTER_PARTS_MAX * sizeof *o->device->kept;
}

static enum neb_status allocate(struct inter_outer *o, struct outer_device *d,
                                struct outer_place *at, size_t spare_bytes) {
    size_t most = largest_unit(o), units = (size_t)o->n_units + 1;
    void *p = NULL;
    struct kern *D = at->K;
    d->image = malloc((most + 1) * sizeof *d->image);
    d->kept = calloc(units * INTER_PARTS_MAX, sizeof *d->kept);
    if (!d->image || !d->kept)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the outer state on %s", D->name);
    float **const state[] = {&at->theta, &at->v, &at->u, &at->sent},
                  **const unit[] = {&d->unit.theta, &d->unit.v, &d->unit.u, &d->unit.sent};
    for (size_t i = 0; i < INTER_OUTER_ARRAYS; i++)
        NEB_TRY(allocate_floats(D, d, d->pinned ? most : o->n, d->pinned ? unit[i] : state[i]));
    NEB_TRY(allocate_floats(D, d, most, &d->acc));
    NEB_TRY(allocate_floats(D, d, most, &d->part));
    NEB_TRY(D->ops->alloc(D, units * sizeof *at->digests, &p));
    at->digests = p;
    if (spare_bytes) // codecs need two more bytes per element (compress/device.c)
        NEB_TRY(leave_free(D, spare_bytes + 2 * most));
    for (size_t i = 0; d->pinned && i < INTER_OUTER_ARRAYS; i++) {
        NEB_TRY(D->ops->alloc_pinned(D, (o->n + 1) * sizeof(float), &p));
        *state[i] = p;
    }
    return cmp_device_create(D, &d->codec);
}

static enum neb_status upload(const struct inter_outer *o, const struct outer_place *to) {
    const float *const from[] = {o->host.theta, o->host.v, o->host.u, o->host.sent};
    float *const there[] = {to->theta, to->v, to->u, to->sent};
    for (size_t i = 0; i < INTER_OUTER_ARRAYS; i++)
        kern_stage_upload(to->K, there[i], from[i], o->n * sizeof(float));
    return kern_stage_end(to->K);
}

// The pinned arrays take the place of those on the host.
static void replace_host(struct inter_outer *o, const struct outer_place *with) {
    float **const here[] = {&o->host.theta, &o->host.v, &o->host.u, &o->host.sent};
    float *const pinned[] = {with->theta, with->v, with->u, with->sent};
    for (size_t i = 0; i < INTER_OUTER_ARRAYS; i++) {
        memcpy(pinned[i], *here[i], o->n * sizeof(float));
        free(*here[i]);
        *here[i] = pinned[i];
    }
}

static enum neb_status take_over(struct inter_outer *o, struct kern *D, float *const *theta_m,
                                 size_t spare_bytes, bool pinned) {
    struct outer_place at = {.K = D};
    struct outer_device *d = calloc(1, sizeof *d);
    NEB_ASSERT(!o->device);
    if (!d)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the outer state on %s", D->name);
    d->pinned = pinned;
    enum neb_status st = allocate(o, d, &at, spare_bytes);
    if (st == NEB_OK && !pinned)
        st = upload(o, &at);
    if (st != NEB_OK) {
        release(&d, &at);
        return st;
    }
    if (pinned)
        replace_host(o, &at);
    o->device = d;
    o->now = at;
    d->copies = true;
    inter_outer_drop_copies(o);
    for (int32_t i = 0; i < o->n_units; i++)
        o->slots[i].theta_m = theta_m[i];
    return NEB_OK;
}

// Fresh arrays of zeros take no memory of the machine until inter_outer_pull writes them.
void inter_outer_drop_copies(struct inter_outer *o) {
    float **const here[] = {&o->host.theta, &o->host.v, &o->host.u, &o->host.sent};
    if (!o->device || o->device->pinned || !o->device->copies)
        return;
    for (size_t i = 0; i < INTER_OUTER_ARRAYS; i++) {
        float *empty = calloc(o->n + 1, sizeof *empty);
        if (!empty)
            continue;
        free(*here[i]);
        *here[i] = empty;
    }
    o->device->copies = false;
}

enum neb_status inter_outer_to_device(struct inter_outer *o, struct kern *D, float *const *theta_m,
                                      size_t spare_bytes) {
    return take_over(o, D, theta_m, spare_bytes, false);
}

enum neb_status inter_outer_to_pinned(struct inter_outer *o, struct kern *D,
                                      float *const *theta_m) {
    return take_over(o, D, theta_m, 0, true);
}

// Copies of the pinned arrays, which do not outlive the accelerator.
static enum neb_status leave_pinned(struct inter_outer *o) {
    const float *const from[] = {o->host.theta, o->host.v, o->host.u, o->host.sent};
    float **const here[] = {&o->host.theta, &o->host.v, &o->host.u, &o->host.sent},
                  *copy[INTER_OUTER_ARRAYS];
    bool all = true;
    for (size_t i = 0; i < INTER_OUTER_ARRAYS; i++)
        all = (copy[i] = malloc((o->n + 1) * sizeof(float))) && all;
    for (size_t i = 0; i < INTER_OUTER_ARRAYS; i++)
        if (all)
            memcpy(copy[i], from[i], o->n * sizeof(float));
        else
            free(copy[i]);
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the outer state on the host");
    outer_device_destroy(o);
    for (size_t i = 0; i < INTER_OUTER_ARRAYS; i++)
        *here[i] = copy[i];
    return NEB_OK;
}

enum neb_status inter_outer_to_host(struct inter_outer *o) {
    NEB_TRY(inter_outer_pull(o));
    if (o->device && o->device->pinned)
        NEB_TRY(leave_pinned(o));
    outer_device_destroy(o);
    o->now = o->host;
    for (int32_t i = 0; i < o->n_units; i++)
        o->slots[i].theta_m = o->slots[i].u.theta_m;
    return NEB_OK;
}

bool inter_outer_on_device(const struct inter_outer *o) { return o->device != NULL; }

uint64_t inter_outer_device_bytes(const struct inter_outer *o) {
    return o->device ? o->device->bytes + cmp_device_bytes(o->device->codec) : 0;
}

// ---- copies -------------------------------------------------------------------------------------

struct outer_arrays outer_in(const struct inter_outer *o, const struct outer_slot *s, int uses) {
    const struct outer_place *m = &o->now;
    const struct outer_arrays all = {m->theta + s->at, m->v + s->at, m->u + s->at, m->sent + s->at};
    if (!o->device || !o->device->pinned)
        return all;
    const struct outer_arrays *unit = &o->device->unit;
    float *const to[] = {unit->theta, unit->v, unit->u, unit->sent};
    const float *const from[] = {all.theta, all.v, all.u, all.sent};
    for (int i = 0; i < INTER_OUTER_ARRAYS; i++)
        if (uses & 1 << i)
            m->K->ops->upload(m->K, to[i], from[i], s->n * sizeof(float));
    return *unit;
}

void outer_out(const struct inter_outer *o, const struct outer_slot *s, int changed) {
    const struct outer_place *m = &o->now;
    float *const to[] = {m->theta + s->at, m->v + s->at, m->u + s->at, m->sent + s->at};
    if (!o->device || !o->device->pinned)
        return;
    const struct outer_arrays *unit = &o->device->unit;
    const float *const from[] = {unit->theta, unit->v, unit->u, unit->sent};
    for (int i = 0; i < INTER_OUTER_ARRAYS; i++)
        if (changed & 1 << i)
            m->K->ops->download(m->K, to[i], from[i], s->n * sizeof(float));
}

void outer_set(const struct inter_outer *o, float *to, const float *from, size_t n) {
    struct kern *K = o->now.K;
    if (!o->device || !o->device->pinned) {
        kern_stage_upload(K, to, from, n * sizeof *to);
        return;
    }
    (void)K->ops->finish(K); // its queue may still use the array; a failure is told later
    memcpy(to, from, n * sizeof *to);
}

enum neb_status inter_outer_pull(struct inter_outer *o) {
    const float *const from[] = {o->now.theta, o->now.v, o->now.u, o->now.sent};
    float *const here[] = {o->host.theta, o->host.v, o->host.u, o->host.sent};
    if (o->device)
        o->device->copies = true;
    for (size_t i = 0; o->device && !o->device->pinned && i < INTER_OUTER_ARRAYS; i++)
        kern_stage_download(o->now.K, here[i], from[i], o->n * sizeof(float));
    return o->device ? kern_stage_end(o->now.K) : NEB_OK;
}

enum neb_status inter_outer_push(struct inter_outer *o) {
    if (!o->device)
        return NEB_OK;
    o->device->opened = NULL;
    return o->device->pinned ? NEB_OK : upload(o, &o->now);
}

enum neb_status outer_device_fetch_u(struct inter_outer *o, const struct outer_slot *s,
                                     const float **u) {
    *u = o->device->pinned ? o->host.u + s->at : o->device->image;
    if (!o->device->pinned)
        kern_stage_download(o->now.K, o->device->image, o->now.u + s->at, s->n * sizeof(float));
    return kern_stage_end(o->now.K);
}
