// SPDX-License-Identifier: Apache-2.0
// The steps of both sides: draw, label, learn.
#include "agent/train/distill.h"
#include "agent/base/clock.h"
#include "agent/base/log.h"

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

enum neb_status distill_draw(struct agent_distill_side *s, int32_t student, int64_t step,
                             int32_t micro, struct intra_pair_batch *b) {
    uint64_t at = (uint64_t)step * (uint64_t)s->job.accumulate + (uint64_t)micro;
    return intra_pairs_draw(s->pairs, at * (uint64_t)s->n_students + (uint64_t)student, b);
}

static enum neb_status draw(struct agent_distill_side *s, int32_t student, int64_t step,
                            int32_t micro) {
    return distill_draw(s, student, step, micro, &s->batch);
}

enum neb_status agent_distill_request(struct agent_distill_side *s, int64_t step,
                                      struct neb_buf *out) {
    const struct neb_buf *own = distill_own_text(s, step);
    neb_buf_clear(out);
    if (own) {
        neb_buf_add(out, own->p, own->len);
        return neb_buf_check(out);
    }
    agent_request_begin(step, out);
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        NEB_TRY(draw(s, s->student, step, a));
        NEB_TRY(agent_request_add(s->text, &s->limits, &s->batch, s->request_ids, out));
    }
    return NEB_OK;
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

// text: NULL, or that of this side, whose micro-batches go before their labels.
static enum neb_status encode_labels(struct agent_distill_side *s, int32_t k,
                                     const struct neb_buf *text, struct neb_buf *out) {
    struct neb_rd r = neb_rd_make(text ? text->p : NULL, text ? text->len : 0);
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        const struct intra_picks *p = &s->picks[a];
        struct cmp_soft_head h = {(uint32_t)p->n, k, distill_model(s)->c.vocab,
                                  s->job.distill.temperature};
        size_t from = r.off;
        if (text) {
            NEB_TRY(agent_request_next(s->text, &s->limits, &r, s->request_ids, &s->batch));
            neb_buf_add(out, text->p + from, r.off - from);
        }
        NEB_TRY(cmp_soft_encode(s->wire, &h, p->ids, p->logp, p->tail, out));
        s->s.label_rows += (uint64_t)p->n;
    }
    return NEB_OK;
}

enum neb_status agent_distill_label(struct agent_distill_side *s, int32_t student, int64_t step,
                                    int32_t k, const uint8_t *request, size_t n,
                                    struct neb_buf *out) {
    neb_ns start = neb_now();
    bool writes = s->own.micros && agent_distill_sampled(&s->job, step), read = request || writes;
    struct neb_buf *own = writes ? &s->own.text : NULL;
    struct neb_rd asked = neb_rd_make(request, n), text;
    neb_buf_clear(out);
    neb_buf_u64(out, (uint64_t)step);
    if (request)
        NEB_TRY(agent_request_open(&asked, step, s->job.steps));
    if (request && agent_distill_names_text(&s->job, step))
        neb_buf_u64(out, agent_distill_text_id(request, n));
    if (own) {
        neb_buf_clear(own);
        NEB_TRY(distill_write(s, student, step, request ? &asked : NULL, own));
        NEB_TRY(neb_buf_check(own));
    }
    text = own ? neb_rd_make(own->p, own->len) : asked;
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        if (read)
            NEB_TRY(agent_request_next(s->text, &s->limits, &text, s->request_ids, &s->batch));
        else
            NEB_TRY(draw(s, student, step, a));
        teach(s, a, k);
    }
    asked = own ? asked : text;
    if (request && !neb_rd_done(&asked))
        return neb_fail(NEB_ERR_FORMAT, "a student's request for step %lld has %zu bytes too many",
                        (long long)step, neb_rd_left(&asked));
    NEB_TRY(taught(s));
    NEB_TRY(encode_labels(s, k, own, out));
    s->s.f.batch_bytes += out->len;
    s->s.f.step++;
    s->s.f.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}

// Room for the labels of teacher t, or for the mixture of n teachers: t = n.
static struct cmp_soft_rows rows_from(const struct agent_distill_side *s, int32_t t, int32_t k) {
    size_t at = (size_t)t * (size_t)s->budget;
    return (struct cmp_soft_rows){.k = k,
                                  .ids = s->row_ids + at * CMP_SOFT_K_MAX,
                                  .logp = s->row_logp + at * CMP_SOFT_K_MAX,
                                  .tail = s->row_tail + at};
}

// Moves labels by row to labels by position, as the loss needs them. k 0: all tokens.
static void spread(struct agent_distill_side *s, const struct cmp_soft_rows *from) {
    size_t wide = (size_t)(from->k ? from->k : distill_model(s)->c.vocab);
    find_rows(s, 0);
    for (size_t i = 0; i < (size_t)s->batch.n_targets; i++) {
        size_t at = (size_t)s->rows[i];
        memcpy(s->logp + at * wide, from->logp + i * wide, sizeof(float) * wide);
        if (from->k)
            memcpy(s->ids + at * wide, from->ids + i * wide, sizeof(int32_t) * wide);
        s->tail[at] = from->tail[i];
    }
}

// own: the student wrote the text itself, so it is no truth that cross-entropy could teach.
static struct kern_soft labels_of(const struct agent_distill_side *s, int32_t k, bool own) {
    return (struct kern_soft){.k = k,
                              .lambda = own ? 1 : s->job.distill.lambda,
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

// The messages of a step while they are read.
struct reading {
    struct neb_rd labels[AGENT_CLUSTERS_MAX], own; // own.p NULL: the student did not write the text
    float weights[AGENT_CLUSTERS_MAX];
    int32_t n;
    bool theirs; // the text is in the labels of the only teacher
};

// Reads the heads. Labels that belong to another text are left out: this student wrote another one
// after a restart without its checkpoint.
static enum neb_status open_labels(struct agent_distill_side *s,
                                   const struct agent_distill_labels *l, int32_t n,
                                   struct reading *out) {
    const struct neb_buf *own = distill_own_text(s, s->s.f.step);
    bool named = agent_distill_names_text(&s->job, s->s.f.step);
    *out = (struct reading){.theirs = s->job.distill.source == AGENT_TEXT_TEACHER &&
                                      agent_distill_sampled(&s->job, s->s.f.step)};
    for (int32_t i = 0; i < n; i++) {
        struct neb_rd r = neb_rd_make(l[i].p, l[i].n);
        uint64_t step = neb_rd_u64(&r), id = named ? neb_rd_u64(&r) : 0;
        if (r.bad || step != (uint64_t)s->s.f.step)
            return neb_fail(NEB_ERR_FORMAT,
                            "labels of step %llu have come, but those of step %lld are due",
                            (unsigned long long)step, (long long)s->s.f.step);
        if (named && (!own || id != agent_distill_text_id(own->p, own->len))) {
            neb_warn("labels of step %llu belong to another text than this student has written: "
                     "they are left out",
                     (unsigned long long)step);
            continue;
        }
        out->labels[out->n] = r;
        out->weights[out->n++] = l[i].weight;
    }
    if (own && out->n) {
        out->own = neb_rd_make(own->p, own->len);
        return agent_request_open(&out->own, s->s.f.step, s->job.steps);
    }
    return NEB_OK;
}

// Takes the text of a micro-batch: its own, the teacher's, or the corpus's.
static enum neb_status take_text(struct agent_distill_side *s, struct reading *r, int32_t micro) {
    struct neb_rd *from = r->own.p ? &r->own : r->theirs && r->n ? &r->labels[0] : NULL;
    return from ? agent_request_next(s->text, &s->limits, from, s->request_ids, &s->batch)
                : draw(s, s->student, s->s.f.step, micro);
}

// Reads the labels of one micro-batch from all messages.
static enum neb_status read_labels(struct agent_distill_side *s, struct reading *r, int32_t *k) {
    struct cmp_soft_rows all[AGENT_CLUSTERS_MAX], mixed;
    uint32_t rows = (uint32_t)s->batch.n_targets;
    for (int32_t i = 0; i < r->n; i++) {
        struct cmp_soft_head h = {.rows = rows, .vocab = distill_model(s)->c.vocab};
        size_t at = (size_t)i * (size_t)s->budget, wide = at * CMP_SOFT_K_MAX;
        NEB_TRY(cmp_soft_decode(s->wire, &r->labels[i], &h, s->row_ids + wide, s->row_logp + wide,
                                s->row_tail + at));
        if (h.temperature != s->job.distill.temperature)
            return neb_fail(NEB_ERR_FORMAT, "labels have temperature %g, but the job has %g",
                            (double)h.temperature, (double)s->job.distill.temperature);
        all[i] = rows_from(s, i, h.k);
        all[i].weight = r->weights[i];
        s->s.label_rows += h.rows;
    }
    mixed = all[0];
    if (r->n > 1) {
        size_t at = (size_t)r->n * (size_t)s->budget, wide = at * CMP_SOFT_K_MAX;
        mixed = rows_from(
            s, r->n,
            cmp_soft_mix(all, r->n, rows, s->row_ids + wide, s->row_logp + wide, s->row_tail + at));
    }
    *k = mixed.k;
    spread(s, &mixed);
    return NEB_OK;
}

enum neb_status agent_distill_learn(struct agent_distill_side *s,
                                    const struct agent_distill_labels *l, int32_t n) {
    neb_ns start = neb_now();
    struct reading r;
    NEB_TRY(open_labels(s, l, n, &r));
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        int32_t k = 0;
        NEB_TRY(take_text(s, &r, a));
        if (r.n)
            NEB_TRY(read_labels(s, &r, &k));
        struct kern_soft soft = labels_of(s, k, r.own.p);
        pass(s, r.n ? &soft : NULL, NULL);
    }
    for (int32_t i = 0; i < r.n; i++)
        if (!neb_rd_done(&r.labels[i]))
            return neb_fail(NEB_ERR_FORMAT, "labels of step %lld have %zu bytes too many",
                            (long long)s->s.f.step, neb_rd_left(&r.labels[i]));
    for (int32_t i = 0; i < n; i++)
        s->s.f.batch_bytes += l[i].n;
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
        const struct cmp_soft_rows labels = rows_from(teacher, 0, k);
        spread(s, &labels);
        struct kern_soft soft = labels_of(s, k, false);
        pass(s, &soft, NULL);
    }
    NEB_TRY(taught(teacher));
    teacher->s.f.step++;
    NEB_TRY(side_update(s->group, &s->s.f, &s->stats));
    s->s.f.step++;
    s->s.f.train_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}
