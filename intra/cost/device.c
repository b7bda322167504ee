// SPDX-License-Identifier: Apache-2.0
// What a step costs on accelerators (intra/model/device.h): seconds, by rates that depend on the
// work of an operation, and memory, as intra/model allocates it.
#include "intra/cost/parts.h"
#include "intra/model/pipe_schedule.h"
#include "kernels/device_stage.h"

#include <math.h>

enum {
    HEADS_WIDTH = 256,          // of the measured attention
    ALIGN = 256,                // of arrays in device memory
    WORKSPACE_BYTES = 32 << 20, // of products (kernels/cuda/gemm.c)
    CHUNK_BYTES = 32,
    PRODUCTS = 3, // products in the time of one measured product: forward, dx, dW
    KERNELS_ATTN_FWD = 1,
    KERNELS_ATTN_BWD = 3,
    PIECES = 8, // least number of pieces in which gradients are reduced; the same for every rank
    AHEAD_BLOCKS = 10, // blocks whose tensor-parallel collectives are in flight at once
};
static const double BACKWARD = 2.0 / 3; // share of a micro-batch's time

// ---- seconds ------------------------------------------------------------------------------------

// The rate at this many tokens, and at x on the other axis with points xs.
static double rate_at(const double *rates, const int32_t *xs, int n, double tokens, double x) {
    double at[INTRA_COST_TOKENS];
    for (int i = 0; i < INTRA_COST_TOKENS; i++)
        at[i] = cost_between(xs, rates + i * n, n, x, COST_BELOW_SLOPE);
    return cost_between(intra_cost_tokens, at, INTRA_COST_TOKENS, tokens, COST_BELOW_SLOPE);
}

static double at_least(const struct cost_sum *s, double seconds, double ops) {
    return fmax(seconds, ops * s->r->device.op_s) / s->share;
}

// A longer other side keeps a device as busy as more tokens do.
double cost_device_product(const struct cost_sum *s, double n, double out, double in,
                           double times) {
    double side = fmin(out, in), tokens = n * fmax(out, in) / (2 * side);
    return at_least(
        s,
        2 * n * out * in * times /
            rate_at(s->device->gemm[0], intra_cost_sides, INTRA_COST_SIDES, tokens, side),
        times);
}

double cost_device_attention(const struct cost_sum *s, const struct intra_cost_job *j, double n,
                             double flops, bool backward) {
    double width = (double)j->model.n_heads / j->mesh.tp * j->model.head_dim;
    const double *rates = backward ? s->device->attn_bwd[0] : s->device->attn_fwd[0];
    return at_least(s,
                    flops / rate_at(rates, intra_cost_heads, INTRA_COST_HEADS,
                                    n * width / HEADS_WIDTH, j->model.head_dim),
                    backward ? KERNELS_ATTN_BWD : KERNELS_ATTN_FWD);
}

static double wire(const struct intra_device_rates *r, double bytes, double messages) {
    return bytes > 0 || messages > 0 ? bytes / r->link + messages * r->link_s : 0;
}

// Costs of tensor parallelism in a micro-batch: gathers of rows in the storage type, and sums of
// rows in fp32. Each costs half an all-reduce.
static void tensor_parallel(const struct intra_cost_job *j, const struct intra_device_rates *r,
                            int32_t micros, struct intra_cost *c) {
    int32_t tp = j->mesh.tp, layers = j->model.n_layers / j->mesh.pp;
    if (tp == 1)
        return;
    double rows = (double)j->batch * j->seq_len * j->model.d_model,
           gathers = layers * (j->recompute ? 7.0 : 6.0) + 2,
           sums = layers * (j->recompute ? 5.0 : 4.0) + 2,
           bytes = rows * (gathers * (double)kern_type_bytes(j->type) + 4 * sums);
    c->tp_bytes = micros * cost_ring_bytes(bytes, tp) / 2;
    c->tp_s = wire(r, c->tp_bytes, micros * (gathers + sums));
}

static void pipeline(const struct intra_cost_job *j, const struct intra_device_rates *r,
                     int32_t micros, double slowest, struct intra_cost *c) {
    const struct intra_mesh_config *k = &j->mesh;
    double rows = 4.0 * j->batch * j->seq_len * j->model.d_model / k->tp;
    if (k->pp == 1)
        return;
    c->pp_bytes = 2 * micros * rows;
    c->pp_s = wire(r, c->pp_bytes, 2.0 * micros) +
              (k->pp - 1) * (slowest + c->tp_s / micros + 2 * wire(r, rows, 1));
}

// Gradients are reduced during the last micro-batch's backward, except for its last piece.
// Parameters are gathered after the update. With tensor parallelism the host runs only AHEAD_BLOCKS
// ahead (intra/ranks), so only those blocks of backward overlap.
static void data_parallel(const struct intra_cost_job *j, const struct intra_device_rates *r,
                          double learn, double slowest, struct intra_cost *c) {
    int32_t dp = j->mesh.dp;
    if (dp == 1)
        return;
    c->dp_bytes = cost_ring_bytes(4 * learn, dp);
    double pieces = dp * ceil((double)PIECES / dp), half = wire(r, c->dp_bytes / 2, pieces),
           ahead =
               j->mesh.tp > 1 ? fmin(1, AHEAD_BLOCKS * (double)j->mesh.pp / j->model.n_layers) : 1,
           hidden = fmin(half * (pieces - 1) / pieces, ahead * BACKWARD * slowest);
    c->dp_s = half - hidden + wire(r, c->dp_bytes / 2, 1);
}

void cost_device_times(const struct intra_cost_job *j, const struct intra_rates *rates,
                       struct intra_cost *c) {
    const struct intra_mesh_config *k = &j->mesh;
    const struct intra_device_rates *r = &rates->device;
    const struct intra_type_rates *of = &r->of[j->type];
    double n = (double)j->batch * j->seq_len, slowest = 0, learn;
    int32_t micros = (j->micros + k->dp - 1) / k->dp;
    for (int32_t stage = 0; stage < k->pp; stage++) {
        struct cost_sum s = {.r = rates, .device = of, .share = j->share};
        cost_stage(&s, j, stage, n);
        slowest = fmax(slowest, s.seconds + cost_device_batch(j, n) / r->up);
        c->flops = fmax(c->flops, s.flops * micros);
    }
    (void)cost_stage_params(j, &learn);
    c->compute_s = slowest * micros;
    tensor_parallel(j, r, micros, c);
    pipeline(j, r, micros, slowest, c);
    data_parallel(j, r, learn, slowest, c);
    c->update_s = learn / k->dp / (j->share * of->update) + r->wait_s;
    c->step_s = c->compute_s + c->tp_s + c->pp_s + c->dp_s + c->update_s;
    bool ranks = k->dp * k->pp * k->tp > 1;
    if (ranks && (!(r->link > 0) || j->ranks_a_host > r->count))
        c->step_s = INFINITY;
}

// Tokens, targets, lists that say where each token is; prefixes.
double cost_device_batch(const struct intra_cost_job *j, double n) {
    return (j->model.mask == KERN_MASK_PREFIX ? 6 : 5) * n * (double)sizeof(int32_t);
}

double cost_logits_rows(double memory, const struct intra_cost_job *j, double n) {
    return kern_logits_rows(memory, (j->model.vocab + j->mesh.tp - 1) / j->mesh.tp, j->type,
                            (int)n);
}

// ---- memory -------------------------------------------------------------------------------------

static double up(double bytes) { // rounded up as it is allocated
    return ALIGN * ceil(bytes / ALIGN);
}

struct sizes { // as in intra/model/memory.c; t: bytes of the storage type
    double n, own, room, t, d, q, qkv, heads, f, vocab;
    bool cut, staged;
};

static struct sizes sizes_of(const struct intra_cost_job *j) {
    const struct intra_model_config *m = &j->model;
    double n = (double)j->batch * j->seq_len, tp = j->mesh.tp, own = ceil(n / tp);
    return (struct sizes){.n = n,
                          .own = own,
                          .room = own * tp,
                          .t = (double)kern_type_bytes(j->type),
                          .d = m->d_model,
                          .q = m->n_heads / tp * m->head_dim,
                          .qkv = (m->n_heads + 2.0 * m->n_kv_heads) / tp * m->head_dim,
                          .heads = m->n_heads / tp,
                          .f = m->d_ff / tp,
                          .vocab = ceil(m->vocab / tp),
                          .cut = j->mesh.tp > 1,
                          .staged = j->mesh.pp > 1};
}

static double block_bytes(const struct sizes *s) {
    double norms = s->cut ? 0 : 2 * up(s->t * s->n * s->d);
    return norms + 2 * up(4 * s->own) + up(s->t * s->n * s->qkv) + up(s->t * s->n * s->q) +
           up(4 * s->n * s->heads) + up(4 * s->own * s->d) + up(s->t * s->n * 2 * s->f) +
           up(s->t * s->n * s->f);
}

static double lora_bytes(const struct intra_cost_job *j, const struct sizes *s) {
    return j->trainable.mode == INTRA_TRAIN_LORA ? up(s->t * s->n * j->trainable.lora_rank) : 0;
}

static double backward_bytes(const struct intra_cost_job *j, const struct sizes *s) {
    double own = 4 * s->own * s->d;
    return lora_bytes(j, s) + up(own) + up(s->t * s->own * s->d) + // dh, dy
           up(s->t * s->n * s->qkv) + up(s->t * s->n * s->q) + up(4 * s->n * s->heads) +
           up(s->t * s->n * s->f) +
           // dh in the storage type
           (j->type == KERN_F32 && !s->cut ? 0 : up(s->t * s->room * s->d));
}

// Blocks of logits. The caller applies up().
static double logits_bytes(const struct intra_cost_job *j, double memory, const struct sizes *s) {
    return cost_logits_rows(memory, j, s->n) * 8 * ceil(s->vocab / 8) * s->t;
}

static double scratch_bytes(const struct intra_cost_job *j, double memory, const struct sizes *s,
                            bool last) {
    double rows = cost_logits_rows(memory, j, s->n), stream = s->t * s->n * s->d,
           own = 4 * s->own * s->d,
           bytes = s->cut ? up(s->t * s->room * s->d) : up(stream); // y, or r
    bytes += s->cut || s->staged ? up(4 * s->room * s->d) : 0;
    bytes += up(own) + up(4 * s->own) + lora_bytes(j, s) + up(4 * s->n); // hf, rstdf, losses
    bytes += j->frozen ? 0 : backward_bytes(j, s);
    bytes += s->staged ? 4 * up(own) : 0;
    if (last)
        bytes += up(s->t * s->room * s->d) + up(logits_bytes(j, memory, s)) +
                 (s->cut ? 3 * up(4 * rows) : 0);
    return bytes;
}

static double acts_bytes(const struct intra_cost_job *j, double memory, int32_t stage) {
    struct sizes s = sizes_of(j);
    int32_t layers = j->model.n_layers / j->mesh.pp,
            micros = (j->micros + j->mesh.dp - 1) / j->mesh.dp,
            flight = intra_pipe_in_flight(stage, j->mesh.pp, micros);
    double inputs = flight * ((j->frozen ? 1 : layers) * up(4 * s.own * s.d) +
                              up(cost_device_batch(j, s.n) + 12)),
           blocks = block_bytes(&s) * (j->recompute || j->frozen ? 1 : layers * flight);
    return inputs + blocks + scratch_bytes(j, memory, &s, stage == j->mesh.pp - 1);
}

double cost_device_picks(const struct intra_cost_job *j, const struct intra_cost_side *side,
                         double memory) {
    struct sizes s = sizes_of(j);
    double row = up(4 * s.n), named = up(4 * s.n * side->soft_k), bytes = 0;
    if (side->head == INTRA_COST_HEAD_SCORE)
        bytes += row - up(logits_bytes(j, memory, &s)); // scores instead of logits
    if (side->soft_k) // rows, tails, three lists of rows with a target; ids, probabilities
        bytes += 5 * row + 2 * named + (j->frozen ? 0 : up(s.t * s.n * s.d)); // gradients of rows
    return bytes;
}

void cost_device_memory(const struct intra_cost_job *j, double memory, struct intra_cost *c) {
    double learn, params = cost_stage_params(j, &learn), tokens = (double)j->batch * j->seq_len;
    // The host holds parameters, gradients and moments as usual, no activations, and pinned
    // buffers.
    c->rank_bytes +=
        KERN_STAGE_BUFFERS * KERN_STAGE_BYTES + 2 * cost_device_batch(j, tokens) - c->acts_bytes;
    c->host_bytes = c->rank_bytes * j->ranks_a_host + c->owner_bytes;
    c->params_bytes = 4 * (params + learn) + (j->type == KERN_F32 ? 0 : 2 * params) +
                      CHUNK_BYTES * learn / j->mesh.dp / KERN_CHUNK +
                      up(4.0 * j->seq_len * j->model.head_dim);
    c->acts_bytes = fmax(acts_bytes(j, memory, 0), acts_bytes(j, memory, j->mesh.pp - 1));
    c->workspace_bytes = WORKSPACE_BYTES;
    c->device_bytes =
        c->params_bytes + c->optim_bytes + c->acts_bytes + c->outer_bytes + c->workspace_bytes;
}
