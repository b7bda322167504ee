// SPDX-License-Identifier: Apache-2.0
// The calls of an attached student: it asks for labels of its text, and learns from them.
#include "agent/lib/side.h"

#include <math.h>
#include <string.h>

static int check_ask(const struct nebula_side *s, int32_t sequences, const int32_t *lengths,
                     const int32_t *prefixes, const int32_t *ids) {
    const struct agent_job *j = lib_side_job(s);
    size_t at = 0;
    if (!lengths || !prefixes || !ids || sequences < j->accumulate)
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_side_ask: %d sequences; the job has %d micro-batches", sequences,
                        j->accumulate);
    for (int32_t a = 0; a < j->accumulate; a++) {
        int64_t from = (int64_t)sequences * a / j->accumulate,
                to = (int64_t)sequences * (a + 1) / j->accumulate, T = 0;
        for (int64_t i = from; i < to; i++) {
            if (lengths[i] > j->seq_len + 1 || prefixes[i] < 1 || prefixes[i] >= lengths[i])
                return lib_fail(NEBULA_ERR_INVALID,
                                "nebula_side_ask: sequence %lld has %d ids, %d of them given; a "
                                "sequence has at most %d, at least one given and one target",
                                (long long)i, lengths[i], prefixes[i], j->seq_len + 1);
            for (int32_t k = 0; k < lengths[i]; k++, at++)
                if (ids[at] < 0 || ids[at] >= j->model.vocab)
                    return lib_fail(NEBULA_ERR_INVALID,
                                    "nebula_side_ask: sequence %lld has id %d, outside the "
                                    "vocabulary of %d",
                                    (long long)i, ids[at], j->model.vocab);
            T = lengths[i] - 1 > T ? lengths[i] - 1 : T;
        }
        if ((to - from) * T > s->limits.tokens ||
            to - from > s->limits.tokens / INTRA_PAIRS_SEQ_MIN)
            return lib_fail(NEBULA_ERR_INVALID,
                            "nebula_side_ask: micro-batch %d has %lld sequences of up to %lld "
                            "tokens; data.batch x data.seq_len allow %d tokens, and %d sequences",
                            a, (long long)(to - from), (long long)T, s->limits.tokens,
                            s->limits.tokens / INTRA_PAIRS_SEQ_MIN);
    }
    return NEBULA_OK;
}

static void keep_text(struct nebula_side *s, struct lib_side_text *t, int32_t sequences,
                      const int32_t *lengths, const int32_t *prefixes, const int32_t *ids) {
    int32_t micros = lib_side_job(s)->accumulate;
    size_t n_ids = 0;
    t->sequences = sequences;
    t->rows = 0;
    memcpy(t->lengths, lengths, (size_t)sequences * sizeof *lengths);
    memcpy(t->prefixes, prefixes, (size_t)sequences * sizeof *prefixes);
    for (int32_t i = 0; i < sequences; i++)
        n_ids += (size_t)lengths[i];
    memcpy(t->ids, ids, n_ids * sizeof *ids);
    for (int32_t a = 0; a < micros; a++)
        t->micro_ends[a] = (int32_t)((int64_t)sequences * (a + 1) / micros);
}

static enum neb_status ask(struct nebula_side *s, int32_t sequences, const int32_t *lengths,
                           const int32_t *prefixes, const int32_t *ids) {
    uint64_t step = s->peers[0].requests->next;
    struct lib_side_text *t = &s->all[step % (uint64_t)s->n_all];
    keep_text(s, t, sequences, lengths, prefixes, ids);
    neb_buf_clear(&s->bytes);
    agent_request_begin((int64_t)step, &s->bytes);
    for (int32_t a = 0; a < lib_side_job(s)->accumulate; a++) {
        lib_side_lay_out(s, t, a);
        t->micro_rows[a] = (int32_t)s->batch.n_targets;
        t->rows += t->micro_rows[a];
        NEB_TRY(agent_request_add(s->tokens, &s->limits, &s->batch, s->scratch, &s->bytes));
    }
    t->id = agent_distill_text_id(s->bytes.p, s->bytes.len);
    for (int32_t i = 0; i < s->n_peers; i++) {
        struct agent_stream *to = s->peers[i].requests;
        bool stored; // false: the job was stopped
        if (to->next > step)
            continue;
        if (to->next < to->stored) // asked before a restart
            to->next++;
        else
            NEB_TRY(lib_side_put(s, to, &stored));
    }
    return NEB_OK;
}

int nebula_side_ask(struct nebula_side *s, int32_t sequences, const int32_t *lengths,
                    const int32_t *prefixes, const int32_t *ids) {
    LIB_POINT;
    int st = lib_side_usable(s, "nebula_side_ask", false, false);
    if (!st)
        st = check_ask(s, sequences, lengths, prefixes, ids);
    if (st)
        return st;
    const struct agent_stream *to = s->peers[0].requests;
    for (int32_t i = 0; i < s->n_peers; i++)
        while (!s->peers[i].requests->limit && !s->n->x.stop) { // its agent has not answered yet
            enum neb_status waited = lib_side_wait(s);
            if (waited != NEB_OK)
                return lib_side_end_call(s, waited);
        }
    if (to->next >= (uint64_t)lib_side_job(s)->steps)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_ask: all %lld steps were asked for",
                        (long long)lib_side_job(s)->steps);
    if (to->next >= (uint64_t)s->step + (uint64_t)lib_side_job(s)->distill.ahead)
        return lib_fail(NEBULA_ERR_STATE,
                        "nebula_side_ask: step %llu is more than distill.ahead %d steps after the "
                        "last one that was learned: learn first",
                        (unsigned long long)to->next, lib_side_job(s)->distill.ahead);
    return lib_side_end_call(s, ask(s, sequences, lengths, prefixes, ids));
}

// Reads the labels of teacher i (n bytes) for the text t of the step that is due. With
// distill.source: teacher they have the text too. out->k 0: they belong to another text.
static enum neb_status read_labels(struct nebula_side *s, int32_t i, const uint8_t *p, size_t n,
                                   struct lib_side_text *t, struct cmp_soft_rows *out) {
    const struct agent_job *j = lib_side_job(s);
    struct neb_rd r = neb_rd_make(p, n);
    uint64_t step = neb_rd_u64(&r);
    bool theirs = j->distill.source == AGENT_TEXT_TEACHER && agent_distill_sampled(j, s->step),
         named = agent_distill_names_text(j, s->step);
    size_t row = (size_t)i * (size_t)s->limits.tokens * (size_t)j->accumulate,
           wide = row * CMP_SOFT_K_MAX, done = 0;
    int32_t *ids = s->label_ids + wide;
    float *logp = s->label_logp + wide, *tail = s->label_tail + row;
    *out = (struct cmp_soft_rows){.ids = ids, .logp = logp, .tail = tail};
    if (r.bad || step != (uint64_t)s->step)
        return neb_fail(NEB_ERR_FORMAT, "labels of step %llu have come, but those of %lld are due",
                        (unsigned long long)step, (long long)s->step);
    if (named && neb_rd_u64(&r) != t->id)
        return NEB_OK;
    for (int32_t a = 0; a < j->accumulate; a++) {
        if (theirs) {
            NEB_TRY(agent_request_next(s->tokens, &s->limits, &r, s->scratch, &s->batch));
            lib_side_take_micro(s, t, a);
        }
        struct cmp_soft_head h = {.rows = (uint32_t)t->micro_rows[a], .vocab = j->model.vocab};
        size_t at = done * (size_t)out->k;
        NEB_TRY(cmp_soft_decode(s->soft, &r, &h, ids + at, logp + at, tail + done));
        if (h.temperature != j->distill.temperature || (out->k && h.k != out->k))
            return neb_fail(NEB_ERR_FORMAT,
                            "labels have temperature %g and k %d, but %g and %d are due",
                            (double)h.temperature, h.k, (double)j->distill.temperature, out->k);
        out->k = h.k;
        out->weight = agent_distill_weight(j, s->peers[i].cluster);
        done += (size_t)t->micro_rows[a];
    }
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "labels are too long");
}

// Mixes the labels of n teachers into the place after theirs.
static void mix(struct nebula_side *s, const struct cmp_soft_rows *all, int32_t n, uint32_t rows) {
    size_t row =
               (size_t)s->n_peers * (size_t)s->limits.tokens * (size_t)lib_side_job(s)->accumulate,
           wide = row * CMP_SOFT_K_MAX;
    s->labels = (struct cmp_soft_rows){
        .ids = s->label_ids + wide, .logp = s->label_logp + wide, .tail = s->label_tail + row};
    s->labels.k =
        cmp_soft_mix(all, n, rows, s->label_ids + wide, s->label_logp + wide, s->label_tail + row);
}

enum neb_status lib_side_look_for_labels(struct nebula_side *s, bool *here) {
    struct lib_side_text *t = &s->all[s->step % s->n_all];
    struct cmp_soft_rows all[AGENT_CLUSTERS_MAX];
    const uint8_t *p[AGENT_CLUSTERS_MAX];
    size_t n[AGENT_CLUSTERS_MAX];
    int32_t fit = 0;
    *here = true;
    for (int32_t i = 0; i < s->n_peers; i++)
        *here &= agent_stream_next(s->peers[i].labels, &p[i], &n[i]) == NEB_OK;
    if (!*here || s->learning)
        return NEB_OK;
    for (int32_t i = 0; i < s->n_peers; i++) {
        NEB_TRY(read_labels(s, i, p[i], n[i], t, &all[fit]));
        fit += all[fit].k > 0;
        s->put_bytes += n[i];
    }
    s->labels = fit ? all[0] : (struct cmp_soft_rows){0};
    if (fit > 1)
        mix(s, all, fit, (uint32_t)t->rows);
    return NEB_OK;
}

static enum neb_status learned(struct nebula_side *s, double loss, uint64_t tokens) {
    struct agent_exchange *x = &s->n->x;
    const struct lib_side_text *t = &s->all[s->step % s->n_all];
    const struct exchange_figures f = {loss, 0, NAN};
    s->rows += (uint64_t)t->rows;
    for (int32_t i = 0; i < s->n_peers; i++)
        NEB_TRY(agent_stream_applied(s->peers[i].labels));
    intra_loss_add(&x->loss_first, &x->loss_last, loss);
    exchange_made_step(x, &f, tokens, neb_seconds(neb_now() - s->n->step_end));
    s->step++;
    s->learning = false;
    return exchange_drain(x);
}

int nebula_side_learned(struct nebula_side *s, double loss, uint64_t tokens, int *state) {
    LIB_POINT;
    int st = lib_side_usable(s, "nebula_side_learned", false, false);
    if (st)
        return st;
    if (!s->learning)
        return lib_fail(NEBULA_ERR_STATE, "nebula_side_learned: call nebula_side_next first");
    st = lib_side_end_call(s, learned(s, loss, tokens));
    *state = s->n->state = lib_side_state(s);
    return st;
}

int nebula_side_saved(struct nebula_side *s) {
    LIB_POINT;
    int st = lib_side_usable(s, "nebula_side_saved", false, false);
    if (st)
        return st;
    enum neb_status saved = NEB_OK;
    for (int32_t i = 0; i < s->n_peers && saved == NEB_OK; i++) {
        s->peers[i].labels->want_checkpoint = false;
        saved = agent_stream_saved(s->peers[i].labels, (uint64_t)s->step, 1, true);
    }
    return lib_side_end_call(s, saved);
}
