// SPDX-License-Identifier: Apache-2.0
// Collectives over the rows of the stream, in host memory.
#include "intra/model/seqpar.h"

static size_t part(const struct intra_model *m, const struct intra_rows *r) {
    return (size_t)r->each * (size_t)m->c.d_model;
}

void intra_rows_gather(struct intra_model *m, const struct intra_rows *r, float *x) {
    struct intra_comm *tp = m->mesh ? m->mesh->tp : NULL;
    if (tp && m->failed == NEB_OK)
        intra_model_keep_failure(m, tp->ops->all_gather(tp, x, part(m, r)));
}

void intra_rows_gather_from(struct kern *K, struct intra_model *m, const struct intra_rows *r,
                            const float *own, float *x) {
    size_t n = (size_t)r->own * (size_t)m->c.d_model;
    K->ops->zero(K, intra_rows_own(m, r, x), n);
    K->ops->add(K, intra_rows_own(m, r, x), own, n);
    intra_rows_gather(m, r, x);
}

void intra_rows_reduce_scatter(struct intra_model *m, const struct intra_rows *r, float *x) {
    struct intra_comm *tp = m->mesh ? m->mesh->tp : NULL;
    if (tp && m->failed == NEB_OK)
        intra_model_keep_failure(m, tp->ops->reduce_scatter(tp, x, part(m, r)));
}
