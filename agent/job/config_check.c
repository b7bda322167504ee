// SPDX-License-Identifier: Apache-2.0
// Checks whether the values of a job fit each other.
#include "agent/base/bytes.h"
#include "agent/job/config_options.h"
#include "agent/job/model.h"
#include "agent/job/private.h"
#include "agent/job/tune.h"
#include "agent/job/wan_spec.h"
#include "inter/link/rate_limit.h"
#include "inter/record/robust.h"
#include "intra/model/rope.h"
#include "security/identity.h"

#include <string.h>

// Every check uses these two names: the job j, and its `file` for the complaint.
#define BAD(path, ...)            COMPLAIN_OF(j, file, path, __VA_ARGS__)
#define BAD_CLUSTER(i, path, ...) COMPLAIN_OF_CLUSTER(j, i, file, path, __VA_ARGS__)

const char *agent_role_name(enum agent_role role) { return config_role_names[role]; }

const char *agent_job_corpus(const struct agent_job *j, int cluster) {
    const char *own = j->clusters[cluster].corpus;
    return own[0] ? own : j->corpus;
}

int agent_job_role(const struct agent_job *j, enum agent_role role) {
    for (int i = 0; i < j->n_clusters; i++)
        if (j->clusters[i].role == role)
            return i;
    return -1;
}

int32_t agent_job_exchanging(const struct agent_job *j) {
    int32_t n = 0;
    for (int32_t i = 0; i < j->n_clusters; i++)
        n += !j->clusters[i].witness &&
             (j->mode != AGENT_MODE_DISTILL || j->clusters[i].role == AGENT_ROLE_STUDENT);
    return n > 0 ? n : 1;
}

int32_t agent_job_training(const struct agent_job *j) {
    int32_t n = 0;
    for (int i = 0; i < j->n_clusters; i++)
        n += !j->clusters[i].witness;
    return n;
}

int agent_job_init_cluster(const struct agent_job *j) {
    if (j->init != AGENT_INIT_FROM)
        return -1;
    for (int i = 0; i < j->n_clusters; i++)
        if (!strcmp(j->clusters[i].name, j->init_cluster))
            return i;
    return 0;
}

uint64_t agent_job_step_tokens(const struct agent_job *j) {
    bool foreign = false;
    if (j->attached)
        return (uint64_t)j->step_tokens;
    for (int i = 0; i < j->n_clusters; i++)
        foreign |= j->clusters[i].launcher == AGENT_LAUNCHER_ATTACH;
    return (uint64_t)j->batch * (uint64_t)j->accumulate * (uint64_t)j->seq_len *
           (foreign ? AGENT_FOREIGN_TOKENS : 1);
}

// Sizes of a step. This runs first: later checks multiply these numbers.
static enum neb_status validate_step(const struct agent_job *j, const char *file) {
    if ((int64_t)j->batch * j->seq_len > INTRA_MICRO_TOKENS_MAX)
        return BAD("data.batch",
                   "%d x data.seq_len %d is more than %d tokens in a micro-batch; lower one of "
                   "them and raise data.accumulate",
                   j->batch, j->seq_len, INTRA_MICRO_TOKENS_MAX);
    if ((int64_t)j->batch * j->accumulate > CONFIG_SEQUENCES_MAX)
        return BAD("data.accumulate", "%d x data.batch %d is more than %d sequences in a step",
                   j->accumulate, j->batch, CONFIG_SEQUENCES_MAX);
    return NEB_OK;
}

// The model of a cluster. False: its shape is that of a teacher's checkpoint.
static bool model_of(const struct agent_job *j, const struct agent_cluster *c,
                     struct intra_model_config *m) {
    int32_t vocab = j->model.vocab ? j->model.vocab : INT32_MAX; // as in the corpus: not known here
    const struct agent_shape *shape = c->role == AGENT_ROLE_GENERATOR ? &j->rtd.shape
                                      : c->role == AGENT_ROLE_TEACHER ? &j->distill.shape
                                                                      : NULL;
    *m = agent_job_model(j, shape, vocab, KERN_MASK_CAUSAL);
    return c->role != AGENT_ROLE_TEACHER || !j->distill.teacher[0];
}

// The mesh of every cluster divides its model and the sequences of a step.
static enum neb_status validate_meshes(const struct agent_job *j, const char *file) {
    struct intra_model_config m;
    for (int32_t i = 0; i < j->n_clusters; i++) {
        const struct agent_cluster *c = &j->clusters[i];
        if (c->device == AGENT_DEVICE_CPU && c->outer_state == AGENT_OUTER_DEVICE)
            return BAD_CLUSTER(
                i, "clusters.outer_state",
                "cluster %s: \"device\" needs device: cuda; remove this key, or set it to host",
                c->name);
        if (c->device == AGENT_DEVICE_CPU && c->cuda_graphs == AGENT_GRAPHS_ON)
            return BAD_CLUSTER(
                i, "clusters.cuda_graphs",
                "cluster %s: \"on\" needs device: cuda; remove this key, or set it to off",
                c->name);
        if (agent_cluster_ranks(c) == 1)
            continue;
        if (c->mesh.tp > 1 && c->cuda_graphs == AGENT_GRAPHS_ON)
            return BAD_CLUSTER(
                i, "clusters.cuda_graphs",
                "cluster %s: \"on\" needs tp 1: a communicator inside a CUDA graph cannot be "
                "aborted while it hangs; remove this key, or set it to off",
                c->name);
        if (agent_cluster_ranks(c) > MESH_RANKS_MAX)
            return BAD_CLUSTER(i, "clusters.mesh", "cluster %s: %d ranks; the limit is %d", c->name,
                               agent_cluster_ranks(c), MESH_RANKS_MAX);
        if (model_of(j, c, &m) && intra_mesh_check(&c->mesh, &m) != NEB_OK)
            return BAD_CLUSTER(i, "clusters.mesh", "cluster %s cannot run this model", c->name);
        if ((int64_t)j->accumulate * j->batch % c->mesh.dp)
            return BAD_CLUSTER(i, "clusters.mesh",
                               "cluster %s: dp %d does not divide the sequences of a step, "
                               "data.batch %d x data.accumulate %d; the replicas get equal shares",
                               c->name, c->mesh.dp, j->batch, j->accumulate);
    }
    return NEB_OK;
}

// Clusters with a micro-batch or recompute of their own.
static enum neb_status validate_micro_batches(const struct agent_job *j, const char *file) {
    int64_t sequences = (int64_t)j->batch * j->accumulate;
    for (int32_t i = 0; i < j->n_clusters; i++) {
        const struct agent_cluster *c = &j->clusters[i];
        const char *key = c->batch ? "clusters.batch" : "clusters.recompute";
        if (!c->batch && !c->recompute)
            continue;
        if (j->mode != AGENT_MODE_REPLICAS || j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
            return BAD_CLUSTER(i, key,
                               "cluster %s: all clusters have the job's micro-batches in modes rtd "
                               "and distill and with sync.scheme: synchronous; remove it",
                               c->name);
        if (c->launcher == AGENT_LAUNCHER_ATTACH || c->witness)
            return BAD_CLUSTER(i, key, "cluster %s: %s; remove it", c->name,
                               c->witness ? "a witness trains nothing"
                                          : "an attached trainer chooses its own micro-batches");
        if ((int64_t)c->batch * j->seq_len > INTRA_MICRO_TOKENS_MAX)
            return BAD_CLUSTER(
                i, key, "cluster %s: %d x data.seq_len %d is more than %d tokens in a micro-batch",
                c->name, c->batch, j->seq_len, INTRA_MICRO_TOKENS_MAX);
        if (c->batch && sequences % c->batch)
            return BAD_CLUSTER(i, key,
                               "cluster %s: %d does not divide the sequences of a step, data.batch "
                               "%d x data.accumulate %d",
                               c->name, c->batch, j->batch, j->accumulate);
        if (c->batch && sequences / c->batch > CONFIG_BATCH_MAX)
            return BAD_CLUSTER(i, key, "cluster %s: %d makes more than %d micro-batches in a step",
                               c->name, c->batch, CONFIG_BATCH_MAX);
    }
    return NEB_OK;
}

bool agent_job_takes_devices(const struct agent_job *j) {
    return j->mode == AGENT_MODE_REPLICAS || j->sync.scheme != AGENT_SCHEME_SYNCHRONOUS;
}

// The mesh of a side.
static enum neb_status validate_side_mesh(const struct agent_job *j, int32_t i, const char *file) {
    const struct agent_cluster *c = &j->clusters[i];
    const char *mode = j->mode == AGENT_MODE_RTD ? "rtd" : "distill";
    if (c->mesh_auto)
        return BAD_CLUSTER(i, "clusters.mesh",
                           "cluster %s: \"auto\" needs mode: replicas; in mode %s give the numbers "
                           "of ranks, such as {dp: 2}",
                           c->name, mode);
    if (agent_cluster_ranks(c) == 1)
        return NEB_OK;
    if (!agent_job_takes_devices(j))
        return BAD_CLUSTER(i, "clusters.mesh",
                           "cluster %s: mode %s with sync.scheme: synchronous is one process; "
                           "remove it",
                           c->name, mode);
    if (c->role_auto)
        return BAD_CLUSTER(i, "clusters.mesh",
                           "cluster %s: role: auto leaves the model open that the mesh divides; "
                           "give the role, or remove the mesh",
                           c->name);
    return NEB_OK;
}

// In one process modes rtd and distill train on processors, on one rank. A key that asks for more
// would do nothing, so it is refused.
static enum neb_status validate_places(const struct agent_job *j, const char *file) {
    char why[96];
    const char *mode = j->mode == AGENT_MODE_RTD ? "rtd" : "distill";
    for (int32_t i = 0; j->mode != AGENT_MODE_REPLICAS && i < j->n_clusters; i++) {
        const struct agent_cluster *c = &j->clusters[i];
        bool anywhere = agent_job_takes_devices(j),
             federated = j->mode == AGENT_MODE_DISTILL && j->distill.federate &&
                         (c->role == AGENT_ROLE_STUDENT || c->role_auto);
        NEB_TRY(validate_side_mesh(j, i, file));
        const struct {
            bool asked, ok; // ok: if the sides may train on devices
            const char *key, *value, *allowed, *why;
        } keys[] = {
            {c->device == AGENT_DEVICE_CUDA, true, "clusters.device", "cuda", "auto, cpu", ""},
            {c->outer_state == AGENT_OUTER_DEVICE, federated, "clusters.outer_state", "device",
             "auto, host",
             j->mode == AGENT_MODE_RTD ? "mode rtd merges no updates"
                                       : "only students with distill.federate merge updates"},
            {c->cuda_graphs == AGENT_GRAPHS_ON, c->role == AGENT_ROLE_DISCRIMINATOR,
             "clusters.cuda_graphs", "on", "auto, off",
             "only a discriminator's passes always have the same shape"},
        };
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            if (!keys[k].asked || (anywhere && keys[k].ok))
                continue;
            snprintf(why, sizeof why, "mode %s with sync.scheme: synchronous trains on processors",
                     mode);
            return BAD_CLUSTER(i, keys[k].key, "cluster %s: \"%s\", but %s; allowed: %s", c->name,
                               keys[k].value, anywhere ? keys[k].why : why, keys[k].allowed);
        }
    }
    return NEB_OK;
}

static enum neb_status validate_heads(const struct agent_job *j, const struct agent_shape *x,
                                      const char *key, const char *file) {
    int32_t width = x->d_model ? x->d_model : j->model.d_model,
            heads = x->n_heads ? x->n_heads : j->model.n_heads;
    if ((x->d_model || x->n_heads) && (width % heads || width / heads % 2 || width / heads > 256))
        return BAD(key, "%d / %d heads is not an even number in 2..256", width, heads);
    return NEB_OK;
}

static int count_roles(const struct agent_job *j, enum agent_role role) {
    int n = 0;
    for (int i = 0; i < j->n_clusters; i++)
        n += j->clusters[i].role == role;
    return n;
}

static int count_auto(const struct agent_job *j) {
    int n = 0;
    for (int i = 0; i < j->n_clusters; i++)
        n += j->clusters[i].role_auto;
    return n;
}

static enum neb_status validate_auto_roles(const struct agent_job *j, const char *file) {
    for (int i = 0; i < j->n_clusters; i++) {
        const struct agent_cluster *c = &j->clusters[i];
        if (c->role_auto && j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
            return BAD_CLUSTER(i, "clusters.role",
                               "cluster %s: auto does not work with sync.scheme: synchronous, "
                               "which is one process; give its role",
                               c->name);
        if (c->role_auto && c->n_sources)
            return BAD_CLUSTER(i, "clusters.sources",
                               "cluster %s: only the generator has sources; with role: auto remove "
                               "them, or give the role",
                               c->name);
    }
    return NEB_OK;
}

static enum neb_status validate_rtd(const struct agent_job *j, const char *file) {
    const struct agent_rtd_config *r = &j->rtd;
    int d = agent_job_role(j, AGENT_ROLE_DISCRIMINATOR);
    for (int i = 0; j->mode != AGENT_MODE_RTD && i < j->n_clusters; i++)
        if ((j->clusters[i].role || j->clusters[i].role_auto) && j->mode != AGENT_MODE_DISTILL)
            return BAD_CLUSTER(i, "clusters.role", "only modes rtd and distill have roles");
    if (j->mode != AGENT_MODE_RTD)
        return NEB_OK;
    // a cluster with role auto takes the missing role
    if (j->n_clusters != 2 || count_roles(j, AGENT_ROLE_GENERATOR) > 1 ||
        count_roles(j, AGENT_ROLE_DISCRIMINATOR) > 1 ||
        count_roles(j, AGENT_ROLE_GENERATOR) + count_roles(j, AGENT_ROLE_DISCRIMINATOR) +
                count_auto(j) !=
            2)
        return BAD("clusters", "mode rtd needs two: one with role generator and one with role "
                               "discriminator; either role may be auto");
    NEB_TRY(validate_auto_roles(j, file));
    if (d >= 0 && j->clusters[d].n_sources)
        return BAD_CLUSTER(d, "clusters.sources",
                           "cluster %s: only the generator's sources are used; remove these",
                           j->clusters[d].name);
    if (j->sync.scheme == AGENT_SCHEME_NONE)
        return BAD("sync.scheme", "none: mode rtd needs federated, or synchronous for one process");
    if (j->trainable.mode != INTRA_TRAIN_FULL || j->trainable.freeze_embeddings ||
        j->init_from[0] || j->model_init[0])
        return BAD(j->model_init[0]  ? "model.init"
                   : j->init_from[0] ? "init_from"
                                     : "trainable",
                   "mode rtd trains all parameters from scratch; remove it");
    if (j->autos)
        return BAD("mode", "mode rtd allows auto only for clusters.role");
    int32_t cycle =
        r->generator_steps > r->discriminator_steps ? r->generator_steps : r->discriminator_steps;
    if (r->share_embeddings && ((r->shape.d_model && r->shape.d_model != j->model.d_model) ||
                                r->share_embeddings % cycle || r->share_embeddings < r->ahead))
        return BAD("rtd.share_embeddings",
                   "needs one width for both models, and a multiple of the %d steps of the ratio "
                   "that is at least rtd.ahead %d",
                   cycle, r->ahead);
    return validate_heads(j, &r->shape, "rtd.generator.d_model", file);
}

static bool teachers_last(const struct agent_job *j, int teachers) {
    bool last = true;
    for (int i = j->n_clusters - teachers; i < j->n_clusters; i++)
        last = last && (j->clusters[i].role == AGENT_ROLE_TEACHER || j->clusters[i].role_auto);
    return last;
}

// Combinations of distill.source that make no sense.
static enum neb_status validate_source(const struct agent_job *j, int teachers, const char *file) {
    const struct agent_distill_config *d = &j->distill;
    bool student = d->source == AGENT_TEXT_STUDENT;
    const char *key = NULL, *why = NULL;
    if (d->source == AGENT_TEXT_CORPUS)
        return NEB_OK;
    if (j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
        key = "sync.scheme", why = "needs sync.scheme: federated";
    else if (!teachers && (student || !d->cache[0]))
        key = "distill.source", why = "needs a teacher";
    else if (d->learn)
        key = "distill.teacher.learn",
        why = "a teacher does not learn from text that a model wrote";
    else if (student && !d->pushed)
        key = "distill.push_text", why = "needs true: the student sends its samples";
    else if (student && d->cache[0])
        key = "distill.cache",
        why = "labels of samples serve only the run that drew them; remove it";
    else if (!student && d->align == AGENT_ALIGN_TEXT)
        key = "distill.align", why = "needs same: the answers are in the student's vocabulary";
    else if (!student && teachers > 1)
        key = "clusters.role", why = "needs one teacher: the answers of several differ";
    return key ? BAD(key, "distill.source: %s: %s", student ? "student" : "teacher", why) : NEB_OK;
}

// Every teacher has a model: a checkpoint, its program's, or one that learns.
static enum neb_status validate_teachers(const struct agent_job *j, int teachers,
                                         const char *file) {
    const struct agent_distill_config *d = &j->distill;
    bool open = teachers > count_roles(j, AGENT_ROLE_TEACHER); // a cluster with role auto
    bool maps = d->align == AGENT_ALIGN_SAME;
    if (open && !d->teacher[0] && !d->learn)
        return BAD("distill.teacher.init", "a teacher that does not learn needs a checkpoint");
    for (int i = 0; i < j->n_clusters; i++) {
        const struct agent_cluster *c = &j->clusters[i];
        bool attached = c->launcher == AGENT_LAUNCHER_ATTACH, init = d->teacher[0] || c->init[0];
        if (c->role != AGENT_ROLE_TEACHER)
            continue;
        if (attached && c->init[0])
            return BAD_CLUSTER(i, "clusters.init",
                               "cluster %s has launcher attach: its program has its own model; "
                               "remove it",
                               c->name);
        if (attached && (d->learn || (d->teacher[0] && teachers == 1)))
            return BAD(d->learn ? "distill.teacher.learn" : "distill.teacher.init",
                       "cluster %s has launcher attach: its program has its own model; remove it",
                       c->name);
        if (!attached && !init && !d->learn)
            return BAD("distill.teacher.init", "a teacher that does not learn needs a checkpoint");
        maps = maps || attached;
    }
    return maps ? NEB_OK : BAD("distill.align", "text needs a teacher with launcher: attach");
}

static enum neb_status validate_distill(const struct agent_job *j, const char *file) {
    const struct agent_distill_config *d = &j->distill;
    int teachers = count_roles(j, AGENT_ROLE_TEACHER), autos = count_auto(j),
        students = count_roles(j, AGENT_ROLE_STUDENT);
    if (j->mode != AGENT_MODE_DISTILL)
        return NEB_OK;
    NEB_TRY(validate_auto_roles(j, file));
    students += teachers || !autos ? autos : autos - 1; // without a teacher one of them teaches
    teachers += !teachers && autos;
    if (j->autos)
        return BAD("mode", "mode distill allows auto only for clusters.role");
    for (int i = 0; i < j->n_clusters; i++)
        if (j->clusters[i].n_sources)
            return BAD_CLUSTER(
                i, "clusters.sources",
                "cluster %s: mode distill uses all sources of the corpus; remove these",
                j->clusters[i].name);
    if (students < 1 || teachers + students != j->n_clusters)
        return BAD("clusters.role", "mode distill needs a student; every cluster is a teacher or a "
                                    "student");
    if (j->clusters[0].role != AGENT_ROLE_STUDENT && j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
        return BAD("clusters", "synchronous: list the student first");
    if (teachers && j->sync.scheme == AGENT_SCHEME_NONE)
        return BAD("sync.scheme", "none: the teacher could not send its labels");
    if (teachers && students > 1 && j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
        return BAD("sync.scheme", "synchronous: one process has only one student");
    if (teachers > 1 && autos)
        return BAD("clusters.role", "auto finds one teacher: with several teachers give all roles");
    if (teachers > 1 && (d->relay || d->cache[0] || j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS))
        return BAD("clusters.role",
                   "several teachers need %s: a student learns from the labels of all of them",
                   d->relay      ? "distill.relay: false"
                   : d->cache[0] ? "no distill.cache"
                                 : "sync.scheme: federated");
    if (teachers && !d->k && j->sync.scheme != AGENT_SCHEME_SYNCHRONOUS)
        return BAD("distill.k",
                   "0 (all logits) needs sync.scheme: synchronous; otherwise give 1..64");
    if ((d->k_min && d->k_min > d->k) || (d->k_max && d->k_max < d->k) ||
        (!d->k && (d->k_min || d->k_max)))
        return BAD("distill.k", "%d is not between k_min %d and k_max %d", d->k, d->k_min,
                   d->k_max);
    if (d->federate && (students < 2 || d->relay || j->sync.scheme != AGENT_SCHEME_FEDERATED ||
                        !teachers_last(j, teachers)))
        return BAD("distill.federate", "needs two students or more, sync.scheme: federated, no "
                                       "relay, and the teachers as the last of the clusters");
    if (d->relay && (!teachers || d->pushed || j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS))
        return BAD("distill.relay", "needs a teacher, push_text: false, and several processes (no "
                                    "sync.scheme: synchronous)");
    if (d->pushed && j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
        return BAD("distill.push_text", "synchronous: one process sends nothing; remove it");
    NEB_TRY(validate_source(j, teachers, file));
    NEB_TRY(validate_teachers(j, teachers, file));
    return validate_heads(j, &d->shape, "distill.teacher.d_model", file);
}

static enum neb_status validate_shape(const struct agent_job *j, const char *file) {
    if (!j->model.head_dim && j->model.d_model % j->model.n_heads)
        return BAD("model.d_model", "%d is not a multiple of n_heads %d; set head_dim",
                   j->model.d_model, j->model.n_heads);
    int32_t kv = j->model.n_kv_heads ? j->model.n_kv_heads : j->model.n_heads;
    int32_t head_dim = j->model.head_dim ? j->model.head_dim : j->model.d_model / j->model.n_heads;
    if (j->model.n_heads % kv)
        return BAD("model.n_kv_heads", "%d does not divide n_heads %d", kv, j->model.n_heads);
    if (head_dim % 2 || head_dim < 2 || head_dim > 256)
        return BAD("model.head_dim",
                   "%d is not an even number in 2..256; choose d_model, n_heads or head_dim",
                   head_dim);
    char path[64], why[INTRA_ROPE_TEXT];
    const char *key = intra_rope_check(&j->model.rope_scaling, why);
    snprintf(path, sizeof path, "model.rope_scaling.%s", key ? key : "");
    return key ? BAD(path, "%s", why) : NEB_OK;
}

// A key with auto holds a default that the planner replaces, so it cannot conflict with another
// key.
static bool is_open(const struct agent_job *j, uint32_t bit) { return j->autos & bit; }

static enum neb_status validate_tune(const struct agent_job *j, const char *file) {
    const struct agent_tune *t = &j->sync.tune;
    bool no_overlap = is_open(j, AGENT_AUTO_OVERLAP), no_interval = is_open(j, AGENT_AUTO_INTERVAL);
    if (t->mode == AGENT_TUNE_FIXED)
        return NEB_OK;
    if (t->finest > t->coarsest)
        return BAD("sync.tune.finest", "%s is coarser than sync.tune.coarsest %s",
                   cmp_level(t->finest)->name, cmp_level(t->coarsest)->name);
    if (!is_open(j, AGENT_AUTO_CODEC) && !agent_tune_admits(t, j->sync.codec))
        return BAD("sync.tune",
                   "auto starts from sync.codec, and %s is not between %s and %s "
                   "(sync.tune.finest, coarsest)",
                   j->sync.codec, cmp_level(t->finest ? t->finest : 1)->name,
                   cmp_level(t->coarsest)->name);
    if (t->overlap_max && ((!no_overlap && t->overlap_max < j->sync.overlap) ||
                           (!no_interval && t->overlap_max >= j->sync.interval)))
        return BAD("sync.tune.overlap_max",
                   "%d must be at least sync.overlap %d and below sync.interval %d", t->overlap_max,
                   j->sync.overlap, j->sync.interval);
    if (t->interval_max && !no_interval && t->interval_max < j->sync.interval)
        return BAD("sync.tune.interval_max", "%d must not be below sync.interval %d",
                   t->interval_max, j->sync.interval);
    if (t->interval_max && t->overlap_max >= t->interval_max)
        return BAD("sync.tune.overlap_max", "%d must be below sync.tune.interval_max %d",
                   t->overlap_max, t->interval_max);
    return NEB_OK;
}

// Names, witnesses, and enough clusters for the gate.
static enum neb_status validate_clusters(const struct agent_job *j, const char *file) {
    if (j->n_clusters < 1)
        return BAD("clusters", "is missing: list at least one, with a name");
    // A cluster has the name of its agent; the synchronous reference has only one agent.
    int32_t agents = j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS ? 1 : j->n_clusters;
    for (int32_t i = 0; i < agents; i++)
        if (!sec_name_valid(j->clusters[i].name))
            return BAD_CLUSTER(i, "clusters.name",
                               "\"%s\" is not the name of an agent: 1 to %d characters of a-z 0-9 "
                               "- _ ., the first one a letter or digit",
                               j->clusters[i].name, SEC_NAME_MAX - 1);
    for (int32_t i = 0; i < j->n_clusters; i++)
        for (int32_t k = 0; k < i; k++)
            if (!strcmp(j->clusters[i].name, j->clusters[k].name))
                return BAD_CLUSTER(i, "clusters.name", "two clusters have the name \"%s\"",
                                   j->clusters[i].name);
    int32_t data = 0;
    for (int32_t i = 0; i < j->n_clusters; i++)
        data += !j->clusters[i].witness;
    for (int32_t i = 1; i < j->n_clusters; i++)
        if (j->clusters[i - 1].witness && !j->clusters[i].witness)
            return BAD_CLUSTER(i, "clusters.witness", "\"%s\" trains: list it before the witnesses",
                               j->clusters[i].name);
    if (data < j->n_clusters && (data < 2 || j->n_clusters < 3))
        return BAD("clusters.witness",
                   "a witness needs two or more clusters that train; this job has %d", data);
    if (j->sync.gate == AGENT_GATE_ROBUST && (data < INTER_ROBUST_MEMBERS || data < j->n_clusters))
        return BAD("sync.gate",
                   "robust needs %d clusters that train, and no witness, to outvote one bad "
                   "cluster; here %d of %d clusters train: use trusted, or add clusters",
                   INTER_ROBUST_MEMBERS, data, j->n_clusters);
    const char *key;
    char text[512];
    if (!agent_private_allows(j, &key, text, sizeof text))
        return BAD(key, "%s", text);
    return NEB_OK;
}

// The trainer that attaches chooses its device and types, so these keys would do nothing.
static enum neb_status validate_attached_place(const struct agent_job *j, int i, const char *file) {
    const struct agent_cluster *c = &j->clusters[i];
    const struct {
        bool asked;
        const char *key;
    } keys[] = {{c->device != AGENT_DEVICE_AUTO, "clusters.device"},
                {c->precision != AGENT_PRECISION_AUTO, "clusters.precision"},
                {c->cuda_graphs != AGENT_GRAPHS_AUTO, "clusters.cuda_graphs"}};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        if (keys[k].asked)
            return BAD_CLUSTER(
                i, keys[k].key,
                "cluster %s: an attached trainer chooses its own devices and types; remove it",
                c->name);
    return NEB_OK;
}

// Keys that only a teacher has.
static enum neb_status validate_teacher_keys(const struct agent_job *j, const char *file) {
    for (int32_t i = 0; i < j->n_clusters; i++) {
        const struct agent_cluster *c = &j->clusters[i];
        if (c->role != AGENT_ROLE_TEACHER && (c->init[0] || c->weight > 0))
            return BAD_CLUSTER(i, c->init[0] ? "clusters.init" : "clusters.weight",
                               "cluster %s: only a cluster with role teacher has this key; remove "
                               "it",
                               c->name);
    }
    return NEB_OK;
}

static enum neb_status validate_attach(const struct agent_job *j, const char *file) {
    for (int32_t i = 0; i < j->n_clusters; i++) {
        if (j->clusters[i].launcher != AGENT_LAUNCHER_ATTACH)
            continue;
        if (j->mode == AGENT_MODE_RTD)
            return BAD_CLUSTER(i, "clusters.launcher",
                               "\"%s\": attach needs mode: replicas or distill",
                               j->clusters[i].name);
        if (j->mode == AGENT_MODE_DISTILL &&
            (j->clusters[i].role_auto || !j->distill.pushed || j->distill.federate))
            return BAD_CLUSTER(i, "clusters.launcher",
                               "\"%s\": in mode distill attach needs its role, "
                               "distill.push_text: true and no distill.federate",
                               j->clusters[i].name);
        NEB_TRY(validate_attached_place(j, i, file));
        if (!j->attached && !j->model.vocab)
            return BAD("model.vocab",
                       "is missing: \"%s\" has launcher attach, and its trainer has no corpus that "
                       "gives the size",
                       j->clusters[i].name);
        if (agent_cluster_ranks(&j->clusters[i]) > 1)
            return BAD_CLUSTER(
                i, "clusters.mesh",
                "\"%s\" has launcher attach: its trainer has its own ranks; remove it",
                j->clusters[i].name);
        if (j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
            return BAD_CLUSTER(i, "clusters.launcher",
                               "attach does not work with sync.scheme: synchronous");
    }
    return NEB_OK;
}

static enum neb_status validate_init(const struct agent_job *j, const char *file) {
    bool known = !j->init_cluster[0];
    if (!j->attached && (j->init != AGENT_INIT_SEED || j->init_cluster[0]))
        return BAD(j->init_cluster[0] ? "init.from" : "init",
                   "needs model: attached; the built-in model has init_from and seed");
    if (j->attached && j->init == AGENT_INIT_SEED)
        return BAD("init", "seed needs a built-in model; allowed: equal, {from: CLUSTER}");
    if (j->init == AGENT_INIT_EQUAL && j->init_cluster[0])
        return BAD("init", "equal and from exclude each other; remove one");
    for (int32_t i = 0; i < j->n_clusters; i++)
        known |= !j->clusters[i].witness && !strcmp(j->clusters[i].name, j->init_cluster);
    return known ? NEB_OK
                 : BAD("init.from", "\"%s\" is not a cluster that trains", j->init_cluster);
}

// The agent knows nothing of such a model before a trainer attaches.
static enum neb_status validate_attached(const struct agent_job *j, const char *file) {
    const struct {
        bool bad;
        const char *key, *text;
    } rules[] = {
        {j->mode != AGENT_MODE_REPLICAS, "mode", "model: attached needs replicas"},
        {j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS, "sync.scheme",
         "model: attached does not work with synchronous, which runs in one process of ours"},
        {is_open(j, AGENT_AUTO_INTERVAL), "sync.interval",
         "auto needs a built-in model, whose steps the planner can time: give a number"},
        {is_open(j, AGENT_AUTO_OVERLAP), "sync.overlap",
         "auto needs a built-in model, whose steps the planner can time: give a number"},
        {is_open(j, AGENT_AUTO_CODEC), "sync.codec",
         "auto needs a built-in model, whose size the planner knows: give a codec"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].bad)
            return BAD(rules[i].key, "%s", rules[i].text);
    for (int32_t i = 0; i < j->n_clusters; i++) {
        const struct agent_cluster *c = &j->clusters[i];
        if (!c->witness && c->launcher != AGENT_LAUNCHER_ATTACH)
            return BAD_CLUSTER(i, "clusters.launcher",
                               "\"%s\" must have launcher: attach: with model: attached the "
                               "tensors come from a loop of the site's own",
                               c->name);
        if (c->corpus[0] || c->n_sources)
            return BAD_CLUSTER(i, c->corpus[0] ? "clusters.corpus" : "clusters.sources",
                               "cluster %s: an attached trainer reads its own data; remove it",
                               c->name);
    }
    return NEB_OK;
}

static enum neb_status validate_digests(const struct agent_job *j, const char *file) {
    const struct {
        const char *key, *hex;
    } all[] = {{"data.tokenizer_sha256", j->tokenizer_sha256}, {"init_sha256", j->init_sha256}};
    uint8_t sha[NEB_SHA256_BYTES];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].hex[0] && !neb_unhex(all[i].hex, sha, sizeof sha))
            return BAD(all[i].key, "\"%s\" is not a SHA-256 of 64 lower-case hexadecimal digits",
                       all[i].hex);
    return NEB_OK;
}

static enum neb_status validate_corpora(const struct agent_job *j, const char *file) {
    for (int i = 1; j->mode == AGENT_MODE_REPLICAS && j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS &&
                    i < j->n_clusters;
         i++)
        if (!j->clusters[i].witness && strcmp(agent_job_corpus(j, i), agent_job_corpus(j, 0)) != 0)
            return BAD_CLUSTER(i, "clusters.corpus",
                               "sync.scheme: synchronous is one process with one corpus, but "
                               "clusters %s and %s have different ones",
                               j->clusters[i].name, j->clusters[0].name);
    return NEB_OK;
}

static enum neb_status validate_eval(const struct agent_job *j, const char *file) {
    if (j->eval_every && j->mode != AGENT_MODE_REPLICAS)
        return BAD("eval.every_steps",
                   "%d: modes rtd and distill evaluate only at the end; remove it", j->eval_every);
    return NEB_OK;
}

// The number of parts that learn. Fragments do not cut a part (intra_shards_fragments()): the
// embedding, each layer, the final norm with the output.
static int32_t count_parts(const struct agent_job *j) {
    switch (j->trainable.mode) {
    case INTRA_TRAIN_FULL: return j->model.n_layers + 1 + !j->trainable.freeze_embeddings;
    case INTRA_TRAIN_LORA: return j->model.n_layers;
    case INTRA_TRAIN_BITFIT: return j->model.n_layers + 1;
    case INTRA_TRAIN_LAST_LAYERS: return j->trainable.last_layers + 1;
    }
    return 1;
}

static enum neb_status validate_fragments(const struct agent_job *j, const char *file) {
    int32_t parts = count_parts(j);
    if (j->sync.scheme == AGENT_SCHEME_FEDERATED && j->mode != AGENT_MODE_RTD && !j->attached &&
        !j->n_groups && j->sync.fragments > parts)
        return BAD("sync.fragments",
                   "%d, but the trained parameters have only %d parts (layers, embedding, output): "
                   "use %d or fewer",
                   j->sync.fragments, parts, parts);
    return NEB_OK;
}

static enum neb_status validate_sync(const struct agent_job *j, const char *file) {
    struct inter_rate_limit limit;
    if (inter_rate_limit_parse(j->rate_limit, &limit) != NEB_OK) // the parser has logged why
        return BAD("wan.rate_limit",
                   "\"%s\" is not a rate such as 20mbit, or 100mbit 08:00-18:00=20mbit",
                   j->rate_limit);
    if (j->sync.early_steps % j->sync.early_interval)
        return BAD("sync.early_steps", "%d is not a multiple of sync.early_interval %d",
                   j->sync.early_steps, j->sync.early_interval);
    int32_t fragments = agent_job_fragments(j);
    const char *of = j->n_groups ? "the fragments of all groups," : "sync.fragments";
    if (j->sync.early_steps &&
        (j->sync.overlap >= j->sync.early_interval || fragments > j->sync.early_interval))
        return BAD("sync.early_interval", "%d must be above sync.overlap %d and at least %s %d",
                   j->sync.early_interval, j->sync.overlap, of, fragments);
    struct agent_wan link;
    if (j->sync.link[0] && agent_wan_parse(j->sync.link, "sync.link", &link) != NEB_OK)
        return BAD("sync.link", "\"%s\" does not describe a link", j->sync.link);
    bool written = !is_open(j, AGENT_AUTO_INTERVAL);
    if (written && !is_open(j, AGENT_AUTO_OVERLAP) && j->sync.overlap >= j->sync.interval)
        return BAD("sync.overlap", "%d must be below sync.interval %d", j->sync.overlap,
                   j->sync.interval);
    if (written && fragments > j->sync.interval)
        return BAD(j->n_groups ? "groups" : "sync.fragments",
                   "%d%s must not be above sync.interval %d", fragments,
                   j->n_groups ? " fragments in all groups" : "", j->sync.interval);
    return NEB_OK;
}

static enum neb_status validate_trainable(const struct agent_job *j, const char *file) {
    if (j->trainable.mode == INTRA_TRAIN_LORA &&
        (j->trainable.lora_rank < 1 || !j->trainable.lora_targets))
        return BAD("trainable.rank", "lora needs a rank of 1 or more and at least one target");
    if (j->trainable.mode == INTRA_TRAIN_LAST_LAYERS &&
        (j->trainable.last_layers < 1 || j->trainable.last_layers > j->model.n_layers))
        return BAD("trainable.n", "%d is not in 1..%d", j->trainable.last_layers,
                   j->model.n_layers);
    return NEB_OK;
}

// Checks keys that only a job with a built-in model has.
static enum neb_status validate_built_in(const struct agent_job *j, const char *file) {
    NEB_TRY(validate_shape(j, file));
    NEB_TRY(validate_places(j, file));
    NEB_TRY(validate_meshes(j, file));
    NEB_TRY(validate_micro_batches(j, file));
    NEB_TRY(validate_rtd(j, file));
    NEB_TRY(validate_distill(j, file));
    NEB_TRY(validate_digests(j, file));
    NEB_TRY(validate_corpora(j, file));
    NEB_TRY(validate_eval(j, file));
    NEB_TRY(validate_trainable(j, file));
    return validate_fragments(j, file);
}

enum neb_status agent_job_validate(const struct agent_job *j, const char *file) {
    NEB_TRY(validate_step(j, file));
    NEB_TRY(validate_clusters(j, file));
    NEB_TRY(validate_init(j, file));
    if (!j->attached && j->model_init[0] &&
        !(j->model.n_layers && j->model.d_model && j->model.n_heads && j->model.d_ff))
        return NEB_OK; // agent_job_model_init() fills the sizes in and checks again
    NEB_TRY(j->attached ? validate_attached(j, file) : validate_built_in(j, file));
    NEB_TRY(validate_attach(j, file));
    NEB_TRY(validate_teacher_keys(j, file));
    NEB_TRY(config_groups_check(j, file));
    NEB_TRY(validate_tune(j, file));
    return validate_sync(j, file);
}
