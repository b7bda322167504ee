// SPDX-License-Identifier: Apache-2.0
// A worker's end of a stream (inter/stream/stream.h): messages to and from its agent.
//
//     worker                                          agent
//       agent_stream_open      ── stream-open ──────►  endpoint; spool restored
//       agent_stream_put 7     ── stream-put ───────►  on disk, then sent               producer
//                              ◄─ stream-room ───────  limit, durable
//                              ◄─ stream-begin 5 ────  if it was opened ANYWHERE        consumer
//                              ◄─ stream-batch 5 ────
//       agent_stream_next, then
//       agent_stream_applied   ── stream-applied ───►  credit
//       agent_stream_saved     ── stream-durable ───►  after a checkpoint is on disk
//                              ◄─ stream-checkpoint ─  save soon: the producer's spool fills
//                              ◄─ stream-refused ────  it cannot go on, and why
//
// The consumer's checkpoint holds `next`, which agent_stream_open takes again. Memory: at most the
// stream's window. Without an agent (ipc NULL) the stream is a queue between two sides in one
// process.
#ifndef AGENT_EXCHANGE_STREAM_H
#define AGENT_EXCHANGE_STREAM_H
#include "agent/proc/ipc.h"
#include "inter/stream/stream.h"

enum { AGENT_STREAM_GENERATIONS = 16 };

// What a consumer waited for: its first batch (connections, the other side's start, one-way delay);
// the other side, if a link without delay would not have brought the batch sooner; or the link.
struct agent_stall {
    double start_s, peer_s, link_s;
};

struct agent_stream {
    struct inter_stream_config c;
    struct agent_ipc *ipc; // borrowed; NULL: both ends are here
    uint64_t next;         // producer: the next batch to put; consumer: the next one to apply
    // Producer: it may put batches below limit. Those below stored are on the agent's disk, which a
    // checkpoint waits for. The consumer has saved those below durable.
    uint64_t limit, stored, durable;
    uint64_t taken, arrived; // producer: the consumer has applied, and received, the batches below
    struct inter_stream_measure path; // producer of a measured stream
    bool anywhere;        // consumer: it does not know yet where to begin, and next has no meaning
    bool let_go;          // producer: side_wait_taken need not wait for this consumer
    bool want_checkpoint; // consumer: save, then call agent_stream_saved
    char refused[1024];   // not empty: why the stream cannot go on
    bool differs;         // a term differs, so no restart helps
    uint64_t bytes, batches; // put or applied by this process
    struct neb_buf *queue;   // consumer: (window_batches), batch n at n % window_batches
    uint64_t have;           // consumer: one past the newest batch in the queue
    neb_ns *put_at;          // (window_batches) when a batch was put, by our clock; 0: unknown
    neb_ns waits;            // since when it waits for a batch; 0: it does not wait
    // When the current batch was begun; for the previous batch, when it was put and how long it
    // took here.
    neb_ns begun, last_put, last_took;
    struct agent_stall stall;
    // Cursors of the newest checkpoints, this process's and the one that it began with: a ring.
    uint64_t saved[AGENT_STREAM_GENERATIONS];
    uint64_t n_saved;
};

// Sets the numbers that do not depend on the role: batch_bytes, the window, the spool.
// c->window_batches and window_start are set.
void agent_stream_limits(struct inter_stream_config *c, double batch_bytes);
// c->key.job is ignored, and c->peer is the cluster index of the other side: the agent knows the
// job and its members. next: from the checkpoint, 0 without one. A consumer may pass
// INTER_STREAM_ANYWHERE: begin where the producer still has batches. Sends the request; the answer
// comes as events.
NEB_MUST_CHECK enum neb_status agent_stream_open(struct agent_ipc *ipc,
                                                 const struct inter_stream_config *c, uint64_t next,
                                                 struct agent_stream **out);
void agent_stream_close(struct agent_stream **s);
// Handles an event and returns true if it belongs to this stream. The caller keeps the message.
bool agent_stream_event(struct agent_stream *s, const struct agent_ipc_msg *m);
// Puts batch `next` and advances next. NEB_ERR_AGAIN: no room yet, wait for events.
NEB_MUST_CHECK enum neb_status agent_stream_put(struct agent_stream *s, const void *p, size_t n);
// The batch `next`, valid until agent_stream_applied. NEB_ERR_AGAIN: it has not come yet.
NEB_MUST_CHECK enum neb_status agent_stream_next(struct agent_stream *s, const uint8_t **p,
                                                 size_t *n);
// {"start_s", "peer_s", "link_s"}
json_t *agent_stream_stall(const struct agent_stream *s);
NEB_MUST_CHECK enum neb_status agent_stream_applied(struct agent_stream *s);
// Consumer: continues at batch `next` and gives up the batches before it, even those that were not
// put yet. The producer's worker skips them as it skips stored ones.
NEB_MUST_CHECK enum neb_status agent_stream_skip(struct agent_stream *s, uint64_t next);
// Reports that a checkpoint with this cursor is on disk, one of `keep` generations: batches below
// the oldest cursor may go. final: no side will restart from an older checkpoint.
NEB_MUST_CHECK enum neb_status agent_stream_saved(struct agent_stream *s, uint64_t cursor, int keep,
                                                  bool final);

#endif
