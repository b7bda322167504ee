// Inside of intra_device, for device.c (memory, copies) and device_pass.c (forward and backward).
#ifndef INTRA_DEVICE_STATE_H
#define INTRA_DEVICE_STATE_H
#include "intra/device.h"

enum {
    DEVICE_SLOTS = 2,                // pinned buffers that take turns
    DEVICE_STAGE_BYTES = 16 << 20,   // of each, for parameters and moments
    DEVICE_LOGITS_BYTES = 256 << 20, // about, of one block of logits
    // places in the queue (kern_device_ops.mark)
    MARK_BATCH = 0, // and the next: a batch's buffer was read
    MARK_STAGE = 2, // and the next: a staging buffer was read or written
};

struct device_block {                     // as struct block_acts of forward.c
    float *h1, *rstd1, *lse, *h2, *rstd2; // fp32
    void *y1, *qkv, *att, *y2, *gu, *act; // T
};

struct device_batch { // one micro-batch's integers, on either side
    int32_t *tokens, *targets;
    struct kern_buckets rows; // where which token was seen
};

struct intra_device {
    struct intra_device_config c;
    struct intra_model *m;
    struct intra_optim *o;
    void *arena; // device memory; all pointers below but the pinned ones lie in it
    size_t bytes;
    // parameters and their like: offsets as in the model's arenas
    float *params, *grads, *moment1, *moment2, *rope;
    void *working; // params as T; params itself when T is fp32
    // activations
    struct device_block *blocks; // (n_layers) host array
    void *r, *yf, *lora, *dlora, *logits, *dy, *dqkv, *datt, *dact, *dht;
    float *hf, *rstdf, *dh, *delta, *losses;
    int logit_rows;
    struct device_batch batch;
    // the update
    struct kern_chunk *chunks;
    int32_t *first;
    int n_chunks;
    float *factors;
    double *sums; // (n_all_tensors), then the losses of the step and of an evaluation
    double *total, *eval_total;
    // pinned
    int32_t *batch_pinned[DEVICE_SLOTS];
    bool batch_used[DEVICE_SLOTS];
    int turn;
    void *stage[DEVICE_SLOTS];
    float *factors_pinned;
    double *sums_pinned;
    int32_t *next; // (V) scratch of kern_buckets_fill
};

static inline const struct kern_device_ops *device_ops(const struct intra_device *d) {
    return d->c.D->ops;
}
static inline void *device_weight(const struct intra_device *d, const struct intra_tensor *t) { // T
    return (char *)d->working + t->at * kern_type_bytes(d->c.type);
}
static inline float *device_gain(const struct intra_device *d, const struct intra_tensor *t) {
    return d->params + t->at;
}
static inline float *device_grad(const struct intra_device *d, const struct intra_tensor *t) {
    return t->trainable ? d->grads + t->grad_at : NULL;
}
// T elements on.
static inline void *device_at(const struct intra_device *d, void *p, size_t elements) {
    return (char *)p + elements * kern_type_bytes(d->c.type);
}

// Forward over what is in d->batch, B sequences; with learn backward too. Losses are added to *total.
void device_pass(struct intra_device *d, int B, float grad_scale, bool learn, double *total);

#endif
