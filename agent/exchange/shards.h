// SPDX-License-Identifier: Apache-2.0
// The exchange's state of a cluster of several ranks: spread over all of them by units (intra/train/shards.h), each with its own inter_outer.
// Rank 0, which speaks to the agent, collects what the owners have encoded and hands them what was committed.
//
//     rank 0 (worker_sync.c)                 every rank, rank 0 among them
//
//     agent_shards_encode   ── fragment, codec ──►  rows of its units, in canonical layout, from the ranks of its replica
//                           ── row counts ───────►  u = (β − ρ)·e + (θ − θ_m), encoded
//                           ◄── frames ───────────
//       one update, units by number
//
//     agent_shards_merge    ── its frames ───────►  decode, weights, sum, outer step, e, rebase, digest
//                           ◄── digests, added up     rows of its units to all ranks that hold a part of them
//
// What travels between ranks is one copy of a fragment's parameters each way and frames: never θ, v or residuals, but for checkpoints of
// ranks that do not see the folder, and from checkpoints. Updates, digests and what is read from a checkpoint do not depend on who owns
// what: a unit is encoded as on one rank. So the memory of a rank is its share of four floats a parameter, one float a parameter of its share of a
// fragment (θ_m, gathered), and what frames need.
//
// With a masked sum (profile `private`) rank 0 owns all: masks run over a fragment's elements in order, on keys that only it has.
//
// All ranks take part in each call, rank 0 by calling, the others through agent_shards_follow. Any failure ends the group.
#ifndef AGENT_SHARDS_H
#define AGENT_SHARDS_H
#include "inter/outer/outer.h"
#include "intra/train/group.h"

struct agent_shards;
// outer: as for one rank (places is ignored; sum is rank 0's). fragment: (units of intra_units on the whole model), copied. single: rank 0 owns
// all, which a masked sum needs. On rank 0; the others follow. The state begins with the parameters that the ranks hold. group, pool and
// outer.sum are borrowed. NEB_ERR_NOMEM, NEB_ERR_INVALID: a fragment without units; as of the communicator.
NEB_MUST_CHECK enum neb_status agent_shards_create(struct intra_group *group,
                                                   const struct inter_outer_config *outer,
                                                   const int32_t *fragment, bool single,
                                                   struct kern_pool *pool,
                                                   struct agent_shards **out);
// NULL-safe. Not collective: the others' go with their group.
void agent_shards_destroy(struct agent_shards **o);
// Every other rank: intra_group_follower's called and end, with user a struct agent_shards_follower, which is zeroed but for its pool at first.
struct agent_shards_follower {
    struct kern_pool *pool;
    struct agent_shards *shards;
};
enum neb_status agent_shards_follow(void *user, struct intra_group *group, int32_t n);
void agent_shards_follow_end(void *user);

// Rank 0's part: its versions and what is in flight are those of the whole.
struct inter_outer *agent_shards_outer(struct agent_shards *o);
// Bytes that this rank holds for the exchange (without frames), and the elements of its units.
uint64_t agent_shards_bytes(const struct agent_shards *o);
uint64_t agent_shards_elements(const struct agent_shards *o);

// Moves the state of all ranks to their devices, those of the trainer: each has its units' θ, v, u and θ_m at the send there, encodes, decodes,
// steps and digests there, with the same bits, and where a rank trains all of a tensor, its parameters do not leave the device to be encoded.
// Device memory of a rank: five floats a parameter of its share, one a parameter of its share of a fragment where that is gathered, one of its
// largest unit. All ranks or none: where one has no room all stay on the host, and with must that is an error. NEB_OK also where the group
// trains on processors. NEB_ERR_NOMEM; as of the device.
NEB_MUST_CHECK enum neb_status agent_shards_place(struct agent_shards *o, bool must);

// As inter_outer_encode, with counts asked by number; parameters are fetched from the ranks. error: NULL, or inter_outer_error of it.
NEB_MUST_CHECK enum neb_status agent_shards_encode(struct agent_shards *o, int32_t f,
                                                   const struct cmp_codec *codec,
                                                   inter_outer_counts *counts, void *user,
                                                   float *error, struct neb_buf *out);
// As inter_outer_encode_masked.
NEB_MUST_CHECK enum neb_status agent_shards_encode_masked(struct agent_shards *o, int32_t f,
                                                          uint32_t round, struct neb_buf *out);
// inter_outer_reject if asked for, then inter_outer_apply; or inter_outer_skip, with r->n 0; inter_outer_finish of the last. Parameters are fetched and given back.
NEB_MUST_CHECK enum neb_status agent_shards_merge(struct agent_shards *o, int32_t f, bool reject,
                                                  const struct inter_outer_round *r,
                                                  struct kern_digest *digest);
// As inter_outer_fragment_digest; f -1: over all fragments.
NEB_MUST_CHECK enum neb_status agent_shards_digest(struct agent_shards *o, int32_t f,
                                                   struct kern_digest *digest);
// What an update of fragment f holds, as inter_outer_shape.
uint64_t agent_shards_shape(const struct agent_shards *o, int32_t f, uint8_t sha256[32]);

// Elements [at, at + n) of the array `which` (inter_outer_arrays) of all units in order; asked on rank 0.
typedef enum neb_status agent_shards_read(void *user, int which, uint64_t at, float *dst, size_t n);
// All four arrays from a checkpoint; versions and what is in flight as rank 0's part has them.
NEB_MUST_CHECK enum neb_status agent_shards_restore(struct agent_shards *o, agent_shards_read *read,
                                                    void *user);
// As inter_outer_adopt; the ranks train on from there.
NEB_MUST_CHECK enum neb_status agent_shards_adopt(struct agent_shards *o, int32_t f,
                                                  uint32_t version, agent_shards_read *read,
                                                  void *user);

#endif
