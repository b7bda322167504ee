// SPDX-License-Identifier: Apache-2.0
#include "intra/cost/parts.h"
#include "intra/model/device.h"
#include "intra/model/pipe_schedule.h"
#include "intra/train/trainer.h"

#include <math.h>

enum {
    ATTN_BLOCK = 64, // keys computed together, whatever the mask (kernels/cpu_attn.c)
    OPS_FWD = 9,
    OPS_BWD = 13, // operations of a block that are handed to the threads
};
// Forward computes scores and values. Backward computes the scores again, and the gradients of
// q, k, v and scores.
#define BACKWARD_ATTN 2.5

const int32_t intra_cost_sides[INTRA_COST_SIDES] = {32, 64, 128, 256, 512, 1024};
const int32_t intra_cost_heads[INTRA_COST_HEADS] = {16, 32, 64, 128};
const int32_t intra_cost_tokens[INTRA_COST_TOKENS] = {64, 256, 1024, 4096, 16384};

double cost_between(const int32_t *xs, const double *ys, int n, double x, enum cost_below below) {
    if (x <= xs[0] && below == COST_BELOW_PROPORTIONAL)
        return ys[0] * x / xs[0]; // a product of half the width runs about half as fast
    if (x <= xs[0]) {
        double slope = log(ys[1] / ys[0]) / log((double)xs[1] / xs[0]);
        return ys[0] * pow(x / xs[0], fmin(1, fmax(0, slope)));
    }
    for (int i = 1; i < n; i++)
        if (x <= xs[i]) {
            double share = log(x / xs[i - 1]) / log((double)xs[i] / xs[i - 1]);
            return ys[i - 1] * pow(ys[i] / ys[i - 1], share);
        }
    return ys[n - 1];
}

double intra_cost_gemm_rate(const struct intra_rates *r, enum kern_type t, double side) {
    bool bf16 = t == KERN_BF16 && side >= KERN_BF16_LEAST; // thinner products stay in fp32
    return cost_between(intra_cost_sides, bf16 ? r->gemm_bf16 : r->gemm, INTRA_COST_SIDES, side,
                        COST_BELOW_PROPORTIONAL);
}

double intra_cost_attn_flops(double n, int32_t T, int32_t heads, int32_t head_dim,
                             enum kern_mask mask) {
    double keys = mask == KERN_MASK_BIDIRECTIONAL ? T : fmin(T, (T + ATTN_BLOCK) / 2.0);
    return 4.0 * n * keys * heads * head_dim;
}

struct widths {
    int64_t d, q, kv, f;
};
static struct widths widths_of(const struct intra_model_config *m) {
    return (struct widths){m->d_model, (int64_t)m->n_heads * m->head_dim,
                           (int64_t)m->n_kv_heads * m->head_dim, m->d_ff};
}

struct intra_cost_params intra_cost_count(const struct intra_model_config *m,
                                          const struct intra_trainable *t) {
    struct widths w = widths_of(m);
    const int64_t out[INTRA_LORA_SLOTS] = {w.q, w.kv, w.kv, w.d, w.f, w.f, w.d},
                  in[INTRA_LORA_SLOTS] = {w.d, w.d, w.d, w.q, w.d, w.d, w.f};
    int64_t matrices = 0, adapters = 0, vectors = 2 * w.d + (m->qkv_bias ? w.q + 2 * w.kv : 0),
            learns;
    for (int i = 0; i < INTRA_LORA_SLOTS; i++) {
        matrices += out[i] * in[i];
        if (t->mode == INTRA_TRAIN_LORA && t->lora_targets & 1u << i)
            adapters += (out[i] + in[i]) * t->lora_rank;
    }
    struct intra_cost_params p = {.block = matrices + vectors + adapters,
                                  .embedding = (int64_t)m->vocab * w.d};
    bool full = t->mode == INTRA_TRAIN_FULL, last = t->mode == INTRA_TRAIN_LAST_LAYERS;
    p.all = p.block * m->n_layers + p.embedding * (m->tied ? 1 : 2) + w.d;
    learns = full ? m->n_layers : last ? t->last_layers : 0;
    p.trainable = learns * (matrices + vectors) + adapters * m->n_layers;
    if (t->mode == INTRA_TRAIN_BITFIT)
        p.trainable += vectors * m->n_layers;
    p.block_trainable = p.trainable / m->n_layers;
    p.trainable += t->mode == INTRA_TRAIN_LORA ? 0 : w.d;
    p.trainable += full && !t->freeze_embeddings ? p.embedding : 0;
    p.trainable += !m->tied && (full || last) ? p.embedding : 0;
    return p;
}

bool intra_cost_mesh_fits(const struct intra_mesh_config *c, const struct intra_model_config *m) {
    return c->dp >= 1 && c->pp >= 1 && c->tp >= 1 && m->n_layers % c->pp == 0 &&
           m->n_heads % c->tp == 0 && m->n_kv_heads % c->tp == 0 && m->d_ff % c->tp == 0 &&
           m->vocab >= c->tp;
}

// ---- one step -----------------------------------------------------------------------------------

void cost_product(struct cost_sum *s, double n, double out, double in, double times) {
    double flops = 2 * n * out * in * times;
    if (!(flops > 0))
        return;
    s->flops += flops;
    s->seconds +=
        s->device
            ? cost_device_product(s, n, out, in, times)
            : flops / (s->share * intra_cost_gemm_rate(s->r, s->type, fmin(n, fmin(out, in))));
}

static void attention(struct cost_sum *s, const struct intra_cost_job *j, double n, bool backward) {
    const struct intra_model_config *m = &j->model;
    double flops =
        intra_cost_attn_flops(n, j->seq_len, m->n_heads / j->mesh.tp, m->head_dim, m->mask) *
        (backward ? BACKWARD_ATTN : 1);
    s->flops += flops;
    if (s->device) {
        s->seconds += cost_device_attention(s, j, n, flops, backward);
        return;
    }
    bool bf16 = s->type == KERN_BF16 && m->head_dim >= KERN_BF16_LEAST;
    const double *rates = bf16 ? (backward ? s->r->attn_bwd_bf16 : s->r->attn_fwd_bf16)
                               : (backward ? s->r->attn_bwd : s->r->attn_fwd);
    s->seconds += flops / (s->share * cost_between(intra_cost_heads, rates, INTRA_COST_HEADS,
                                                   m->head_dim, COST_BELOW_PROPORTIONAL));
}

void cost_rows(struct cost_sum *s, double floats, int ops) {
    if (s->device) {
        s->seconds += fmax(4 * floats / s->device->rows, ops * s->r->device.op_s) / s->share;
        return;
    }
    bool alone = s->share * s->r->processors < 1.5; // one thread hands nothing over
    s->seconds += 4 * floats / (s->share * s->r->rows) + (alone ? 0 : ops * s->r->op_s);
}

static void block_forward(struct cost_sum *s, const struct intra_cost_job *j, double n) {
    struct widths w = widths_of(&j->model);
    double tp = j->mesh.tp, d = (double)w.d, q = (double)w.q / tp, kv = (double)w.kv / tp,
           f = (double)w.f / tp;
    cost_product(s, n, q + 2 * kv, d, 1);
    cost_product(s, n, d, q, 1);
    cost_product(s, n, 2 * f, d, 1);
    cost_product(s, n, d, f, 1);
    attention(s, j, n, false);
    cost_rows(s, n * (8 * d / tp + 2 * (q + kv) + 3 * f), OPS_FWD);
}

static void block_backward(struct cost_sum *s, const struct intra_cost_job *j, double n,
                           double times) {
    struct widths w = widths_of(&j->model);
    double tp = j->mesh.tp, d = (double)w.d, q = (double)w.q / tp, kv = (double)w.kv / tp,
           f = (double)w.f / tp;
    cost_product(s, n, q + 2 * kv, d, times);
    cost_product(s, n, d, q, times);
    cost_product(s, n, 2 * f, d, times);
    cost_product(s, n, d, f, times);
    attention(s, j, n, true);
    // With tensor parallelism both norms are computed again. On a device attention itself rotates
    // the gradients of q and k back.
    double turned = s->device ? 0 : 2 * (q + kv);
    cost_rows(s, n * ((tp > 1 ? 14 : 8) * d / tp + turned + 5 * f), OPS_BWD);
}

bool cost_head_learns(const struct intra_cost_job *j) {
    return j->trainable.mode == INTRA_TRAIN_FULL
               ? !(j->model.tied && j->trainable.freeze_embeddings)
               : j->trainable.mode == INTRA_TRAIN_LAST_LAYERS && !j->model.tied;
}

// What only the last stage has: output layer and loss.
static void head(struct cost_sum *s, const struct intra_cost_job *j, double n) {
    const struct intra_model_config *m = &j->model;
    double V = (double)m->vocab / j->mesh.tp,
           rows = s->device ? cost_logits_rows(s->r->device.memory, j, n)
                            : n; // a device is used as well as one block of rows allows
    cost_product(s, rows, V, m->d_model, (cost_head_learns(j) ? 3 : 2) * n / rows);
    cost_rows(s, n * 8 * m->d_model, 4);
    s->seconds += n * V / (s->share * (s->device ? s->device->logits : s->r->logits));
}

// Number of blocks that backward passes through, from the top.
static int32_t learning_blocks(const struct intra_cost_job *j) {
    return j->trainable.mode == INTRA_TRAIN_LAST_LAYERS ? j->trainable.last_layers
                                                        : j->model.n_layers;
}

void cost_blocks(struct cost_sum *s, const struct intra_cost_job *j, int32_t first, int32_t count,
                 double n, bool learns) {
    int32_t low = j->model.n_layers - learning_blocks(j);
    struct intra_cost_params p = intra_cost_count(&j->model, &j->trainable);
    bool matrices =
        j->trainable.mode == INTRA_TRAIN_FULL || j->trainable.mode == INTRA_TRAIN_LAST_LAYERS;
    // A pass through an adapter costs as much as one product with as many weights as the adapter
    // has. Backward costs three such products.
    double adapters = j->trainable.mode == INTRA_TRAIN_LORA ? (double)p.block_trainable : 0,
           wide = adapters / j->model.d_model / j->mesh.tp;
    for (int32_t l = first; l < first + count; l++) {
        block_forward(s, j, n);
        cost_product(s, n, wide, j->model.d_model, adapters > 0);
        if (!learns || l < low)
            continue;
        if (j->recompute)
            block_forward(s, j, n);
        block_backward(s, j, n, matrices ? 2 : 1);
        cost_product(s, n, wide, j->model.d_model, adapters > 0 ? 3 : 0);
    }
}

void cost_stage(struct cost_sum *s, const struct intra_cost_job *j, int32_t stage, double n) {
    int32_t layers = j->model.n_layers / j->mesh.pp;
    cost_blocks(s, j, stage * layers, layers, n, true);
    if (stage == j->mesh.pp - 1)
        head(s, j, n);
    if (stage == 0)
        cost_rows(s, 4 * n * j->model.d_model, 2); // look-up and its gradient
}

double cost_ring_bytes(double bytes, int32_t k) { return 2 * bytes * (k - 1) / k; }
static double wire(const struct intra_rates *r, double bytes, double messages) {
    return bytes > 0 || messages > 0 ? bytes / r->link + messages * r->link_s : 0;
}

static void times(const struct intra_cost_job *j, const struct intra_rates *r,
                  struct intra_cost *c) {
    const struct intra_mesh_config *k = &j->mesh;
    double share = j->share / j->ranks_a_host, n = (double)j->batch * j->seq_len,
           stream = 4 * n * j->model.d_model, slowest = 0;
    int32_t micros = (j->micros + k->dp - 1) / k->dp, layers = j->model.n_layers / k->pp;
    for (int32_t stage = 0; stage < k->pp; stage++) {
        struct cost_sum s = {.r = r, .type = j->type, .share = share};
        cost_stage(&s, j, stage, n);
        slowest = fmax(slowest, s.seconds);
        c->flops = fmax(c->flops, s.flops * micros);
    }
    c->compute_s = slowest * micros;
    if (k->tp > 1) { // gathers and sums of rows in a micro-batch: half an all-reduce each
        double halves = layers * (j->recompute ? 12 : 10) + 4.0;
        c->tp_bytes = micros * halves * cost_ring_bytes(stream, k->tp) / 2;
        c->tp_s = wire(r, c->tp_bytes, micros * halves * (k->tp - 1));
    }
    if (k->pp > 1) {
        double rows = stream / k->tp;
        c->pp_bytes = 2 * micros * rows;
        c->pp_s = wire(r, c->pp_bytes, 2.0 * micros) +
                  (k->pp - 1) * (slowest + c->tp_s / micros + 2 * wire(r, rows, 1));
    }
    struct intra_cost_params p = intra_cost_count(&j->model, &j->trainable);
    // an estimate: embeddings are on the end stages only
    double here = (double)p.trainable / k->pp / k->tp;
    if (k->dp > 1) {
        c->dp_bytes = cost_ring_bytes(4 * here, k->dp);
        c->dp_s = wire(r, c->dp_bytes, 2.0 * (k->dp - 1));
    }
    c->update_s = here / k->dp / (share * r->update) + 4 * r->op_s;
    c->update_s += cost_to_bf16(j, r, (double)p.all / k->pp / k->tp * j->ranks_a_host);
    // Ranks on the same processors also broadcast the data of every step.
    if (k->dp * k->pp * k->tp > 1)
        c->update_s += 6 * r->link_s * (k->dp * k->pp * k->tp - 1);
    c->step_s = c->compute_s + c->tp_s + c->pp_s + c->dp_s + c->update_s;
}

double cost_to_bf16(const struct intra_cost_job *j, const struct intra_rates *r, double of) {
    return j->type == KERN_BF16 ? of / (j->share * r->to_bf16) : 0;
}

// As intra/model/memory.c allocates them.
static double acts_bytes(const struct intra_cost_job *j, int32_t stage) {
    struct widths w = widths_of(&j->model);
    double n = (double)j->batch * j->seq_len, tp = j->mesh.tp, d = (double)w.d,
           q = (double)w.q / tp, kv = (double)w.kv / tp, f = (double)w.f / tp;
    int32_t layers = j->model.n_layers / j->mesh.pp,
            micros = (j->micros + j->mesh.dp - 1) / j->mesh.dp,
            flight = intra_pipe_in_flight(stage, j->mesh.pp, micros);
    // A rank has some rows of the stream. With tp = 1 it keeps the output of a norm; otherwise it
    // gathers it again.
    double own = ceil(n / tp), room = own * tp, input = own * d,
           rest = own * (d + 2) + (tp > 1 ? 0 : 2 * n * d) +
                  n * ((q + 2 * kv) + q + j->model.n_heads / tp + 3 * f);
    double blocks = layers * input * flight + (j->recompute ? rest : rest * layers * flight);
    double scratch =
        room * d * (tp > 1 ? 4 : 3) + own * (2 * d + 1) +
        n * (2 * q + 2 * kv + j->model.n_heads / tp + f +
             2.0 * (j->trainable.mode == INTRA_TRAIN_LORA ? j->trainable.lora_rank : 0));
    if (j->mesh.pp > 1) // messages of both ways, in and out
        scratch += 4 * own * d;
    if (j->mesh.tp > 1 && stage == j->mesh.pp - 1) // a block of logits
        scratch += INTRA_VOCAB_ROWS * j->model.vocab / tp;
    return 4 * (blocks + scratch);
}

static double acts_frozen(const struct intra_cost_job *j) {
    struct widths w = widths_of(&j->model);
    double n = (double)j->batch * j->seq_len, d = (double)w.d, q = (double)w.q, kv = (double)w.kv,
           f = (double)w.f;
    // One block's activations, which all blocks reuse, and three arrays of the stream.
    return 4 * n * (d + (3 * d + 2) + (q + 2 * kv) + q + j->model.n_heads + 3 * f + 3 * d + 1);
}

// Operands of the largest product of a block in bf16, its gradient in both layouts
// (kernels/cpu_panel.c).
static double operand_bytes(const struct intra_cost_job *j) {
    struct widths w = widths_of(&j->model);
    double n = (double)j->batch * j->seq_len, tp = j->mesh.tp,
           wide = fmax(2.0 * (double)w.f, (double)w.q + 2 * (double)w.kv) / tp,
           other = fmax((double)w.d, (double)w.f / tp);
    return 2 * n * (2 * wide + other);
}

double cost_stage_params(const struct intra_cost_job *j, double *learn) {
    const struct intra_mesh_config *k = &j->mesh;
    struct intra_cost_params p = intra_cost_count(&j->model, &j->trainable);
    double ends = (double)p.embedding / k->tp, ways = (double)k->pp * k->tp,
           blocks = (double)p.block * j->model.n_layers / ways,
           // The first and last stage of a pipeline hold one embedding each, tied or not.
        params = blocks + (k->pp == 1 && !j->model.tied ? 2 * ends : ends);
    *learn = j->frozen ? 0 : params * (double)p.trainable / (double)p.all;
    return params;
}

void cost_memory(const struct intra_cost_job *j, struct intra_cost *c) {
    const struct intra_mesh_config *k = &j->mesh;
    double learn, params = cost_stage_params(j, &learn);
    bool in_bf16 = j->type == KERN_BF16 && !j->device;
    c->params_bytes = 4 * (params + learn);
    if (in_bf16) // twice, since two products read all of them: forward and dx
        c->params_bytes += 2 * (j->frozen ? 1 : 2) * params;
    c->optim_bytes = 8 * learn / k->dp;
    // The first stage has most micro-batches in flight, the last one the logits.
    c->acts_bytes = j->frozen ? acts_frozen(j) : fmax(acts_bytes(j, 0), acts_bytes(j, k->pp - 1));
    if (in_bf16 && !j->frozen)
        c->acts_bytes += operand_bytes(j);
    if (j->copy && !j->frozen) { // a frozen model has no state but its position
        // Tensors and moments are spread over all ranks; the exchange's state stays with its owner.
        struct intra_cost_params p = intra_cost_count(&j->model, &j->trainable);
        double exchange = COST_EXCHANGE_BYTES * c->owner_params;
        c->copy_bytes = (4 * (double)p.all + 8 * (double)p.trainable) / (k->dp * k->pp * k->tp) +
                        (c->owner_bytes > 0 ? 0 : exchange);
        c->owner_bytes += c->owner_bytes > 0 ? exchange : 0;
    }
    cost_memory_sum(j, c);
}

void cost_memory_sum(const struct intra_cost_job *j, struct intra_cost *c) {
    c->rank_bytes = c->params_bytes + c->optim_bytes + c->acts_bytes + c->exchange_bytes +
                    c->copy_bytes + (c->owner_bytes > 0 ? 0 : c->frames_bytes);
    c->host_bytes = c->rank_bytes * j->ranks_a_host + c->owner_bytes;
}

// The job as the replicas run it (group.c): micro-batches are cut smaller where dp does not divide
// them. 0: they cannot be cut.
static int32_t as_replicas_run(const struct intra_cost_job *j, struct intra_cost_job *out) {
    NEB_ASSERT(j->ranks_a_host >= 1 && j->batch >= 1 && j->micros >= 1);
    int32_t sequences = j->batch * j->micros,
            batch = intra_mesh_batch(sequences, j->batch, j->mesh.dp);
    *out = *j;
    if (batch) {
        out->batch = batch;
        out->micros = sequences / batch;
    }
    return batch;
}

void intra_cost_memory(const struct intra_cost_job *j, struct intra_cost *out) {
    struct intra_cost_job as_run;
    (void)as_replicas_run(j, &as_run);
    *out = (struct intra_cost){0};
    cost_memory(&as_run, out);
    if (j->device)
        // INFINITY gives blocks of logits their largest useful size
        cost_device_memory(&as_run, INFINITY, out);
}

void intra_cost_step(const struct intra_cost_job *j, const struct intra_rates *r,
                     struct intra_cost *out) {
    struct intra_cost_job as_run;
    NEB_ASSERT(j->share > 0);
    int32_t batch = as_replicas_run(j, &as_run);
    *out = (struct intra_cost){0};
    cost_exchange(j, r, out);
    if (j->device) {
        NEB_ASSERT(r->device.count > 0);
        cost_device_times(&as_run, r, out);
        cost_memory(&as_run, out);
        cost_device_memory(&as_run, r->device.memory, out);
        if (!batch)
            out->step_s = INFINITY;
        return;
    }
    times(&as_run, r, out);
    cost_memory(&as_run, out);
    if (!batch || (j->mesh.dp * j->mesh.pp * j->mesh.tp > 1 && !(r->link > 0)))
        out->step_s = INFINITY;
}

// ---- search for the best ------------------------------------------------------------------------

struct best {
    const struct intra_cost_choice *c;
    const struct intra_rates *r;
    struct intra_cost_job job;
    struct intra_cost cost;
    bool any, fits;
};

static void try_one(struct best *b, const struct intra_cost_job *j) {
    struct intra_cost cost;
    intra_cost_step(j, b->r, &cost);
    bool fits = cost.host_bytes <= b->c->memory && cost.device_bytes <= b->c->device_memory;
    bool better =
        !b->any           ? true
        : fits != b->fits ? fits
        : !fits ? cost.host_bytes + cost.device_bytes < b->cost.host_bytes + b->cost.device_bytes
                // Of equally fast choices the earlier one wins: fewer cuts, larger micro-batches,
                // no recomputation.
                : cost.step_s < b->cost.step_s * 0.999;
    if (!better)
        return;
    b->job = *j;
    b->cost = cost;
    b->any = true;
    b->fits = fits;
}

static void try_batches(struct best *b, struct intra_cost_job j) {
    int32_t given = j.batch;
    for (int32_t batch = b->c->sequences; batch >= 1; batch--) {
        if (b->c->fix_batch && batch != given)
            continue;
        if (b->c->sequences % batch || b->c->sequences % j.mesh.dp)
            continue;
        j.batch = batch;
        j.micros = b->c->sequences / batch;
        bool asked = j.recompute;
        for (int again = 0; again < 2; again++) {
            j.recompute = again == 1;
            if (!b->c->fix_recompute || j.recompute == asked)
                try_one(b, &j);
        }
        j.recompute = asked;
    }
}

bool intra_cost_choose(const struct intra_cost_choice *c, const struct intra_rates *r,
                       struct intra_cost_job *j, struct intra_cost *out) {
    struct best b = {.c = c, .r = r};
    struct intra_cost_job at = *j;
    for (int32_t tp = 1; tp <= c->ranks; tp++)
        for (int32_t pp = 1; tp * pp <= c->ranks; pp++) {
            struct intra_mesh_config mesh = {c->ranks / (tp * pp), pp, tp};
            if (c->fix_mesh)
                mesh = j->mesh;
            else if (c->ranks % (tp * pp) || !intra_cost_mesh_fits(&mesh, &j->model))
                continue;
            at.mesh = mesh;
            try_batches(&b, at);
            if (c->fix_mesh)
                goto done;
        }
done:
    if (b.any) {
        *j = b.job;
        *out = b.cost;
    } else {
        *out = (struct intra_cost){.step_s = INFINITY};
    }
    return b.fits;
}
