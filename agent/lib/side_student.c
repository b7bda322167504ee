// SPDX-License-Identifier: Apache-2.0
// The calls of an attached student: it asks for labels of its text, and learns from them.
#include "agent/lib/side.h"
#include "kernels/kern.h"

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

// Lays sequences [from, to) of t, whose ids begin at `ids`, out as a micro-batch.
static const int32_t *lay_out(struct nebula_side *s, const struct lib_side_text *t, int64_t from,
                              int64_t to, const int32_t *ids) {
    struct intra_pair_batch *b = &s->batch;
    b->B = (int32_t)(to - from);
    b->T = 0;
    b->n_targets = 0;
    for (int64_t i = from; i < to; i++)
        b->T = t->lengths[i] - 1 > b->T ? t->lengths[i] - 1 : b->T;
    for (int64_t i = from; i < to; ids += t->lengths[i++]) {
        size_t row = (size_t)(i - from) * (size_t)b->T;
        int32_t n = t->lengths[i], prefix = t->prefixes[i];
        b->prefix[i - from] = prefix;
        b->n_targets += n - prefix;
        for (int32_t k = 0; k < b->T; k++) {
            b->tokens[row + (size_t)k] = k < n - 1 ? ids[k] : 0;
            b->targets[row + (size_t)k] = k >= prefix - 1 && k < n - 1 ? ids[k + 1] : KERN_IGNORE;
        }
    }
    return ids;
}

static enum neb_status ask(struct nebula_side *s, int32_t sequences, const int32_t *lengths,
                           const int32_t *prefixes, const int32_t *ids) {
    const struct agent_job *j = lib_side_job(s);
    struct agent_stream *to = s->peers[0].requests;
    struct lib_side_text *t = &s->all[to->next % (uint64_t)s->n_all];
    size_t n_ids = 0;
    t->sequences = sequences;
    t->rows = 0;
    memcpy(t->lengths, lengths, (size_t)sequences * sizeof *lengths);
    memcpy(t->prefixes, prefixes, (size_t)sequences * sizeof *prefixes);
    for (int32_t i = 0; i < sequences; i++)
        n_ids += (size_t)lengths[i];
    memcpy(t->ids, ids, n_ids * sizeof *ids);
    neb_buf_clear(&s->bytes);
    agent_request_begin((int64_t)to->next, &s->bytes);
    for (int32_t a = 0; a < j->accumulate; a++) {
        ids = lay_out(s, t, (int64_t)sequences * a / j->accumulate,
                      (int64_t)sequences * (a + 1) / j->accumulate, ids);
        t->micro_rows[a] = (int32_t)s->batch.n_targets;
        t->rows += t->micro_rows[a];
        NEB_TRY(agent_request_add(s->tokens, &s->limits, &s->batch, s->scratch, &s->bytes));
    }
    if (to->next < to->stored) { // asked before a restart
        to->next++;
        return NEB_OK;
    }
    bool stored; // false: the job was stopped
    return lib_side_put(s, to, &stored);
}

int nebula_side_ask(struct nebula_side *s, int32_t sequences, const int32_t *lengths,
                    const int32_t *prefixes, const int32_t *ids) {
    LIB_POINT;
    int st = lib_side_usable(s, "nebula_side_ask", false, false);
    if (!st)
        st = check_ask(s, sequences, lengths, prefixes, ids);
    if (st)
        return st;
    struct agent_stream *to = s->peers[0].requests;
    while (!to->limit && !s->n->x.stop) { // its agent has not answered yet
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

enum neb_status lib_side_read_labels(struct nebula_side *s, const uint8_t *p, size_t n,
                                     int32_t *k) {
    const struct agent_job *j = lib_side_job(s);
    const struct lib_side_text *t = &s->all[s->step % s->n_all];
    struct neb_rd r = neb_rd_make(p, n);
    uint64_t step = neb_rd_u64(&r);
    size_t row = 0;
    *k = 0;
    if (r.bad || step != (uint64_t)s->step)
        return neb_fail(NEB_ERR_FORMAT, "labels of step %llu have come, but those of %lld are due",
                        (unsigned long long)step, (long long)s->step);
    for (int32_t a = 0; a < j->accumulate; a++) {
        struct cmp_soft_head h = {.rows = (uint32_t)t->micro_rows[a], .vocab = j->model.vocab};
        size_t at = row * (size_t)(*k ? *k : 1);
        NEB_TRY(cmp_soft_decode(s->soft, &r, &h, s->label_ids + at, s->label_logp + at,
                                s->label_tail + row));
        if (h.temperature != j->distill.temperature || (*k && h.k != *k))
            return neb_fail(NEB_ERR_FORMAT,
                            "labels have temperature %g and k %d, but %g and %d are due",
                            (double)h.temperature, h.k, (double)j->distill.temperature, *k);
        *k = h.k;
        row += (size_t)t->micro_rows[a];
    }
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "labels are too long");
}

static enum neb_status learned(struct nebula_side *s, double loss, uint64_t tokens) {
    struct agent_exchange *x = &s->n->x;
    const struct lib_side_text *t = &s->all[s->step % s->n_all];
    const struct exchange_figures f = {loss, 0, NAN};
    s->rows += (uint64_t)t->rows;
    NEB_TRY(agent_stream_applied(s->peers[0].labels));
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
    struct agent_stream *l = s->peers[0].labels;
    l->want_checkpoint = false;
    return lib_side_end_call(s, agent_stream_saved(l, (uint64_t)s->step, 1, true));
}
