// SPDX-License-Identifier: Apache-2.0
// The calls of an attached teacher: it takes the texts of its students, and puts labels.
#include "agent/base/fs.h"
#include "agent/base/plain.h"
#include "agent/lib/side.h"
#include "kernels/kern.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL_NAME_MAX = 255 };

// Of a window of text that is to be continued, the first half is the prompt.
static void halve(struct lib_side_text *t) {
    for (int32_t i = 0; i < t->sequences; i++)
        t->prefixes[i] = t->lengths[i] > 3 ? t->lengths[i] / 2 : 1;
    for (int32_t a = 0, i = t->rows = 0, n; i < t->sequences; a++, t->rows += n) {
        for (n = 0; i < t->micro_ends[a]; i++)
            n += t->lengths[i] - t->prefixes[i];
        t->micro_rows[a] = n;
    }
}

static enum neb_status read_request(struct nebula_side *s, const struct agent_stream *from,
                                    const uint8_t *p, size_t n) {
    const struct agent_job *j = lib_side_job(s);
    struct lib_side_text *t = &s->all[0];
    struct neb_rd r = neb_rd_make(p, n);
    NEB_TRY(agent_request_open(&r, (int64_t)from->next, j->steps));
    for (int32_t a = 0; a < j->accumulate; a++) {
        NEB_TRY(agent_request_next(s->tokens, &s->limits, &r, s->scratch, &s->batch));
        lib_side_take_micro(s, t, a);
    }
    t->id = agent_distill_text_id(p, n);
    if (j->distill.task == AGENT_TASK_TEXT && lib_side_writes(s, (int64_t)from->next))
        halve(t);
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "a student's request is too long");
}

// Text that got its labels before a restart is passed over. The agent then forgets it.
static enum neb_status pass_over(struct nebula_side *s) {
    for (int32_t i = 0; i < s->n_peers; i++) {
        struct lib_side_peer *p = &s->peers[i];
        const uint8_t *bytes;
        size_t n;
        if (p->labels->limit && p->labels->next < p->labels->stored)
            p->labels->next = p->labels->stored;
        if (p->requests->anywhere || !p->labels->limit)
            continue;
        if (p->requests->next > p->labels->next)
            return neb_fail(NEB_ERR_STATE,
                            "cluster %s has forgotten the text of step %llu, which has no labels",
                            lib_side_job(s)->clusters[p->cluster].name,
                            (unsigned long long)p->labels->next);
        while (p->requests->next < p->labels->next &&
               agent_stream_next(p->requests, &bytes, &n) == NEB_OK)
            NEB_TRY(agent_stream_applied(p->requests));
    }
    return NEB_OK;
}

// The student with text and room that is furthest behind; -1: none.
static int next_peer(const struct nebula_side *s) {
    int found = -1;
    for (int32_t i = 0; i < s->n_peers; i++) {
        const struct lib_side_peer *p = &s->peers[i];
        bool ready = !p->requests->anywhere && p->requests->next < p->requests->have &&
                     p->requests->next == p->labels->next && p->labels->next < p->labels->limit;
        if (ready && (found < 0 || p->labels->next < s->peers[found].labels->next))
            found = i;
    }
    return found;
}

bool lib_side_all_labelled(const struct nebula_side *s) {
    uint64_t steps = (uint64_t)lib_side_job(s)->steps;
    for (int32_t i = 0; i < s->n_peers; i++)
        if (s->peers[i].labels->next < steps && s->peers[i].labels->durable < steps)
            return false;
    return true;
}

enum neb_status lib_side_look_for_text(struct nebula_side *s) {
    const uint8_t *p;
    size_t n;
    NEB_TRY(pass_over(s));
    int i = next_peer(s);
    if (i < 0 || agent_stream_next(s->peers[i].requests, &p, &n) != NEB_OK)
        return NEB_OK;
    NEB_TRY(read_request(s, s->peers[i].requests, p, n));
    s->serves = i;
    s->answered = false;
    return NEB_OK;
}

static int check_row(const struct nebula_side *s, int64_t row, int32_t k, const int32_t *ids,
                     const float *logp, float *tail) {
    int32_t vocab = lib_side_job(s)->model.vocab;
    double sum = 0;
    for (int32_t j = 0; j < k; j++) {
        const char *what = isnan(logp[j])                  ? "is not a number"
                           : logp[j] > 0                   ? "is positive"
                           : j && logp[j] > logp[j - 1]    ? "is above the one before it"
                           : ids[j] < 0 || ids[j] >= vocab ? "has an id outside the vocabulary"
                                                           : NULL;
        for (int32_t i = 0; !what && i < j; i++)
            what = ids[i] == ids[j] ? "has an id that is twice in the row" : NULL;
        if (what)
            return lib_fail(NEBULA_ERR_INVALID,
                            "nebula_side_put: row %lld, label %d (id %d, log-probability %g) %s",
                            (long long)row, j, ids[j], (double)logp[j], what);
        sum += exp((double)logp[j]);
    }
    if (sum > 1.001)
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_side_put: the probabilities of row %lld sum to %g", (long long)row,
                        sum);
    *tail = sum < 1 ? (float)(1 - sum) : 0;
    return NEBULA_OK;
}

static int check_put(struct nebula_side *s, int64_t step, int32_t student, int64_t rows, int32_t k,
                     const int32_t *ids, const float *logp) {
    const struct lib_side_text *t = &s->all[0];
    int32_t most = agent_distill_k_max(&lib_side_job(s)->distill);
    if (!ids || !logp)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_put: ids or logprobs is NULL");
    if (s->serves < 0)
        return lib_fail(NEBULA_ERR_STATE, "nebula_side_put: no text is waiting for labels");
    const struct lib_side_peer *p = &s->peers[s->serves];
    if (step != (int64_t)p->labels->next || student != p->cluster)
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_side_put: labels of step %lld of cluster %d, but those of step "
                        "%llu of cluster %d are due",
                        (long long)step, student, (unsigned long long)p->labels->next, p->cluster);
    if (lib_side_writes(s, step) && !s->answered)
        return lib_fail(NEBULA_ERR_STATE,
                        "nebula_side_put: distill.source is teacher: call nebula_side_answer with "
                        "the text of step %lld first",
                        (long long)step);
    if (rows != t->rows)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_put: %lld rows, but the text has %d",
                        (long long)rows, t->rows);
    if (k < CMP_SOFT_K_MIN || k > most)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_put: k %d is not in 1..%d", k, most);
    for (int64_t i = 0; i < rows; i++) {
        int st = check_row(s, i, k, ids + i * k, logp + i * k, s->label_tail + i);
        if (st)
            return st;
    }
    return NEBULA_OK;
}

static enum neb_status teach(struct nebula_side *s, int32_t k, const int32_t *ids,
                             const float *logp) {
    const struct agent_job *j = lib_side_job(s);
    struct lib_side_peer *p = &s->peers[s->serves];
    const struct lib_side_text *t = &s->all[0];
    size_t row = 0;
    neb_buf_clear(&s->bytes);
    neb_buf_u64(&s->bytes, p->labels->next);
    if (agent_distill_names_text(j, (int64_t)p->labels->next))
        neb_buf_u64(&s->bytes, t->id);
    for (int32_t a = 0; a < j->accumulate; a++) {
        if (s->answered) {
            lib_side_lay_out(s, t, a);
            NEB_TRY(agent_request_add(s->tokens, &s->limits, &s->batch, s->scratch, &s->bytes));
        }
        struct cmp_soft_head h = {(uint32_t)t->micro_rows[a], k, j->model.vocab,
                                  j->distill.temperature};
        NEB_TRY(cmp_soft_encode(s->soft, &h, ids + row * (size_t)k, logp + row * (size_t)k,
                                s->label_tail + row, &s->bytes));
        row += (size_t)t->micro_rows[a];
    }
    bool stored;
    NEB_TRY(lib_side_put(s, p->labels, &stored));
    if (!stored) // the job was stopped: the text comes again
        return NEB_OK;
    s->serves = -1;
    s->rows += row;
    s->put_bytes += s->bytes.len;
    NEB_TRY(agent_stream_applied(p->requests));
    // labels on disk: nobody needs this text again
    NEB_TRY(agent_stream_saved(p->requests, p->requests->next, 1, true));
    s->n->x.step = -1; // made_step adds this one
    for (int32_t i = 0; i < s->n_peers; i++)
        s->n->x.step += (int64_t)s->peers[i].labels->next;
    const struct exchange_figures f = {0, 0, 0};
    exchange_made_step(&s->n->x, &f, (uint64_t)t->rows, 0);
    return NEB_OK;
}

static int check_answer(const struct nebula_side *s, const char *call, int64_t step,
                        int32_t sequences, const int32_t *lengths, const int32_t *ids) {
    const struct lib_side_text *t = &s->all[0];
    if (!lengths || !ids)
        return lib_fail(NEBULA_ERR_INVALID, "%s: lengths or ids is NULL", call);
    if (s->serves < 0 || s->answered || step != (int64_t)s->peers[s->serves].labels->next ||
        !lib_side_writes(s, step))
        return lib_fail(NEBULA_ERR_STATE, "%s: step %lld asks for no answers now", call,
                        (long long)step);
    if (sequences != t->sequences)
        return lib_fail(NEBULA_ERR_INVALID, "%s: %d answers to %d prompts", call, sequences,
                        t->sequences);
    for (int32_t i = 0; i < sequences; i++) {
        if (lengths[i] < 1)
            return lib_fail(NEBULA_ERR_INVALID, "%s: answer %d is empty", call, i);
        for (int32_t k = 0; k < lengths[i]; k++)
            if (ids[k] < 0 || ids[k] >= lib_side_job(s)->model.vocab)
                return lib_fail(NEBULA_ERR_INVALID,
                                "%s: answer %d has id %d, outside the vocabulary of %d", call, i,
                                ids[k], lib_side_job(s)->model.vocab);
        ids += lengths[i];
    }
    return NEBULA_OK;
}

// Replaces the targets of t by the answers, as far as their micro-batches have room.
static enum neb_status answer(struct nebula_side *s, const int32_t *lengths, const int32_t *ids) {
    struct lib_side_text *t = &s->all[0];
    size_t most = agent_request_ids(&s->limits) * (size_t)lib_side_job(s)->accumulate, to = 0,
           from = 0;
    int32_t *all = calloc(most, sizeof *all), first = 0;
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the answers of a step");
    t->rows = 0;
    for (int32_t a = 0; a < lib_side_job(s)->accumulate; a++) {
        int32_t fits = s->limits.tokens / (t->micro_ends[a] - first),
                room = (fits < s->limits.seq_len ? fits : s->limits.seq_len) + 1;
        t->micro_rows[a] = 0;
        for (int32_t i = first; i < t->micro_ends[a]; i++) {
            int32_t prefix = t->prefixes[i], n = room - prefix;
            n = n < *lengths ? n : *lengths;
            memcpy(all + to, t->ids + from, (size_t)prefix * sizeof *all);
            memcpy(all + to + prefix, ids, (size_t)n * sizeof *all);
            from += (size_t)t->lengths[i];
            ids += *lengths++;
            t->lengths[i] = prefix + n;
            to += (size_t)t->lengths[i];
            t->micro_rows[a] += n;
        }
        t->rows += t->micro_rows[a];
        first = t->micro_ends[a];
    }
    memcpy(t->ids, all, to * sizeof *all);
    free(all);
    s->answered = true;
    return NEB_OK;
}

int nebula_side_answer(struct nebula_side *s, int64_t step, int32_t sequences,
                       const int32_t *lengths, const int32_t *ids, struct nebula_text *out) {
    LIB_POINT;
    int st = lib_side_usable(s, "nebula_side_answer", true, false);
    if (!st && (!out || out->size != sizeof *out))
        st = lib_fail(NEBULA_ERR_INVALID, "nebula_side_answer: NULL, or the size is not set");
    if (!st)
        st = check_answer(s, "nebula_side_answer", step, sequences, lengths, ids);
    if (!st)
        st = lib_pass(answer(s, lengths, ids));
    if (!st)
        lib_side_give_text(s, &s->all[0], out);
    return st;
}

int nebula_side_put(struct nebula_side *s, int64_t step, int32_t student, int64_t rows, int32_t k,
                    const int32_t *ids, const float *logprobs) {
    LIB_POINT;
    int st = lib_side_usable(s, "nebula_side_put", true, false);
    if (!st)
        st = check_put(s, step, student, rows, k, ids, logprobs);
    return st ? st : lib_side_end_call(s, teach(s, k, ids, logprobs));
}

// The name in the job's folder; without one, `model` is written there.
static enum neb_status kept_model(struct nebula_side *s, const char *model, struct neb_buf *kept) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, s->n->x.dir, "teacher"));
    if (neb_fs_exists(path))
        NEB_TRY(neb_fs_read(path, MODEL_NAME_MAX, kept));
    else
        NEB_TRY(neb_fs_write(path, model, strlen(model), 0600));
    return NEB_OK;
}

int nebula_side_model(struct nebula_side *s, const char *model) {
    LIB_POINT;
    char text[3 * MODEL_NAME_MAX];
    struct neb_buf kept = {0};
    int st = lib_side_usable(s, "nebula_side_model", true, false);
    if (st)
        return st;
    size_t n = model ? strlen(model) : 0;
    if (n < 1 || n > MODEL_NAME_MAX || !neb_is_plain(model))
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_side_model: the name must have 1 to %d bytes "
                        "of UTF-8 without control characters",
                        MODEL_NAME_MAX);
    enum neb_status read = kept_model(s, model, &kept);
    bool differs = read == NEB_OK && kept.len && (kept.len != n || memcmp(kept.p, model, n) != 0);
    if (differs)
        snprintf(text, sizeof text,
                 "the labels of this job came from the model \"%.*s\", and "
                 "would now come from \"%s\": labels of two models must not mix",
                 (int)kept.len, (const char *)kept.p, model);
    neb_buf_free(&kept);
    if (!differs)
        return lib_pass(read);
    read = lib_side_end_job(s, text);
    return read == NEB_OK ? lib_fail(NEBULA_ERR_INVALID, "nebula_side_model: %s", text)
                          : lib_pass(read);
}

int nebula_side_mapped(struct nebula_side *s, int64_t rows) {
    LIB_POINT;
    int st = lib_side_usable(s, "nebula_side_mapped", true, false);
    if (st)
        return st;
    if (lib_side_job(s)->distill.align != AGENT_ALIGN_TEXT)
        return lib_fail(NEBULA_ERR_STATE, "nebula_side_mapped: a teacher with another vocabulary "
                                          "needs distill.align: text");
    if (rows < 0 || (uint64_t)rows + s->mapped > s->rows)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_mapped: %lld rows of %llu",
                        (long long)rows, (unsigned long long)s->rows);
    s->mapped += (uint64_t)rows;
    return NEBULA_OK;
}
