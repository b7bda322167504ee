// SPDX-License-Identifier: Apache-2.0
// Costs of a side of a stream: generator, discriminator, teacher, student.
#include "intra/cost/parts.h"

#include <math.h>

// floats in host memory for one position's labels: ids and probabilities, each by row and by
// position
enum { LABEL_FLOATS = 64 * 4 };

// Rows with a target are gathered; on a device only where that pays (intra/model/picks.c).
static void head(struct cost_sum *s, const struct intra_cost_job *j,
                 const struct intra_cost_side *side) {
    const struct intra_model_config *m = &j->model;
    bool all = s->device && side->targets > 0.75 * side->tokens;
    double n = all ? side->tokens : side->targets, V = m->vocab,
           block = s->device ? cost_logits_rows(s->r->device.memory, j, n) : n,
           rate = s->device                            ? s->device->logits
                  : side->head == INTRA_COST_HEAD_SOFT ? s->r->soft
                                                       : s->r->logits;
    int times = !side->learns ? 1 : cost_head_learns(j) ? 3 : 2;
    if (side->head == INTRA_COST_HEAD_NONE || !(n > 0))
        return;
    if (side->head == INTRA_COST_HEAD_SCORE) { // a product with one column, and its gradients
        cost_rows(s, n * m->d_model * (side->learns ? 4 : 1), 2);
        return;
    }
    cost_product(s, block, V, m->d_model, times * n / block);
    // Gradients of gathered rows are scattered back.
    cost_rows(s, side->tokens * m->d_model * 2 + n * m->d_model * 6, 4);
    s->seconds += n * V / (s->share * rate);
}

// Computes the output layer a second time, for n positions. A device does it in fp32, at the rate
// of the loss in fp32, and the host waits for the tokens or labels.
static void once_more(struct cost_sum *s, const struct intra_cost_job *j, double n, double rate) {
    const struct intra_device_rates *d = &s->r->device;
    if (!(n > 0))
        return;
    double block = s->device ? cost_logits_rows(d->memory, j, n) : n;
    cost_product(s, block, j->model.vocab, j->model.d_model, n / block);
    s->seconds += n * j->model.vocab / (s->share * (s->device ? d->of[KERN_F32].logits : rate)) +
                  (s->device ? d->wait_s : 0);
}

// memory: of the device.
static void side_memory(const struct intra_cost_job *j, const struct intra_cost_side *side,
                        double memory, struct intra_cost *c) {
    bool labels = side->labelled > 0 || side->head == INTRA_COST_HEAD_SOFT;
    double n = (double)j->batch * j->seq_len, on_host = labels ? 4.0 * LABEL_FLOATS * n : 0;
    cost_memory(j, c);
    if (!j->device) {
        c->acts_bytes += on_host;
        cost_memory_sum(j, c);
        return;
    }
    cost_device_memory(j, memory, c);
    double there = cost_device_picks(j, side, memory);
    if (side->soft_k) // lists of rows, and their labels, in transfer to the device
        on_host += 4 * (4 + 2.0 * side->soft_k) * n;
    c->acts_bytes += there;
    c->device_bytes += there;
    c->rank_bytes += on_host;
    c->host_bytes += on_host;
}

static double update_s(const struct intra_cost_job *j, const struct intra_rates *r) {
    struct intra_cost_params p = intra_cost_count(&j->model, &j->trainable);
    double learn = (double)p.trainable / j->share;
    return j->device ? learn / r->device.of[j->type].update + r->device.wait_s
                     : learn / r->update + 4 * r->op_s + cost_to_bf16(j, r, (double)p.all);
}

void intra_cost_side_step(const struct intra_cost_job *given, const struct intra_cost_side *side,
                          const struct intra_rates *r, struct intra_cost *out) {
    struct intra_cost_job own = *given, as_run;
    const struct intra_cost_job *j = &own;
    NEB_ASSERT(j->mesh.dp * j->mesh.pp * j->mesh.tp == 1 && j->micros >= 1 && j->share > 0);
    NEB_ASSERT(!j->device || r->device.count > 0);
    struct cost_sum s = {.r = r,
                         .device = j->device ? &r->device.of[j->type] : NULL,
                         .type = j->type,
                         .share = j->share};
    own.frozen = !side->learns;
    as_run = own;
    as_run.seq_len = side->length > 1 ? (int32_t)(side->length + 0.5) : 1;
    cost_rows(&s, (side->learns ? 4 : 2) * side->tokens * j->model.d_model, 2);
    cost_blocks(&s, &as_run, 0, j->model.n_layers, side->tokens, side->learns);
    head(&s, j, side);
    once_more(&s, j, side->drawn, r->draws);
    once_more(&s, j, side->labelled, r->labels);
    if (j->device)
        s.seconds += cost_device_batch(j, side->tokens) / r->device.up;
    *out = (struct intra_cost){.flops = s.flops * j->micros, .compute_s = s.seconds * j->micros};
    out->update_s = side->learns ? update_s(j, r) : 0;
    out->step_s = out->compute_s + out->update_s;
    cost_exchange(j, r, out);
    side_memory(j, side, r->device.memory, out);
}

void intra_cost_side_memory(const struct intra_cost_job *given, const struct intra_cost_side *side,
                            struct intra_cost *out) {
    struct intra_cost_job j = *given;
    j.frozen = !side->learns;
    *out = (struct intra_cost){0};
    // INFINITY gives blocks of logits their largest useful size
    side_memory(&j, side, INFINITY, out);
}
