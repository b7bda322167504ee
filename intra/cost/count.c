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

void *cost_memo(struct cost_memo *m, const struct intra_cost_job *key, bool *known) {
    const unsigned char *p = (const unsigned char *)key;
    uint32_t hash = 2166136261u; // FNV-1a
    for (size_t i = 0; i < sizeof *key; i++)
        hash = (hash ^ p[i]) * 16777619u;
    enum { KEPT = sizeof m->at / sizeof *m->at, NEAR = 16 };
    size_t at = hash % KEPT;
    for (size_t i = 1;
         i <= NEAR && m->at[at].key.share > 0 && memcmp(&m->at[at].key, key, sizeof *key) != 0; i++)
        at = (hash + i) % KEPT;
    *known = !memcmp(&m->at[at].key, key, sizeof *key);
    memcpy(&m->at[at].key, key, sizeof *key); // with the bytes between the fields
    return m->at[at].value;
}

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
        p.second += x->trainable && !x->matrix ? (int64_t)intra_tensor_size(x) : 0;
    }
    intra_model_destroy(&layout);
    return p;
}

struct rank { // a trainer, or of a frozen model the model and what runs its passes
    struct intra_comm world, dp, tp, pp, ends;
    struct cost_traffic all, data, tensors, stages, tied; // of these groups, in this order
    struct intra_mesh mesh;
    struct kern *K; // processors, or a counting device
    struct intra_trainer *trainer;
    struct intra_model *model;
    struct intra_device *device;
    double host, moments; // bytes: the most that was in use on the host; the optimiser's moments
};

// ---- messages -----------------------------------------------------------------------------------

// In a ring a rank sends all parts of an array but one, and in an all-reduce twice.
static enum neb_status sends(struct intra_comm *c, double bytes) {
    struct cost_traffic *t = c->ctx;
    t->bytes += bytes;
    t->calls++;
    return NEB_OK;
}

static enum neb_status sends_parts(struct intra_comm *c, double bytes) {
    return sends(c, bytes * (c->size - 1) / c->size);
}

static enum neb_status all_reduce(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op) {
    (void)x, (void)op;
    return sends_parts(c, 2.0 * (double)n * (double)intra_comm_type_bytes(t));
}

static enum neb_status reduce(struct intra_comm *c, float *x, size_t n, int root) {
    (void)x, (void)root;
    return sends_parts(c, 4.0 * (double)n);
}

static enum neb_status rows(struct intra_comm *c, float *x, size_t n) { // (size, n)
    (void)x;
    return sends_parts(c, 4.0 * (double)n * c->size);
}

static enum neb_status broadcast(struct intra_comm *c, void *x, size_t bytes, int root) {
    (void)x, (void)root;
    return sends_parts(c, (double)bytes);
}

static enum neb_status enqueue(struct intra_comm *c, enum intra_comm_kind kind, void *x, size_t n,
                               enum intra_comm_type t, enum intra_comm_op op, void *queue) {
    (void)queue;
    return kind == INTRA_COMM_ALL_REDUCE ? all_reduce(c, x, n, t, op) : rows(c, x, n);
}

static enum neb_status send(struct intra_comm *c, const void *x, size_t bytes, int to, int tag,
                            struct intra_comm_send *s) {
    (void)x, (void)to, (void)tag, (void)s;
    return sends(c, (double)bytes);
}

static enum neb_status wait_send(struct intra_comm *c, struct intra_comm_send *s) {
    (void)c, (void)s;
    return NEB_OK;
}

static enum neb_status recv(struct intra_comm *c, void *x, size_t bytes, int from, int tag) {
    (void)c, (void)x, (void)bytes, (void)from, (void)tag;
    return NEB_OK;
}

static enum neb_status barrier(struct intra_comm *c) {
    (void)c;
    return NEB_OK;
}

static enum neb_status look(struct intra_comm *c, bool first) {
    (void)c, (void)first;
    return NEB_OK;
}

const struct intra_comm_ops cost_counting_comm = {.name = "counting",
                                                  .all_reduce = all_reduce,
                                                  .reduce = reduce,
                                                  .reduce_scatter = rows,
                                                  .all_gather = rows,
                                                  .broadcast = broadcast,
                                                  .enqueue = enqueue,
                                                  .look = look,
                                                  .send = send,
                                                  .wait = wait_send,
                                                  .recv = recv,
                                                  .barrier = barrier};

// Rank 0 of each tensor-parallel group and replica, in one stage.
static void make_mesh(const struct intra_mesh_config *c, int32_t stage, struct rank *x) {
    const struct intra_comm_ops *ops = &cost_counting_comm;
    x->world = (struct intra_comm){ops, &x->all, 0, c->dp * c->pp * c->tp};
    x->dp = (struct intra_comm){ops, &x->data, 0, c->dp};
    x->tp = (struct intra_comm){ops, &x->tensors, 0, c->tp};
    x->pp = (struct intra_comm){ops, &x->stages, stage, c->pp};
    x->ends = (struct intra_comm){ops, &x->tied, stage > 0, 2};
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

// ---- one rank -----------------------------------------------------------------------------------

static enum neb_status make_frozen(const struct intra_cost_job *j, int32_t soft_k, struct rank *x) {
    struct intra_trainable t = {.mode = INTRA_TRAIN_BITFIT};
    if (!j->device && j->type == KERN_BF16)
        NEB_TRY(kern_cpu_bf16(x->K));
    bool ranks = j->mesh.dp * j->mesh.pp * j->mesh.tp > 1;
    const struct intra_mesh *mesh = ranks ? &x->mesh : NULL;
    NEB_TRY(intra_model_create_frozen(&j->model, &t, mesh, &x->model));
    const struct intra_device_config c = {.D = x->K,
                                          .mesh = mesh,
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
    const struct intra_trainer_config c = {
        .model = j->model,
        .trainable = trained(&j->trainable),
        .optim = {.kind = j->muon ? INTRA_OPTIM_MUON : INTRA_OPTIM_ADAMW},
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
    x->moments = 4.0 * (double)(x->trainer->optim->n + x->trainer->optim->n_second);
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

// ---- a step -------------------------------------------------------------------------------------

// Draws tokens, or makes labels, at the first n positions of the pass.
static enum neb_status once_more(struct rank *x, const struct intra_cost_side *side, int32_t n,
                                 int32_t *ids) {
    int32_t *at = calloc((size_t)n + 1, sizeof *at);
    float *numbers = calloc((size_t)n + 1, sizeof *numbers);
    double *u = calloc((size_t)n + 1, sizeof *u);
    enum neb_status st = !at || !numbers || !u ? neb_fail(NEB_ERR_NOMEM, "out of memory counting")
                         : side->soft_k > 1
                             ? intra_device_labels(x->device, at, n, 1, 1, ids, numbers, numbers)
                             : intra_device_sample(x->device, x->model->c.vocab, at, n, 1, u, ids);
    free(at);
    free(numbers);
    free(u);
    return st;
}

static enum neb_status run_step(const struct intra_cost_job *j, const struct intra_cost_side *side,
                                struct rank *x) {
    struct intra_step_stats stats = {0};
    int32_t n = j->batch * j->seq_len, counted = side        ? (int32_t)(side->targets + 0.5)
                                                 : j->frozen ? 0
                                                             : n;
    int32_t *tokens = calloc(2 * (size_t)n, sizeof *tokens), *targets = tokens + n;
    if (!tokens)
        return neb_fail(NEB_ERR_NOMEM, "out of memory counting");
    for (int32_t i = counted; i < n; i++)
        targets[i] = KERN_IGNORE;
    if (x->trainer) {
        // a pipeline takes all micro-batches, another trainer the same memory for each
        for (int32_t k = 0; k < (j->mesh.pp > 1 ? x->trainer->c.accumulate : 1); k++)
            intra_trainer_micro(x->trainer, tokens, targets);
        intra_trainer_update(x->trainer, &stats);
    } else {
        (void)intra_device_eval_micro(x->device,
                                      &(struct intra_batch){.tokens = tokens,
                                                            .targets = counted ? targets : NULL,
                                                            .B = j->batch,
                                                            .T = j->seq_len});
    }
    enum neb_status st = stats.status;
    if (st == NEB_OK && side && side->again >= 1 && intra_model_last(x->model))
        st = once_more(x, side, (int32_t)fmin(n, side->again), tokens);
    free(tokens);
    return st;
}

// ---- memory -------------------------------------------------------------------------------------

// Of the rank with the most memory in use. device: without the cache.
struct bytes {
    double params, moments, host, device, cache;
};

// The cache of keys and values takes half of what is free (intra/train/decode.c).
static enum neb_status add_cache(const struct intra_cost_job *j, const struct intra_cost_side *side,
                                 double device_bytes, struct rank *x) {
    double slot = (double)intra_device_cache_bytes(x->device, j->seq_len),
           spare = device_bytes - (double)kern_counts(x->K)->bytes,
           rows = fmin(side->decodes, (double)j->batch * j->seq_len);
    if (device_bytes < (double)ENOUGH)
        rows = fmin(rows, spare / 2 / slot);
    return intra_device_cache(x->device, (int32_t)fmax(1, rows), j->seq_len);
}

static void add_stage(const struct intra_cost_job *j, const struct intra_cost_side *side,
                      int32_t stage, double device_bytes, struct bytes *most) {
    struct rank x;
    struct bytes b = {0};
    // On processors buffers of operations grow in the first step; a device has all from the start.
    bool made = begin(j, side, stage, device_bytes, &x) == NEB_OK &&
                (j->device || run_step(j, NULL, &x) == NEB_OK);
    if (made) {
        double params = (double)x.model->n_params;
        b.params = 4 * (params + (x.model->grads ? (double)x.model->n_grads : 0)) +
                   (j->device && j->type == KERN_BF16 ? 2 * params : 0);
        b.moments = x.moments;
        b.device = j->device ? (double)kern_counts(x.K)->peak : 0;
    }
    if (made && j->device && side && side->decodes) {
        made = add_cache(j, side, device_bytes, &x) == NEB_OK;
        b.cache = (double)kern_counts(x.K)->peak - b.device;
    }
    end(&x);
    b.host = made ? x.host : INFINITY; // the run refuses it, too
    if (b.device + b.host > most->device + most->host)
        *most = b;
}

static struct bytes count_bytes(const struct intra_cost_job *given,
                                const struct intra_cost_side *side, double device_bytes) {
    static struct cost_memo memo;
    struct intra_cost_job j;
    struct bytes b = {0}, *kept = &b;
    bool known = false;
    memcpy(&j, given, sizeof j);
    j.outer = j.outer_device = false; // the exchange is not counted here
    j.share = 1 + device_bytes;       // what the count depends on besides
    if (!side)
        kept = cost_memo(&memo, &j, &known);
    if (known)
        return *kept;
    // The first stage has most micro-batches in flight, the last one the logits.
    *kept = (struct bytes){0};
    add_stage(&j, side, 0, device_bytes, kept);
    if (j.mesh.pp > 1)
        add_stage(&j, side, j.mesh.pp - 1, device_bytes, kept);
    return *kept;
}

static void add_copy(const struct intra_cost_job *j, struct intra_cost *c) {
    // Tensors and moments are spread over all ranks; the exchange's state stays with its owner.
    struct intra_cost_params p = intra_cost_count(&j->model, &j->trainable);
    double exchange = COST_EXCHANGE_BYTES * c->owner_params;
    int32_t ranks = j->mesh.dp * j->mesh.pp * j->mesh.tp;
    if (!j->copy || j->frozen) // a frozen model has no state but its position
        return;
    c->copy_bytes =
        (4 * (double)p.all + 4 * (double)(p.trainable + (j->muon ? p.second : p.trainable))) /
            ranks +
        (c->owner_bytes > 0 ? 0 : exchange);
    c->owner_bytes += c->owner_bytes > 0 ? exchange : 0;
}

void cost_memory(const struct intra_cost_job *j, const struct intra_cost_side *side,
                 double device_bytes, struct intra_cost *c) {
    struct bytes b = count_bytes(j, side, device_bytes);
    c->params_bytes = b.params;
    c->optim_bytes = b.moments;
    c->acts_bytes = (j->device ? b.device : b.host) - b.params - b.moments;
    c->rank_bytes = b.host;
    c->device_bytes = b.device + b.cache;
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

// ---- work ---------------------------------------------------------------------------------------

static void add_pass(const struct intra_cost_job *j, const struct intra_cost_side *side,
                     int32_t stage, struct cost_work *w) {
    struct rank x;
    bool made = begin(j, side, stage, INFINITY, &x) == NEB_OK && run_step(j, side, &x) == NEB_OK;
    double muon = made && x.trainer ? intra_device_muon_flops(x.device) : 0;
    w->flops = made ? fmax(w->flops, kern_counts(x.K)->flops - muon) : INFINITY;
    w->update_flops = fmax(w->update_flops, muon);
    w->updated = fmax(w->updated, made && x.trainer ? (double)x.trainer->optim->n : 0);
    w->tp.bytes = fmax(w->tp.bytes, x.tensors.bytes);
    w->tp.calls = fmax(w->tp.calls, x.tensors.calls);
    w->dp_bytes = fmax(w->dp_bytes, x.data.bytes);
    w->pp_bytes = fmax(w->pp_bytes, x.stages.bytes);
    end(&x);
}

static struct cost_work count_work(const struct intra_cost_job *j,
                                   const struct intra_cost_side *side) {
    struct cost_work w = {0};
    add_pass(j, side, j->mesh.pp - 1, &w);
    if (j->mesh.pp > 1)
        add_pass(j, side, 0, &w);
    return w;
}

struct cost_work cost_work(const struct intra_cost_job *given, const struct intra_cost_side *side) {
    struct intra_cost_job j;
    memset(&j, 0, sizeof j);
    j.model = valid(&given->model);
    j.trainable = given->trainable;
    j.mesh = given->mesh;
    j.seq_len = given->seq_len;
    j.batch = j.ranks_a_host = 1;
    j.micros = j.mesh.dp;
    j.recompute = given->recompute;
    j.frozen = given->frozen;
    j.muon = given->muon;
    j.share = 1;
    j.device = true;
    j.type = given->device ? given->type : KERN_F32; // processors exchange fp32
    if (!side) {
        static struct cost_memo memo;
        bool known;
        struct cost_work *w = cost_memo(&memo, &j, &known);
        return known ? *w : (*w = count_work(&j, NULL));
    }
    // with padding, in sequences of the mean length
    j.seq_len = (int32_t)fmax(1, fmin(side->length + 0.5, given->seq_len));
    j.batch = (int32_t)fmax(1, fmin(LIMIT, side->tokens / j.seq_len + 0.5));
    return count_work(&j, side);
}

double intra_cost_flops(const struct intra_cost_job *j, const struct intra_cost_side *side) {
    return (side ? 1 : j->batch) * cost_work(j, side).flops; // every sequence takes as many
}
