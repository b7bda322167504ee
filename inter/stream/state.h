// SPDX-License-Identifier: Apache-2.0
// One endpoint of a stream (struct inter_stream), shared by the stream*.c files and by nobody else:
//
//     stream.c            created, restored, one step: events come in; terms; what both roles need
//     stream_producer.c   the spool's bookkeeping, what may be sent, room for the worker
//     stream_consumer.c   order, delivery, credit
#ifndef INTER_STREAM_STATE_H
#define INTER_STREAM_STATE_H
#include "inter/stream/wire.h"

#define STREAM_HELLO_EVERY NEB_S // until the other side's has come

struct stream_entry { // one batch of the spool, or of what the consumer has not saved
    uint32_t bytes;
    uint64_t tag; // first word of its SHA-256
    neb_ns at;    // producer: when it was put; 0: before
    uint64_t way; // producer: the connection it was last sent on; 0: it is not there any more
};

struct stream_slot { // consumer: a batch that came before its turn
    bool full;
    neb_ns put_at;
    struct neb_buf b;
};

struct inter_stream {
    struct inter_stream_config c;
    const struct inter_node_crypto *crypto;
    struct inter_stream_stats stats;
    struct inter_stream_actions *out;   // of the step in progress
    struct inter_stream_action nowhere; // where actions go that no memory is left for
    neb_ns now;
    bool said_version;
    bool up, met, refused;     // connected; its HELLO is here; its terms differ (said once)
    neb_ns hello_at;           // ours, last
    struct stream_entry *ring; // (spool_batches) of [base, next)
    uint64_t base, next;       // producer: the spool. consumer: not saved yet; next to be delivered
    uint64_t ring_bytes;
    uint64_t applied, durable;
    uint64_t session; // of the grant: consumer's own, producer's newest heard; 0: none
    // producer
    // what the consumer has; next to send; one past all that was ever sent
    uint64_t have, sent, high;
    bool holes;      // some below `sent` went on connections that are not there any more
    uint64_t mended; // `have` when it was last sent again so
    neb_ns mend_at;  // not before
    uint32_t mends;  // how often in a row
    uint64_t fresh;  // `sent` before the last batches left: what was below it went again
    uint32_t window_batches, window_bytes; // in force: the smaller of both sides', and of `window`
    uint32_t window;                       // grows from window_start to window_batches of c
    uint64_t *waited; // (window_batches of c) n at n % window_batches: batch n waited for credit
    uint64_t widened; // grants that apply no more tell nothing of the window in force
    neb_ns moved, blocked; // last progress of `have` or first send; nothing is sent before
    uint32_t vain;         // how often in a row batches were sent again and nothing came of it
    uint64_t room_said, durable_said, stored_said;
    neb_ns dropped; // from the spool, last; 0: never
    bool lost;      // said in this session
    struct inter_stream_path *path;
    // consumer
    bool attached;
    bool anywhere; // attached, but it begins where the producer will say that its spool does
    struct stream_slot *slots; // (window_batches) batch n in n % window_batches
    // slots that the last step delivered: their memory goes at the next one
    uint64_t free_from, free_to;
    struct inter_stream_grant said;
    neb_ns said_at;
    uint64_t said_bytes;  // delivered then
    uint64_t asked;       // for a checkpoint, when this was applied
    uint64_t asked_bytes; // applied since
    uint64_t kept_from;   // what the producer's spool begins with, as far as is known here
};

static inline uint32_t stream_window_start(const struct inter_stream_config *c) {
    return c->window_start ? c->window_start : c->window_batches;
}

// stream.c
struct inter_stream_action *stream_act(struct inter_stream *s, enum inter_stream_action_kind kind);
void stream_fault(struct inter_stream *s, enum inter_stream_fault f);
struct stream_entry *stream_entry_of(const struct inter_stream *s, uint64_t seq);
uint64_t stream_tag_of(const void *p, size_t n);
void stream_ring_add(struct inter_stream *s, size_t n, uint64_t tag);
void stream_ring_drop(struct inter_stream *s, uint64_t below);
// what was appended to the step's bytes from `at` on is said
void stream_end_message(struct inter_stream *s, size_t at);
void stream_send_hello(struct inter_stream *s, bool ask);

// stream_producer.c
void stream_pump(struct inter_stream *s); // sends what credit allows
void stream_report_room(struct inter_stream *s, bool always);
void stream_put(struct inter_stream *s, const struct inter_stream_event *e);
void stream_on_grant(struct inter_stream *s, const struct inter_stream_grant *g);
void stream_send_failed(struct inter_stream *s, uint64_t seq);
void stream_way_lost(struct inter_stream *s, uint64_t way);
void stream_producer_tick(struct inter_stream *s);

// stream_consumer.c
void stream_send_grant(struct inter_stream *s);
void stream_free_delivered(struct inter_stream *s); // what the step before delivered
void stream_clear_slots(struct inter_stream *s);
void stream_attach(struct inter_stream *s, const struct inter_stream_event *e);
void stream_met(struct inter_stream *s, uint64_t base); // the producer has said hello
void stream_on_data(struct inter_stream *s, const struct inter_stream_message *m);
void stream_on_applied(struct inter_stream *s, uint64_t seq);
void stream_on_durable(struct inter_stream *s, uint64_t seq);
void stream_consumer_tick(struct inter_stream *s);

#endif
