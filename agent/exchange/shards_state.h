// SPDX-License-Identifier: Apache-2.0
// The inside of agent/exchange/shards.h. shards.c: creation, reads and writes, the followers.
// shards_waves.c: owners and waves. shards_side.c: work while the trainer goes on.
// shards_device.c: the state on the devices. shards_round.c: a round. shards_carry.c: parts of
// updates between ranks and the agent. shards_ckpt.c: checkpoints.
#ifndef AGENT_SHARDS_STATE_H
#define AGENT_SHARDS_STATE_H
#include "agent/exchange/shards.h"
#include "inter/record/types.h"

#include <pthread.h>
#include <stdatomic.h>

enum shards_call {
    SHARDS_CREATE,
    SHARDS_ENCODE,
    SHARDS_ENCODED,
    SHARDS_OPEN,
    SHARDS_MERGE,
    SHARDS_MERGED,
    SHARDS_DIGEST,
    SHARDS_RESTORE,
    SHARDS_ADOPT,
    SHARDS_PLACE,
    SHARDS_SEND,
    SHARDS_RENEW,
    SHARDS_GIVE_FLIGHT,
    SHARDS_TAKE_FLIGHT
};

enum { // after the tags of full.c and group.c, and within the range of every MPI
    SHARDS_TAG_COUNTS = 32001,
    SHARDS_TAG_SIZES,
    SHARDS_TAG_FRAMES,
    SHARDS_TAG_ARRAYS
};

struct shards_encode {
    int32_t f, sample; // sample: the unit to measure; -1: none
    uint32_t round;    // of a masked update
    struct cmp_codec codec;
};
struct shards_merge {
    int32_t f;
    bool reject, merge, last;
    float eta, mu;
    uint32_t n;
    struct agent_shards_commit commit;
    struct {
        uint64_t tokens, weight;
        float clip;
        bool mine;
    } parts[INTER_PARTS_MAX];
};

struct agent_shards;
struct shards_side { // the part of a round between its begin and its end
    pthread_t thread;
    bool started; // and not joined
    atomic_bool ended;
    enum neb_status (*run)(struct agent_shards *o);
    enum neb_status st;
    struct shards_encode encode;
    struct neb_buf *own; // receives the encoded part
    float error;
    int32_t opened; // the fragment whose commit is opened; -1: none
    enum neb_status opening;
    bool settling; // the digest of the merge is computed
    int32_t f;
    struct inter_outer_part parts[INTER_PARTS_MAX];
    struct inter_outer_round round;
    struct kern_digest digest;
};

struct agent_shards {
    struct agent_trainer t;
    struct inter_outer_config c;
    bool single; // rank 0 owns all units
    bool masked; // c.sum is set on rank 0
    int rank, ranks;
    int32_t n, mine;   // number of units: of all ranks, of this rank
    int32_t *fragment; // (n) fragment of each unit
    int32_t *owner;    // (n) rank of each unit
    int32_t *local;    // (n) index among this rank's units; -1: another rank's
    int32_t *own;      // (mine) the inverse of local
    uint64_t *place;   // (n) number of elements before the unit
    int32_t *wave;     // (n) wave of the unit in its fragment, ascending from 0
    uint64_t *load;    // (ranks) number of elements that each owns
    uint64_t elements; // of all units
    float *room;       // θ_m of units without the trainer's data, for one wave at a time
    size_t room_floats;
    float **theta_m; // (mine) the trainer's data, or pointers into room
    // With the state on the device, or pinned: θ_m of each unit there. If this rank trains all of
    // the unit, it is the trainer's own memory, else a part of there_room, which has the layout of
    // `room`. All NULL: processors compute.
    struct kern *device; // the trainer's
    float *there_room;
    size_t there_bytes;
    float **there;            // (mine)
    bool *in_place;           // (mine) true: the trainer's own memory
    uint64_t **counts;        // (mine)(rows) for units with row weights, else NULL
    uint64_t *others_counts;  // rank 0: counts on their way to another owner
    struct agent_move *moves; // (n) scratch
    struct inter_outer *outer;
    struct neb_buf *pieces;            // (ranks) on rank 0; other ranks use the first only
    uint64_t *sizes;                   // (ranks, INTER_PARTS_MAX) bytes of each piece
    bool carried;                      // each rank has a carrier for its parts
    struct agent_shards_commit commit; // rank 0: of the next merge
    struct agent_ipc_part taken[AGENT_IPC_PARTS_MAX]; // parts of the commit that this rank applies
    struct neb_buf *sent; // (fragments) other ranks: this rank's part of an update in flight
    uint64_t *payload;    // (fragments) rank 0: bytes of the update
    struct shards_side side;
};

static inline size_t shards_unit_size(const struct agent_shards *o, int32_t i) {
    return agent_unit_size(&o->t.units[i]);
}
static inline bool shards_weighs_rows(const struct agent_shards *o, int32_t i) {
    return o->c.row_weights && agent_unit_counts_rows(&o->t.units[i]);
}
// True if this rank trains unit i in the device memory that the exchange uses as θ_m.
static inline bool shards_in_place(const struct agent_shards *o, int32_t i) {
    return o->device && o->local[i] >= 0 && o->in_place[o->local[i]];
}
// True if the unit moves on its owner's device (agent_trainer_ops.alone).
static inline bool shards_alone(const struct agent_shards *o, int32_t i, bool write) {
    return o->device && o->t.ops->alone && o->t.ops->alone(o->t.user, i, write);
}
static inline void shards_joint(const struct agent_shards *o, bool begin) {
    if (o->device && o->t.ops->joint)
        o->t.ops->joint(o->t.user, begin);
}
// The shapes of the units of fragment f. The caller frees *out.
NEB_MUST_CHECK enum neb_status shards_shapes(const struct agent_shards *o, int32_t f,
                                             struct cmp_unit_shape **out, int32_t *n);

// shards_waves.c
// Sets the owner and the wave of each unit. wave: the most elements of a rank in a wave, 0: any.
NEB_MUST_CHECK enum neb_status shards_deal(struct agent_shards *o, uint64_t wave);
uint64_t shards_wave_of(const struct agent_trainer *t, bool masked); // for shards_deal
// The room holds θ_m of one wave at a time: the units of each wave start at its beginning. Sets
// theta_m (NULL: measures only). Returns the floats of the room.
size_t shards_places(const struct agent_shards *o, float **theta_m);
int32_t shards_most_in_wave(const struct agent_shards *o); // units of this rank

// shards.c
// Rank 0: begins a call and broadcasts its arguments.
NEB_MUST_CHECK enum neb_status shards_begin(struct agent_shards *o, enum shards_call call,
                                            void *args, size_t bytes);
NEB_MUST_CHECK enum neb_status shards_post(struct agent_shards *o, const void *x, size_t bytes,
                                           int to, int tag);
NEB_MUST_CHECK enum neb_status shards_take(struct agent_shards *o, void *x, size_t bytes, int from,
                                           int tag);
// A part of a fragment's units, for which there is memory at once (drawn in shards.h).
struct shards_wave {
    int32_t f;
    int32_t begin, end; // the units of the fragment among [begin, end)
    int32_t first, n;   // of them this rank's, among its units of the fragment
    bool last;
};
// Walks over the waves: `for (struct shards_wave w = {.f = f}; shards_next(o, &w);)`. Sets the wave
// of o->outer. Every fragment has at least one wave, the same ones on all ranks.
bool shards_next(struct agent_shards *o, struct shards_wave *w);
// Read: the parameters of a wave's units go to θ_m of their owners. Write: from there to the ranks
// that train them.
NEB_MUST_CHECK enum neb_status shards_read(struct agent_shards *o, const struct shards_wave *w);
NEB_MUST_CHECK enum neb_status shards_write(struct agent_shards *o, const struct shards_wave *w);
// Sums *d over all ranks and adds the digest of the versions. f -1: all fragments.
NEB_MUST_CHECK enum neb_status shards_sum_digest(struct agent_shards *o, int32_t f,
                                                 struct kern_digest *d);

// shards_device.c
// Upload enqueues the θ_m that was read to the device, download fetches the merged θ_m. Both do
// nothing if the state is on the host.
NEB_MUST_CHECK enum neb_status shards_upload(struct agent_shards *o, const struct shards_wave *w);
NEB_MUST_CHECK enum neb_status shards_download(struct agent_shards *o, const struct shards_wave *w);
NEB_MUST_CHECK enum neb_status shards_do_place(struct agent_shards *o, enum agent_shards_place how);
void shards_leave_device(struct agent_shards *o); // frees its device memory

// More arguments.
struct shards_adopt {
    int32_t f;
    uint32_t version;
};
struct shards_restore {
    bool arrays; // false: each owner has them
    uint32_t version[INTER_FRAGMENTS_MAX];
    bool in_flight[INTER_FRAGMENTS_MAX];
};

// shards_carry.c
// Rank 0 collects sizes, errors and, if they are not carried, the parts, which it then joins to
// out. mine: the error that this rank measured, else 0. own: its part.
NEB_MUST_CHECK enum neb_status shards_collect(struct agent_shards *o, int32_t f, float mine,
                                              float *error, const struct neb_buf *own,
                                              struct neb_buf *out);
// Sets o->taken to this rank's parts of a commit. done: they are not needed any more.
NEB_MUST_CHECK enum neb_status shards_take_commit(struct agent_shards *o,
                                                  const struct shards_merge *a,
                                                  const struct inter_outer_round *r);
void shards_commit_done(struct agent_shards *o, const struct shards_merge *a);
NEB_MUST_CHECK enum neb_status shards_do_send(struct agent_shards *o,
                                              const struct agent_part_key *k);
NEB_MUST_CHECK enum neb_status shards_do_renew(struct agent_shards *o);
// own: rank 0's.
NEB_MUST_CHECK enum neb_status shards_do_give_flight(struct agent_shards *o, int32_t f,
                                                     const struct neb_buf *own,
                                                     struct intra_ckpt_writer *out);
NEB_MUST_CHECK enum neb_status shards_do_take_flight(struct agent_shards *o, int32_t f,
                                                     const struct neb_buf *piece,
                                                     struct neb_buf *own);

// shards_side.c
// Runs it on a thread of its own, if work may be deferred, or at once. Its status goes to side.st.
void shards_side_start(struct agent_shards *o, enum neb_status (*run)(struct agent_shards *o));

// shards_round.c. counts, user, error, blob and r are used on rank 0 only.
NEB_MUST_CHECK enum neb_status shards_do_encode(struct agent_shards *o,
                                                const struct shards_encode *a,
                                                agent_shards_counts *counts, void *user,
                                                struct neb_buf *blob);
NEB_MUST_CHECK enum neb_status shards_do_encoded(struct agent_shards *o, float *error,
                                                 struct neb_buf *blob);
NEB_MUST_CHECK enum neb_status shards_do_open(struct agent_shards *o, const struct shards_merge *a,
                                              const struct inter_outer_round *r);
NEB_MUST_CHECK enum neb_status shards_do_merge(struct agent_shards *o, const struct shards_merge *a,
                                               const struct inter_outer_round *r);
NEB_MUST_CHECK enum neb_status shards_do_merged(struct agent_shards *o, int32_t f,
                                                struct kern_digest *d);
NEB_MUST_CHECK enum neb_status shards_do_digest(struct agent_shards *o, int32_t f,
                                                struct kern_digest *d);
// shards_ckpt.c. from is used on rank 0 only: it reads elements [at, at + n) of an array
// (inter_outer_arrays), over all units in order.
struct shards_source {
    enum neb_status (*read)(const struct shards_source *from, int array, uint64_t at, float *dst,
                            size_t n);
    struct intra_ckpt_array *arrays[INTER_OUTER_ARRAYS];
    const struct neb_file *file; // of a snapshot
    uint64_t at, elements;
};
NEB_MUST_CHECK enum neb_status shards_do_restore(struct agent_shards *o,
                                                 const struct shards_restore *a,
                                                 const struct shards_source *from);
NEB_MUST_CHECK enum neb_status shards_do_adopt(struct agent_shards *o, const struct shards_adopt *a,
                                               const struct shards_source *from);

#endif
