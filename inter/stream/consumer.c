// SPDX-License-Identifier: Apache-2.0
// The consumer's endpoint: batches in order, each once, and when to acknowledge.
#include "inter/stream/state.h"

static const neb_ns grant_every = 8 * NEB_S, grant_soon = 5 * NEB_S, grant_measured = 100 * NEB_MS;
enum { GRANT_BYTES = 16 << 10 }; // delivered since the last GRANT

void stream_send_grant(struct inter_stream *s) {
    struct inter_stream_grant g = {s->session,          s->next,          s->applied, s->durable,
                                   s->c.window_batches, s->c.window_bytes};
    size_t at = s->out->bytes.len;
    if (!s->up || !s->attached || s->anywhere)
        return;
    inter_stream_put_grant(&s->out->bytes, &s->c.key, &g);
    stream_end_message(s, at);
    s->said = g;
    s->said_at = s->now;
    s->said_bytes = s->stats.bytes;
}

void stream_free_delivered(struct inter_stream *s) {
    for (; s->free_from < s->free_to; s->free_from++)
        neb_buf_free(&s->slots[s->free_from % s->c.window_batches].b);
}

void stream_clear_slots(struct inter_stream *s) {
    for (uint32_t i = 0; i < s->c.window_batches; i++) {
        neb_buf_free(&s->slots[i].b);
        s->slots[i].full = false;
    }
    s->stats.held_bytes = 0;
    s->free_from = s->free_to = 0;
}

static void begin_at(struct inter_stream *s, uint64_t seq) {
    s->next = s->base = s->applied = s->asked = s->kept_from = seq;
    s->ring_bytes = s->asked_bytes = 0;
    s->durable = s->durable < seq ? s->durable : seq;
}

void stream_attach(struct inter_stream *s, const struct inter_stream_event *e) {
    stream_clear_slots(s);
    s->attached = true;
    s->lost = false;
    s->anywhere = e->seq == INTER_STREAM_ANYWHERE;
    s->session = e->session;
    begin_at(s, s->anywhere ? s->durable : e->seq); // the producer may not know `durable` yet
    stream_send_hello(s, true);
    stream_send_grant(s);
}

void stream_met(struct inter_stream *s, uint64_t base) {
    if (!s->anywhere && !s->lost && s->next < base) { // its checkpoints are lost or too old
        struct inter_stream_action *a = stream_act(s, INTER_STREAM_ACT_LOST);
        a->seq = s->next;
        a->durable = base;
        s->lost = true;
    }
    if (s->anywhere) {
        s->anywhere = false;
        begin_at(s, base > s->next ? base : s->next);
        stream_act(s, INTER_STREAM_ACT_BEGIN)->seq = s->next;
    }
    // Before its restart, the worker applied batches that no checkpoint covers yet. The spool still
    // has them.
    uint64_t least = s->applied > s->c.spool_batches ? s->applied - s->c.spool_batches : 0;
    s->kept_from = base > s->durable ? base : s->durable;
    s->kept_from = s->kept_from < least ? least : s->kept_from;
    s->kept_from = s->kept_from < s->applied ? s->kept_from : s->applied;
    stream_send_grant(s);
}

static void deliver(struct inter_stream *s, const uint8_t *p, size_t n, neb_ns put_at) {
    struct inter_stream_action *a = stream_act(s, INTER_STREAM_ACT_DELIVER);
    a->seq = s->next;
    a->view = p;
    a->len = n;
    a->put_at = put_at;
    s->stats.batches++;
    s->stats.bytes += n;
    // More than the producer can keep: it cheats, or its spool is larger.
    if (s->next - s->base == s->c.spool_batches)
        stream_ring_drop(s, s->base + 1);
    stream_ring_add(s, n, 0);
}

void stream_on_data(struct inter_stream *s, const struct inter_stream_message *m) {
    if (!s->attached || s->anywhere || s->refused) {
        stream_fault(s, INTER_STREAM_FAULT_LATE);
        return;
    }
    struct stream_slot *slot = &s->slots[m->seq % s->c.window_batches];
    if (m->seq < s->next || (m->seq < s->applied + s->c.window_batches && slot->full)) {
        stream_fault(s, INTER_STREAM_FAULT_DUPLICATE);
        return;
    }
    if (m->seq >= s->applied + s->c.window_batches) {
        stream_fault(s, INTER_STREAM_FAULT_OUTSIDE);
        return;
    }
    if (m->len > s->c.batch_bytes ||
        (m->seq > s->next && s->stats.held_bytes + m->len > (uint64_t)s->c.window_bytes)) {
        stream_fault(s, INTER_STREAM_FAULT_OVERSIZE);
        return;
    }
    size_t at = s->out->bytes.len;
    inter_stream_put_signed(&s->out->bytes, &s->c.key, s->c.type, m->seq, m->body, m->len);
    bool good = !s->out->bytes.oom &&
                s->crypto->verify(s->crypto->user, s->c.peer, INTER_STREAM_CONTEXT,
                                  s->out->bytes.p + at, s->out->bytes.len - at, m->sig);
    s->out->bytes.len = at;
    if (!good) {
        stream_fault(s, INTER_STREAM_FAULT_DENIED);
        return;
    }
    if (m->seq > s->next) { // out of order
        neb_buf_add(&slot->b, m->body, m->len);
        s->out->bytes.oom |= slot->b.oom;
        slot->full = true;
        slot->put_at = m->put_at;
        s->stats.held_bytes += m->len;
        return;
    }
    deliver(s, m->body, m->len, m->put_at);
    s->free_from = s->next;
    for (; (slot = &s->slots[s->next % s->c.window_batches])->full; s->free_to = s->next) {
        slot->full = false;
        s->stats.held_bytes -= slot->b.len;
        deliver(s, slot->b.p, slot->b.len, slot->put_at);
    }
    if (s->c.measured &&
        (s->now - s->said_at >= grant_measured || s->stats.bytes - s->said_bytes >= GRANT_BYTES))
        stream_send_grant(s);
}

// When the spool is half full, asks for a checkpoint each time a seventeenth of the rest is
// applied. A worker keeps at most 16 checkpoints, so its oldest is newer than what fills the spool.
// Batches from before the attach count with their largest size.
static void ask_checkpoint(struct inter_stream *s) {
    enum { ASKS = 17 };
    uint64_t unsaved = s->applied - s->kept_from, most = s->c.spool_batches,
             before = s->base > s->kept_from ? s->base - s->kept_from : 0,
             bytes = s->ring_bytes + before * s->c.batch_bytes;
    if (unsaved <= most / 2 && bytes <= s->c.spool_bytes / 2)
        return;
    uint64_t left = unsaved < most ? most - unsaved : 0,
             left_bytes = bytes < s->c.spool_bytes ? s->c.spool_bytes - bytes : 0;
    if (s->asked > s->kept_from && s->applied - s->asked <= left / ASKS &&
        s->asked_bytes <= left_bytes / ASKS)
        return;
    s->asked = s->applied;
    s->asked_bytes = 0;
    stream_act(s, INTER_STREAM_ACT_CHECKPOINT);
}

void stream_on_applied(struct inter_stream *s, uint64_t seq) {
    if (!s->attached || seq > s->next) {
        stream_fault(s, INTER_STREAM_FAULT_MALFORMED);
        return;
    }
    for (; s->applied < seq; s->applied++)
        s->asked_bytes += s->applied >= s->base ? stream_entry_of(s, s->applied)->bytes : 0;
    if (s->applied >= s->said.applied + (stream_window_start(&s->c) + 1) / 2)
        stream_send_grant(s);
    ask_checkpoint(s);
}

void stream_on_durable(struct inter_stream *s, uint64_t seq) {
    if (!s->attached || seq > s->applied) {
        stream_fault(s, INTER_STREAM_FAULT_MALFORMED);
        return;
    }
    if (seq <= s->durable)
        return;
    s->durable = seq;
    s->kept_from = s->kept_from < seq ? seq : s->kept_from;
    stream_ring_drop(s, seq);
    stream_send_grant(s);
}

void stream_consumer_tick(struct inter_stream *s) {
    if (!s->up || !s->attached)
        return;
    if ((!s->met || s->anywhere) && s->now - s->hello_at >= STREAM_HELLO_EVERY) {
        stream_send_hello(s, true);
        stream_send_grant(s);
    }
    bool news =
        s->next != s->said.have || s->applied != s->said.applied || s->durable != s->said.durable;
    neb_ns soon = s->c.measured ? grant_measured : grant_soon;
    if (!s->refused && s->now - s->said_at >= (news ? soon : grant_every))
        stream_send_grant(s);
}
