// SPDX-License-Identifier: Apache-2.0
// The ranks of a cluster as a grid: data parallel x pipeline stages x tensor parallel.
//
// Ranks are ordered as in Megatron-LM: tensor parallel fastest, then data parallel, then stages, so
// that the ranks that exchange most are on one node. Example with dp 2, pp 2, tp 2:
//
//                    replica 0        replica 1
//     stage 0       rank 0  1        rank 2  3
//     stage 1       rank 4  5        rank 6  7
//
//     tp: 0 1 | 2 3 | 4 5 | 6 7    dp: 0 2 | 1 3 | 4 6 | 5 7    pipeline: 0 4 | 1 5 | 2 6 | 3 7
#ifndef INTRA_MESH_H
#define INTRA_MESH_H
#include "intra/ranks/comm.h"

struct intra_model_config;

struct intra_mesh_config {
    int32_t dp, pp, tp; // each at least 1
};

struct intra_mesh {
    struct intra_mesh_config c;
    int32_t dp_rank, pp_rank, tp_rank;
    struct intra_comm *world; // all ranks; borrowed
    struct intra_comm *dp;    // same stage and tensor rank; NULL if dp is 1
    struct intra_comm *tp;    // same replica and stage; NULL if tp is 1
    // Same replica and tensor rank, rank = stage; NULL if pp is 1. Activations go down and
    // gradients up, on separate communicators: in NCCL, sends and receives of one communicator wait
    // for each other.
    struct intra_comm *down, *up;
    // first and last stage of a pipeline, which share tied embeddings; NULL on other stages
    struct intra_comm *ends;
};

// Checks that the model can run on this mesh. NEB_ERR_INVALID (logged): which number does not
// divide which key.
NEB_MUST_CHECK enum neb_status intra_mesh_check(const struct intra_mesh_config *c,
                                                const struct intra_model_config *m);
// Collective over world, which must outlive the mesh. NEB_ERR_INVALID: dp x pp x tp is not the
// number of ranks; NEB_ERR_NOMEM, and the errors of split.
NEB_MUST_CHECK enum neb_status intra_mesh_create(const struct intra_mesh_config *c,
                                                 struct intra_comm *world, struct intra_mesh **out);
void intra_mesh_destroy(struct intra_mesh **m); // collective; NULL-safe
// Aborts its groups (intra_comm_ops.abort), so that destroying them waits for no other rank.
// NULL-safe.
void intra_mesh_abort(struct intra_mesh *m);
// World rank of a position in the mesh.
int intra_mesh_rank(const struct intra_mesh_config *c, int dp_rank, int pp_rank, int tp_rank);
// Replica of a world rank.
static inline int intra_mesh_replica(const struct intra_mesh_config *c, int rank) {
    return rank / c->tp % c->dp;
}

// Sequences in a micro-batch of one replica: the largest divisor of its share of `sequences`, at
// most `batch`. 0: dp does not divide `sequences`.
static inline int32_t intra_mesh_batch(int32_t sequences, int32_t batch, int32_t dp) {
    int32_t share = sequences / dp, b = batch < share ? batch : share;
    if (sequences % dp)
        return 0;
    while (b > 1 && share % b)
        b--;
    return b;
}

// For a mesh that may be NULL, which means one rank.
static inline int intra_mesh_dp(const struct intra_mesh *m) { return m ? m->c.dp : 1; }
static inline int intra_mesh_pp(const struct intra_mesh *m) { return m ? m->c.pp : 1; }
static inline int intra_mesh_tp(const struct intra_mesh *m) { return m ? m->c.tp : 1; }
static inline int intra_mesh_dp_rank(const struct intra_mesh *m) { return m ? m->dp_rank : 0; }
static inline int intra_mesh_pp_rank(const struct intra_mesh *m) { return m ? m->pp_rank : 0; }
static inline int intra_mesh_tp_rank(const struct intra_mesh *m) { return m ? m->tp_rank : 0; }

#endif
