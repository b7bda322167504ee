// SPDX-License-Identifier: Apache-2.0
// The generator: trains on masked text, and samples the tokens that replace the masks.
#include "agent/train/rtd.h"

#include <math.h>
#include <string.h>

struct made { // of the event so far
    uint32_t masked, replaced;
};

// Masks micro-batch a, and gives it to the model; asks for draws if a batch is wanted.
static void mask(struct agent_rtd_side *s, const int32_t *tokens, int32_t windows, int32_t a,
                 bool learn, bool wanted, struct made *m) {
    int32_t n = windows * s->job.seq_len, k = rtd_mask(s, tokens, n, a);
    struct intra_batch b = {
        .tokens = s->inputs, .targets = s->targets, .B = windows, .T = s->job.seq_len};
    struct intra_picks *p = &s->picks[a];
    intra_mask_apply(tokens, n, s->positions, k, s->vocab, s->inputs, s->targets);
    memcpy(s->masked_at + m->masked, s->positions, (size_t)k * sizeof *s->positions);
    *p = (struct intra_picks){.kind = INTRA_PICK_DRAWS,
                              .n = k,
                              .at = s->masked_at + m->masked,
                              .n_ids = s->vocab,
                              .u = s->u + m->masked,
                              .ids = s->drawn + m->masked};
    if (wanted)
        intra_mask_draws(rtd_seed(s, SEED_SAMPLE), rtd_stream(s, a), k, s->u + m->masked);
    m->masked += (uint32_t)k;
    if (!learn) {
        intra_group_pass(s->group, &b, wanted ? p : NULL);
        return;
    }
    intra_group_micro_batch(s->group, &b, wanted ? p : NULL);
    intra_trainer_count(intra_group_trainer(s->group), s->inputs, s->targets, n);
}

// The draws are here: lists those that differ from the text.
static void compare(struct agent_rtd_side *s, int32_t micros, struct made *m) {
    int32_t i = 0;
    for (int32_t a = 0; a < micros; a++)
        for (int32_t k = 0; k < s->picks[a].n; k++, i++)
            if (s->drawn[i] != s->tokens[a * s->micro + s->masked_at[i]]) {
                s->index[m->replaced] = i;
                s->ids[m->replaced++] = s->drawn[i];
            }
}

// Ends passes without learning.
static enum neb_status passed(struct agent_rtd_side *s) {
    double loss;
    int64_t count;
    NEB_TRY(intra_group_passed(s->group, &loss, &count));
    s->eval_sum += loss;
    s->eval_count += count;
    return NEB_OK;
}

static enum neb_status encode(struct agent_rtd_side *s, uint8_t flags, int32_t windows,
                              const struct made *m, struct neb_buf *out) {
    neb_buf_clear(out);
    neb_buf_u8(out, (uint8_t)(flags | (s->job.rtd.push_text ? FLAG_TEXT : 0)));
    neb_buf_u32(out, (uint32_t)windows);
    if (flags & FLAG_SHARE) {
        neb_buf_u32(out, (uint32_t)s->share->frame.len);
        neb_buf_add(out, s->share->frame.p, s->share->frame.len);
    }
    NEB_TRY(cmp_replaced_encode(s->wire, m->masked, s->index, s->ids, m->replaced, s->vocab, out));
    return s->job.rtd.push_text
               ? cmp_text_encode(s->wire, s->tokens, (uint32_t)windows * (uint32_t)s->job.seq_len,
                                 s->vocab, out)
               : NEB_OK;
}

static enum neb_status produce_eval(struct agent_rtd_side *s, struct neb_buf *batch) {
    struct made m = {0};
    bool last = s->s.event + 1 >= s->events + s->eval_batches;
    rtd_eval_begin(s);
    int32_t windows = rtd_draw(s);
    if (windows) {
        mask(s, s->tokens, windows, 0, false, true, &m);
        NEB_TRY(passed(s));
        compare(s, 1, &m);
    }
    // a sampled token that equals the text counts as accurate
    s->eval_right += (int64_t)m.masked - (int64_t)m.replaced;
    NEB_TRY(encode(s, (uint8_t)(FLAG_EVAL | (last ? FLAG_LAST : 0)), windows, &m, batch));
    if (last)
        rtd_eval_end(s, NAN);
    return NEB_OK;
}

bool agent_rtd_awaits(const struct agent_rtd_side *s) {
    const struct rtd_share *x = s->share;
    return x && x->pending >= 0 && !x->answered && s->s.event < s->events &&
           s->s.event == (x->pending + 1) * s->job.rtd.share_embeddings;
}

enum neb_status agent_rtd_answer(struct agent_rtd_side *s, const uint8_t *p, size_t n) {
    // our rows, with which they are compared
    NEB_TRY(intra_group_pull(s->group, s->embedding));
    return rtd_share_take(s->share, s->share->pending, p, n);
}

// Applies the previous exchange to this side's rows.
static enum neb_status merge_rows(struct agent_rtd_side *s) {
    NEB_TRY(intra_group_pull(s->group, s->embedding));
    rtd_share_merge(s->share, s->share->pending);
    s->share->pending = -1;
    return intra_group_push(s->group, s->embedding);
}

static enum neb_status produce_training(struct agent_rtd_side *s, struct neb_buf *batch,
                                        bool emit) {
    struct made m = {0};
    bool learn = rtd_trains(s, s->s.event);
    int64_t x;
    bool shares = rtd_shares(s, s->s.event, &x);
    if (s->share && s->share->answered)
        NEB_TRY(merge_rows(s));
    rtd_draw(s);
    for (int32_t a = 0; a < s->job.accumulate; a++)
        mask(s, s->tokens + (size_t)a * s->micro, s->job.batch, a, learn, emit, &m);
    NEB_TRY(learn ? rtd_took_step(s) : passed(s));
    if (emit)
        compare(s, s->job.accumulate, &m);
    if (shares) {
        NEB_TRY(intra_group_pull(s->group, s->embedding));
        NEB_TRY(rtd_share_send(s->share, x));
        s->share->pending = x;
    }
    if (!emit)
        return NEB_OK;
    NEB_TRY(encode(s, shares ? FLAG_SHARE : 0, s->job.batch * s->job.accumulate, &m, batch));
    rtd_count_batch(s, batch->len, m.masked, m.replaced);
    return NEB_OK;
}

enum neb_status agent_rtd_produce(struct agent_rtd_side *s, struct neb_buf *batch, bool *made) {
    NEB_ASSERT(s->role == AGENT_ROLE_GENERATOR && !s->s.done);
    neb_ns start = neb_now();
    bool eval = s->s.event >= s->events;
    *made = eval || rtd_emits(s, s->s.event);
    NEB_TRY(eval ? produce_eval(s, batch) : produce_training(s, batch, *made));
    rtd_event_over(s, *made, start);
    return NEB_OK;
}

// ---- the role -----------------------------------------------------------------------------------

static enum neb_status take(struct agent_side *x, struct side_turn *t) {
    struct agent_rtd_side *s = x->own;
    if (agent_rtd_awaits(s))
        side_take(s->back, t);
    return NEB_OK;
}

static enum neb_status learn(struct agent_side *x, struct side_turn *t) {
    struct agent_rtd_side *s = x->own;
    bool made, trained = agent_rtd_trained(s);
    int64_t steps = s->s.f.step;
    if (t->from)
        NEB_TRY(agent_rtd_answer(s, t->p, t->n));
    NEB_TRY(agent_rtd_produce(s, &x->made, &made));
    t->to = made ? s->batches : NULL;
    t->stepped = s->s.f.step != steps;
    t->save = rtd_when_to_save(x, trained);
    return NEB_OK;
}

const struct side_role side_generator = {RTD_ROLE_OPS, .is = AGENT_ROLE_GENERATOR, .holds = true,
                                         .take = take, .learn = learn};
