// SPDX-License-Identifier: Apache-2.0
// Whole tensors in their canonical layout from the parts that the ranks of a mesh hold, and back. Rows meet at whichever rank owns them in
// the exchange (shards.h) or writes them into a checkpoint, whole tensors at rank 0 of the mesh's world; so neither updates nor
// checkpoints depend on the mesh. All calls are collective over the world, in host memory; with mesh NULL they copy. Who calls them one after
// the other does so in the same order on all ranks.
#ifndef INTRA_FULL_H
#define INTRA_FULL_H
#include "intra/model/model.h"

static inline bool intra_mesh_is_root(const struct intra_mesh *m) {
    return !m || m->world->rank == 0;
}
// Which rank holds what can be told from the tensor alone. arena: params of m, or anything laid out like its gradients.
enum intra_arena { INTRA_ARENA_PARAMS, INTRA_ARENA_GRADS };

// t: a tensor of the whole model's layout (intra_model_layout). out (t->rows, t->cols): written at the owner, ignored
// elsewhere (NULL). The parts of replica 0 count.
NEB_MUST_CHECK enum neb_status intra_full_gather(const struct intra_model *m,
                                                 const struct intra_tensor *t,
                                                 enum intra_arena kind, const float *arena,
                                                 float *out);
// The same at any rank `to` of the world.
NEB_MUST_CHECK enum neb_status intra_full_gather_at(const struct intra_model *m,
                                                    const struct intra_tensor *t,
                                                    enum intra_arena kind, const float *arena,
                                                    int to, float *out);
// Rows [row0, row0 + rows) of parameters, at rank `to`: from the ranks of its own replica, which hold what all replicas hold. out: (rows, t->cols)
NEB_MUST_CHECK enum neb_status intra_full_gather_rows(const struct intra_model *m,
                                                      const struct intra_tensor *t, int32_t row0,
                                                      int32_t rows, int to, float *out);
// This rank's own tensor where it holds all of t, so that gathering rows at it takes nothing from another rank; NULL otherwise. Not collective.
const struct intra_tensor *intra_full_held(const struct intra_model *m,
                                           const struct intra_tensor *t);
// And back, from rank `from` to all who hold a part of them. in: (rows, t->cols), read at `from` alone
NEB_MUST_CHECK enum neb_status intra_full_scatter_rows(struct intra_model *m,
                                                       const struct intra_tensor *t, int32_t row0,
                                                       int32_t rows, int from, const float *in);
// The other way: in (t->rows, t->cols) of the owner goes to all who hold a part of it.
NEB_MUST_CHECK enum neb_status intra_full_scatter(const struct intra_model *m,
                                                  const struct intra_tensor *t,
                                                  enum intra_arena kind, const float *in,
                                                  float *arena);
// All parameters, to whole, which has the whole model's layout and, at the owner, its parameters.
NEB_MUST_CHECK enum neb_status intra_full_params(const struct intra_model *m,
                                                 struct intra_model *whole);
// One status for all ranks, NEB_OK when all have it, else that of the first that has another: what one rank finds out alone (a file that is
// not there) must not leave the others waiting for it. Rank 0 logs which rank it was, and its last error: it speaks for all.
NEB_MUST_CHECK enum neb_status intra_full_agree(const struct intra_mesh *mesh, enum neb_status st);

#endif
