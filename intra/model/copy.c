// SPDX-License-Identifier: Apache-2.0
// Copies parameters and moments between an accelerator's memory and the host's
// (kernels/device_stage.h).
#include "intra/model/state.h"
#include "kernels/device_stage.h"

static void move(struct intra_device *d, float *host, float *device, size_t n, bool down) {
    if (down)
        kern_stage_download(d->c.D, host, device, n * sizeof(float));
    else
        kern_stage_upload(d->c.D, device, host, n * sizeof(float));
}

enum neb_status intra_device_pull(struct intra_device *d, const bool *wanted) {
    const struct intra_model *m = d->m;
    for (int32_t i = 0; !device_host(d) && i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (t->trainable && (!wanted || wanted[t->index])) // the others never change after a push
            move(d, m->params + t->at, d->params + t->at, intra_tensor_size(t), true);
    }
    return kern_stage_end(d->c.D);
}

enum neb_status intra_device_push(struct intra_device *d, const bool *wanted) {
    const struct intra_model *m = d->m;
    for (int32_t i = 0; !device_host(d) && i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (wanted && !wanted[t->index])
            continue;
        move(d, m->params + t->at, d->params + t->at, intra_tensor_size(t), false);
        if (d->c.type != KERN_F32)
            device_ops(d)->cast(d->c.D, d->c.type, device_weight(d, t), d->params + t->at,
                                intra_tensor_size(t));
    }
    return kern_stage_end(d->c.D);
}

float *intra_device_param(const struct intra_device *d, const struct intra_tensor *t) {
    return d->params + t->at;
}

enum neb_status intra_device_changed(struct intra_device *d, const bool *wanted) {
    const struct intra_model *m = d->m;
    for (int32_t i = 0; i < m->n_tensors && d->c.type != KERN_F32; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (!wanted || wanted[t->index])
            device_ops(d)->cast(d->c.D, d->c.type, device_weight(d, t), d->params + t->at,
                                intra_tensor_size(t));
    }
    return device_ops(d)->finish(d->c.D);
}

static enum neb_status moments(struct intra_device *d, bool down) {
    if (device_host(d))
        return NEB_OK;
    move(d, d->o->m, d->moment1, d->o->n, down);
    move(d, d->o->v, d->moment2, d->o->n_second, down);
    return kern_stage_end(d->c.D);
}
enum neb_status intra_device_pull_moments(struct intra_device *d) { return moments(d, true); }
enum neb_status intra_device_push_moments(struct intra_device *d) { return moments(d, false); }
