// What tensor-parallel ranks say to each other, on device memory: rows of the stream (seqpar.h, drawn) and the loss over a
// vocabulary that is cut (vocab.h). A collective is not in the device's queue: the queue has run before it begins, and it has ended
// when the call returns.
#include "intra/device_state.h"

bool device_settled(struct intra_device *d) {
    if (d->m->failed == NEB_OK)
        intra_model_keep(d->m, device_ops(d)->finish(d->c.D));
    return d->m->failed == NEB_OK;
}

static struct intra_comm *tp_of(const struct intra_device *d) {
    return d->c.mesh ? d->c.mesh->tp : NULL;
}

// Every rank has filled its own rows; floats carry what they hold unchanged.
void device_rows_gather(struct intra_device *d, const struct intra_rows *r, void *x, size_t bytes) {
    struct intra_comm *tp = tp_of(d);
    if (tp && device_settled(d))
        intra_model_keep(d->m, tp->ops->all_gather(tp, x, (size_t)r->each * bytes / sizeof(float)));
}

void device_rows_sum(struct intra_device *d, const struct intra_rows *r, float *x) {
    struct intra_comm *tp = tp_of(d);
    if (tp && device_settled(d))
        intra_model_keep(d->m,
                         tp->ops->reduce_scatter(tp, x, (size_t)r->each * (size_t)d->m->c.d_model));
}

static void reduce(struct intra_device *d, float *x, size_t n, enum intra_comm_op op) {
    struct intra_comm *tp = tp_of(d);
    if (device_settled(d))
        intra_model_keep(d->m, tp->ops->all_reduce(tp, x, n, INTRA_COMM_F32, op));
}

void device_vocab_head(struct intra_device *d, const struct kern_device_head *h) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    enum kern_type t = d->c.type;
    int ld = kern_logits_ld(h->V), w = h->d;
    for (int from = 0; from < h->n; from += h->rows) {
        int n = h->n - from < h->rows ? h->n - from : h->rows;
        const char *x = (const char *)h->x + (size_t)from * (size_t)w * kern_type_bytes(t);
        struct kern_device_vocab v = {.logits = h->logits,
                                      .n = n,
                                      .V = h->V,
                                      .targets = h->targets + from,
                                      .row0 = d->m->head->row0,
                                      .max = d->vocab_max,
                                      .sums = d->vocab_sums,
                                      .grad_scale = h->grad_scale,
                                      .learn = h->learn,
                                      .losses = h->losses + from};
        K->gemm(D, t, t, KERN_N, KERN_T, n, h->V, w, 1, x, w, h->w, w, 0, h->logits, ld, NULL);
        K->vocab_max(D, t, &v);
        reduce(d, d->vocab_max, (size_t)n, INTRA_COMM_MAX);
        K->vocab_sum(D, t, &v);
        reduce(d, d->vocab_sums, 2 * (size_t)n, INTRA_COMM_SUM);
        K->vocab_loss(D, t, &v);
        if (!h->learn)
            continue;
        K->gemm(D, t, KERN_F32, KERN_N, KERN_N, n, w, h->V, 1, h->logits, ld, h->w, w, 0,
                d->wide + (size_t)from * (size_t)w, w, NULL);
        if (h->dw)
            K->gemm(D, t, KERN_F32, KERN_T, KERN_N, h->V, w, n, 1, h->logits, ld, x, w, 1, h->dw, w,
                    NULL);
    }
    K->loss_total(D, h->total, h->losses, h->n);
}
