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
// The consumer's checkpoint holds `next`: agent_stream_open takes it again. Memory: at most the stream's window.
#ifndef AGENT_WORKER_STREAM_H
#define AGENT_WORKER_STREAM_H
#include "agent/proc/ipc.h"
#include "inter/stream/stream.h"

enum { AGENT_STREAM_GENERATIONS = 16 };

// What a consumer waited for: its first batch (start-up: connections, the other side's set-up, one way); the other side, where
// a link without delay would have brought the batch no sooner; or the link.
struct agent_stall {
    double start_s, peer_s, link_s;
};

struct agent_stream {
    struct inter_stream_config c;
    struct agent_ipc *ipc; // borrowed
    uint64_t next;         // producer: the next to put; consumer: the next to apply
    // Producer: puts below limit are taken; what is below stored is on the agent's disk, which a checkpoint waits for; the
    // consumer has what is below durable.
    uint64_t limit, stored, durable;
    uint64_t taken, arrived;          // the consumer has applied, and has, what is below
    struct inter_stream_measure path; // producer of a measured stream
    bool anywhere; // consumer: where it begins is not known yet, and next means nothing
    bool
        let_go; // producer: it is of no matter whether the consumer gets what was put (worker_side_wait_taken)
    bool want_checkpoint;    // consumer: save, then agent_stream_saved
    char refused[1024];      // not empty: why the stream cannot go on
    uint64_t bytes, batches; // put or applied by this process
    struct neb_buf *queue;   // consumer: (window_batches) batch n in n % window_batches
    uint64_t have;           // consumer: one past the newest in the queue
    neb_ns *put_at;          // (window_batches) when a batch was put, by our clock; 0: not known
    neb_ns waits;            // since when nothing is here; 0: something is
    // the batch that is being applied; of the one before: put, and how long it took here
    neb_ns begun, last_put, last_took;
    struct agent_stall stall;
    // cursors of the newest checkpoints: of the one that this process began with, and its own; a ring
    uint64_t saved[AGENT_STREAM_GENERATIONS];
    uint64_t n_saved;
};

// c.key.job is not read, and c.peer is the other side's cluster index: the agent knows the job and its members. next: of the
// checkpoint, 0 without one; consumer: INTER_STREAM_ANYWHERE, where the producer still has batches. Sends the request; the answer comes as events.
NEB_MUST_CHECK enum neb_status agent_stream_open(struct agent_ipc *ipc,
                                                 const struct inter_stream_config *c, uint64_t next,
                                                 struct agent_stream **out);
void agent_stream_close(struct agent_stream **s);
// Takes an event of this stream: true; false: it is another's. The message stays the caller's.
bool agent_stream_event(struct agent_stream *s, const struct agent_ipc_msg *m);
// Puts batch `next` and counts it up. NEB_ERR_AGAIN: no room yet, wait for events.
NEB_MUST_CHECK enum neb_status agent_stream_put(struct agent_stream *s, const void *p, size_t n);
// The batch `next`, valid until agent_stream_applied. NEB_ERR_AGAIN: it is not here yet.
NEB_MUST_CHECK enum neb_status agent_stream_next(struct agent_stream *s, const uint8_t **p,
                                                 size_t *n);
// {"start_s", "peer_s", "link_s"}
json_t *agent_stream_stall(const struct agent_stream *s);
// The same for people, of a report; nothing where there is none.
void agent_stall_print(const char *name, const json_t *stall, FILE *out);
NEB_MUST_CHECK enum neb_status agent_stream_applied(struct agent_stream *s);
// Consumer: goes on at batch `next`, and lets those before it go, also such as were not put yet. The producer's worker passes over them
// as over what is stored.
NEB_MUST_CHECK enum neb_status agent_stream_skip(struct agent_stream *s, uint64_t next);
// A checkpoint with this cursor is on disk, one of `keep` generations: batches below the oldest's cursor may go. final:
// nothing will be started again from an older one.
NEB_MUST_CHECK enum neb_status agent_stream_saved(struct agent_stream *s, uint64_t cursor, int keep,
                                                  bool final);

#endif
