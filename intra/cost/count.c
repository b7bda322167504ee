// SPDX-License-Identifier: Apache-2.0
// Counts what a rank allocates and computes: makes the trainer of the job, without using the memory
// (agent/base/count.h), and runs a micro-batch on a device that only counts (kernels/count.h).
#include "agent/base/count.h"
#include "agent/base/log.h"
#include "intra/cost/parts.h"
#include "intra/train/trainer_full.h"
#include "kernels/count.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LABEL_FLOATS = 64 * 4, // a position's labels on the host (agent/train/distill_side.c)
    LIMIT = 1 << 24,       // positions of a side's micro-batch
};
static const size_t ENOUGH = (size_t)1 << 50; // memory of a device that is not known

static struct intra_model_config valid(const struct intra_model_config *m) {
    struct intra_model_config c = *m;
    c.n_kv_heads = c.n_kv_heads ? c.n_kv_heads : c.n_heads;
    c.head_dim = c.head_dim ? c.head_dim : c.d_model / c.n_heads;
    c.max_seq = c.max_seq > 0 ? c.max_seq : 1;
    c.rope_theta = 1e4f;
    c.norm_eps = 1e-5f;
    c.vocab = c.vocab > 1 ? c.vocab : 2;
    c.rope_scaling = (struct kern_rope_scaling){0};
    return c;
}

static struct intra_trainable trained(const struct intra_trainable *t) {
    struct intra_trainable x = *t;
    x.lora_alpha = 1;
    return x;
}

struct intra_model *intra_cost_layout(const struct intra_model_config *m,
                                      const struct intra_trainable *t) {
    struct intra_model *layout = NULL;
    struct intra_model_config c = valid(m);
    struct intra_trainable x = trained(t);
    enum neb_status st = intra_model_layout(&c, &x, &layout);
    NEB_ASSERT(st == NEB_OK); // the job's shape was checked before
    return layout;
}

struct intra_cost_params intra_cost_count(const struct intra_model_config *m,
                                          const struct intra_trainable *t) {
    struct intra_cost_params p = {0};
    struct intra_model *layout = intra_cost_layout(m, t);
    for (int32_t i = 0; i < layout->n_tensors; i++) {
        const struct intra_tensor *x = &layout->tensors[i];
        if (!m->vocab && x->row_kind != INTRA_ROWS_NONE)
            continue;
        p.all += (int64_t)intra_tensor_size(x);
        p.trainable += x->trainable ? (int64_t)intra_tensor_size(x) : 0;
    }
    intra_model_destroy(&layout);
    return p;
}

// ---- one rank -----------------------------------------------------------------------------------

struct rank {                  // a trainer, or of a frozen model the model and what runs its passes
    struct intra_comm_ops ops; // of all groups: other ranks are not needed to count
    struct intra_comm world, dp, tp, pp, ends;
    struct intra_mesh mesh;
    struct kern *K; // processors, or a counting device
    struct intra_trainer *trainer;
    struct intra_model *model;
    struct intra_device *device;
    double host, moments; // bytes: the most that was in use on the host; the optimiser's moments
};

// Rank 0 of each tensor-parallel group and replica, in one stage.
static void make_mesh(const struct intra_mesh_config *c, int32_t stage, struct rank *x) {
    kern_count_nothing(&x->ops, sizeof x->ops);
    x->ops.name = "counting";
    x->world = (struct intra_comm){.ops = &x->ops, .size = c->dp * c->pp * c->tp};
    x->dp = (struct intra_comm){.ops = &x->ops, .size = c->dp};
    x->tp = (struct intra_comm){.ops = &x->ops, .size = c->tp};
    x->pp = (struct intra_comm){.ops = &x->ops, .rank = stage, .size = c->pp};
    x->ends = (struct intra_comm){.ops = &x->ops, .rank = stage > 0, .size = 2};
    x->mesh =
        (struct intra_mesh){.c = *c,
                            .pp_rank = stage,
                            .world = &x->world,
                            .dp = c->dp > 1 ? &x->dp : NULL,
                            .tp = c->tp > 1 ? &x->tp : NULL,
                            .down = c->pp > 1 ? &x->pp : NULL,
                            .up = c->pp > 1 ? &x->pp : NULL,
                            .ends = c->pp > 1 && (!stage || stage == c->pp - 1) ? &x->ends : NULL};
}

static enum neb_status make_frozen(const struct intra_cost_job *j, int32_t soft_k, struct rank *x) {
    struct intra_trainable t = {.mode = INTRA_TRAIN_BITFIT};
    if (!j->device && j->type == KERN_BF16)
        NEB_TRY(kern_cpu_bf16(x->K));
    NEB_TRY(intra_model_layout(&j->model, &t, &x->model));
    NEB_TRY(intra_model_allocate(x->model, false));
    const struct intra_device_config c = {.D = x->K,
                                          .graphs = INTRA_GRAPHS_OFF,
                                          .type = j->device ? j->type : KERN_F32,
                                          .batch = j->batch,
                                          .seq_len = j->seq_len,
                                          .soft_k = soft_k};
    return intra_device_create(&c, x->model, NULL, &x->device);
}

static enum neb_status make_trainer(const struct intra_cost_job *j, int32_t soft_k,
                                    struct rank *x) {
    bool ranks = j->mesh.dp * j->mesh.pp * j->mesh.tp > 1;
    const struct intra_mesh *mesh = ranks ? &x->mesh : NULL;
    const struct intra_trainer_config c = {.model = j->model,
                                           .trainable = trained(&j->trainable),
                                           .batch = j->batch,
                                           .seq_len = j->seq_len,
                                           .accumulate = (j->micros + j->mesh.dp - 1) / j->mesh.dp,
                                           .recompute = j->recompute,
                                           .mesh = mesh,
                                           .device = j->device ? x->K : NULL,
                                           .device_type = j->type,
                                           .device_graphs = INTRA_GRAPHS_OFF,
                                           .device_mesh = mesh,
                                           .soft_k = soft_k};
    NEB_TRY(intra_trainer_create(&c, x->K, &x->trainer));
    x->moments = 8.0 * (double)x->trainer->optim->n;
    x->model = x->trainer->model;
    x->device = x->trainer->device;
    return NEB_OK;
}

static void destroy(struct rank *x) {
    if (x->trainer)
        x->device = NULL, x->model = NULL;
    intra_trainer_destroy(&x->trainer);
    intra_device_destroy(&x->device);
    intra_model_destroy(&x->model);
}

// Counts from here to `end`, which follows in any case.
static enum neb_status begin(const struct intra_cost_job *given, const struct intra_cost_side *side,
                             int32_t stage, double device_bytes, struct rank *x) {
    struct intra_cost_job j = *given;
    int32_t soft_k = side ? side->soft_k : 0;
    *x = (struct rank){0};
    make_mesh(&j.mesh, stage, x);
    j.model = valid(&j.model);
    j.model.max_seq = j.seq_len;
    if (j.device)
        NEB_TRY(kern_counting_create(device_bytes < (double)ENOUGH ? (size_t)device_bytes : ENOUGH,
                                     &x->K));
    NEB_TRY(neb_count_begin());
    neb_log_hush(true);
    enum neb_status st = j.device ? NEB_OK : kern_cpu_create(1, &x->K);
    if (st == NEB_OK)
        st = j.frozen ? make_frozen(&j, soft_k, x) : make_trainer(&j, soft_k, x);
    return st;
}

static void end(struct rank *x) {
    destroy(x);
    kern_destroy(&x->K);
    neb_log_hush(false);
    if (neb_counting())
        x->host = (double)neb_count_end();
}

// ---- memory -------------------------------------------------------------------------------------

// On processors buffers of operations grow in the first step; a device has all from the start.
static enum neb_status run_step(const struct intra_cost_job *j, struct rank *x) {
    struct intra_step_stats stats;
    int32_t *zeros = NULL;
    struct intra_batch b = {.B = j->batch, .T = j->seq_len};
    double loss;
    int64_t count;
    enum neb_status st = NEB_OK;
    if (j->device)
        return NEB_OK;
    b.tokens = zeros = calloc((size_t)j->batch * (size_t)j->seq_len, sizeof *zeros);
    if (!zeros)
        return neb_fail(NEB_ERR_NOMEM, "out of memory counting");
    if (x->trainer) {
        // a pipeline takes all micro-batches, another trainer the same memory for each
        for (int32_t k = 0; k < (j->mesh.pp > 1 ? x->trainer->c.accumulate : 1); k++)
            intra_trainer_micro(x->trainer, zeros, zeros);
        intra_trainer_update(x->trainer, &stats);
        st = stats.status;
    } else {
        st = intra_device_pass(x->device, &b, 0, &loss, &count);
    }
    free(zeros);
    return st;
}

static void add_stage(const struct intra_cost_job *j, const struct intra_cost_side *side,
                      int32_t stage, double device_bytes, struct intra_cost *c) {
    struct rank x;
    double params = 0, learn = 0, there = 0;
    bool made = begin(j, side, stage, device_bytes, &x) == NEB_OK && run_step(j, &x) == NEB_OK;
    if (made) {
        params = (double)x.model->n_params;
        learn = x.model->grads ? (double)x.model->n_grads : 0;
        there = j->device ? (double)kern_counts(x.K)->peak : 0;
    }
    end(&x);
    if (!made) { // the run refuses it, too
        c->rank_bytes = c->acts_bytes = INFINITY;
        return;
    }
    if (there + x.host <= c->device_bytes + c->rank_bytes)
        return; // another stage has more
    c->params_bytes = 4 * (params + learn) + (j->device && j->type == KERN_BF16 ? 2 * params : 0);
    c->optim_bytes = x.moments;
    c->acts_bytes = (j->device ? there : x.host) - c->params_bytes - c->optim_bytes;
    c->rank_bytes = x.host;
    c->device_bytes = there;
}

static void add_copy(const struct intra_cost_job *j, struct intra_cost *c) {
    // Tensors and moments are spread over all ranks; the exchange's state stays with its owner.
    struct intra_cost_params p = intra_cost_count(&j->model, &j->trainable);
    double exchange = COST_EXCHANGE_BYTES * c->owner_params;
    if (!j->copy || j->frozen) // a frozen model has no state but its position
        return;
    c->copy_bytes =
        (4 * (double)p.all + 8 * (double)p.trainable) / (j->mesh.dp * j->mesh.pp * j->mesh.tp) +
        (c->owner_bytes > 0 ? 0 : exchange);
    c->owner_bytes += c->owner_bytes > 0 ? exchange : 0;
}

void cost_memory(const struct intra_cost_job *j, const struct intra_cost_side *side,
                 double device_bytes, struct intra_cost *c) {
    c->rank_bytes = c->device_bytes = 0;
    // The first stage has most micro-batches in flight, the last one the logits.
    add_stage(j, side, 0, device_bytes, c);
    if (j->mesh.pp > 1)
        add_stage(j, side, j->mesh.pp - 1, device_bytes, c);
    if (side && side->labels) {
        double labels = 4.0 * LABEL_FLOATS * j->batch * j->seq_len;
        c->rank_bytes += labels;
        c->acts_bytes += j->device ? 0 : labels;
    }
    add_copy(j, c);
    c->workspace_bytes = j->device ? KERN_WORKSPACE_BYTES : 0;
    c->device_bytes += j->device ? c->outer_bytes + c->workspace_bytes : 0;
    c->rank_bytes += c->exchange_bytes + c->copy_bytes + (c->owner_bytes > 0 ? 0 : c->frames_bytes);
    c->host_bytes = c->rank_bytes * j->ranks_a_host + c->owner_bytes;
}

// ---- FLOPs --------------------------------------------------------------------------------------

// What a rank of the last stage computes, as a model of one rank.
static void part_of(const struct intra_cost_job *j, struct intra_cost_job *p) {
    int32_t tp = j->mesh.tp, layers = j->model.n_layers / j->mesh.pp;
    memset(p, 0, sizeof *p);
    p->model = valid(&j->model);
    p->model.n_layers = layers > 0 ? layers : 1;
    p->model.n_heads /= tp;
    p->model.n_kv_heads /= tp;
    p->model.d_ff /= tp;
    p->model.vocab = (p->model.vocab + tp - 1) / tp;
    p->trainable = j->trainable;
    if (p->trainable.mode == INTRA_TRAIN_LAST_LAYERS &&
        p->trainable.last_layers > p->model.n_layers)
        p->trainable.last_layers = p->model.n_layers;
    p->mesh = (struct intra_mesh_config){1, 1, 1};
    p->seq_len = j->seq_len;
    p->micros = p->ranks_a_host = 1;
    p->recompute = j->recompute;
    p->frozen = j->frozen;
    p->share = 1;
    p->device = true;
}

// Draws tokens, or makes labels, at the first n positions of the pass.
static enum neb_status once_more(struct rank *x, const struct intra_cost_side *side, int32_t n,
                                 int32_t *ids, float *numbers) {
    struct neb_rng rng = {0};
    int32_t *at = calloc((size_t)n + 1, sizeof *at);
    if (!at)
        return neb_fail(NEB_ERR_NOMEM, "out of memory counting");
    enum neb_status st = side->soft_k > 1
                             ? intra_device_labels(x->device, at, n, 1, 1, ids, numbers, numbers)
                             : intra_device_sample(x->device, x->model->c.vocab, at, n, &rng, ids);
    free(at);
    return st;
}

static enum neb_status pass(struct rank *x, const struct intra_cost_job *j,
                            const struct intra_cost_side *side, int32_t *tokens, int32_t *targets,
                            float *numbers) {
    int32_t n = j->batch * j->seq_len, counted = side ? (int32_t)(side->targets + 0.5) : n;
    struct intra_batch b = {.tokens = tokens, .targets = targets, .B = j->batch, .T = j->seq_len};
    for (int32_t i = 0; i < n; i++)
        targets[i] = i < counted ? 0 : KERN_IGNORE;
    b.targets = counted ? targets : NULL;
    if (x->trainer)
        (void)intra_trainer_micro_batch(x->trainer, &b);
    else
        (void)intra_device_eval_micro(x->device, &b);
    if (!side || side->again < 1)
        return NEB_OK;
    return once_more(x, side, (int32_t)fmin(n, side->again), tokens, numbers);
}

static double count_pass(const struct intra_cost_job *j, const struct intra_cost_side *side) {
    struct rank x = {0};
    double flops = INFINITY;
    size_t n = (size_t)j->batch * (size_t)j->seq_len;
    int32_t *tokens = calloc(n, sizeof *tokens), *targets = calloc(n, sizeof *targets);
    float *numbers = calloc(n, sizeof *numbers);
    if (tokens && targets && numbers) {
        if (begin(j, side, 0, INFINITY, &x) == NEB_OK &&
            pass(&x, j, side, tokens, targets, numbers) == NEB_OK)
            flops = kern_counts(x.K)->flops;
        end(&x);
    }
    free(tokens);
    free(targets);
    free(numbers);
    return flops;
}

// A search asks for the same part of a model again and again.
static double count_once(const struct intra_cost_job *j) {
    enum { KEPT = 32 };
    static _Thread_local struct {
        struct intra_cost_job j;
        double flops;
    } kept[KEPT];
    static _Thread_local int turn;
    for (int i = 0; i < KEPT; i++)
        if (!memcmp(&kept[i].j, j, sizeof *j))
            return kept[i].flops;
    turn = (turn + 1) % KEPT;
    memcpy(&kept[turn].j, j, sizeof *j); // with the bytes between the fields
    return kept[turn].flops = count_pass(j, NULL);
}

double intra_cost_flops(const struct intra_cost_job *given, const struct intra_cost_side *side) {
    struct intra_cost_job j;
    part_of(given, &j);
    if (!side) { // every sequence takes the same amount
        j.batch = 1;
        return given->batch * count_once(&j);
    }
    // with padding, in sequences of the mean length
    j.seq_len = (int32_t)fmax(1, fmin(side->length + 0.5, given->seq_len));
    j.batch = (int32_t)fmax(1, fmin(LIMIT, side->tokens / j.seq_len + 0.5));
    return count_pass(&j, side);
}
