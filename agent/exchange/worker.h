// SPDX-License-Identifier: Apache-2.0
// A worker: trains its cluster's replica, exchanges with the others through its agent.
//
//     worker.c           the loop of the built-in trainer: data, steps
//     worker_eval.c      its held-out loss
//     worker_device.c    whether it trains on a device or on processors
//     worker_link.c      messages from the agent, decisions of agent/schedule
//     worker_sync.c      fragments: encode and submit, commits, merges
//     worker_plan.c      what commit records plan for the next sends
//     worker_masked.c    keys and seeds of masked sums (profile `private`)
//     worker_outer.c     the exchange's state beneath them, worker_mesh.c spread over several ranks
//     worker_ckpt.c      what checkpoints hold, and how to go on from one
//     worker_text.c      whether their cursors count the text that the corpus holds
//     worker_save.c      when they are written: while training goes on
//     worker_snapshot.c  how to go on from what others had
//     worker_side.c      (worker_side.h) a side of modes rtd and distill: streams, checkpoints
//     worker_stream.c    (worker_stream.h) its end of a stream
//
// From worker_link.c to worker_snapshot.c, but for worker_mesh.c and worker_text.c, all also runs inside a foreign trainer, through libnebula
// (libnebula.h): one code, so that both compute the same bits. What differs is behind struct worker_ops.
//
// Bit-identical resume: a checkpoint is taken between two inner steps and holds parameters, optimiser, data cursor and the digest of
// the text that it counts, outer state, updates in flight (with their bytes) and the merge log; a restarted worker computes the same steps, submits the
// same bytes, and merges at the logged steps.
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

struct agent_flight {    // a fragment's update on its way, or its commit that waits to be merged
    struct neb_buf blob; // encoded bytes, as submitted
    uint64_t tokens;     // behind it
    uint64_t tokens_at_send; // all tokens so far at the send: the base once it is committed
    uint32_t steps, missed;
    uint8_t codec;            // enum inter_codec_level
    float error;              // of it, as measured; 0: not
    double encode_s, stall_s; // made it in; waited for its commit
    uint32_t retries;         // how often this round's update was taken back for a newer one
    neb_ns sent_at, arrived_at;
    // the commit
    uint32_t n;
    struct inter_outer_part parts[INTER_PARTS_MAX];
    struct sec_sum_seeds seeds; // of a masked sum
    struct neb_buf bytes;       // of all parts
    float eta, mu;
    bool here;     // a commit is here, of the round that the fragment is at
    bool rejected; // ours was, by the gate
    bool unread;   // masked: or because too few have trained
    bool merge, all_final, mine;
    bool former;     // it holds an update of this cluster's former life
    bool taken_over; // and with steps that this one has not made (worker_take_over)
    bool planned;    // the commit says what this cluster does from the round after the next
    struct inter_plan plan;
    int64_t cursor; // steps of this cluster that the commits up to this one hold
    bool at_cursor; // tokens_at_send and the counts of the send are of that step (worker_at_cursor)
};

struct worker_counts { // tokens seen of each row, by a fragment's sends
    uint64_t *all;     // (WORKER_COUNTS, V) owned: what follows, in the order of checkpoints
    uint64_t *in_base, *out_base; // (V) inputs and targets at its last committed send
    uint64_t *in_sent, *out_sent; // (V) at its last send
};

// Of a fragment, beside where its round is (agent_fragment) and what is on its way (agent_flight).
struct worker_fragment {
    struct inter_plan plans[2]; // for its next send, and for the one after it
    int64_t counted_miss;       // the last step at which a miss was counted; -1: none
    uint64_t tokens_base;       // all tokens at its last committed send
    int64_t steps_base;         // and all steps
    struct worker_counts counts;
    struct kern_digest last_digest; // that the last merge computed
    uint32_t suspect; // checkpoints from this round on are not to be trusted; 0: all are
};

struct agent_merge { // one line of the merge log
    uint32_t fragment, round;
    int64_t step;
    bool foreign; // nothing of ours was under way: others had gone on without us
};

struct agent_worker;
struct worker_ops { // the trainer beneath
    // Tensors of `model` with wanted[index] (NULL: all), from and to where they are trained. NULL: they are trained in place.
    enum neb_status (*pull)(struct agent_worker *w, const bool *wanted);
    enum neb_status (*push)(struct agent_worker *w, const bool *wanted);
    // What a checkpoint holds of the trainer: parameters, token counts, optimiser, data cursors.
    enum neb_status (*save)(struct agent_worker *w, struct intra_ckpt_writer *out);
    enum neb_status (*restore)(struct agent_worker *w, const struct intra_ckpt *c);
    // steps that a lost disk had made: data and schedule move on
    enum neb_status (*skip)(struct agent_worker *w, int64_t n);
    // The exchange has changed tensors where they are trained. NULL: it never does.
    enum neb_status (*changed)(struct agent_worker *w, const bool *wanted);
    // The checkpoint that was begun last is on disk. NULL: nothing depends on it but updates.
    enum neb_status (*durable)(struct agent_worker *w);
    // It waits for the agent or for other clusters, up to 200 ms after each call. NULL: nothing to do meanwhile.
    enum neb_status (*idle)(struct agent_worker *w);
};

// Where the exchange's state is spread over the ranks of a mesh (worker_mesh.c; agent/exchange/shards.h), in place of inter_outer's calls.
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
    // To the ranks' devices, which they have; must: or fails, where it does not fit.
    enum neb_status (*place)(struct agent_worker *w, bool must);
};
extern const struct worker_mesh_ops worker_mesh;

struct agent_shards;
struct agent_worker {
    struct worker_ops ops;
    const struct worker_mesh_ops *mesh; // NULL: this process has all of the exchange
    // Events of modes other than replicas (worker_side.c), asked first; *taken: it was one. NULL: none.
    enum neb_status (*on_event)(struct agent_worker *w, const struct agent_ipc_msg *m, bool *taken);
    void *side;                  // of on_event
    struct distill_run *distill; // of a student that takes part in rounds
    void *foreign;               // of a foreign trainer's ops; NULL: the built-in one
    struct agent_job job;
    int cluster; // index of this cluster
    bool federated;
    char dir[NEB_PATH_MAX]; // of the job: checkpoints, merge log, final model
    struct kern *K;
    struct kern_device *device; // NULL: it trains on the processors
    enum kern_type device_type;
    char no_device[KERN_WHY_MAX + 64]; // why, with device: auto
    bool device_gone;                  // the one that the job has trained on before is not there
    struct intra_corpus *corpus;
    int n_samplers; // 1, or one a cluster for the synchronous reference
    struct intra_sampler *samplers[AGENT_CLUSTERS_MAX];
    struct intra_comm *world; // borrowed; NULL: one rank
    int threads;              // of each of its ranks
    struct intra_group *group;
    struct intra_trainer *trainer; // the group's
    // the group's, of all parameters: the trainer's own with one rank; else the layout, with parameters only while they were pulled
    struct intra_model *model;
    int32_t *tokens, *targets;
    // exchange
    struct inter_outer *outer;   // of a mesh: rank 0's part of it
    struct agent_shards *shards; // of a mesh
    uint64_t masked_sent;        // updates that this cluster has masked: none is summed twice
    struct sec_sum *sum;         // profile `private`: what updates are masked with; NULL otherwise
    struct intra_unit *units;
    int32_t n_units;
    int32_t *fragment;                          // (n_units)
    bool *wanted;                               // (tensors) scratch
    uint64_t fragment_elements, fragment_units; // of the largest fragment
    struct cmp_codec codec, merge_codec;        // the job's
    double step_s;                              // of a step, lately
    uint8_t left_out;                           // of every INTER_STEPS_CYCLE steps, as planned
    int64_t steps_left_out;                     // so far
    int64_t said_step;                          // of the newest line of metrics
    struct agent_schedule schedule;
    struct agent_fragment frags[INTER_FRAGMENTS_MAX];
    struct agent_flight flight[INTER_FRAGMENTS_MAX];
    struct worker_fragment kept[INTER_FRAGMENTS_MAX];
    uint64_t **unit_counts; // per unit with row weights: (rows) counts to send, scratch
    // Rounds at the newest checkpoints, as a ring: updates are kept back to the oldest generation on disk.
    uint32_t saved_rounds[WORKER_GENERATIONS_MAX][INTER_FRAGMENTS_MAX];
    int64_t saved_step; // of the newest; -1: none by this process
    int n_saved;
    struct intra_ckpt_async *saver; // writes them while training goes on; NULL: training waits
    uint64_t save_reserve;          // bytes by which the trainer's part of a checkpoint may grow
    struct {                        // the one that is being written
        int64_t step;
        uint32_t rounds[INTER_FRAGMENTS_MAX];
        double wait_s; // for the one before
    } saving;
    uint64_t taken; // fragments that DIR/snapshot.bin is ahead in, bit each: the agent says so
    // the disk was, and the agent catches up: commits are merged as they come, without training
    bool lost;
    bool restored; // from a checkpoint or snapshot
    // There were checkpoints when it attached; and so init_from is not read.
    bool had_checkpoint, skips_init;
    bool adopts;       // that was so in this process
    uint32_t attempts; // first attempt of the agent's present ledger
    // updates of earlier attempts were sent by a life whose state went with its disk; 0: there was none
    uint32_t incarnation;
    int64_t lost_steps;      // not made, or made and lost, by this cluster
    struct agent_merge *log; // of the run that is being repeated, if any
    size_t n_log;
    FILE *log_file;
    // state
    int64_t step;
    uint64_t all_tokens;
    double loss_first, loss_last;
    uint32_t idle_steps; // in a row, whose updates were skipped (intra_optim_update())
    double train_s, stall_s, sync_s;
    uint32_t left_out_rounds; // in a row, with all links up
    double stall_told;        // of stall_s, on lines of metrics so far
    struct worker_sums {      // of all steps of this process, as far as they are numbers
        double loss, grad_norm;
        int64_t losses, norms, steps;
    } sums;
    uint64_t payload_bytes, payload_params; // of all submitted updates: for bits per parameter
    uint32_t rounds;
    int alive;     // other members that are heard
    int others;    // that could be: who was revoked is not waited for
    bool expected; // enough of them for a commit
    bool stop;
    bool reattach;        // attached trainer: the agent has another state for it
    const char *isa;      // of the arithmetic that trains, for checkpoints
    const char *products; // of processors, where they are not in fp32; static
    // agent
    neb_ns heartbeat_at; // what it was told last by worker_heartbeat, and when
    double heartbeat_allow_s;
    bool heartbeat_step; // a step was last begun, and nothing else since
    bool stepped;        // this process has made a step: it knows how long they take
    // of a foreign trainer: when the agent was last asked for a word; since when it owes one, 0: it has said something since
    neb_ns asked, unanswered;
    bool orphan;   // the agent does not know this worker (it was started anew)
    bool returned; // it does again
    struct agent_ipc *ipc;
    void *zctx;
    struct agent_credential *credential; // owned
    struct sec_vault *vault; // of the job: seals its checkpoints; NULL: they are in clear
};
static inline const struct neb_vault *worker_vault(const struct agent_worker *w) {
    return sec_vault_of(w->vault);
}

// world: the ranks of this worker, which wait in intra_group_serve, and the threads of each (0: all processors); NULL: one
// rank, with the threads that the job says.
NEB_MUST_CHECK enum neb_status agent_worker_run(const char *socket_path, const char *job,
                                                struct intra_comm *world, int threads);

// worker_link.c
// socket_path and job as the agent gives them. Fills job, cluster, dir. NEB_ERR_AGAIN: a built-in worker's agent does not answer (half an
// hour on its own host, as long as it is there; else 10 s); NEB_ERR_TIMEOUT: a foreign one's, for 10 s.
// The checkpoint in `dir` to go on from (intra_ckpt_take_latest_in). NEB_ERR_AGAIN: all were
// damaged, and this process has not read what the job begins from: another one does.
NEB_MUST_CHECK enum neb_status worker_newest(struct agent_worker *w, const char *dir,
                                             struct intra_ckpt **out);
NEB_MUST_CHECK enum neb_status worker_attach(struct agent_worker *w, const char *socket_path,
                                             const char *job);
// Asks the agent again to be attached; the answer comes as any message.
NEB_MUST_CHECK enum neb_status worker_hello(struct agent_worker *w, const char *job);
NEB_MUST_CHECK enum neb_status worker_drain(struct agent_worker *w); // takes what has come
NEB_MUST_CHECK enum neb_status worker_wait(struct agent_worker *w); // up to 200 ms; counts as stall
// Tells the agent for how long it may hear nothing until this worker hangs (a rank that stopped, a dead node): before a step twenty
// times what one takes, hang_after_s at least; before what is no step 30 x hang_after_s, or as long as 20 x `steps` steps take.
enum { WORKER_HANG_STEPS = 20, WORKER_HANG_OTHER = 30 };
void worker_heartbeat(struct agent_worker *w, bool step, double steps);
// From now on, and in this thread, whatever moves bytes (agent/base/moved.h) is work, to the agent and to the other ranks: as long as some move,
// nothing that is no step hangs. NULL: no more.
void worker_report_moves(struct agent_worker *w);
// All that is to be done between two steps. *ready: the next step may begin.
NEB_MUST_CHECK enum neb_status worker_exchange(struct agent_worker *w, bool *ready);
// Up to 15 s at the start, until all other clusters are connected or the job stops.
NEB_MUST_CHECK enum neb_status worker_wait_for_peers(struct agent_worker *w);
// All steps are made, and with rounds every fragment's last one is merged.
bool worker_finished(const struct agent_worker *w);
NEB_MUST_CHECK enum neb_status worker_params_digest(const struct agent_worker *w, char hex[33]);
void worker_metrics(struct agent_worker *w, json_t *line); // reference is taken over
// Of each step: a fault where many in a row have changed nothing, as their gradients are not finite. No loss in a display says so.
void worker_check_step(struct agent_worker *w, const struct intra_step_stats *s);
// One step of a trainer of the site's own; worker_check_step does it for the built-in ones.
void worker_add_sums(struct agent_worker *w, double loss, double grad_norm);
// A line of metrics; what is NAN of loss, lr and grad_norm is null in it.
void worker_send_step(struct agent_worker *w, const struct intra_step_stats *s,
                      double tokens_per_s);
// a line of metrics; by_source is borrowed
void worker_send_eval(struct agent_worker *w, double loss, json_t *by_source);
// What the summary is made of, from the worker's counters, losses and model. eval_loss NAN: not measured. NULL: out of memory, which
// worker_report says.
NEB_MUST_CHECK enum neb_status worker_results(const struct agent_worker *w, const char *device,
                                              double eval_loss, bool done, json_t **out);
// The worker's last word: results and what its mode adds (may be NULL); both are taken over.
NEB_MUST_CHECK enum neb_status worker_report(struct agent_worker *w, json_t *results, json_t *more);

// worker_sync.c
NEB_MUST_CHECK enum neb_status worker_sync_create(struct agent_worker *w);
void worker_sync_destroy(struct agent_worker *w);
// Encodes fragment f and hands it to the agent; again where it is in flight: with what was learned since on top.
NEB_MUST_CHECK enum neb_status worker_send(struct agent_worker *w, int32_t f);
// bytes of an update in flight again
NEB_MUST_CHECK enum neb_status worker_resubmit(struct agent_worker *w, int32_t f);
// Keeps a commit until its merge step. NEB_ERR_FORMAT: the agent's message is malformed.
NEB_MUST_CHECK enum neb_status worker_take_commit(struct agent_worker *w,
                                                  const struct agent_ipc_msg *m);
// Logs the step, applies the commit that is here, rebases. The next send is planned from its record.
NEB_MUST_CHECK enum neb_status worker_merge(struct agent_worker *w, int32_t f);
// Merges a commit with an update of this cluster's former life, whose state went with its disk. What this life has learned of the
// fragment is dropped, as it comes from steps that the update has behind it, and the data goes on behind the last of them.
NEB_MUST_CHECK enum neb_status worker_take_over(struct agent_worker *w, int32_t f);
// Before what is done between two steps: notes where what is committed ends, if a run that is repeated had sent more than this one.
void worker_at_cursor(struct agent_worker *w, int32_t f);
// What counts for the fragment's next update is seen from this step on: tokens, and rows.
void worker_count_from_here(struct agent_worker *w, int32_t f);
// Asks the agent for the commit of the fragment's round, if there is one.
NEB_MUST_CHECK enum neb_status worker_request_commit(struct agent_worker *w, int32_t f);

// Tells the agent what updates of this job hold: {"op": "shape", "elements", "fragments": [{"elements", "sha"}]}.
NEB_MUST_CHECK enum neb_status worker_send_shape(struct agent_worker *w);

// worker_outer.c: the exchange's state, on one rank or spread over a mesh's
NEB_MUST_CHECK enum neb_status worker_outer_create(struct agent_worker *w,
                                                   const struct inter_outer_config *c,
                                                   const struct inter_outer_unit *units);
void worker_outer_destroy(struct agent_worker *w);
// Fragment f, encoded into its travel's blob; its error with sync.tune: auto.
NEB_MUST_CHECK enum neb_status worker_outer_encode(struct agent_worker *w, int32_t f,
                                                   const struct cmp_codec *codec,
                                                   inter_outer_counts *counts, void *user);
// Applies what came for fragment f, or counts a round without updates; reject: first drops what is in flight.
NEB_MUST_CHECK enum neb_status worker_outer_merge(struct agent_worker *w, int32_t f, bool reject,
                                                  const struct inter_outer_round *r);
// f -1: of all fragments.
NEB_MUST_CHECK enum neb_status worker_outer_digest(const struct agent_worker *w, int32_t f,
                                                   struct kern_digest *d);
uint64_t worker_outer_shape(const struct agent_worker *w, int32_t f, uint8_t sha256[32]);
// To and from checkpoints. A mesh's ranks add their parts themselves (agent/exchange/shards.h).
NEB_MUST_CHECK enum neb_status worker_outer_save(struct agent_worker *w,
                                                 struct intra_ckpt_writer *out);
NEB_MUST_CHECK enum neb_status worker_outer_restore(struct agent_worker *w,
                                                    const struct intra_ckpt *c);
// θ and v of fragment f from `at` in a snapshot of n parameters, which is where θ begins.
NEB_MUST_CHECK enum neb_status worker_outer_adopt(struct agent_worker *w, int32_t f,
                                                  uint32_t version, const struct neb_file *file,
                                                  uint64_t at, uint64_t n);
// What adopted parameters are told to: where they are trained.
NEB_MUST_CHECK enum neb_status worker_outer_adopted(struct agent_worker *w);

// worker_masked.c: the profile `private`
// keys: a key a cluster, as agent_sums_keys has them.
NEB_MUST_CHECK enum neb_status worker_masked_keys(struct agent_worker *w, const void *keys,
                                                  size_t len);
NEB_MUST_CHECK enum neb_status worker_masked_seeds(const struct agent_worker *w,
                                                   struct agent_flight *t, const json_t *text);
void worker_masked_config(const struct agent_worker *w, struct inter_outer_config *c);

// worker_device.c
// Opens what the cluster's `device` and `precision` ask for: w->device, w->device_type. NEB_ERR_UNSUPPORTED, with a hint,
// where `cuda` cannot be had. NEB_ERR_IO, and w->device_gone: the job has trained on one before (worker_device_had), so that processors
// will not do.
NEB_MUST_CHECK enum neb_status worker_device_open(struct agent_worker *w);
bool worker_device_had(const struct agent_worker *w);
bool worker_device_optional(const struct agent_worker *w); // processors will do
// st: how the group was made. The same, but where what the job had before cannot be joined: as worker_device_open.
NEB_MUST_CHECK enum neb_status worker_device_joined(struct agent_worker *w, enum neb_status st);
// Once there is a group: gives the device back where other ranks have none. Says where it trains.
void worker_device_settle(struct agent_worker *w);
// The end of it, which is all that a side of rtd and distill has: what it trains on is remembered, and said.
void worker_device_report(struct agent_worker *w);
// A note, of kind "note" with `device`: where it trains, and why there, if nobody asked for that.
void worker_send_device(struct agent_worker *w);
// Moves the exchange to the device, as the cluster's `outer_state` says; nothing to do on processors.
NEB_MUST_CHECK enum neb_status worker_device_place(struct agent_worker *w);
// Says how products are computed, where the cluster's precision asked for bf16 on processors.
void worker_device_products(struct agent_worker *w);
bool worker_in_bf16(const struct agent_worker *w);           // products on processors
const char *worker_processors(const struct agent_worker *w); // "cpu" or "cpu, bf16"
// "cuda (NVIDIA …, bf16)", "cpu" or "cpu, bf16"
void worker_device_name(const struct agent_worker *w, char *out, size_t cap);

// worker_eval.c
// Mean held-out loss over all sources of the corpus, each with the same number of windows (eval.windows); and {source: loss}.
// NAN where nothing is held out.
NEB_MUST_CHECK enum neb_status worker_evaluate(struct agent_worker *w, double *loss,
                                               json_t *by_source);
// eval.every_steps, with a line of metrics
NEB_MUST_CHECK enum neb_status worker_eval_when_due(struct agent_worker *w);

// worker_plan.c: what the records plan for this cluster
void worker_plan_start(struct agent_worker *w);
// Fragment f is taken over behind this record.
void worker_plan_taken(struct agent_worker *w, int32_t f, const struct inter_record *last);
// With what fragment f is to be encoded now; merge: for a merge round, where a codec of 4 bits or a sparse one gives way to a finer one.
NEB_MUST_CHECK enum neb_status worker_plan_codec(struct agent_worker *w, int32_t f, bool merge,
                                                 struct cmp_codec *out);
void worker_plan_sent(struct agent_worker *w, int32_t f);
void worker_plan_merged(struct agent_worker *w, int32_t f);
// Is the next step one of those that a slow cluster leaves out? Then it is counted in step and steps_left_out, and not made.
bool worker_leaves_out(const struct agent_worker *w);
// Every trainer says so of each step that it makes: without it nothing is planned.
void worker_step_took(struct agent_worker *w, double seconds);
json_t *worker_plan_measure(const struct agent_worker *w, int32_t f); // for the manifest

// worker_save.c
// Takes the memory for copies: one more copy of what a checkpoint holds (28 bytes a trained parameter with AdamW and an
// exchange). Without that memory checkpoints are written while training waits, with a warning.
NEB_MUST_CHECK enum neb_status worker_save_start(struct agent_worker *w);
// Begins a checkpoint of this step, and returns once its state is copied. One that is due while the one before is still being written
// waits for that, and counts it as stall.
NEB_MUST_CHECK enum neb_status worker_save(struct agent_worker *w);
// under another number than the step's
NEB_MUST_CHECK enum neb_status worker_save_at(struct agent_worker *w, int64_t at);
// To be called between steps: tells the agent what has become durable. An error of the writer comes up here, or at the next save.
NEB_MUST_CHECK enum neb_status worker_saved(struct agent_worker *w);
// until all is durable, and told
NEB_MUST_CHECK enum neb_status worker_save_wait(struct agent_worker *w);

// worker_ckpt.c
NEB_MUST_CHECK enum neb_status worker_write_checkpoint(struct agent_worker *w,
                                                       struct intra_ckpt_writer *out);
// NEB_ERR_NOT_FOUND (not logged): there is no checkpoint.
NEB_MUST_CHECK enum neb_status worker_restore(struct agent_worker *w);
// What is learned in the n steps up to w->step + n is not made here, or was lost: data and schedules go on behind them.
NEB_MUST_CHECK enum neb_status worker_skip_steps(struct agent_worker *w, int64_t n);
// Takes over the fragments that DIR/snapshot.bin is ahead in, and writes a checkpoint of that; nothing when there is none. NEB_ERR_AGAIN: it
// was not what it says, or not finite, and is gone: another process begins without it.
NEB_MUST_CHECK enum neb_status worker_adopt_snapshot(struct agent_worker *w, bool has_checkpoint);
// Tokens and row counts of the fragment begin at this step.
void worker_begin_counts(struct agent_worker *w, int32_t f);
// by what the agent says: it catches up after the loss of its disk
void worker_set_lost(struct agent_worker *w, bool lost);
// The global parameters, for evaluation and export: DIR/model.ckpt.
NEB_MUST_CHECK enum neb_status worker_save_model(struct agent_worker *w);
// Any model of the worker as DIR/NAME. m NULL: the one that the ranks of a mesh train.
NEB_MUST_CHECK enum neb_status worker_write_model(struct agent_worker *w,
                                                  const struct intra_model *m, const char *name);
// merges.log: fragment, round and step, on disk before the merge is used.
NEB_MUST_CHECK enum neb_status worker_log_merge(struct agent_worker *w, int32_t f);

// worker_text.c
// The digest of the text that the cursors of a checkpoint count; and a warning, also to who follows the job, where the corpus now holds other
// text.
NEB_MUST_CHECK enum neb_status worker_text_save(const struct agent_worker *w,
                                                struct intra_ckpt_writer *out);
NEB_MUST_CHECK enum neb_status worker_text_compare(struct agent_worker *w,
                                                   const struct intra_ckpt *c);

#endif
