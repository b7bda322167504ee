#include "agent/base/sha256.h"
#include "inter/stream_wire.h"

#include <stdlib.h>
#include <string.h>

static const neb_ns hello_every = NEB_S, grant_every = 4 * NEB_S, grant_soon = NEB_S,
                    grant_measured = 100 * NEB_MS, no_progress = 10 * NEB_S;
enum { GRANT_BYTES = 16 << 10 }; // delivered since the last one

struct entry { // one batch of the spool, or of what the consumer has not saved
    uint32_t bytes;
    uint64_t tag; // first word of its SHA-256
    neb_ns at;    // producer: when it was put; 0: before
};

struct slot { // consumer: a batch that came before its turn
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
    bool up, met, refused; // connected; its HELLO is here; its terms differ (said once)
    neb_ns hello_at;       // ours, last
    struct entry *ring;    // (spool_batches) of [base, next)
    uint64_t base, next;   // producer: the spool. consumer: not saved yet; next to be delivered
    uint64_t ring_bytes;
    uint64_t applied, durable;
    uint64_t session; // of the grant: consumer's own, producer's newest heard; 0: none
    // producer
    uint64_t have, sent,
        high; // what the consumer has; next to send; one past all that was ever sent
    uint32_t window_batches, window_bytes; // the smaller of both sides'
    neb_ns moved, blocked; // last progress of `have` or first send; nothing is sent before
    uint64_t room_said, durable_said;
    bool lost; // said in this session
    struct inter_stream_path *path;
    // consumer
    bool attached;
    struct slot *slots; // (window_batches) batch n in n % window_batches
    uint64_t free_from,
        free_to; // slots that the last step delivered: their memory goes at the next one
    struct inter_stream_grant said;
    neb_ns said_at;
    uint64_t said_bytes; // delivered then
    uint64_t asked;      // for a checkpoint, when this was applied
};

const char *inter_stream_fault_name(enum inter_stream_fault f) {
    static const char *const names[] = {"malformed", "denied",   "duplicate", "outside",
                                        "oversize",  "conflict", "late"};
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
        return neb_fail(NEB_ERR_INVALID, "stream %u: batches of %u bytes; 1..%d are allowed",
                        c->key.id, c->batch_bytes, INTER_STREAM_BATCH_MAX);
    if (c->window_batches < 1 || c->window_batches > INTER_STREAM_WINDOW_MAX ||
        c->window_bytes < c->batch_bytes)
        return neb_fail(
            NEB_ERR_INVALID,
            "stream %u: a window of %u batches and %u bytes; 1..%d batches and at least one of %u "
            "bytes are allowed",
            c->key.id, c->window_batches, c->window_bytes, INTER_STREAM_WINDOW_MAX, c->batch_bytes);
    if (c->spool_batches < c->window_batches || c->spool_batches > INTER_STREAM_SPOOL_MAX ||
        c->spool_bytes < c->window_bytes)
        return neb_fail(NEB_ERR_INVALID,
                        "stream %u: a spool of %u batches and %llu bytes; it must hold the window "
                        "(%u, %u) and at "
                        "most %d batches",
                        c->key.id, c->spool_batches, (unsigned long long)c->spool_bytes,
                        c->window_batches, c->window_bytes, INTER_STREAM_SPOOL_MAX);
    if (c->type < INTER_STREAM_REPLACEMENTS || c->type >= INTER_STREAM_TYPES ||
        c->n_terms > INTER_STREAM_TERMS_MAX)
        return neb_fail(NEB_ERR_INVALID, "stream %u: type %d with %u terms", c->key.id,
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
    s->window_batches = c->window_batches;
    s->window_bytes = c->window_bytes;
    s->ring = calloc(c->spool_batches, sizeof *s->ring);
    s->slots = calloc(c->window_batches, sizeof *s->slots);
    enum neb_status st = s->ring && s->slots
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
    free(s->slots);
    free(s->ring);
    free(s);
    *sp = NULL;
}

// ---- small things ---------------------------------------------------------------------------------------------

static struct inter_stream_action *act(struct inter_stream *s, enum inter_stream_action_kind kind) {
    struct inter_stream_actions *a = s->out;
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 16;
        struct inter_stream_action *p = realloc(a->list, cap * sizeof *p);
        if (!p) {
            a->bytes.oom = true;
            return &s->nowhere; // told at the end of the step
        }
        a->list = p;
        a->cap = cap;
    }
    a->list[a->n] = (struct inter_stream_action){.kind = kind};
    return &a->list[a->n++];
}

static void fault(struct inter_stream *s, enum inter_stream_fault f) {
    s->stats.faults[f]++;
    act(s, INTER_STREAM_ACT_FAULT)->fault = f;
}

static struct entry *entry_of(const struct inter_stream *s, uint64_t seq) {
    return &s->ring[seq % s->c.spool_batches];
}

static uint64_t tag_of(const void *p, size_t n) {
    uint8_t sha[INTER_SHA_BYTES];
    neb_sha256(p, n, sha);
    struct neb_rd r = neb_rd_make(sha, sizeof sha);
    return neb_rd_u64(&r);
}

static void ring_add(struct inter_stream *s, size_t n, uint64_t tag) {
    *entry_of(s, s->next) = (struct entry){(uint32_t)n, tag, s->now};
    s->ring_bytes += n;
    s->next++;
}

static void ring_drop(struct inter_stream *s, uint64_t below) {
    for (; s->base < below && s->base < s->next; s->base++)
        s->ring_bytes -= entry_of(s, s->base)->bytes;
    if (s->base < below)
        s->base = s->next = below;
}

static void end_message(struct inter_stream *s, size_t at) {
    struct inter_stream_action *a = act(s, INTER_STREAM_ACT_SAY);
    a->at = at;
    a->size = s->out->bytes.len - at;
}

static void say_hello(struct inter_stream *s, bool ask) {
    struct inter_stream_hello h = {.role = (uint8_t)s->c.role,
                                   .type = (uint8_t)s->c.type,
                                   .ask = ask,
                                   .batch_bytes = s->c.batch_bytes,
                                   .n_terms = s->c.n_terms};
    size_t at = s->out->bytes.len;
    if (!s->up)
        return;
    memcpy(h.terms, s->c.terms, sizeof h.terms);
    inter_stream_put_hello(&s->out->bytes, &s->c.key, &h);
    end_message(s, at);
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
    struct inter_stream_action *a = act(s, INTER_STREAM_ACT_TERMS);
    memcpy(a->term, (ours ? ours : theirs)->name, sizeof a->term);
    if (ours)
        memcpy(a->ours, ours->sha256, sizeof a->ours);
    if (theirs)
        memcpy(a->theirs, theirs->sha256, sizeof a->theirs);
}

// Whether both sides name the same terms with the same digests; the first that differs is told.
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

// ---- producer -------------------------------------------------------------------------------------------------

static uint64_t room(const struct inter_stream *s) {
    uint64_t most = s->applied + s->window_batches, disk = s->base + s->c.spool_batches;
    uint64_t left = s->c.spool_bytes > s->ring_bytes
                        ? (s->c.spool_bytes - s->ring_bytes) / s->c.batch_bytes
                        : 0;
    most = disk < most ? disk : most;
    return s->next + left < most ? s->next + left : most;
}

static void say_room(struct inter_stream *s, bool always) {
    uint64_t limit = room(s);
    if (!always && limit == s->room_said && s->durable == s->durable_said)
        return;
    struct inter_stream_action *a = act(s, INTER_STREAM_ACT_ROOM);
    a->seq = s->room_said = limit;
    a->durable = s->durable_said = s->durable;
    a->stored = s->next;
}

static void pump(struct inter_stream *s) {
    if (!s->up || !s->met || s->refused || !s->session || s->now < s->blocked)
        return;
    if (s->sent < s->base)
        s->sent = s->base;
    uint64_t bytes = 0;
    for (uint64_t i = s->applied > s->base ? s->applied : s->base; i < s->sent && i < s->next; i++)
        bytes += entry_of(s, i)->bytes;
    while (s->sent < s->next && s->sent < s->applied + s->window_batches) {
        uint32_t n = entry_of(s, s->sent)->bytes;
        if (s->sent > s->applied && bytes + n > s->window_bytes)
            break;
        bytes += n;
        if (s->sent == s->have)
            s->moved = s->now;
        s->stats.batches++;
        s->stats.bytes += n;
        s->stats.resent += s->sent < s->high;
        inter_stream_path_sent(s->path, s->now, s->sent, n);
        act(s, INTER_STREAM_ACT_SEND)->seq = s->sent++;
        s->high = s->sent > s->high ? s->sent : s->high;
    }
}

static void put(struct inter_stream *s, const struct inter_stream_event *e) {
    if (e->len < 1 || e->len > s->c.batch_bytes) {
        fault(s, INTER_STREAM_FAULT_OVERSIZE);
        return;
    }
    if (e->seq < s->base) { // the consumer has it for good
        say_room(s, true);
        return;
    }
    uint64_t tag = tag_of(e->data, e->len);
    if (e->seq < s->next) { // a run that is repeated
        if (entry_of(s, e->seq)->tag != tag)
            fault(s, INTER_STREAM_FAULT_CONFLICT);
        say_room(s, true);
        return;
    }
    if (e->seq > s->next && s->base == s->next &&
        e->seq <= s->have) // the spool was lost, the consumer has all before
        s->base = s->next = e->seq;
    if (e->seq > s->next || e->seq >= s->base + s->c.spool_batches ||
        s->ring_bytes + e->len > s->c.spool_bytes) {
        fault(s, INTER_STREAM_FAULT_OUTSIDE);
        return;
    }
    struct inter_stream_action *a = act(s, INTER_STREAM_ACT_STORE);
    a->seq = e->seq;
    a->view = e->data;
    a->len = e->len;
    ring_add(s, e->len, tag);
    pump(s);
    say_room(s, true);
}

static void on_grant(struct inter_stream *s, const struct inter_stream_grant *g) {
    if (g->session < s->session)
        return;
    if (g->session > s->session) { // the consumer begins again at its cursor
        s->session = g->session;
        s->have = g->have;
        s->applied = g->applied;
        s->sent = g->have;
        s->lost = false;
        s->moved = s->now;
        inter_stream_path_reset(s->path, g->have);
    }
    if (g->have > s->have)
        s->moved = s->now;
    s->have = g->have > s->have ? g->have : s->have;
    inter_stream_path_acked(s->path, s->now, s->have);
    s->applied = g->applied > s->applied ? g->applied : s->applied;
    s->sent = s->sent < s->have ? s->have : s->sent;
    s->window_batches =
        g->window_batches < s->c.window_batches ? g->window_batches : s->c.window_batches;
    s->window_bytes = g->window_bytes < s->c.window_bytes ? g->window_bytes : s->c.window_bytes;
    if (g->durable > s->durable) {
        s->durable = g->durable;
        if (s->durable > s->base) {
            ring_drop(s, s->durable);
            act(s, INTER_STREAM_ACT_DROP)->seq = s->base;
        }
    }
    s->lost = s->lost && s->have < s->base;
    if (s->have < s->base && !s->lost) { // an older checkpoint than the oldest it had spoken of
        struct inter_stream_action *a = act(s, INTER_STREAM_ACT_LOST);
        a->seq = s->have;
        a->durable = s->base;
        s->lost = true;
    }
    if (!s->lost)
        pump(s);
    say_room(s, s->c.measured);
}

static void producer_tick(struct inter_stream *s) {
    if (s->up && !s->met && s->now - s->hello_at >= hello_every)
        say_hello(s, true);
    if (s->sent > s->have && s->now - s->moved >= no_progress) {
        s->sent = s->have;
        s->moved = s->now;
    }
    if (!s->lost)
        pump(s);
}

// ---- consumer -------------------------------------------------------------------------------------------------

static void say_grant(struct inter_stream *s) {
    struct inter_stream_grant g = {s->session,          s->next,          s->applied, s->durable,
                                   s->c.window_batches, s->c.window_bytes};
    size_t at = s->out->bytes.len;
    if (!s->up || !s->attached)
        return;
    inter_stream_put_grant(&s->out->bytes, &s->c.key, &g);
    end_message(s, at);
    s->said = g;
    s->said_at = s->now;
    s->said_bytes = s->stats.bytes;
}

static void free_delivered(struct inter_stream *s) {
    for (; s->free_from < s->free_to; s->free_from++)
        neb_buf_free(&s->slots[s->free_from % s->c.window_batches].b);
}

static void clear_slots(struct inter_stream *s) {
    for (uint32_t i = 0; i < s->c.window_batches; i++) {
        neb_buf_free(&s->slots[i].b);
        s->slots[i].full = false;
    }
    s->stats.held_bytes = 0;
    s->free_from = s->free_to = 0;
}

static void attach(struct inter_stream *s, const struct inter_stream_event *e) {
    clear_slots(s);
    s->attached = true;
    s->session = e->session;
    s->next = s->base = s->applied = e->seq;
    s->ring_bytes = 0;
    s->durable = s->durable < e->seq ? s->durable : e->seq;
    s->asked = e->seq;
    say_hello(s, true);
    say_grant(s);
}

static void deliver(struct inter_stream *s, const uint8_t *p, size_t n, neb_ns put_at) {
    struct inter_stream_action *a = act(s, INTER_STREAM_ACT_DELIVER);
    a->seq = s->next;
    a->view = p;
    a->len = n;
    a->put_at = put_at;
    s->stats.batches++;
    s->stats.bytes += n;
    if (s->next - s->base ==
        s->c.spool_batches) // more than the producer can keep: it is lying, or its spool is larger
        ring_drop(s, s->base + 1);
    ring_add(s, n, 0);
}

static void on_data(struct inter_stream *s, const struct inter_stream_message *m) {
    if (!s->attached || s->refused) {
        fault(s, INTER_STREAM_FAULT_LATE);
        return;
    }
    struct slot *slot = &s->slots[m->seq % s->c.window_batches];
    if (m->seq < s->next || (m->seq < s->applied + s->c.window_batches && slot->full)) {
        fault(s, INTER_STREAM_FAULT_DUPLICATE);
        return;
    }
    if (m->seq >= s->applied + s->c.window_batches) {
        fault(s, INTER_STREAM_FAULT_OUTSIDE);
        return;
    }
    if (m->len > s->c.batch_bytes ||
        (m->seq > s->next && s->stats.held_bytes + m->len > (uint64_t)s->c.window_bytes)) {
        fault(s, INTER_STREAM_FAULT_OVERSIZE);
        return;
    }
    size_t at = s->out->bytes.len;
    inter_stream_put_signed(&s->out->bytes, &s->c.key, s->c.type, m->seq, m->body, m->len);
    bool good = !s->out->bytes.oom &&
                s->crypto->verify(s->crypto->user, s->c.peer, INTER_STREAM_CONTEXT,
                                  s->out->bytes.p + at, s->out->bytes.len - at, m->sig);
    s->out->bytes.len = at;
    if (!good) {
        fault(s, INTER_STREAM_FAULT_DENIED);
        return;
    }
    if (m->seq > s->next) { // out of turn
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
        say_grant(s);
}

static void ask_checkpoint(struct inter_stream *s) {
    uint64_t unsaved = s->applied - s->base;
    if (s->applied < s->asked + s->c.spool_batches / 8 + 1 && s->asked > s->base)
        return;
    if (unsaved <= s->c.spool_batches / 2 && s->ring_bytes <= s->c.spool_bytes / 2)
        return;
    s->asked = s->applied;
    act(s, INTER_STREAM_ACT_CHECKPOINT);
}

static void on_applied(struct inter_stream *s, uint64_t seq) {
    if (!s->attached || seq > s->next) {
        fault(s, INTER_STREAM_FAULT_MALFORMED);
        return;
    }
    s->applied = seq > s->applied ? seq : s->applied;
    if (s->applied >= s->said.applied + (s->c.window_batches + 1) / 2)
        say_grant(s);
    ask_checkpoint(s);
}

static void on_durable(struct inter_stream *s, uint64_t seq) {
    if (!s->attached || seq > s->applied) {
        fault(s, INTER_STREAM_FAULT_MALFORMED);
        return;
    }
    if (seq <= s->durable)
        return;
    s->durable = seq;
    ring_drop(s, seq);
    say_grant(s);
}

static void consumer_tick(struct inter_stream *s) {
    if (!s->up || !s->attached)
        return;
    if (!s->met && s->now - s->hello_at >= hello_every) {
        say_hello(s, true);
        say_grant(s);
    }
    bool news =
        s->next != s->said.have || s->applied != s->said.applied || s->durable != s->said.durable;
    neb_ns soon = s->c.measured ? grant_measured : grant_soon;
    if (!s->refused && s->now - s->said_at >= (news ? soon : grant_every))
        say_grant(s);
}

// ---- dispatch -------------------------------------------------------------------------------------------------

static void on_hello(struct inter_stream *s, const struct inter_stream_hello *h) {
    if (h->role == s->c.role || h->type != s->c.type || h->batch_bytes != s->c.batch_bytes) {
        fault(s, INTER_STREAM_FAULT_MALFORMED);
        return;
    }
    bool consumer = s->c.role == INTER_STREAM_CONSUMER;
    if (consumer && !s->attached)
        return;
    if (h->ask)
        say_hello(s, false);
    s->refused = !same_terms(s, h);
    s->met = true;
    s->stats.agreed = !s->refused;
    if (consumer)
        say_grant(s);
    else if (!s->lost)
        pump(s);
}

static void on_message(struct inter_stream *s, const struct inter_stream_event *e) {
    struct inter_stream_message m;
    bool consumer = s->c.role == INTER_STREAM_CONSUMER;
    if (!inter_stream_parse(e->data, e->len, &m) ||
        memcmp(m.key.job, s->c.key.job, sizeof m.key.job) || m.key.id != s->c.key.id ||
        (m.kind == INTER_STREAM_DATA) != e->bulk || (m.kind == INTER_STREAM_DATA && !consumer) ||
        (m.kind == INTER_STREAM_GRANT && consumer))
        fault(s, INTER_STREAM_FAULT_MALFORMED);
    else if (m.kind == INTER_STREAM_HELLO)
        on_hello(s, &m.hello);
    else if (m.kind == INTER_STREAM_GRANT)
        on_grant(s, &m.grant);
    else
        on_data(s, &m);
}

static void on_up(struct inter_stream *s) {
    s->up = true;
    s->met = false;
    s->blocked = 0;
    if (s->c.role == INTER_STREAM_PRODUCER) {
        s->sent = s->have; // what was under way may be lost
        inter_stream_path_reset(s->path, s->have);
        say_hello(s, true);
    } else if (s->attached) {
        say_hello(s, true);
        say_grant(s);
    }
}

static void send_failed(struct inter_stream *s, uint64_t seq) {
    s->sent = seq < s->sent ? seq : s->sent;
    s->blocked = s->now + 20 * NEB_MS;
}

enum neb_status inter_stream_step(struct inter_stream *s, neb_ns now,
                                  const struct inter_stream_event *e,
                                  struct inter_stream_actions *out) {
    bool consumer = s->c.role == INTER_STREAM_CONSUMER;
    out->n = 0;
    neb_buf_clear(&out->bytes);
    s->out = out;
    s->now = now;
    free_delivered(s);
    switch (e->kind) {
    case INTER_STREAM_EV_TICK: consumer ? consumer_tick(s) : producer_tick(s); break;
    case INTER_STREAM_EV_PEER_UP: on_up(s); break;
    case INTER_STREAM_EV_PEER_DOWN: s->up = s->met = false; break;
    case INTER_STREAM_EV_MESSAGE: on_message(s, e); break;
    case INTER_STREAM_EV_PUT:
        NEB_ASSERT(!consumer);
        put(s, e);
        break;
    case INTER_STREAM_EV_SEND_FAILED: send_failed(s, e->seq); break;
    case INTER_STREAM_EV_ATTACH:
        if (consumer)
            attach(s, e);
        else
            say_room(s, true);
        break;
    case INTER_STREAM_EV_DETACH:
        s->attached = false;
        if (consumer)
            clear_slots(s);
        break;
    case INTER_STREAM_EV_APPLIED: on_applied(s, e->seq); break;
    case INTER_STREAM_EV_DURABLE: on_durable(s, e->seq); break;
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
        return neb_fail(NEB_ERR_CORRUPT,
                        "stream %u: the spool holds batch %llu of %zu bytes where %llu is due",
                        s->c.key.id, (unsigned long long)seq, n, (unsigned long long)s->next);
    ring_add(s, n, tag_of(p, n));
    return NEB_OK;
}

neb_ns inter_stream_put_age(const struct inter_stream *s, neb_ns now, uint64_t seq) {
    const struct entry *e = entry_of(s, seq);
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
    out->path = inter_stream_path_measure(s->path, s->now);
    out->held_bytes = producer ? s->ring_bytes : s->stats.held_bytes;
}
