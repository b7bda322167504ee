// SPDX-License-Identifier: Apache-2.0
// The discriminator: decodes batches, and trains to detect replaced tokens.
#include "agent/base/fault.h"
#include "agent/train/rtd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct received { // a decoded batch
    uint8_t flags;
    uint32_t windows, replaced, masked;
    uint32_t next;    // next replacement
    int64_t exchange; // number of the exchange of embeddings, if `shares`
    bool shares;
};

// Masked positions follow from the text, so the text is decoded first, wherever it is in the batch.
static uint32_t mask_all(struct agent_rtd_side *s, int32_t windows) {
    int32_t total = windows * s->job.seq_len, k = 0;
    for (int32_t from = 0, a = 0; from < total; from += s->micro, a++) {
        int32_t n = total - from < s->micro ? total - from : s->micro,
                m = rtd_mask(s, s->tokens + from, n, a);
        for (int32_t i = 0; i < m; i++)
            s->masked_at[k++] = from + s->positions[i];
    }
    return (uint32_t)k;
}

static enum neb_status take_apart(struct agent_rtd_side *s, const uint8_t *p, size_t n,
                                  struct received *b) {
    struct neb_rd r = neb_rd_make(p, n);
    bool eval = s->s.event >= s->events, text = s->job.rtd.push_text;
    b->flags = neb_rd_u8(&r);
    b->windows = neb_rd_u32(&r);
    b->shares = rtd_shares(s, s->s.event, &b->exchange);
    uint32_t most = (uint32_t)(eval ? s->job.batch : s->job.batch * s->job.accumulate);
    if (r.bad || b->flags & ~(FLAG_EVAL | FLAG_LAST | FLAG_TEXT | FLAG_SHARE) ||
        !(b->flags & FLAG_SHARE) != !b->shares || !(b->flags & FLAG_EVAL) != !eval ||
        !(b->flags & FLAG_TEXT) != !text || (b->flags & FLAG_LAST && !eval) || b->windows > most ||
        (!eval && b->windows != most))
        return neb_fail(NEB_ERR_FORMAT,
                        "batch %llu: flags %u and %u windows do not fit event %lld of this job",
                        (unsigned long long)s->s.seq, b->flags, b->windows, (long long)s->s.event);
    if (b->shares) {
        uint32_t bytes = neb_rd_u32(&r);
        const uint8_t *frame = bytes <= neb_rd_left(&r) ? neb_rd_view(&r, bytes) : NULL;
        if (r.bad || !frame)
            return neb_fail(NEB_ERR_FORMAT, "batch %llu: rows of embeddings are cut short",
                            (unsigned long long)s->s.seq);
        NEB_TRY(intra_group_pull(s->group, s->embedding)); // the rows that they are compared with
        NEB_TRY(rtd_share_take(s->share, b->exchange, frame, bytes));
    }
    if (!text) {
        if (rtd_draw(s) != (int32_t)b->windows)
            return neb_fail(
                NEB_ERR_FORMAT,
                "batch %llu: %u windows of held-out text, but this side has another number",
                (unsigned long long)s->s.seq, b->windows);
        b->masked = mask_all(s, (int32_t)b->windows);
    } else { // the text comes after the replacements, whose decoder needs the masked positions
        struct neb_rd ahead = r;
        NEB_TRY(cmp_replaced_skip(&ahead, s->vocab));
        NEB_TRY(cmp_text_decode(s->wire, &ahead, s->vocab, s->tokens,
                                b->windows * (uint32_t)s->job.seq_len));
        if (!neb_rd_done(&ahead))
            return neb_fail(NEB_ERR_FORMAT, "batch %llu has %zu bytes too many",
                            (unsigned long long)s->s.seq, neb_rd_left(&ahead));
        b->masked = mask_all(s, (int32_t)b->windows);
    }
    NEB_TRY(cmp_replaced_decode(s->wire, &r, b->masked, s->vocab, s->index, s->ids, &b->replaced));
    return text || neb_rd_done(&r) ? NEB_OK
                                   : neb_fail(NEB_ERR_FORMAT, "batch %llu has %zu bytes too many",
                                              (unsigned long long)s->s.seq, neb_rd_left(&r));
}

// Makes inputs and labels of the micro-batch at `from`.
static void put_in(struct agent_rtd_side *s, struct received *b, int32_t from, int32_t n) {
    int32_t k = 0;
    for (; b->next + (uint32_t)k < b->replaced; k++) {
        int32_t at = s->masked_at[s->index[b->next + (uint32_t)k]] - from;
        if (at >= n)
            break;
        s->positions[k] = at; // strictly increasing: at most n of them
    }
    intra_rtd_apply(s->tokens + from, n, s->positions, s->ids + b->next, k, s->inputs, s->targets);
    b->next += (uint32_t)k;
}

// Room for n more scores of held-out positions, and their labels.
static enum neb_status scores_room(struct agent_rtd_side *s, int32_t n) {
    if (s->n_scores + (size_t)n <= s->cap_scores)
        return NEB_OK;
    size_t cap = 2 * s->cap_scores + (size_t)n;
    float *p = realloc(s->scores, cap * sizeof *p);
    s->scores = p ? p : s->scores;
    int32_t *q = p ? realloc(s->labels, cap * sizeof *q) : NULL;
    s->labels = q ? q : s->labels;
    if (!p || !q)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for scores of held-out text");
    s->cap_scores = cap;
    return NEB_OK;
}

static void keep_scores(struct agent_rtd_side *s, int32_t n) {
    const float *z = s->scores + s->n_scores;
    memcpy(s->labels + s->n_scores, s->targets, (size_t)n * sizeof *s->labels);
    for (int32_t i = 0; i < n; i++)
        s->eval_right += (z[i] > 0) == (s->targets[i] == 1);
    s->n_scores += (size_t)n;
}

static enum neb_status consume_eval(struct agent_rtd_side *s, struct received *b) {
    int32_t n = (int32_t)b->windows * s->job.seq_len;
    double loss = 0;
    int64_t count = 0;
    rtd_eval_begin(s);
    (void)neb_fault("worker.eval"); // a batch that takes longer
    if (n) {
        struct intra_batch batch = {
            .tokens = s->inputs, .targets = s->targets, .B = (int)b->windows, .T = s->job.seq_len};
        put_in(s, b, 0, n);
        NEB_TRY(scores_room(s, n));
        struct intra_picks p = {.kind = INTRA_PICK_SCORES, .n = n, .logp = s->scores + s->n_scores};
        intra_group_pass(s->group, &batch, &p);
        NEB_TRY(intra_group_passed(s->group, &loss, &count));
        keep_scores(s, n);
    }
    s->eval_sum += loss;
    s->eval_count += count;
    if (b->flags & FLAG_LAST)
        rtd_eval_end(s, intra_rtd_auc(s->scores, s->labels, s->n_scores));
    return NEB_OK;
}

static enum neb_status consume_training(struct agent_rtd_side *s, struct received *b,
                                        size_t bytes) {
    for (int32_t a = 0; a < s->job.accumulate; a++) {
        put_in(s, b, a * s->micro, s->micro);
        intra_group_micro(s->group, s->inputs, s->targets);
    }
    NEB_TRY(rtd_took_step(s));
    if (b->shares) {
        NEB_TRY(intra_group_pull(s->group, s->embedding));
        NEB_TRY(rtd_share_send(s->share, b->exchange));
        rtd_share_merge(s->share, b->exchange);
        NEB_TRY(intra_group_push(s->group, s->embedding));
        s->reply = true;
    }
    rtd_count_batch(s, bytes, b->masked, b->replaced);
    return NEB_OK;
}

enum neb_status agent_rtd_consume(struct agent_rtd_side *s, const uint8_t *p, size_t n) {
    struct received b = {0};
    NEB_ASSERT(s->role == AGENT_ROLE_DISCRIMINATOR && !s->s.done);
    neb_ns start = neb_now();
    for (; s->s.event < s->events && !rtd_emits(s, s->s.event); s->s.event++)
        if (!s->job.rtd.push_text)
            rtd_draw(s); // only the generator trained on these
    NEB_TRY(take_apart(s, p, n, &b));
    NEB_TRY(s->s.event >= s->events ? consume_eval(s, &b) : consume_training(s, &b, n));
    rtd_event_over(s, true, start);
    return NEB_OK;
}

const struct neb_buf *agent_rtd_reply(struct agent_rtd_side *s) {
    bool reply = s->reply;
    s->reply = false;
    return reply ? &s->share->frame : NULL;
}

// ---- the role -----------------------------------------------------------------------------------

static enum neb_status take(struct agent_side *x, struct side_turn *t) {
    side_take(((struct agent_rtd_side *)x->own)->batches, t);
    return NEB_OK;
}

static enum neb_status learn(struct agent_side *x, struct side_turn *t) {
    struct agent_rtd_side *s = x->own;
    bool trained = agent_rtd_trained(s);
    int64_t steps = s->s.f.step;
    NEB_TRY(agent_rtd_consume(s, t->p, t->n));
    const struct neb_buf *reply = agent_rtd_reply(s);
    if (reply) {
        neb_buf_clear(&x->made);
        neb_buf_add(&x->made, reply->p, reply->len);
        NEB_TRY(neb_buf_check(&x->made));
        t->to = s->back; // at most one reply is in flight, so there is soon room
    }
    t->stepped = s->s.f.step != steps;
    t->save = rtd_when_to_save(x, trained);
    return NEB_OK;
}

const struct side_role side_discriminator = {RTD_ROLE_OPS,
                                             .is = AGENT_ROLE_DISCRIMINATOR,
                                             .file = "discriminator.ckpt",
                                             .reports_as = "discriminator",
                                             .take = take,
                                             .learn = learn};
