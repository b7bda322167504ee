// SPDX-License-Identifier: Apache-2.0
// The planner's exchanges: what each codec costs the workers of every cluster, and the choice of
// codec, interval and overlap.
#include "agent/job/tune.h"
#include "agent/job/update_size.h"
#include "agent/plan/plan.h"
#include "agent/plan/planner.h"

#include <math.h>
#include <string.h>

enum {
    CONNECTIONS = 2,
    ENCODE_WAITS = 2, // waits for a device per unit: the largest value, the codes
    DECODE_WAITS = 1,
};
static const double COUNT_BYTES = 0.7; // of a packed row count (compress/update.h)

// ---- codecs -------------------------------------------------------------------------------------

// The device rates of the measured codec that is most like this one.
static void rates_on_device(const struct agent_profile *p, struct inter_wan_codec *own) {
    double least = INFINITY;
    for (int32_t i = 0; cmp_variant(i, CMP_PLANNED); i++) {
        const struct inter_wan_codec *c = &p->codecs[i];
        double far = fabs(log(c->density / own->density)) + fabs(log(c->bits / own->bits)) / 100;
        if (far >= least)
            continue;
        least = far;
        own->at[INTER_WAN_DEVICE] = c->at[INTER_WAN_DEVICE];
    }
}

// The measured codecs with their bits for this model's tensors, and the job's own codec if it is
// not among them.
static enum neb_status codecs_of(const struct agent_job *job, int32_t vocab,
                                 const struct agent_site *site, struct agent_planner *out,
                                 int32_t *own) {
    static struct agent_job with; // large
    struct agent_plan plan;
    struct cmp_codec codec;
    *own = -1;
    out->n_codecs = 0;
    for (int32_t i = 0; cmp_variant(i, CMP_PLANNED); i++) {
        out->n_codecs++;
        out->codecs[i] = site->profile.codecs[i];
        if (!strcmp(out->codecs[i].name, job->sync.codec))
            *own = i;
    }
    if (*own < 0) {
        *own = out->n_codecs++;
        NEB_TRY(agent_profile_codec(job->sync.codec, NULL, &out->codecs[*own]));
    }
    with = *job;
    with.sync.scheme = AGENT_SCHEME_FEDERATED;
    for (int32_t i = 0; i < out->n_codecs; i++) {
        memcpy(with.sync.codec, out->codecs[i].name, sizeof with.sync.codec);
        NEB_TRY(agent_job_plan(&with, vocab, &plan));
        out->codecs[i].bits = plan.bits_per_param;
        out->bits_most[i] = plan.bits_most;
        NEB_TRY(cmp_codec_parse(out->codecs[i].name, &codec));
        out->codecs[i].barred = !agent_update_possible(job, &codec, (uint64_t)plan.fragment, 1) ||
                                (job->sync.tune.mode == AGENT_TUNE_AUTO &&
                                 !agent_tune_admits(&job->sync.tune, out->codecs[i].name));
    }
    return NEB_OK;
}

struct inter_wan_codec agent_planner_codec(const struct agent_planner *p,
                                           const struct agent_site *s, int32_t codec) {
    struct inter_wan_codec c = p->codecs[codec];
    if (!cmp_variant(codec, CMP_PLANNED)) // the job's own
        rates_on_device(&s->profile, &c);
    else
        memcpy(c.at, s->profile.codecs[codec].at, sizeof c.at);
    return c;
}

// ---- what workers do ----------------------------------------------------------------------------

// Seconds of the busiest owner. On processors each thread of a rank takes a unit at a time; beside
// a device one thread does all units.
static double seconds(const struct agent_planned *x, const struct agent_site *s,
                      const struct agent_cluster *c, double rate, double waits) {
    const struct intra_rates *r = &s->profile.rates;
    if (x->job.device && x->job.outer_device)
        return x->cost.owner_params / (rate * x->job.share) +
               x->cost.owner_units * waits * r->device.wait_s;
    // Local ranks share the cluster's threads. Ranks on several hosts have the threads of the job,
    // but at most their share of a host's threads.
    double given = r->processors * agent_planner_share(c, s), n = fmax(1, x->job.ranks_a_host),
           threads = c->launcher == AGENT_LAUNCHER_LOCAL
                         ? given / n
                         : fmin(given, r->processors * s->share / n);
    threads = fmax(1, threads);
    return fmax(x->cost.owner_params / threads, x->cost.owner_largest) / (rate / r->processors);
}

struct inter_wan_work agent_planner_work(const struct agent_planned *x, const struct agent_site *s,
                                         const struct agent_cluster *c,
                                         const struct inter_wan_codec *codec, double bytes,
                                         int32_t members) {
    const struct intra_mesh_config *k = &x->job.mesh;
    const struct inter_wan_rates *r =
        &codec->at[x->job.device && x->job.outer_device ? INTER_WAN_DEVICE : INTER_WAN_HOST];
    const struct intra_rates *m = &s->profile.rates;
    double ranks = (double)k->dp * k->pp * k->tp, link = m->link > 0 ? m->link : m->device.link;
    // An update's frames, to or from the first rank.
    double frames_s = ranks > 1 ? bytes * (ranks - 1) / ranks / link + (ranks - 1) * m->link_s : 0;
    return (struct inter_wan_work){
        .encode_s = x->cost.gather_s + seconds(x, s, c, r->encode, ENCODE_WAITS) + frames_s,
        .merge_s = x->cost.gather_s + members * seconds(x, s, c, r->decode, DECODE_WAITS) +
                   seconds(x, s, c, r->settle, DECODE_WAITS) + members * frames_s +
                   x->cost.scatter_s};
}

struct agent_wan agent_planner_link(const struct agent_site *s, const struct agent_wan *all) {
    return s->link.bits_s > 0 ? s->link : *all;
}

struct agent_wan agent_planner_worst(const struct agent_site *sites, int32_t n,
                                     const struct agent_wan *all) {
    struct agent_wan worst = agent_planner_link(&sites[0], all);
    for (int32_t i = 1; i < n; i++) {
        struct agent_wan own = agent_planner_link(&sites[i], all);
        worst.bits_s = fmin(worst.bits_s, own.bits_s);
        worst.rtt_s = fmax(worst.rtt_s, own.rtt_s);
        worst.loss = fmax(worst.loss, own.loss);
    }
    return worst;
}

// ---- all of it ----------------------------------------------------------------------------------

struct inter_wan_path agent_planner_path(const struct agent_wan *link,
                                         const struct agent_site *sites, int32_t members) {
    struct inter_wan_path path = {.bits_s = link->bits_s,
                                  .rtt_s = link->rtt_s,
                                  .loss = link->loss,
                                  .members = members,
                                  .connections = CONNECTIONS};
    for (int32_t i = 0; i < members; i++)
        path.sync_s = fmax(path.sync_s, sites[i].profile.sync_s);
    return path;
}

// The work of the slowest cluster, for each codec.
static void work_of(const struct agent_job *job, const struct agent_site *sites,
                    const struct agent_planner *p, const struct inter_wan_load *load,
                    struct inter_wan_work *work) {
    for (int32_t k = 0; k < p->n_codecs; k++) {
        work[k] = (struct inter_wan_work){0};
        for (int32_t i = 0; i < p->n; i++) {
            struct inter_wan_codec c = agent_planner_codec(p, &sites[i], k);
            struct inter_wan_work w = agent_planner_work(
                &p->clusters[i], &sites[i], &job->clusters[i], &c, c.bits / 8 * load->params, p->n);
            work[k].encode_s = fmax(work[k].encode_s, w.encode_s);
            work[k].merge_s = fmax(work[k].merge_s, w.merge_s);
        }
    }
}

// Exchanges in the run. The last exchange sends the rest.
static double exchanges(const struct agent_job *job, int32_t interval) {
    double early = fmin((double)job->steps, job->sync.early_steps);
    return ceil(((double)job->steps - early) / interval) + ceil(early / job->sync.early_interval);
}

// What is free, and the bounds. agent_job_validate checks the same bounds.
static struct inter_wan_choice choice_of(const struct agent_job *job, uint32_t free, int32_t own) {
    const struct agent_sync *s = &job->sync;
    bool tunes = s->tune.mode == AGENT_TUNE_AUTO;
    struct inter_wan_choice c = {
        .interval = free & AGENT_AUTO_INTERVAL ? 0 : s->interval,
        .overlap = free & AGENT_AUTO_OVERLAP ? -1 : s->overlap,
        .codec = free & AGENT_AUTO_CODEC ? -1 : own,
        .steps = job->steps,
        .anticipates = s->anticipate > 0 && !(s->blend > 0),
        .muon = job->optim.kind == INTRA_OPTIM_MUON,
        .interval_above = tunes ? s->tune.overlap_max : 0,
        .interval_most = tunes ? s->tune.interval_max : 0,
        .overlap_below = tunes && s->tune.overlap_max ? s->tune.overlap_max + 1 : 0,
    };
    if (s->early_steps && (!c.overlap_below || s->early_interval < c.overlap_below))
        c.overlap_below = s->early_interval;
    return c;
}

// Chooses within `free`. If nothing is possible there, chooses within the keys that say auto.
static enum neb_status choose(const struct agent_job *job, const struct inter_wan_path *path,
                              const struct inter_wan_load *load, uint32_t free, int32_t own,
                              struct agent_planner *out) {
    struct inter_wan_choice c = choice_of(job, free, own);
    out->carried = inter_wan_choose(path, load, out->codecs, out->n_codecs, &c, &out->wan);
    if (!out->wan.interval && free & ~job->autos) {
        c = choice_of(job, job->autos, own);
        out->carried = inter_wan_choose(path, load, out->codecs, out->n_codecs, &c, &out->wan);
    }
    return out->wan.interval
               ? NEB_OK
               : neb_fail(NEB_ERR_LIMIT,
                          "sync: auto finds no codec and interval for %lld steps: dense updates "
                          "are too large to send (more sync.fragments help), sparse ones need more "
                          "rounds, or sync.tune allows none; set sync.codec and sync.interval",
                          (long long)job->steps);
}

enum neb_status agent_planner_exchanges(const struct agent_job *job, int32_t vocab,
                                        const struct agent_site *sites, uint32_t free,
                                        struct agent_planner *out) {
    struct agent_plan sizes;
    struct intra_model_config m = agent_planner_model(job, vocab);
    struct inter_wan_work work[AGENT_PLANNER_CODECS];
    int32_t own;
    NEB_TRY(codecs_of(job, vocab, &sites[0], out, &own));
    NEB_TRY(agent_job_plan(job, vocab, &sizes));
    if (!(free & AGENT_AUTO_CODEC))
        NEB_TRY(agent_update_fits(job, (uint64_t)sizes.fragment, 1, (uint64_t)sizes.tensor));
    struct inter_wan_load load = {
        .params = (double)sizes.trainable, .fragments = agent_job_fragments(job), .work = work};
    if (job->sync.row_weights && job->trainable.mode == INTRA_TRAIN_FULL)
        load.counts = COUNT_BYTES * m.vocab * (m.tied ? 1 : 2) / agent_job_fragments(job);
    struct inter_wan_path path = agent_planner_path(&out->link, sites, out->n);
    for (int32_t i = 0; i < out->n; i++)
        load.step_s = fmax(load.step_s, out->clusters[i].cost.step_s);
    // Nothing can be predicted: a cluster cannot run the job, or an attached trainer's speed is not
    // known.
    if (!isfinite(load.step_s) || !(load.step_s > 0)) {
        out->sent_bytes = sizes.bytes;
        return NEB_OK;
    }
    work_of(job, sites, out, &load, work);
    NEB_TRY(choose(job, &path, &load, free, own, out));
    for (int32_t i = 0; i < out->n; i++)
        out->clusters[i].wait_s =
            out->wan.stall_s + out->wan.interval * (load.step_s - out->clusters[i].cost.step_s);
    double tail = out->wan.travel_s + out->wan.agree_s + out->wan.merge_s + out->wan.encode_s,
           n = exchanges(job, out->wan.interval);
    out->wall_s = (double)job->steps * load.step_s +
                  n * (out->wan.encode_s + out->wan.merge_s + out->wan.stall_s) + tail;
    out->sent_bytes = out->wan.bytes * n;
    agent_planner_tune(job, sites, &load, out);
    if (!out->tuning.on)
        return NEB_OK;
    out->wall_s = out->tuning.wall_s;
    out->sent_bytes = 0;
    for (int32_t i = 0; i < out->n; i++) {
        out->clusters[i].wait_s = out->tuning.of[i].wait_s;
        out->sent_bytes = fmax(out->sent_bytes, out->tuning.of[i].sent_bytes);
    }
    return NEB_OK;
}
