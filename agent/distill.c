#include "agent/distill.h"
#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "agent/job_model.h"
#include "agent/label_request.h"
#include "compress/softlabel.h"
#include "intra/distill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct agent_distill_side {
    struct agent_job job;
    enum agent_role role;
    int32_t student, n_students, budget; // budget: tokens of a micro-batch
    uint64_t init; // added to the seed of its parameters: with distill.relay students differ by it
    const struct intra_corpus *corpus;
    struct kern *K;
    struct intra_pairs *pairs;
    struct intra_pair_batch batch;
    struct intra_trainer *trainer; // NULL: a frozen teacher
    struct intra_model *frozen;
    struct intra_acts *acts; // of the frozen teacher
    struct intra_labeller *labeller;
    struct cmp_soft *wire;
    struct cmp_tokens *text; // of requests
    struct agent_request_limits limits;
    int32_t *request_ids;
    int32_t *rows, *ids,
        *row_ids; // (budget) positions with a target; (budget, K) labels by position, by row
    float *logp, *tail, *row_logp, *row_tail;
    struct agent_distill_state s;
    struct intra_step_stats stats;
};

int32_t agent_distill_students(const struct agent_job *j) {
    int32_t n = 0;
    for (int i = 0; i < j->n_clusters; i++)
        n += j->clusters[i].role == AGENT_ROLE_STUDENT;
    return n;
}

int32_t agent_distill_student(const struct agent_job *j, int cluster) {
    int32_t n = 0;
    for (int i = 0; i < cluster; i++)
        n += j->clusters[i].role == AGENT_ROLE_STUDENT;
    return j->clusters[cluster].role == AGENT_ROLE_STUDENT ? n : -1;
}

int32_t agent_distill_k_min(const struct agent_distill_config *d) {
    return d->k_min ? d->k_min : d->k;
}
int32_t agent_distill_k_max(const struct agent_distill_config *d) {
    return d->k_max ? d->k_max : d->k;
}

bool agent_distill_federates(const struct agent_job *j) {
    return j->mode == AGENT_MODE_DISTILL && j->distill.federate && agent_distill_students(j) > 1;
}

bool agent_job_only_votes(const struct agent_job *j, int cluster) {
    const struct agent_cluster *c = &j->clusters[cluster];
    return c->witness || (agent_distill_federates(j) && c->role == AGENT_ROLE_TEACHER);
}

struct agent_distill_state *agent_distill_state(struct agent_distill_side *s) {
    return &s->s;
}
const struct intra_step_stats *agent_distill_stats(const struct agent_distill_side *s) {
    return &s->stats;
}
struct intra_model *agent_distill_model(struct agent_distill_side *s) {
    return s->trainer ? s->trainer->model : s->frozen;
}
struct intra_trainer *agent_distill_trainer(struct agent_distill_side *s) {
    return s->trainer;
}
static struct intra_acts *acts_of(struct agent_distill_side *s) {
    return s->trainer ? s->trainer->acts : s->acts;
}

// ---- set-up ---------------------------------------------------------------------------------------------------

static struct intra_model_config shape(const struct agent_distill_side *s) {
    int32_t vocab = s->job.model.vocab ? s->job.model.vocab : intra_corpus_vocab(s->corpus);
    return agent_job_model(&s->job, s->role == AGENT_ROLE_TEACHER ? &s->job.distill.shape : NULL, vocab,
                           KERN_MASK_PREFIX);
}

static enum neb_status check_model(const struct agent_distill_side *s, const struct intra_model *m,
                                   const char *path) {
    int32_t vocab = intra_corpus_vocab(s->corpus);
    if (m->c.vocab < vocab)
        return neb_fail(NEB_ERR_INVALID, "%s: a vocabulary of %d; the corpus has %d pieces", path,
                        m->c.vocab, vocab);
    if (m->c.max_seq < s->job.seq_len)
        return neb_fail(NEB_ERR_INVALID, "%s takes %d tokens; data.seq_len is %d", path,
                        m->c.max_seq, s->job.seq_len);
    return NEB_OK;
}

static enum neb_status make_trainer(struct agent_distill_side *s,
                                    const struct intra_model_config *m) {
    const struct agent_job *j = &s->job;
    bool teacher = s->role == AGENT_ROLE_TEACHER;
    struct intra_trainable full = {.mode = INTRA_TRAIN_FULL};
    struct intra_trainer_config t = {
        .model = *m,
        .trainable = teacher ? full : j->trainable,
        .optim = j->optim,
        .batch = j->batch,
        .seq_len = j->seq_len,
        .accumulate = j->accumulate,
        .recompute = j->recompute,
        .seed = neb_mix64((uint64_t)j->seed + s->init + (teacher ? 77 : 0))};
    t.optim.schedule.steps = j->steps * (teacher ? s->n_students : 1);
    return intra_trainer_create(&t, s->K, &s->trainer);
}

static enum neb_status load_params(struct agent_distill_side *s, const char *path) {
    struct intra_ckpt *c = NULL;
    NEB_TRY(intra_ckpt_open(path, true, &c));
    enum neb_status st = intra_model_load_params(c, s->trainer->model);
    intra_ckpt_close(&c);
    return st;
}

// The teacher's checkpoint decides about its shape; without one its shape is the job's, and it learns from nothing.
static enum neb_status make_teacher(struct agent_distill_side *s) {
    const char *path = s->job.distill.teacher;
    struct intra_ckpt *c = NULL;
    struct intra_model_config m = shape(s);
    if (!path[0])
        return make_trainer(s, &m);
    NEB_TRY(intra_ckpt_open(path, true, &c));
    enum neb_status st = intra_model_load(c, &s->frozen);
    intra_ckpt_close(&c);
    if (st == NEB_OK)
        st = check_model(s, s->frozen, path);
    NEB_TRY(st);
    if (!s->job.distill.learn)
        return intra_acts_create(s->frozen, s->job.batch, s->job.seq_len, false, false, &s->acts);
    m = s->frozen->c;
    m.max_seq = s->job.seq_len;
    m.mask = KERN_MASK_PREFIX;
    intra_model_destroy(&s->frozen);
    NEB_TRY(make_trainer(s, &m));
    return load_params(s, path);
}

static enum neb_status make_student(struct agent_distill_side *s) {
    struct intra_model_config m = shape(s);
    if (m.vocab < intra_corpus_vocab(s->corpus))
        return neb_fail(NEB_ERR_INVALID, "model.vocab %d is smaller than the corpus's %d", m.vocab,
                        intra_corpus_vocab(s->corpus));
    NEB_TRY(make_trainer(s, &m));
    return s->job.init_from[0] ? load_params(s, s->job.init_from) : NEB_OK;
}

static enum neb_status allocate(struct agent_distill_side *s) {
    size_t n = (size_t)s->budget, V = (size_t)agent_distill_model(s)->c.vocab,
           wide = s->job.distill.k ? CMP_SOFT_K_MAX : V; // all logits travel nowhere
    s->rows = calloc(n, sizeof *s->rows);
    s->ids = calloc(n * CMP_SOFT_K_MAX, sizeof *s->ids);
    s->row_ids = calloc(n * CMP_SOFT_K_MAX, sizeof *s->row_ids);
    s->logp = calloc(n * wide, sizeof *s->logp);
    s->row_logp = calloc(n * wide, sizeof *s->row_logp);
    s->tail = calloc(n, sizeof *s->tail);
    s->request_ids = calloc(agent_request_ids(&s->limits), sizeof *s->request_ids);
    s->row_tail = calloc(n, sizeof *s->row_tail);
    return s->request_ids && s->rows && s->ids && s->row_ids && s->logp && s->row_logp && s->tail &&
                   s->row_tail
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "out of memory for labels of %zu tokens", n);
}

enum neb_status agent_distill_create(const struct agent_job *job, enum agent_role role,
                                     int32_t student, const struct intra_corpus *corpus,
                                     struct kern *K, struct agent_distill_side **out) {
    enum neb_status st = NEB_OK;
    struct agent_distill_side *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a side");
    s->job = *job;
    s->role = role;
    s->student = job->distill.relay ? 0 : student;
    s->init = student > 0 && job->distill.relay ? (uint64_t)student << 32 : 0;
    s->n_students = job->distill.relay ? 1 : agent_distill_students(job);
    s->budget = job->batch * job->seq_len;
    s->corpus = corpus;
    s->K = K;
    struct intra_pairs_config c = {
        .seed = (uint64_t)job->seed, .seq_len = job->seq_len, .tokens = s->budget};
    NEB_TRY_GOTO(intra_pairs_create(corpus, INTRA_TRAIN, &c, &s->pairs), fail);
    NEB_TRY_GOTO(intra_pair_batch_create(&c, &s->batch), fail);
    NEB_TRY_GOTO(cmp_soft_create(&s->wire), fail);
    NEB_TRY_GOTO(cmp_tokens_create(&s->text), fail);
    s->limits = (struct agent_request_limits){.vocab = intra_corpus_vocab(corpus),
                                              .eos = intra_pairs_eos(s->pairs),
                                              .seq_len = job->seq_len,
                                              .tokens = s->budget};
    NEB_TRY_GOTO(role == AGENT_ROLE_TEACHER ? make_teacher(s) : make_student(s), fail);
    NEB_TRY_GOTO(allocate(s), fail);
    if (role == AGENT_ROLE_TEACHER)
        NEB_TRY_GOTO(intra_labeller_create(agent_distill_model(s), &s->labeller), fail);
    *out = s;
    return NEB_OK;
fail:
    agent_distill_destroy(&s);
    return st;
}

void agent_distill_destroy(struct agent_distill_side **sp) {
    struct agent_distill_side *s = *sp;
    if (!s)
        return;
    intra_labeller_destroy(&s->labeller);
    intra_acts_destroy(&s->acts);
    intra_model_destroy(&s->frozen);
    intra_trainer_destroy(&s->trainer);
    intra_pair_batch_free(&s->batch);
    intra_pairs_destroy(&s->pairs);
    cmp_soft_destroy(&s->wire);
    cmp_tokens_destroy(&s->text);
    free(s->request_ids);
    free(s->rows);
    free(s->ids);
    free(s->row_ids);
    free(s->logp);
    free(s->row_logp);
    free(s->tail);
    free(s->row_tail);
    free(s);
    *sp = NULL;
}

// ---- steps ----------------------------------------------------------------------------------------------------

static void find_rows(struct agent_distill_side *s) {
    for (int32_t i = 0, k = 0; i < s->batch.B * s->batch.T; i++)
        if (s->batch.targets[i] != KERN_IGNORE)
            s->rows[k++] = i;
}

static enum neb_status draw(struct agent_distill_side *s, int32_t student, int64_t step,
                            int32_t micro) {
    uint64_t at = (uint64_t)step * (uint64_t)s->job.accumulate + (uint64_t)micro;
    NEB_TRY(
        intra_pairs_draw(s->pairs, at * (uint64_t)s->n_students + (uint64_t)student, &s->batch));
    find_rows(s);
    return NEB_OK;
}

enum neb_status agent_distill_request(struct agent_distill_side *s, int64_t step,
                                      struct neb_buf *out) {
    neb_buf_clear(out);
    agent_request_begin(step, out);
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        NEB_TRY(draw(s, s->student, step, a));
        NEB_TRY(agent_request_add(s->text, &s->limits, &s->batch, s->request_ids, out));
    }
    return NEB_OK;
}

size_t agent_distill_request_most(const struct agent_distill_side *s) {
    return agent_request_most(&s->limits, s->job.accumulate);
}

// What rows of embedding and output were seen, padding left out: weights of a round (distill.federate).
static void count_tokens(struct intra_trainer *t, const struct intra_pair_batch *b) {
    for (int32_t i = 0; i < b->B; i++)
        for (int32_t k = 0; k < b->T; k++) {
            size_t at = (size_t)i * (size_t)b->T + (size_t)k;
            bool wanted = b->targets[at] != KERN_IGNORE;
            t->input_counts[b->tokens[at]] += wanted || k < b->prefix[i];
            if (wanted)
                t->target_counts[b->targets[at]]++;
        }
}

// Through the trainer's model; gradients and sums are of intra_trainer_update's kind.
static void pass(struct agent_distill_side *s, const struct kern_soft *teacher) {
    struct intra_trainer *t = s->trainer;
    double loss = 0;
    int64_t count = 0;
    float scale = 1.0f / ((float)s->budget * (float)s->job.accumulate);
    intra_acts_prefix(t->acts, s->batch.prefix);
    intra_acts_teacher(t->acts, teacher);
    intra_model_pass(s->K, t->model, t->acts, s->batch.tokens, s->batch.targets, s->batch.B,
                     s->batch.T, scale, &loss, &count);
    intra_acts_teacher(t->acts, NULL);
    t->loss_sum += loss;
    t->loss_count += count;
    count_tokens(t, &s->batch);
    s->s.tokens += (uint64_t)s->batch.B * (uint64_t)s->batch.T;
    s->s.targets += (uint64_t)count;
    s->s.taught += teacher ? (uint64_t)count : 0;
}

static void took_step(struct agent_distill_side *s) {
    intra_trainer_update(s->trainer, &s->stats);
    s->s.loss_first = s->s.step == 0 ? s->stats.loss : s->s.loss_first;
    s->s.loss_last = s->s.step == 0 ? s->stats.loss : 0.9 * s->s.loss_last + 0.1 * s->stats.loss;
}

// The teacher's pass over the batch that is drawn; labels by row.
static void teach(struct agent_distill_side *s, int32_t k) {
    struct intra_acts *a = acts_of(s);
    struct intra_model *m = agent_distill_model(s);
    if (s->trainer) { // the backward pass leaves the final hidden states as they were
        pass(s, NULL);
    } else {
        intra_acts_prefix(a, s->batch.prefix);
        intra_model_pass(s->K, m, a, s->batch.tokens, NULL, s->batch.B, s->batch.T, 0, NULL, NULL);
        s->s.tokens += (uint64_t)s->batch.B * (uint64_t)s->batch.T;
    }
    intra_labels(s->labeller, s->K, m, a, s->rows, (int32_t)s->batch.n_targets, k,
                 s->job.distill.temperature, s->row_ids, s->row_logp, s->row_tail);
}

enum neb_status agent_distill_label(struct agent_distill_side *s, int32_t student, int64_t step,
                                    int32_t k, const uint8_t *request, size_t n,
                                    struct neb_buf *out) {
    neb_ns start = neb_now();
    struct neb_rd asked = neb_rd_make(request, n);
    neb_buf_clear(out);
    neb_buf_u64(out, (uint64_t)step);
    if (request)
        NEB_TRY(agent_request_open(&asked, step, s->job.steps));
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        if (request) {
            NEB_TRY(agent_request_next(s->text, &s->limits, &asked, s->request_ids, &s->batch));
            find_rows(s);
        } else {
            NEB_TRY(draw(s, student, step, a));
        }
        teach(s, k);
        struct cmp_soft_head h = {(uint32_t)s->batch.n_targets, k, agent_distill_model(s)->c.vocab,
                                  s->job.distill.temperature};
        NEB_TRY(cmp_soft_encode(s->wire, &h, s->row_ids, s->row_logp, s->row_tail, out));
        s->s.label_rows += (uint64_t)s->batch.n_targets;
    }
    if (request && !neb_rd_done(&asked))
        return neb_fail(NEB_ERR_FORMAT, "a student's request for step %lld: %zu bytes too many",
                        (long long)step, neb_rd_left(&asked));
    if (s->trainer)
        took_step(s);
    s->s.label_bytes += out->len;
    s->s.step++;
    s->s.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}

// Labels by row to labels by position, as the loss wants them.
static void spread(struct agent_distill_side *s, int32_t k, const struct agent_distill_side *from) {
    size_t wide = (size_t)(k ? k : agent_distill_model(s)->c.vocab);
    for (size_t i = 0; i < (size_t)s->batch.n_targets; i++) {
        size_t at = (size_t)s->rows[i];
        memcpy(s->logp + at * wide, from->row_logp + i * wide, sizeof(float) * wide);
        if (k)
            memcpy(s->ids + at * wide, from->row_ids + i * wide, sizeof(int32_t) * wide);
        s->tail[at] = from->row_tail[i];
    }
}

static struct kern_soft labels_of(const struct agent_distill_side *s, int32_t k) {
    return (struct kern_soft){.k = k,
                              .lambda = s->job.distill.lambda,
                              .temperature = s->job.distill.temperature,
                              .ids = s->ids,
                              .logp = s->logp,
                              .tail = s->tail};
}

int64_t agent_distill_step_of(const uint8_t *p, size_t n) {
    struct neb_rd r = neb_rd_make(p, n);
    uint64_t step = neb_rd_u64(&r);
    return r.bad || step > INT64_MAX ? -1 : (int64_t)step;
}

// Reads the labels of one micro-batch.
static enum neb_status read_labels(struct agent_distill_side *s, struct neb_rd *r, int32_t *k) {
    struct cmp_soft_head h = {.rows = (uint32_t)s->batch.n_targets,
                              .vocab = s->trainer->model->c.vocab};
    NEB_TRY(cmp_soft_decode(s->wire, r, &h, s->row_ids, s->row_logp, s->row_tail));
    if (h.temperature != s->job.distill.temperature)
        return neb_fail(NEB_ERR_FORMAT, "labels at temperature %g; the job says %g",
                        (double)h.temperature, (double)s->job.distill.temperature);
    *k = h.k;
    s->s.label_rows += h.rows;
    spread(s, h.k, s);
    return NEB_OK;
}

// All or nothing: labels are read to their end before the first micro-batch counts.
static enum neb_status check_labels(struct agent_distill_side *s, const uint8_t *p, size_t n) {
    struct neb_rd r = neb_rd_make(p, n);
    uint64_t rows = s->s.label_rows, step = neb_rd_u64(&r);
    enum neb_status st = NEB_OK;
    int32_t k;
    if (r.bad || step != (uint64_t)s->s.step)
        return neb_fail(NEB_ERR_FORMAT, "labels of step %llu where %lld is due",
                        (unsigned long long)step, (long long)s->s.step);
    for (int32_t a = 0; a < s->job.accumulate && st == NEB_OK; a++) {
        NEB_TRY(draw(s, s->student, s->s.step, a));
        st = read_labels(s, &r, &k);
    }
    s->s.label_rows = rows;
    NEB_TRY(st);
    return neb_rd_done(&r) ? NEB_OK
                           : neb_fail(NEB_ERR_FORMAT, "labels of step %llu: %zu bytes too many",
                                      (unsigned long long)step, neb_rd_left(&r));
}

enum neb_status agent_distill_learn(struct agent_distill_side *s, const uint8_t *p, size_t n) {
    neb_ns start = neb_now();
    struct neb_rd r = neb_rd_make(p, n);
    if (p)
        NEB_TRY(check_labels(s, p, n));
    (void)neb_rd_u64(&r);
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        int32_t k = 0;
        NEB_TRY(draw(s, s->student, s->s.step, a));
        if (p)
            NEB_TRY(read_labels(s, &r, &k));
        struct kern_soft soft = labels_of(s, k);
        pass(s, p ? &soft : NULL);
    }
    s->s.label_bytes += n;
    took_step(s);
    s->s.step++;
    s->s.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}

enum neb_status agent_distill_learn_from(struct agent_distill_side *s,
                                         struct agent_distill_side *teacher) {
    neb_ns start = neb_now();
    int32_t k = s->job.distill.k;
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        NEB_TRY(draw(s, s->student, s->s.step, a));
        NEB_TRY(draw(teacher, s->student, s->s.step, a));
        teach(teacher, k);
        spread(s, k, teacher);
        struct kern_soft soft = labels_of(s, k);
        pass(s, &soft);
    }
    if (teacher->trainer)
        took_step(teacher);
    teacher->s.step++;
    took_step(s);
    s->s.step++;
    s->s.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}

// ---- evaluation -----------------------------------------------------------------------------------------------

static enum neb_status held_out(struct agent_distill_side *s, double *loss) {
    struct intra_pairs *pairs = NULL;
    struct intra_pairs_config c = {.seed = 1, .seq_len = s->job.seq_len, .tokens = s->budget};
    struct intra_acts *a = acts_of(s);
    double sum = 0;
    int64_t count = 0;
    NEB_TRY(intra_pairs_create(s->corpus, INTRA_VALID, &c, &pairs));
    enum neb_status st = NEB_OK;
    for (uint64_t k = 0; k < intra_pairs_batches(pairs) && st == NEB_OK; k++) {
        double l = 0;
        int64_t n = 0;
        st = intra_pairs_draw(pairs, k, &s->batch);
        intra_acts_prefix(a, s->batch.prefix);
        if (st == NEB_OK)
            intra_model_pass(s->K, agent_distill_model(s), a, s->batch.tokens, s->batch.targets,
                             s->batch.B, s->batch.T, 0, &l, &n);
        sum += l;
        count += n;
    }
    intra_pairs_destroy(&pairs);
    *loss = count ? sum / (double)count : NAN;
    return st;
}

enum neb_status agent_distill_evaluate(struct agent_distill_side *s, double *loss,
                                       json_t **quality) {
    struct agent_translate_options o = {.beam = s->job.distill.beam,
                                        .max_pairs = s->job.eval_windows,
                                        .max_tokens = s->job.seq_len,
                                        .alpha = 1};
    struct agent_translate_result r;
    NEB_TRY(held_out(s, loss));
    NEB_TRY(agent_translate(s->corpus, agent_translate_split(s->corpus), s->K,
                            agent_distill_model(s), &o, &r));
    double rows = (double)s->s.label_rows;
    *quality = json_pack(
        "{s:f,s:f,s:I,s:i,s:f,s:o,s:f}", "chrf", r.chrf, "eval_loss", *loss, "pairs",
        (json_int_t)r.pairs, "beam", o.beam, "decode_s", r.seconds, "label_bytes_per_target_token",
        rows > 0 ? json_real((double)s->s.label_bytes / rows) : json_null(), "taught_share",
        s->s.targets ? (double)s->s.taught / (double)s->s.targets : 0.0);
    return *quality ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory reporting");
}

// ---- checkpoints ----------------------------------------------------------------------------------------------

enum neb_status agent_distill_save(const struct agent_distill_side *s,
                                   struct intra_ckpt_writer *w) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, (uint8_t)s->role);
    neb_buf_i64(&b, s->s.step);
    const uint64_t whole[] = {s->s.seq,    s->s.tokens,      s->s.targets,
                              s->s.taught, s->s.label_bytes, s->s.label_rows};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        neb_buf_u64(&b, whole[i]);
    neb_buf_f64(&b, s->s.loss_first);
    neb_buf_f64(&b, s->s.loss_last);
    neb_buf_f64(&b, s->s.train_s);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = intra_ckpt_add(w, "distill.state", INTRA_BYTES, b.len, 1, b.p);
    neb_buf_free(&b);
    NEB_TRY(st);
    return s->trainer ? intra_trainer_save(s->trainer, w) : NEB_OK;
}

enum neb_status agent_distill_restore(struct agent_distill_side *s, const struct intra_ckpt *c) {
    const struct intra_ckpt_section *x = intra_ckpt_find(c, "distill.state");
    if (!x)
        return neb_fail(NEB_ERR_FORMAT, "%s is not a checkpoint of mode distill",
                        intra_ckpt_path(c));
    const void *state = intra_ckpt_data(c, x);
    if (!state)
        return NEB_ERR_IO;
    struct neb_rd r = neb_rd_make(state, x->bytes);
    struct agent_distill_state v = {0};
    uint8_t role = neb_rd_u8(&r);
    v.step = neb_rd_i64(&r);
    uint64_t *const whole[] = {&v.seq,    &v.tokens,      &v.targets,
                               &v.taught, &v.label_bytes, &v.label_rows};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        *whole[i] = neb_rd_u64(&r);
    v.loss_first = neb_rd_f64(&r);
    v.loss_last = neb_rd_f64(&r);
    v.train_s = neb_rd_f64(&r);
    if (!neb_rd_done(&r) || role != s->role || v.step < 0)
        return neb_fail(NEB_ERR_FORMAT, "%s: its state does not fit this job", intra_ckpt_path(c));
    s->s = v;
    return s->trainer ? intra_trainer_restore(s->trainer, c) : NEB_OK;
}
