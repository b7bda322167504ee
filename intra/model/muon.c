// SPDX-License-Identifier: Apache-2.0
// The part of an update that is Muon's alone (optim.h). The pass over all chunks (kern_ops.adamw)
// has left in the gradients what is to be made orthogonal. A matrix is complete on its dp owner,
// unless tensor-parallel ranks hold parts of it. Then as many matrices as ranks are done at once:
//
//     parts      all-gather: every rank has all parts of these matrices
//     iterate    rank k: matrix k
//     results    all-gather: every rank has all results, and updates its part of each
#include "agent/base/clock.h"
#include "intra/model/state.h"

#include <math.h>
#include <stdlib.h>

enum { ITERATIONS = 5, ALIGN = 64 };

static int tp_of(const struct intra_device *d) { return intra_mesh_tp(d->c.mesh); }

static size_t full_size(const struct intra_tensor *t) {
    return (size_t)t->all_rows * (size_t)t->all_cols;
}

// This rank's matrices of the group that begins with matrix `first`: returns their number. With one
// tensor-parallel rank a group is a matrix.
static int group_size(const struct intra_device *d, int first) {
    int left = d->muon.n - first;
    return left < tp_of(d) ? left : tp_of(d);
}

enum neb_status device_muon_create(struct intra_device *d) {
    struct device_muon *u = &d->muon;
    const struct intra_model *m = d->m;
    int32_t *order = calloc((size_t)m->n_tensors + 1, sizeof *order);
    u->list = calloc((size_t)m->n_tensors + 1, sizeof *u->list);
    int32_t n = order && u->list ? intra_optim_muon_order(d->o, m, order) : -1;
    if (n < 0) {
        free(order);
        return neb_fail(NEB_ERR_NOMEM, "out of memory listing tensors");
    }
    for (int32_t i = 0; i < n; i++) {
        const struct intra_tensor *t = &m->tensors[order[i]];
        size_t from, side = (size_t)(t->all_rows < t->all_cols ? t->all_rows : t->all_cols);
        if (!intra_optim_part(d->o, t, &from))
            continue;
        u->list[u->n++] = t;
        u->n_chunks += device_chunks(d, t, NULL);
        u->most = full_size(t) > u->most ? full_size(t) : u->most;
        u->side = side > u->side ? side : u->side;
    }
    u->most = (u->most + ALIGN - 1) / ALIGN * ALIGN;
    free(order);
    for (int i = 0; i < u->n && tp_of(d) > 1; i += tp_of(d)) {
        size_t floats = 0;
        for (int k = 0; k < group_size(d, i); k++)
            floats += full_size(u->list[i + k]);
        u->parts_floats = floats > u->parts_floats ? floats : u->parts_floats;
    }
    return NEB_OK;
}

void device_muon_destroy(struct intra_device *d) { free(d->muon.list); }

enum neb_status device_muon_send(struct intra_device *d) {
    const struct kern_ops *K = device_ops(d);
    struct device_muon *u = &d->muon;
    struct kern_chunk *all = calloc((size_t)u->n_chunks + 1, sizeof *all);
    int32_t *first = calloc((size_t)u->n + 1, sizeof *first);
    enum neb_status st = NEB_OK;
    if (!all || !first)
        st = neb_fail(NEB_ERR_NOMEM, "out of memory listing tensors");
    for (int i = 0; st == NEB_OK && i < u->n; i++)
        first[i + 1] = first[i] + device_chunks(d, u->list[i], all + first[i]);
    if (st == NEB_OK && u->n) {
        K->upload(d->c.D, u->chunks, all, (size_t)u->n_chunks * sizeof *all);
        K->upload(d->c.D, u->first, first, ((size_t)u->n + 1) * sizeof *first);
        st = K->finish(d->c.D);
    }
    free(all);
    free(first);
    return st;
}

static void product(struct intra_device *d, int m, int n, int k, float alpha, const void *a,
                    bool a_turned, const void *b, bool b_turned, float beta, void *c,
                    bool symmetric) {
    device_ops(d)->gemm(d->c.D, &(struct kern_gemm){.t = d->c.type,
                                                    .tc = d->c.type,
                                                    .ta = a_turned ? KERN_T : KERN_N,
                                                    .tb = b_turned ? KERN_T : KERN_N,
                                                    .m = m,
                                                    .n = n,
                                                    .k = k,
                                                    .alpha = alpha,
                                                    .beta = beta,
                                                    .a = a,
                                                    .b = b,
                                                    .lda = a_turned ? m : k,
                                                    .ldb = b_turned ? k : n,
                                                    .c = c,
                                                    .ldc = n,
                                                    .symmetric = symmetric});
}

// Takes x (rows, cols) in muon.x and returns where the result is. A tall matrix is not transposed:
// its products are taken from the other side.
static const void *iterate(struct intra_device *d, int rows, int cols) {
    const struct kern_ops *K = device_ops(d);
    struct device_muon *u = &d->muon;
    bool tall = rows > cols;
    int r = tall ? cols : rows, c = tall ? rows : cols;
    size_t bytes = kern_type_bytes(d->c.type);
    void *x = u->x, *y = u->y;
    for (int i = 0; i < ITERATIONS; i++) {
        product(d, r, r, c, 1, x, tall, x, !tall, 0, u->a, true);
        K->copy(d->c.D, u->b, u->a, (size_t)r * (size_t)r * bytes);
        product(d, r, r, r, 2.0315f, u->a, false, u->a, true, -4.7750f, u->b, true);
        K->copy(d->c.D, y, x, (size_t)r * (size_t)c * bytes);
        product(d, rows, cols, r, 1, tall ? x : u->b, false, tall ? u->b : x, false, 3.4445f, y,
                false);
        void *z = x;
        x = y;
        y = z;
    }
    return x;
}

// Updates this rank's part of t. x: the full result.
static void apply(struct intra_device *d, const struct intra_tensor *t, const void *x) {
    size_t at = (size_t)t->row0 * (size_t)t->all_cols + (size_t)t->col0;
    int longer = t->all_rows > t->all_cols ? t->all_rows : t->all_cols;
    device_ops(d)->matrix_step(
        d->c.D, d->c.type,
        &(struct kern_matrix_step){.p = d->params + t->at,
                                   .working = d->c.type == KERN_F32 ? NULL : device_weight(d, t),
                                   .x = kern_at(d->c.type, x, at),
                                   .ldx = t->all_cols,
                                   .rows = t->rows,
                                   .cols = t->cols,
                                   .rate = d->muon.rate,
                                   .scale = 0.2f * sqrtf((float)longer)});
}

void device_muon_all(struct intra_device *d) {
    const struct device_muon *u = &d->muon;
    for (int i = 0; i < u->n; i++) {
        const struct intra_tensor *t = u->list[i];
        device_ops(d)->normalise(d->c.D, d->c.type, u->x, t->cols, d->grads + t->grad_at, t->rows,
                                 t->cols, u->sums + i);
        apply(d, t, iterate(d, t->rows, t->cols));
    }
}

// Iterates t, whose part begins at `at` in the row (of `row` floats) of each rank in u->parts. The
// result goes into this rank's place in u->results.
static void iterate_parts(struct intra_device *d, const struct intra_tensor *t, const double *sum,
                          size_t row, size_t at) {
    const struct device_muon *u = &d->muon;
    size_t bytes = kern_type_bytes(d->c.type);
    for (int r = 0; r < tp_of(d); r++) {
        struct intra_tensor part = intra_tensor_part(t, tp_of(d), r);
        size_t to = (size_t)part.row0 * (size_t)t->all_cols + (size_t)part.col0;
        device_ops(d)->normalise(d->c.D, d->c.type, kern_at(d->c.type, u->x, to), t->all_cols,
                                 u->parts + (size_t)r * row + at, part.rows, part.cols, sum);
    }
    device_ops(d)->copy(
        d->c.D, kern_at(d->c.type, u->results, (size_t)intra_mesh_tp_rank(d->c.mesh) * u->most),
        iterate(d, t->all_rows, t->all_cols), full_size(t) * bytes);
}

static void do_group(struct intra_device *d, int first) {
    const struct device_muon *u = &d->muon;
    int n = group_size(d, first), mine = intra_mesh_tp_rank(d->c.mesh);
    size_t row = 0, at = 0, own = 0;
    for (int k = 0; k < n; k++)
        row += intra_tensor_size(u->list[first + k]);
    for (int k = 0; k < n; k++) {
        const struct intra_tensor *t = u->list[first + k];
        own = k == mine ? at : own;
        device_ops(d)->copy(d->c.D, u->parts + (size_t)mine * row + at, d->grads + t->grad_at,
                            intra_tensor_size(t) * sizeof(float));
        at += intra_tensor_size(t);
    }
    device_tp_gather(d, u->parts, row);
    if (mine < n)
        iterate_parts(d, u->list[first + mine], u->sums + first + mine, row, own);
    device_tp_gather(d, u->results, u->most * kern_type_bytes(d->c.type) / sizeof(float));
    for (int k = 0; k < n; k++)
        apply(d, u->list[first + k], kern_at(d->c.type, u->results, (size_t)k * u->most));
}

void device_muon(struct intra_device *d, float lr) {
    const struct kern_ops *K = device_ops(d);
    struct device_muon *u = &d->muon;
    neb_ns from = neb_now();
    if (!u->n)
        return;
    u->rate_pinned[0] = (float)(1 - (double)lr * (double)d->o->c.weight_decay);
    u->rate_pinned[1] = lr;
    K->upload(d->c.D, u->rate, u->rate_pinned, 2 * sizeof *u->rate);
    K->sumsq(d->c.D, u->chunks, u->n_chunks, u->first, u->n, d->grads, u->sums);
    if (tp_of(d) > 1) {
        device_tp_sum_doubles(d, u->sums, (size_t)u->n);
        for (int i = 0; i < u->n; i += tp_of(d))
            do_group(d, i);
    } else {
        device_run(d, DEVICE_MUON, NULL, 0);
    }
    u->seconds += neb_seconds(neb_now() - from);
}

double intra_device_muon_seconds(const struct intra_device *d) { return d->muon.seconds; }

double intra_device_muon_flops(const struct intra_device *d) {
    double flops = 0;
    for (int i = intra_mesh_tp_rank(d->c.mesh); i < d->muon.n; i += tp_of(d))
        flops += ITERATIONS * intra_optim_muon_flops(d->muon.list[i]);
    return flops;
}
