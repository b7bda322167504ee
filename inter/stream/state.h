// SPDX-License-Identifier: Apache-2.0
// One endpoint of a stream (struct inter_stream). Only these files include it:
//
//     stream.c     create, restore, one step: dispatch of events, terms, code of both roles
//     producer.c   the spool's bookkeeping, what to send, room for the worker
//     consumer.c   order, delivery, credit
#ifndef INTER_STREAM_STATE_H
#define INTER_STREAM_STATE_H
#include "inter/stream/wire.h"

#define STREAM_HELLO_EVERY NEB_S // until the peer's HELLO is here

struct stream_entry { // producer: a batch of the spool; consumer: a batch not saved yet
    uint32_t bytes;
    uint64_t tag; // first word of its SHA-256
    neb_ns at;    // producer: time of the put; 0: before this endpoint was created
    uint64_t way; // producer: connection that carried it last; 0: none, or it broke
};

struct stream_slot { // consumer: a batch that came out of order
    bool full;
    neb_ns put_at;
    struct neb_buf b;
};

struct inter_stream {
    struct inter_stream_config c;
    const struct inter_node_crypto *crypto;
    struct inter_stream_stats stats;
    struct inter_stream_actions *out;   // of the current step
    struct inter_stream_action nowhere; // takes an action that found no memory
    neb_ns now;
    bool said_version;
    bool up, met, refused;     // connected; its HELLO is here; its terms differ
    neb_ns hello_at;           // our last HELLO
    struct stream_entry *ring; // (spool_batches) entries of [base, next)
    uint64_t base, next;       // producer: the spool; consumer: not saved yet, and next to deliver
    uint64_t ring_bytes;
    uint64_t applied, durable;
    uint64_t session; // consumer: its own; producer: the newest in a GRANT; 0: none
    // ---- producer ----
    // `have`: the consumer has all below; `sent`: next to send; `high`: one past all ever sent.
    uint64_t have, sent, high;
    bool holes;      // batches below `sent` were on connections that broke
    uint64_t mended; // `have` at the last resend of such a batch
    neb_ns mend_at;  // no resend before this time
    uint32_t mends;  // resends in a row
    uint64_t fresh;  // `sent` before the last step's sends: batches below were resent
    uint32_t window_batches, window_bytes; // in force: the smaller of both sides' and of `window`
    uint32_t window;                       // grows from c.window_start to c.window_batches
    uint64_t *waited;      // (c.window_batches) n at n % window_batches: batch n waited for credit
    uint64_t widened;      // a grant up to here tells nothing about the current window
    neb_ns moved, blocked; // last progress of `have` or first send; no sends before `blocked`
    uint32_t vain;         // attempts in a row to resend all without progress
    uint64_t room_said, durable_said, stored_said;
    neb_ns dropped; // last drop from the spool; 0: never
    bool lost;      // both roles: LOST was reported in this session
    struct inter_stream_path *path;
    // ---- consumer ----
    bool attached;
    bool anywhere;             // attached ANYWHERE; the producer has not named its base yet
    struct stream_slot *slots; // (window_batches) batch n at n % window_batches
    // Slots that the last step delivered. The next step frees their memory.
    uint64_t free_from, free_to;
    struct inter_stream_grant said;
    neb_ns said_at;
    uint64_t said_bytes;  // bytes delivered until then
    uint64_t asked;       // `applied` when a checkpoint was last requested
    uint64_t asked_bytes; // bytes applied since then
    uint64_t kept_from;   // base of the producer's spool, as known here
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
// Makes a SAY action from the step's bytes from `at` on.
void stream_end_message(struct inter_stream *s, size_t at);
void stream_send_hello(struct inter_stream *s, bool ask);

// producer.c
void stream_pump(struct inter_stream *s); // sends what the credit allows
void stream_report_room(struct inter_stream *s, bool always);
void stream_put(struct inter_stream *s, const struct inter_stream_event *e);
void stream_on_grant(struct inter_stream *s, const struct inter_stream_grant *g);
void stream_send_failed(struct inter_stream *s, uint64_t seq);
void stream_way_lost(struct inter_stream *s, uint64_t way);
void stream_producer_tick(struct inter_stream *s);

// consumer.c
void stream_send_grant(struct inter_stream *s);
void stream_free_delivered(struct inter_stream *s); // of the previous step
void stream_clear_slots(struct inter_stream *s);
void stream_attach(struct inter_stream *s, const struct inter_stream_event *e);
void stream_met(struct inter_stream *s, uint64_t base); // on the producer's HELLO
void stream_on_data(struct inter_stream *s, const struct inter_stream_message *m);
void stream_on_applied(struct inter_stream *s, uint64_t seq);
void stream_on_durable(struct inter_stream *s, uint64_t seq);
void stream_consumer_tick(struct inter_stream *s);

#endif
