// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/planner.h"
#include "agent/plan/plan.h"
#include "inter/outer/outer.h"

#include <math.h>
#include <string.h>

// The share of memory that a job may use. On a machine, the system, the agent and the page cache
// need the rest. On a device, the driver's context, kernels and NCCL buffers need it.
static const double MEMORY_SHARE = 0.85, DEVICE_SHARE = 0.94;
enum { RANKS_SEARCHED = 64 };

struct intra_model_config agent_planner_model(const struct agent_job *job, int32_t vocab) {
    struct intra_model_config m = job->model;
    m.vocab = m.vocab ? m.vocab : vocab;
    m.n_kv_heads = m.n_kv_heads ? m.n_kv_heads : m.n_heads;
    m.head_dim = m.head_dim ? m.head_dim : m.d_model / m.n_heads;
    m.max_seq = job->seq_len;
    return m;
}

// ---- steps --------------------------------------------------------------------------------------

struct search {
    const struct agent_job *job;
    const struct agent_site *sites;
    uint32_t free;
    int32_t sequences;
    struct intra_cost_job base;
};

struct intra_mesh_config agent_planner_mesh(const struct agent_cluster *c) {
    struct intra_mesh_config m = c->mesh;
    return (struct intra_mesh_config){m.dp ? m.dp : 1, m.pp ? m.pp : 1, m.tp ? m.tp : 1};
}

double agent_planner_memory(const struct agent_site *s) {
    return MEMORY_SHARE * s->share * s->profile.rates.memory;
}

static double device_share(const struct agent_site *s) {
    return s->device_share > 0 ? s->device_share : 1;
}
double agent_planner_device_memory(const struct agent_site *s) {
    return DEVICE_SHARE * device_share(s) * s->profile.rates.device.memory;
}

// The share of a machine for one worker: the job may limit its threads, otherwise the site's share.
double agent_planner_share(const struct agent_cluster *c, const struct agent_site *s) {
    double most = s->share, asked = (double)c->threads / s->profile.rates.processors;
    return c->threads && asked < most ? asked : most;
}

static bool better(const struct agent_planned *a, const struct agent_planned *b) {
    return a->fits != b->fits           ? a->fits
           : !a->no_mesh != !b->no_mesh ? !a->no_mesh
           : a->fits                    ? a->cost.step_s < b->cost.step_s * 0.999
                                        : a->cost.host_bytes + a->cost.device_bytes <
                           b->cost.host_bytes + b->cost.device_bytes;
}

// Follows worker_device_open and take_devices (intra/train/group.c): with `auto`, ranks use devices
// if there is one for each. The profile says that devices exist, not that they are free. Ranks on
// several hosts fill each host, one rank per device.
void agent_planner_place(const struct agent_job *job, int32_t i, const struct agent_site *site,
                         int32_t ranks, struct agent_planned *x) {
    const struct agent_cluster *c = &job->clusters[i];
    int32_t count = site->profile.rates.device.count;
    bool must = c->device == AGENT_DEVICE_CUDA,
         may = c->device != AGENT_DEVICE_CPU && agent_job_takes_devices(job);
    x->no_device = must && !count;
    if (!may || !count || (!must && x->job.ranks_a_host > count)) {
        bool bf16 = c->precision == AGENT_PRECISION_BF16;
        x->no_bf16 = bf16 && !(site->profile.rates.step[KERN_BF16][0] > 0);
        x->job.type = bf16 && !x->no_bf16 ? KERN_BF16 : KERN_F32;
        return;
    }
    x->job.device = true;
    if (c->launcher != AGENT_LAUNCHER_LOCAL && ranks > x->job.ranks_a_host)
        x->job.ranks_a_host = ranks < count ? ranks : count;
    x->job.type = c->precision == AGENT_PRECISION_FP32 ? KERN_F32 : KERN_BF16;
    x->job.share = device_share(site);
    x->job.outer_device =
        c->outer_state != AGENT_OUTER_HOST && job->sync.gate != AGENT_GATE_PRIVATE;
}

static double bf16_gain(const struct agent_planned *x, const struct intra_rates *r) {
    struct intra_cost_job other = x->job;
    struct intra_cost cost;
    if (x->job.device || !(r->step[KERN_BF16][0] > 0) || !isfinite(x->cost.step_s))
        return 0;
    other.type = x->job.type == KERN_BF16 ? KERN_F32 : KERN_BF16;
    intra_cost_time(&other, NULL, r, &cost);
    return x->job.type == KERN_BF16 ? cost.step_s / x->cost.step_s : x->cost.step_s / cost.step_s;
}

// beat: a choice that must be beaten; NULL: none.
static struct agent_planned with_ranks(const struct search *s, int32_t i, int32_t ranks, bool fix,
                                       const struct agent_planned *beat) {
    const struct agent_cluster *c = &s->job->clusters[i];
    const struct agent_site *site = &s->sites[i];
    struct agent_planned x = {.job = s->base};
    x.job.mesh = agent_planner_mesh(c);
    // On processors, several hosts get one rank each: how many ranks the launcher puts on one host
    // is not known.
    x.job.ranks_a_host = c->launcher == AGENT_LAUNCHER_LOCAL ? ranks : 1;
    x.job.share = agent_planner_share(c, site);
    agent_planner_place(s->job, i, site, ranks, &x);
    struct intra_cost_choice choice = {.ranks = ranks,
                                       .fix_mesh = fix,
                                       .beat_s = beat && beat->fits ? beat->cost.step_s : 0,
                                       .memory = agent_planner_memory(site),
                                       .device_memory = agent_planner_device_memory(site)};
    bool may_leave = x.job.outer_device && c->outer_state == AGENT_OUTER_AUTO;
    if (may_leave) // as inter_outer_place of the workers does
        choice.device_memory -= INTER_OUTER_SPARE_BYTES;
    x.fits = intra_cost_choose(&choice, &site->profile.rates, &x.job, &x.cost);
    if (!x.fits && may_leave) {
        x.job.outer_device = false; // the workers do the same
        choice.device_memory += INTER_OUTER_SPARE_BYTES;
        x.fits = intra_cost_choose(&choice, &site->profile.rates, &x.job, &x.cost);
    }
    x.no_mesh = x.job.mesh.dp * x.job.mesh.pp * x.job.mesh.tp == ranks ? 0 : ranks;
    x.bf16_gain = bf16_gain(&x, &site->profile.rates);
    return x;
}

// The best mesh of cluster i for this micro-batch.
static struct agent_planned on_cluster(const struct search *s, int32_t i,
                                       const struct agent_planned *beat) {
    const struct agent_cluster *c = &s->job->clusters[i];
    if (!(s->free & AGENT_AUTO_MESH) && !c->mesh_auto)
        return with_ranks(s, i, agent_cluster_ranks(c), true, beat);
    bool local = c->launcher == AGENT_LAUNCHER_LOCAL;
    int32_t given = s->sites[i].ranks ? s->sites[i].ranks : c->ranks,
            count = s->sites[i].profile.rates.device.count, part = s->sites[i].devices,
            cards = part && part < count ? part : count,
            here = c->device != AGENT_DEVICE_CPU && cards
                       ? cards
                       : (int32_t)fmax(1, s->sites[i].profile.rates.processors *
                                              agent_planner_share(c, &s->sites[i])),
            most = given   ? given
                   : local ? here
                           : agent_cluster_ranks(c);
    most = most < RANKS_SEARCHED || given ? most : RANKS_SEARCHED;
    struct agent_planned best = with_ranks(s, i, most, false, beat);
    for (int32_t ranks = 1; !given && local && ranks < most; ranks++) {
        struct agent_planned x = with_ranks(s, i, ranks, false, best.fits ? &best : beat);
        if (better(&x, &best) || (!better(&best, &x) && ranks < most / 2))
            best = x;
    }
    return best;
}

// The best micro-batch and recomputation of cluster i, each with its best mesh.
static struct agent_planned best_of(struct search *s, int32_t i) {
    const struct agent_cluster *c = &s->job->clusters[i];
    struct agent_planned best = {0};
    bool any = false;
    for (int32_t batch = s->sequences; batch >= 1; batch--)
        for (int again = 0; again < 2; again++) {
            bool open = s->free & AGENT_AUTO_BATCH &&
                        (int64_t)batch * s->job->seq_len <= INTRA_MICRO_TOKENS_MAX,
                 size = c->batch ? batch == c->batch : open || batch == s->job->batch,
                 keep = c->recompute
                            ? (again == 1) == (c->recompute == AGENT_RECOMPUTE_ON)
                            : s->free & AGENT_AUTO_RECOMPUTE || (again == 1) == s->job->recompute;
            if (!size || !keep || s->sequences % batch)
                continue;
            s->base.batch = batch;
            s->base.micros = s->sequences / batch;
            s->base.recompute = again == 1;
            struct agent_planned x = on_cluster(s, i, any ? &best : NULL);
            if (any && !better(&x, &best))
                continue;
            any = true;
            best = x;
        }
    NEB_ASSERT(any);
    return best;
}

// For an attached trainer only the exchange is known (libnebula does it). Its steps are not.
static struct agent_planned attached(struct search *s, int32_t i) {
    s->base.batch = s->sequences;
    s->base.micros = 1;
    s->base.recompute = false;
    struct agent_planned x = {.job = s->base, .attached = true, .fits = true};
    double step_s = s->sites[i].step_s;
    x.job.mesh = (struct intra_mesh_config){1, 1, 1};
    x.job.ranks_a_host = 1;
    x.job.share = agent_planner_share(&s->job->clusters[i], &s->sites[i]);
    intra_cost_exchange(&x.job, &s->sites[i].profile.rates, &x.cost);
    x.cost.step_s = step_s > 0 ? step_s : NAN;
    return x;
}

// An attached trainer of unknown speed counts as slow as the slowest other cluster.
static void guess_steps(struct agent_planner *p) {
    double slowest = 0;
    for (int32_t i = 0; i < p->n; i++)
        if (!isnan(p->clusters[i].cost.step_s))
            slowest = fmax(slowest, p->clusters[i].cost.step_s);
    for (int32_t i = 0; i < p->n && slowest > 0; i++)
        if (isnan(p->clusters[i].cost.step_s)) {
            p->clusters[i].cost.step_s = slowest;
            p->clusters[i].guessed = true;
        }
}

enum neb_status agent_planner_run(const struct agent_job *job, int32_t vocab,
                                  const struct agent_site *sites, const struct agent_wan *link,
                                  uint32_t free, struct agent_planner *out) {
    struct search s = {.job = job, .sites = sites, .free = free};
    memset(out, 0, sizeof *out);
    if (!job->model.vocab && !vocab)
        return neb_fail(
            NEB_ERR_INVALID,
            "plan: the size of the model depends on its vocabulary, which is not known: "
            "set model.vocab, or plan on a machine that has the corpus");
    for (int32_t i = 0; i < job->n_clusters; i++)
        out->n += !job->clusters[i].witness; // training clusters come first
    out->link = agent_planner_worst(sites, out->n, link);
    s.sequences = job->batch * job->accumulate;
    bool federated = job->sync.scheme == AGENT_SCHEME_FEDERATED && out->n > 1;
    s.base = (struct intra_cost_job){.model = agent_planner_model(job, vocab),
                                     .trainable = job->trainable,
                                     .muon = job->optim.kind == INTRA_OPTIM_MUON,
                                     .seq_len = job->seq_len,
                                     .copy = job->checkpoint_every && job->checkpoint_copy,
                                     .outer = federated || agent_job_steps_alone(job),
                                     .outer_single = job->sync.gate == AGENT_GATE_PRIVATE,
                                     .fragments = agent_job_fragments(job),
                                     .members = federated ? agent_job_exchanging(job) : 1};
    if (s.base.outer)
        NEB_TRY(agent_plan_frames(job, &s.base));
    for (int32_t i = 0; i < out->n; i++)
        out->clusters[i] =
            job->clusters[i].launcher == AGENT_LAUNCHER_ATTACH ? attached(&s, i) : best_of(&s, i);
    guess_steps(out);
    if (federated)
        return agent_planner_exchanges(job, vocab, sites, free, out);
    // alone, or one process that does the batches of all clusters
    for (int32_t i = 0; i < out->n; i++)
        out->wall_s =
            fmax(out->wall_s, (double)job->steps * out->clusters[i].cost.step_s *
                                  (job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS ? out->n : 1));
    return NEB_OK;
}

const struct intra_cost_job *agent_planner_first(const struct agent_planner *p) {
    int32_t i = 0;
    while (i < p->n && p->clusters[i].attached)
        i++;
    return &p->clusters[i < p->n ? i : 0].job;
}

// The job gets the choice of the first cluster; a cluster that differs gets its own keys.
static void apply_micro_batches(const struct agent_planner *p, uint32_t free,
                                struct agent_job *job) {
    const struct intra_cost_job *first = agent_planner_first(p);
    const int32_t sequences = job->batch * job->accumulate;
    if (free & AGENT_AUTO_BATCH) {
        job->batch = first->batch;
        job->accumulate = sequences / first->batch;
    }
    if (free & AGENT_AUTO_RECOMPUTE)
        job->recompute = first->recompute;
    for (int32_t i = 0; i < p->n; i++) {
        struct agent_cluster *c = &job->clusters[i];
        const struct intra_cost_job *x = &p->clusters[i].job;
        if (x == first || c->launcher == AGENT_LAUNCHER_ATTACH ||
            job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
            continue;
        if (free & AGENT_AUTO_BATCH)
            c->batch = x->batch == job->batch ? 0 : x->batch;
        if (free & AGENT_AUTO_RECOMPUTE)
            c->recompute = x->recompute == job->recompute ? AGENT_RECOMPUTE_AS_JOB
                           : x->recompute                 ? AGENT_RECOMPUTE_ON
                                                          : AGENT_RECOMPUTE_OFF;
    }
}

void agent_planner_apply(const struct agent_planner *p, uint32_t free, struct agent_job *job) {
    apply_micro_batches(p, free, job);
    for (int32_t i = 0; i < p->n; i++)
        if (!p->clusters[i].attached && (free & AGENT_AUTO_MESH || job->clusters[i].mesh_auto)) {
            job->clusters[i].mesh = p->clusters[i].job.mesh;
            job->clusters[i].mesh_auto = false;
            job->clusters[i].ranks = 0; // the mesh has the number of ranks now
        }
    if (p->wan.interval) {
        job->sync.interval = p->wan.interval;
        job->sync.overlap = p->wan.overlap;
        memset(job->sync.codec, 0, sizeof job->sync.codec);
        memcpy(job->sync.codec, p->codecs[p->wan.codec].name, sizeof job->sync.codec);
    }
    job->autos &= ~free;
}

bool agent_planner_roles(int32_t n, const double *seconds_stream, const bool *fits_stream,
                         const double *seconds_learn, const bool *fits_learn, bool serves,
                         int32_t *out, double *step_s) {
    double least = INFINITY;
    for (int32_t i = 0; i < n; i++) {
        double slow = seconds_stream[i] * (serves ? n - 1 : 1);
        bool fits = fits_stream[i] && n > 1;
        for (int32_t k = 0; k < n; k++)
            if (k != i) {
                slow = fmax(slow, seconds_learn[k]);
                fits = fits && fits_learn[k];
            }
        if (!fits || slow >= least)
            continue;
        least = slow;
        *out = i;
    }
    *step_s = least;
    return isfinite(least);
}
