#include "agent/rtd.h"
#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "compress/replaced.h"
#include "intra/rtd.h"
#include "kernels/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FLAG_EVAL = 1, FLAG_LAST = 2, FLAG_TEXT = 4 };
enum { N_SPECIAL = 3 }; // unknown, begin, end: never masked
// Streams of random numbers, by purpose.
enum { SEED_MASK = 1, SEED_SAMPLE, SEED_GENERATOR, SEED_DISCRIMINATOR };
static const uint64_t eval_index = 1ull << 40; // first random stream of evaluation

struct agent_rtd_side {
    struct agent_job job;
    enum agent_role role;
    const struct intra_corpus *corpus;
    struct kern *K;
    struct intra_sampler *sampler;
    struct intra_trainer *trainer;
    struct intra_mask_sampler *draws; // generator
    struct cmp_tokens *wire;
    int32_t vocab;             // of the corpus; the mask is the id after it
    int32_t micro, n;          // tokens of a micro-batch, of a step
    int32_t *tokens;           // (n) text of the event
    int32_t *inputs, *targets; // (micro) what the model gets
    int32_t *positions;        // (micro) masked
    int32_t *masked_at;        // (n) masked positions of the whole step
    int32_t *index, *ids;      // (n) replaced among the masked; what was drawn
    int32_t *window;           // (seq_len) scratch
    int64_t events, eval_batches;
    int64_t eval_windows[INTRA_SOURCES_MAX];
    struct agent_rtd_state s;
    struct intra_step_stats stats;
    bool fresh;
    // evaluation
    double eval_sum;
    int64_t eval_count, eval_right;
    float *scores; // discriminator: of all held-out positions
    int32_t *labels;
    size_t n_scores, cap_scores;
};

static uint64_t seed_of(const struct agent_rtd_side *s, int purpose) {
    return neb_mix64((uint64_t)s->job.seed * 0x9e3779b97f4a7c15ull + (uint64_t)purpose);
}

static int64_t cycle(const struct agent_job *j) {
    return j->rtd.generator_steps > j->rtd.discriminator_steps ? j->rtd.generator_steps
                                                               : j->rtd.discriminator_steps;
}
static bool trains(const struct agent_rtd_side *s, int64_t e) {
    return e % cycle(&s->job) < s->job.rtd.generator_steps;
}
static bool emits(const struct agent_rtd_side *s, int64_t e) {
    return e % cycle(&s->job) < s->job.rtd.discriminator_steps;
}

// ---- set-up ---------------------------------------------------------------------------------------------------

static enum neb_status make_sampler(struct agent_rtd_side *s) {
    const struct agent_cluster *c = &s->job.clusters[agent_job_role(&s->job, AGENT_ROLE_GENERATOR)];
    struct intra_sampler_config cfg = {.seed = (uint64_t)s->job.seed,
                                       .seq_len = s->job.seq_len,
                                       .index = 0,
                                       .n = 1,
                                       .n_sources = c->n_sources};
    for (int32_t i = 0; i < c->n_sources; i++) {
        cfg.sources[i] = intra_corpus_find(s->corpus, c->sources[i].name);
        cfg.weights[i] = c->sources[i].weight;
        if (cfg.sources[i] < 0)
            return neb_fail(NEB_ERR_NOT_FOUND, "cluster %s: the corpus %s has no source \"%s\"",
                            c->name, intra_corpus_dir(s->corpus), c->sources[i].name);
    }
    return intra_sampler_create(s->corpus, &cfg, &s->sampler);
}

static struct intra_model_config shape(const struct agent_rtd_side *s) {
    struct intra_model_config m = s->job.model;
    const struct agent_rtd_config *r = &s->job.rtd;
    if (s->role == AGENT_ROLE_GENERATOR) {
        m.n_layers = r->n_layers ? r->n_layers : m.n_layers;
        m.d_model = r->d_model ? r->d_model : m.d_model;
        m.n_heads = r->n_heads ? r->n_heads : m.n_heads;
        m.d_ff = r->d_ff ? r->d_ff : m.d_ff;
        if (r->d_model || r->n_heads)
            m.n_kv_heads = m.head_dim = 0;
    } else {
        m.head = INTRA_HEAD_RTD;
        m.tied = true;
    }
    m.vocab = s->vocab + 1;
    m.n_kv_heads = m.n_kv_heads ? m.n_kv_heads : m.n_heads;
    m.head_dim = m.head_dim ? m.head_dim : m.d_model / m.n_heads;
    m.max_seq = s->job.seq_len;
    m.mask = KERN_MASK_BIDIRECTIONAL;
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
        .seed = seed_of(s, s->role == AGENT_ROLE_GENERATOR ? SEED_GENERATOR : SEED_DISCRIMINATOR)};
    int64_t updates = 0;
    for (int64_t e = 0; e < cycle(j); e++)
        updates += s->role == AGENT_ROLE_GENERATOR ? trains(s, e) : emits(s, e);
    t.optim.schedule.steps = (s->events * updates + cycle(j) - 1) / cycle(j);
    NEB_TRY(intra_trainer_create(&t, s->K, &s->trainer));
    if (s->role == AGENT_ROLE_DISCRIMINATOR) {
        s->trainer->weight = j->rtd.lambda;
        return NEB_OK;
    }
    return intra_mask_sampler_create(s->trainer->model, s->vocab, &s->draws);
}

// Held-out windows a source, as many batches as are sent at most.
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
                                 const struct intra_corpus *corpus, struct kern *K,
                                 struct agent_rtd_side **out) {
    enum neb_status st = NEB_OK;
    struct agent_rtd_side *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a side");
    s->job = *job;
    s->role = role;
    s->corpus = corpus;
    s->K = K;
    s->vocab = intra_corpus_vocab(corpus);
    s->micro = job->batch * job->seq_len;
    s->n = s->micro * job->accumulate;
    s->events = job->steps;
    plan_eval(s);
    int32_t **const arrays[] = {&s->tokens,    &s->inputs, &s->targets, &s->positions,
                                &s->masked_at, &s->index,  &s->ids,     &s->window};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        if (!(*arrays[i] = calloc((size_t)s->n, sizeof **arrays[i]))) {
            st = neb_fail(NEB_ERR_NOMEM, "out of memory for a step of %d tokens", s->n);
            goto fail;
        }
    if (job->model.vocab && job->model.vocab != s->vocab + 1) {
        st = neb_fail(
            NEB_ERR_INVALID,
            "model.vocab is %d; mode rtd takes the corpus's %d and one more for the mask, or 0",
            job->model.vocab, s->vocab);
        goto fail;
    }
    NEB_TRY_GOTO(cmp_tokens_create(&s->wire), fail);
    NEB_TRY_GOTO(make_sampler(s), fail);
    NEB_TRY_GOTO(make_trainer(s), fail);
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
    intra_mask_sampler_destroy(&s->draws);
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

// ---- text and masks, the same on both sides -------------------------------------------------------------------

// Windows of the next event, in s->tokens; returns how many.
static int32_t draw(struct agent_rtd_side *s) {
    int32_t T = s->job.seq_len, n = 0;
    if (s->s.event < s->events) {
        for (; n < s->job.batch * s->job.accumulate; n++)
            intra_sampler_next(s->sampler, s->tokens + (size_t)n * T, s->window);
        return n;
    }
    int64_t first = (s->s.event - s->events) * s->job.batch,
            at = 0; // among all held-out windows, source by source
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

// Random stream of micro-batch a of the present event.
static uint64_t stream_of(const struct agent_rtd_side *s, int32_t a) {
    return s->s.event < s->events ? (uint64_t)s->s.event * (uint64_t)s->job.accumulate + (uint64_t)a
                                  : eval_index + (uint64_t)(s->s.event - s->events);
}

static int32_t mask(struct agent_rtd_side *s, const int32_t *tokens, int32_t n, int32_t a) {
    return intra_mask_positions(seed_of(s, SEED_MASK), stream_of(s, a),
                                (double)s->job.rtd.mask_rate, N_SPECIAL, tokens, n, s->positions);
}

static void took_step(struct agent_rtd_side *s) {
    intra_trainer_update(s->trainer, &s->stats);
    s->fresh = true;
    s->s.updates++;
    s->s.tokens += (uint64_t)s->n;
    s->s.loss_first = s->s.updates == 1 ? s->stats.loss : s->s.loss_first;
    s->s.loss_last = s->s.updates == 1 ? s->stats.loss : 0.9 * s->s.loss_last + 0.1 * s->stats.loss;
}

// ---- generator ------------------------------------------------------------------------------------------------

struct made { // replacements of the event so far
    uint32_t masked, replaced;
};

// Masks one micro-batch, passes it through the model, and draws where a batch is wanted.
static void generate(struct agent_rtd_side *s, const int32_t *tokens, int32_t windows, int32_t a,
                     bool learn, bool wanted, struct made *m) {
    int32_t n = windows * s->job.seq_len, k = mask(s, tokens, n, a);
    struct intra_trainer *t = s->trainer;
    intra_mask_apply(tokens, n, s->positions, k, s->vocab, s->inputs, s->targets);
    if (learn) {
        intra_trainer_micro(t, s->inputs, s->targets);
    } else {
        double loss = 0;
        int64_t count = 0;
        intra_model_pass(s->K, t->model, t->acts, s->inputs, s->targets, windows, s->job.seq_len, 0,
                         &loss, &count);
        s->eval_sum += loss;
        s->eval_count += count;
    }
    if (!wanted)
        return;
    int32_t *ids = s->inputs; // free again
    intra_mask_sample(s->draws, s->K, t->model, t->acts, s->positions, k, seed_of(s, SEED_SAMPLE),
                      stream_of(s, a), ids);
    for (int32_t i = 0; i < k; i++)
        if (ids[i] != tokens[s->positions[i]]) {
            s->index[m->replaced] = (int32_t)m->masked + i;
            s->ids[m->replaced++] = ids[i];
        }
    m->masked += (uint32_t)k;
}

static enum neb_status encode(struct agent_rtd_side *s, uint8_t flags, int32_t windows,
                              const struct made *m, struct neb_buf *out) {
    neb_buf_clear(out);
    neb_buf_u8(out, (uint8_t)(flags | (s->job.rtd.push_text ? FLAG_TEXT : 0)));
    neb_buf_u32(out, (uint32_t)windows);
    NEB_TRY(cmp_replaced_encode(s->wire, m->masked, s->index, s->ids, m->replaced, s->vocab, out));
    return s->job.rtd.push_text
               ? cmp_text_encode(s->wire, s->tokens, (uint32_t)windows * (uint32_t)s->job.seq_len,
                                 s->vocab, out)
               : NEB_OK;
}

static enum neb_status produce_eval(struct agent_rtd_side *s, struct neb_buf *batch) {
    struct made m = {0};
    bool last = s->s.event + 1 >= s->events + s->eval_batches;
    if (s->s.event == s->events) {
        s->eval_sum = 0;
        s->eval_count = s->eval_right = 0;
    }
    int32_t windows = draw(s);
    if (windows)
        generate(s, s->tokens, windows, 0, false, true, &m);
    s->eval_right += (int64_t)m.masked -
                     (int64_t)m.replaced; // a draw that hits counts, as a measure of accuracy
    NEB_TRY(encode(s, (uint8_t)(FLAG_EVAL | (last ? FLAG_LAST : 0)), windows, &m, batch));
    if (last) {
        s->s.eval_loss = s->eval_count ? s->eval_sum / (double)s->eval_count : NAN;
        s->s.eval_accuracy = s->eval_count ? (double)s->eval_right / (double)s->eval_count : NAN;
        s->s.eval_auc = NAN;
        s->s.done = true;
    }
    return NEB_OK;
}

enum neb_status agent_rtd_produce(struct agent_rtd_side *s, struct neb_buf *batch, bool *made) {
    NEB_ASSERT(s->role == AGENT_ROLE_GENERATOR && !s->s.done);
    neb_ns start = neb_now();
    *made = true;
    if (s->s.event >= s->events) {
        NEB_TRY(produce_eval(s, batch));
    } else {
        struct made m = {0};
        bool learn = trains(s, s->s.event);
        *made = emits(s, s->s.event);
        draw(s);
        for (int32_t a = 0; a < s->job.accumulate; a++)
            generate(s, s->tokens + (size_t)a * s->micro, s->job.batch, a, learn, *made, &m);
        if (learn)
            took_step(s);
        if (*made) {
            NEB_TRY(encode(s, 0, s->job.batch * s->job.accumulate, &m, batch));
            s->s.batch_bytes += batch->len;
            s->s.batch_tokens += (uint64_t)s->n;
            s->s.masked += m.masked;
            s->s.replaced += m.replaced;
        }
    }
    s->s.event++;
    s->s.seq += *made;
    s->s.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}

// ---- discriminator --------------------------------------------------------------------------------------------

struct received { // a batch, as far as it is taken apart
    uint8_t flags;
    uint32_t windows, replaced, masked;
    uint32_t next; // replacement
};

// Which positions are masked follows from the text; so the text comes first, wherever it is in the batch.
static uint32_t mask_all(struct agent_rtd_side *s, int32_t windows) {
    int32_t total = windows * s->job.seq_len, k = 0;
    for (int32_t from = 0, a = 0; from < total; from += s->micro, a++) {
        int32_t n = total - from < s->micro ? total - from : s->micro,
                m = mask(s, s->tokens + from, n, a);
        for (int32_t i = 0; i < m; i++)
            s->masked_at[k++] = from + s->positions[i];
    }
    return (uint32_t)k;
}

static enum neb_status take_apart(struct agent_rtd_side *s, const uint8_t *p, size_t n,
                                  struct received *b) {
    struct neb_rd r = neb_rd_make(p, n);
    bool eval = s->s.event >= s->events, text = s->job.rtd.push_text;
    b->flags = neb_rd_u8(&r);
    b->windows = neb_rd_u32(&r);
    uint32_t most = (uint32_t)(eval ? s->job.batch : s->job.batch * s->job.accumulate);
    if (r.bad || b->flags & ~(FLAG_EVAL | FLAG_LAST | FLAG_TEXT) ||
        !(b->flags & FLAG_EVAL) != !eval || !(b->flags & FLAG_TEXT) != !text ||
        (b->flags & FLAG_LAST && !eval) || b->windows > most || (!eval && b->windows != most))
        return neb_fail(NEB_ERR_FORMAT,
                        "batch %llu: flags %u and %u windows do not fit event %lld of this job",
                        (unsigned long long)s->s.seq, b->flags, b->windows, (long long)s->s.event);
    if (!text) {
        if (draw(s) != (int32_t)b->windows)
            return neb_fail(NEB_ERR_FORMAT,
                            "batch %llu: %u windows of held-out text, here are others",
                            (unsigned long long)s->s.seq, b->windows);
        b->masked = mask_all(s, (int32_t)b->windows);
    } else { // after the replacements, which say of how many masked positions they are
        struct neb_rd ahead = r;
        NEB_TRY(cmp_replaced_skip(&ahead, s->vocab));
        NEB_TRY(cmp_text_decode(s->wire, &ahead, s->vocab, s->tokens,
                                b->windows * (uint32_t)s->job.seq_len));
        if (!neb_rd_done(&ahead))
            return neb_fail(NEB_ERR_FORMAT, "batch %llu: %zu bytes too many",
                            (unsigned long long)s->s.seq, neb_rd_left(&ahead));
        b->masked = mask_all(s, (int32_t)b->windows);
    }
    NEB_TRY(cmp_replaced_decode(s->wire, &r, b->masked, s->vocab, s->index, s->ids, &b->replaced));
    return text || neb_rd_done(&r) ? NEB_OK
                                   : neb_fail(NEB_ERR_FORMAT, "batch %llu: %zu bytes too many",
                                              (unsigned long long)s->s.seq, neb_rd_left(&r));
}

// Inputs and labels of the micro-batch at `from`.
static void put_in(struct agent_rtd_side *s, struct received *b, int32_t from, int32_t n) {
    memcpy(s->inputs, s->tokens + from, (size_t)n * sizeof *s->inputs);
    memset(s->targets, 0, (size_t)n * sizeof *s->targets);
    for (; b->next < b->replaced; b->next++) {
        int32_t at = s->masked_at[s->index[b->next]] - from;
        if (at >= n)
            return;
        s->inputs[at] = s->ids[b->next];
        s->targets[at] = s->inputs[at] != s->tokens[from + at];
    }
}

static enum neb_status keep_scores(struct agent_rtd_side *s, int32_t n) {
    const float *z = intra_acts_scores(s->trainer->acts);
    if (s->n_scores + (size_t)n > s->cap_scores) {
        size_t cap = 2 * s->cap_scores + (size_t)n;
        float *p = realloc(s->scores, cap * sizeof *p);
        s->scores = p ? p : s->scores;
        int32_t *q = p ? realloc(s->labels, cap * sizeof *q) : NULL;
        s->labels = q ? q : s->labels;
        if (!p || !q)
            return neb_fail(NEB_ERR_NOMEM, "out of memory for scores of held-out text");
        s->cap_scores = cap;
    }
    memcpy(s->scores + s->n_scores, z, (size_t)n * sizeof *z);
    memcpy(s->labels + s->n_scores, s->targets, (size_t)n * sizeof *s->labels);
    for (int32_t i = 0; i < n; i++)
        s->eval_right += (z[i] > 0) == (s->targets[i] == 1);
    s->n_scores += (size_t)n;
    return NEB_OK;
}

static enum neb_status consume_eval(struct agent_rtd_side *s, struct received *b) {
    int32_t n = (int32_t)b->windows * s->job.seq_len;
    double loss = 0;
    int64_t count = 0;
    if (s->s.event == s->events) {
        s->eval_sum = 0;
        s->eval_count = s->eval_right = 0;
        s->n_scores = 0;
    }
    if (n) {
        put_in(s, b, 0, n);
        intra_model_pass(s->K, s->trainer->model, s->trainer->acts, s->inputs, s->targets,
                         (int)b->windows, s->job.seq_len, 0, &loss, &count);
        NEB_TRY(keep_scores(s, n));
    }
    s->eval_sum += loss;
    s->eval_count += count;
    if (b->flags & FLAG_LAST) {
        s->s.eval_loss = s->eval_count ? s->eval_sum / (double)s->eval_count : NAN;
        s->s.eval_accuracy = s->eval_count ? (double)s->eval_right / (double)s->eval_count : NAN;
        s->s.eval_auc = intra_rtd_auc(s->scores, s->labels, s->n_scores);
        s->s.done = true;
    }
    return NEB_OK;
}

enum neb_status agent_rtd_consume(struct agent_rtd_side *s, const uint8_t *p, size_t n) {
    struct received b = {0};
    NEB_ASSERT(s->role == AGENT_ROLE_DISCRIMINATOR && !s->s.done);
    neb_ns start = neb_now();
    for (; s->s.event < s->events && !emits(s, s->s.event); s->s.event++)
        if (!s->job.rtd.push_text)
            draw(s); // the generator trained on these alone
    NEB_TRY(take_apart(s, p, n, &b));
    if (s->s.event >= s->events) {
        NEB_TRY(consume_eval(s, &b));
    } else {
        for (int32_t a = 0; a < s->job.accumulate; a++) {
            put_in(s, &b, a * s->micro, s->micro);
            intra_trainer_micro(s->trainer, s->inputs, s->targets);
        }
        took_step(s);
        s->s.batch_bytes += n;
        s->s.batch_tokens += (uint64_t)s->n;
        s->s.masked += b.masked;
        s->s.replaced += b.replaced;
    }
    s->s.event++;
    s->s.seq++;
    s->s.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}

// ---- state ----------------------------------------------------------------------------------------------------

const struct agent_rtd_state *agent_rtd_state(const struct agent_rtd_side *s) { return &s->s; }
bool agent_rtd_trained(const struct agent_rtd_side *s) {
    int64_t e =
        s->s.event; // events that end without a batch are no more than skipped by the discriminator
    while (s->role == AGENT_ROLE_DISCRIMINATOR && e < s->events && !emits(s, e))
        e++;
    return e >= s->events;
}
struct intra_trainer *agent_rtd_trainer(struct agent_rtd_side *s) {
    return s->trainer;
}

const struct intra_step_stats *agent_rtd_stats(struct agent_rtd_side *s, bool *fresh) {
    *fresh = s->fresh;
    s->fresh = false;
    return &s->stats;
}

void agent_rtd_digest(const struct agent_rtd_side *s, char hex[33]) {
    const struct intra_model *m = s->trainer->model;
    struct kern_digest d = kern_digest_part(m->params, m->params, 0, m->n_params);
    uint8_t b[16];
    neb_put_u64(b, d.lo);
    neb_put_u64(b + 8, d.hi);
    neb_hex(b, sizeof b, hex);
}

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *agent_rtd_quality(const struct agent_rtd_side *s) {
    double tokens = (double)s->s.batch_tokens;
    json_t *q = json_pack("{s:o,s:o,s:o,s:o,s:o}", "eval_loss",
                          s->s.done ? number(s->s.eval_loss) : json_null(), "eval_accuracy",
                          s->s.done ? number(s->s.eval_accuracy) : json_null(), "masked_share",
                          number((double)s->s.masked / tokens), "replaced_share",
                          number((double)s->s.replaced / tokens), "batch_bytes_per_token",
                          number((double)s->s.batch_bytes / tokens));
    if (s->role == AGENT_ROLE_DISCRIMINATOR)
        json_object_set_new(q, "eval_auc", s->s.done ? number(s->s.eval_auc) : json_null());
    return q;
}

static void put_state(struct neb_buf *b, const struct agent_rtd_side *s) {
    const struct agent_rtd_state *x = &s->s;
    bool half = x->event > s->events && !x->done;
    neb_buf_u32(b, 1); // version
    neb_buf_u8(b, (uint8_t)s->role);
    neb_buf_u8(b, x->done);
    neb_buf_i64(b, half ? s->events : x->event); // evaluation is repeated
    neb_buf_u64(b, half ? x->seq - (uint64_t)(x->event - s->events) : x->seq);
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
    uint64_t cursor[INTRA_CURSOR_WORDS];
    put_state(&b, s);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = intra_ckpt_add(w, "rtd.state", INTRA_BYTES, b.len, 1, b.p);
    neb_buf_free(&b);
    NEB_TRY(st);
    intra_sampler_save(s->sampler, cursor);
    NEB_TRY(intra_ckpt_add(w, "data.cursor.0", INTRA_U64, INTRA_CURSOR_WORDS, 1, cursor));
    return intra_trainer_save(s->trainer, w);
}

enum neb_status agent_rtd_restore(struct agent_rtd_side *s, const struct intra_ckpt *c) {
    uint64_t cursor[INTRA_CURSOR_WORDS];
    const struct intra_ckpt_section *x = intra_ckpt_find(c, "rtd.state");
    if (!x)
        return neb_fail(NEB_ERR_FORMAT, "%s is not a checkpoint of mode rtd", intra_ckpt_path(c));
    struct neb_rd r = neb_rd_make(intra_ckpt_data(c, x), x->bytes);
    if (!get_state(&r, s))
        return neb_fail(NEB_ERR_FORMAT, "%s: its state does not fit this job", intra_ckpt_path(c));
    NEB_TRY(intra_ckpt_read(c, "data.cursor.0", INTRA_U64, INTRA_CURSOR_WORDS, 1, cursor));
    intra_sampler_restore(s->sampler, cursor);
    return intra_trainer_restore(s->trainer, c);
}
