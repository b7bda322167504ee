// SPDX-License-Identifier: Apache-2.0
// Sequence parallelism (Korthikanti et al. 2022): between the products that tensor-parallel ranks
// share, each rank has some rows of the stream. So the norms, the residual stream and its gradient
// exist once in a tensor-parallel group.
//
//     rows of a pass, n = B x T, over 4 ranks:    |  each  |  each  |  each  | own |
//     (the last ranks may have fewer rows, or none)
//
//     stream (own, d) ── norm ──► own rows of y ── all-gather ──► y (n, d)
//            ▲                                                       │ products, attention
//            │                                                       ▼
//     own rows of the sum ◄────────── reduce-scatter ──────── (n, d), a part of the sum
//
// Backward is the mirror image. An all-gather and a reduce-scatter together send as much as one
// all-reduce. Normalised rows are not kept for backward: they are computed from the stream and
// gathered again, which saves the memory.
//
// Full buffers have tp * each rows. Rows from n on are scratch of the collectives.
#ifndef INTRA_ROWS_H
#define INTRA_ROWS_H
#include "intra/model/model.h"

struct intra_rows {
    int n;    // rows of the pass
    int each; // rows per rank: n / tp, rounded up
    int from; // first row of this rank
    int own;  // rows of this rank; 0 is possible
};

static inline struct intra_rows intra_rows_of(const struct intra_model *m, int n) {
    int tp = intra_mesh_tp(m->mesh), each = (n + tp - 1) / tp;
    int from = each * intra_mesh_tp_rank(m->mesh), left = n - from;
    return (struct intra_rows){n, each, from, left < 0 ? 0 : left < each ? left : each};
}
// Rows of a full buffer for n rows.
static inline size_t intra_rows_room(const struct intra_model *m, size_t n) {
    size_t tp = (size_t)intra_mesh_tp(m->mesh);
    return (n + tp - 1) / tp * tp;
}

#endif
