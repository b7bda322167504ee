// SPDX-License-Identifier: Apache-2.0
// Inside of agent/exchange/shards.h: shards.c life, gathering and what the others follow, shards_device.c the state on the ranks' devices, shards_round.c
// a round, shards_ckpt.c arrays from and to checkpoints.
#ifndef AGENT_SHARDS_STATE_H
#define AGENT_SHARDS_STATE_H
#include "agent/exchange/shards.h"
#include "inter/record/types.h"
#include "intra/train/full.h"

enum shards_call {
    SHARDS_CREATE,
    SHARDS_ENCODE,
    SHARDS_MERGE,
    SHARDS_DIGEST,
    SHARDS_RESTORE,
    SHARDS_ADOPT,
    SHARDS_PLACE
};

enum { // beyond tensors and orders (full.c, group.c), within what every MPI has
    SHARDS_TAG_COUNTS = 32001,
    SHARDS_TAG_SIZES,
    SHARDS_TAG_FRAMES,
    SHARDS_TAG_ARRAYS
};

struct agent_shards {
    struct intra_group *group;   // borrowed
    struct intra_trainer *train; // the group's
    struct intra_comm *world;    // the group's
    struct inter_outer_config c;
    bool single; // rank 0 owns all
    bool masked; // c.sum, which is rank 0's
    int rank, ranks;
    int32_t n, mine;          // units: of all ranks, of this one
    struct intra_unit *units; // (n) without data
    int32_t *fragment;        // (n)
    int32_t *owner;           // (n) ranks
    int32_t *local;           // (n) which of this rank's; -1: another's
    uint64_t *place;          // (n) elements before it
    uint64_t *load;           // (ranks) elements
    uint64_t elements;        // of all
    float *room;              // θ_m of this rank's units of one fragment at a time
    size_t room_floats;
    float **theta_m; // (mine) where in it
    // With the state on this rank's device: θ_m there of each of its units, where the trainer has it if this rank trains all of the unit's
    // tensor, else in a room like the host's. NULL: on the host
    struct kern_device *device; // the trainer's
    float *there_room;
    float **there;     // (mine)
    bool *in_place;    // (mine) the trainer's own
    uint64_t **counts; // (n) of this rank's units with row weights: (rows); NULL otherwise
    bool *wanted;      // (tensors)
    struct inter_outer *outer;
    struct neb_buf *pieces; // (ranks) at rank 0; elsewhere its own alone
    uint64_t *sizes;        // (ranks, INTER_PARTS_MAX) of what is cut for them
    struct intra_trainer_extra extra;
};

static inline size_t shards_unit_size(const struct agent_shards *o, int32_t i) {
    return (size_t)o->units[i].rows * (size_t)o->units[i].cols;
}

static inline struct cmp_unit_shape shards_shape_of(const struct agent_shards *o, int32_t i) {
    bool rows = o->c.row_weights && o->units[i].tensor->row_kind != INTRA_ROWS_NONE;
    return (struct cmp_unit_shape){(uint32_t)i, (uint32_t)o->units[i].rows,
                                   (uint32_t)o->units[i].cols, rows};
}

// shards.c
// Rank 0: begins a call, whose arguments go to all.
NEB_MUST_CHECK enum neb_status shards_begin(struct agent_shards *o, enum shards_call call,
                                            void *args, size_t bytes);
// One status for all. Where it is none of rank 0's own, that says which rank failed, and why.
NEB_MUST_CHECK enum neb_status shards_agree(struct agent_shards *o, enum neb_status st);
// Parameters of a fragment's units: to their owners' θ_m, and from there to where they are trained.
NEB_MUST_CHECK enum neb_status shards_gather(struct agent_shards *o, int32_t f);
NEB_MUST_CHECK enum neb_status shards_scatter(struct agent_shards *o, int32_t f);
// shards_device.c. Of this rank's units of fragment f: is unit i trained where the exchange has its θ_m? Then it is not gathered.
static inline bool shards_in_place(const struct agent_shards *o, int32_t i) {
    return o->device && o->local[i] >= 0 && o->in_place[o->local[i]];
}
// Enqueues the gathered θ_m to the device; fetches what a merge has made of it. Nothing to do on the host.
NEB_MUST_CHECK enum neb_status shards_upload(struct agent_shards *o, int32_t f);
NEB_MUST_CHECK enum neb_status shards_download(struct agent_shards *o, int32_t f);
NEB_MUST_CHECK enum neb_status shards_do_place(struct agent_shards *o, bool must);
void shards_leave_device(struct agent_shards *o); // gives its room back

// shards.c
NEB_MUST_CHECK enum neb_status shards_post(struct agent_shards *o, const void *x, size_t bytes,
                                           int to, int tag);
NEB_MUST_CHECK enum neb_status shards_take(struct agent_shards *o, void *x, size_t bytes, int from,
                                           int tag);
// Of this rank's units, summed over all ranks, and the versions' at rank 0. f -1: of all fragments.
NEB_MUST_CHECK enum neb_status shards_sum_digest(struct agent_shards *o, int32_t f,
                                                 struct kern_digest *d);

// What all ranks do in a call; args are rank 0's.
struct shards_encode {
    int32_t f, sample; // sample: unit whose error is measured; -1: none
    uint32_t round;    // of a masked update
    struct cmp_codec codec;
};
struct shards_merge {
    int32_t f;
    bool reject, merge, last;
    float eta, mu;
    uint32_t n;
    struct {
        uint64_t tokens, weight;
        float clip;
        bool mine;
    } parts[INTER_PARTS_MAX];
};
struct shards_adopt {
    int32_t f;
    uint32_t version;
};
struct shards_restore {
    uint32_t version[INTER_FRAGMENTS_MAX];
    bool in_flight[INTER_FRAGMENTS_MAX];
};

// shards_round.c. counts, user, blob, r, d: at rank 0
NEB_MUST_CHECK enum neb_status shards_do_encode(struct agent_shards *o,
                                                const struct shards_encode *a,
                                                inter_outer_counts *counts, void *user,
                                                float *error, struct neb_buf *blob);
NEB_MUST_CHECK enum neb_status shards_do_merge(struct agent_shards *o, const struct shards_merge *a,
                                               const struct inter_outer_round *r,
                                               struct kern_digest *d);
NEB_MUST_CHECK enum neb_status shards_do_digest(struct agent_shards *o, int32_t f,
                                                struct kern_digest *d);
// shards_ckpt.c. read: at rank 0
NEB_MUST_CHECK enum neb_status shards_do_restore(struct agent_shards *o,
                                                 const struct shards_restore *a,
                                                 agent_shards_read *read, void *user);
NEB_MUST_CHECK enum neb_status shards_do_adopt(struct agent_shards *o, const struct shards_adopt *a,
                                               agent_shards_read *read, void *user);
extern const struct intra_trainer_extra shards_extra; // user: the owners

#endif
