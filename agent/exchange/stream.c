// SPDX-License-Identifier: Apache-2.0
#include "agent/exchange/stream.h"
#include "agent/base/log.h"

#include <stdlib.h>
#include <string.h>

enum { SPOOL_BATCHES = 4096 };
static const uint64_t spool_bytes = 256ull << 20;

void agent_stream_limits(struct inter_stream_config *c, double batch_bytes) {
    c->batch_bytes = (uint32_t)batch_bytes;
    c->window_bytes = INTER_STREAM_WINDOW_BYTES;
    if (c->window_start && c->window_batches > INTER_STREAM_WINDOW_BYTES / c->batch_bytes)
        c->window_batches = INTER_STREAM_WINDOW_BYTES / c->batch_bytes > c->window_start
                                ? INTER_STREAM_WINDOW_BYTES / c->batch_bytes
                                : c->window_start;
    c->spool_batches = SPOOL_BATCHES;
    c->spool_bytes = spool_bytes;
}

static json_t *terms_json(const struct inter_stream_config *c) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->n_terms; i++) {
        char hex[2 * INTER_SHA_BYTES + 1];
        neb_hex(c->terms[i].sha256, INTER_SHA_BYTES, hex);
        json_array_append_new(list,
                              json_pack("{s:s,s:s}", "name", c->terms[i].name, "sha256", hex));
    }
    return list;
}

// Sends the request to open; a consumer attaches at `next`. Also used when a batch from the agent
// was lost.
static enum neb_status say_open(struct agent_stream *s) {
    const struct inter_stream_config *c = &s->c;
    if (!s->ipc)
        return NEB_OK;
    json_t *head = json_pack(
        "{s:s,s:i,s:i,s:i,s:i,s:I,s:i,s:i,s:I,s:I,s:I,s:b,s:I,s:b,s:o}", "op", "stream-open",
        "stream", c->key.id, "type", (int)c->type, "role", (int)c->role, "cluster", (int)c->peer,
        "batch_bytes", (json_int_t)c->batch_bytes, "window_batches", (int)c->window_batches,
        "window_start", (int)c->window_start, "window_bytes", (json_int_t)c->window_bytes,
        "spool_batches", (json_int_t)c->spool_batches, "spool_bytes", (json_int_t)c->spool_bytes,
        "measured", c->measured, "next", (json_int_t)s->next, "anywhere", s->anywhere, "terms",
        terms_json(c));
    if (!head)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening a stream");
    return agent_ipc_send(s->ipc, NULL, head, NULL, 0);
}

enum neb_status agent_stream_open(struct agent_ipc *ipc, const struct inter_stream_config *c,
                                  uint64_t next, struct agent_stream **out) {
    struct agent_stream *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening a stream");
    s->c = *c;
    s->ipc = ipc;
    s->anywhere = next == INTER_STREAM_ANYWHERE;
    s->next = s->have = s->anywhere ? 0 : next;
    if (s->next) // the checkpoint that it comes from
        s->saved[s->n_saved++] = s->next;
    s->queue = calloc(c->window_batches ? c->window_batches : 1, sizeof *s->queue);
    s->put_at = calloc(c->window_batches ? c->window_batches : 1, sizeof *s->put_at);
    enum neb_status st = s->queue && s->put_at
                             ? say_open(s)
                             : neb_fail(NEB_ERR_NOMEM, "out of memory opening a stream");
    if (st != NEB_OK)
        agent_stream_close(&s);
    *out = s;
    return st;
}

void agent_stream_close(struct agent_stream **sp) {
    struct agent_stream *s = *sp;
    if (!s)
        return;
    for (uint32_t i = 0; s->queue && i < s->c.window_batches; i++)
        neb_buf_free(&s->queue[i]);
    free(s->queue);
    free(s->put_at);
    free(s);
    *sp = NULL;
}

static double real_of(const struct agent_ipc_msg *m, const char *key) {
    const json_t *v = json_object_get(m->head, key);
    return json_is_number(v) ? json_number_value(v) : 0;
}

// Batch `next` has come, after a wait. The other side causes the part of the wait that would also
// occur on a link without delay: the time between its puts of the last two batches, less the time
// that the previous batch took here.
static void account(struct agent_stream *s) {
    neb_ns now = neb_now(), put = s->put_at[s->next % s->c.window_batches], waited = now - s->waits,
           theirs = put - s->last_put - s->last_took;
    theirs = !put || !s->last_put ? waited : theirs < 0 ? 0 : theirs < waited ? theirs : waited;
    if (!s->batches) {
        s->stall.start_s += neb_seconds(waited);
    } else {
        s->stall.peer_s += neb_seconds(theirs);
        s->stall.link_s += neb_seconds(waited - theirs);
    }
    s->begun = now;
    s->waits = 0;
}

json_t *agent_stream_stall(const struct agent_stream *s) {
    return json_pack("{s:f,s:f,s:f}", "start_s", s->stall.start_s, "peer_s", s->stall.peer_s,
                     "link_s", s->stall.link_s);
}

static void take_batch(struct agent_stream *s, const struct agent_ipc_msg *m) {
    uint64_t seq = (uint64_t)agent_ipc_int(m, "seq", -1);
    if (s->c.role != INTER_STREAM_CONSUMER || m->n_parts != 1 || seq < s->have)
        return; // sent before an attach
    // the local socket was full, so a batch was lost
    if (s->anywhere || seq > s->have || seq >= s->next + s->c.window_batches) {
        s->have = s->next;
        if (say_open(s) != NEB_OK)
            neb_warn("stream %u: cannot ask the agent for batch %llu again", s->c.key.id,
                     (unsigned long long)s->next);
        return;
    }
    struct neb_buf *b = &s->queue[seq % s->c.window_batches];
    neb_buf_clear(b);
    neb_buf_add(b, m->parts[0].p, m->parts[0].len);
    double age = real_of(m, "age_s");
    s->put_at[seq % s->c.window_batches] = age < 0 ? 0 : neb_now() - (neb_ns)(1e9 * age);
    if (!b->oom)
        s->have++;
    if (s->waits)
        account(s);
}

static void take_begin(struct agent_stream *s, const struct agent_ipc_msg *m) {
    int64_t next = agent_ipc_int(m, "next", -1);
    if (!s->anywhere || next < 0)
        return; // repeated
    s->anywhere = false;
    s->next = s->have = (uint64_t)next;
}

static void take_path(struct agent_stream *s, const struct agent_ipc_msg *m) {
    s->taken = (uint64_t)agent_ipc_int(m, "applied", 0);
    s->arrived = (uint64_t)agent_ipc_int(m, "have", 0);
    s->path = (struct inter_stream_measure){.goodput_bps = real_of(m, "goodput_bps"),
                                            .full = json_is_true(json_object_get(m->head, "full")),
                                            .rtt = (neb_ns)(1e9 * real_of(m, "rtt_s")),
                                            .waited = (neb_ns)(1e9 * real_of(m, "waited_s"))};
}

bool agent_stream_event(struct agent_stream *s, const struct agent_ipc_msg *m) {
    const char *ev = agent_ipc_str(m, "ev", "");
    if (strncmp(ev, "stream-", 7) || agent_ipc_int(m, "stream", -1) != s->c.key.id)
        return false;
    if (!strcmp(ev, "stream-batch"))
        take_batch(s, m);
    else if (!strcmp(ev, "stream-begin"))
        take_begin(s, m);
    else if (!strcmp(ev, "stream-room")) {
        s->limit = (uint64_t)agent_ipc_int(m, "limit", 0);
        s->stored = (uint64_t)agent_ipc_int(m, "stored", 0);
        s->durable = (uint64_t)agent_ipc_int(m, "durable", 0);
        take_path(s, m);
    } else if (!strcmp(ev, "stream-checkpoint"))
        s->want_checkpoint = true;
    else if (!strcmp(ev, "stream-refused") &&
             !s->refused[0]) { // the first one is the cause; more may follow
        snprintf(s->refused, sizeof s->refused, "%s", agent_ipc_str(m, "text", "refused"));
        s->differs = json_is_true(json_object_get(m->head, "terms"));
    }
    return true;
}

static enum neb_status taken(enum neb_status st) {
    return st == NEB_ERR_AGAIN ? neb_fail(NEB_ERR_IO, "the agent does not accept messages") : st;
}

static enum neb_status say(struct agent_stream *s, const char *op, uint64_t next) {
    if (!s->ipc)
        return NEB_OK;
    return taken(agent_ipc_send(
        s->ipc, NULL,
        json_pack("{s:s,s:i,s:I}", "op", op, "stream", s->c.key.id, "next", (json_int_t)next), NULL,
        0));
}

// Both ends are in this process: next is where the consumer is.
static enum neb_status put_here(struct agent_stream *s, const void *p, size_t n) {
    if (s->have - s->next >= s->c.window_batches)
        return NEB_ERR_AGAIN;
    struct neb_buf *b = &s->queue[s->have++ % s->c.window_batches];
    neb_buf_clear(b);
    neb_buf_add(b, p, n);
    return neb_buf_check(b);
}

enum neb_status agent_stream_put(struct agent_stream *s, const void *p, size_t n) {
    struct agent_ipc_part part = {p, n};
    if (!s->ipc)
        return put_here(s, p, n);
    if (n < 1 || n > s->c.batch_bytes)
        return neb_fail(NEB_ERR_LIMIT,
                        "stream %u: a batch has %zu bytes, but the sides agreed on at most %u",
                        s->c.key.id, n, s->c.batch_bytes);
    if (s->next >= s->limit)
        return NEB_ERR_AGAIN;
    NEB_TRY(agent_ipc_send(s->ipc, NULL,
                           json_pack("{s:s,s:i,s:I}", "op", "stream-put", "stream", s->c.key.id,
                                     "seq", (json_int_t)s->next),
                           &part, 1));
    s->next++;
    s->batches++;
    s->bytes += n;
    return NEB_OK;
}

enum neb_status agent_stream_next(struct agent_stream *s, const uint8_t **p, size_t *n) {
    if (s->next >= s->have) {
        s->waits = s->waits ? s->waits : neb_now();
        return NEB_ERR_AGAIN;
    }
    const struct neb_buf *b = &s->queue[s->next % s->c.window_batches];
    *p = b->p;
    *n = b->len;
    return NEB_OK;
}

enum neb_status agent_stream_applied(struct agent_stream *s) {
    NEB_ASSERT(s->next < s->have);
    struct neb_buf *b = &s->queue[s->next % s->c.window_batches];
    neb_ns now = neb_now();
    s->last_took = s->begun ? now - s->begun : 0;
    s->last_put = s->put_at[s->next % s->c.window_batches];
    s->begun = now;
    s->bytes += b->len;
    s->batches++;
    neb_buf_free(b);
    *b = (struct neb_buf){0};
    s->next++;
    return say(s, "stream-applied", s->next);
}

enum neb_status agent_stream_skip(struct agent_stream *s, uint64_t next) {
    NEB_ASSERT(s->c.role == INTER_STREAM_CONSUMER && next >= s->next);
    s->anywhere = false;
    s->next = s->have = next;
    s->waits = 0;
    return taken(say_open(s));
}

enum neb_status agent_stream_saved(struct agent_stream *s, uint64_t cursor, int keep, bool final) {
    NEB_ASSERT(keep >= 1 && keep <= AGENT_STREAM_GENERATIONS);
    // not the same generation twice
    if (!s->n_saved || s->saved[(s->n_saved - 1) % (uint64_t)keep] != cursor)
        s->saved[s->n_saved++ % (uint64_t)keep] = cursor;
    if (final)
        return say(s, "stream-durable", cursor);
    return s->n_saved < (uint64_t)keep
               ? NEB_OK // older generations belong to another process
               : say(s, "stream-durable", s->saved[s->n_saved % (uint64_t)keep]);
}
