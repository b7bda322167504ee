// Parameters and moments of a model on an accelerator to the host and back.
#include "intra/device_state.h"

#include <string.h>

// Pieces of host memory and device memory of the same length, through the two pinned buffers: while one is copied by the
// host, the other travels.
struct stream {
    struct intra_device *d;
    int turn;
    struct {
        void *host; // where a buffer's content goes to; NULL: nothing is in it
        size_t bytes;
        bool used;
    } slot[DEVICE_SLOTS];
};

static void settle(struct stream *s, int slot) {
    if (!s->slot[slot].used)
        return;
    device_ops(s->d)->wait(s->d->c.D, MARK_STAGE + slot);
    if (s->slot[slot].host)
        memcpy(s->slot[slot].host, s->d->stage[slot], s->slot[slot].bytes);
    s->slot[slot].used = false;
}

static void piece(struct stream *s, void *host, void *device, size_t bytes, bool down) {
    const struct kern_device_ops *K = device_ops(s->d);
    int slot = s->turn;
    s->turn = (s->turn + 1) % DEVICE_SLOTS;
    settle(s, slot);
    if (down) {
        K->download(s->d->c.D, s->d->stage[slot], device, bytes);
    } else {
        memcpy(s->d->stage[slot], host, bytes);
        K->upload(s->d->c.D, device, s->d->stage[slot], bytes);
    }
    K->mark(s->d->c.D, MARK_STAGE + slot);
    s->slot[slot].host = down ? host : NULL;
    s->slot[slot].bytes = bytes;
    s->slot[slot].used = true;
}

static void move(struct stream *s, float *host, float *device, size_t n, bool down) {
    const size_t most = DEVICE_STAGE_BYTES / sizeof(float);
    for (size_t at = 0; at < n; at += most) {
        size_t len = n - at < most ? n - at : most;
        piece(s, host + at, device + at, len * sizeof(float), down);
    }
}

static enum neb_status stream_end(struct stream *s) {
    for (int i = 0; i < DEVICE_SLOTS; i++)
        settle(s, (s->turn + i) % DEVICE_SLOTS);
    return device_ops(s->d)->finish(s->d->c.D);
}

enum neb_status intra_device_pull(struct intra_device *d, const bool *wanted) {
    struct stream s = {.d = d};
    const struct intra_model *m = d->m;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (t->trainable && (!wanted || wanted[t->index])) // the others are as they were pushed
            move(&s, m->params + t->at, d->params + t->at, intra_tensor_size(t), true);
    }
    return stream_end(&s);
}

enum neb_status intra_device_push(struct intra_device *d, const bool *wanted) {
    struct stream s = {.d = d};
    const struct intra_model *m = d->m;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (wanted && !wanted[t->index])
            continue;
        move(&s, m->params + t->at, d->params + t->at, intra_tensor_size(t), false);
        if (d->c.type != KERN_F32)
            device_ops(d)->cast(d->c.D, d->c.type, device_weight(d, t), d->params + t->at,
                                intra_tensor_size(t));
    }
    return stream_end(&s);
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
    struct stream s = {.d = d};
    move(&s, d->o->m, d->moment1, d->o->n, down);
    move(&s, d->o->v, d->moment2, d->o->n, down);
    return stream_end(&s);
}
enum neb_status intra_device_pull_moments(struct intra_device *d) { return moments(d, true); }
enum neb_status intra_device_push_moments(struct intra_device *d) { return moments(d, false); }
