// SPDX-License-Identifier: Apache-2.0
// The steps of both sides: draw, label, learn.
#include "agent/train/distill.h"
#include "agent/base/clock.h"

#include <string.h>

static int32_t *rows_of(const struct agent_distill_side *s, int32_t micro) {
    return s->rows + (size_t)micro * (size_t)s->budget;
}

static void find_rows(struct agent_distill_side *s, int32_t micro) {
    int32_t *rows = rows_of(s, micro);
    for (int32_t i = 0, k = 0; i < s->batch.B * s->batch.T; i++)
        if (s->batch.targets[i] != KERN_IGNORE)
            rows[k++] = i;
}

static enum neb_status draw(struct agent_distill_side *s, int32_t student, int64_t step,
                            int32_t micro) {
    uint64_t at = (uint64_t)step * (uint64_t)s->job.accumulate + (uint64_t)micro;
    NEB_TRY(
        intra_pairs_draw(s->pairs, at * (uint64_t)s->n_students + (uint64_t)student, &s->batch));
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

// Passes the batch through the model that learns; gradients and sums go to side_update.
static void pass(struct agent_distill_side *s, const struct kern_soft *teacher,
                 const struct intra_picks *picks) {
    struct intra_batch b = distill_batch(s, teacher);
    intra_group_micro_batch(s->group, &b, picks);
    count_tokens(intra_group_trainer(s->group), &s->batch);
    s->s.f.tokens += (uint64_t)s->batch.B * (uint64_t)s->batch.T;
    s->s.targets += (uint64_t)s->batch.n_targets;
    s->s.taught += teacher ? (uint64_t)s->batch.n_targets : 0;
}

// The teacher's pass over the batch that was drawn as micro-batch `micro`, which makes its labels,
// row by row. They are there after `taught`; with one rank at once.
static void teach(struct agent_distill_side *s, int32_t micro, int32_t k) {
    struct intra_picks *p = &s->picks[micro];
    size_t row = (size_t)micro * (size_t)s->budget,
           wide = (size_t)(k ? k : distill_model(s)->c.vocab);
    find_rows(s, micro);
    *p = (struct intra_picks){.kind = INTRA_PICK_LABELS,
                              .n = (int32_t)s->batch.n_targets,
                              .at = rows_of(s, micro),
                              .k = k,
                              .temperature = s->job.distill.temperature,
                              .ids = s->row_ids + row * wide,
                              .logp = s->row_logp + row * wide,
                              .tail = s->row_tail + row};
    if (s->learns) { // backward does not change the final hidden states
        pass(s, NULL, p);
        return;
    }
    struct intra_batch b = distill_batch(s, NULL);
    b.targets = NULL;
    intra_group_pass(s->group, &b, p);
    s->s.f.tokens += (uint64_t)s->batch.B * (uint64_t)s->batch.T;
}

// Ends the passes of the teacher's step.
static enum neb_status taught(struct agent_distill_side *s) {
    double loss;
    int64_t count;
    return s->learns ? side_update(s->group, &s->s.f, &s->stats)
                     : intra_group_passed(s->group, &loss, &count);
}

static enum neb_status encode_labels(struct agent_distill_side *s, int32_t k, struct neb_buf *out) {
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        const struct intra_picks *p = &s->picks[a];
        struct cmp_soft_head h = {(uint32_t)p->n, k, distill_model(s)->c.vocab,
                                  s->job.distill.temperature};
        NEB_TRY(cmp_soft_encode(s->wire, &h, p->ids, p->logp, p->tail, out));
        s->s.label_rows += (uint64_t)p->n;
    }
    return NEB_OK;
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
        if (request)
            NEB_TRY(agent_request_next(s->text, &s->limits, &asked, s->request_ids, &s->batch));
        else
            NEB_TRY(draw(s, student, step, a));
        teach(s, a, k);
    }
    if (request && !neb_rd_done(&asked))
        return neb_fail(NEB_ERR_FORMAT, "a student's request for step %lld has %zu bytes too many",
                        (long long)step, neb_rd_left(&asked));
    NEB_TRY(taught(s));
    NEB_TRY(encode_labels(s, k, out));
    s->s.f.batch_bytes += out->len;
    s->s.f.step++;
    s->s.f.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}

// Moves labels by row to labels by position, as the loss needs them.
static void spread(struct agent_distill_side *s, int32_t k, const struct agent_distill_side *from) {
    size_t wide = (size_t)(k ? k : distill_model(s)->c.vocab);
    find_rows(s, 0);
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
                              .vocab = distill_model(s)->c.vocab};
    NEB_TRY(cmp_soft_decode(s->wire, r, &h, s->row_ids, s->row_logp, s->row_tail));
    if (h.temperature != s->job.distill.temperature)
        return neb_fail(NEB_ERR_FORMAT, "labels have temperature %g, but the job has %g",
                        (double)h.temperature, (double)s->job.distill.temperature);
    *k = h.k;
    s->s.label_rows += h.rows;
    spread(s, h.k, s);
    return NEB_OK;
}

enum neb_status agent_distill_learn(struct agent_distill_side *s, const uint8_t *p, size_t n) {
    neb_ns start = neb_now();
    struct neb_rd r = neb_rd_make(p, n);
    uint64_t step = neb_rd_u64(&r);
    if (p && (r.bad || step != (uint64_t)s->s.f.step))
        return neb_fail(NEB_ERR_FORMAT,
                        "labels of step %llu have come, but those of step %lld are due",
                        (unsigned long long)step, (long long)s->s.f.step);
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        int32_t k = 0;
        NEB_TRY(draw(s, s->student, s->s.f.step, a));
        if (p)
            NEB_TRY(read_labels(s, &r, &k));
        struct kern_soft soft = labels_of(s, k);
        pass(s, p ? &soft : NULL, NULL);
    }
    if (p && !neb_rd_done(&r))
        return neb_fail(NEB_ERR_FORMAT, "labels of step %llu have %zu bytes too many",
                        (unsigned long long)step, neb_rd_left(&r));
    s->s.f.batch_bytes += n;
    NEB_TRY(side_update(s->group, &s->s.f, &s->stats));
    s->s.f.step++;
    s->s.f.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}

enum neb_status agent_distill_learn_from(struct agent_distill_side *s,
                                         struct agent_distill_side *teacher) {
    neb_ns start = neb_now();
    int32_t k = s->job.distill.k;
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        NEB_TRY(draw(s, s->student, s->s.f.step, a));
        NEB_TRY(draw(teacher, s->student, s->s.f.step, a));
        teach(teacher, 0, k);
        spread(s, k, teacher);
        struct kern_soft soft = labels_of(s, k);
        pass(s, &soft, NULL);
    }
    NEB_TRY(taught(teacher));
    teacher->s.f.step++;
    NEB_TRY(side_update(s->group, &s->s.f, &s->stats));
    s->s.f.step++;
    s->s.f.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}
