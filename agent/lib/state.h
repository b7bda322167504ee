// SPDX-License-Identifier: Apache-2.0
// What the files of this room share. No other file of the product includes this.
//
//     libnebula.c   the calls of libnebula.h, on all ranks
//     attach.c      finds the agent, waits for a job, tells the other ranks
//     tensors.c     declare, register; what is exchanged; comparison between ranks
//     start.c       the exchange over the tensors, initial values
//     exchange.c    what is due between two steps
//     figures.c     steps, and their figures if these come later
//     moves.c       units between the memory of the ranks and their owners
//     device.c      the device that has a rank's tensors
//     trainer.c     the trainer behind agent/exchange/trainer.h, on rank 0
//     follow.c      calls of rank 0 to the other ranks, and what these do
//     save.c        the trainer's part of checkpoints
//     keep.c        the state of the exchange for checkpoints that the loop writes
#ifndef AGENT_LIB_STATE_H
#define AGENT_LIB_STATE_H
#include "agent/exchange/carrier.h"
#include "agent/exchange/exchange.h"
#include "agent/lib/copy.h"
#include "agent/lib/libnebula.h"
#include "agent/lib/pieces.h"
#include "intra/ckpt/checkpoint_saver.h"
#include "intra/train/trainer.h"

#include <locale.h>

enum { LIB_LATE_MAX = 64 };

struct lib_piece { // a registered part of a tensor
    struct pieces_box box;
    int64_t stride[NEBULA_DIMS_MAX];
    bool dense; // row-major without gaps
    int place;
    void *data; // the trainer's
};

struct lib_peer { // between this rank and another one, of one tensor; made when first needed
    struct pieces_boxes give, take; // what this rank sends to an owner, or gets as the owner
    bool known;
};

struct lib_tensor {
    char name[NEBULA_NAME_MAX + 1];
    int32_t dims;
    int64_t shape[NEBULA_DIMS_MAX];
    int64_t size, cols; // elements; columns of its rows (agent/exchange/manifest.h)
    int dtype;
    bool buffer, trained;
    bool frozen;              // must be equal on all clusters
    uint64_t digest[2];       // of a frozen tensor
    int32_t group;            // of the job
    int32_t fragment;         // -1: not known yet
    struct lib_piece *pieces; // (n_pieces) of this rank
    size_t n_pieces;
    struct pieces_boxes *held;        // (ranks) what each rank holds; NULL: not exchanged
    struct lib_peer *peers;           // (ranks)
    const struct intra_tensor *model; // of a built-in model
};

struct lib_device {
    struct kern *K;
    void *stream;   // the loop's
    float *unit;    // (largest unit) scratch there
    float *image;   // the same on the host
    float **shadow; // (n_units) there: fp32 behind 16-bit units; NULL: none, or on the host
    bool inside;    // a call is made, and this is the thread's device
    bool joined;    // this call's work waits for the loop's stream, but not yet the other way
    int was;        // the thread's device before
};

struct nebula {
    struct agent_exchange x; // rank 0; the other ranks have job, cluster, dir, vault and trainer
    struct kern_pool *pool;
    struct nebula_hooks hooks;
    struct intra_comm *world; // NULL: one rank
    int rank, ranks;
    struct lib_tensor *declared; // (n_declared) sorted by name from nebula_begin on
    int32_t n_declared;
    // (n_tensors) those that are exchanged, then (n_frozen) those that must be equal on all
    // clusters
    struct lib_tensor **tensors;
    int32_t n_tensors, n_frozen;
    struct intra_model *model; // layout of a built-in model, without parameters; NULL: none
    struct agent_unit *units;  // (x.trainer.n_units)
    struct lib_tensor **of;    // (n_units) the unit's tensor
    int64_t *first;            // (n_units) the unit's first element in its tensor
    int32_t *fragment;         // (n_units) -1: not exchanged
    int *owner;                // (n_units) its owner, once it is known; else -1
    float **shadow;            // (n_units) fp32 behind 16-bit units that this rank owns
    float *buffer, *room;      // (largest unit) messages; a unit that has no other memory
    size_t buffer_floats;
    // of a rank other than 0; carrier: of its parts of updates, NULL: there are no rounds; saver:
    // of its parts of checkpoints
    struct agent_shards *shards;
    struct agent_carrier *carrier;
    struct intra_part_saver *saver;
    // (2, V) inputs and targets that nebula_count has seen on this rank, and on all of them
    uint64_t *counters, *sum;
    struct lib_device *device; // NULL: no tensor is on one
    char socket[NEB_PATH_MAX], job[NEB_PATH_MAX];
    pid_t process; // the one that attached
    bool begun, failed, told_16;
    bool compared; // the agent has found the same tensors on the other clusters
    // Digest of the first values of all exchanged tensors, in hex; "": the job does not ask for it.
    char values[2 * NEB_SHA256_BYTES + 1];
    bool loading;        // nebula_begin continues from a state that the loop has loaded
    struct neb_buf rest; // rank 0: the part "exchange" of the state
    bool initial;        // nothing is written to the tensors yet
    bool raw;            // reads give values as they are, for a checkpoint
    int state;           // enum nebula_state
    uint64_t reads;      // how often parameters were read
    // The first value that is not finite among those read now.
    const struct lib_tensor *bad;
    int64_t bad_at;
    struct { // cache of nebula_info's digests, each with the state for which it was computed
        struct kern_digest d;
        bool known, finished;
        uint32_t version, round;
        uint64_t reads; // for a job without exchange
    } digests[INTER_FRAGMENTS_MAX];
    // The time between two queries to the agent; the time after an unanswered query from which on
    // no commit is expected.
    neb_ns ask_after, silent_after;
    struct lib_late { // steps whose figures are not known yet, the oldest first
        int64_t step;
        uint64_t tokens; // of all steps up to it, unless they come later as well
        double seconds;
        struct nebula_step_stats stats;
    } late[LIB_LATE_MAX];
    int n_late;
    neb_ns pinged;   // when the other ranks last heard that rank 0 waits
    neb_ns step_end; // end of the last call: the time since then is the trainer's
};

// libnebula.c: these return a status for the caller and set the text of nebula_last_error.
int lib_fail(enum nebula_status s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int lib_usable(const struct nebula *n, const char *call);
int lib_pass(enum neb_status st); // takes the text from the newest log line
#define LIB_TRY(expr)                                                                              \
    do {                                                                                           \
        enum neb_status lib_try_status_ = (expr);                                                  \
        if (lib_try_status_ != NEB_OK)                                                             \
            return lib_pass(lib_try_status_);                                                      \
    } while (0)

// During a call, numbers in text have a decimal point, as in jobs and settings, whatever the
// program's locale is. Affects this thread only. GNU C (cleanup), because calls return in many
// places.
#define LIB_POINT                                                                                  \
    __attribute__((cleanup(lib_locale_back), unused)) locale_t lib_locale_was = lib_locale_c()
locale_t lib_locale_c(void);
void lib_locale_back(const locale_t *was);

// attach.c
void lib_destroy(struct nebula *n);
// The agent was restarted: hands its new keys to the other ranks, which then connect to it once
// more. Collective.
NEB_MUST_CHECK enum neb_status lib_hand_keys(struct nebula *n);

// tensors.c
// NULL: none is declared with this name.
struct lib_tensor *lib_tensor_find(const struct nebula *n, const char *name);
// The exchanged tensors, n->tensors: compares the declared ones between ranks, finds their groups
// and what each rank holds. Collective.
NEB_MUST_CHECK enum neb_status lib_tensors_settle(struct nebula *n);
void lib_tensors_destroy(struct nebula *n);

// start.c
// Creates n->x.trainer over n->tensors. Collective.
NEB_MUST_CHECK enum neb_status lib_trainer_create(struct nebula *n);
// Where one fp32 piece of this rank has the whole unit without gaps; NULL: nowhere.
float *lib_in_place(const struct nebula *n, int32_t unit, int place);
void lib_trainer_destroy(struct nebula *n);
// Sends the list of tensors to the agent, which compares it with those of the other clusters.
NEB_MUST_CHECK enum neb_status lib_manifest_send(struct nebula *n);
// Puts the initial values of a built-in model into units on their owners, and into the loop's
// tensors. Collective.
NEB_MUST_CHECK enum neb_status lib_draw(struct nebula *n, const struct agent_move *moves,
                                        int32_t count);

// moves.c: collective; one status for all ranks.
NEB_MUST_CHECK enum neb_status lib_read(struct nebula *n, const struct agent_move *moves,
                                        int32_t count);
NEB_MUST_CHECK enum neb_status lib_write(struct nebula *n, const struct agent_move *moves,
                                         int32_t count);
// Digests of the frozen tensors. Those that are not registered as a whole are left out: n_frozen
// becomes smaller.
NEB_MUST_CHECK enum neb_status lib_digest_frozen(struct nebula *n);
// Sets n->values, if the loop may already have the first parameters of the job.
NEB_MUST_CHECK enum neb_status lib_digest_values(struct nebula *n);
uint64_t lib_held(void *user, int32_t unit, int rank);
// The owner of a unit; without an exchange the rank that holds most of it.
int lib_owner(const struct nebula *n, int32_t unit);
// The move of a unit to or from its owner, where it has its own memory or n->room.
struct agent_move lib_move(const struct nebula *n, int32_t unit);

// device.c
// Call it when memory of a device is registered: opens the device. NEB_ERR_UNSUPPORTED: this build
// has no kernels, or there is no driver; NEB_ERR_INVALID: not a device's memory, or another one's.
NEB_MUST_CHECK enum neb_status lib_device_take(struct nebula *n, const char *name,
                                               const void *data);
// After lib_trainer_create has made the units: decides whether the exchange may run on the devices.
// Collective.
NEB_MUST_CHECK enum neb_status lib_device_prepare(struct nebula *n);
void lib_device_destroy(struct nebula *n);
// Around each call that uses the device: makes it the thread's.
void lib_device_enter(struct nebula *n);
void lib_device_leave(struct nebula *n);
// True if a piece of the tensor is on the device.
bool lib_device_has(const struct lib_tensor *t);
// This rank's elements of a unit that are on the device, to or from the unit's image on the host.
// A read leaves other elements of the image undefined, and waits.
NEB_MUST_CHECK enum neb_status lib_device_read(struct nebula *n, int32_t unit, float *image);
NEB_MUST_CHECK enum neb_status lib_device_write(struct nebula *n, int32_t unit, const float *image);
// Reads elements of a tensor that has no units to n->device->image; count: at most a unit.
NEB_MUST_CHECK enum neb_status lib_device_look(struct nebula *n, const struct lib_tensor *t,
                                               int64_t first, uint64_t count);
// Moves n->shadow of a unit back to the host, where all but fetch and store use it.
NEB_MUST_CHECK enum neb_status lib_device_shadow_here(struct nebula *n, int32_t unit);
// The calls of struct agent_trainer_ops.
float *lib_device_there(void *user, int32_t unit);
bool lib_device_alone(void *user, int32_t unit, bool write);
NEB_MUST_CHECK enum neb_status lib_device_fetch(void *user, int32_t unit, float *to);
NEB_MUST_CHECK enum neb_status lib_device_store(void *user, int32_t unit, float *from);
void lib_device_joint(void *user, bool begin);

// trainer.c
extern const struct agent_trainer_ops lib_trainer_ops;
// Counters of all ranks. out: on rank 0.
NEB_MUST_CHECK enum neb_status lib_sum_counts(struct nebula *n, uint64_t *out);
// Brings all units to rank 0, one after the other. x: until the next call.
typedef void lib_gathered(void *user, int32_t unit, const float *x);
NEB_MUST_CHECK enum neb_status lib_gather(struct nebula *n, lib_gathered *each, void *user);
NEB_MUST_CHECK enum neb_status lib_trainer_write_model(struct nebula *n);
// Without an exchange: the digest of all parameters.
NEB_MUST_CHECK enum neb_status lib_own_digest(struct nebula *n, struct kern_digest *out);

// follow.c
enum lib_call { // after those of the exchange (shards_state.h)
    LIB_IDLE = 1000,
    LIB_COUNTS,
    LIB_SAVE,
    LIB_RESTORE,
    LIB_HOOK,
    LIB_DIGEST,
    LIB_GATHER,
    LIB_BRING,
    LIB_KEYS,
    LIB_END
};
NEB_MUST_CHECK enum neb_status lib_call(struct nebula *n, enum lib_call call);
// Calls the wait hook. On rank 0 it also calls those of the other ranks, from time to time.
NEB_MUST_CHECK enum neb_status lib_idle(struct nebula *n);
NEB_MUST_CHECK enum neb_status lib_hook(struct nebula *n); // the checkpoint hook of all ranks
// Begins a call of libnebula.h on all ranks. Fails on all of them if they make different calls.
int lib_enter(struct nebula *n, const char *call);
// Ends it with rank 0's status, text, state and step. The other ranks serve rank 0 until then; s is
// not used there.
int lib_leave(struct nebula *n, int s);

// save.c: collective; out and c are NULL on ranks other than 0.
NEB_MUST_CHECK enum neb_status lib_save_all(struct nebula *n, struct intra_ckpt_writer *out);
NEB_MUST_CHECK enum neb_status lib_restore_all(struct nebula *n, const struct intra_ckpt *c);

// keep.c
NEB_MUST_CHECK enum neb_status lib_bring_here(struct nebula *n); // collective
// Rank 0: prepares the start from a state that the loop has set, if it has.
NEB_MUST_CHECK enum neb_status lib_rest_load(struct nebula *n);

// figures.c: rank 0
// Counts a step and its figures, or notes them as late.
NEB_MUST_CHECK enum neb_status lib_count_step(struct nebula *n, const struct nebula_step_stats *s);
void lib_send_eval(struct agent_exchange *x, int64_t step, double loss);
// Takes the figures of late steps from the hook: with `wait` all of them.
NEB_MUST_CHECK enum neb_status lib_late_figures(struct nebula *n, bool wait);
// The call `tokens` of struct agent_trainer_ops: takes them until no tokens are missing.
NEB_MUST_CHECK enum neb_status lib_late_tokens(void *user);

// exchange.c
// On every rank: tensors and trainer. On rank 0: the exchange over them, then all that follows.
NEB_MUST_CHECK enum neb_status lib_prepare(struct nebula *n);
NEB_MUST_CHECK enum neb_status lib_create(struct nebula *n);
NEB_MUST_CHECK enum neb_status lib_begin(struct nebula *n);
// Does all that is due before the next step; sets n->state.
NEB_MUST_CHECK enum neb_status lib_settle(struct nebula *n);
// Writes a checkpoint and calls the trainers' checkpoint hooks.
NEB_MUST_CHECK enum neb_status lib_save_now(struct nebula *n);

#endif
