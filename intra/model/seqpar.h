// SPDX-License-Identifier: Apache-2.0
// Sequence parallelism: between the products that tensor-parallel ranks share, the stream is cut over them by rows
// (Korthikanti et al. 2022). Norms, the residual stream and its gradient exist once in a tensor-parallel group:
//
//     rows of a pass, n = B x T, over 4 ranks:    |  each  |  each  |  each  | own |        the last ones may have fewer or none
//
//     stream (own, d) ── norm ──► own rows of y ── all-gather ──► y (n, d) ── products, attention ──► (n, d), a part of the sum
//            ▲                                                                                            │
//            └──────────────── own rows of the sum ◄────────────────── reduce-scatter ◄───────────────────┘
//
// Backward is the mirror image. An all-gather and a reduce-scatter together send what one all-reduce sends. Normalised rows
// are not kept for backward but computed and gathered again from the stream, which is what makes memory fall.
//
// Full buffers have tp * each rows: what lies beyond row n is scratch of the collectives.
#ifndef INTRA_SEQPAR_H
#define INTRA_SEQPAR_H
#include "intra/model/model.h"

struct intra_rows {
    int n;    // of the pass
    int each; // of a rank: n / tp, rounded up
    int from; // first of this rank
    int own;  // of this rank; 0 is possible
};

static inline struct intra_rows intra_rows_of(const struct intra_model *m, int n) {
    int tp = intra_mesh_tp(m->mesh), each = (n + tp - 1) / tp;
    int from = each * intra_mesh_tp_rank(m->mesh), left = n - from;
    return (struct intra_rows){n, each, from, left < 0 ? 0 : left < each ? left : each};
}
// Rows that a full buffer of n rows needs.
static inline size_t intra_rows_room(const struct intra_model *m, size_t n) {
    size_t tp = (size_t)intra_mesh_tp(m->mesh);
    return (n + tp - 1) / tp * tp;
}
// This rank's rows of a full buffer x (tp * each, d).
static inline float *intra_rows_own(const struct intra_model *m, const struct intra_rows *r,
                                    float *x) {
    return x + (size_t)r->from * (size_t)m->c.d_model;
}
// Every rank has filled its own rows of x (tp * each, d): afterwards all are filled. Nothing to do with one rank; a failure is
// kept (m->failed).
void intra_rows_gather(struct intra_model *m, const struct intra_rows *r, float *x);
// The same for rows that lie apart: copies own (own, d) into x first.
void intra_rows_gather_from(struct kern *K, struct intra_model *m, const struct intra_rows *r,
                            const float *own, float *x);
// Own rows of x (tp * each, d) become their sum over ranks; with several ranks the others are undefined.
void intra_rows_reduce_scatter(struct intra_model *m, const struct intra_rows *r, float *x);

#endif
