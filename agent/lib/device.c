// SPDX-License-Identifier: Apache-2.0
// The device that has a rank's tensors. The kernels (kernels/device.h) read and write parts of the
// tensors there, on a queue of their own. The loop's stream and this queue wait for each other by
// events, the host for neither, where a unit lies on one rank:
//
//     loop's stream   step │ ─ after ─►            ◄─ before ─ │ next step
//     this queue           read, form u │ encode, sum …   step, write
//
// Elements that travel between ranks, or that a checkpoint takes, pass through the host.
#include "agent/base/log.h"
#include "agent/lib/state.h"
#include "kernels/device_stage.h"

#include <stdlib.h>
#include <string.h>

static enum neb_status open_device(struct nebula *n, int index, int was) {
    struct lib_device *d = calloc(1, sizeof *d);
    char why[KERN_WHY_MAX];
    if (!d)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a device");
    enum neb_status st = kern_device_open(index, why, &d->K);
    if (st == NEB_OK) {
        st = kern_stage_acquire(d->K);
        d->K->ops->leave(d->K, was);
    } else {
        neb_fail(st, "CUDA tensors cannot be exchanged here: %s", why);
    }
    if (st != NEB_OK) {
        kern_destroy(&d->K);
        free(d);
        return st;
    }
    n->device = d;
    return NEB_OK;
}

enum neb_status lib_device_take(struct nebula *n, const char *name, const void *data) {
    char why[KERN_WHY_MAX];
    int index = 0, was = 0;
    enum neb_status st = kern_device_find(data, &index, &was, why);
    if (st == NEB_ERR_INVALID)
        return neb_fail(st,
                        "%s is registered as CUDA memory, but %s. Register host memory as "
                        "NEBULA_HOST",
                        name, why);
    if (st != NEB_OK)
        return neb_fail(st, "%s is on a CUDA device, but this libnebula has no CUDA: %s", name,
                        why);
    if (!n->device)
        return open_device(n, index, was);
    return index == n->device->K->index
               ? NEB_OK
               : neb_fail(NEB_ERR_INVALID,
                          "%s is on CUDA device %d, but other tensors of this rank are on device "
                          "%d: a rank has one device",
                          name, index, n->device->K->index);
}

void lib_device_destroy(struct nebula *n) {
    struct lib_device *d = n->device;
    if (!d)
        return;
    lib_device_enter(n);
    for (int32_t i = 0; d->shadow && i < n->x.trainer.n_units; i++)
        d->K->ops->release(d->K, d->shadow[i]);
    free(d->shadow);
    free(d->image);
    d->K->ops->release(d->K, d->unit);
    kern_stage_release(d->K);
    lib_device_leave(n);
    kern_destroy(&d->K);
    free(d);
    n->device = NULL;
}

void lib_device_enter(struct nebula *n) {
    struct lib_device *d = n->device;
    if (d && !d->inside)
        d->was = d->K->ops->enter(d->K);
    if (d)
        d->inside = true;
}

void lib_device_leave(struct nebula *n) {
    struct lib_device *d = n->device;
    if (!d || !d->inside)
        return;
    lib_device_joint(n, false);
    d->K->ops->leave(d->K, d->was);
    d->inside = false;
}

void lib_device_joint(void *user, bool begin) {
    struct lib_device *d = ((struct nebula *)user)->device;
    if (begin && !d->joined)
        d->K->ops->after(d->K, d->stream);
    if (!begin && d->joined)
        d->K->ops->before(d->K, d->stream);
    d->joined = begin;
}

// True if every element of every rank is on the rank's device.
static enum neb_status all_there(struct nebula *n, bool *out) {
    uint64_t elsewhere = n->device == NULL;
    for (int32_t i = 0; i < n->n_tensors; i++)
        for (size_t k = 0; k < n->tensors[i]->n_pieces; k++)
            elsewhere += n->tensors[i]->pieces[k].place != NEBULA_CUDA;
    if (n->ranks > 1)
        NEB_TRY(n->world->ops->all_reduce(n->world, &elsewhere, 1, INTRA_COMM_U64, INTRA_COMM_SUM));
    *out = !elsewhere;
    return NEB_OK;
}

static enum neb_status allocate(struct nebula *n) {
    struct lib_device *d = n->device;
    void *p = NULL;
    if (!d)
        return NEB_OK;
    lib_device_enter(n);
    NEB_TRY(d->K->ops->alloc(d->K, (n->buffer_floats + 1) * sizeof(float), &p));
    d->unit = p;
    d->image = malloc((n->buffer_floats + 1) * sizeof *d->image);
    d->shadow = calloc((size_t)n->x.trainer.n_units + 1, sizeof(float *));
    return d->image && d->shadow ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for a unit");
}

enum neb_status lib_device_prepare(struct nebula *n) {
    const struct agent_cluster *c = &n->x.job.clusters[n->x.cluster];
    bool there = false;
    NEB_TRY(intra_comm_agree(n->world, allocate(n)));
    NEB_TRY(all_there(n, &there));
    n->x.trainer.device = there ? n->device->K : NULL;
    n->x.trainer.deferred = true;
    return there || c->outer_state != AGENT_OUTER_DEVICE
               ? NEB_OK
               : neb_fail(NEB_ERR_UNSUPPORTED,
                          "cluster %s: outer_state is device, but not all tensors of the loop are "
                          "on CUDA devices. Remove outer_state",
                          c->name);
}

// ---- parts of tensors ---------------------------------------------------------------------------

// Dimensions without gaps between their rows become one: the kernels divide less.
static void add_dimension(struct kern_piece *p, int64_t shape, int64_t at, int64_t extent,
                          int64_t stride) {
    int k = p->dims;
    if (shape == 1)
        return;
    if (k && at == 0 && extent == shape && p->stride[k - 1] == stride * shape) {
        p->shape[k - 1] *= shape;
        p->at[k - 1] *= shape;
        p->extent[k - 1] *= shape;
        p->stride[k - 1] = stride;
        return;
    }
    p->shape[k] = shape;
    p->at[k] = at;
    p->extent[k] = extent;
    p->stride[k] = stride;
    p->dims++;
}

static struct kern_piece piece_of(const struct lib_tensor *t, int64_t first, uint64_t count,
                                  const struct lib_piece *x) {
    static const enum kern_stored stored[] = {[NEBULA_F32] = KERN_STORED_F32,
                                              [NEBULA_BF16] = KERN_STORED_BF16,
                                              [NEBULA_F16] = KERN_STORED_F16};
    struct kern_piece p = {.stored = stored[t->dtype], .data = x->data, .first = first, .n = count};
    for (int32_t k = 0; k < t->dims; k++)
        add_dimension(&p, t->shape[k], x->box.at[k], x->box.n[k], x->stride[k]);
    return p;
}

// Enqueues reads of this rank's elements [first, first + count) of a tensor into device memory, or
// writes from there.
static void each_part(struct nebula *n, const struct lib_tensor *t, int64_t first, uint64_t count,
                      float *there, float *shadow, bool write) {
    struct kern *K = n->device->K;
    lib_device_joint(n, true);
    for (size_t k = 0; k < t->n_pieces; k++) {
        const struct kern_piece p = piece_of(t, first, count, &t->pieces[k]);
        if (t->pieces[k].place != NEBULA_CUDA)
            continue;
        if (write)
            K->ops->piece_write(K, &p, there, shadow);
        else
            K->ops->piece_read(K, there, shadow, &p);
    }
}

static void each_piece(struct nebula *n, int32_t unit, float *there, float *shadow, bool write) {
    each_part(n, n->of[unit], n->first[unit], agent_unit_size(&n->units[unit]), there, shadow,
              write);
}

bool lib_device_has(const struct lib_tensor *t) {
    for (size_t k = 0; k < t->n_pieces; k++)
        if (t->pieces[k].place == NEBULA_CUDA)
            return true;
    return false;
}

enum neb_status lib_device_read(struct nebula *n, int32_t unit, float *image) {
    struct lib_device *d = n->device;
    each_piece(n, unit, d->unit, NULL, false);
    kern_stage_download(d->K, image, d->unit, agent_unit_size(&n->units[unit]) * sizeof *image);
    return kern_stage_end(d->K);
}

enum neb_status lib_device_look(struct nebula *n, const struct lib_tensor *t, int64_t first,
                                uint64_t count) {
    struct lib_device *d = n->device;
    each_part(n, t, first, count, d->unit, NULL, false);
    kern_stage_download(d->K, d->image, d->unit, count * sizeof *d->image);
    return kern_stage_end(d->K);
}

enum neb_status lib_device_write(struct nebula *n, int32_t unit, const float *image) {
    struct lib_device *d = n->device;
    kern_stage_upload(d->K, d->unit, image, agent_unit_size(&n->units[unit]) * sizeof *image);
    each_piece(n, unit, d->unit, NULL, true);
    return NEB_OK;
}

// ---- units that one rank has --------------------------------------------------------------------

bool lib_device_alone(void *user, int32_t unit, bool write) {
    const struct nebula *n = user;
    uint64_t size = agent_unit_size(&n->units[unit]);
    int owner = lib_owner(n, unit);
    write = write || n->of[unit]->dtype != NEBULA_F32; // the fp32 behind it is in one place
    for (int r = 0; r < n->ranks; r++)
        if (r == owner ? lib_held(user, unit, r) != size : write && lib_held(user, unit, r))
            return false;
    return true;
}

// Moves the fp32 values behind a 16-bit unit to the device.
static enum neb_status shadow_there(struct nebula *n, int32_t unit) {
    struct lib_device *d = n->device;
    size_t bytes = agent_unit_size(&n->units[unit]) * sizeof(float);
    void *p = NULL;
    if (d->shadow[unit] || !n->shadow[unit])
        return NEB_OK;
    NEB_TRY(d->K->ops->alloc(d->K, bytes, &p));
    d->shadow[unit] = p;
    kern_stage_upload(d->K, p, n->shadow[unit], bytes);
    free(n->shadow[unit]);
    n->shadow[unit] = NULL;
    return NEB_OK;
}

float *lib_device_there(void *user, int32_t unit) {
    struct nebula *n = user;
    if (!lib_device_alone(user, unit, false) || shadow_there(n, unit) != NEB_OK)
        return NULL;
    return lib_in_place(n, unit, NEBULA_CUDA);
}

enum neb_status lib_device_shadow_here(struct nebula *n, int32_t unit) {
    struct lib_device *d = n->device;
    size_t bytes = agent_unit_size(&n->units[unit]) * sizeof(float);
    if (!d || !d->shadow[unit])
        return NEB_OK;
    if (!(n->shadow[unit] = malloc(bytes)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for values behind 16-bit tensors");
    kern_stage_download(d->K, n->shadow[unit], d->shadow[unit], bytes);
    enum neb_status st = kern_stage_end(d->K);
    d->K->ops->release(d->K, d->shadow[unit]);
    d->shadow[unit] = NULL;
    return st;
}

enum neb_status lib_device_fetch(void *user, int32_t unit, float *to) {
    struct nebula *n = user;
    NEB_TRY(shadow_there(n, unit));
    each_piece(n, unit, to, n->device->shadow[unit], false);
    return NEB_OK;
}

enum neb_status lib_device_store(void *user, int32_t unit, float *from) {
    struct nebula *n = user;
    NEB_TRY(shadow_there(n, unit));
    each_piece(n, unit, from, n->device->shadow[unit], true);
    return NEB_OK;
}
