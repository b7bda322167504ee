// SPDX-License-Identifier: Apache-2.0
// Streams: typed, ordered batches from one cluster's worker to another's, each applied exactly once.
//
// Two endpoints, each a pure state machine: step(stream, now, event) -> actions, no clock, socket, file or random number
// inside. inter/stream/streams.h is the shell that carries the actions out, IN ORDER, in the agents of both clusters.
//
//     producer's worker     agent                                agent        consumer's worker
//       put 7 ───────────►  STORE 7 (spool, fsync)
//                           ── HELLO terms ─────────────────►
//                           ◄───────────────── HELLO terms ──                 ATTACH cursor 5, out of its checkpoint
//                           ◄─ GRANT have 5, applied 5 ──────
//                           ══ DATA 5, 6, 7 (signed) ═══════►   DELIVER 5 ──►
//                           ◄─ GRANT have 8, applied 6 ──────   ◄─ APPLIED 6
//       ◄─────────── ROOM   ◄─ GRANT durable 6 ──────────────   ◄─ DURABLE 6   its oldest checkpoint holds cursor 6
//                           DROP below 6
//
// Exactly once. A batch has a sequence number. The consumer's checkpoint holds, in one file with what it has learned, the
// number of the next batch: its cursor. After a crash it attaches with that cursor and gets the same batches again. The
// producer's agent keeps every batch on disk until the consumer says that no checkpoint of its own is older; a producer that
// starts again from a checkpoint puts the same batches again, and what the spool holds under a number stands. So the cursor
// is the only state that must not be lost, and neither side ever has to go back beyond its own checkpoint.
//
// A consumer whose checkpoints are gone, and which can go on without the batches before, attaches ANYWHERE: it begins (BEGIN) where the
// producer's HELLO says that the spool does, and grants nothing before.
//
// Credit. The producer sends batch n when n < applied + window_batches and the bytes from `applied` on fit window_bytes
// (one batch always fits): what lies in the consumer's memory is bounded, and the producer does not run ahead of it by more.
// With window_start the window begins there and doubles, up to window_batches, when a grant shows that the consumer had nothing left
// while the producer was not allowed more: a round trip takes longer than the window lasts (`ahead: 16` at 10 ms a step and 300 ms).
// A link that is full looks the same, but there the bytes end it. The consumer grants window_batches and half of window_start at a
// time; how much of it to use is the producer's own decision.
// A put is allowed below ROOM: within the window, and within the spool, which also holds what the consumer has applied but
// not saved; when that fills half of the spool the consumer is asked for a checkpoint (CHECKPOINT).
//
// Terms. Both sides name what must be equal before the first batch: digests of the vocabulary, of the shards. Where one
// differs nothing is sent, and both workers get its name and both digests (TERMS).
//
// Acknowledgements. A GRANT goes out when half of the window was applied, or after five seconds with news: at slow steps it costs
// as much as a tenth of a batch, and says nothing that the producer waits for. Where the producer wants to measure the way (`measured`, inter/stream/path.h), also with the first batch after 100 ms and with every 16 KiB.
//
// Links lose messages when they break, and control and data overtake each other. Every GRANT holds absolute positions of a
// session, which begins with each ATTACH. Where one connection of a link broke (WAY_LOST), what went on it goes again before anything new;
// the producer goes back to `have` after a reconnect, or when there is no progress for
// twenty seconds and three times as long as what is on its way takes at the measured rate (twice as long after each time that was in vain, ten
// minutes at most): TCP still carries it, and copies only queue before what is new.
// Data is signed by its producer as update manifests are; control is the link's own authenticated sender's.
#ifndef INTER_STREAM_H
#define INTER_STREAM_H
#include "inter/round/node.h"
#include "inter/stream/path.h"

enum {
    INTER_STREAM_BATCH_MAX = INTER_CHUNK_MAX, // bytes of one batch
    INTER_STREAM_WINDOW_MAX = 1024,           // batches
    INTER_STREAM_SPOOL_MAX = 1 << 16,         // batches
    INTER_STREAM_TERMS_MAX = 4,
    INTER_STREAM_TERM_NAME = 23, // bytes of its name
};
#define INTER_STREAM_ANYWHERE UINT64_MAX // of ATTACH, instead of a cursor

enum inter_stream_type {
    INTER_STREAM_REPLACEMENTS = 1, // compress/replaced.h
    INTER_STREAM_SOFT_LABELS,      // a teacher's
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
    uint16_t id; // within the job: both sides use the same
};

struct inter_stream_config {
    struct inter_stream_key key;
    enum inter_stream_type type;
    enum inter_stream_role role;
    uint32_t peer;           // link peer of the other side
    uint32_t batch_bytes;    // largest batch, 1..INTER_STREAM_BATCH_MAX
    uint32_t window_batches; // not yet applied by the consumer, 1..INTER_STREAM_WINDOW_MAX
    // 1..window_batches: where the window begins; 0: it is window_batches throughout
    uint32_t window_start;
    uint32_t window_bytes; // at least batch_bytes
    // on the producer's disk, at least window_batches, up to INTER_STREAM_SPOOL_MAX
    uint32_t spool_batches;
    uint64_t spool_bytes; // at least window_bytes
    bool measured;        // consumer: acknowledges at once, for a producer that follows the link
    uint32_t n_terms;
    struct inter_stream_term terms[INTER_STREAM_TERMS_MAX];
};

enum inter_stream_event_kind {
    INTER_STREAM_EV_TICK, // time passes: about every 200 ms
    INTER_STREAM_EV_PEER_UP,
    INTER_STREAM_EV_PEER_DOWN,
    INTER_STREAM_EV_MESSAGE,     // bulk, data, len: one message of this stream, header and all
    INTER_STREAM_EV_PUT,         // producer: seq, data, len
    INTER_STREAM_EV_SEND_FAILED, // producer: seq: the link's queue is full, not sent
    INTER_STREAM_EV_CONN_LOST,   // way: a connection to the peer broke; 0: any may have
    INTER_STREAM_EV_ATTACH, // consumer: seq is its cursor, or ANYWHERE; session is greater than any before. producer: say ROOM
    INTER_STREAM_EV_DETACH,  // consumer: its worker is gone
    INTER_STREAM_EV_APPLIED, // consumer: seq: all below are applied
    INTER_STREAM_EV_DURABLE, // consumer: seq: no checkpoint of its own has a cursor below
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
    INTER_STREAM_FAULT_DENIED,    // a signature that does not fit: dropped
    INTER_STREAM_FAULT_DUPLICATE, // a batch that is here already: dropped
    INTER_STREAM_FAULT_OUTSIDE, // a batch beyond the window: dropped; a put that leaves a gap or has no room: refused
    INTER_STREAM_FAULT_OVERSIZE, // a batch larger than agreed: refused
    INTER_STREAM_FAULT_CONFLICT, // other bytes under a number that is taken: the first stand
    INTER_STREAM_FAULT_VERSION, // the other side's program speaks another version: said once a link
    INTER_STREAM_FAULT_LATE,    // data for nobody: the worker is away, or of another stream
    INTER_STREAM_FAULTS
};
const char *inter_stream_fault_name(enum inter_stream_fault f);

enum inter_stream_action_kind {
    INTER_STREAM_ACT_SEND_CONTROL, // bytes: a control message to the peer; may be lost
    INTER_STREAM_ACT_SEND, // seq: inter_stream_data_header, then the spool's bytes, on a bulk connection
    INTER_STREAM_ACT_STORE,   // seq, view, len: durable before anything after it
    INTER_STREAM_ACT_DROP,    // seq: remove what is below; durable at leisure
    INTER_STREAM_ACT_ROOM,    // seq: the producer's worker may put what is below; stored, durable
    INTER_STREAM_ACT_BEGIN,   // seq: where a consumer that attached ANYWHERE begins
    INTER_STREAM_ACT_DELIVER, // seq, view, len: to the consumer's worker
    INTER_STREAM_ACT_CHECKPOINT, // the consumer's worker shall save: the producer's spool fills
    INTER_STREAM_ACT_TERMS,      // term, ours, theirs: nothing will be sent
    INTER_STREAM_ACT_LOST, // seq: the consumer's cursor is below what the producer still has (durable)
    INTER_STREAM_ACT_FAULT, // fault
};
struct inter_stream_action {
    enum inter_stream_action_kind kind;
    uint64_t seq, durable;
    uint64_t stored;     // ROOM: all below are on disk here, or with the consumer for good
    size_t at, size;     // of `bytes` (SAY)
    const uint8_t *view; // valid until the next step
    size_t len;
    neb_ns put_at; // DELIVER: as the producer says
    char term[INTER_STREAM_TERM_NAME + 1];
    uint8_t ours[INTER_SHA_BYTES], theirs[INTER_SHA_BYTES]; // zero: the side does not name it
    enum inter_stream_fault fault;
};
struct inter_stream_actions {
    struct inter_stream_action *list; // owned
    size_t n, cap;
    struct neb_buf bytes;
};
void inter_stream_actions_free(struct inter_stream_actions *a);

struct inter_stream;
// NEB_ERR_INVALID: a limit out of range. crypto is borrowed.
NEB_MUST_CHECK enum neb_status inter_stream_create(const struct inter_stream_config *c,
                                                   const struct inter_node_crypto *crypto,
                                                   struct inter_stream **out);
void inter_stream_destroy(struct inter_stream **s);
// Producer, after a restart: first where the spool begins, then each batch in order. Then events. NEB_ERR_CORRUPT: not the batch
// that is due, or larger than a batch may be.
void inter_stream_restore_base(struct inter_stream *s, uint64_t base);
NEB_MUST_CHECK enum neb_status inter_stream_restore(struct inter_stream *s, uint64_t seq,
                                                    const void *p, size_t n);

// Clears `out` and fills it. NEB_ERR_NOMEM; NEB_ERR_DENIED when this node cannot sign.
NEB_MUST_CHECK enum neb_status inter_stream_step(struct inter_stream *s, neb_ns now,
                                                 const struct inter_stream_event *e,
                                                 struct inter_stream_actions *out);
// The header that goes before batch `seq` (appended to out), signed over its bytes.
// put_at: time of day at which it was put (0: not known), which the consumer's waiting is told apart by.
NEB_MUST_CHECK enum neb_status inter_stream_data_header(const struct inter_stream *s, uint64_t seq,
                                                        neb_ns put_at, const void *p, size_t n,
                                                        struct neb_buf *out);
// Batch seq was sent, right after its SEND: by which connection (above 0).
void inter_stream_sent_on(struct inter_stream *s, uint64_t seq, uint64_t way);
// How long ago batch seq was put; -1: before this endpoint was created.
neb_ns inter_stream_put_age(const struct inter_stream *s, neb_ns now, uint64_t seq);

struct inter_stream_stats { // of this endpoint since it was created
    uint64_t base, next;    // producer: the spool; consumer: durable, and the next to be delivered
    uint64_t applied;       // by the consumer, as known here
    uint64_t batches, bytes, resent; // sent or delivered; batches sent again
    uint64_t held_bytes; // producer: in the spool; consumer: waiting for an earlier batch
    uint64_t have;       // producer: the consumer has all below
    uint32_t window;     // producer: batches, as in force now; consumer: what it grants
    bool agreed;         // terms are equal
    struct inter_stream_measure path; // producer, when last heard
    uint64_t faults[INTER_STREAM_FAULTS];
};
void inter_stream_stats(const struct inter_stream *s, struct inter_stream_stats *out);
const struct inter_stream_config *inter_stream_config_of(const struct inter_stream *s);

#endif
