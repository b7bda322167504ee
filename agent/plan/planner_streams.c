// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/planner_streams.h"
#include "agent/job/model.h"
#include "agent/job/sides.h"
#include "agent/plan/plan.h"
#include "agent/train/label_bytes.h"
#include "agent/train/rtd.h"
#include "agent/train/rtd_share.h"
#include "compress/softlabel.h"
#include "inter/outer/outer.h"
#include "inter/stream/stream.h"

#include <math.h>
#include <string.h>

// Bytes of a batch of replacements besides its planes: its header, and what zstd writes before each
// of the three planes.
enum { RTD_FRAME_BYTES = 48 };

// ---- one cluster, in one part -------------------------------------------------------------------

struct planning {
    const struct agent_job *job;
    const struct agent_planner_text *text;
    const struct agent_site *sites;
};

static struct intra_model_config model_of(const struct planning *p, enum agent_role role) {
    const struct agent_job *j = p->job;
    int32_t vocab = j->model.vocab ? j->model.vocab : p->text->vocab;
    struct intra_model_config m;
    switch (role) {
    case AGENT_ROLE_GENERATOR:
        return agent_job_model(j, &j->rtd.shape, p->text->vocab + 1, KERN_MASK_BIDIRECTIONAL);
    case AGENT_ROLE_DISCRIMINATOR:
        m = agent_job_model(j, NULL, p->text->vocab + 1, KERN_MASK_BIDIRECTIONAL);
        m.head = INTRA_HEAD_RTD;
        m.tied = true;
        return m;
    case AGENT_ROLE_TEACHER:
        return p->text->teacher.vocab
                   ? p->text->teacher
                   : agent_job_model(j, &j->distill.shape, vocab, agent_distill_mask(j));
    default: return agent_job_model(j, NULL, vocab, agent_distill_mask(j));
    }
}

static struct intra_cost_side work_of(const struct planning *p, int cluster, enum agent_role role) {
    const struct agent_job *j = p->job;
    double n = (double)j->batch * j->seq_len;
    struct intra_cost_side w = {.tokens = n, .length = j->seq_len, .targets = n, .learns = true};
    if (role == AGENT_ROLE_GENERATOR) {
        w.targets = w.again = n * (double)j->rtd.mask_rate;
        w.soft_k = 1;
    }
    if (role == AGENT_ROLE_GENERATOR || role == AGENT_ROLE_DISCRIMINATOR)
        return w;
    w.tokens = p->text->tokens;
    w.length = p->text->length;
    w.targets = p->text->targets;
    w.soft_k = CMP_SOFT_K_MAX; // always, whatever distill.k is
    w.decodes = agent_distill_decodes(j, cluster);
    w.labels = agent_job_role(j, AGENT_ROLE_TEACHER) >= 0 || j->distill.cache[0];
    if (role == AGENT_ROLE_TEACHER) {
        w.learns = j->distill.learn;
        w.again = w.targets;
        w.targets = w.learns ? w.targets : 0;
    }
    return w;
}

// In each run of max(g, d) events the generator trains in the first g and makes a batch in the
// first d (agent/train/rtd.h).
static double generator_batch_s(const struct agent_job *j, const struct intra_cost_job *job,
                                struct intra_cost_side w, const struct intra_rates *r,
                                double both_s) {
    int32_t g = j->rtd.generator_steps, d = j->rtd.discriminator_steps, both = g < d ? g : d;
    struct intra_cost other;
    if (g > d)
        w.again = 0;
    else
        w.learns = false;
    intra_cost_time(job, &w, r, &other);
    return (both * both_s + (g > d ? g - d : d - g) * other.step_s) / d;
}

// True if a side fits while `spare` bytes of the device stay free.
static bool fits(const struct agent_planned_side *x, const struct agent_site *site, double spare) {
    return x->cost.host_bytes <= agent_planner_memory(site) &&
           x->cost.device_bytes <= agent_planner_device_memory(site) - spare;
}

static struct agent_planned_side side_of(const struct planning *p, int32_t i,
                                         enum agent_role role) {
    const struct agent_job *j = p->job;
    const struct agent_cluster *c = &j->clusters[i];
    const struct agent_site *site = &p->sites[i];
    const struct intra_rates *r = &site->profile.rates;
    struct intra_cost_side w = work_of(p, i, role);
    int32_t ranks = agent_cluster_ranks(c);
    struct agent_planned at = {
        .job = {
            .model = model_of(p, role),
            .trainable = j->trainable,
            .muon = j->optim.kind == INTRA_OPTIM_MUON,
            .mesh = agent_planner_mesh(c),
            .batch = j->batch,
            .seq_len = j->seq_len,
            .micros = j->accumulate,
            .recompute = j->recompute,
            .frozen = !w.learns,
            .copy = j->checkpoint_every && j->checkpoint_copy,
            .outer = role == AGENT_ROLE_STUDENT && agent_distill_federates(j),
            .members = agent_job_exchanging(j),
            // on processors, several hosts get one rank each (planner.c)
            .ranks_a_host = c->launcher == AGENT_LAUNCHER_LOCAL ? ranks : 1,
            .share = agent_planner_share(c, site),
        }};
    if (role == AGENT_ROLE_TEACHER)
        at.job.trainable = (struct intra_trainable){.mode = INTRA_TRAIN_FULL};
    agent_planner_place(j, i, site, ranks, &at);
    at.job.outer_device = at.job.outer_device && at.job.outer;
    bool known = !at.job.outer || agent_plan_frames(j, &at.job) == NEB_OK;
    struct agent_planned_side x = {.role = role,
                                   .job = at.job,
                                   .learns = w.learns,
                                   .no_device = at.no_device,
                                   .no_bf16 = at.no_bf16};
    bool may_leave = x.job.outer_device && c->outer_state == AGENT_OUTER_AUTO;
    intra_cost_step(&x.job, &w, r, &x.cost);
    x.fits = known && fits(&x, site, may_leave ? INTER_OUTER_SPARE_BYTES : 0);
    if (!x.fits && may_leave) { // the workers do the same
        x.job.outer_device = false;
        intra_cost_step(&x.job, &w, r, &x.cost);
        x.fits = known && fits(&x, site, 0);
    }
    x.batch_s = role == AGENT_ROLE_GENERATOR ? generator_batch_s(j, &x.job, w, r, x.cost.step_s)
                                             : x.cost.step_s;
    return x;
}

// ---- their stream -------------------------------------------------------------------------------

static enum neb_status bytes_of(const struct planning *p, struct agent_planner_streams *out) {
    const struct agent_job *j = p->job;
    struct agent_plan sizes;
    if (j->mode == AGENT_MODE_RTD) {
        struct agent_job masked = *j; // the bytes of text are known more exactly below
        masked.rtd.push_text = false;
        NEB_TRY(agent_job_plan(&masked, p->text->vocab, &sizes));
        out->unit = (double)sizes.tokens_per_step;
        out->batch_bytes = sizes.bytes_per_exchange + RTD_FRAME_BYTES +
                           (j->rtd.push_text ? out->unit * p->text->id_bytes : 0);
        if (j->rtd.share_embeddings) { // rows of both in int8, once per share_embeddings events
            double table = (double)(p->text->vocab + 1) * j->model.d_model,
                   frame = fmin(table, RTD_SHARE_BYTES), each = frame / j->rtd.share_embeddings;
            out->batch_bytes += each;
            out->back_bytes = each;
        }
        return NEB_OK;
    }
    double targets = p->text->targets, label;
    out->unit = targets * j->accumulate;
    NEB_TRY(
        agent_label_bytes(j->distill.k, model_of(p, AGENT_ROLE_TEACHER).vocab, targets, &label));
    out->batch_bytes = out->unit * label;
    if (j->distill.source == AGENT_TEXT_TEACHER) // its text comes with the labels
        out->batch_bytes +=
            (double)j->distill.mix * p->text->tokens * j->accumulate * p->text->id_bytes;
    if (j->distill.pushed)
        out->back_bytes = p->text->tokens * j->accumulate * p->text->id_bytes;
    return NEB_OK;
}

static struct inter_stream_load load_of(const struct agent_job *j,
                                        const struct agent_planner_streams *x, double consumer_s) {
    const struct agent_planned_side *from = &x->sides[x->producer];
    struct inter_stream_load l = {.producer_s = from->batch_s * x->served,
                                  .consumer_s = consumer_s,
                                  .bytes = x->batch_bytes,
                                  .back_bytes = j->distill.pushed ? x->back_bytes : 0,
                                  .window = j->distill.ahead,
                                  .window_max = j->distill.ahead,
                                  .streams = x->served};
    if (j->mode == AGENT_MODE_RTD) {
        l.window = j->rtd.ahead;
        l.window_max = fmax(l.window, fmin(agent_rtd_ahead_max(j),
                                           INTER_STREAM_WINDOW_BYTES / agent_rtd_batch_max(j)));
    }
    // With a relay, the first student forwards the labels: its uplink carries one stream per other
    // student.
    if (j->distill.relay && agent_distill_students(j) > 2)
        l.streams = agent_distill_students(j) - 1;
    return l;
}

// Shared embeddings: the discriminator's answer must arrive within one interval, but the
// discriminator may be as far behind as the window allows.
static double exchange_wait_s(const struct agent_job *j, const struct agent_planner_streams *x,
                              const struct inter_wan_path *path) {
    double every = j->rtd.share_embeddings, rate = x->flow.rate,
           frame_s = x->back_bytes * every / inter_wan_goodput(path),
           behind = x->flow.bound == INTER_STREAM_BOUND_CONSUMER ? x->flow.window / rate : 0;
    return every > 0 ? fmax(0, behind + 2 * frame_s + path->rtt_s +
                                   x->sides[1 - x->producer].batch_s - every / rate)
                     : 0;
}

// Students that do not wait for each other have different rates. A teacher that learns, a relay and
// rounds keep them in step.
static void flow(const struct planning *p, const struct inter_wan_path *path,
                 struct agent_planner_streams *x) {
    const struct agent_job *j = p->job;
    bool apart = j->mode == AGENT_MODE_DISTILL && !j->distill.learn && !j->distill.relay &&
                 !j->distill.federate;
    double slowest = 0, all = 0;
    enum agent_role makes = x->sides[x->producer].role;
    for (int32_t i = 0; i < x->n; i++)
        if (x->sides[i].role != makes)
            slowest = fmax(slowest, x->sides[i].batch_s);
    struct inter_stream_load l = load_of(j, x, slowest);
    inter_stream_cost(path, &l, &x->flow);
    x->exchange_wait_s = exchange_wait_s(j, x, path);
    double every = j->rtd.share_embeddings,
           rate = every > 0 ? every / (every / x->flow.rate + x->exchange_wait_s) : x->flow.rate;
    x->flow.rate = rate;
    for (int32_t i = 0; i < x->n; i++) {
        struct agent_planned_side *s = &x->sides[i];
        struct inter_stream_flow own = x->flow;
        if (s->role == makes)
            continue;
        if (apart) {
            l.consumer_s = s->batch_s;
            inter_stream_cost(path, &l, &own);
        }
        s->rate = own.rate;
        s->wait = fmax(0, 1 - own.rate * s->batch_s);
        all += own.rate;
    }
    for (int32_t i = 0; i < x->n; i++) {
        struct agent_planned_side *from = &x->sides[i];
        if (from->role != makes)
            continue;
        from->rate = j->distill.relay ? rate : all;
        from->wait = fmax(0, 1 - from->rate * from->batch_s);
    }
    x->wall_s = (double)x->batches / rate;
}

// ---- the whole ----------------------------------------------------------------------------------

// All sides are in one process: their batches follow each other.
static void alone(const struct agent_job *j, struct agent_planner_streams *x) {
    double slowest = 0, sum = 0;
    for (int32_t i = 0; i < x->n; i++) {
        slowest = fmax(slowest, x->sides[i].batch_s);
        sum += x->sides[i].batch_s;
    }
    bool both = j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    x->wall_s = (double)x->batches * (both ? sum : slowest);
    for (int32_t i = 0; i < x->n; i++)
        x->sides[i].rate = 1 / (both ? sum : x->sides[i].batch_s);
}

// Federated students have rounds beside the stream, at its pace. The students come before their
// teacher.
static enum neb_status rounds(const struct planning *p, struct agent_planner_streams *x) {
    if (!agent_distill_federates(p->job))
        return NEB_OK;
    x->rounds.link = x->link;
    x->rounds.n = agent_distill_students(p->job);
    for (int32_t i = 0; i < x->rounds.n; i++) {
        x->rounds.clusters[i].job = x->sides[i].job;
        x->rounds.clusters[i].cost = x->sides[i].cost;
        if (x->travels)
            x->rounds.clusters[i].cost.step_s = 1 / x->flow.rate;
    }
    NEB_TRY(agent_planner_exchanges(p->job, p->text->vocab, p->sites, 0, &x->rounds));
    x->wall_s = fmax(x->wall_s, x->rounds.wall_s);
    return NEB_OK;
}

enum neb_status agent_planner_streams(const struct agent_job *job,
                                      const struct agent_planner_text *text,
                                      const struct agent_site *sites, const struct agent_wan *link,
                                      struct agent_planner_streams *x) {
    struct planning p = {job, text, sites};
    bool rtd = job->mode == AGENT_MODE_RTD;
    int32_t cycle = job->rtd.generator_steps > job->rtd.discriminator_steps
                        ? job->rtd.generator_steps
                        : job->rtd.discriminator_steps;
    memset(x, 0, sizeof *x);
    x->n = job->n_clusters;
    x->link = agent_planner_worst(sites, x->n, link);
    x->producer = agent_job_role(job, rtd ? AGENT_ROLE_GENERATOR : AGENT_ROLE_TEACHER);
    x->served = rtd || job->distill.relay ? 1 : agent_distill_students(job);
    x->batches = rtd ? (job->steps * job->rtd.discriminator_steps + cycle - 1) / cycle : job->steps;
    x->travels = x->producer >= 0 && job->sync.scheme != AGENT_SCHEME_SYNCHRONOUS;
    for (int32_t i = 0; i < x->n; i++) {
        x->sides[i] = side_of(&p, i, job->clusters[i].role);
        if (job->clusters[i].role == AGENT_ROLE_TEACHER &&
            x->sides[i].batch_s > x->sides[x->producer].batch_s)
            x->producer = i; // students wait for the slowest teacher
    }
    if (!x->travels) {
        alone(job, x);
        return rounds(&p, x);
    }
    struct inter_wan_path path = agent_planner_path(&x->link, sites, job->n_clusters);
    path.members = 2;
    NEB_TRY(bytes_of(&p, x));
    flow(&p, &path, x);
    double streams = x->served * fmax(1, agent_distill_teachers(job));
    x->sent_bytes = x->flow.sent_s * x->wall_s * streams;
    x->came_bytes = x->flow.back_s * x->wall_s * streams;
    return rounds(&p, x);
}

bool agent_planner_cast(const struct agent_job *job, const struct agent_planner_text *text,
                        const struct agent_site *sites, const bool *free, enum agent_role *roles) {
    struct planning p = {job, text, sites};
    bool rtd = job->mode == AGENT_MODE_RTD, streams[AGENT_CLUSTERS_MAX], learns[AGENT_CLUSTERS_MAX];
    enum agent_role from = rtd ? AGENT_ROLE_GENERATOR : AGENT_ROLE_TEACHER,
                    to = rtd ? AGENT_ROLE_DISCRIMINATOR : AGENT_ROLE_STUDENT;
    double stream_s[AGENT_CLUSTERS_MAX], learn_s[AGENT_CLUSTERS_MAX], slow;
    for (int32_t i = 0; i < job->n_clusters; i++) {
        struct agent_planned_side a = side_of(&p, i, from), b = side_of(&p, i, to);
        stream_s[i] = a.batch_s;
        learn_s[i] = b.batch_s;
        streams[i] = a.fits && (free[i] || job->clusters[i].role == from) &&
                     !(job->distill.federate && i != job->n_clusters - 1);
        learns[i] = b.fits && (free[i] || job->clusters[i].role == to);
    }
    int32_t who = -1;
    bool possible = agent_planner_roles(job->n_clusters, stream_s, streams, learn_s, learns,
                                        !rtd && !job->distill.relay, &who, &slow);
    for (int32_t i = 0; possible && i < job->n_clusters; i++)
        roles[i] = i == who ? from : to;
    return possible;
}

enum neb_status agent_planner_streams_improve(const struct agent_planner_text *text,
                                              const struct agent_site *sites,
                                              const struct agent_wan *link, struct agent_job *job) {
    static const int32_t labels[] = {64, 32, 16, 8, 4};
    struct agent_planner_streams x;
    NEB_TRY(agent_planner_streams(job, text, sites, link, &x));
    for (int32_t i = 0; i < x.n; i++)
        job->recompute = job->recompute || (x.sides[i].learns && !x.sides[i].fits);
    if (!x.travels || job->mode != AGENT_MODE_DISTILL)
        return NEB_OK; // the window of rtd grows by itself
    double wanted = fmin(x.flow.producer_rate, x.flow.consumer_rate);
    int32_t most = agent_distill_k_max(&job->distill), least = agent_distill_k_min(&job->distill);
    for (size_t i = 0; i < sizeof labels / sizeof *labels && x.flow.link_rate < wanted; i++) {
        if (labels[i] >= job->distill.k || labels[i] > most)
            continue;
        job->distill.k = labels[i];
        if (least > labels[i])
            job->distill.k_min = labels[i];
        NEB_TRY(agent_planner_streams(job, text, sites, link, &x));
    }
    wanted = fmin(wanted, x.flow.link_rate);
    while (x.flow.window_rate < wanted && 2 * job->distill.ahead <= INTER_STREAM_WINDOW_MAX) {
        job->distill.ahead *= 2;
        NEB_TRY(agent_planner_streams(job, text, sites, link, &x));
    }
    return NEB_OK;
}
