// SPDX-License-Identifier: Apache-2.0
// The worker of mode rtd: one side behind a stream, or, in the reference, both sides in one
// process.
#include "agent/base/log.h"
#include "agent/train/rtd.h"
#include "agent/train/rtd_share.h"
#include "agent/train/worker_side.h"

#include <math.h>

enum {
    STREAM_ID = 1,
    BACK_ID = 2, // the discriminator's embeddings
};

struct rtd_run {
    struct agent_worker *w;
    struct worker_side x;                // owns the streams
    bool both;                           // both sides are in this process
    struct agent_rtd_side *side, *other; // this cluster's side; the discriminator, if both are here
    struct agent_stream *stream;         // NULL if both are here
    struct agent_stream *back;           // also NULL if embeddings are not shared
    uint64_t back_next;                  // from the checkpoint
    struct neb_buf reply;                // if both are here: a reply that was not taken yet
    struct neb_buf batch;
    bool holds; // a batch waits for room
};

// Sets the worker's figures to those of one side.
static void show(struct rtd_run *r, struct agent_rtd_side *side) {
    const struct agent_rtd_state *x = agent_rtd_state(side);
    struct agent_worker *w = r->w;
    w->x.step = x->updates;
    w->x.all_tokens = x->tokens;
    w->x.loss_first = x->loss_first;
    w->x.loss_last = x->loss_last;
    w->x.train_s = x->train_s;
    w->x.payload_bytes = x->batch_bytes;
    w->model = agent_rtd_trainer(side)->model;
}

static void say_step(struct rtd_run *r, struct agent_rtd_side *side) {
    bool fresh;
    const struct intra_step_stats *s = agent_rtd_stats(side, &fresh);
    const struct agent_rtd_state *x = agent_rtd_state(side);
    show(r, side);
    if (fresh)
        worker_check_step(r->w, s);
    if (fresh && (x->updates == 1 || x->updates % r->w->x.job.log_every == 0))
        worker_send_step(r->w, s, x->train_s > 0 ? (double)x->tokens / x->train_s : 0);
}

// ---- checkpoints --------------------------------------------------------------------------------

static enum neb_status add_state(void *user, struct intra_ckpt_writer *out) {
    struct rtd_run *r = user;
    NEB_TRY(worker_text_save(r->w, out));
    NEB_TRY(agent_rtd_save(r->side, out));
    if (r->holds && !agent_rtd_repeated(r->side))
        NEB_TRY(intra_ckpt_add(out, "rtd.batch", INTRA_BYTES, r->batch.len, 1, r->batch.p));
    return r->back ? intra_ckpt_add(out, "rtd.back", INTRA_U64, 1, 1, &r->back->next) : NEB_OK;
}

static enum neb_status save(struct rtd_run *r, bool final) {
    if (r->both) // the reference starts over after a failure
        return NEB_OK;
    // The discriminator takes the batches of an unfinished evaluation again. All that the generator
    // consumes comes before its evaluation, so it takes nothing again.
    bool consumes = r->stream->c.role == INTER_STREAM_CONSUMER;
    uint64_t again = consumes ? (uint64_t)agent_rtd_repeated(r->side) : 0;
    return worker_side_save(&r->x, agent_rtd_state(r->side)->event, again, final);
}

static enum neb_status restore(struct rtd_run *r) {
    struct intra_ckpt *c = NULL;
    enum neb_status st = worker_side_newest(&r->x, &c);
    if (st == NEB_ERR_NOT_FOUND)
        return NEB_OK;
    if (st == NEB_OK)
        st = worker_text_compare(r->w, c);
    if (st == NEB_OK)
        st = agent_rtd_restore(r->side, c);
    if (st == NEB_OK && r->w->x.job.rtd.share_embeddings)
        st = intra_ckpt_read(c, "rtd.back", INTRA_U64, 1, 1, &r->back_next);
    const struct intra_ckpt_section *held = st == NEB_OK ? intra_ckpt_find(c, "rtd.batch") : NULL;
    if (held) {
        st = neb_buf_reserve(&r->batch, held->bytes);
        if (st == NEB_OK)
            st = intra_ckpt_range(c, held, 0, r->batch.p, held->bytes);
        r->batch.len = st == NEB_OK ? held->bytes : 0;
        r->holds = true;
    }
    intra_ckpt_close(&c);
    if (st == NEB_OK)
        neb_info("going on from event %lld, batch %llu", (long long)agent_rtd_state(r->side)->event,
                 (unsigned long long)agent_rtd_state(r->side)->seq);
    return st;
}

// Writes a checkpoint between two events, if one is due.
static enum neb_status maybe_save(struct rtd_run *r) {
    bool evaluating = agent_rtd_trained(r->side);
    return !evaluating && worker_side_due(&r->x, agent_rtd_state(r->side)->event) ? save(r, false)
                                                                                  : NEB_OK;
}

// ---- the loop -----------------------------------------------------------------------------------

// Gives the generator the discriminator's rows that its next event waits for. NEB_ERR_AGAIN: not
// here yet.
static enum neb_status take_answer(struct rtd_run *r) {
    const uint8_t *p = r->reply.p;
    size_t n = r->reply.len;
    if (r->back)
        NEB_TRY(agent_stream_next(r->back, &p, &n));
    NEB_TRY(agent_rtd_answer(r->side, p, n));
    return r->back ? agent_stream_applied(r->back) : NEB_OK;
}

static enum neb_status put_reply(struct rtd_run *r, struct agent_rtd_side *side) {
    const struct neb_buf *b = agent_rtd_reply(side);
    enum neb_status st = NEB_OK;
    if (!b)
        return NEB_OK;
    if (r->both) {
        neb_buf_clear(&r->reply);
        neb_buf_add(&r->reply, b->p, b->len);
        return neb_buf_check(&r->reply);
    }
    // At most one reply is in flight, so the agent soon has room. The reply must not be lost if the
    // worker stops.
    while ((st = agent_stream_put(r->back, b->p, b->len)) == NEB_ERR_AGAIN) {
        NEB_TRY(exchange_drain(&r->w->x));
        NEB_TRY(exchange_wait(&r->w->x));
    }
    return st;
}

static enum neb_status generate(struct rtd_run *r) {
    if (!r->holds && agent_rtd_awaits(r->side)) {
        enum neb_status st = take_answer(r);
        if (st == NEB_ERR_AGAIN)
            return exchange_wait(&r->w->x);
        NEB_TRY(st);
    }
    if (!r->holds) {
        NEB_TRY(agent_rtd_produce(r->side, &r->batch, &r->holds));
        say_step(r, r->side);
    }
    if (r->both) {
        if (r->holds)
            NEB_TRY(agent_rtd_consume(r->other, r->batch.p, r->batch.len));
        NEB_TRY(put_reply(r, r->other));
        say_step(r, r->other);
        r->holds = false;
        return NEB_OK;
    }
    enum neb_status st = r->holds ? agent_stream_put(r->stream, r->batch.p, r->batch.len) : NEB_OK;
    if (st == NEB_ERR_AGAIN)
        return exchange_wait(&r->w->x);
    r->holds = false;
    return st;
}

static enum neb_status discriminate(struct rtd_run *r) {
    const uint8_t *p;
    size_t n;
    enum neb_status st = agent_stream_next(r->stream, &p, &n);
    if (st == NEB_ERR_AGAIN)
        return exchange_wait(&r->w->x);
    NEB_TRY(st);
    NEB_TRY(agent_rtd_consume(r->side, p, n));
    say_step(r, r->side);
    NEB_TRY(put_reply(r, r->side));
    return agent_stream_applied(r->stream);
}

static enum neb_status train(struct rtd_run *r) {
    bool generator = r->both || r->w->x.job.clusters[r->w->x.cluster].role == AGENT_ROLE_GENERATOR;
    while (!r->w->x.stop && (!agent_rtd_state(r->side)->done || r->holds)) {
        NEB_TRY(exchange_drain(&r->w->x));
        bool trained = agent_rtd_trained(r->side);
        NEB_TRY(generator ? generate(r) : discriminate(r));
        if (r->holds) // a checkpoint implies that the agent has all batches before it
            continue;
        if (!trained && agent_rtd_trained(r->side) && !r->both)
            NEB_TRY(save(r, false));
        NEB_TRY(maybe_save(r));
    }
    return NEB_OK;
}

// ---- start and end ------------------------------------------------------------------------------

static enum neb_status open_streams(struct rtd_run *r) {
    const struct agent_job *j = &r->w->x.job;
    bool generator = j->clusters[r->w->x.cluster].role == AGENT_ROLE_GENERATOR;
    struct inter_stream_config c = {
        .key = {.id = STREAM_ID},
        .type = INTER_STREAM_REPLACEMENTS,
        .role = generator ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
        .peer = (uint32_t)agent_job_role(j, generator ? AGENT_ROLE_DISCRIMINATOR
                                                      : AGENT_ROLE_GENERATOR),
        .window_start = (uint32_t)j->rtd.ahead,
        .window_batches = agent_rtd_ahead_max(j)};
    NEB_TRY(worker_side_stream(&r->x, &c, agent_rtd_batch_max(j), !j->rtd.push_text,
                               agent_rtd_state(r->side)->seq - r->holds, &r->stream));
    if (!j->rtd.share_embeddings)
        return NEB_OK;
    c.key.id = BACK_ID;
    c.type = INTER_STREAM_EMBEDDINGS;
    c.role = generator ? INTER_STREAM_CONSUMER : INTER_STREAM_PRODUCER;
    return worker_side_stream(&r->x, &c, RTD_SHARE_FRAME_MAX, !j->rtd.push_text, r->back_next,
                              &r->back);
}

static enum neb_status set_up(struct rtd_run *r) {
    struct agent_worker *w = r->w;
    const struct agent_cluster *c = &w->x.job.clusters[w->x.cluster];
    r->both = w->x.job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    NEB_TRY(worker_side_open(&r->x, w));
    NEB_TRY(worker_side_check_device(
        &r->x, agent_rtd_create(&w->x.job, r->both ? AGENT_ROLE_GENERATOR : c->role, w->corpus,
                                &r->x.at, &r->side)));
    if (r->both)
        return agent_rtd_create(&w->x.job, AGENT_ROLE_DISCRIMINATOR, w->corpus, &r->x.at,
                                &r->other);
    NEB_TRY(restore(r));
    r->x.looked = agent_rtd_state(r->side)->event;
    NEB_TRY(open_streams(r));
    return worker_side_start(&r->x, add_state, r);
}

static json_t *results(struct rtd_run *r, struct agent_rtd_side *side) {
    const struct agent_rtd_state *x = agent_rtd_state(side);
    bool generator = r->w->x.job.clusters[r->w->x.cluster].role == AGENT_ROLE_GENERATOR;
    json_t *quality = agent_rtd_quality(side);
    if (quality && r->stream && r->stream->c.role == INTER_STREAM_CONSUMER)
        json_object_set_new(quality, "stall", agent_stream_stall(r->stream));
    char device[96];
    worker_device_name(r->w, device, sizeof device);
    show(r, side);
    json_t *o = NULL;
    if (worker_results(r->w, device, x->done ? x->eval_loss : NAN, x->done, &o) != NEB_OK)
        o = NULL;
    json_object_set_new(o, "role",
                        json_string(r->both     ? "both"
                                    : generator ? "generator"
                                                : "discriminator"));
    json_object_set_new(o, "quality", quality);
    return o;
}

static enum neb_status report(struct rtd_run *r) {
    json_t *o = results(r, r->side);
    return exchange_report(
        &r->w->x, o, r->both ? json_pack("{s:o}", "discriminator", results(r, r->other)) : NULL);
}

static enum neb_status run(struct rtd_run *r) {
    NEB_TRY(set_up(r));
    NEB_TRY(train(r));
    if (agent_rtd_state(r->side)->event != r->x.saved)
        NEB_TRY(save(r, agent_rtd_state(r->side)->done));
    NEB_TRY(worker_side_wait_taken(&r->x));
    NEB_TRY(intra_trainer_pull(agent_rtd_trainer(r->side), NULL)); // for the file and its digest
    if (agent_rtd_state(r->side)->done)
        NEB_TRY(worker_write_model(r->w, agent_rtd_trainer(r->side)->model, "model.ckpt"));
    if (r->both && agent_rtd_state(r->other)->done)
        NEB_TRY(worker_write_model(r->w, agent_rtd_trainer(r->other)->model, "discriminator.ckpt"));
    return report(r);
}

enum neb_status agent_rtd_run(struct agent_worker *w) {
    struct rtd_run r = {.w = w};
    enum neb_status st = run(&r);
    worker_side_close(&r.x);
    agent_rtd_destroy(&r.other);
    agent_rtd_destroy(&r.side);
    neb_buf_free(&r.reply);
    neb_buf_free(&r.batch);
    return st;
}
