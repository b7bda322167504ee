// SPDX-License-Identifier: Apache-2.0
// The ranks of a cluster as a grid: data parallel x pipeline stages x tensor parallel.
//
// Rank order is Megatron-LM's: tensor parallel fastest, then data parallel, then stages, so that the ranks that talk most
// are neighbours (one node). dp 2, pp 2, tp 2:
//
//                    replica 0        replica 1
//     stage 0       rank 0  1        rank 2  3        tp: 0 1 | 2 3 | 4 5 | 6 7
//     stage 1       rank 4  5        rank 6  7        dp: 0 2 | 1 3 | 4 6 | 5 7     pipeline: 0 4 | 1 5 | 2 6 | 3 7
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
    struct intra_comm *dp;    // same stage and tensor rank; NULL when dp is 1
    struct intra_comm *tp;    // same replica and stage; NULL when tp is 1
    // Same replica and tensor rank, rank = stage; NULL when pp is 1. Activations go down and gradients up, each over a
    // communicator of its own: where sends and receives of one communicator wait for each other (NCCL), both still move.
    struct intra_comm *down, *up;
    // first and last stage of a pipeline, which share tied embeddings; NULL on other stages
    struct intra_comm *ends;
};

// Can this model run on this mesh? NEB_ERR_INVALID says which key does not divide which.
NEB_MUST_CHECK enum neb_status intra_mesh_check(const struct intra_mesh_config *c,
                                                const struct intra_model_config *m);
// Collective over world, which must outlive the mesh. NEB_ERR_INVALID: the product is not the number of ranks.
NEB_MUST_CHECK enum neb_status intra_mesh_create(const struct intra_mesh_config *c,
                                                 struct intra_comm *world, struct intra_mesh **out);
void intra_mesh_destroy(struct intra_mesh **m); // collective; NULL-safe
// Gives up its groups (intra_comm_ops.abort), so that destroying them waits for nobody. NULL-safe
void intra_mesh_abort(struct intra_mesh *m);
// Rank in world of a place.
int intra_mesh_rank(const struct intra_mesh_config *c, int dp_rank, int pp_rank, int tp_rank);
// And the replica that a rank of world belongs to.
static inline int intra_mesh_replica(const struct intra_mesh_config *c, int rank) {
    return rank / c->tp % c->dp;
}

// Sequences that a replica takes at once, of micro-batches of `batch` in a step of `sequences`: the largest divisor of its
// share that is not above batch. 0: dp does not divide the step.
static inline int32_t intra_mesh_batch(int32_t sequences, int32_t batch, int32_t dp) {
    int32_t share = sequences / dp, b = batch < share ? batch : share;
    if (sequences % dp)
        return 0;
    while (b > 1 && share % b)
        b--;
    return b;
}

// Where mesh may be NULL: one rank.
static inline int intra_mesh_dp(const struct intra_mesh *m) { return m ? m->c.dp : 1; }
static inline int intra_mesh_pp(const struct intra_mesh *m) { return m ? m->c.pp : 1; }
static inline int intra_mesh_tp(const struct intra_mesh *m) { return m ? m->c.tp : 1; }
static inline int intra_mesh_dp_rank(const struct intra_mesh *m) { return m ? m->dp_rank : 0; }
static inline int intra_mesh_pp_rank(const struct intra_mesh *m) { return m ? m->pp_rank : 0; }
static inline int intra_mesh_tp_rank(const struct intra_mesh *m) { return m ? m->tp_rank : 0; }

#endif
