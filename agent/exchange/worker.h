// SPDX-License-Identifier: Apache-2.0
// A worker: it trains the replica of its cluster and exchanges updates with the other clusters
// through its agent.
//
// agent/exchange/
//     worker_link.c      messages from and to the agent; acts on the decisions of schedule.h
//     worker_sync.c      fragments: encode and submit, commits, merges
//     worker_plan.c      what commit records plan for the next sends
//     worker_masked.c    keys and seeds of masked sums (profile `private`)
//     worker_outer.c     the state of the exchange on one rank
//     worker_mesh.c      the same state divided over several ranks
//     worker_ckpt.c      the contents of checkpoints, and how to continue from one
//     worker_save.c      writes checkpoints while training continues
//     worker_text.c      checks that the corpus still holds the text that a checkpoint counts
//     worker_snapshot.c  how to continue from the state of other members
// agent/train/
//     worker.c           the loop of the built-in trainer: data, steps
//     worker_eval.c      its held-out loss
//     worker_device.c    whether it trains on a device or on processors
//     worker_side.c      a side of modes rtd and distill: streams, checkpoints
//     worker_stream.c    its end of a stream
//
// libnebula (libnebula.h) contains the files of agent/exchange/ except worker_mesh.c and
// worker_text.c, so an attached trainer computes the same bits as the built-in one. What differs is
// behind struct worker_ops.
//
// Bit-identical resume: a checkpoint is taken between two inner steps. It holds parameters,
// optimiser, data cursor, the digest of the text, outer state, and updates in flight with their
// bytes. The merge log is a file next to it. A restarted worker computes the same steps, submits
// the same bytes, and merges at the logged steps.
#ifndef AGENT_WORKER_H
#define AGENT_WORKER_H
#include "agent/exchange/schedule.h"
#include "agent/job/config.h"
#include "agent/job/tune.h"
#include "agent/proc/credential.h"
#include "agent/proc/ipc.h"
#include "inter/outer/outer.h"
#include "intra/ckpt/checkpoint_array.h"
#include "intra/ckpt/checkpoint_async.h"
#include "intra/data/data.h"
#include "intra/train/group.h"

enum { WORKER_ROUND_WORDS = 4, WORKER_COUNTS = 4, WORKER_GENERATIONS_MAX = 16 };

struct agent_flight {    // a fragment's update in flight, or its commit that waits for the merge
    struct neb_buf blob; // encoded bytes, as submitted
    uint64_t tokens;     // learned from since the last committed send
    uint64_t tokens_at_send; // all tokens at the send: the next base, once committed
    uint32_t steps, missed;
    uint8_t codec;            // enum inter_codec_level
    float error;              // measured error of the encoding; 0: not measured
    double encode_s, stall_s; // time to encode it; time spent waiting for its commit
    uint32_t retries;         // how often a newer update replaced this round's
    neb_ns sent_at, arrived_at;
    // the commit
    uint32_t n;
    struct inter_outer_part parts[INTER_PARTS_MAX];
    struct sec_sum_seeds seeds; // of a masked sum
    struct neb_buf bytes;       // of all parts
    float eta, mu;
    bool here;     // the commit of the fragment's round has arrived
    bool rejected; // the gate rejected this cluster's update
    bool unread;   // masked: too few clusters trained, so the sum is not read
    bool merge, all_final, mine;
    bool former;     // it contains an update of this cluster's previous incarnation
    bool taken_over; // worker_take_over merges it now
    bool planned;    // it has a plan for this cluster, for the round after the next
    struct inter_plan plan;
    int64_t cursor; // this cluster's steps that the commits contain, including this one
    bool at_cursor; // tokens_at_send and the sent counts are those at step `cursor`
};

struct worker_counts { // tokens seen of each row, at a fragment's sends
    uint64_t *all; // (WORKER_COUNTS, V) owned: the four arrays below, in the order of checkpoints
    uint64_t *in_base, *out_base; // (V) inputs and targets at the last committed send
    uint64_t *in_sent, *out_sent; // (V) at the last send
};

// State of a fragment, besides its round (agent_fragment) and its update in flight (agent_flight).
struct worker_fragment {
    struct inter_plan plans[2]; // for its next send, and for the one after it
    int64_t counted_miss;       // the last step at which a miss was counted; -1: none
    uint64_t tokens_base;       // all tokens at its last committed send
    int64_t steps_base;         // all steps at its last committed send
    struct worker_counts counts;
    struct kern_digest last_digest; // computed by the last merge
    uint32_t suspect; // checkpoints of this round and later are not trusted; 0: all are
};

struct agent_merge { // one line of the merge log
    uint32_t fragment, round;
    int64_t step;
    bool foreign; // this cluster had no update in flight: others continued without it
};

struct agent_worker;
struct worker_ops { // the trainer below the exchange
    // Copy tensors of `model` with wanted[index] (NULL: all) from and to where they are trained.
    // NULL: they are trained in place.
    enum neb_status (*pull)(struct agent_worker *w, const bool *wanted);
    enum neb_status (*push)(struct agent_worker *w, const bool *wanted);
    // The trainer's part of a checkpoint: parameters, token counts, optimiser, data cursors.
    enum neb_status (*save)(struct agent_worker *w, struct intra_ckpt_writer *out);
    enum neb_status (*restore)(struct agent_worker *w, const struct intra_ckpt *c);
    // Moves data and schedule past n steps that are committed but not made by this process.
    enum neb_status (*skip)(struct agent_worker *w, int64_t n);
    // Called when the exchange has changed tensors where they are trained. NULL: it never does.
    enum neb_status (*changed)(struct agent_worker *w, const bool *wanted);
    // Called when the last checkpoint is on disk. NULL: nothing depends on that except updates.
    enum neb_status (*durable)(struct agent_worker *w);
    // Called before each wait (up to 200 ms) for the agent or for other clusters. NULL: nothing to
    // do.
    enum neb_status (*idle)(struct agent_worker *w);
};

// Replaces the calls of inter_outer when the state is divided over the ranks of a mesh
// (worker_mesh.c; agent/exchange/shards.h).
struct worker_mesh_ops {
    enum neb_status (*create)(struct agent_worker *w, const struct inter_outer_config *c);
    void (*destroy)(struct agent_worker *w);
    enum neb_status (*encode)(struct agent_worker *w, int32_t f, const struct cmp_codec *codec,
                              inter_outer_counts *counts, void *user);
    enum neb_status (*merge)(struct agent_worker *w, int32_t f, bool reject,
                             const struct inter_outer_round *r);
    enum neb_status (*digest)(const struct agent_worker *w, int32_t f, struct kern_digest *d);
    uint64_t (*shape)(const struct agent_worker *w, int32_t f, uint8_t sha256[32]);
    enum neb_status (*restore)(struct agent_worker *w, struct intra_ckpt_array *const *arrays);
    enum neb_status (*adopt)(struct agent_worker *w, int32_t f, uint32_t version,
                             const struct neb_file *file, uint64_t at, uint64_t n);
    enum neb_status (*save_model)(struct agent_worker *w, struct intra_ckpt_writer *out);
    // Moves the state to the devices of the ranks; with must it is an error if it does not fit.
    enum neb_status (*place)(struct agent_worker *w, bool must);
};
extern const struct worker_mesh_ops worker_mesh;

struct agent_shards;
struct agent_worker {
    struct worker_ops ops;
    const struct worker_mesh_ops *mesh; // NULL: this process has all of the exchange
    // Handles events of modes other than replicas (worker_side.c) before this code does. *taken:
    // the event was one of them. NULL: there are none.
    enum neb_status (*on_event)(struct agent_worker *w, const struct agent_ipc_msg *m, bool *taken);
    void *side;                  // argument of on_event
    struct distill_run *distill; // of a student that takes part in rounds
    void *foreign; // argument of an attached trainer's ops; NULL: the built-in trainer
    struct agent_job job;
    int cluster; // index of this cluster
    bool federated;
    char dir[NEB_PATH_MAX]; // folder of the job: checkpoints, merge log, final model
    struct kern *K;
    struct kern *device; // NULL: it trains on processors
    enum kern_type device_type;
    char no_device[KERN_WHY_MAX + 64]; // with device: auto, why there is no device
    bool device_gone;                  // the job trained on a device before, which is missing now
    struct intra_corpus *corpus;
    int n_samplers; // 1, or one per cluster in the synchronous reference
    struct intra_sampler *samplers[AGENT_CLUSTERS_MAX];
    struct intra_comm *world; // borrowed; NULL: one rank
    int threads;              // per rank
    struct intra_group *group;
    struct intra_trainer *trainer; // the group's
    // The group's full model: the trainer's own with one rank. With more, the layout; its
    // parameters are valid only between a pull and a release.
    struct intra_model *model;
    int32_t *tokens, *targets;
    // exchange
    struct inter_outer *outer;   // with a mesh: rank 0's part of it
    struct agent_shards *shards; // with a mesh
    uint64_t masked_sent; // how many updates this cluster has masked: each is summed at most once
    struct sec_sum *sum;  // profile `private`: masks updates; else NULL
    struct intra_unit *units;
    int32_t n_units;
    int32_t *fragment;                          // (n_units)
    bool *wanted;                               // (tensors) scratch
    uint64_t fragment_elements, fragment_units; // of the largest fragment
    struct cmp_codec codec, merge_codec;        // from the job's configuration
    double step_s;                              // moving average of the time of a step
    uint8_t left_out;                           // planned: of every INTER_STEPS_CYCLE steps
    int64_t steps_left_out;                     // total so far
    int64_t said_step;                          // step of the newest metrics line
    struct agent_schedule schedule;
    struct agent_fragment frags[INTER_FRAGMENTS_MAX];
    struct agent_flight flight[INTER_FRAGMENTS_MAX];
    struct worker_fragment kept[INTER_FRAGMENTS_MAX];
    uint64_t **unit_counts; // per unit with row weights: (rows) counts to send, scratch
    // Rounds at the newest checkpoints, as a ring: the agent keeps the updates that the oldest
    // checkpoint on disk may need.
    uint32_t saved_rounds[WORKER_GENERATIONS_MAX][INTER_FRAGMENTS_MAX];
    int64_t saved_step; // step of the newest checkpoint; -1: this process wrote none
    int n_saved;
    struct intra_ckpt_async *saver; // writes them while training continues; NULL: training waits
    uint64_t save_reserve;          // bytes by which the trainer's part of a checkpoint may grow
    struct {                        // the checkpoint that is being written
        int64_t step;
        uint32_t rounds[INTER_FRAGMENTS_MAX];
        double wait_s; // time spent waiting for the previous checkpoint
    } saving;
    uint64_t taken; // bit per fragment in which DIR/snapshot.bin is ahead, set by the agent
    // The disk was lost and the agent catches up: commits are merged as they come, without
    // training.
    bool lost;
    bool restored; // from a checkpoint or a snapshot
    // Checkpoints existed at the attach; therefore init_from is not read.
    bool had_checkpoint, skips_init;
    bool adopts;       // `lost` was true in this process
    uint32_t attempts; // first attempt number of the agent's present ledger
    // A previous incarnation, whose state was lost with its disk, sent the updates with attempts
    // below this one. 0: there was none.
    uint32_t incarnation;
    int64_t lost_steps;      // steps that this cluster skipped, or made and lost
    struct agent_merge *log; // of the run that is repeated, if any
    size_t n_log;
    FILE *log_file;
    // state
    int64_t step;
    uint64_t all_tokens;
    double loss_first, loss_last;
    uint32_t idle_steps; // steps in a row whose updates were skipped (intra_optim_update)
    double train_s, stall_s, sync_s;
    uint32_t left_out_rounds; // rounds in a row with all links up
    double stall_told;        // part of stall_s that metrics lines have reported
    struct worker_sums {      // over all steps of this process, finite values only
        double loss, grad_norm;
        int64_t losses, norms, steps;
    } sums;
    // totals over all submitted updates: for bits per parameter
    uint64_t payload_bytes, payload_params;
    uint32_t rounds;
    int alive;     // reachable other members
    int others;    // other members that are not revoked
    bool expected; // enough of them are reachable for a commit
    bool stop;
    bool reattach;        // attached trainer: the agent has another state for it
    const char *isa;      // instruction set that trains; part of the build note of checkpoints
    const char *products; // how processors compute products, if not in fp32; static
    // agent
    neb_ns heartbeat_at; // time and content of the last heartbeat
    double heartbeat_allow_s;
    bool heartbeat_step; // the last heartbeat was at the start of a step
    bool stepped;        // this process has made a step, so step_s is known
    // Attached trainer: when it last queried the agent; since when the agent owes an answer (0: it
    // does not).
    neb_ns asked, unanswered;
    bool orphan;   // the agent was restarted and does not know this worker
    bool returned; // the agent knows it again
    struct agent_ipc *ipc;
    void *zctx;
    struct agent_credential *credential; // owned
    struct sec_vault *vault; // of the job: seals its checkpoints; NULL: they are not sealed
};
static inline const struct neb_vault *worker_vault(const struct agent_worker *w) {
    return sec_vault_of(w->vault);
}

// Runs the built-in trainer. world: the ranks of this worker, which wait in intra_group_serve;
// NULL: one rank, with the threads that the job sets. threads: of each rank (0: all processors).
NEB_MUST_CHECK enum neb_status agent_worker_run(const char *socket_path, const char *job,
                                                struct intra_comm *world, int threads);

// worker_link.c
// The checkpoint in `dir` to continue from (intra_ckpt_take_latest_in). NEB_ERR_AGAIN: all were
// damaged, and this process has skipped init_from: a new process has to read it.
NEB_MUST_CHECK enum neb_status worker_newest(struct agent_worker *w, const char *dir,
                                             struct intra_ckpt **out);
// Attaches to the agent: sets job, cluster, dir, vault. socket_path and job are as the agent passes
// them. NEB_ERR_AGAIN: the agent of a built-in worker does not answer (on its own host for half an
// hour, else for 10 s). NEB_ERR_TIMEOUT: that of an attached trainer does not, for 10 s.
NEB_MUST_CHECK enum neb_status worker_attach(struct agent_worker *w, const char *socket_path,
                                             const char *job);
// Sends the attach request again; the answer arrives like any message.
NEB_MUST_CHECK enum neb_status worker_hello(struct agent_worker *w, const char *job);
// handles all messages that have arrived
NEB_MUST_CHECK enum neb_status worker_drain(struct agent_worker *w);
NEB_MUST_CHECK enum neb_status worker_wait(struct agent_worker *w); // up to 200 ms; counts as stall
// Sends the agent the time after which silence means that this worker hangs (a stopped rank, a dead
// node). Before a step: WORKER_HANG_STEPS times the duration of a step, at least hang_after_s.
// Before anything else, and before the first step: at least WORKER_HANG_OTHER x hang_after_s, or
// WORKER_HANG_STEPS times the duration of `steps` steps.
enum { WORKER_HANG_STEPS = 20, WORKER_HANG_OTHER = 30 };
void worker_heartbeat(struct agent_worker *w, bool step, double steps);
// From now on, what moves bytes in this thread (agent/base/moved.h) counts as work, for the agent
// and for the other ranks: outside of steps, nothing hangs as long as bytes move. NULL: ends this.
void worker_report_moves(struct agent_worker *w);
// Does all that is due between two steps. *ready: the next step may begin.
NEB_MUST_CHECK enum neb_status worker_exchange(struct agent_worker *w, bool *ready);
// At the start: waits up to 15 s until all other clusters are connected or the job stops.
NEB_MUST_CHECK enum neb_status worker_wait_for_peers(struct agent_worker *w);
// All steps are made; with rounds: the last one of every fragment is merged.
bool worker_finished(const struct agent_worker *w);
NEB_MUST_CHECK enum neb_status worker_params_digest(const struct agent_worker *w, char hex[33]);
void worker_metrics(struct agent_worker *w, json_t *line); // takes ownership of line
// Call it after each step. Reports a fault when many steps in a row had gradients that are not
// finite, and so changed nothing: the loss alone does not show this.
void worker_check_step(struct agent_worker *w, const struct intra_step_stats *s);
// Call it after each step of an attached trainer; worker_check_step does it for the built-in ones.
void worker_add_sums(struct agent_worker *w, double loss, double grad_norm);
// Sends a metrics line. loss, lr and grad_norm are null in it if they are NAN.
void worker_send_step(struct agent_worker *w, const struct intra_step_stats *s,
                      double tokens_per_s);
// Sends a metrics line; by_source is borrowed.
void worker_send_eval(struct agent_worker *w, double loss, json_t *by_source);
// The worker's part of the summary: counters, losses and model. eval_loss NAN: not measured. *out
// may become NULL if memory is short; worker_report then fails.
NEB_MUST_CHECK enum neb_status worker_results(const struct agent_worker *w, const char *device,
                                              double eval_loss, bool done, json_t **out);
// The worker's last message: results, and what its mode adds (may be NULL). Takes ownership of
// both.
NEB_MUST_CHECK enum neb_status worker_report(struct agent_worker *w, json_t *results, json_t *more);

// worker_sync.c
NEB_MUST_CHECK enum neb_status worker_sync_create(struct agent_worker *w);
void worker_sync_destroy(struct agent_worker *w);
// Encodes fragment f and submits it to the agent. If it is in flight, the new update replaces the
// old one and adds what was learned since.
NEB_MUST_CHECK enum neb_status worker_send(struct agent_worker *w, int32_t f);
// Submits the bytes of an update in flight once more.
NEB_MUST_CHECK enum neb_status worker_resubmit(struct agent_worker *w, int32_t f);
// Keeps a commit until its merge step. NEB_ERR_FORMAT: the agent's message is malformed.
NEB_MUST_CHECK enum neb_status worker_take_commit(struct agent_worker *w,
                                                  const struct agent_ipc_msg *m);
// Logs the step, applies the commit that has arrived, rebases. Its record plans the next send.
NEB_MUST_CHECK enum neb_status worker_merge(struct agent_worker *w, int32_t f);
// Merges a commit that contains an update of this cluster's previous incarnation, whose state was
// lost with its disk. Drops what this incarnation learned in the fragment, since the update
// contains those steps; the data continues after the last of them.
NEB_MUST_CHECK enum neb_status worker_take_over(struct agent_worker *w, int32_t f);
// Call it before anything else between two steps. If a repeated run had sent more than this one, it
// notes the counters at the step where the committed work ends.
void worker_at_cursor(struct agent_worker *w, int32_t f);
// The fragment's next update counts tokens and rows from this step on.
void worker_count_from_here(struct agent_worker *w, int32_t f);
// Asks the agent for the commit of the fragment's round, if there is one.
NEB_MUST_CHECK enum neb_status worker_request_commit(struct agent_worker *w, int32_t f);

// Sends the shape of this job's updates: {"op": "shape", "elements", "fragments": [{"elements",
// "sha"}]}.
NEB_MUST_CHECK enum neb_status worker_send_shape(struct agent_worker *w);

// worker_outer.c: the state of the exchange, on one rank or divided over the ranks of a mesh
NEB_MUST_CHECK enum neb_status worker_outer_create(struct agent_worker *w,
                                                   const struct inter_outer_config *c,
                                                   const struct inter_outer_unit *units);
void worker_outer_destroy(struct agent_worker *w);
// Encodes fragment f into the blob of its flight; with sync.tune: auto also measures the error.
NEB_MUST_CHECK enum neb_status worker_outer_encode(struct agent_worker *w, int32_t f,
                                                   const struct cmp_codec *codec,
                                                   inter_outer_counts *counts, void *user);
// Applies the commit of fragment f, or counts a round without updates. reject: first drops the
// update in flight.
NEB_MUST_CHECK enum neb_status worker_outer_merge(struct agent_worker *w, int32_t f, bool reject,
                                                  const struct inter_outer_round *r);
// f -1: over all fragments.
NEB_MUST_CHECK enum neb_status worker_outer_digest(const struct agent_worker *w, int32_t f,
                                                   struct kern_digest *d);
uint64_t worker_outer_shape(const struct agent_worker *w, int32_t f, uint8_t sha256[32]);
// To and from checkpoints. The ranks of a mesh add their parts themselves
// (agent/exchange/shards.h).
NEB_MUST_CHECK enum neb_status worker_outer_save(struct agent_worker *w,
                                                 struct intra_ckpt_writer *out);
NEB_MUST_CHECK enum neb_status worker_outer_restore(struct agent_worker *w,
                                                    const struct intra_ckpt *c);
// Reads θ and v of fragment f from a snapshot of n parameters. at: file offset of θ; v follows it.
NEB_MUST_CHECK enum neb_status worker_outer_adopt(struct agent_worker *w, int32_t f,
                                                  uint32_t version, const struct neb_file *file,
                                                  uint64_t at, uint64_t n);
// Passes adopted parameters on to where they are trained.
NEB_MUST_CHECK enum neb_status worker_outer_adopted(struct agent_worker *w);

// worker_masked.c: the profile `private`
// keys: one key per cluster, as agent_sums_keys lays them out.
NEB_MUST_CHECK enum neb_status worker_masked_keys(struct agent_worker *w, const void *keys,
                                                  size_t len);
NEB_MUST_CHECK enum neb_status worker_masked_seeds(const struct agent_worker *w,
                                                   struct agent_flight *t, const json_t *text);
void worker_masked_config(const struct agent_worker *w, struct inter_outer_config *c);

// worker_device.c
// Opens what the cluster's `device` and `precision` ask for: sets w->device and w->device_type.
// NEB_ERR_UNSUPPORTED, with a hint: `cuda` is not available. NEB_ERR_IO, and w->device_gone: the
// job trained on a device before (worker_device_had), so processors are no substitute.
NEB_MUST_CHECK enum neb_status worker_device_open(struct agent_worker *w);
bool worker_device_had(const struct agent_worker *w);
bool worker_device_optional(const struct agent_worker *w); // processors are a substitute
// st: the result of intra_group_create. Returns it, or the error of worker_device_open if the
// device that the job had before cannot be joined.
NEB_MUST_CHECK enum neb_status worker_device_joined(struct agent_worker *w, enum neb_status st);
// Call it once there is a group: gives the device back if other ranks have none, and reports where
// the worker trains.
void worker_device_settle(struct agent_worker *w);
// The last part of worker_device_settle, which is all that a side of rtd and distill needs: stores
// and reports the device.
void worker_device_report(struct agent_worker *w);
// Sends a metrics note with `device`: where the worker trains, and with device: auto why.
void worker_send_device(struct agent_worker *w);
// Moves the exchange to the device if the cluster's `outer_state` asks for it; no effect on
// processors.
NEB_MUST_CHECK enum neb_status worker_device_place(struct agent_worker *w);
// Reports how products are computed, if the cluster asks for bf16 on processors.
void worker_device_products(struct agent_worker *w);
bool worker_in_bf16(const struct agent_worker *w);           // products on processors
const char *worker_processors(const struct agent_worker *w); // "cpu" or "cpu, bf16"
// "cuda (NVIDIA …, bf16)", "cpu" or "cpu, bf16"
void worker_device_name(const struct agent_worker *w, char *out, size_t cap);

// worker_eval.c
// Mean held-out loss over all sources of the corpus, each with the same number of windows
// (eval.windows); by_source receives {source: loss}. NAN if nothing is held out.
NEB_MUST_CHECK enum neb_status worker_evaluate(struct agent_worker *w, double *loss,
                                               json_t *by_source);
// Evaluates every eval.every_steps steps and sends a metrics line.
NEB_MUST_CHECK enum neb_status worker_eval_when_due(struct agent_worker *w);

// worker_plan.c: what the records plan for this cluster
void worker_plan_start(struct agent_worker *w);
// Fragment f was adopted from a snapshot whose newest record is `last`.
void worker_plan_taken(struct agent_worker *w, int32_t f, const struct inter_record *last);
// The codec for the next send of fragment f. merge: a merge round, in which a 4-bit or sparse codec
// is replaced by a finer one.
NEB_MUST_CHECK enum neb_status worker_plan_codec(struct agent_worker *w, int32_t f, bool merge,
                                                 struct cmp_codec *out);
void worker_plan_sent(struct agent_worker *w, int32_t f);
void worker_plan_merged(struct agent_worker *w, int32_t f);
// True if a slow cluster leaves out the next step: it is counted in step and steps_left_out, but
// not made.
bool worker_leaves_out(const struct agent_worker *w);
// Every trainer calls it after each step; without it nothing is planned.
void worker_step_took(struct agent_worker *w, double seconds);
json_t *worker_plan_measure(const struct agent_worker *w, int32_t f); // for the manifest

// worker_save.c
// Reserves memory for one more copy of what a checkpoint holds. Without that memory training waits
// while a checkpoint is written, and a warning is logged.
NEB_MUST_CHECK enum neb_status worker_save_start(struct agent_worker *w);
// Begins a checkpoint of this step and returns once its state is copied. If the previous checkpoint
// is still being written, it waits for that and counts the time as stall.
NEB_MUST_CHECK enum neb_status worker_save(struct agent_worker *w);
// The same, with another number than the step's.
NEB_MUST_CHECK enum neb_status worker_save_at(struct agent_worker *w, int64_t at);
// Call it between steps: reports to the agent which checkpoint has become durable. It returns an
// error of the writer, as does the next save.
NEB_MUST_CHECK enum neb_status worker_saved(struct agent_worker *w);
// Waits until all checkpoints are durable and reported.
NEB_MUST_CHECK enum neb_status worker_save_wait(struct agent_worker *w);

// worker_ckpt.c
NEB_MUST_CHECK enum neb_status worker_write_checkpoint(struct agent_worker *w,
                                                       struct intra_ckpt_writer *out);
// Continues from a checkpoint or snapshot. NEB_ERR_NOT_FOUND (not logged): there is none.
NEB_MUST_CHECK enum neb_status worker_restore(struct agent_worker *w);
// Advances by n steps that are committed, or made by a lost disk: data and schedules move past
// them.
NEB_MUST_CHECK enum neb_status worker_skip_steps(struct agent_worker *w, int64_t n);
// Adopts the fragments in which DIR/snapshot.bin is ahead, and writes a checkpoint of the result;
// does nothing without such a file. NEB_ERR_AGAIN: its contents were wrong or not finite, and it is
// removed; a new process has to start without it.
NEB_MUST_CHECK enum neb_status worker_adopt_snapshot(struct agent_worker *w, bool has_checkpoint);
// Tokens and row counts of the fragment start at this step.
void worker_begin_counts(struct agent_worker *w, int32_t f);
// Sets what the agent reports: whether it catches up after the loss of its disk.
void worker_set_lost(struct agent_worker *w, bool lost);
// Writes the global parameters, for evaluation and export, to DIR/model.ckpt.
NEB_MUST_CHECK enum neb_status worker_save_model(struct agent_worker *w);
// Writes a model of the worker as DIR/NAME. m NULL: the model that the ranks of a mesh train.
NEB_MUST_CHECK enum neb_status worker_write_model(struct agent_worker *w,
                                                  const struct intra_model *m, const char *name);
// Writes fragment, round and step to merges.log. They are on disk before the merge is used.
NEB_MUST_CHECK enum neb_status worker_log_merge(struct agent_worker *w, int32_t f);

// worker_text.c
// Save the digest of the text that a checkpoint's cursors count; and warn, also in the metrics, if
// the corpus holds other text now.
NEB_MUST_CHECK enum neb_status worker_text_save(const struct agent_worker *w,
                                                struct intra_ckpt_writer *out);
NEB_MUST_CHECK enum neb_status worker_text_compare(struct agent_worker *w,
                                                   const struct intra_ckpt *c);

#endif
