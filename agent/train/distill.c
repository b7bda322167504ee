// SPDX-License-Identifier: Apache-2.0
// The steps of both sides (draw, label, learn), and the clusters' parts in a job.
#include "agent/base/clock.h"
#include "agent/base/fault.h"
#include "agent/train/distill_side.h"

#include <string.h>

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

void agent_distill_batches_of(const struct agent_job *j, int32_t *student, int32_t *n) {
    *student = j->distill.relay ? 0 : *student;
    *n = j->distill.relay ? 1 : agent_distill_students(j);
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

// Counts the tokens that rows of embedding and output have seen, without padding: the weights of a
// round (distill.federate).
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

// Passes the batch through the trainer's model; gradients and sums go to intra_trainer_update.
static void pass(struct agent_distill_side *s, const struct kern_soft *teacher) {
    struct intra_batch b = distill_batch(s, teacher);
    int64_t count = intra_trainer_micro_batch(s->trainer, &b);
    count_tokens(s->trainer, &s->batch);
    s->s.tokens += (uint64_t)s->batch.B * (uint64_t)s->batch.T;
    s->s.targets += (uint64_t)count;
    s->s.taught += teacher ? (uint64_t)count : 0;
}

static enum neb_status took_step(struct agent_distill_side *s) {
    intra_trainer_update(s->trainer, &s->stats);
    NEB_TRY(s->stats.status);
    (void)neb_fault("worker.step"); // a step that takes longer
    intra_loss_add(&s->s.loss_first, &s->s.loss_last, s->stats.loss);
    return NEB_OK;
}

// The teacher's pass over the batch that was drawn; makes labels by row.
static enum neb_status teach(struct agent_distill_side *s, int32_t k) {
    if (s->trainer) { // backward does not change the final hidden states
        pass(s, NULL);
    } else {
        struct intra_batch b = distill_batch(s, NULL);
        b.targets = NULL;
        NEB_TRY(intra_device_pass(s->passes, &b, 0, NULL, NULL));
        s->s.tokens += (uint64_t)s->batch.B * (uint64_t)s->batch.T;
    }
    return intra_device_labels(s->passes, s->rows, (int32_t)s->batch.n_targets, k,
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
        NEB_TRY(teach(s, k));
        struct cmp_soft_head h = {(uint32_t)s->batch.n_targets, k, agent_distill_model(s)->c.vocab,
                                  s->job.distill.temperature};
        NEB_TRY(cmp_soft_encode(s->wire, &h, s->row_ids, s->row_logp, s->row_tail, out));
        s->s.label_rows += (uint64_t)s->batch.n_targets;
    }
    if (request && !neb_rd_done(&asked))
        return neb_fail(NEB_ERR_FORMAT, "a student's request for step %lld has %zu bytes too many",
                        (long long)step, neb_rd_left(&asked));
    if (s->trainer)
        NEB_TRY(took_step(s));
    s->s.label_bytes += out->len;
    s->s.step++;
    s->s.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}

// Moves labels by row to labels by position, as the loss needs them.
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
        return neb_fail(NEB_ERR_FORMAT, "labels have temperature %g, but the job has %g",
                        (double)h.temperature, (double)s->job.distill.temperature);
    *k = h.k;
    s->s.label_rows += h.rows;
    spread(s, h.k, s);
    return NEB_OK;
}

// Reads all labels of a step before the first micro-batch counts, so that a step fails as a whole.
static enum neb_status check_labels(struct agent_distill_side *s, const uint8_t *p, size_t n) {
    struct neb_rd r = neb_rd_make(p, n);
    uint64_t rows = s->s.label_rows, step = neb_rd_u64(&r);
    enum neb_status st = NEB_OK;
    int32_t k;
    if (r.bad || step != (uint64_t)s->s.step)
        return neb_fail(NEB_ERR_FORMAT,
                        "labels of step %llu have come, but those of step %lld are due",
                        (unsigned long long)step, (long long)s->s.step);
    for (int32_t a = 0; a < s->job.accumulate && st == NEB_OK; a++) {
        NEB_TRY(draw(s, s->student, s->s.step, a));
        st = read_labels(s, &r, &k);
    }
    s->s.label_rows = rows;
    NEB_TRY(st);
    return neb_rd_done(&r) ? NEB_OK
                           : neb_fail(NEB_ERR_FORMAT, "labels of step %llu have %zu bytes too many",
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
    NEB_TRY(took_step(s));
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
        NEB_TRY(teach(teacher, k));
        spread(s, k, teacher);
        struct kern_soft soft = labels_of(s, k);
        pass(s, &soft);
    }
    if (teacher->trainer)
        NEB_TRY(took_step(teacher));
    teacher->s.step++;
    NEB_TRY(took_step(s));
    s->s.step++;
    s->s.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}
