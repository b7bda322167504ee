// SPDX-License-Identifier: Apache-2.0
// What the workers of modes rtd and distill share. Such a worker is one side of the job (generator,
// discriminator, teacher, student). It trains on one rank and exchanges batches with the clusters
// of the other sides through streams (worker_stream.h).
//
//     rtd_worker.c      ─┐
//     distill_worker.c  ─┴─► worker_side: streams, checkpoints
//                              └─► agent/exchange: messages, metrics, report
#ifndef AGENT_WORKER_SIDE_H
#define AGENT_WORKER_SIDE_H
#include "agent/train/worker.h"
#include "agent/train/worker_stream.h"

enum {
    WORKER_SIDE_STREAMS_MAX = 3 * AGENT_CLUSTERS_MAX,
    WORKER_SIDE_WINDOW_BYTES = 16 << 20, // of batches that a consumer has not applied yet
};

// Adds the state of a side to a checkpoint, if the side takes no part in rounds.
typedef enum neb_status worker_side_add(void *user, struct intra_ckpt_writer *out);

struct worker_side {
    struct agent_worker *w; // borrowed
    struct intra_place at;  // where the worker's model is
    int32_t n_streams;
    struct agent_stream *streams[WORKER_SIDE_STREAMS_MAX]; // owned
    // saved: event or step of the newest checkpoint, which may still be in progress; -1: this
    // process wrote none.
    int64_t saved, looked; // looked: where this process began, or the last call of worker_side_due
    uint64_t cursors[WORKER_SIDE_STREAMS_MAX]; // of that checkpoint: the next batch of each stream
    bool final;                                // no side will restart from an older checkpoint
    worker_side_add *add;
    void *user; // of add
};

// Opens the cluster's corpus and checks it against its digests, opens the CPU and, if the cluster
// has one and the job uses it (agent_job_takes_devices), the device, and fills in x->at. The worker
// owns all of it. Its stream messages go to x from now on.
NEB_MUST_CHECK enum neb_status worker_side_open(struct worker_side *x, struct agent_worker *w);
// Call it after the model was made. st: the status of making it. Returns st, or why the job cannot
// continue without its device. Logs where the side trains.
NEB_MUST_CHECK enum neb_status worker_side_check_device(struct worker_side *x, enum neb_status st);
void worker_side_close(struct worker_side *x);
// Adds a stream. The caller sets c: key.id, type, role, peer, window_batches, window_start and
// measured. Both ends must have the same vocabulary and, with `shards`, the same shards. next: from
// the checkpoint (agent_stream_open). The side owns *out. NEB_ERR_LIMIT: a step makes larger
// batches than a stream takes.
NEB_MUST_CHECK enum neb_status worker_side_stream(struct worker_side *x,
                                                  const struct inter_stream_config *c,
                                                  double batch_bytes, bool shards, uint64_t next,
                                                  struct agent_stream **out);
// True if a checkpoint is due now, between two events: the job says so, or an agent asks for one.
bool worker_side_due(struct worker_side *x, int64_t at);
// Call it when all streams are open. add writes the side's state; it is not used if the side takes
// part in rounds, whose trainer (agent/exchange/trainer.h) does that and calls _durable.
NEB_MUST_CHECK enum neb_status worker_side_start(struct worker_side *x, worker_side_add *add,
                                                 void *user);
NEB_MUST_CHECK enum neb_status worker_side_durable(struct worker_side *x);
// Begins a checkpoint once the agent has stored all batches put so far. It is written while
// training goes on (agent/exchange/save.c). Once it is on disk, the producers get credit. again: number of
// the newest applied batches that a restart must take again. final: no side will restart from an
// older checkpoint.
NEB_MUST_CHECK enum neb_status worker_side_save(struct worker_side *x, int64_t at, uint64_t again,
                                                bool final);
NEB_MUST_CHECK enum neb_status worker_side_newest(const struct worker_side *x,
                                                  struct intra_ckpt **out); // NEB_ERR_NOT_FOUND
// Waits until the last checkpoint is on disk and the consumers have saved all that was put, except
// what was let go. The agent keeps batches only while this worker lives.
NEB_MUST_CHECK enum neb_status worker_side_wait_taken(struct worker_side *x);

#endif
