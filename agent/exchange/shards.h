// SPDX-License-Identifier: Apache-2.0
// The state of the exchange of a cluster with several ranks. Units are divided over all ranks
// (intra/train/shards.h); each rank has an inter_outer of its own shard. Rank 0, which talks to the
// agent, collects what the owners encode and gives them what was committed.
//
//     rank 0 (worker_sync.c)                     every rank, including rank 0
//
//     agent_shards_encode ── fragment, codec ──► gathers rows of its units, in canonical
//                                                 layout, from the ranks of its replica
//                         ── row counts ───────► u = (β − ρ)·e + (θ − θ_m), encoded
//                         ◄── frames ───────────
//       one update, units in order
//
//     agent_shards_merge  ── frames by owner ──► decode, weights, sum, outer step, e, rebase
//                         ◄── digests, summed ── scatters rows of its units to all ranks
//                                                 that hold a part of them
//
// Ranks exchange one copy of a fragment's parameters in each direction, and frames. They exchange
// θ, v and residuals only for checkpoints: from ranks that do not see the folder, and when state is
// restored. Updates, digests and the contents of a checkpoint do not depend on the ownership of
// units: a unit is encoded as on one rank. A rank needs memory for four floats per parameter of its
// shard, one float per parameter of its shard of one fragment (the gathered θ_m), and frames.
//
// With a masked sum (profile `private`) rank 0 owns all units: masks run over the elements of a
// fragment in order, and only rank 0 has the keys.
//
// All ranks take part in each call: rank 0 makes the call, the others run agent_shards_follow. Any
// failure ends the group.
#ifndef AGENT_SHARDS_H
#define AGENT_SHARDS_H
#include "inter/outer/outer.h"
#include "intra/train/group.h"

struct agent_shards;
// On rank 0. outer: as for one rank (places is ignored, sum is rank 0's). fragment: one entry per
// unit (intra_units of the full model), copied. single: rank 0 owns all units, which a masked sum
// needs. The state starts with the parameters that the ranks hold. group, pool and outer->sum are
// borrowed. NEB_ERR_NOMEM; NEB_ERR_INVALID: a fragment has no units; and the errors of the
// communicator.
NEB_MUST_CHECK enum neb_status agent_shards_create(struct intra_group *group,
                                                   const struct inter_outer_config *outer,
                                                   const int32_t *fragment, bool single,
                                                   struct kern_pool *pool,
                                                   struct agent_shards **out);
// NULL-safe. Not collective: the other ranks destroy theirs when their group ends.
void agent_shards_destroy(struct agent_shards **o);
// Every other rank: the called and end callbacks of intra_group_follower. user is a struct
// agent_shards_follower, zeroed at first except its pool.
struct agent_shards_follower {
    struct kern_pool *pool;
    struct agent_shards *shards;
};
enum neb_status agent_shards_follow(void *user, struct intra_group *group, int32_t n);
void agent_shards_follow_end(void *user);

// Rank 0's inter_outer. Its versions and its updates in flight hold for all ranks.
struct inter_outer *agent_shards_outer(struct agent_shards *o);
// Bytes that this rank holds for the exchange (without frames), and the elements of its units.
uint64_t agent_shards_bytes(const struct agent_shards *o);
uint64_t agent_shards_elements(const struct agent_shards *o);

// Moves the state of all ranks to the devices of their trainers. Each rank then has θ, v, u and θ_m
// of its units on its device, and encodes, decodes, steps and digests there, with the same bits. If
// a rank trains all of a tensor, its parameters are encoded where they are. Device memory of a
// rank: five floats per parameter of its shard, one per parameter of its shard of a fragment if
// that is gathered, and one per parameter of its largest unit. All ranks move or none: if one
// device has too little memory, all stay on the host, and with must this is an error. NEB_OK also
// if the group trains on processors. NEB_ERR_NOMEM, and the errors of the device.
NEB_MUST_CHECK enum neb_status agent_shards_place(struct agent_shards *o, bool must);

// As inter_outer_encode. counts gets the number of a unit. Parameters are fetched from the ranks.
// error: NULL, or receives the inter_outer_error of the update.
NEB_MUST_CHECK enum neb_status agent_shards_encode(struct agent_shards *o, int32_t f,
                                                   const struct cmp_codec *codec,
                                                   inter_outer_counts *counts, void *user,
                                                   float *error, struct neb_buf *out);
// As inter_outer_encode_masked.
NEB_MUST_CHECK enum neb_status agent_shards_encode_masked(struct agent_shards *o, int32_t f,
                                                          uint32_t round, struct neb_buf *out);
// Does what a commit asks for: inter_outer_reject if reject is set; then inter_outer_apply, or with
// r->n 0 inter_outer_skip; inter_outer_finish after the last round. Fetches the parameters from the
// ranks and returns them.
NEB_MUST_CHECK enum neb_status agent_shards_merge(struct agent_shards *o, int32_t f, bool reject,
                                                  const struct inter_outer_round *r,
                                                  struct kern_digest *digest);
// As inter_outer_fragment_digest; f -1: over all fragments.
NEB_MUST_CHECK enum neb_status agent_shards_digest(struct agent_shards *o, int32_t f,
                                                   struct kern_digest *digest);
// The contents of an update of fragment f, as inter_outer_shape.
uint64_t agent_shards_shape(const struct agent_shards *o, int32_t f, uint8_t sha256[32]);

// Reads elements [at, at + n) of the array `which` (inter_outer_arrays), over all units in order.
// Called on rank 0.
typedef enum neb_status agent_shards_read(void *user, int which, uint64_t at, float *dst, size_t n);
// Reads all four arrays from a checkpoint. Versions and updates in flight are taken from rank 0's
// inter_outer.
NEB_MUST_CHECK enum neb_status agent_shards_restore(struct agent_shards *o, agent_shards_read *read,
                                                    void *user);
// As inter_outer_adopt; the ranks continue to train from the adopted parameters.
NEB_MUST_CHECK enum neb_status agent_shards_adopt(struct agent_shards *o, int32_t f,
                                                  uint32_t version, agent_shards_read *read,
                                                  void *user);

#endif
