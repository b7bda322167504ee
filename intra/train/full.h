// SPDX-License-Identifier: Apache-2.0
// Gathers full tensors in canonical layout from the parts that the ranks of a mesh hold, and
// scatters them back. Rows go to the rank that owns them in the exchange (shards.h) or that writes
// them into a checkpoint; full tensors go to rank 0 of the mesh's world. So neither updates nor
// checkpoints depend on the mesh. All calls are collective over the world unless a comment says
// otherwise, and all ranks make them in the same order. They use host memory. With mesh NULL they
// copy.
#ifndef INTRA_FULL_H
#define INTRA_FULL_H
#include "intra/model/model.h"

static inline bool intra_mesh_is_root(const struct intra_mesh *m) {
    return !m || m->world->rank == 0;
}
// Which rank holds which part of a tensor follows from the tensor alone. The kinds of arena:
// parameters of m, or anything laid out like its gradients.
enum intra_arena { INTRA_ARENA_PARAMS, INTRA_ARENA_GRADS };

// t: a tensor of the whole model's layout (intra_model_layout). out (t->rows, t->cols): written on
// rank 0, ignored on the other ranks (NULL). The parts come from replica 0.
NEB_MUST_CHECK enum neb_status intra_full_gather(const struct intra_model *m,
                                                 const struct intra_tensor *t,
                                                 enum intra_arena kind, const float *arena,
                                                 float *out);
// The same, to any rank `to` of the world.
NEB_MUST_CHECK enum neb_status intra_full_gather_at(const struct intra_model *m,
                                                    const struct intra_tensor *t,
                                                    enum intra_arena kind, const float *arena,
                                                    int to, float *out);
// Rows [row0, row0 + rows) of a parameter tensor, to rank `to`. They come from the ranks of its own
// replica, because all replicas hold the same. out: (rows, t->cols)
NEB_MUST_CHECK enum neb_status intra_full_gather_rows(const struct intra_model *m,
                                                      const struct intra_tensor *t, int32_t row0,
                                                      int32_t rows, int to, float *out);
// This rank's own tensor if it holds all of t, so that gathering rows of t to this rank takes
// nothing from another rank; else NULL. Not collective.
const struct intra_tensor *intra_full_held(const struct intra_model *m,
                                           const struct intra_tensor *t);
// Sends rows from rank `from` to all ranks that hold a part of them. in: (rows, t->cols), read on
// `from` only.
NEB_MUST_CHECK enum neb_status intra_full_scatter_rows(struct intra_model *m,
                                                       const struct intra_tensor *t, int32_t row0,
                                                       int32_t rows, int from, const float *in);
// The inverse of gather: in (t->rows, t->cols) of rank 0 goes to all ranks that hold a part of it.
NEB_MUST_CHECK enum neb_status intra_full_scatter(const struct intra_model *m,
                                                  const struct intra_tensor *t,
                                                  enum intra_arena kind, const float *in,
                                                  float *arena);
// Gathers all parameters. whole: the whole model's layout, with its parameters on rank 0.
NEB_MUST_CHECK enum neb_status intra_full_params(const struct intra_model *m,
                                                 struct intra_model *whole);
// intra_comm_agree over the world of a mesh.
NEB_MUST_CHECK enum neb_status intra_full_agree(const struct intra_mesh *mesh, enum neb_status st);

#endif
