// The worker of mode rtd: one side behind a stream, or, for the reference, both sides in one process.
#include "agent/base/log.h"
#include "agent/rtd.h"
#include "agent/worker_side.h"

#include <math.h>

enum { STREAM_ID = 1, BATCH_BYTES_MIN = 64 << 10 };

struct rtd_run {
    struct agent_worker *w;
    struct worker_side x;                // its one stream, unless both sides are here
    bool both;                           // sides are in this process
    struct agent_rtd_side *side, *other; // of this cluster; the discriminator, where both are here
    struct neb_buf batch;
    bool holds; // a batch waits for room
};

// The worker's figures are those of one side at a time.
static void show(struct rtd_run *r, struct agent_rtd_side *side) {
    const struct agent_rtd_state *x = agent_rtd_state(side);
    struct agent_worker *w = r->w;
    w->step = x->updates;
    w->all_tokens = x->tokens;
    w->loss_first = x->loss_first;
    w->loss_last = x->loss_last;
    w->train_s = x->train_s;
    w->payload_bytes = x->batch_bytes;
    w->model = agent_rtd_trainer(side)->model;
}

static void say_step(struct rtd_run *r, struct agent_rtd_side *side) {
    bool fresh;
    const struct intra_step_stats *s = agent_rtd_stats(side, &fresh);
    const struct agent_rtd_state *x = agent_rtd_state(side);
    show(r, side);
    if (fresh && (x->updates == 1 || x->updates % r->w->job.log_every == 0))
        worker_say_step(r->w, s, x->train_s > 0 ? (double)x->tokens / x->train_s : 0);
}

// ---- checkpoints ----------------------------------------------------------------------------------------------

static enum neb_status add_state(void *user, struct intra_ckpt_writer *out) {
    struct rtd_run *r = user;
    const struct agent_rtd_state *x = agent_rtd_state(r->side);
    bool again = agent_rtd_trained(r->side) && x->event > r->w->job.steps &&
                 !x->done; // evaluation is repeated
    NEB_TRY(agent_rtd_save(r->side, out));
    return r->holds && !again
               ? intra_ckpt_add(out, "rtd.batch", INTRA_BYTES, r->batch.len, 1, r->batch.p)
               : NEB_OK;
}

static enum neb_status save(struct rtd_run *r, bool final) {
    if (r->both) // the reference is repeated from its start
        return NEB_OK;
    return worker_side_save(&r->x, agent_rtd_state(r->side)->event, final, add_state, r);
}

static enum neb_status restore(struct rtd_run *r) {
    struct intra_ckpt *c = NULL;
    enum neb_status st = worker_side_newest(&r->x, &c);
    if (st == NEB_ERR_NOT_FOUND)
        return NEB_OK;
    if (st == NEB_OK)
        st = agent_rtd_restore(r->side, c);
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

// Between two events.
static enum neb_status maybe_save(struct rtd_run *r) {
    bool evaluating = agent_rtd_trained(r->side);
    return !evaluating && worker_side_due(&r->x, agent_rtd_state(r->side)->event) ? save(r, false)
                                                                                  : NEB_OK;
}

// ---- the loop -------------------------------------------------------------------------------------------------

static enum neb_status generate(struct rtd_run *r) {
    if (!r->holds) {
        NEB_TRY(agent_rtd_produce(r->side, &r->batch, &r->holds));
        say_step(r, r->side);
    }
    if (r->both) {
        if (r->holds)
            NEB_TRY(agent_rtd_consume(r->other, r->batch.p, r->batch.len));
        say_step(r, r->other);
        r->holds = false;
        return NEB_OK;
    }
    enum neb_status st =
        r->holds ? agent_stream_put(r->x.streams[0], r->batch.p, r->batch.len) : NEB_OK;
    if (st == NEB_ERR_AGAIN)
        return worker_wait(r->w);
    r->holds = false;
    return st;
}

static enum neb_status discriminate(struct rtd_run *r) {
    const uint8_t *p;
    size_t n;
    enum neb_status st = agent_stream_next(r->x.streams[0], &p, &n);
    if (st == NEB_ERR_AGAIN)
        return worker_wait(r->w);
    NEB_TRY(st);
    NEB_TRY(agent_rtd_consume(r->side, p, n));
    say_step(r, r->side);
    return agent_stream_applied(r->x.streams[0]);
}

static enum neb_status train(struct rtd_run *r) {
    bool generator = r->both || r->w->job.clusters[r->w->cluster].role == AGENT_ROLE_GENERATOR;
    while (!r->w->stop && (!agent_rtd_state(r->side)->done || r->holds)) {
        NEB_TRY(worker_drain(r->w));
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

// ---- start and end --------------------------------------------------------------------------------------------

static enum neb_status open_stream(struct rtd_run *r) {
    const struct agent_job *j = &r->w->job;
    bool generator = j->clusters[r->w->cluster].role == AGENT_ROLE_GENERATOR;
    // Six bytes a masked token and four a token of text are more than any batch takes.
    double most =
        (double)j->batch * j->seq_len * j->accumulate *
            (6.0 * fmin(1, 1.5 * (double)j->rtd.mask_rate + 0.1) + (j->rtd.push_text ? 4 : 0)) +
        BATCH_BYTES_MIN;
    struct inter_stream_config c = {
        .key = {.id = STREAM_ID},
        .type = INTER_STREAM_REPLACEMENTS,
        .role = generator ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
        .peer = (uint32_t)agent_job_role(j, generator ? AGENT_ROLE_DISCRIMINATOR
                                                      : AGENT_ROLE_GENERATOR),
        .window_batches = (uint32_t)j->rtd.ahead};
    return worker_side_stream(&r->x, &c, most, !j->rtd.push_text,
                              agent_rtd_state(r->side)->seq - r->holds);
}

static enum neb_status set_up(struct rtd_run *r) {
    struct agent_worker *w = r->w;
    const struct agent_cluster *c = &w->job.clusters[w->cluster];
    r->both = w->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    NEB_TRY(worker_side_open(&r->x, w));
    NEB_TRY(agent_rtd_create(&w->job, r->both ? AGENT_ROLE_GENERATOR : c->role, w->corpus, w->K,
                             &r->side));
    if (r->both)
        return agent_rtd_create(&w->job, AGENT_ROLE_DISCRIMINATOR, w->corpus, w->K, &r->other);
    NEB_TRY(restore(r));
    return open_stream(r);
}

static json_t *results(struct rtd_run *r, struct agent_rtd_side *side) {
    const struct agent_rtd_state *x = agent_rtd_state(side);
    bool generator = r->w->job.clusters[r->w->cluster].role == AGENT_ROLE_GENERATOR;
    show(r, side);
    json_t *o = worker_results(r->w, "cpu", x->done ? x->eval_loss : NAN, x->done);
    json_object_set_new(o, "role",
                        json_string(r->both     ? "both"
                                    : generator ? "generator"
                                                : "discriminator"));
    json_object_set_new(o, "quality", agent_rtd_quality(side));
    return o;
}

static enum neb_status report(struct rtd_run *r) {
    json_t *o = results(r, r->side);
    return worker_report(
        r->w, o, r->both ? json_pack("{s:o}", "discriminator", results(r, r->other)) : NULL);
}

static enum neb_status run(struct rtd_run *r) {
    NEB_TRY(set_up(r));
    NEB_TRY(train(r));
    if (agent_rtd_state(r->side)->event != r->x.saved)
        NEB_TRY(save(r, agent_rtd_state(r->side)->done));
    NEB_TRY(worker_side_wait_taken(&r->x));
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
    neb_buf_free(&r.batch);
    return st;
}
