// SPDX-License-Identifier: Apache-2.0
// A side of mode distill: its model, and the memory of its steps.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/job/init_digest.h"
#include "agent/job/model.h"
#include "agent/train/distill.h"

#include <math.h>
#include <stdlib.h>

struct intra_model *distill_model(const struct agent_distill_side *s) {
    return intra_group_model(s->group);
}

static struct intra_model_config shape(const struct agent_distill_side *s) {
    int32_t vocab = s->job.model.vocab ? s->job.model.vocab : intra_corpus_vocab(s->corpus);
    return agent_job_model(&s->job, s->role == AGENT_ROLE_TEACHER ? &s->job.distill.shape : NULL,
                           vocab, agent_distill_mask(&s->job));
}

static enum neb_status make_group(struct agent_distill_side *s, const struct intra_model_config *m,
                                  const struct intra_trainable *trainable) {
    const struct agent_job *j = &s->job;
    bool teacher = s->role == AGENT_ROLE_TEACHER;
    struct intra_trainer_config t = {
        .model = *m,
        .trainable = *trainable,
        .optim = j->optim,
        .batch = j->batch,
        .seq_len = j->seq_len,
        .accumulate = j->accumulate,
        .varied = true,
        .frozen = !s->learns,
        .recompute = j->recompute,
        .seed = neb_mix64((uint64_t)j->seed + s->init + (teacher ? 77 : 0)),
        .device = s->at.device,
        .device_type = s->at.type,
        .device_optional = s->at.device_optional,
        .device_graphs = s->at.graphs,
        .soft_k = CMP_SOFT_K_MAX};
    t.optim.schedule.steps = j->steps * (teacher ? s->n_students : 1);
    return intra_group_create(&t, &s->at.mesh, s->at.world, s->at.K, &s->group);
}

// Gives all ranks the parameters of a checkpoint. Those that it lacks keep their initial values.
static enum neb_status load_params(struct agent_distill_side *s, const struct intra_ckpt *c) {
    NEB_TRY(intra_group_pull(s->group, NULL));
    NEB_TRY(intra_model_load_params(c, intra_group_model(s->group)));
    NEB_TRY(intra_group_push(s->group, NULL));
    intra_group_release(s->group); // no rank holds the whole model while it works
    return NEB_OK;
}

// The shape comes from the teacher's checkpoint. Without one it comes from the job, and the teacher
// starts from random parameters.
static enum neb_status teacher_from(struct agent_distill_side *s, const struct intra_ckpt *c) {
    struct intra_model_config m;
    struct intra_trainable trainable;
    NEB_TRY(intra_model_read_config(c, &m, &trainable));
    NEB_TRY(agent_distill_teacher_fits(&s->job, s->cluster, intra_corpus_vocab(s->corpus), &m));
    if (s->learns || s->job.distill.task != AGENT_TASK_TRANSLATE)
        m.mask = agent_distill_mask(&s->job);
    if (s->learns) {
        m.max_seq = s->job.seq_len;
        trainable = (struct intra_trainable){.mode = INTRA_TRAIN_FULL};
    }
    NEB_TRY(make_group(s, &m, &trainable));
    return load_params(s, c);
}

static enum neb_status make_teacher(struct agent_distill_side *s) {
    const char *path = s->init_from;
    const struct intra_trainable full = {.mode = INTRA_TRAIN_FULL};
    struct intra_ckpt *c = NULL;
    struct intra_model_config m = shape(s);
    if (!path[0])
        return make_group(s, &m, &full);
    NEB_TRY(intra_ckpt_open(path, true, &c));
    enum neb_status st = teacher_from(s, c);
    intra_ckpt_close(&c);
    return st;
}

static enum neb_status student_from(struct agent_distill_side *s, const char *path) {
    struct intra_ckpt *c = NULL;
    NEB_TRY(intra_ckpt_open(path, true, &c));
    enum neb_status st = agent_job_init_same(&s->job, agent_job_role(&s->job, s->role), c);
    if (st == NEB_OK)
        st = load_params(s, c);
    intra_ckpt_close(&c);
    return st;
}

static enum neb_status make_student(struct agent_distill_side *s) {
    struct intra_model_config m = shape(s);
    NEB_TRY(make_group(s, &m, &s->job.trainable));
    return s->job.init_from[0] ? student_from(s, s->job.init_from) : NEB_OK;
}

static enum neb_status allocate(struct agent_distill_side *s) {
    bool sends = s->role == AGENT_ROLE_TEACHER && s->job.distill.k;
    size_t n = (size_t)s->budget, V = (size_t)distill_model(s)->c.vocab,
           // k 0 (all logits) is never sent: it is for both sides in one process
        wide = s->job.distill.k ? CMP_SOFT_K_MAX : V,
           teachers = (size_t)agent_distill_teachers(&s->job),
           mixed = teachers > 1 ? teachers + 1 : 1,
           micros = sends ? (size_t)s->job.accumulate : mixed, rows = micros * n;
    s->rows = calloc(rows, sizeof *s->rows);
    s->row_ids = calloc(rows * CMP_SOFT_K_MAX, sizeof *s->row_ids);
    s->row_logp = calloc(rows * wide, sizeof *s->row_logp);
    s->row_tail = calloc(rows, sizeof *s->row_tail);
    s->picks = calloc(micros, sizeof *s->picks);
    s->ids = calloc(n * CMP_SOFT_K_MAX, sizeof *s->ids);
    s->logp = calloc(n * wide, sizeof *s->logp);
    s->tail = calloc(n, sizeof *s->tail);
    s->request_ids = calloc(agent_request_ids(&s->limits), sizeof *s->request_ids);
    return s->request_ids && s->rows && s->ids && s->row_ids && s->logp && s->row_logp && s->tail &&
                   s->row_tail && s->picks
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "out of memory for labels of %zu tokens", n);
}

enum neb_status agent_distill_create(const struct agent_job *job, enum agent_role role,
                                     int32_t index, const struct intra_corpus *corpus,
                                     const struct intra_place *at,
                                     struct agent_distill_side **out) {
    enum neb_status st = NEB_OK;
    struct agent_distill_side *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a side of mode distill");
    s->job = *job;
    s->role = role;
    if (role == AGENT_ROLE_TEACHER) {
        s->cluster = agent_distill_teacher(job, index);
        snprintf(s->init_from, sizeof s->init_from, "%s", agent_distill_init(job, s->cluster));
        s->init = (uint64_t)index << 32; // teachers that begin without a checkpoint differ
    } else {
        s->student = index;
        s->init = index > 0 && job->distill.relay ? (uint64_t)index << 32 : 0;
    }
    s->learns = role == AGENT_ROLE_STUDENT || !s->init_from[0] || job->distill.learn;
    agent_distill_batches_of(job, &s->student, &s->n_students);
    s->budget = job->batch * job->seq_len;
    s->corpus = corpus;
    s->at = *at;
    struct intra_pairs_config c = agent_distill_pairs(job);
    // the students send all text
    c.may_be_empty = role == AGENT_ROLE_TEACHER && job->distill.pushed;
    NEB_TRY_GOTO(intra_pairs_create(corpus, INTRA_TRAIN, &c, &s->pairs), fail);
    if (intra_pairs_skipped(s->pairs))
        neb_warn("%llu pairs are longer than data.seq_len %d and are left out; %llu are used",
                 (unsigned long long)intra_pairs_skipped(s->pairs), c.seq_len,
                 (unsigned long long)intra_pairs_count(s->pairs));
    NEB_TRY_GOTO(intra_pair_batch_create(&c, &s->batch), fail);
    NEB_TRY_GOTO(cmp_soft_create(&s->wire), fail);
    NEB_TRY_GOTO(cmp_tokens_create(&s->text), fail);
    s->limits = (struct agent_request_limits){
        .vocab = job->model.vocab ? job->model.vocab : intra_corpus_vocab(corpus),
        .eos = intra_pairs_eos(s->pairs),
        .seq_len = job->seq_len,
        .tokens = s->budget};
    NEB_TRY_GOTO(role == AGENT_ROLE_TEACHER ? make_teacher(s) : make_student(s), fail);
    if (s->learns)
        s->s.f.loss_first = s->s.f.loss_last = NAN; // no step yet
    NEB_TRY_GOTO(allocate(s), fail);
    NEB_TRY_GOTO(distill_own_create(s), fail);
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
    distill_own_destroy(s);
    intra_group_destroy(&s->group);
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
    free(s->picks);
    free(s);
    *sp = NULL;
}
