// What a side of a stream does: generator, discriminator, teacher, student.
#include "intra/cost_parts.h"

// a position's labels, by row and by position, ids and probabilities
enum { LABEL_FLOATS = 64 * 4 };

static void head(struct cost_sum *s, const struct intra_cost_job *j,
                 const struct intra_cost_side *side) {
    const struct intra_model_config *m = &j->model;
    double n = side->targets, V = m->vocab;
    int times = !side->learns ? 1 : cost_head_learns(j) ? 3 : 2;
    if (side->head == INTRA_COST_HEAD_NONE)
        return;
    if (side->head == INTRA_COST_HEAD_SCORE) { // a product with one column, and its gradients
        cost_rows(s, n * m->d_model * (side->learns ? 4 : 1), 2);
        return;
    }
    cost_product(s, n, V, m->d_model, times);
    // Rows with a target are gathered, and their gradients put back.
    cost_rows(s, side->tokens * m->d_model * 2 + n * m->d_model * 6, 4);
    s->seconds +=
        n * V / (s->share * (side->head == INTRA_COST_HEAD_SOFT ? s->r->soft : s->r->logits));
}

static void once_more(struct cost_sum *s, const struct intra_cost_job *j, double n, double rate) {
    if (!(n > 0))
        return;
    cost_product(s, n, j->model.vocab, j->model.d_model, 1);
    s->seconds += n * j->model.vocab / (s->share * rate);
}

static void side_memory(const struct intra_cost_job *j, const struct intra_cost_side *side,
                        const struct intra_rates *r, struct intra_cost *c) {
    cost_exchange(j, r, c);
    cost_memory(j, c);
    if (!side->learns) {
        c->params_bytes = (j->type == KERN_BF16 ? 6.0 : 4.0) *
                          (double)intra_cost_count(&j->model, &j->trainable).all;
        c->optim_bytes = 0;
        c->acts_bytes = cost_acts_frozen(j);
        c->copy_bytes = 0; // it has no state but how far it is
    }
    if (side->labelled > 0 || side->head == INTRA_COST_HEAD_SOFT)
        c->acts_bytes += 4.0 * LABEL_FLOATS * j->batch * j->seq_len;
    cost_memory_sum(j, c);
}

void intra_cost_side_step(const struct intra_cost_job *j, const struct intra_cost_side *side,
                          const struct intra_rates *r, struct intra_cost *out) {
    NEB_ASSERT(j->mesh.dp * j->mesh.pp * j->mesh.tp == 1 && j->micros >= 1 && j->share > 0);
    struct cost_sum s = {.r = r, .type = j->type, .share = j->share};
    struct intra_cost_job as_run = *j;
    as_run.seq_len = side->length > 1 ? (int32_t)(side->length + 0.5) : 1;
    cost_rows(&s, (side->learns ? 4 : 2) * side->tokens * j->model.d_model, 2);
    cost_blocks(&s, &as_run, 0, j->model.n_layers, side->tokens, side->learns);
    head(&s, j, side);
    once_more(&s, j, side->drawn, r->draws);
    once_more(&s, j, side->labelled, r->labels);
    *out = (struct intra_cost){.flops = s.flops * j->micros, .compute_s = s.seconds * j->micros};
    if (side->learns)
        out->update_s =
            (double)intra_cost_count(&j->model, &j->trainable).trainable / (j->share * r->update) +
            4 * r->op_s +
            cost_to_bf16(j, r, (double)intra_cost_count(&j->model, &j->trainable).all);
    out->step_s = out->compute_s + out->update_s;
    side_memory(j, side, r, out);
}
