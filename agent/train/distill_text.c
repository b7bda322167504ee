// SPDX-License-Identifier: Apache-2.0
// Text that a side of mode distill writes itself (distill.source). It continues the prompts of a
// step's batch with its own model.
//
//     prompt      of a pair the source or the question; of a window of text its first half
//     continued   a student draws each token, and so does a teacher of text; else a teacher
//                 searches the most likely answer (distill.beam). Up to EOS, or as far as the
//                 micro-batch has room
//
// All bits depend on the seed, the step and the parameters alone. A student's text of step s is
// written before step s - ahead + 1, whatever the link does; checkpoints hold what is not learned.
#include "agent/base/rng.h"
#include "agent/train/distill.h"

#include <stdlib.h>
#include <string.h>

// ---- memory -------------------------------------------------------------------------------------

static size_t sequences_max(const struct agent_distill_side *s) {
    return (size_t)s->budget / INTRA_PAIRS_SEQ_MIN + 1;
}

static bool writes(const struct agent_distill_side *s) {
    return s->job.distill.source ==
           (s->role == AGENT_ROLE_STUDENT ? AGENT_TEXT_STUDENT : AGENT_TEXT_TEACHER);
}

enum neb_status distill_own_create(struct agent_distill_side *s) {
    struct distill_own *o = &s->own;
    const struct intra_pairs_config c = agent_distill_pairs(&s->job);
    size_t micros = (size_t)s->job.accumulate, rows = micros * sequences_max(s);
    if (!writes(s))
        return NEB_OK;
    o->micros = calloc(micros, sizeof *o->micros);
    o->prompts = calloc(rows, sizeof *o->prompts);
    o->ids = calloc(micros * agent_request_ids(&s->limits), sizeof *o->ids);
    o->n = calloc(rows, sizeof *o->n);
    o->n_ahead = s->role == AGENT_ROLE_STUDENT ? s->job.distill.ahead : 0;
    o->ahead = calloc((size_t)o->n_ahead + 1, sizeof *o->ahead);
    if (!o->micros || !o->prompts || !o->ids || !o->n || !o->ahead)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for samples of %zu sequences", rows);
    for (size_t a = 0; a < micros; a++)
        NEB_TRY(intra_pair_batch_create(&c, &o->micros[a]));
    return NEB_OK;
}

void distill_own_destroy(struct agent_distill_side *s) {
    struct distill_own *o = &s->own;
    for (int32_t a = 0; o->micros && a < s->job.accumulate; a++)
        intra_pair_batch_free(&o->micros[a]);
    for (int32_t i = 0; o->ahead && i < o->n_ahead; i++)
        neb_buf_free(&o->ahead[i]);
    neb_buf_free(&o->text);
    free(o->micros);
    free(o->prompts);
    free(o->ids);
    free(o->n);
    free(o->ahead);
}

// ---- a step -------------------------------------------------------------------------------------

// Ids that a sequence of the micro-batch has room for.
static int32_t room(const struct agent_distill_side *s, const struct intra_pair_batch *b) {
    int32_t fits = s->budget / b->B;
    return (fits < s->job.seq_len ? fits : s->job.seq_len) + 1;
}

static int32_t *ids_of(const struct agent_distill_side *s, int32_t a, int32_t i) {
    const struct distill_own *o = &s->own;
    return o->ids + (size_t)a * agent_request_ids(&s->limits) +
           (size_t)i * (size_t)room(s, &o->micros[a]);
}

// Lists the prompts of micro-batch a. A sequence whose prompt fills it stays as it is. Returns how
// many there are.
static int32_t list_prompts(struct agent_distill_side *s, int32_t a, struct intra_prompt *out) {
    struct intra_pair_batch *b = &s->own.micros[a];
    int32_t *n = s->own.n + (size_t)a * sequences_max(s), listed = 0;
    for (int32_t i = 0; i < b->B; i++) {
        const int32_t *x = b->tokens + (size_t)i * (size_t)b->T,
                      *y = b->targets + (size_t)i * (size_t)b->T;
        int32_t *ids = ids_of(s, a, i), all = b->prefix[i];
        for (; all - 1 < b->T && y[all - 1] != KERN_IGNORE; all++)
            ids[all] = y[all - 1];
        if (s->job.distill.task == AGENT_TASK_TEXT)
            b->prefix[i] = all > 3 ? all / 2 : 1;
        memcpy(ids, x, (size_t)b->prefix[i] * sizeof *x);
        n[i] = all;
        if (b->prefix[i] < s->job.seq_len)
            out[listed++] = (struct intra_prompt){.tokens = ids,
                                                  .n = b->prefix[i],
                                                  .most = room(s, b) - b->prefix[i],
                                                  .out = ids + b->prefix[i]};
    }
    return listed;
}

// Takes the continued prompts of micro-batch a, which begin at p.
static const struct intra_prompt *take_continued(struct agent_distill_side *s, int32_t a,
                                                 const struct intra_prompt *p) {
    const struct intra_pair_batch *b = &s->own.micros[a];
    int32_t *n = s->own.n + (size_t)a * sequences_max(s);
    for (int32_t i = 0; i < b->B; i++) {
        if (b->prefix[i] >= s->job.seq_len)
            continue;
        n[i] = p->n + p->got;
        if (p->ended && p->got < p->most)
            ids_of(s, a, i)[n[i]++] = s->limits.eos;
        p++;
    }
    return p;
}

// seed 0: the most likely tokens, or with a beam of the job the most likely answer.
static enum neb_status continue_all(struct agent_distill_side *s, uint64_t seed) {
    const struct agent_distill_config *d = &s->job.distill;
    const struct intra_decode_config c = {.temperature = seed ? 1 : 0,
                                          .seed = seed,
                                          .beam = seed ? 0 : d->beam,
                                          .alpha = 1,
                                          .eos = d->task == AGENT_TASK_TEXT ? -1 : s->limits.eos,
                                          .prefix = d->task == AGENT_TASK_TRANSLATE};
    const struct intra_prompt *p = s->own.prompts;
    int32_t n = 0;
    for (int32_t a = 0; a < s->job.accumulate; a++)
        n += list_prompts(s, a, s->own.prompts + n);
    NEB_TRY(intra_decode(s->group, &c, s->own.prompts, n));
    for (int32_t a = 0; a < s->job.accumulate; a++)
        p = take_continued(s, a, p);
    return NEB_OK;
}

// Lays the continued sequences of micro-batch a out as a batch.
static void lay_out(struct agent_distill_side *s, int32_t a) {
    struct intra_pair_batch *b = &s->own.micros[a];
    const int32_t *n = s->own.n + (size_t)a * sequences_max(s);
    b->T = 0;
    b->n_targets = 0;
    for (int32_t i = 0; i < b->B; i++)
        b->T = n[i] - 1 > b->T ? n[i] - 1 : b->T;
    for (int32_t i = 0; i < b->B; i++) {
        const int32_t *ids = ids_of(s, a, i);
        int32_t *x = b->tokens + (size_t)i * (size_t)b->T,
                *y = b->targets + (size_t)i * (size_t)b->T;
        b->n_targets += n[i] - b->prefix[i];
        for (int32_t t = 0; t < b->T; t++) {
            x[t] = t < n[i] - 1 ? ids[t] : s->limits.eos;
            y[t] = t >= b->prefix[i] - 1 && t < n[i] - 1 ? ids[t + 1] : KERN_IGNORE;
        }
    }
}

static uint64_t seed_of(const struct agent_distill_side *s, int32_t student, int64_t step) {
    bool draws = s->role == AGENT_ROLE_STUDENT || s->job.distill.task == AGENT_TASK_TEXT;
    uint64_t at = neb_mix64((uint64_t)step * AGENT_CLUSTERS_MAX + (uint64_t)student);
    return draws ? neb_mix64((uint64_t)s->job.seed ^ at) | 1 : 0;
}

enum neb_status distill_write(struct agent_distill_side *s, int32_t student, int64_t step,
                              struct neb_rd *asked, struct neb_buf *out) {
    for (int32_t a = 0; a < s->job.accumulate; a++)
        NEB_TRY(asked ? agent_request_next(s->text, &s->limits, asked, s->request_ids,
                                           &s->own.micros[a])
                      : distill_draw(s, student, step, a, &s->own.micros[a]));
    NEB_TRY(continue_all(s, seed_of(s, student, step)));
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        lay_out(s, a);
        NEB_TRY(agent_request_add(s->text, &s->limits, &s->own.micros[a], s->request_ids, out));
    }
    return NEB_OK;
}

// ---- a student's steps ahead --------------------------------------------------------------------

static int64_t due(const struct agent_distill_side *s) {
    int64_t end = s->s.f.step + s->own.n_ahead;
    return end < s->job.steps ? end : s->job.steps;
}

bool distill_writes(const struct agent_distill_side *s) {
    return s->own.n_ahead && s->own.made < due(s);
}

uint64_t distill_own_end(const struct agent_distill_side *s) {
    return s->own.n_ahead ? (uint64_t)s->own.made : UINT64_MAX;
}

enum neb_status distill_write_ahead(struct agent_distill_side *s) {
    struct distill_own *o = &s->own;
    if (o->made < s->s.f.step) // others have made the steps between
        o->made = s->s.f.step;
    for (; distill_writes(s); o->made++) {
        struct neb_buf *out = &o->ahead[o->made % o->n_ahead];
        neb_buf_clear(out);
        if (!agent_distill_sampled(&s->job, o->made))
            continue;
        agent_request_begin(o->made, out);
        NEB_TRY(distill_write(s, s->student, o->made, NULL, out));
    }
    return NEB_OK;
}

const struct neb_buf *distill_own_text(const struct agent_distill_side *s, int64_t step) {
    const struct distill_own *o = &s->own;
    bool here =
        o->n_ahead && step >= s->s.f.step && step < o->made && agent_distill_sampled(&s->job, step);
    return here ? &o->ahead[step % o->n_ahead] : NULL;
}

// ---- checkpoints: | made u64 | for each step from the next one: bytes u32, request | -----------

enum neb_status distill_own_save(const struct agent_distill_side *s, struct intra_ckpt_writer *w) {
    struct neb_buf b = {0};
    if (!s->own.n_ahead)
        return NEB_OK;
    neb_buf_u64(&b, (uint64_t)s->own.made);
    for (int64_t step = s->s.f.step; step < s->own.made; step++) {
        const struct neb_buf *text = distill_own_text(s, step);
        neb_buf_u32(&b, text ? (uint32_t)text->len : 0);
        if (text)
            neb_buf_add(&b, text->p, text->len);
    }
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = intra_ckpt_add(w, "distill.texts", INTRA_BYTES, b.len, 1, b.p);
    neb_buf_free(&b);
    return st;
}

enum neb_status distill_own_restore(struct agent_distill_side *s, const struct intra_ckpt *c) {
    if (!s->own.n_ahead)
        return NEB_OK;
    const struct intra_ckpt_section *section = intra_ckpt_find(c, "distill.texts");
    const void *bytes = section ? intra_ckpt_data(c, section) : NULL;
    if (!bytes)
        return section ? NEB_ERR_IO : side_misfit(c);
    struct neb_rd r = neb_rd_make(bytes, section->bytes);
    s->own.made = neb_rd_i64(&r);
    if (s->own.made > due(s))
        return side_misfit(c);
    for (int64_t step = s->s.f.step; step < s->own.made && !r.bad; step++) {
        struct neb_buf *text = &s->own.ahead[step % s->own.n_ahead];
        uint32_t n = neb_rd_u32(&r);
        const uint8_t *p = neb_rd_view(&r, n);
        neb_buf_clear(text);
        if (p)
            neb_buf_add(text, p, n);
        NEB_TRY(neb_buf_check(text));
    }
    return neb_rd_done(&r) ? NEB_OK : side_misfit(c);
}
