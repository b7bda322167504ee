// SPDX-License-Identifier: Apache-2.0
#include "agent/base/fault.h"
#include "agent/base/rng.h"
#include "agent/job/json.h"
#include "agent/job/model.h"
#include "agent/train/rtd_side.h"
#include "inter/stream/stream.h"
#include "kernels/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_SPECIAL = 3 }; // unknown, begin, end: never masked
enum { BATCH_BYTES_MIN = 64 << 10 };
static const uint64_t eval_index = 1ull << 40; // first random stream of evaluation

uint64_t rtd_seed(const struct agent_rtd_side *s, int purpose) {
    return neb_mix64((uint64_t)s->job.seed * 0x9e3779b97f4a7c15ull + (uint64_t)purpose);
}

static int64_t rtd_cycle(const struct agent_job *j) {
    return j->rtd.generator_steps > j->rtd.discriminator_steps ? j->rtd.generator_steps
                                                               : j->rtd.discriminator_steps;
}
bool rtd_trains(const struct agent_rtd_side *s, int64_t e) {
    return e % rtd_cycle(&s->job) < s->job.rtd.generator_steps;
}
bool rtd_emits(const struct agent_rtd_side *s, int64_t e) {
    return e % rtd_cycle(&s->job) < s->job.rtd.discriminator_steps;
}

bool rtd_shares(const struct agent_rtd_side *s, int64_t e, int64_t *x) {
    int64_t every = s->job.rtd.share_embeddings;
    *x = every ? e / every : -1;
    return every && e > 0 && e % every == 0 && e + every < s->events;
}

double agent_rtd_batch_max(const struct agent_job *j) {
    // More than any batch takes: six bytes a masked token and four a token of text.
    return (double)j->batch * j->seq_len * j->accumulate *
               (6.0 * fmin(1, 1.5 * (double)j->rtd.mask_rate + 0.1) + (j->rtd.push_text ? 4 : 0)) +
           BATCH_BYTES_MIN + (j->rtd.share_embeddings ? RTD_SHARE_FRAME_MAX : 0);
}

// The generator waits for shared rows after share_embeddings steps, so it never gets further ahead.
uint32_t agent_rtd_ahead_max(const struct agent_job *j) {
    int32_t share = j->rtd.share_embeddings;
    return share && share < INTER_STREAM_WINDOW_MAX ? (uint32_t)share : INTER_STREAM_WINDOW_MAX;
}

// ---- set-up -------------------------------------------------------------------------------------

static struct intra_model_config shape(const struct agent_rtd_side *s) {
    bool generator = s->role == AGENT_ROLE_GENERATOR;
    struct intra_model_config m = agent_job_model(&s->job, generator ? &s->job.rtd.shape : NULL,
                                                  s->vocab + 1, KERN_MASK_BIDIRECTIONAL);
    if (!generator) {
        m.head = INTRA_HEAD_RTD;
        m.tied = true;
    }
    return m;
}

static enum neb_status make_trainer(struct agent_rtd_side *s) {
    const struct agent_job *j = &s->job;
    struct intra_trainer_config t = {
        .model = shape(s),
        .trainable = j->trainable,
        .optim = j->optim,
        .batch = j->batch,
        .seq_len = j->seq_len,
        .accumulate = j->accumulate,
        .recompute = j->recompute,
        .seed = rtd_seed(s, s->role == AGENT_ROLE_GENERATOR ? SEED_GENERATOR : SEED_DISCRIMINATOR),
        .device = s->at.device,
        .device_type = s->at.type,
        .device_graphs = s->at.graphs,
        .soft_k = s->role == AGENT_ROLE_GENERATOR}; // one draw a position
    int64_t updates = 0;
    for (int64_t e = 0; e < rtd_cycle(j); e++)
        updates += s->role == AGENT_ROLE_GENERATOR ? rtd_trains(s, e) : rtd_emits(s, e);
    t.optim.schedule.steps = (s->events * updates + rtd_cycle(j) - 1) / rtd_cycle(j);
    NEB_TRY(intra_trainer_create(&t, s->at.K, &s->trainer));
    if (s->role == AGENT_ROLE_DISCRIMINATOR)
        s->trainer->weight = j->rtd.lambda;
    return NEB_OK;
}

static enum neb_status share_embeddings(struct agent_rtd_side *s) {
    const struct intra_model *m = s->trainer->model;
    s->embedding = calloc((size_t)m->n_all_tensors, sizeof *s->embedding);
    if (!s->embedding)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for shared embeddings");
    s->embedding[m->embed->index] = true;
    return rtd_share_create(s->trainer->model, &s->share);
}

// Held-out windows of each source, limited by the largest number of evaluation batches.
static void plan_eval(struct agent_rtd_side *s) {
    int64_t total = 0, most = (int64_t)AGENT_RTD_EVAL_BATCHES_MAX * s->job.batch;
    int32_t n = intra_corpus_sources(s->corpus);
    for (int32_t i = 0; i < n; i++) {
        int64_t have = (int64_t)intra_corpus_windows(s->corpus, i, INTRA_VALID, s->job.seq_len),
                want = s->job.eval_windows ? s->job.eval_windows : have;
        s->eval_windows[i] = want < have ? want : have;
        s->eval_windows[i] = s->eval_windows[i] < most / n ? s->eval_windows[i] : most / n;
        total += s->eval_windows[i];
    }
    s->eval_batches = (total + s->job.batch - 1) / s->job.batch;
}

enum neb_status agent_rtd_create(const struct agent_job *job, enum agent_role role,
                                 const struct intra_corpus *corpus, const struct intra_place *at,
                                 struct agent_rtd_side **out) {
    enum neb_status st = NEB_OK;
    struct agent_rtd_side *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a side of mode rtd");
    s->job = *job;
    s->role = role;
    s->corpus = corpus;
    s->at = *at;
    s->vocab = intra_corpus_vocab(corpus);
    s->micro = job->batch * job->seq_len;
    s->n = s->micro * job->accumulate;
    s->events = job->steps;
    s->s.loss_first = s->s.loss_last = NAN; // no step yet
    plan_eval(s);
    int32_t **const arrays[] = {&s->tokens,    &s->inputs, &s->targets, &s->positions,
                                &s->masked_at, &s->index,  &s->ids,     &s->window};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        if (!(*arrays[i] = calloc((size_t)s->n, sizeof **arrays[i]))) {
            st = neb_fail(NEB_ERR_NOMEM, "out of memory for a step of %d tokens", s->n);
            goto fail;
        }
    if (job->model.vocab && job->model.vocab != s->vocab + 1) {
        st = neb_fail(NEB_ERR_INVALID,
                      "model.vocab is %d; mode rtd needs the corpus's %d and one more for the "
                      "mask: set model.vocab to 0, and the program sets it",
                      job->model.vocab, s->vocab);
        goto fail;
    }
    NEB_TRY_GOTO(cmp_tokens_create(&s->wire), fail);
    if (role == AGENT_ROLE_GENERATOR || !job->rtd.push_text) // else the text comes with the batches
        NEB_TRY_GOTO(agent_job_sampler(&s->job, agent_job_role(&s->job, AGENT_ROLE_GENERATOR),
                                       s->corpus, &s->sampler),
                     fail);
    NEB_TRY_GOTO(make_trainer(s), fail);
    if (job->rtd.share_embeddings)
        NEB_TRY_GOTO(share_embeddings(s), fail);
    *out = s;
    return NEB_OK;
fail:
    agent_rtd_destroy(&s);
    return st;
}

void agent_rtd_destroy(struct agent_rtd_side **sp) {
    struct agent_rtd_side *s = *sp;
    if (!s)
        return;
    rtd_share_destroy(&s->share);
    free(s->embedding);
    intra_trainer_destroy(&s->trainer);
    intra_sampler_destroy(&s->sampler);
    cmp_tokens_destroy(&s->wire);
    free(s->tokens);
    free(s->inputs);
    free(s->targets);
    free(s->positions);
    free(s->masked_at);
    free(s->index);
    free(s->ids);
    free(s->window);
    free(s->scores);
    free(s->labels);
    free(s);
    *sp = NULL;
}

// ---- text and masks, the same on both sides -----------------------------------------------------

int32_t rtd_draw(struct agent_rtd_side *s) {
    int32_t T = s->job.seq_len, n = 0;
    if (s->s.event < s->events) {
        for (; n < s->job.batch * s->job.accumulate; n++)
            intra_sampler_next(s->sampler, s->tokens + (size_t)n * T, s->window);
        intra_sampler_prefetch(s->sampler, n); // read while this event is trained on
        return n;
    }
    // The windows of all sources, one source after the other.
    int64_t first = (s->s.event - s->events) * s->job.batch, at = 0;
    for (int32_t i = 0; i < intra_corpus_sources(s->corpus); i++) {
        uint64_t have = intra_corpus_windows(s->corpus, i, INTRA_VALID, T);
        for (int64_t k = 0; k < s->eval_windows[i]; k++, at++)
            if (at >= first && n < s->job.batch) // spread over the whole split
                intra_corpus_window(s->corpus, i, INTRA_VALID, T,
                                    (uint64_t)k * have / (uint64_t)s->eval_windows[i],
                                    s->tokens + (size_t)n++ * T, s->window);
    }
    return n;
}

uint64_t rtd_stream(const struct agent_rtd_side *s, int32_t a) {
    return s->s.event < s->events ? (uint64_t)s->s.event * (uint64_t)s->job.accumulate + (uint64_t)a
                                  : eval_index + (uint64_t)(s->s.event - s->events);
}

int32_t rtd_mask(struct agent_rtd_side *s, const int32_t *tokens, int32_t n, int32_t a) {
    return intra_mask_positions(rtd_seed(s, SEED_MASK), rtd_stream(s, a),
                                (double)s->job.rtd.mask_rate, N_SPECIAL, tokens, n, s->positions);
}

enum neb_status rtd_took_step(struct agent_rtd_side *s) {
    intra_trainer_update(s->trainer, &s->stats);
    NEB_TRY(s->stats.status);
    (void)neb_fault("worker.step"); // a step that takes longer
    s->fresh = true;
    s->s.updates++;
    s->s.tokens += (uint64_t)s->n;
    intra_loss_add(&s->s.loss_first, &s->s.loss_last, s->stats.loss);
    return NEB_OK;
}

// ---- state --------------------------------------------------------------------------------------

const struct agent_rtd_state *agent_rtd_state(const struct agent_rtd_side *s) { return &s->s; }
bool agent_rtd_trained(const struct agent_rtd_side *s) {
    // The discriminator has nothing to do in events without a batch, so these do not count.
    int64_t e = s->s.event;
    while (s->role == AGENT_ROLE_DISCRIMINATOR && e < s->events && !rtd_emits(s, e))
        e++;
    return e >= s->events;
}
int64_t agent_rtd_repeated(const struct agent_rtd_side *s) {
    return s->s.event > s->events && !s->s.done ? s->s.event - s->events : 0;
}
struct intra_trainer *agent_rtd_trainer(struct agent_rtd_side *s) {
    return s->trainer;
}

const struct intra_step_stats *agent_rtd_stats(struct agent_rtd_side *s, bool *fresh) {
    *fresh = s->fresh;
    s->fresh = false;
    return &s->stats;
}

json_t *agent_rtd_quality(const struct agent_rtd_side *s) {
    double tokens = (double)s->s.batch_tokens;
    json_t *q =
        json_pack("{s:o,s:o,s:o,s:o,s:o}", "eval_loss",
                  s->s.done ? agent_json_number(s->s.eval_loss) : json_null(), "eval_accuracy",
                  s->s.done ? agent_json_number(s->s.eval_accuracy) : json_null(), "masked_share",
                  agent_json_number((double)s->s.masked / tokens), "replaced_share",
                  agent_json_number((double)s->s.replaced / tokens), "batch_bytes_per_token",
                  agent_json_number((double)s->s.batch_bytes / tokens));
    if (s->role == AGENT_ROLE_DISCRIMINATOR)
        json_object_set_new(q, "eval_auc",
                            s->s.done ? agent_json_number(s->s.eval_auc) : json_null());
    return q;
}

static void put_state(struct neb_buf *b, const struct agent_rtd_side *s) {
    const struct agent_rtd_state *x = &s->s;
    int64_t again = agent_rtd_repeated(s);
    neb_buf_u32(b, 1); // version
    neb_buf_u8(b, (uint8_t)s->role);
    neb_buf_u8(b, x->done);
    neb_buf_i64(b, x->event - again);
    neb_buf_u64(b, x->seq - (uint64_t)again); // one batch for each event
    neb_buf_i64(b, x->updates);
    neb_buf_u64(b, x->tokens);
    neb_buf_u64(b, x->batch_bytes);
    neb_buf_u64(b, x->batch_tokens);
    neb_buf_u64(b, x->masked);
    neb_buf_u64(b, x->replaced);
    const double f[] = {x->loss_first, x->loss_last,     x->train_s,
                        x->eval_loss,  x->eval_accuracy, x->eval_auc};
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++)
        neb_buf_f64(b, f[i]);
}

static bool get_state(struct neb_rd *r, struct agent_rtd_side *s) {
    struct agent_rtd_state *x = &s->s;
    if (neb_rd_u32(r) != 1 || neb_rd_u8(r) != s->role)
        return false;
    x->done = neb_rd_u8(r) == 1;
    x->event = neb_rd_i64(r);
    x->seq = neb_rd_u64(r);
    x->updates = neb_rd_i64(r);
    x->tokens = neb_rd_u64(r);
    x->batch_bytes = neb_rd_u64(r);
    x->batch_tokens = neb_rd_u64(r);
    x->masked = neb_rd_u64(r);
    x->replaced = neb_rd_u64(r);
    double *const f[] = {&x->loss_first, &x->loss_last,     &x->train_s,
                         &x->eval_loss,  &x->eval_accuracy, &x->eval_auc};
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++)
        *f[i] = neb_rd_f64(r);
    return neb_rd_done(r) && x->event >= 0 &&
           x->event <= s->events + AGENT_RTD_EVAL_BATCHES_MAX + 1;
}

enum neb_status agent_rtd_save(const struct agent_rtd_side *s, struct intra_ckpt_writer *w) {
    struct neb_buf b = {0};
    uint64_t cursor[INTRA_CURSOR_WORDS] = {0};
    put_state(&b, s);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = intra_ckpt_add(w, "rtd.state", INTRA_BYTES, b.len, 1, b.p);
    neb_buf_free(&b);
    NEB_TRY(st);
    if (s->sampler)
        intra_sampler_save(s->sampler, cursor);
    NEB_TRY(intra_ckpt_add(w, "data.cursor.0", INTRA_U64, INTRA_CURSOR_WORDS, 1, cursor));
    if (s->share)
        NEB_TRY(rtd_share_save(s->share, w));
    return intra_trainer_save(s->trainer, w);
}

enum neb_status agent_rtd_restore(struct agent_rtd_side *s, const struct intra_ckpt *c) {
    uint64_t cursor[INTRA_CURSOR_WORDS];
    const struct intra_ckpt_section *x = intra_ckpt_find(c, "rtd.state");
    if (!x)
        return neb_fail(NEB_ERR_FORMAT, "%s is not a checkpoint of mode rtd", intra_ckpt_path(c));
    const void *state = intra_ckpt_data(c, x);
    if (!state)
        return NEB_ERR_IO;
    struct neb_rd r = neb_rd_make(state, x->bytes);
    if (!get_state(&r, s))
        return neb_fail(NEB_ERR_FORMAT, "%s does not fit this job", intra_ckpt_path(c));
    NEB_TRY(intra_ckpt_read(c, "data.cursor.0", INTRA_U64, INTRA_CURSOR_WORDS, 1, cursor));
    if (s->sampler)
        intra_sampler_restore(s->sampler, cursor);
    if (s->share)
        NEB_TRY(rtd_share_restore(s->share, c));
    return intra_trainer_restore(s->trainer, c);
}

// ---- shared embeddings --------------------------------------------------------------------------

bool agent_rtd_awaits(const struct agent_rtd_side *s) {
    const struct rtd_share *x = s->share;
    return x && x->pending >= 0 && !x->answered && s->s.event < s->events &&
           s->s.event == (x->pending + 1) * s->job.rtd.share_embeddings;
}

static enum neb_status move_rows(struct agent_rtd_side *s, bool pull) {
    return pull ? intra_trainer_pull(s->trainer, s->embedding)
                : intra_trainer_push(s->trainer, s->embedding);
}
enum neb_status rtd_share_pull(struct agent_rtd_side *s) { return move_rows(s, true); }
enum neb_status rtd_share_push(struct agent_rtd_side *s) { return move_rows(s, false); }

enum neb_status agent_rtd_answer(struct agent_rtd_side *s, const uint8_t *p, size_t n) {
    NEB_TRY(rtd_share_pull(s));
    return rtd_share_take(s->share, s->share->pending, p, n);
}

const struct neb_buf *agent_rtd_reply(struct agent_rtd_side *s) {
    bool reply = s->reply;
    s->reply = false;
    return reply ? &s->share->frame : NULL;
}
