// SPDX-License-Identifier: Apache-2.0
// The state of the exchange of a cluster. The units of a trainer are divided over its ranks
// (intra/train/shards.h); each rank has an inter_outer of its own shard. Rank 0, which talks to the
// agent, collects what the owners encode and gives them what was committed. With one rank all of
// this is one shard, and nothing is sent.
//
//     rank 0 (rounds.c)                          every rank, including rank 0
//
//     agent_shards_encode ── fragment, codec ──► reads its units from the ranks that train them
//                         ── row counts ───────► u = (β − ρ)·e + (θ − θ_m), encoded
//                         ◄── frames ───────────
//       one update, units in order
//
//     agent_shards_merge  ── frames by owner ──► decode, weights, sum, outer step, e, rebase
//                         ◄── digests, summed ── writes its units to all ranks that hold a part
//
// Where each rank has a carrier (agent_trainer), it hands the frames that it encodes to the agent
// itself and gets its part of a commit from there; the agent joins and cuts. Only updates in flight
// pass through rank 0, part by part, for checkpoints.
//
// Ranks exchange one copy of a fragment's parameters in each direction, and frames. They exchange
// θ, v and residuals only for checkpoints: from ranks that do not see the folder, and when state is
// restored. Updates, digests and the contents of a checkpoint do not depend on the ownership of
// units: a unit is encoded in the same way as on one rank.
//
// A fragment is encoded and merged in waves of some units, of which all ranks take part in each. So
// a rank needs memory for four floats per parameter of its shard, for its frames, and for a wave:
// scratch, and the gathered θ_m of units that it does not train in the memory of the exchange.
// With a masked sum, and on a device of a trainer without deferred work, a wave is the whole
// fragment.
//
// With a masked sum (gate `private`) rank 0 owns all units: masks run over the elements of a
// fragment in order, and only rank 0 has the keys.
//
// All ranks take part in each call: rank 0 makes the call, the others run agent_shards_follow. Any
// failure ends the group.
#ifndef AGENT_SHARDS_H
#define AGENT_SHARDS_H
#include "agent/base/file.h"
#include "agent/exchange/trainer.h"
#include "inter/outer/outer.h"

struct agent_shards;
// On rank 0. outer: places is ignored, sum is rank 0's. fragment: one entry per unit, copied; -1:
// the unit is not exchanged, and nobody owns it. All units of a tensor have the same fragment.
// single: rank 0 owns all units, which a masked sum needs. The state starts with the parameters
// that the ranks hold. trainer is copied; what it points to and outer->sum are borrowed.
// NEB_ERR_NOMEM, and the errors of the communicator.
NEB_MUST_CHECK enum neb_status agent_shards_create(const struct agent_trainer *trainer,
                                                   const struct inter_outer_config *outer,
                                                   const int32_t *fragment, bool single,
                                                   struct agent_shards **out);
// NULL-safe. Not collective: the other ranks destroy theirs when their group ends.
void agent_shards_destroy(struct agent_shards **o);
// Every other rank: does what call n of rank 0 asks for. *shards: NULL until rank 0 has created
// its own; the caller destroys it at the end.
NEB_MUST_CHECK enum neb_status agent_shards_follow(const struct agent_trainer *trainer, int32_t n,
                                                   struct agent_shards **shards);

// Rank 0's inter_outer. Its versions and its updates in flight hold for all ranks.
struct inter_outer *agent_shards_outer(struct agent_shards *o);
// Bytes that this rank holds for the exchange on its host (without frames), and in its device's
// memory (with them), and the elements of its units.
uint64_t agent_shards_bytes(const struct agent_shards *o);
uint64_t agent_shards_device_bytes(const struct agent_shards *o);
uint64_t agent_shards_elements(const struct agent_shards *o);

// Moves the state of all ranks to the devices of their trainers. Each rank then has θ, v, u and θ_m
// at the send of its units on its device, and encodes, decodes, steps and digests there, with the
// same bits. If a rank trains all of a unit, its parameters are encoded where they are. Device
// memory of a rank: four floats per parameter of its shard, some units of scratch, and the frames
// of a commit; for gathered parameters one float more per parameter of a wave. All ranks move or
// none. If one device has too little memory, all stay on the host; with AGENT_SHARDS_DEVICE this is
// an error. Where the trainer allows work to be deferred, or with AGENT_SHARDS_PINNED, the state on
// the host is pinned and the devices compute; if it cannot be pinned, processors do. NEB_OK also if
// the ranks train on processors. NEB_ERR_NOMEM, and the errors of the device.
enum agent_shards_place { AGENT_SHARDS_AUTO, AGENT_SHARDS_DEVICE, AGENT_SHARDS_PINNED };
NEB_MUST_CHECK enum neb_status agent_shards_place(struct agent_shards *o,
                                                  enum agent_shards_place how);

// As inter_outer_encode, or with a masked sum as inter_outer_encode_masked (which needs the round
// and none of the rest). counts writes the counts of a unit's rows to out. error: NULL, or receives
// the relative error of the update (inter_outer_unit_error), which masks do not show.
typedef void agent_shards_counts(void *user, int32_t unit, uint64_t *out);
NEB_MUST_CHECK enum neb_status agent_shards_encode(struct agent_shards *o, int32_t f,
                                                   uint32_t round, const struct cmp_codec *codec,
                                                   agent_shards_counts *counts, void *user,
                                                   float *error, struct neb_buf *out);
// The same in two parts: between them the trainer may go on, and change its parameters, if
// agent_shards_deferred. out stays, and is set by the end.
NEB_MUST_CHECK enum neb_status agent_shards_encode_begin(struct agent_shards *o, int32_t f,
                                                         uint32_t round,
                                                         const struct cmp_codec *codec,
                                                         agent_shards_counts *counts, void *user,
                                                         bool measured, struct neb_buf *out);
NEB_MUST_CHECK enum neb_status agent_shards_encode_end(struct agent_shards *o, float *error,
                                                       struct neb_buf *out);
// Work of this rank that a begin has started may go on after it, on a device.
bool agent_shards_deferred(const struct agent_shards *o);
bool agent_shards_busy(const struct agent_shards *o); // such work has not ended
void agent_shards_join(struct agent_shards *o);       // waits for it on this rank; accepts NULL
// True if each rank carries its own part; then `out` above is rank 0's part of the update, and the
// blobs of a commit are rank 0's parts.
bool agent_shards_carried(const struct agent_shards *o);
// Rank 0: hands the parts of the other ranks to the agent, once more if it has lost them. Rank 0's
// own message follows. Does nothing if the parts are not carried by rank.
NEB_MUST_CHECK enum neb_status agent_shards_send(struct agent_shards *o,
                                                 const struct agent_part_key *k);
// Rank 0: the ranks tell the agent who they are once more, because it was restarted.
NEB_MUST_CHECK enum neb_status agent_shards_renew(struct agent_shards *o);
// Bytes of fragment f's update in flight, with the parts of all ranks.
uint64_t agent_shards_payload(const struct agent_shards *o, int32_t f);
// The owner of each unit, -1: nobody.
const int32_t *agent_shards_owners(const struct agent_shards *o, int32_t *n);

// For the next agent_shards_merge, if parts are carried: the commit that it merges.
struct agent_shards_commit {
    uint32_t round;
    uint8_t index[INTER_PARTS_MAX]; // of each of its parts, among all updates of the commit
};
void agent_shards_expect(struct agent_shards *o, const struct agent_shards_commit *c);
// Does what a commit asks for: inter_outer_reject if reject is set; then inter_outer_apply, or with
// r->n 0 inter_outer_skip; inter_outer_finish after the last round.
NEB_MUST_CHECK enum neb_status agent_shards_merge(struct agent_shards *o, int32_t f, bool reject,
                                                  const struct inter_outer_round *r,
                                                  struct kern_digest *digest);
// The same in parts, as the encode above. open begins to decode and sum the commit of the
// fragment's next merge, which must not reject; r's blobs stay until then. Only if deferred; the
// merge does it otherwise.
NEB_MUST_CHECK enum neb_status agent_shards_open(struct agent_shards *o, int32_t f,
                                                 const struct inter_outer_round *r);
int32_t agent_shards_opened(const struct agent_shards *o); // the fragment; -1: none
NEB_MUST_CHECK enum neb_status agent_shards_merge_begin(struct agent_shards *o, int32_t f,
                                                        bool reject,
                                                        const struct inter_outer_round *r);
NEB_MUST_CHECK enum neb_status agent_shards_merge_end(struct agent_shards *o,
                                                      struct kern_digest *digest);
// As inter_outer_fragment_digest; f -1: over all fragments.
NEB_MUST_CHECK enum neb_status agent_shards_digest(struct agent_shards *o, int32_t f,
                                                   struct kern_digest *digest);
// Number of elements in an update of fragment f, and the digest of its units' shapes.
uint64_t agent_shards_shape(const struct agent_shards *o, int32_t f, uint8_t sha256[32]);

// Rank 0, without a world: writes the arrays of inter_outer_arrays to a checkpoint. With a world it
// writes nothing: the trainer lets every rank write its own part with the two calls below, which
// have the types of struct intra_trainer_extra; user is a struct agent_shards.
NEB_MUST_CHECK enum neb_status agent_shards_save(struct agent_shards *o,
                                                 struct intra_ckpt_writer *out);
uint64_t agent_shards_part_bytes(void *user, int rank);
enum neb_status agent_shards_part_put(void *user, const int32_t *writer,
                                      struct intra_ckpt_writer *w, enum neb_status *written);
// Rank 0: reads all arrays from a checkpoint. NULL: each rank has set the arrays of its units.
// Versions and updates in flight are taken from rank 0's inter_outer.
NEB_MUST_CHECK enum neb_status agent_shards_restore(struct agent_shards *o,
                                                    const struct intra_ckpt *c);
// Rank 0: an update in flight, to a checkpoint and back. own: what agent_shards_encode has given.
// Sections sync.blob.F, or with parts by rank sync.blob.F/R: any number of ranks reads either.
// NEB_ERR_CORRUPT: the checkpoint does not have it.
NEB_MUST_CHECK enum neb_status agent_shards_save_flight(struct agent_shards *o, int32_t f,
                                                        const struct neb_buf *own,
                                                        struct intra_ckpt_writer *out);
NEB_MUST_CHECK enum neb_status agent_shards_restore_flight(struct agent_shards *o, int32_t f,
                                                           const struct intra_ckpt *c,
                                                           struct neb_buf *own);
// Rank 0: as inter_outer_adopt, from a file with all values of θ at offset `at` and then those of
// v. The ranks continue to train from the adopted parameters.
NEB_MUST_CHECK enum neb_status agent_shards_adopt(struct agent_shards *o, int32_t f,
                                                  uint32_t version, const struct neb_file *file,
                                                  uint64_t at);

#endif
