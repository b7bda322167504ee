// The worker of mode rtd: one side behind a stream, or, for the reference, both sides in one process.
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "agent/rtd.h"
#include "agent/rtd_share.h"
#include "agent/worker.h"
#include "agent/worker_stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    STREAM_ID = 1,
    BACK_ID = 2, // the discriminator's embeddings
    SPOOL_BATCHES = 4096,
    BATCH_BYTES_MIN = 64 << 10,
};
static const uint64_t spool_bytes = 256ull << 20;
static const neb_ns poll_slice = 200 * NEB_MS;

struct rtd_run {
    struct agent_worker *w;
    bool both;                           // sides are in this process
    struct agent_rtd_side *side, *other; // of this cluster; the discriminator, where both are here
    struct agent_stream *stream, *back;  // back: NULL unless embeddings are shared
    uint64_t back_next;                  // of the checkpoint
    struct neb_buf reply;                // where both are here: not taken yet
    struct neb_buf batch;
    bool holds; // a batch waits for room
    int64_t saved_event;
};

// ---- messages from the agent ----------------------------------------------------------------------------------

static void on_agent(struct rtd_run *r, struct agent_ipc_msg *m) {
    const char *ev = agent_ipc_str(m, "ev", "");
    if ((r->stream && agent_stream_event(r->stream, m)) ||
        (r->back && agent_stream_event(r->back, m)))
        ;
    else if (!strcmp(ev, "stop"))
        r->w->stop = true;
    agent_ipc_msg_clear(m);
}

static enum neb_status drain(struct rtd_run *r) {
    struct agent_ipc_client nobody;
    struct agent_ipc_msg m;
    enum neb_status st;
    while ((st = agent_ipc_recv(r->w->ipc, &nobody, &m)) == NEB_OK || st == NEB_ERR_FORMAT)
        if (st == NEB_OK)
            on_agent(r, &m);
    NEB_TRY(st == NEB_ERR_AGAIN ? NEB_OK : st);
    if (r->stream && r->stream->refused[0])
        return neb_fail(NEB_ERR_INVALID, "%s", r->stream->refused);
    if (r->back && r->back->refused[0])
        return neb_fail(NEB_ERR_INVALID, "%s", r->back->refused);
    return NEB_OK;
}

// Waits a little; counts as stall.
static enum neb_status wait_agent(struct rtd_run *r) {
    struct agent_ipc_msg m;
    neb_ns start = neb_now();
    enum neb_status st = agent_ipc_wait(r->w->ipc, poll_slice, &m);
    r->w->stall_s += neb_seconds(neb_now() - start);
    if (st == NEB_OK)
        on_agent(r, &m);
    return st == NEB_OK || st == NEB_ERR_TIMEOUT || st == NEB_ERR_INTERRUPTED ||
                   st == NEB_ERR_FORMAT
               ? NEB_OK
               : st;
}

static void say_step(struct rtd_run *r, struct agent_rtd_side *side) {
    bool fresh;
    const struct intra_step_stats *s = agent_rtd_stats(side, &fresh);
    const struct agent_rtd_state *x = agent_rtd_state(side);
    if (fresh && (x->updates == 1 || x->updates % r->w->job.log_every == 0))
        worker_metrics(
            r->w, json_pack("{s:s,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f}", "kind", "step", "step",
                            (json_int_t)x->updates, "tokens", (json_int_t)x->tokens, "loss",
                            s->loss, "lr", (double)s->update.lr, "grad_norm", s->update.grad_norm,
                            "tokens_per_s", x->train_s > 0 ? (double)x->tokens / x->train_s : 0.0,
                            "stall_s", r->w->stall_s, "train_s", x->train_s));
}

// ---- checkpoints ----------------------------------------------------------------------------------------------

static enum neb_status wait_stored(struct rtd_run *r, const struct agent_stream *t) {
    while (t && t->c.role == INTER_STREAM_PRODUCER && t->stored < t->next) {
        NEB_TRY(drain(r));
        NEB_TRY(wait_agent(r));
    }
    return NEB_OK;
}

static enum neb_status say_saved(struct rtd_run *r, struct agent_stream *t, bool final) {
    return t && t->c.role == INTER_STREAM_CONSUMER
               ? agent_stream_saved(t, r->w->job.checkpoint_keep, final)
               : NEB_OK;
}

static enum neb_status save(struct rtd_run *r, bool final) {
    char dir[NEB_PATH_MAX], path[NEB_PATH_MAX];
    struct intra_ckpt_writer *out = NULL;
    const struct agent_rtd_state *x = agent_rtd_state(r->side);
    if (r->both) // the reference is repeated from its start
        return NEB_OK;
    NEB_TRY(neb_path(dir, sizeof dir, r->w->dir, "checkpoint"));
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(intra_ckpt_step_path(dir, x->event, path, sizeof path));
    // What a checkpoint says to have put must not be lost with the agent.
    NEB_TRY(wait_stored(r, r->stream));
    NEB_TRY(wait_stored(r, r->back));
    NEB_TRY(intra_ckpt_create(path, &out));
    enum neb_status st = agent_rtd_save(r->side, out);
    bool again = agent_rtd_trained(r->side) && x->event > r->w->job.steps &&
                 !x->done; // evaluation is repeated
    if (st == NEB_OK && r->holds && !again)
        st = intra_ckpt_add(out, "rtd.batch", INTRA_BYTES, r->batch.len, 1, r->batch.p);
    if (st == NEB_OK && r->back)
        st = intra_ckpt_add(out, "rtd.back", INTRA_U64, 1, 1, &r->back->next);
    if (st == NEB_OK)
        st = intra_ckpt_commit(out);
    intra_ckpt_writer_destroy(&out);
    NEB_TRY(st);
    NEB_TRY(intra_ckpt_prune(dir, r->w->job.checkpoint_keep));
    r->saved_event = x->event;
    NEB_TRY(say_saved(r, r->back, final));
    return say_saved(r, r->stream, final);
}

static enum neb_status restore(struct rtd_run *r) {
    char dir[NEB_PATH_MAX];
    struct intra_ckpt *c = NULL;
    NEB_TRY(neb_path(dir, sizeof dir, r->w->dir, "checkpoint"));
    enum neb_status st = intra_ckpt_open_latest(dir, &c);
    if (st == NEB_ERR_NOT_FOUND)
        return NEB_OK;
    if (st == NEB_OK)
        st = agent_rtd_restore(r->side, c);
    if (st == NEB_OK && r->w->job.rtd.share_embeddings)
        st = intra_ckpt_read(c, "rtd.back", INTRA_U64, 1, 1, &r->back_next);
    const struct intra_ckpt_section *held = st == NEB_OK ? intra_ckpt_find(c, "rtd.batch") : NULL;
    if (held) {
        neb_buf_add(&r->batch, intra_ckpt_data(c, held), held->bytes);
        st = neb_buf_check(&r->batch);
        r->holds = true;
    }
    intra_ckpt_close(&c);
    if (st == NEB_OK)
        neb_info("going on from event %lld, batch %llu", (long long)agent_rtd_state(r->side)->event,
                 (unsigned long long)agent_rtd_state(r->side)->seq);
    return st;
}

static enum neb_status save_model(struct rtd_run *r, struct agent_rtd_side *side,
                                  const char *name) {
    char path[NEB_PATH_MAX];
    struct intra_ckpt_writer *out = NULL;
    NEB_TRY(neb_path(path, sizeof path, r->w->dir, name));
    NEB_TRY(intra_ckpt_create(path, &out));
    enum neb_status st = intra_model_save(agent_rtd_trainer(side)->model, out);
    if (st == NEB_OK)
        st = intra_ckpt_commit(out);
    intra_ckpt_writer_destroy(&out);
    return st;
}

// Between two events.
static enum neb_status maybe_save(struct rtd_run *r) {
    const struct agent_rtd_state *x = agent_rtd_state(r->side);
    bool due = r->w->job.checkpoint_every && x->event % r->w->job.checkpoint_every == 0,
         asked = (r->stream && r->stream->want_checkpoint) || (r->back && r->back->want_checkpoint),
         evaluating = agent_rtd_trained(r->side);
    return x->event != r->saved_event && !evaluating && (due || asked) ? save(r, false) : NEB_OK;
}

// ---- the loop -------------------------------------------------------------------------------------------------

// The discriminator's rows that the next event waits for. NEB_ERR_AGAIN: they are not here yet.
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
    // At most one is under way, so there is room as soon as the agent has said so; it must not be lost where the worker stops.
    while ((st = agent_stream_put(r->back, b->p, b->len)) == NEB_ERR_AGAIN) {
        NEB_TRY(drain(r));
        NEB_TRY(wait_agent(r));
    }
    return st;
}

static enum neb_status generate(struct rtd_run *r) {
    if (!r->holds && agent_rtd_awaits(r->side)) {
        enum neb_status st = take_answer(r);
        if (st == NEB_ERR_AGAIN)
            return wait_agent(r);
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
        return wait_agent(r);
    r->holds = false;
    return st;
}

static enum neb_status discriminate(struct rtd_run *r) {
    const uint8_t *p;
    size_t n;
    enum neb_status st = agent_stream_next(r->stream, &p, &n);
    if (st == NEB_ERR_AGAIN)
        return wait_agent(r);
    NEB_TRY(st);
    NEB_TRY(agent_rtd_consume(r->side, p, n));
    say_step(r, r->side);
    NEB_TRY(put_reply(r, r->side));
    return agent_stream_applied(r->stream);
}

static enum neb_status train(struct rtd_run *r) {
    bool generator = r->both || r->w->job.clusters[r->w->cluster].role == AGENT_ROLE_GENERATOR;
    while (!r->w->stop && (!agent_rtd_state(r->side)->done || r->holds)) {
        NEB_TRY(drain(r));
        bool trained = agent_rtd_trained(r->side);
        NEB_TRY(generator ? generate(r) : discriminate(r));
        if (r->holds) // a checkpoint says that the batches before it are with the agent
            continue;
        if (!trained && agent_rtd_trained(r->side) && !r->both)
            NEB_TRY(save(r, false));
        NEB_TRY(maybe_save(r));
    }
    return NEB_OK;
}

// What the generator has put must be the discriminator's for good before this worker may go: its agent keeps it till then.
static enum neb_status wait_taken(struct rtd_run *r) {
    while (!r->w->stop && r->stream && r->stream->c.role == INTER_STREAM_PRODUCER &&
           r->stream->durable < agent_rtd_state(r->side)->seq) {
        NEB_TRY(drain(r));
        NEB_TRY(wait_agent(r));
    }
    while (!r->w->stop && r->back && r->back->c.role == INTER_STREAM_PRODUCER &&
           r->back->durable < r->back->next) {
        NEB_TRY(drain(r));
        NEB_TRY(wait_agent(r));
    }
    return NEB_OK;
}

// ---- start and end --------------------------------------------------------------------------------------------

static enum neb_status set_terms(const struct rtd_run *r, struct inter_stream_config *c) {
    char path[NEB_PATH_MAX];
    struct neb_map map;
    NEB_TRY(neb_path(path, sizeof path, intra_corpus_dir(r->w->corpus), "tokenizer.model"));
    NEB_TRY(neb_map_open(path, &map));
    snprintf(c->terms[0].name, sizeof c->terms[0].name, "vocabulary");
    neb_sha256(map.p, map.len, c->terms[0].sha256);
    neb_map_close(&map);
    c->n_terms = 1;
    if (r->w->job.rtd.push_text)
        return NEB_OK;
    snprintf(c->terms[1].name, sizeof c->terms[1].name, "shards");
    intra_corpus_digest(r->w->corpus, c->terms[1].sha256);
    c->n_terms = 2;
    return NEB_OK;
}

static enum neb_status open_stream(struct rtd_run *r) {
    const struct agent_job *j = &r->w->job;
    bool generator = j->clusters[r->w->cluster].role == AGENT_ROLE_GENERATOR;
    // Six bytes a masked token and four a token of text are more than any batch takes.
    double most =
        (double)j->batch * j->seq_len * j->accumulate *
            (6.0 * fmin(1, 1.5 * (double)j->rtd.mask_rate + 0.1) + (j->rtd.push_text ? 4 : 0)) +
        BATCH_BYTES_MIN + (j->rtd.share_embeddings ? RTD_SHARE_FRAME_MAX : 0);
    if (most > INTER_STREAM_BATCH_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "a step of %d x %d x %d tokens makes batches of up to %.0f bytes, a stream "
                        "takes %d; lower "
                        "data.batch or data.accumulate",
                        j->accumulate, j->batch, j->seq_len, most, INTER_STREAM_BATCH_MAX);
    struct inter_stream_config c = {
        .key = {.id = STREAM_ID},
        .type = INTER_STREAM_REPLACEMENTS,
        .role = generator ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
        .peer = (uint32_t)agent_job_role(j, generator ? AGENT_ROLE_DISCRIMINATOR
                                                      : AGENT_ROLE_GENERATOR),
        .batch_bytes = (uint32_t)most,
        .window_batches = (uint32_t)j->rtd.ahead,
        .window_bytes = 16 << 20,
        .spool_batches = SPOOL_BATCHES,
        .spool_bytes = spool_bytes};
    NEB_TRY(set_terms(r, &c));
    NEB_TRY(agent_stream_open(r->w->ipc, &c, agent_rtd_state(r->side)->seq - r->holds, &r->stream));
    if (!j->rtd.share_embeddings)
        return NEB_OK;
    c.key.id = BACK_ID;
    c.type = INTER_STREAM_EMBEDDINGS;
    c.role = generator ? INTER_STREAM_CONSUMER : INTER_STREAM_PRODUCER;
    c.batch_bytes = RTD_SHARE_FRAME_MAX;
    return agent_stream_open(r->w->ipc, &c, r->back_next, &r->back);
}

static enum neb_status set_up(struct rtd_run *r) {
    struct agent_worker *w = r->w;
    const struct agent_cluster *c = &w->job.clusters[w->cluster];
    r->both = w->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    r->saved_event = -1;
    // The digest that is compared is worth what the shards are: they are read against it.
    NEB_TRY(intra_corpus_open(c->corpus[0] ? c->corpus : w->job.corpus, true, &w->corpus));
    NEB_TRY(kern_cpu_create(c->threads, &w->K));
    NEB_TRY(agent_rtd_create(&w->job, r->both ? AGENT_ROLE_GENERATOR : c->role, w->corpus, w->K,
                             &r->side));
    if (r->both)
        return agent_rtd_create(&w->job, AGENT_ROLE_DISCRIMINATOR, w->corpus, w->K, &r->other);
    NEB_TRY(restore(r));
    return open_stream(r);
}

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static json_t *make_report(struct rtd_run *r, struct agent_rtd_side *side) {
    const struct agent_rtd_state *x = agent_rtd_state(side);
    const struct intra_model *m = agent_rtd_trainer(side)->model;
    const struct agent_cluster *c = &r->w->job.clusters[r->w->cluster];
    char hex[33];
    agent_rtd_digest(side, hex);
    json_t *quality = agent_rtd_quality(side);
    if (quality && r->stream && r->stream->c.role == INTER_STREAM_CONSUMER)
        json_object_set_new(quality, "stall", agent_stream_stall(r->stream));
    return json_pack(
        "{s:s,s:s,s:I,s:I,s:o,s:o,s:o,s:f,s:f,s:f,s:s,s:I,s:I,s:I,s:I,s:I,s:b,s:i,s:o}", "device",
        "cpu", "role",
        r->both                           ? "both"
        : c->role == AGENT_ROLE_GENERATOR ? "generator"
                                          : "discriminator",
        "steps", (json_int_t)x->updates, "tokens", (json_int_t)x->tokens, "loss_first",
        number(x->loss_first), "loss_last", number(x->loss_last), "eval_loss",
        x->done ? number(x->eval_loss) : json_null(), "stall_s", r->w->stall_s, "train_s",
        x->train_s, "sync_s", 0.0, "params_digest", hex, "params", (json_int_t)m->n_params,
        "trainable_params", (json_int_t)m->n_trainable, "rounds", (json_int_t)0, "payload_bytes",
        (json_int_t)x->batch_bytes, "payload_params", (json_int_t)0, "stopped", !x->done, "threads",
        kern_pool_threads(r->w->K->pool), "quality", quality);
}

static enum neb_status report(struct rtd_run *r) {
    json_t *o = make_report(r, r->side);
    if (r->both && o)
        json_object_set_new(o, "discriminator", make_report(r, r->other));
    if (!o)
        return neb_fail(NEB_ERR_NOMEM, "out of memory reporting");
    return agent_ipc_send(r->w->ipc, NULL, json_pack("{s:s,s:o}", "op", "report", "report", o),
                          NULL, 0);
}

static enum neb_status run(struct rtd_run *r) {
    NEB_TRY(set_up(r));
    NEB_TRY(train(r));
    if (agent_rtd_state(r->side)->event != r->saved_event)
        NEB_TRY(save(r, agent_rtd_state(r->side)->done));
    NEB_TRY(wait_taken(r));
    if (agent_rtd_state(r->side)->done)
        NEB_TRY(save_model(r, r->side, "model.ckpt"));
    if (r->both && agent_rtd_state(r->other)->done)
        NEB_TRY(save_model(r, r->other, "discriminator.ckpt"));
    return report(r);
}

enum neb_status agent_rtd_run(struct agent_worker *w) {
    struct rtd_run r = {.w = w};
    enum neb_status st = run(&r);
    agent_stream_close(&r.stream);
    agent_stream_close(&r.back);
    neb_buf_free(&r.reply);
    agent_rtd_destroy(&r.other);
    agent_rtd_destroy(&r.side);
    neb_buf_free(&r.batch);
    return st;
}
