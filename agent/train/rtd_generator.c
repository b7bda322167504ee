// SPDX-License-Identifier: Apache-2.0
// The generator: trains on masked text, and samples the tokens that replace the masks.
#include "agent/train/rtd.h"

#include <math.h>

struct made { // replacements of the event so far
    uint32_t masked, replaced;
};

// Masks one micro-batch, passes it through the model, and samples if a batch is wanted.
static enum neb_status generate(struct agent_rtd_side *s, const int32_t *tokens, int32_t windows,
                                int32_t a, bool learn, bool wanted, struct made *m) {
    int32_t n = windows * s->job.seq_len, k = rtd_mask(s, tokens, n, a);
    intra_mask_apply(tokens, n, s->positions, k, s->vocab, s->inputs, s->targets);
    if (learn) {
        intra_group_micro(s->group, s->inputs, s->targets);
    } else {
        double loss = 0;
        int64_t count = 0;
        struct intra_batch b = {
            .tokens = s->inputs, .targets = s->targets, .B = windows, .T = s->job.seq_len};
        NEB_TRY(intra_device_pass(s->passes, &b, 0, &loss, &count));
        s->eval_sum += loss;
        s->eval_count += count;
    }
    if (!wanted)
        return NEB_OK;
    int32_t *ids = s->inputs; // no longer needed
    NEB_TRY(intra_mask_sample(s->passes, s->vocab, s->positions, k, rtd_seed(s, SEED_SAMPLE),
                              rtd_stream(s, a), ids));
    for (int32_t i = 0; i < k; i++)
        if (ids[i] != tokens[s->positions[i]]) {
            s->index[m->replaced] = (int32_t)m->masked + i;
            s->ids[m->replaced++] = ids[i];
        }
    m->masked += (uint32_t)k;
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
    if (windows)
        NEB_TRY(generate(s, s->tokens, windows, 0, false, true, &m));
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
        NEB_TRY(generate(s, s->tokens + (size_t)a * s->micro, s->job.batch, a, learn, emit, &m));
    if (learn)
        NEB_TRY(rtd_took_step(s));
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
