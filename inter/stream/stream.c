// SPDX-License-Identifier: Apache-2.0
#include "agent/base/array.h"
#include "agent/base/sha256.h"
#include "inter/stream/state.h"

#include <stdlib.h>
#include <string.h>

const char *inter_stream_fault_name(enum inter_stream_fault f) {
    static const char *const names[] = {"malformed", "denied",   "duplicate", "outside",
                                        "oversize",  "conflict", "version",   "late"};
    return f < INTER_STREAM_FAULTS ? names[f] : "unknown";
}

void inter_stream_actions_free(struct inter_stream_actions *a) {
    free(a->list);
    neb_buf_free(&a->bytes);
    *a = (struct inter_stream_actions){0};
}

const struct inter_stream_config *inter_stream_config_of(const struct inter_stream *s) {
    return &s->c;
}

static enum neb_status check(const struct inter_stream_config *c) {
    if (c->batch_bytes < 1 || c->batch_bytes > INTER_STREAM_BATCH_MAX)
        return neb_fail(NEB_ERR_INVALID,
                        "stream %u: batches of up to %u bytes: 1..%d bytes are allowed", c->key.id,
                        c->batch_bytes, INTER_STREAM_BATCH_MAX);
    if (c->window_batches < 1 || c->window_batches > INTER_STREAM_WINDOW_MAX ||
        c->window_bytes < c->batch_bytes)
        return neb_fail(
            NEB_ERR_INVALID,
            "stream %u: a window of %u batches and %u bytes: it may have 1..%d batches, and must "
            "hold one of %u bytes",
            c->key.id, c->window_batches, c->window_bytes, INTER_STREAM_WINDOW_MAX, c->batch_bytes);
    if (c->window_start > c->window_batches)
        return neb_fail(NEB_ERR_INVALID,
                        "stream %u: a window of at most %u batches cannot begin with %u", c->key.id,
                        c->window_batches, c->window_start);
    if (c->spool_batches < c->window_batches || c->spool_batches > INTER_STREAM_SPOOL_MAX ||
        c->spool_bytes < c->window_bytes)
        return neb_fail(NEB_ERR_INVALID,
                        "stream %u: a spool of %u batches and %llu bytes: it must hold the window "
                        "(%u batches, %u bytes), and may have at most %d batches",
                        c->key.id, c->spool_batches, (unsigned long long)c->spool_bytes,
                        c->window_batches, c->window_bytes, INTER_STREAM_SPOOL_MAX);
    if (c->type < INTER_STREAM_REPLACEMENTS || c->type >= INTER_STREAM_TYPES ||
        c->n_terms > INTER_STREAM_TERMS_MAX)
        return neb_fail(NEB_ERR_INVALID, "stream %u: type %d with %u terms is not valid", c->key.id,
                        (int)c->type, c->n_terms);
    return NEB_OK;
}

enum neb_status inter_stream_create(const struct inter_stream_config *c,
                                    const struct inter_node_crypto *crypto,
                                    struct inter_stream **out) {
    NEB_TRY(check(c));
    struct inter_stream *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a stream");
    s->c = *c;
    s->crypto = crypto;
    s->window_batches = s->window = stream_window_start(c);
    s->window_bytes = c->window_bytes;
    s->ring = calloc(c->spool_batches, sizeof *s->ring);
    s->slots = calloc(c->window_batches, sizeof *s->slots);
    s->waited = calloc(c->window_batches, sizeof *s->waited);
    enum neb_status st = s->ring && s->slots && s->waited
                             ? inter_stream_path_create(c->window_batches, &s->path)
                             : neb_fail(NEB_ERR_NOMEM, "out of memory creating a stream");
    if (st != NEB_OK)
        inter_stream_destroy(&s);
    *out = s;
    return st;
}

void inter_stream_destroy(struct inter_stream **sp) {
    struct inter_stream *s = *sp;
    if (!s)
        return;
    for (uint32_t i = 0; s->slots && i < s->c.window_batches; i++)
        neb_buf_free(&s->slots[i].b);
    inter_stream_path_destroy(&s->path);
    free(s->waited);
    free(s->slots);
    free(s->ring);
    free(s);
    *sp = NULL;
}

// ---- helpers of both roles ----------------------------------------------------------------------

struct inter_stream_action *stream_act(struct inter_stream *s, enum inter_stream_action_kind kind) {
    struct inter_stream_actions *a = s->out;
    struct inter_stream_action *p = neb_array_more(a->list, a->n, &a->cap, 16, sizeof *p);
    if (!p) {
        a->bytes.oom = true;
        return &s->nowhere; // the end of the step reports it
    }
    a->list = p;
    a->list[a->n] = (struct inter_stream_action){.kind = kind};
    return &a->list[a->n++];
}

void stream_fault(struct inter_stream *s, enum inter_stream_fault f) {
    s->stats.faults[f]++;
    stream_act(s, INTER_STREAM_ACT_FAULT)->fault = f;
}

struct stream_entry *stream_entry_of(const struct inter_stream *s, uint64_t seq) {
    return &s->ring[seq % s->c.spool_batches];
}

uint64_t stream_tag_of(const void *p, size_t n) {
    uint8_t sha[INTER_SHA_BYTES];
    neb_sha256(p, n, sha);
    struct neb_rd r = neb_rd_make(sha, sizeof sha);
    return neb_rd_u64(&r);
}

void stream_ring_add(struct inter_stream *s, size_t n, uint64_t tag) {
    *stream_entry_of(s, s->next) = (struct stream_entry){(uint32_t)n, tag, s->now, 0};
    s->ring_bytes += n;
    s->next++;
}

void stream_ring_drop(struct inter_stream *s, uint64_t below) {
    for (; s->base < below && s->base < s->next; s->base++)
        s->ring_bytes -= stream_entry_of(s, s->base)->bytes;
    if (s->base < below)
        s->base = s->next = below;
}

void stream_end_message(struct inter_stream *s, size_t at) {
    struct inter_stream_action *a = stream_act(s, INTER_STREAM_ACT_SEND_CONTROL);
    a->at = at;
    a->size = s->out->bytes.len - at;
}

void stream_send_hello(struct inter_stream *s, bool ask) {
    bool producer = s->c.role == INTER_STREAM_PRODUCER;
    struct inter_stream_hello h = {.role = (uint8_t)s->c.role,
                                   .type = (uint8_t)s->c.type,
                                   .ask = ask,
                                   // Saved batches leave the spool a little later.
                                   .base = !producer              ? 0
                                           : s->durable > s->base ? s->durable
                                                                  : s->base,
                                   .batch_bytes = s->c.batch_bytes,
                                   .n_terms = s->c.n_terms};
    size_t at = s->out->bytes.len;
    if (!s->up)
        return;
    memcpy(h.terms, s->c.terms, sizeof h.terms);
    inter_stream_put_hello(&s->out->bytes, &s->c.key, &h);
    stream_end_message(s, at);
    s->hello_at = s->now;
}

static const struct inter_stream_term *term_of(const struct inter_stream_term *list, uint32_t n,
                                               const char *name) {
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(list[i].name, name))
            return &list[i];
    return NULL;
}

static void tell_terms(struct inter_stream *s, const struct inter_stream_term *ours,
                       const struct inter_stream_term *theirs) {
    struct inter_stream_action *a = stream_act(s, INTER_STREAM_ACT_TERMS);
    memcpy(a->term, (ours ? ours : theirs)->name, sizeof a->term);
    if (ours)
        memcpy(a->ours, ours->sha256, sizeof a->ours);
    if (theirs)
        memcpy(a->theirs, theirs->sha256, sizeof a->theirs);
}

// True if both sides name the same terms with the same digests. Reports the first difference.
static bool same_terms(struct inter_stream *s, const struct inter_stream_hello *h) {
    const struct inter_stream_term *t;
    for (uint32_t i = 0; i < s->c.n_terms; i++) {
        t = term_of(h->terms, h->n_terms, s->c.terms[i].name);
        if (t && !memcmp(t->sha256, s->c.terms[i].sha256, INTER_SHA_BYTES))
            continue;
        if (!s->refused)
            tell_terms(s, &s->c.terms[i], t);
        return false;
    }
    for (uint32_t i = 0; i < h->n_terms; i++)
        if (!term_of(s->c.terms, s->c.n_terms, h->terms[i].name)) {
            if (!s->refused)
                tell_terms(s, NULL, &h->terms[i]);
            return false;
        }
    return true;
}

// ---- dispatch -----------------------------------------------------------------------------------

static void on_hello(struct inter_stream *s, const struct inter_stream_hello *h) {
    if (h->role == s->c.role || h->type != s->c.type || h->batch_bytes != s->c.batch_bytes) {
        stream_fault(s, INTER_STREAM_FAULT_MALFORMED);
        return;
    }
    bool consumer = s->c.role == INTER_STREAM_CONSUMER;
    if (consumer && !s->attached)
        return;
    if (h->ask)
        stream_send_hello(s, false);
    s->refused = !same_terms(s, h);
    s->met = true;
    s->stats.agreed = !s->refused;
    if (consumer)
        stream_met(s, h->base);
    else if (!s->lost)
        stream_pump(s);
}

static void on_message(struct inter_stream *s, const struct inter_stream_event *e) {
    struct inter_stream_message m;
    bool consumer = s->c.role == INTER_STREAM_CONSUMER;
    if (inter_stream_other_version(e->data, e->len)) {
        if (!s->said_version)
            stream_fault(s, INTER_STREAM_FAULT_VERSION);
        s->said_version = true;
    } else if (!inter_stream_parse(e->data, e->len, &m) ||
               memcmp(m.key.job, s->c.key.job, sizeof m.key.job) || m.key.id != s->c.key.id ||
               (m.kind == INTER_STREAM_DATA) != e->bulk ||
               (m.kind == INTER_STREAM_DATA && !consumer) ||
               (m.kind == INTER_STREAM_GRANT && consumer))
        stream_fault(s, INTER_STREAM_FAULT_MALFORMED);
    else if (m.kind == INTER_STREAM_HELLO)
        on_hello(s, &m.hello);
    else if (m.kind == INTER_STREAM_GRANT)
        stream_on_grant(s, &m.grant);
    else
        stream_on_data(s, &m);
}

static void on_up(struct inter_stream *s) {
    s->up = true;
    s->met = s->said_version = false;
    s->blocked = 0;
    if (s->c.role == INTER_STREAM_PRODUCER) {
        // The consumer's clock may have gone back, so a lower session is valid. Nothing of an older
        // session arrives on this link.
        s->session = 0;
        s->sent = s->have; // what was in flight may be lost
        s->widened = s->high;
        inter_stream_path_reset(s->path, s->have);
        stream_send_hello(s, true);
    } else if (s->attached) {
        stream_send_hello(s, true);
        stream_send_grant(s);
    }
}

enum neb_status inter_stream_step(struct inter_stream *s, neb_ns now,
                                  const struct inter_stream_event *e,
                                  struct inter_stream_actions *out) {
    bool consumer = s->c.role == INTER_STREAM_CONSUMER;
    out->n = 0;
    neb_buf_clear(&out->bytes);
    s->out = out;
    s->now = now;
    stream_free_delivered(s);
    switch (e->kind) {
    case INTER_STREAM_EV_TICK: consumer ? stream_consumer_tick(s) : stream_producer_tick(s); break;
    case INTER_STREAM_EV_PEER_UP: on_up(s); break;
    case INTER_STREAM_EV_PEER_DOWN: s->up = s->met = false; break;
    case INTER_STREAM_EV_MESSAGE: on_message(s, e); break;
    case INTER_STREAM_EV_PUT:
        NEB_ASSERT(!consumer);
        stream_put(s, e);
        break;
    case INTER_STREAM_EV_SEND_FAILED: stream_send_failed(s, e->seq); break;
    case INTER_STREAM_EV_CONN_LOST:
        if (!consumer)
            stream_way_lost(s, e->way);
        break;
    case INTER_STREAM_EV_ATTACH:
        if (consumer)
            stream_attach(s, e);
        else
            stream_report_room(s, true);
        break;
    case INTER_STREAM_EV_DETACH:
        s->attached = false;
        if (consumer)
            stream_clear_slots(s);
        break;
    case INTER_STREAM_EV_APPLIED: stream_on_applied(s, e->seq); break;
    case INTER_STREAM_EV_DURABLE: stream_on_durable(s, e->seq); break;
    }
    s->out = NULL;
    return neb_buf_check(&out->bytes);
}

void inter_stream_restore_base(struct inter_stream *s, uint64_t base) {
    s->base = s->next = s->applied = s->durable = s->have = base;
}

enum neb_status inter_stream_restore(struct inter_stream *s, uint64_t seq, const void *p,
                                     size_t n) {
    if (seq != s->next || n < 1 || n > s->c.batch_bytes || s->next - s->base == s->c.spool_batches)
        return neb_fail(
            NEB_ERR_CORRUPT,
            "stream %u: the spool holds batch %llu of %zu bytes, but batch %llu is next",
            s->c.key.id, (unsigned long long)seq, n, (unsigned long long)s->next);
    stream_ring_add(s, n, stream_tag_of(p, n));
    return NEB_OK;
}

neb_ns inter_stream_put_age(const struct inter_stream *s, neb_ns now, uint64_t seq) {
    const struct stream_entry *e = stream_entry_of(s, seq);
    return seq >= s->base && seq < s->next && e->at ? now - e->at : -1;
}

enum neb_status inter_stream_data_header(const struct inter_stream *s, uint64_t seq, neb_ns put_at,
                                         const void *p, size_t n, struct neb_buf *out) {
    struct neb_buf b = {0};
    uint8_t sig[INTER_SIG_BYTES];
    inter_stream_put_signed(&b, &s->c.key, s->c.type, seq, p, n);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK && !s->crypto->sign(s->crypto->user, INTER_STREAM_CONTEXT, b.p, b.len, sig))
        st = neb_fail(NEB_ERR_DENIED, "cannot sign a batch");
    neb_buf_free(&b);
    NEB_TRY(st);
    inter_stream_put_data(out, &s->c.key, seq, put_at, sig);
    return neb_buf_check(out);
}

void inter_stream_stats(const struct inter_stream *s, struct inter_stream_stats *out) {
    *out = s->stats;
    bool producer = s->c.role == INTER_STREAM_PRODUCER;
    out->base = producer ? s->base : s->durable;
    out->next = s->next;
    out->applied = s->applied;
    out->have = s->have;
    out->window = producer ? s->window_batches : s->c.window_batches;
    out->path = inter_stream_path_measure(s->path, s->now);
    out->held_bytes = producer ? s->ring_bytes : s->stats.held_bytes;
}
