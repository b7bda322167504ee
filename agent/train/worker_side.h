// SPDX-License-Identifier: Apache-2.0
// What the workers of modes rtd and distill share. Such a worker is one side of the job (generator, discriminator, teacher,
// student), trains on one rank, and exchanges batches with the other sides' clusters through streams (worker_stream.h).
//
//     rtd_worker.c      ─┐
//     distill_worker.c  ─┴─► worker_side: streams, checkpoints ─► worker_link.c: messages, metrics, report
#ifndef AGENT_WORKER_SIDE_H
#define AGENT_WORKER_SIDE_H
#include "agent/exchange/worker.h"
#include "agent/train/worker_stream.h"

enum {
    WORKER_SIDE_STREAMS_MAX = 3 * AGENT_CLUSTERS_MAX,
    WORKER_SIDE_WINDOW_BYTES = 16 << 20, // of batches that a consumer has not yet applied
};

// What a side that takes no part in rounds puts into a checkpoint.
typedef enum neb_status worker_side_add(void *user, struct intra_ckpt_writer *out);

struct worker_side {
    struct agent_worker *w; // borrowed
    struct intra_place at;  // the worker's
    int32_t n_streams;
    struct agent_stream *streams[WORKER_SIDE_STREAMS_MAX]; // owned
    // event or step of the newest checkpoint, which may still be on its way; -1: none by this process
    int64_t saved, looked; // looked: where this process began, or worker_side_due was last asked
    uint64_t cursors[WORKER_SIDE_STREAMS_MAX]; // of that checkpoint: the next batch of each stream
    bool final;                                // nothing will be started again from an older one
    worker_side_add *add;
    void *user; // of add
};

// Opens the cluster's corpus, read against its digests, and where this side's model is to be (x->at), all of it the worker's; takes its
// messages. On the cluster's device, if it has one and the job takes it (agent_job_takes_devices).
NEB_MUST_CHECK enum neb_status worker_side_open(struct worker_side *x, struct agent_worker *w);
// st: how the model was made there. The same, or why the job cannot go on without its device; says where it trains.
NEB_MUST_CHECK enum neb_status worker_side_check_device(struct worker_side *x, enum neb_status st);
void worker_side_close(struct worker_side *x);
// Adds a stream. c: key.id, type, role, peer, window_batches, window_start and measured; the rest is filled in. Both ends must have the same
// vocabulary and, with `shards`, the same shards. next: of the checkpoint (agent_stream_open). *out stays this side's. NEB_ERR_LIMIT: a step makes
// larger batches than streams take.
NEB_MUST_CHECK enum neb_status worker_side_stream(struct worker_side *x,
                                                  const struct inter_stream_config *c,
                                                  double batch_bytes, bool shards, uint64_t next,
                                                  struct agent_stream **out);
// Whether a checkpoint is to be written now, between two events: the job says so, or an agent asks.
bool worker_side_due(struct worker_side *x, int64_t at);
// Once all streams are open: how checkpoints are made. add is not asked where the side takes part in rounds: its ops are.
NEB_MUST_CHECK enum neb_status worker_side_start(struct worker_side *x, worker_side_add *add,
                                                 void *user);
// Begins a checkpoint, once the agent has stored all batches that were put before; it is written while training goes on
// (worker_save.c). When it is on disk, credit is given by it. again: so many of the newest batches that were applied are taken once more by
// who goes on from it. final: nothing will be started again from an older one.
NEB_MUST_CHECK enum neb_status worker_side_save(struct worker_side *x, int64_t at, uint64_t again,
                                                bool final);
NEB_MUST_CHECK enum neb_status worker_side_newest(const struct worker_side *x,
                                                  struct intra_ckpt **out); // NEB_ERR_NOT_FOUND
// Until the last checkpoint is on disk and all that was put, but for what was let go, is the others' for good: its agent keeps it only while this worker lives.
NEB_MUST_CHECK enum neb_status worker_side_wait_taken(struct worker_side *x);

#endif
