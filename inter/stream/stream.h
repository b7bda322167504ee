// SPDX-License-Identifier: Apache-2.0
// Streams: typed, ordered batches from one cluster's worker to another's. Each is applied exactly
// once.
//
// There are two endpoints, each a pure state machine: step(stream, now, event) -> actions. They use
// no clock, socket, file or random number. inter/stream/streams.h is the shell that carries out the
// actions, IN ORDER, in the agents of both clusters.
//
//     producer's worker   agent                            agent       consumer's worker
//       put 7 ─────────►  STORE 7 (spool, fsync)
//                         ── HELLO terms ─────────────►
//                         ◄───────────── HELLO terms ──                ATTACH cursor 5,
//                                                                      from its checkpoint
//                         ◄─ GRANT have 5, applied 5 ──
//                         ══ DATA 5, 6, 7 (signed) ═══►   DELIVER 5 ──►
//                         ◄─ GRANT have 8, applied 6 ──   ◄─ APPLIED 6
//       ◄───────── ROOM   ◄─ GRANT durable 6 ──────────   ◄─ DURABLE 6  the oldest checkpoint
//                         DROP below 6                                  has cursor 6
//
// Exactly once. Each batch has a sequence number. The consumer's checkpoint holds its cursor (the
// number of the next batch) in one file with what it has learned. After a crash it attaches with
// that cursor and gets the same batches again. The producer's agent keeps every batch on disk until
// no checkpoint of the consumer needs it. A producer that restarts from a checkpoint puts the same
// batches again, and the batch that the spool already holds is kept. So the cursor is the only
// state that must not be lost, and no side goes back beyond its own checkpoint.
//
// A consumer that lost its checkpoints and can go on without the earlier batches attaches ANYWHERE.
// It begins (BEGIN) at the base of the spool that the producer's HELLO names, and grants nothing
// before.
//
// Credit. The producer sends batch n if n < applied + window_batches and the bytes from `applied`
// on fit window_bytes (one batch always fits). This bounds the consumer's memory and the producer's
// lead. With window_start, the window begins there and doubles up to window_batches. It doubles
// when a grant shows that the consumer had nothing left while the producer had no credit: a round
// trip then takes longer than the window lasts. A full link looks the same, but there the
// bytes stop the growth. The consumer grants window_batches, after every half of window_start. The
// producer decides how much of it to use.
//
// A put is allowed below ROOM: within the window and within the spool. The spool also holds batches
// that the consumer has applied but not saved. When these fill half of the spool, the consumer is
// asked for a checkpoint (CHECKPOINT).
//
// Terms. Both sides name what must be equal before the first batch: digests of the vocabulary and
// the shards. If one differs, nothing is sent, and both workers get its name and both digests
// (TERMS).
//
// Acknowledgements. A GRANT is sent when half of the window was applied, or after five seconds with
// news. More GRANTs would cost up to a tenth of a batch each, and tell nothing that the producer
// waits for. With `measured` (the producer measures the path, inter/stream/path.h), a GRANT is also
// sent with the first batch after 100 ms and with every 16 KiB.
//
// Losses. Links lose messages when they break, and control and data overtake each other. So every
// GRANT holds absolute positions of a session. A session begins with each ATTACH. If one connection
// of a link breaks (WAY_LOST), its batches are sent again before new ones. The producer goes back
// to `have` after a reconnect, and when nothing was acknowledged for twenty seconds plus three
// times the time that the batches in flight take at the measured rate. That time doubles after each
// attempt in vain, up to ten minutes: TCP may still deliver them, and copies only delay what is
// new.
//
// Data is signed by its producer, like an update manifest. The link authenticates control.
#ifndef INTER_STREAM_H
#define INTER_STREAM_H
#include "inter/round/node.h"
#include "inter/stream/path.h"

enum {
    INTER_STREAM_BATCH_MAX = INTER_CHUNK_MAX, // bytes of one batch
    INTER_STREAM_WINDOW_MAX = 1024,           // batches
    INTER_STREAM_WINDOW_BYTES = 16 << 20,     // of batches that a consumer has not applied yet
    INTER_STREAM_SPOOL_MAX = 1 << 16,         // batches
    INTER_STREAM_TERMS_MAX = 4,
    INTER_STREAM_TERM_NAME = 23, // bytes of a name
};
#define INTER_STREAM_ANYWHERE UINT64_MAX // for ATTACH, instead of a cursor

enum inter_stream_type {
    INTER_STREAM_REPLACEMENTS = 1, // compress/replaced.h
    INTER_STREAM_SOFT_LABELS,      // from a teacher
    INTER_STREAM_REQUESTS,         // what a student wants labelled
    INTER_STREAM_EMBEDDINGS,       // rows that generator and discriminator share
    INTER_STREAM_TYPES,
};
enum inter_stream_role { INTER_STREAM_PRODUCER, INTER_STREAM_CONSUMER };

struct inter_stream_term {
    char name[INTER_STREAM_TERM_NAME + 1]; // "vocabulary", "shards"
    uint8_t sha256[INTER_SHA_BYTES];
};

struct inter_stream_key {
    uint8_t job[INTER_ID_BYTES];
    uint16_t id; // within the job; the same on both sides
};

struct inter_stream_config {
    struct inter_stream_key key;
    enum inter_stream_type type;
    enum inter_stream_role role;
    uint32_t peer;           // link peer of the other side
    uint32_t batch_bytes;    // largest batch, 1..INTER_STREAM_BATCH_MAX
    uint32_t window_batches; // limit of unapplied batches, 1..INTER_STREAM_WINDOW_MAX
    // Where the window begins, 1..window_batches; 0: always window_batches.
    uint32_t window_start;
    uint32_t window_bytes; // at least batch_bytes
    // Limits on the producer's disk.
    uint32_t spool_batches; // window_batches..INTER_STREAM_SPOOL_MAX
    uint64_t spool_bytes;   // at least window_bytes
    bool measured;          // consumer: acknowledge soon, for a producer that measures the path
    uint32_t n_terms;
    struct inter_stream_term terms[INTER_STREAM_TERMS_MAX];
};

enum inter_stream_event_kind {
    INTER_STREAM_EV_TICK, // time passes; about every 200 ms
    INTER_STREAM_EV_PEER_UP,
    INTER_STREAM_EV_PEER_DOWN,
    INTER_STREAM_EV_MESSAGE,     // bulk, data, len: one message of this stream with its header
    INTER_STREAM_EV_PUT,         // producer: seq, data, len
    INTER_STREAM_EV_SEND_FAILED, // producer: seq was not sent: the link's queue is full
    INTER_STREAM_EV_CONN_LOST,   // way: a connection to the peer broke; 0: any of them may have
    // Consumer: seq is its cursor or ANYWHERE; session is greater than any before. Producer:
    // answers with ROOM.
    INTER_STREAM_EV_ATTACH,
    INTER_STREAM_EV_DETACH,  // consumer: its worker is gone
    INTER_STREAM_EV_APPLIED, // consumer: all batches below seq are applied
    INTER_STREAM_EV_DURABLE, // consumer: no checkpoint of its own has a cursor below seq
};
struct inter_stream_event {
    enum inter_stream_event_kind kind;
    bool bulk;
    uint64_t seq, session, way;
    const uint8_t *data;
    size_t len;
};

enum inter_stream_fault {
    INTER_STREAM_FAULT_MALFORMED, // a message or put that does not parse or fit: dropped
    INTER_STREAM_FAULT_DENIED,    // a wrong signature: dropped
    INTER_STREAM_FAULT_DUPLICATE, // a batch that is here already: dropped
    // a batch beyond the window: dropped; a put with a gap or without room: refused
    INTER_STREAM_FAULT_OUTSIDE,
    INTER_STREAM_FAULT_OVERSIZE, // a batch larger than agreed: refused
    INTER_STREAM_FAULT_CONFLICT, // other bytes under a used number: the first bytes are kept
    INTER_STREAM_FAULT_VERSION,  // the peer speaks another version; reported once per link
    INTER_STREAM_FAULT_LATE, // data without a receiver: the worker is away, or refused the terms
    INTER_STREAM_FAULTS
};
const char *inter_stream_fault_name(enum inter_stream_fault f);

enum inter_stream_action_kind {
    INTER_STREAM_ACT_SEND_CONTROL, // bytes: a control message to the peer; may get lost
    INTER_STREAM_ACT_SEND,       // seq: send inter_stream_data_header and the spool's bytes on bulk
    INTER_STREAM_ACT_STORE,      // seq, view, len: durable before any later action
    INTER_STREAM_ACT_DROP,       // seq: remove the batches below it; need not be durable
    INTER_STREAM_ACT_ROOM,       // seq: the producer's worker may put below it; stored, durable
    INTER_STREAM_ACT_BEGIN,      // seq: where a consumer that attached ANYWHERE begins
    INTER_STREAM_ACT_DELIVER,    // seq, view, len: for the consumer's worker
    INTER_STREAM_ACT_CHECKPOINT, // the consumer's worker must save: the producer's spool fills
    INTER_STREAM_ACT_TERMS,      // term, ours, theirs: they differ, so nothing is sent
    // seq: the consumer's cursor; the producer's oldest batch (durable) is newer
    INTER_STREAM_ACT_LOST,
    INTER_STREAM_ACT_FAULT,
};
struct inter_stream_action {
    enum inter_stream_action_kind kind;
    uint64_t seq, durable;
    uint64_t stored;     // ROOM: all below are on disk here, or saved by the consumer
    size_t at, size;     // SAY: part of `bytes`
    const uint8_t *view; // valid until the next step
    size_t len;
    neb_ns put_at; // DELIVER: as the producer claims
    char term[INTER_STREAM_TERM_NAME + 1];
    // zero: that side does not name the term
    uint8_t ours[INTER_SHA_BYTES], theirs[INTER_SHA_BYTES];
    enum inter_stream_fault fault;
};
struct inter_stream_actions {
    struct inter_stream_action *list; // owned
    size_t n, cap;
    struct neb_buf bytes;
};
void inter_stream_actions_free(struct inter_stream_actions *a);

struct inter_stream;
// crypto is borrowed. NEB_ERR_INVALID: a limit is out of range. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_stream_create(const struct inter_stream_config *c,
                                                   const struct inter_node_crypto *crypto,
                                                   struct inter_stream **out);
void inter_stream_destroy(struct inter_stream **s);
// Producer, after a restart: first restore the base of the spool, then each batch in order, then
// send events. NEB_ERR_CORRUPT: not the next batch, or too large.
void inter_stream_restore_base(struct inter_stream *s, uint64_t base);
NEB_MUST_CHECK enum neb_status inter_stream_restore(struct inter_stream *s, uint64_t seq,
                                                    const void *p, size_t n);

// Clears `out` and fills it. NEB_ERR_NOMEM. NEB_ERR_DENIED: this node cannot sign.
NEB_MUST_CHECK enum neb_status inter_stream_step(struct inter_stream *s, neb_ns now,
                                                 const struct inter_stream_event *e,
                                                 struct inter_stream_actions *out);
// Appends the header of batch `seq` to out. The header's signature covers the batch. put_at: time
// of day of the put (0: not known); the consumer measures the age of a batch with it.
NEB_MUST_CHECK enum neb_status inter_stream_data_header(const struct inter_stream *s, uint64_t seq,
                                                        neb_ns put_at, const void *p, size_t n,
                                                        struct neb_buf *out);
// Call right after SEND: batch seq was sent on connection `way` (above 0).
void inter_stream_sent_on(struct inter_stream *s, uint64_t seq, uint64_t way);
// Time since batch seq was put; -1: it was put before this endpoint was created.
neb_ns inter_stream_put_age(const struct inter_stream *s, neb_ns now, uint64_t seq);

struct inter_stream_stats {          // of this endpoint since it was created
    uint64_t base, next;             // producer: the spool; consumer: durable, and next to deliver
    uint64_t applied;                // by the consumer, as known here
    uint64_t batches, bytes, resent; // sent or delivered; batches sent again
    uint64_t held_bytes; // producer: in the spool; consumer: waiting for an earlier batch
    uint64_t have;       // producer: the consumer has all below
    uint32_t window;     // batches; producer: in force now; consumer: granted
    bool agreed;         // the terms are equal
    struct inter_stream_measure path; // producer: at its last step
    uint64_t faults[INTER_STREAM_FAULTS];
};
void inter_stream_stats(const struct inter_stream *s, struct inter_stream_stats *out);
const struct inter_stream_config *inter_stream_config_of(const struct inter_stream *s);

#endif
