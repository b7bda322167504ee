// SPDX-License-Identifier: Apache-2.0
// Set-up of a side, and what both sides compute: text, masks, figures.
#include "agent/train/rtd.h"
#include "agent/base/rng.h"
#include "agent/job/model.h"
#include "inter/stream/stream.h"

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
    // More than any batch takes: six bytes per masked token and four per token of text.
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

static enum neb_status make_group(struct agent_rtd_side *s) {
    const struct agent_job *j = &s->job;
    struct intra_trainer_config t = {
        .model = shape(s),
        .trainable = j->trainable,
        .optim = j->optim,
        .batch = j->batch,
        .seq_len = j->seq_len,
        .accumulate = j->accumulate,
        .weight = s->role == AGENT_ROLE_DISCRIMINATOR ? j->rtd.lambda : 1,
        .recompute = j->recompute,
        .seed = rtd_seed(s, s->role == AGENT_ROLE_GENERATOR ? SEED_GENERATOR : SEED_DISCRIMINATOR),
        .device = s->at.device,
        .device_type = s->at.type,
        .device_optional = s->at.device_optional,
        .device_graphs = s->at.graphs,
        .soft_k = s->role == AGENT_ROLE_GENERATOR}; // one draw per position
    int64_t updates = 0;
    for (int64_t e = 0; e < rtd_cycle(j); e++)
        updates += s->role == AGENT_ROLE_GENERATOR ? rtd_trains(s, e) : rtd_emits(s, e);
    t.optim.schedule.steps = (s->events * updates + rtd_cycle(j) - 1) / rtd_cycle(j);
    return intra_group_create(&t, &s->at.mesh, s->at.world, s->at.K, &s->group);
}

static enum neb_status share_embeddings(struct agent_rtd_side *s) {
    struct intra_model *m = intra_group_model(s->group);
    s->embedding = calloc((size_t)m->n_all_tensors, sizeof *s->embedding);
    if (!s->embedding)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for shared embeddings");
    s->embedding[m->embed->index] = true;
    return rtd_share_create(m, &s->share);
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
    s->s.f.loss_first = s->s.f.loss_last = NAN; // no step yet
    plan_eval(s);
    int32_t **const arrays[] = {&s->tokens, &s->inputs, &s->targets, &s->positions, &s->masked_at,
                                &s->index,  &s->ids,    &s->window,  &s->drawn};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        if (!(*arrays[i] = calloc((size_t)s->n, sizeof **arrays[i]))) {
            st = neb_fail(NEB_ERR_NOMEM, "out of memory for a step of %d tokens", s->n);
            goto fail;
        }
    s->picks = calloc((size_t)job->accumulate, sizeof *s->picks);
    s->u = calloc((size_t)s->n, sizeof *s->u);
    if (!s->picks || !s->u) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for a step of %d tokens", s->n);
        goto fail;
    }
    NEB_TRY_GOTO(cmp_tokens_create(&s->wire), fail);
    if (role == AGENT_ROLE_GENERATOR || !job->rtd.push_text) // else the text comes with the batches
        NEB_TRY_GOTO(agent_job_sampler(&s->job, agent_job_role(&s->job, AGENT_ROLE_GENERATOR),
                                       s->corpus, &s->sampler),
                     fail);
    NEB_TRY_GOTO(make_group(s), fail);
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
    intra_group_destroy(&s->group);
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
    free(s->drawn);
    free(s->picks);
    free(s->u);
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

// ---- figures ------------------------------------------------------------------------------------

bool agent_rtd_trained(const struct agent_rtd_side *s) {
    // The discriminator has nothing to do in events without a batch, so these do not count.
    int64_t e = s->s.event;
    while (s->role == AGENT_ROLE_DISCRIMINATOR && e < s->events && !rtd_emits(s, e))
        e++;
    return e >= s->events;
}

enum neb_status rtd_took_step(struct agent_rtd_side *s) {
    NEB_TRY(side_update(s->group, &s->s.f, &s->stats));
    s->s.f.step++;
    s->s.f.tokens += (uint64_t)s->n;
    return NEB_OK;
}

void rtd_count_batch(struct agent_rtd_side *s, size_t bytes, uint32_t masked, uint32_t replaced) {
    s->s.f.batch_bytes += bytes;
    s->s.batch_tokens += (uint64_t)s->n;
    s->s.masked += masked;
    s->s.replaced += replaced;
}

void rtd_eval_begin(struct agent_rtd_side *s) {
    if (s->s.event > s->events)
        return;
    s->eval_sum = 0;
    s->eval_count = s->eval_right = 0;
    s->n_scores = 0;
}

void rtd_eval_end(struct agent_rtd_side *s, double auc) {
    s->s.eval_loss = s->eval_count ? s->eval_sum / (double)s->eval_count : NAN;
    s->s.eval_accuracy = s->eval_count ? (double)s->eval_right / (double)s->eval_count : NAN;
    s->s.eval_auc = auc;
    s->s.done = true;
}

void rtd_event_over(struct agent_rtd_side *s, bool batch, neb_ns start) {
    s->s.event++;
    s->s.seq += batch;
    s->s.f.train_s += neb_seconds(neb_now() - start);
}
