// SPDX-License-Identifier: Apache-2.0
// The state of the outer optimiser on an accelerator: its memory, and the copies there and back.
#include "inter/outer/state.h"

#include <stdlib.h>
#include <string.h>

static void release(struct outer_device **dp, struct outer_place *at) {
    struct outer_device *d = *dp;
    struct kern *D = at->K;
    if (!d)
        return;
    (void)D->ops->finish(D); // a queued kernel may still use the memory
    void *all[] = {at->theta, at->v,      at->u,   at->sent,   d->acc,
                   d->part,   d->weights, d->rest, at->digests};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        D->ops->release(D, all[i]);
    cmp_device_destroy(&d->codec);
    free(d);
    *dp = NULL;
}

void outer_device_destroy(struct inter_outer *o) { release(&o->device, &o->now); }

static enum neb_status allocate_floats(struct kern *D, size_t n, float **out) {
    void *p = NULL;
    NEB_TRY(D->ops->alloc(D, (n ? n : 1) * sizeof(float), &p));
    *out = p;
    return NEB_OK;
}

enum neb_status outer_device_rest(struct inter_outer *o) {
    size_t most = 0;
    for (int32_t f = 0; f < o->c.fragments; f++)
        most = o->fragments[f].elements > most ? o->fragments[f].elements : most;
    return o->device->rest ? NEB_OK : allocate_floats(o->now.K, most, &o->device->rest);
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

static enum neb_status allocate(struct inter_outer *o, struct outer_device *d,
                                struct outer_place *at, size_t spare_bytes) {
    size_t most = 0, rows = 0;
    void *p = NULL;
    struct kern *D = at->K;
    float **const whole[] = {&at->theta, &at->v, &at->u, &at->sent, &d->acc};
    for (int32_t i = 0; i < o->n_units; i++) {
        struct outer_slot *s = &o->slots[i];
        if (!s->mean && !(s->mean = calloc(s->n ? s->n : 1, sizeof(float))))
            return neb_fail(NEB_ERR_NOMEM, "out of memory for the outer state on %s", D->name);
        most = s->n > most ? s->n : most;
        rows = s->u.rows > rows ? s->u.rows : rows;
    }
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        NEB_TRY(allocate_floats(D, o->n, whole[i]));
    NEB_TRY(allocate_floats(D, most, &d->part));
    NEB_TRY(allocate_floats(D, rows, &d->weights));
    NEB_TRY(D->ops->alloc(D, ((size_t)o->n_units + 1) * sizeof *at->digests, &p));
    at->digests = p;
    if (spare_bytes) // codecs need two more bytes per element (compress/device.c)
        NEB_TRY(leave_free(D, spare_bytes + 2 * most));
    return cmp_device_create(D, &d->codec);
}

static enum neb_status upload(const struct inter_outer *o, const struct outer_place *to) {
    const float *const from[] = {o->host.theta, o->host.v, o->host.u, o->host.sent};
    float *const there[] = {to->theta, to->v, to->u, to->sent};
    for (size_t i = 0; i < INTER_OUTER_ARRAYS; i++)
        kern_stage_upload(to->K, there[i], from[i], o->n * sizeof(float));
    return kern_stage_end(to->K);
}

enum neb_status inter_outer_to_device(struct inter_outer *o, struct kern *D, float *const *theta_m,
                                      size_t spare_bytes) {
    struct outer_place at = {.K = D};
    struct outer_device *d = calloc(1, sizeof *d);
    NEB_ASSERT(!o->device);
    if (!d)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the outer state on %s", D->name);
    enum neb_status st = allocate(o, d, &at, spare_bytes);
    if (st == NEB_OK)
        st = upload(o, &at);
    if (st != NEB_OK) {
        release(&d, &at);
        return st;
    }
    o->device = d;
    o->now = at;
    for (int32_t i = 0; i < o->n_units; i++)
        o->slots[i].theta_m = theta_m[i];
    return NEB_OK;
}

enum neb_status inter_outer_to_host(struct inter_outer *o) {
    NEB_TRY(inter_outer_pull(o));
    outer_device_destroy(o);
    o->now = o->host;
    for (int32_t i = 0; i < o->n_units; i++) {
        struct outer_slot *s = &o->slots[i];
        s->theta_m = s->u.theta_m;
        if (!o->c.robust) { // on the device, mean was only scratch
            free(s->mean);
            s->mean = NULL;
        }
    }
    return NEB_OK;
}

bool inter_outer_on_device(const struct inter_outer *o) { return o->device != NULL; }

enum neb_status inter_outer_pull(struct inter_outer *o) {
    const float *const from[] = {o->now.theta, o->now.v, o->now.u, o->now.sent};
    float *const here[] = {o->host.theta, o->host.v, o->host.u, o->host.sent};
    for (size_t i = 0; o->device && i < INTER_OUTER_ARRAYS; i++)
        kern_stage_download(o->now.K, here[i], from[i], o->n * sizeof(float));
    return o->device ? kern_stage_end(o->now.K) : NEB_OK;
}

enum neb_status inter_outer_push(struct inter_outer *o) {
    if (!o->device)
        return NEB_OK;
    o->device->opened = NULL;
    return upload(o, &o->now);
}

enum neb_status outer_device_fetch_u(struct inter_outer *o, struct outer_slot *s) {
    kern_stage_download(o->now.K, s->mean, o->now.u + s->at, s->n * sizeof(float));
    return kern_stage_end(o->now.K);
}
