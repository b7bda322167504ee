// SPDX-License-Identifier: Apache-2.0
// Collectives of tensor-parallel ranks on device memory: rows of the stream (rows.h), and the loss
// over a cut vocabulary (as in Megatron-LM: ranks exchange maxima, sums and the target's logit,
// never logits). Over NCCL a collective is in the device's queue, after the
// ops that write its operands and before those that read its result. The host goes on:
//
//     queue    … o ► wide │ reduce-scatter │ norm ► y │ all-gather │ gate, up …
//     host     enqueues the next block; where it waits for the queue (kern.watch), it checks
//              that all ranks are still there
//
// If a rank hangs, the queues of the others stop at a collective. A host that has waited too long
// aborts the communicator; the queue then ends with results that nobody uses. A communicator
// without enqueue needs a queue that has run, and returns when the collective is done.
#include "intra/model/state.h"

static struct intra_comm *tp_of(const struct intra_device *d) {
    return d->c.mesh ? d->c.mesh->tp : NULL;
}

static bool watch(void *ctx, bool first) {
    struct intra_device *d = ctx;
    struct intra_comm *tp = tp_of(d);
    if (d->tp_aborted)
        return false;
    enum neb_status st = tp->ops->look(tp, first);
    intra_model_keep_failure(d->m, st);
    d->tp_aborted = st != NEB_OK;
    return !d->tp_aborted;
}

void device_tp_create(struct intra_device *d) {
    struct intra_comm *tp = tp_of(d);
    if (tp && tp->ops->enqueue) {
        d->c.D->watch_ctx = d;
        d->c.D->watch = watch;
    }
}

void device_tp_destroy(struct intra_device *d) {
    if (d->c.D->watch_ctx == d)
        d->c.D->watch = NULL;
}

enum neb_status device_finish(struct intra_device *d) {
    intra_model_keep_failure(d->m, device_ops(d)->finish(d->c.D));
    if (d->m->failed == NEB_OK && d->c.D->watch) // the queue also ends after a failed collective
        (void)watch(d, true);
    return d->m->failed;
}

bool device_finish_ok(struct intra_device *d) {
    return d->m->failed == NEB_OK && device_finish(d) == NEB_OK;
}

static void collective(struct intra_device *d, enum intra_comm_kind kind, void *x, size_t n,
                       enum intra_comm_type type, enum intra_comm_op op) {
    struct intra_comm *tp = tp_of(d);
    enum neb_status st;
    if (!tp || d->m->failed != NEB_OK)
        return;
    if (tp->ops->enqueue) {
        st = tp->ops->enqueue(tp, kind, x, n, type, op, device_ops(d)->queue(d->c.D));
        d->tp_aborted = st != NEB_OK;
    } else if (!device_finish_ok(d)) {
        return;
    } else if (kind == INTRA_COMM_ALL_REDUCE) {
        st = tp->ops->all_reduce(tp, x, n, type, op);
    } else if (kind == INTRA_COMM_REDUCE_SCATTER) {
        st = tp->ops->reduce_scatter(tp, x, n);
    } else {
        st = tp->ops->all_gather(tp, x, n);
    }
    intra_model_keep_failure(d->m, st);
}

void device_tp_gather(struct intra_device *d, void *x, size_t n) {
    collective(d, INTRA_COMM_ALL_GATHER, x, n, INTRA_COMM_F32, INTRA_COMM_SUM);
}

// bytes: of a row.
void device_rows_gather(struct intra_device *d, const struct intra_rows *r, void *x, size_t bytes) {
    device_tp_gather(d, x, (size_t)r->each * bytes / sizeof(float));
}

void device_rows_sum(struct intra_device *d, const struct intra_rows *r, float *x) {
    collective(d, INTRA_COMM_REDUCE_SCATTER, x, (size_t)r->each * (size_t)d->m->c.d_model,
               INTRA_COMM_F32, INTRA_COMM_SUM);
}

void device_tp_sum(struct intra_device *d, float *x, size_t n) {
    collective(d, INTRA_COMM_ALL_REDUCE, x, n, INTRA_COMM_F32, INTRA_COMM_SUM);
}

void device_tp_sum_doubles(struct intra_device *d, double *x, size_t n) {
    collective(d, INTRA_COMM_ALL_REDUCE, x, n, INTRA_COMM_F64, INTRA_COMM_SUM);
}

void device_vocab_head(struct intra_device *d, const struct kern_head *h,
                       const struct kern_soft *soft) {
    const struct kern_ops *K = device_ops(d);
    struct kern *D = d->c.D;
    enum kern_type t = d->c.type;
    int ld = kern_logits_ld(h->V), w = h->d;
    for (int from = 0; from < h->n; from += h->rows) {
        int n = h->n - from < h->rows ? h->n - from : h->rows;
        const void *x = kern_at(t, h->x, (size_t)from * (size_t)w);
        struct kern_soft here;
        if (soft) {
            here = *soft;
            here.ids += (size_t)from * (size_t)soft->k;
            here.logp += (size_t)from * (size_t)soft->k;
            here.tail += from;
        }
        struct kern_vocab v = {.logits = h->logits,
                               .n = n,
                               .V = h->V,
                               .targets = h->targets + from,
                               .row0 = d->m->head->row0,
                               .max = d->vocab_max,
                               .sums = d->vocab_sums,
                               .soft = soft ? &here : NULL,
                               .grad_scale = h->grad_scale,
                               .learn = h->dx,
                               .losses = h->losses + from,
                               .total = h->total};
        struct kern_gemm g = kern_linear(t, t, n, h->V, w, x, h->w, h->logits);
        g.ldc = ld;
        K->gemm(D, &g);
        K->vocab_max(D, t, &v);
        collective(d, INTRA_COMM_ALL_REDUCE, v.max, (size_t)n, INTRA_COMM_F32, INTRA_COMM_MAX);
        K->vocab_sum(D, t, &v);
        collective(d, INTRA_COMM_ALL_REDUCE, v.sums, (soft ? KERN_VOCAB_SOFT : 2) * (size_t)n,
                   INTRA_COMM_F64, INTRA_COMM_SUM);
        K->vocab_loss(D, t, &v);
        if (h->dx)
            K->linear_bwd(D,
                          &(struct kern_linear_bwd){.t = t,
                                                    .tx = KERN_F32,
                                                    .n = n,
                                                    .out = h->V,
                                                    .in = w,
                                                    .dy = h->logits,
                                                    .ld = ld,
                                                    .x = x,
                                                    .w = h->w,
                                                    .dx = (float *)h->dx + (size_t)from * (size_t)w,
                                                    .dw = h->dw});
    }
}
