// SPDX-License-Identifier: Apache-2.0
#include "agent/base/log.h"
#include "agent/train/side.h"
#include "agent/train/side_check.h"

static const neb_ns taken_patience = 60 * NEB_S;

enum neb_status side_event(void *user, const struct agent_ipc_msg *m, bool *taken) {
    struct agent_side *x = user;
    for (int32_t i = 0; i < x->n_streams && !*taken; i++) {
        *taken = agent_stream_event(x->streams[i], m);
        if (*taken && x->streams[i]->refused[0])
            return neb_fail(NEB_ERR_INVALID, "%s", x->streams[i]->refused);
    }
    return NEB_OK;
}

void side_close(struct agent_side *x) {
    for (int32_t i = 0; i < x->n_streams; i++)
        agent_stream_close(&x->streams[i]);
    x->n_streams = 0;
}

static enum neb_status set_terms(const struct intra_corpus *corpus, bool shards,
                                 struct inter_stream_config *c) {
    snprintf(c->terms[0].name, sizeof c->terms[0].name, "vocabulary");
    NEB_TRY(intra_corpus_tokenizer_digest(corpus, c->terms[0].sha256));
    snprintf(c->terms[1].name, sizeof c->terms[1].name, "shards");
    intra_corpus_digest(corpus, c->terms[1].sha256);
    c->n_terms = shards ? 2 : 1;
    return NEB_OK;
}

enum neb_status side_stream(struct agent_side *x, const struct inter_stream_config *given,
                            double batch_bytes, bool shards, uint64_t next,
                            struct agent_stream **out) {
    struct inter_stream_config c = *given;
    NEB_TRY(agent_side_batch_fits(&x->w->x.job, batch_bytes));
    NEB_ASSERT(x->n_streams < SIDE_STREAMS_MAX);
    agent_stream_limits(&c, batch_bytes);
    NEB_TRY(set_terms(x->w->corpus, shards, &c));
    NEB_TRY(agent_stream_open(x->second ? NULL : x->w->x.link.ipc, &c, next, out));
    x->streams[x->n_streams++] = *out;
    return NEB_OK;
}

bool side_take(struct agent_stream *s, struct side_turn *t) {
    bool here = agent_stream_next(s, &t->p, &t->n) == NEB_OK;
    t->from = here ? s : NULL;
    t->next = here ? SIDE_LEARN : SIDE_WAIT;
    return here;
}

bool side_produces(const struct agent_stream *s) { return s->c.role == INTER_STREAM_PRODUCER; }

enum neb_status side_wait(struct agent_side *x) {
    NEB_TRY(exchange_drain(&x->w->x));
    return exchange_wait(&x->w->x);
}

enum neb_status side_wait_stored(struct agent_side *x) {
    for (int32_t i = 0; i < x->n_streams; i++)
        while (side_produces(x->streams[i]) && x->streams[i]->stored < x->streams[i]->next)
            NEB_TRY(side_wait(x));
    return NEB_OK;
}

static void say_untaken(struct agent_side *x, const struct agent_stream *s) {
    char text[320];
    snprintf(text, sizeof text,
             "%s has not confirmed the last %llu batches for a minute: it has not saved them yet, "
             "or it is away, or its part of the job was stopped. This cluster waits for it; nebula "
             "stop ends the wait",
             x->w->x.job.clusters[s->c.peer].name, (unsigned long long)(s->next - s->durable));
    exchange_fault(&x->w->x, text);
}

static enum neb_status wait_taken(struct agent_side *x, const struct agent_stream *s) {
    uint64_t sum = 0; // of the consumer's counters
    neb_ns moved = neb_now();
    bool said = false;
    while (!x->w->x.stop && !s->let_go && s->durable < s->next) {
        NEB_TRY(side_wait(x));
        uint64_t now = s->durable + s->taken + s->arrived;
        moved = now == sum ? moved : neb_now();
        sum = now;
        if (!said && neb_now() - moved >= taken_patience) {
            say_untaken(x, s);
            said = true;
        }
    }
    return NEB_OK;
}

enum neb_status side_wait_taken(struct agent_side *x) {
    for (int32_t i = 0; i < x->n_streams; i++)
        if (side_produces(x->streams[i]))
            NEB_TRY(wait_taken(x, x->streams[i]));
    return NEB_OK;
}
