// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/job_needs.h"

#include "agent/exchange/schedule.h"
#include "agent/job/groups.h"
#include "agent/job/model.h"
#include "agent/job/sides.h"
#include "compress/device.h"
#include "compress/softlabel.h"
#include "inter/outer/outer.h"
#include "inter/record/types.h"
#include "intra/cost/cost.h"

#include <math.h>

static const double EXCHANGE_BYTES = INTER_OUTER_ARRAYS * sizeof(float);
static const double LABEL_BYTES = 4; // per entry of a teacher's stored labels
enum { SNAPSHOTS = 2 };              // one that arrives, one that others fetch

static bool one_process(const struct agent_job *j) {
    return j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
}

bool agent_job_runs(const struct agent_job *j, int self, int part) {
    return part == self || (one_process(j) && j->mode != AGENT_MODE_REPLICAS);
}

static bool exchanges(const struct agent_job *j, int self) {
    return j->sync.scheme == AGENT_SCHEME_FEDERATED && j->n_clusters > 1 &&
           (j->mode == AGENT_MODE_REPLICAS ||
            (agent_distill_federates(j) && !agent_job_only_votes(j, self)));
}

// How exactly row counts are sent. They are sent only if embedding and output are trained, or the
// output alone.
static enum agent_row_counts rows_told(const struct agent_job *j, int self) {
    const struct intra_trainable *t = &j->trainable;
    bool output = !j->model.tied, full = t->mode == INTRA_TRAIN_FULL && !t->freeze_embeddings;
    bool learns =
        full || (output && (t->mode == INTRA_TRAIN_FULL || t->mode == INTRA_TRAIN_LAST_LAYERS));
    return exchanges(j, self) && j->sync.row_weights && j->sync.gate != AGENT_GATE_PRIVATE && learns
               ? j->sync.row_counts
               : AGENT_ROWS_NEVER;
}

// The cluster's own steps between two of its updates. 0: it sends none.
static double update_steps(const struct agent_job *j, int self) {
    const struct agent_sync *s = &j->sync;
    enum agent_role role = j->clusters[self].role;
    const struct agent_schedule schedule = agent_schedule_of(j);
    if (one_process(j))
        return j->mode == AGENT_MODE_REPLICAS;
    if (exchanges(j, self))
        return (double)agent_schedule_least(&schedule);
    if (j->mode != AGENT_MODE_RTD || s->scheme != AGENT_SCHEME_FEDERATED)
        return 0;
    double own = role == AGENT_ROLE_GENERATOR ? j->rtd.generator_steps : j->rtd.discriminator_steps;
    return j->rtd.share_embeddings * own /
           fmax(1, fmax(j->rtd.generator_steps, j->rtd.discriminator_steps));
}

// With `model: attached` a step may rest on fewer; the agent counts what an update rests on.
static double step_tokens(const struct agent_job *j) {
    return j->attached ? (double)j->step_tokens : (double)j->batch * j->accumulate * j->seq_len;
}

static int32_t width_of(const struct intra_model_config *m) {
    int32_t heads =
                m->n_heads * (m->head_dim ? m->head_dim : m->d_model / (m->n_heads + !m->n_heads)),
            most = m->d_ff > m->d_model ? m->d_ff : m->d_model;
    return heads > most ? heads : most;
}

void agent_job_discloses(const struct agent_job *j, int self, struct agent_discloses *out) {
    enum agent_role role = j->clusters[self].role;
    bool rtd = j->mode == AGENT_MODE_RTD, distill = j->mode == AGENT_MODE_DISTILL,
         others = j->n_clusters > 1 && !one_process(j);
    double tokens = step_tokens(j);
    *out = (struct agent_discloses){.rows = AGENT_ROWS_NEVER, .width = width_of(&j->model)};
    out->text = !one_process(j) && ((rtd && j->rtd.push_text && role == AGENT_ROLE_GENERATOR) ||
                                    (distill && j->distill.pushed && role == AGENT_ROLE_STUDENT));
    out->labels = others && ((rtd && role == AGENT_ROLE_GENERATOR) ||
                             (distill && role == AGENT_ROLE_TEACHER && !j->distill.pushed));
    if (j->n_clusters == 1 || j->clusters[self].witness)
        return;
    if (j->sync.tune.mode == AGENT_TUNE_AUTO && j->sync.tune.balance && others)
        tokens *= 1 - (double)INTER_LEFT_OUT_MAX / INTER_STEPS_CYCLE;
    out->update_tokens = tokens * update_steps(j, self);
    out->rows = rows_told(j, self);
}

double agent_job_eval_tokens(const struct agent_job *j) {
    return (double)j->eval_windows * j->seq_len;
}

// The model of a part; *t: which of its parameters are trained.
static struct intra_model_config model_of(const struct agent_job *j, enum agent_role role,
                                          const struct agent_found *found,
                                          struct intra_trainable *t) {
    int32_t vocab = j->model.vocab ? j->model.vocab : found->vocab;
    *t = j->trainable;
    switch (role) {
    case AGENT_ROLE_GENERATOR:
        return agent_job_model(j, &j->rtd.shape, vocab + 1, KERN_MASK_BIDIRECTIONAL);
    case AGENT_ROLE_DISCRIMINATOR:
        return agent_job_model(j, NULL, vocab + 1, KERN_MASK_BIDIRECTIONAL);
    // BitFit: a teacher that does not learn needs hardly more than parameters
    case AGENT_ROLE_TEACHER:
        *t = (struct intra_trainable){.mode =
                                          j->distill.learn ? INTRA_TRAIN_FULL : INTRA_TRAIN_BITFIT};
        return found->teacher.d_model
                   ? found->teacher
                   : agent_job_model(j, &j->distill.shape, vocab, KERN_MASK_PREFIX);
    default: return agent_job_model(j, NULL, vocab, j->model.mask);
    }
}

double agent_job_parameters(const struct agent_job *j, int self, const struct agent_found *found) {
    double n = 0;
    for (int i = 0; i < j->n_clusters; i++) {
        struct intra_trainable t;
        if (!agent_job_runs(j, self, i) || j->attached) // the site's own model
            continue;
        struct intra_model_config m = model_of(j, j->clusters[i].role, found, &t);
        double d = m.d_model;
        n += (double)m.vocab * d * (m.tied ? 1 : 2) +
             m.n_layers * (2 * d * m.head_dim * (m.n_heads + m.n_kv_heads) + 3 * d * m.d_ff);
    }
    return n;
}

static int32_t at_least_one(int32_t n) { return n > 1 ? n : 1; }

// This part has the state of an exchange; a synchronous run may make outer steps, too.
static bool has_outer(const struct agent_job *j, int self) {
    return exchanges(j, self) || (j->mode == AGENT_MODE_REPLICAS && agent_job_steps_alone(j));
}

// What an exchange takes beside its state. nebula plan measures it (agent_plan_frames). An agent
// has other work, so it takes a bound: unit_policy compares both for dense and sparse codecs.
static struct intra_cost_frames frames_of(const struct agent_job *j, int32_t members) {
    enum { ELEMENTS = 1 << 20, UNIT_BYTES = 256 << 10 };
    struct cmp_codec codec;
    const char *name = one_process(j) ? "fp32" : j->sync.codec; // exchange_alone
    if (j->sync.gate == AGENT_GATE_PRIVATE || cmp_codec_parse(name, &codec) != NEB_OK)
        return (struct intra_cost_frames){.work = 2, .update = 2};
    double update = (double)cmp_codec_bytes_max(&codec, ELEMENTS, 1) / ELEMENTS;
    double times = cmp_codec_density(&codec) < 1 ? 12 + 7.0 * members : 10 + 2.5 * members;
    double kept = members * (double)cmp_device_kept_bytes(&codec, ELEMENTS) / ELEMENTS;
    return (struct intra_cost_frames){UNIT_BYTES, times * update, update, kept};
}

static struct intra_cost_job cost_job(const struct agent_job *j, int self, enum agent_role role,
                                      const struct agent_found *found) {
    const struct agent_cluster *c = &j->clusters[self];
    struct intra_cost_job x = {.batch = at_least_one(c->batch ? c->batch : j->batch),
                               .seq_len = j->seq_len,
                               .copy = j->checkpoint_every && j->checkpoint_copy,
                               .share = 1};
    int64_t micros = (int64_t)j->batch * j->accumulate / x.batch;
    x.frozen = role == AGENT_ROLE_TEACHER && !j->distill.learn;
    x.muon = j->optim.kind == INTRA_OPTIM_MUON;
    x.outer = has_outer(j, self);
    x.outer_single = j->sync.gate == AGENT_GATE_PRIVATE;
    x.fragments = agent_job_fragments(j);
    x.members = one_process(j) ? 1 : agent_job_exchanging(j);
    if (x.outer)
        x.frames = frames_of(j, at_least_one(x.members));
    x.model = model_of(j, role, found, &x.trainable);
    x.mesh = (struct intra_mesh_config){at_least_one(c->mesh.dp), at_least_one(c->mesh.pp),
                                        at_least_one(c->mesh.tp)};
    x.micros = at_least_one((int32_t)fmin((double)micros, INT32_MAX / x.batch));
    x.recompute = c->recompute ? c->recompute == AGENT_RECOMPUTE_ON : j->recompute;
    // for every launcher: mpirun without a host list, and Slurm on one node, start all ranks on one
    // host
    x.ranks_a_host = x.mesh.dp * x.mesh.pp * x.mesh.tp;
    return x;
}

// Memory of a trainer, or of a side of rtd or distill, as nebula plan estimates it.
static void memory_of(const struct agent_job *j, int self, enum agent_role role,
                      const struct intra_cost_job *x, struct intra_cost *out) {
    struct intra_cost_side side = {.learns = !x->frozen};
    if (j->mode == AGENT_MODE_REPLICAS) {
        intra_cost_memory(x, NULL, out);
        return;
    }
    side.labels = j->mode == AGENT_MODE_DISTILL;
    side.decodes = side.labels ? agent_distill_decodes(j, self) : 0;
    side.soft_k = j->mode == AGENT_MODE_DISTILL ? CMP_SOFT_K_MAX : role == AGENT_ROLE_GENERATOR;
    intra_cost_memory(x, &side, out);
}

// Adds the memory of one part: on processors, on devices, or the maximum of both if that is open.
static void add_memory(const struct agent_job *j, int self, enum agent_role role,
                       const struct agent_found *found, struct agent_needs *n) {
    const struct agent_cluster *c = &j->clusters[self];
    struct intra_cost_job x = cost_job(j, self, role, found);
    struct intra_cost cost;
    double host = 0, device = 0;
    if (n->on_processors) {
        x.type = c->precision == AGENT_PRECISION_BF16 ? KERN_BF16 : KERN_F32;
        memory_of(j, self, role, &x, &cost);
        host = cost.host_bytes;
    }
    if (n->on_devices) {
        x.device = true;
        x.outer_device = c->outer_state == AGENT_OUTER_DEVICE && !x.outer_single;
        x.type = c->precision == AGENT_PRECISION_FP32 ? KERN_F32 : KERN_BF16;
        memory_of(j, self, role, &x, &cost);
        host = fmax(host, cost.host_bytes);
        device = cost.device_bytes;
    }
    n->memory += host;
    n->device_memory += device;
}

static void add_disk(const struct agent_job *j, int self, enum agent_role role,
                     const struct agent_found *found, struct agent_needs *n) {
    struct intra_trainable t;
    struct intra_model_config m = model_of(j, role, found, &t);
    struct intra_cost_params p = intra_cost_count(&m, &t);
    double exchange = has_outer(j, self) ? EXCHANGE_BYTES : 0,
           second = (double)(j->optim.kind == INTRA_OPTIM_MUON ? p.second : p.trainable),
           state = 4 * (double)p.all + (4 + exchange) * (double)p.trainable + 4 * second;
    int32_t others = exchanges(j, self) ? SNAPSHOTS : 0;
    // the checkpoints to keep, one that is being written, snapshots, and the final model
    n->disk += state * (j->checkpoint_keep + 1 + others) + 4 * (double)p.all;
    if (role == AGENT_ROLE_STUDENT && j->distill.cache[0])
        n->disk += (double)j->steps * n->step_tokens * LABEL_BYTES *
                   fmax(1, fmax(j->distill.k, j->distill.k_max));
}

void agent_job_needs(const struct agent_job *j, int self, const struct agent_found *found,
                     struct agent_needs *n) {
    const struct agent_cluster *c = &j->clusters[self];
    *n = (struct agent_needs){0};
    if (c->witness)
        return;
    n->step_tokens = step_tokens(j);
    // the site decides about an attached trainer itself
    bool own = c->launcher == AGENT_LAUNCHER_ATTACH;
    bool devices = agent_job_takes_devices(j);
    n->step_tokens *= one_process(j) && j->mode == AGENT_MODE_REPLICAS ? agent_job_training(j) : 1;
    n->on_devices = !own && devices && c->device != AGENT_DEVICE_CPU;
    n->on_processors = !own && (!devices || c->device != AGENT_DEVICE_CUDA);
    for (int i = 0; i < j->n_clusters; i++) {
        if (!agent_job_runs(j, self, i))
            continue;
        if (!own)
            add_memory(j, self, j->clusters[i].role, found, n);
        if (!j->attached)
            add_disk(j, self, j->clusters[i].role, found, n);
    }
}
