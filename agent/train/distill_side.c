// SPDX-License-Identifier: Apache-2.0
// A side of mode distill: set-up, evaluation on held-out text, checkpoints.
#include "agent/train/distill_side.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/job/init_digest.h"
#include "agent/job/json.h"
#include "agent/job/model.h"

#include <math.h>
#include <stdlib.h>

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

static struct intra_model_config shape(const struct agent_distill_side *s) {
    int32_t vocab = s->job.model.vocab ? s->job.model.vocab : intra_corpus_vocab(s->corpus);
    return agent_job_model(&s->job, s->role == AGENT_ROLE_TEACHER ? &s->job.distill.shape : NULL,
                           vocab, KERN_MASK_PREFIX);
}

static enum neb_status check_model(const struct agent_distill_side *s, const struct intra_model *m,
                                   const char *path) {
    int32_t vocab = intra_corpus_vocab(s->corpus);
    int32_t student = s->job.model.vocab ? s->job.model.vocab : vocab;
    if (m->c.vocab < vocab)
        return neb_fail(NEB_ERR_INVALID, "%s has a vocabulary of %d, but the corpus has %d pieces",
                        path, m->c.vocab, vocab);
    // both sides must have the same ids, and so the same width of labels
    if (m->c.vocab != student && s->job.model_init[0])
        return neb_fail(NEB_ERR_INVALID,
                        "%s has a vocabulary of %d, but the student (from %s) has one of %d: pad "
                        "both to the same width",
                        path, m->c.vocab, s->job.model_init, student);
    if (m->c.vocab != student)
        return neb_fail(
            NEB_ERR_INVALID,
            "%s has a vocabulary of %d, but the student has one of %d: set model.vocab: %d", path,
            m->c.vocab, student, m->c.vocab);
    if (m->c.max_seq < s->job.seq_len)
        return neb_fail(NEB_ERR_INVALID, "%s takes at most %d tokens, but data.seq_len is %d", path,
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
        .seed = neb_mix64((uint64_t)j->seed + s->init + (teacher ? 77 : 0)),
        .device = s->at.device,
        .device_type = s->at.type,
        .device_graphs = s->at.graphs,
        .soft_k = CMP_SOFT_K_MAX};
    t.optim.schedule.steps = j->steps * (teacher ? s->n_students : 1);
    NEB_TRY(intra_trainer_create(&t, s->at.K, &s->trainer));
    s->passes = s->trainer->device;
    return NEB_OK;
}

// A teacher that does not learn: its passes need little memory.
static enum neb_status freeze(struct agent_distill_side *s) {
    struct intra_device_config c = {.D = s->at.device ? s->at.device : s->at.K,
                                    .type = s->at.device ? s->at.type : KERN_F32,
                                    .graphs = s->at.graphs,
                                    .batch = s->job.batch,
                                    .seq_len = s->job.seq_len,
                                    .soft_k = CMP_SOFT_K_MAX};
    return intra_device_create(&c, s->frozen, NULL, &s->passes);
}

static enum neb_status load_params(struct agent_distill_side *s, const char *path) {
    struct intra_ckpt *c = NULL;
    NEB_TRY(intra_ckpt_open(path, true, &c));
    enum neb_status st = s->role == AGENT_ROLE_STUDENT
                             ? agent_job_init_same(&s->job, agent_job_role(&s->job, s->role), c)
                             : NEB_OK;
    if (st == NEB_OK)
        st = intra_model_load_params(c, s->trainer->model);
    if (st == NEB_OK)
        st = intra_trainer_push(s->trainer, NULL);
    intra_ckpt_close(&c);
    return st;
}

// The shape comes from the teacher's checkpoint. Without one it comes from the job, and the teacher
// starts from random parameters.
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
        return freeze(s);
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
        return neb_fail(NEB_ERR_INVALID,
                        "model.vocab %d is smaller than the corpus's vocabulary of %d", m.vocab,
                        intra_corpus_vocab(s->corpus));
    NEB_TRY(make_trainer(s, &m));
    return s->job.init_from[0] ? load_params(s, s->job.init_from) : NEB_OK;
}

static enum neb_status allocate(struct agent_distill_side *s) {
    size_t n = (size_t)s->budget, V = (size_t)agent_distill_model(s)->c.vocab,
           // k 0 (all logits) is never sent: it is for both sides in one process
        wide = s->job.distill.k ? CMP_SOFT_K_MAX : V;
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
                                     const struct intra_place *at,
                                     struct agent_distill_side **out) {
    enum neb_status st = NEB_OK;
    struct agent_distill_side *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a side of mode distill");
    s->job = *job;
    s->role = role;
    s->student = student;
    s->init = student > 0 && job->distill.relay ? (uint64_t)student << 32 : 0;
    agent_distill_batches_of(job, &s->student, &s->n_students);
    s->budget = job->batch * job->seq_len;
    s->corpus = corpus;
    s->at = *at;
    struct intra_pairs_config c = {.seed = (uint64_t)job->seed,
                                   .seq_len = job->seq_len,
                                   .tokens = s->budget,
                                   .may_be_empty = role == AGENT_ROLE_TEACHER &&
                                                   // the students send all text
                                                   job->distill.pushed};
    NEB_TRY_GOTO(intra_pairs_create(corpus, INTRA_TRAIN, &c, &s->pairs), fail);
    if (intra_pairs_skipped(s->pairs))
        neb_warn("%llu pairs are longer than data.seq_len %d and are left out; %llu are used",
                 (unsigned long long)intra_pairs_skipped(s->pairs), c.seq_len,
                 (unsigned long long)intra_pairs_count(s->pairs));
    NEB_TRY_GOTO(intra_pair_batch_create(&c, &s->batch), fail);
    NEB_TRY_GOTO(cmp_soft_create(&s->wire), fail);
    NEB_TRY_GOTO(cmp_tokens_create(&s->text), fail);
    s->limits = (struct agent_request_limits){.vocab = intra_corpus_vocab(corpus),
                                              .eos = intra_pairs_eos(s->pairs),
                                              .seq_len = job->seq_len,
                                              .tokens = s->budget};
    NEB_TRY_GOTO(role == AGENT_ROLE_TEACHER ? make_teacher(s) : make_student(s), fail);
    if (s->trainer)
        s->s.loss_first = s->s.loss_last = NAN; // no step yet
    NEB_TRY_GOTO(allocate(s), fail);
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
    if (s->frozen)
        intra_device_destroy(&s->passes);
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

// ---- evaluation ---------------------------------------------------------------------------------

// NAN if no pair of the held-out split is short enough.
static enum neb_status held_out(struct agent_distill_side *s, double *loss) {
    struct intra_pairs *pairs = NULL;
    struct intra_pairs_config c = {
        .seed = 1, .seq_len = s->job.seq_len, .tokens = s->budget, .may_be_empty = true};
    double sum = 0;
    int64_t count = 0;
    NEB_TRY(intra_pairs_create(s->corpus, INTRA_VALID, &c, &pairs));
    enum neb_status st = NEB_OK;
    for (uint64_t k = 0; k < intra_pairs_batches(pairs) && st == NEB_OK; k++) {
        double l = 0;
        int64_t n = 0;
        st = intra_pairs_draw(pairs, k, &s->batch);
        if (st == NEB_OK) {
            struct intra_batch b = distill_batch(s, NULL);
            st = intra_device_pass(s->passes, &b, 0, &l, &n);
        }
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
                                        .longest = s->job.seq_len,
                                        .max_tokens = s->job.seq_len,
                                        .alpha = 1};
    struct agent_translate_result r;
    NEB_TRY(held_out(s, loss));
    NEB_TRY(agent_translate(s->corpus, agent_translate_split(s->corpus), s->at.K,
                            agent_distill_model(s), &o, &r));
    double rows = (double)s->s.label_rows;
    *quality =
        json_pack("{s:o,s:o,s:I,s:i,s:f,s:o,s:f}", "chrf", agent_json_number(r.chrf), "eval_loss",
                  agent_json_number(*loss), "pairs", (json_int_t)r.pairs, "beam", o.beam,
                  "decode_s", r.seconds, "label_bytes_per_target_token",
                  rows > 0 ? json_real((double)s->s.label_bytes / rows) : json_null(),
                  "taught_share", s->s.targets ? (double)s->s.taught / (double)s->s.targets : 0.0);
    return *quality ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory making a report");
}

// ---- checkpoints --------------------------------------------------------------------------------

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
        return neb_fail(NEB_ERR_FORMAT, "%s does not fit this job", intra_ckpt_path(c));
    s->s = v;
    return s->trainer ? intra_trainer_restore(s->trainer, c) : NEB_OK;
}
