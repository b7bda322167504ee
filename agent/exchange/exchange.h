// SPDX-License-Identifier: Apache-2.0
// The exchange of one cluster with the others, as the process that talks to the agent sees it. It
// knows units of tensors and a trainer (trainer.h), and nothing of models or data.
//
//     exchange.c    set-up; what is due between two steps
//     fragments.c   cuts units into the fragments of the job's groups; their codecs
//     rounds.c      fragments: encode and submit, commits, merges
//     shards.c      the state of the exchange, over the ranks of the trainer
//     plan.c        what commit records plan for the next sends
//     masked.c      keys and seeds of masked sums (gate `private`)
//     link.c        messages from and to the agent
//     report.c      metrics lines and the report
//     ckpt.c        the contents of checkpoints, and how to continue from one
//     save.c        writes checkpoints while training continues
//     snapshot.c    how to continue from the state of other members
//
// The built-in worker (agent/train/worker.c), libnebula (agent/lib) and federated students
// (agent/train/distill_federate.c) use all of it. A side of modes rtd and distill without rounds
// uses the link, reports and checkpoints; then `federated` is false and there are no units.
//
// Bit-identical resume: a checkpoint is taken between two inner steps. It holds the trainer's part
// (parameters, optimiser, data cursor), outer state, and updates in flight with their bytes. The
// merge log is a file next to it. A restarted worker computes the same steps, submits the same
// bytes, and merges at the logged steps.
#ifndef AGENT_EXCHANGE_H
#define AGENT_EXCHANGE_H
#include "agent/exchange/schedule.h"
#include "agent/exchange/shards.h"
#include "agent/exchange/trainer.h"
#include "agent/job/config.h"
#include "agent/job/groups.h"
#include "agent/job/tune.h"
#include "agent/proc/credential.h"
#include "agent/proc/ipc.h"
#include "intra/ckpt/checkpoint_async.h"

enum { EXCHANGE_ROUND_WORDS = 4, EXCHANGE_GENERATIONS_MAX = 16 };

struct agent_flight {    // a fragment's update in flight, or its commit that waits for the merge
    struct neb_buf blob; // encoded bytes, as submitted; carried by rank: rank 0's part of them
    uint64_t payload;    // bytes of the update
    uint64_t tokens;     // learned from since the last committed send
    uint64_t tokens_at_send; // all tokens at the send: the next base, once committed
    uint32_t steps, missed;
    uint8_t codec;            // codec level (compress/codec.h)
    float error;              // measured error of the encoding; 0: not measured
    double encode_s, stall_s; // time to encode it; time spent waiting for its commit
    uint32_t retries;         // how often a newer update replaced this round's
    neb_ns sent_at, arrived_at;
    // the commit
    uint32_t n;
    struct inter_outer_part parts[INTER_PARTS_MAX];
    struct sec_sum_seeds seeds;   // of a masked sum
    struct agent_ipc_msg message; // holds the bytes of all parts
    struct agent_shards_commit commit;
    float eta, mu;
    bool here;     // the commit of the fragment's round has arrived
    bool rejected; // the gate rejected this cluster's update
    bool unread;   // masked: too few clusters trained, so the sum is not read
    bool merge, all_final, mine;
    bool former;     // it contains an update of this cluster's previous incarnation
    bool taken_over; // exchange_take_over merges it now
    bool planned;    // it has a plan for this cluster, for the round after the next
    struct inter_plan plan;
    int64_t cursor; // this cluster's steps that the commits contain, including this one
    bool at_cursor; // tokens_at_send and the sent counters are those at step `cursor`
};

// State of a fragment, besides its round (agent_fragment) and its update in flight (agent_flight).
struct exchange_fragment {
    struct inter_plan plans[2]; // for its next send, and for the one after it
    int64_t counted_miss;       // the last step at which a miss was counted; -1: none
    uint64_t tokens_base;       // all tokens at its last committed send
    int64_t steps_base;         // all steps at its last committed send
    // (n_counters) the trainer's counters at the last committed send and at the last send. base
    // owns one array with both, as checkpoints have them.
    uint64_t *counts_base, *counts_sent;
    struct kern_digest last_digest; // computed by the last merge
    // From the job: of the fragment's group, and for merge rounds.
    struct cmp_codec codec, merge_codec;
    uint64_t elements;                  // of the fragment
    uint64_t most_elements, most_units; // of the largest fragment of its group
    uint32_t suspect; // checkpoints of this round and later are not trusted; 0: all are
};

struct exchange_link { // to the agent
    struct agent_ipc *ipc;
    void *zctx;
    struct agent_credential *credential; // owned
    bool foreign;                        // an attached trainer, not the built-in worker
    struct intra_comm *world;            // ranks that hear when this one is at work; NULL: none
    int ranks;       // that connect to the agent themselves, with this one; 0: only this one does
    int64_t session; // of these ranks
    // Handles events of modes other than replicas before this code does. *taken: the event was one
    // of them. NULL: there are none.
    enum neb_status (*on_event)(void *user, const struct agent_ipc_msg *m, bool *taken);
    void *on_event_user;
    int alive;     // reachable other members
    int others;    // other members that are not revoked
    bool expected; // enough of them are reachable for a commit
    // the last heartbeat: its time, its content, and whether it was at the start of a step
    neb_ns heartbeat_at;
    double heartbeat_allow_s;
    bool heartbeat_step;
    // Attached trainer: the time of its last query to the agent; the time since which the agent
    // owes an answer (0: it owes none).
    neb_ns asked, unanswered;
    bool orphan;   // the agent was restarted and does not know this worker
    bool returned; // the agent knows it again
};

struct exchange_merges { // the merge log
    struct exchange_merge {
        uint32_t fragment, round;
        int64_t step;
        bool foreign; // this cluster had no update in flight: others continued without it
    } * log;          // (n) of the run that is repeated, if any
    size_t n;
    FILE *file;
};

struct exchange_saves { // checkpoints
    // Rounds at the newest checkpoints, as a ring: the agent keeps the updates that the oldest
    // checkpoint on disk may need.
    uint32_t rounds[EXCHANGE_GENERATIONS_MAX][INTER_FRAGMENTS_MAX];
    int n;
    int64_t newest;                 // step of the newest checkpoint; -1: this process wrote none
    struct intra_ckpt_async *saver; // writes them while training continues; NULL: training waits
    uint64_t reserve;               // bytes by which the trainer's part may grow
    // The trainer's part is all of a checkpoint: a side without rounds.
    bool trainer_only;
    // The trainer saves its own part and the arrays of the exchange. Files have only the rest.
    bool rest_only;
    char rest[NEB_PATH_MAX]; // such a file, to continue from; "": none
    struct {                 // the checkpoint that is being written
        int64_t step;
        uint32_t rounds[INTER_FRAGMENTS_MAX];
        double wait_s; // time spent waiting for the previous checkpoint
    } now;
};

struct agent_exchange {
    struct agent_trainer trainer; // set by the caller before exchange_create
    // For the build note of checkpoints: the instruction set that trains, and how processors
    // compute products (NULL: in fp32). Static.
    const char *isa, *products;
    struct exchange_link link;
    // what the agent said at the attach
    struct agent_job job;
    int cluster;             // index of this cluster
    char dir[NEB_PATH_MAX];  // folder of the job: checkpoints, merge log, final model
    struct sec_vault *vault; // of the job: seals its checkpoints; NULL: they are not sealed
    bool federated;          // there are rounds

    // the state of the exchange
    struct agent_shards *shards;
    struct inter_outer *outer; // of shards: rank 0's part
    struct sec_sum *sum;       // gate `private`: masks updates; else NULL
    uint64_t masked_sent; // how many updates this cluster has masked: each is summed at most once
    int32_t *fragment;    // (n_units) -1: a unit that is not exchanged
    uint64_t elements;    // of all units that are exchanged
    uint64_t *counters;   // (n_counters) the trainer's, at an encode
    struct agent_schedule schedule;
    struct agent_fragment frags[INTER_FRAGMENTS_MAX];
    struct agent_flight flight[INTER_FRAGMENTS_MAX];
    struct exchange_fragment kept[INTER_FRAGMENTS_MAX];
    struct exchange_merges merges;
    struct exchange_saves saves;
    uint8_t left_out; // planned: of every INTER_STEPS_CYCLE steps
    // What goes on while the trainer makes steps (agent_shards_deferred).
    struct {
        enum exchange_begun {
            EXCHANGE_NOTHING,
            EXCHANGE_SENDS,
            EXCHANGE_OPENS,
            EXCHANGE_MERGES
        } is;
        int32_t f;
        neb_ns since;
        json_t *line; // of the merge, without its digest
    } pending;

    // how this process began
    uint64_t taken; // bit per fragment in which DIR/snapshot.bin is ahead, set by the agent
    // The disk was lost, and the agent catches up. Commits are merged as they come, without
    // training.
    bool lost;
    bool adopts;   // `lost` was true in this process
    bool restored; // from a checkpoint or a snapshot
    // Checkpoints existed at the attach; therefore init_from is not read.
    bool had_checkpoint, skips_init;
    char init_from[NEB_PATH_MAX]; // of the job, also where it is not read
    uint32_t attempts;            // first attempt number of the agent's present ledger
    // Updates with attempts below this one come from a previous incarnation, whose state was lost
    // with its disk. 0: there was none.
    uint32_t incarnation;

    // progress
    bool stop;
    bool reattach; // attached trainer: the agent has another state for it
    int64_t step;
    bool stepped;  // this process has made a step, so step_s is known
    double step_s; // moving average of the time of a step
    uint64_t all_tokens;
    double loss_first, loss_last;
    int64_t steps_left_out;   // in total
    int64_t lost_steps;       // steps that this cluster skipped, or made and lost
    int64_t said_step;        // step of the newest metrics line
    uint32_t idle_steps;      // steps in a row whose gradients were not finite
    uint32_t left_out_rounds; // rounds in a row with all links up
    double train_s, stall_s, sync_s;
    double stall_told; // part of stall_s that metrics lines have reported
    struct {           // over all steps of this process, finite values only
        double loss, grad_norm;
        int64_t losses, norms, steps;
    } sums;
    // over all submitted updates: for bits per parameter
    uint64_t payload_bytes, payload_params;
    uint32_t rounds;
};
static inline const struct neb_vault *exchange_vault(const struct agent_exchange *x) {
    return sec_vault_of(x->vault);
}

// exchange.c
// Sets the fields of a new exchange that do not begin with zero. Call it before anything else.
void exchange_init(struct agent_exchange *x);
// Creates the state of the exchange over the units of x->trainer. NEB_ERR_NOMEM; NEB_ERR_INVALID:
// the job does not fit the units (logged).
NEB_MUST_CHECK enum neb_status exchange_create(struct agent_exchange *x);
// Completes a checkpoint in progress and frees the state of the exchange. The trainer must still be
// there.
void exchange_destroy(struct agent_exchange *x);
// Closes the connection with the agent, once the last message has left.
void exchange_hang_up(struct agent_exchange *x);
// At the very end: hangs up, and frees the rest.
void exchange_leave(struct agent_exchange *x);
// Sends the shape of this job's updates: {"op": "shape", "elements", "fragments": [{"elements",
// "sha"}]}.
NEB_MUST_CHECK enum neb_status exchange_send_shape(struct agent_exchange *x);
// exchange_create; then moves the state to the trainer's devices if the cluster's `outer_state`
// asks for it, and with rounds sends the shape.
NEB_MUST_CHECK enum neb_status exchange_join(struct agent_exchange *x);
// Restores the newest state, then tells the agent which updates are in flight and which commits are
// awaited. NEB_OK also without a checkpoint: the run starts at step 0.
NEB_MUST_CHECK enum neb_status exchange_resume(struct agent_exchange *x);
NEB_MUST_CHECK enum neb_status exchange_announce(struct agent_exchange *x);
// Does all that is due between two steps. *ready: the next step may begin.
NEB_MUST_CHECK enum neb_status exchange_step(struct agent_exchange *x, bool *ready);
// All steps are made; with rounds: the last one of every fragment is merged.
bool exchange_finished(const struct agent_exchange *x);
// Advances by n steps that are committed, or that were made before the disk was lost. Data and
// schedules move past them.
NEB_MUST_CHECK enum neb_status exchange_skip_steps(struct agent_exchange *x, int64_t n);

// The number of fragments, of all groups of the job.
static inline int32_t exchange_fragments(const struct agent_exchange *x) {
    return agent_job_fragments(&x->job);
}

// alone.c
// Call it after each step of a synchronous run that joined: makes the outer step where it is due.
NEB_MUST_CHECK enum neb_status exchange_alone(struct agent_exchange *x);

// fragments.c
// Sets the fragment of each unit: whole tensors in order, each group by itself. -1: the tensor is
// of a group that is never exchanged. NEB_ERR_INVALID: a group's pattern matches no tensor.
NEB_MUST_CHECK enum neb_status exchange_cut(const struct agent_job *job,
                                            const struct agent_unit *units, int32_t n,
                                            int32_t *fragment);
// Sets sizes and codecs of all fragments. NEB_ERR_LIMIT: an update could not be sent.
NEB_MUST_CHECK enum neb_status exchange_choose_codecs(struct agent_exchange *x);
// True if another cluster owns the fragment. This cluster then sends empty updates, and takes θ.
bool exchange_follows(const struct agent_exchange *x, int32_t f);

// link.c
// Attaches to the agent: sets job, cluster, dir, vault. socket_path and job are as the agent passes
// them. NEB_ERR_AGAIN: the agent of a built-in worker does not answer (on its own host for half an
// hour, else for 10 s). NEB_ERR_TIMEOUT: the agent of an attached trainer does not answer for 10 s.
NEB_MUST_CHECK enum neb_status exchange_attach(struct agent_exchange *x, const char *socket_path,
                                               const char *job);
// Sends the attach request again; the answer arrives like any message.
NEB_MUST_CHECK enum neb_status exchange_hello(struct agent_exchange *x, const char *job);
// handles all messages that have arrived
NEB_MUST_CHECK enum neb_status exchange_drain(struct agent_exchange *x);
// waits up to 200 ms for a message; counts as stall
NEB_MUST_CHECK enum neb_status exchange_wait(struct agent_exchange *x);
// At the start: waits up to 15 s until all other clusters are connected or the job stops.
NEB_MUST_CHECK enum neb_status exchange_wait_for_peers(struct agent_exchange *x);
// Sends the agent the time after which silence means that this worker hangs (a stopped rank, a dead
// node). Before a step: EXCHANGE_HANG_STEPS times the duration of a step, at least hang_after_s.
// Before anything else, and before the first step: at least EXCHANGE_HANG_OTHER x hang_after_s, or
// EXCHANGE_HANG_STEPS times the duration of `steps` steps.
enum { EXCHANGE_HANG_STEPS = 20, EXCHANGE_HANG_OTHER = 30 };
void exchange_heartbeat(struct agent_exchange *x, bool step, double steps);
// From now on, bytes that this thread moves (agent/base/moved.h) count as work, for the agent and
// for the other ranks: outside of steps, a worker does not hang as long as bytes move. NULL: ends
// this.
void exchange_report_moves(struct agent_exchange *x);
// Sets what the agent reports: whether it catches up after the loss of its disk.
void exchange_set_lost(struct agent_exchange *x, bool lost);

// report.c
void exchange_digest_hex(const struct kern_digest *d, char out[33]);
void exchange_metrics(struct agent_exchange *x, json_t *line); // takes ownership of line
// Logs a warning and sends it as a metrics line of kind `fault`.
void exchange_fault(struct agent_exchange *x, const char *text);
// What one step has shown; NAN: unknown.
struct exchange_figures {
    double loss, lr, grad_norm;
};
// Counts a step (but not in loss_first and loss_last), checks it, and sends a metrics line if one
// is due.
void exchange_made_step(struct agent_exchange *x, const struct exchange_figures *s, uint64_t tokens,
                        double seconds);
// The same in two parts, for a trainer that learns the figures of its steps later, but in order.
// step, tokens: of that step and all before it.
void exchange_pass_step(struct agent_exchange *x, double seconds);
void exchange_told_step(struct agent_exchange *x, int64_t step, uint64_t tokens,
                        const struct exchange_figures *s, double tokens_per_s);
// Makes all_tokens that of all steps.
NEB_MUST_CHECK enum neb_status exchange_count_tokens(struct agent_exchange *x);
// Call it after each step that exchange_made_step does not count. For a trainer of this program it
// reports a fault after many steps in a row with gradients that are not finite. Such steps change
// nothing, and the loss alone does not show this.
void exchange_check_step(struct agent_exchange *x, const struct exchange_figures *s);
void exchange_send_step(struct agent_exchange *x, const struct exchange_figures *s,
                        double tokens_per_s);
// Sends a metrics line; by_source is borrowed.
void exchange_send_eval(struct agent_exchange *x, int64_t step, double loss, json_t *by_source);
// The worker's part of the summary: counters, losses and model. *out may become NULL if memory is
// short; exchange_report then fails.
struct exchange_results {
    const char *device;
    double eval_loss; // NAN: not measured
    bool done;
    uint64_t params, trainable;
    struct kern_digest digest; // of the parameters; not used with rounds
};
NEB_MUST_CHECK enum neb_status exchange_results(const struct agent_exchange *x,
                                                const struct exchange_results *r, json_t **out);
// The worker's last message: results, and what its mode adds (may be NULL). Takes ownership of
// both.
NEB_MUST_CHECK enum neb_status exchange_report(struct agent_exchange *x, json_t *results,
                                               json_t *more);

// rounds.c
// Encodes fragment f and submits it to the agent. If an update of it is in flight, the new one
// replaces it and adds what was learned since.
NEB_MUST_CHECK enum neb_status exchange_send(struct agent_exchange *x, int32_t f);
// Encodes fragment f into the blob of its flight; with sync.tune: auto also measures the error.
NEB_MUST_CHECK enum neb_status exchange_encode(struct agent_exchange *x, int32_t f,
                                               const struct cmp_codec *codec);
// Ends what a send or a merge has begun, if it is done; wait: waits for it. All that uses the state
// of the exchange, besides a step, calls it with wait first.
NEB_MUST_CHECK enum neb_status exchange_complete(struct agent_exchange *x, bool wait);
// Begins to open a commit that has arrived and is not due yet.
NEB_MUST_CHECK enum neb_status exchange_open_next(struct agent_exchange *x);
// Submits the bytes of an update in flight once more.
NEB_MUST_CHECK enum neb_status exchange_resubmit(struct agent_exchange *x, int32_t f);
// Keeps a commit until its merge step. NEB_ERR_FORMAT: the agent's message is malformed.
// Takes the parts out of the message.
NEB_MUST_CHECK enum neb_status exchange_take_commit(struct agent_exchange *x,
                                                    struct agent_ipc_msg *m);
// Logs the step, applies the commit that has arrived, rebases. Its record plans the next send.
NEB_MUST_CHECK enum neb_status exchange_merge(struct agent_exchange *x, int32_t f);
// Merges a commit that contains an update of this cluster's previous incarnation, whose state was
// lost with its disk. Drops what this incarnation learned in the fragment, since the update
// contains those steps; the data continues after the last of them.
NEB_MUST_CHECK enum neb_status exchange_take_over(struct agent_exchange *x, int32_t f);
// Call it before anything else between two steps. If the first run had sent more than this repeated
// run, it notes the counters at the step where the committed work ends.
NEB_MUST_CHECK enum neb_status exchange_at_cursor(struct agent_exchange *x, int32_t f);
// The fragment's next update counts tokens and rows from this step on. _begin: its steps too.
NEB_MUST_CHECK enum neb_status exchange_count_from_here(struct agent_exchange *x, int32_t f);
NEB_MUST_CHECK enum neb_status exchange_begin_counts(struct agent_exchange *x, int32_t f);
// Asks the agent for the commit of the fragment's round, if there is one.
NEB_MUST_CHECK enum neb_status exchange_request_commit(struct agent_exchange *x, int32_t f);

// masked.c: the gate `private`
// keys: one key per cluster, as agent_sums_keys lays them out.
NEB_MUST_CHECK enum neb_status exchange_masked_keys(struct agent_exchange *x, const void *keys,
                                                    size_t len);
NEB_MUST_CHECK enum neb_status exchange_masked_seeds(const struct agent_exchange *x,
                                                     struct agent_flight *t, const json_t *text);
void exchange_masked_config(const struct agent_exchange *x, struct inter_outer_config *c);

// plan.c: what the records plan for this cluster
void exchange_plan_start(struct agent_exchange *x);
// Fragment f was adopted from a snapshot whose newest record is `last`.
void exchange_plan_taken(struct agent_exchange *x, int32_t f, const struct inter_record *last);
// The codec for the next send of fragment f. merge: a merge round, in which a 4-bit or sparse codec
// is replaced by a finer one.
NEB_MUST_CHECK enum neb_status exchange_plan_codec(struct agent_exchange *x, int32_t f, bool merge,
                                                   struct cmp_codec *out);
void exchange_plan_sent(struct agent_exchange *x, int32_t f);
void exchange_plan_merged(struct agent_exchange *x, int32_t f);
// True if a slow cluster leaves out the next step: it is counted in step and steps_left_out, but
// not made.
bool exchange_leaves_out(const struct agent_exchange *x);
// Every trainer calls it after each step; without it nothing is planned.
void exchange_step_took(struct agent_exchange *x, double seconds);
json_t *exchange_plan_measure(const struct agent_exchange *x, int32_t f); // for the manifest

// save.c
// Reserves memory for one more copy of what a checkpoint holds. Without that memory training waits
// while a checkpoint is written, and a warning is logged.
NEB_MUST_CHECK enum neb_status exchange_save_start(struct agent_exchange *x);
// Begins a checkpoint of this step and returns once its state is copied. If the previous checkpoint
// is still being written, it waits for that and counts the time as stall.
NEB_MUST_CHECK enum neb_status exchange_save(struct agent_exchange *x);
// The same, with another number than the step's.
NEB_MUST_CHECK enum neb_status exchange_save_at(struct agent_exchange *x, int64_t at);
// Call it between steps: reports to the agent which checkpoint has become durable. It returns an
// error of the writer, as does the next save.
NEB_MUST_CHECK enum neb_status exchange_saved(struct agent_exchange *x);
// Waits until all checkpoints are durable and reported.
NEB_MUST_CHECK enum neb_status exchange_save_wait(struct agent_exchange *x);

// ckpt.c
NEB_MUST_CHECK enum neb_status exchange_write_checkpoint(struct agent_exchange *x,
                                                         struct intra_ckpt_writer *out);
// The newest checkpoint of the job to continue from (intra_ckpt_take_latest_in). NEB_ERR_NOT_FOUND:
// there is none. NEB_ERR_AGAIN: all were damaged, and this process has skipped init_from: a new
// process has to read it.
NEB_MUST_CHECK enum neb_status exchange_newest(struct agent_exchange *x, struct intra_ckpt **out);
// Continues from a checkpoint or snapshot. NEB_ERR_NOT_FOUND (not logged): there is none.
NEB_MUST_CHECK enum neb_status exchange_restore(struct agent_exchange *x);
// Writes DIR/NAME: the global parameters, for evaluation and export. write fills the file.
NEB_MUST_CHECK enum neb_status
exchange_write_model(struct agent_exchange *x, const char *name,
                     enum neb_status (*write)(void *user, struct intra_ckpt_writer *out),
                     void *user);
// Writes fragment, round and step to merges.log. They are on disk before the merge is used.
NEB_MUST_CHECK enum neb_status exchange_log_merge(struct agent_exchange *x, int32_t f);

// snapshot.c
// Adopts the fragments in which DIR/snapshot.bin is ahead, and writes a checkpoint of the result;
// does nothing without such a file. NEB_ERR_AGAIN: its contents were wrong or not finite, and it is
// removed; a new process has to start without it.
NEB_MUST_CHECK enum neb_status exchange_adopt_snapshot(struct agent_exchange *x,
                                                       bool has_checkpoint);

#endif
