// SPDX-License-Identifier: Apache-2.0
// A side of a stream, as a worker runs it: generator, discriminator, teacher or student. All four
// share one loop (side.c); a role (struct side_role) is what differs between them.
//
//     take      own text, or the next batch of a stream; nothing is here: the loop waits
//     learn     makes draws or labels for the other side, or nothing, and trains
//       credit    the other side may send one more batch
//       put       what was made goes into its stream, once that has room
//       save      a checkpoint, if one is due
//
// Rank 0 of the worker runs the loop: it has the streams, the files and the agent's socket. What
// computes goes through the process group (intra/train/group.h), which deals work to the ranks and
// brings draws, labels and scores back.
//
// The reference (sync.scheme: synchronous) has both sides in this process, and queues between them.
#ifndef AGENT_SIDE_H
#define AGENT_SIDE_H
#include "agent/train/worker.h"
#include "agent/train/worker_stream.h"

enum {
    SIDE_STREAMS_MAX = 3 * AGENT_CLUSTERS_MAX,
    SIDE_WINDOW_BYTES = 16 << 20, // of batches that a consumer has not applied yet
};

struct side_figures { // counted by the role, which keeps them in its checkpoint
    int64_t step;     // updates of the optimiser; of a teacher: the steps that it has labelled
    uint64_t tokens;  // trained on
    double loss_first, loss_last, train_s;
    uint64_t batch_bytes; // of the batches or labels that were made or learned from
};

// The state of a mode's sides as a section of their checkpoints.
struct side_field {
    char kind; // 'b': bool, as u8; 'i': int64_t; 'u': uint64_t; 'f': double
    size_t at; // in the state
};
struct side_layout {
    const char *section, *mode;
    uint32_t version; // 0: the section has none
    int n;
    struct side_field fields[16]; // in the order of the section
};

enum side_next { SIDE_LEARN, SIDE_WAIT, SIDE_OVER }; // OVER: the turn is over without learning
enum side_save { SIDE_SAVE_DUE, SIDE_SAVE_NOW, SIDE_SAVE_NOT }; // DUE: if the job or an agent asks

struct side_turn { // one turn of the loop; zero at first
    // Set by take.
    struct agent_stream *from; // where the batch comes from; NULL: own text
    const uint8_t *p;          // (n) the batch
    size_t n;
    enum side_next next;
    // Set by learn.
    struct agent_stream *to; // where side->made goes; NULL: nothing was made
    bool stepped;            // side->stats belong to a new step
    enum side_save save;
};

struct agent_side;
struct side_role {
    enum agent_role is;
    // If it is the second side in this process: the file of its model, and the key of its report
    // inside the report of the first side (NULL: it has no report).
    const char *file, *reports_as;
    bool holds; // a stop need not wait for room: `save` also writes what was made
    // Makes the model: sets own, group, model, figures and stats. destroy: NULL-safe.
    enum neb_status (*create)(struct agent_side *x);
    void (*destroy)(struct agent_side *x);
    // Opens the streams (side_stream), after `restore` if there is a checkpoint.
    enum neb_status (*open)(struct agent_side *x);
    // All is done, also the evaluation. The loop ends.
    bool (*done)(const struct agent_side *x);
    enum neb_status (*take)(struct agent_side *x, struct side_turn *t);
    enum neb_status (*learn)(struct agent_side *x, struct side_turn *t);
    // Where the side is, which names its checkpoints. NULL: the number of its steps.
    int64_t (*at)(const struct agent_side *x);
    // Everything that the next turn depends on. restore: NEB_ERR_FORMAT: not a checkpoint of this
    // side.
    enum neb_status (*save)(const struct agent_side *x, struct intra_ckpt_writer *w);
    enum neb_status (*restore)(struct agent_side *x, const struct intra_ckpt *c);
    // Moves on past n steps that others have made. NULL: the role takes part in no rounds.
    enum neb_status (*skip)(struct agent_side *x, int64_t n);
    // Evaluates if the side is done. *loss: held-out loss, NAN at first. *more: what the role adds
    // to the worker's report.
    enum neb_status (*report)(struct agent_side *x, bool done, double *loss, json_t **more);
};
extern const struct side_role side_generator, side_discriminator, side_teacher, side_student;

struct agent_side {
    const struct side_role *role;
    struct agent_worker *w;    // borrowed
    struct intra_place at;     // where the worker's model is
    void *own;                 // of the role
    struct intra_group *group; // owned by the role
    bool learns;               // checkpoints hold the group's state
    struct intra_model *model;
    const struct side_figures *figures;
    const struct intra_step_stats *stats;
    bool reference;            // both sides are in this process
    struct agent_side *second; // the other one, from the first
    // What was made, and the stream that it waits for; NULL: it has left.
    struct neb_buf made;
    struct agent_stream *to;
    int32_t n_streams;
    struct agent_stream *streams[SIDE_STREAMS_MAX]; // owned
    // saved: where the newest checkpoint is, which may still be in progress; -1: this process wrote
    // none. looked: where this process began, or last looked whether a checkpoint is due.
    int64_t saved, looked;
    uint64_t again;                     // how many of the newest batches a restart takes again
    uint64_t cursors[SIDE_STREAMS_MAX]; // of that checkpoint: the next batch of each stream
    bool final;                         // no side will restart from an older checkpoint
};

// Runs a worker of mode rtd or distill that has attached to its agent.
NEB_MUST_CHECK enum neb_status agent_side_run(struct agent_worker *w);
// Makes the side the trainer of w->x, once its role is created. rounds: its group takes part in
// rounds; else it only saves.
NEB_MUST_CHECK enum neb_status side_trainer(struct agent_side *x, bool rounds);

// In side_streams.c.
// Adds a stream. The caller sets c: key.id, type, role, peer, window_batches, window_start and
// measured. Both ends must have the same vocabulary and, with `shards`, the same shards. next: from
// the checkpoint (agent_stream_open). The side owns *out. NEB_ERR_LIMIT: a step makes larger
// batches than a stream takes.
NEB_MUST_CHECK enum neb_status side_stream(struct agent_side *x,
                                           const struct inter_stream_config *c, double batch_bytes,
                                           bool shards, uint64_t next, struct agent_stream **out);
// Handles an event of a stream (exchange_link.on_event); user is a struct agent_side.
NEB_MUST_CHECK enum neb_status side_event(void *user, const struct agent_ipc_msg *m, bool *taken);
void side_close(struct agent_side *x);
// Takes the next batch of a stream. False: it has not come, so the turn waits.
bool side_take(struct agent_stream *s, struct side_turn *t);
bool side_produces(const struct agent_stream *s);
// Handles messages that have come, and waits a little for more.
NEB_MUST_CHECK enum neb_status side_wait(struct agent_side *x);
// Waits until the agent has stored all that was put: a checkpoint counts on it.
NEB_MUST_CHECK enum neb_status side_wait_stored(struct agent_side *x);
// Waits until the consumers have saved all batches, except those that they do not need any more.
// The agent keeps batches only while this worker lives.
NEB_MUST_CHECK enum neb_status side_wait_taken(struct agent_side *x);

// Adds and reads the section. It begins with the version and the role. NEB_ERR_FORMAT: there is no
// such section, or it is of another role.
NEB_MUST_CHECK enum neb_status side_put_state(struct intra_ckpt_writer *w,
                                              const struct side_layout *l, enum agent_role role,
                                              const void *state);
NEB_MUST_CHECK enum neb_status side_get_state(const struct intra_ckpt *c,
                                              const struct side_layout *l, enum agent_role role,
                                              void *state);
NEB_MUST_CHECK enum neb_status side_misfit(const struct intra_ckpt *c); // logs NEB_ERR_FORMAT

// Runs the optimiser's update of a step, and counts its loss. The caller counts the step.
NEB_MUST_CHECK enum neb_status side_update(struct intra_group *group, struct side_figures *f,
                                           struct intra_step_stats *stats);

#endif
