// SPDX-License-Identifier: Apache-2.0
// Simulates a run with sync.tune: auto, round by round, with the real tuners (inter/record/tune.h).
// In place of measured values they get the predictions of the model of exchanges
// (inter/round/wan_cost.h).
//
//     plans of round r ─► each cluster's interval: its steps, encode, wait until all updates are
//                         there, merge ─► figures
//     figures          ─► tuners ─► plans of round r + 2
#include "agent/base/log.h"
#include "agent/job/tune.h"
#include "agent/plan/planner.h"

#include <math.h>
#include <string.h>

enum {
    AHEAD = 2, // rounds until a plan takes effect
    // Later rounds count like the last simulated one.
    ROUNDS_MAX = 5000
};

struct member {
    struct inter_wan_path path;
    struct inter_wan_load load;
    struct inter_wan_work work[AGENT_PLANNER_CODECS];
    struct inter_wan_plan exchange; // of this round
    double step_s;                  // seconds per step of the interval, skipped steps included
};

struct tuning {
    const struct agent_planner *p;
    struct inter_tune_config c;
    struct member m[AGENT_CLUSTERS_MAX];
    struct inter_tuner tuners[AGENT_CLUSTERS_MAX];
    struct inter_plan plans[AGENT_CLUSTERS_MAX][AHEAD]; // of this round and the next
};

static int32_t codec_of(const struct tuning *t, uint8_t level) {
    const struct cmp_variant *v = cmp_level(level);
    for (int32_t k = 0; v && k < t->p->n_codecs; k++)
        if (!strcmp(t->p->codecs[k].name, v->name))
            return k;
    return t->p->wan.codec;
}

static double makes(const struct inter_plan *plan) {
    return (double)(INTER_STEPS_CYCLE - plan->left_out) / INTER_STEPS_CYCLE;
}

static void members_of(const struct agent_job *job, const struct agent_site *sites,
                       const struct inter_wan_load *load, struct tuning *t) {
    for (int32_t i = 0; i < t->p->n; i++) {
        struct agent_wan link = agent_planner_link(&sites[i], &t->p->link);
        struct member *m = &t->m[i];
        m->path = agent_planner_path(&link, sites, t->p->n);
        m->load = *load;
        m->load.work = m->work;
        for (int32_t k = 0; k < t->p->n_codecs; k++) {
            struct inter_wan_codec c = agent_planner_codec(t->p, &sites[i], k);
            m->work[k] = agent_planner_work(&t->p->clusters[i], &sites[i], &job->clusters[i], &c,
                                            c.bits / 8 * load->params, t->p->n);
        }
    }
}

// Returns the seconds of a round. All clusters merge when the last update has arrived. Each
// cluster's merge is at least its overlap (in steps) after its own send.
static double play_round(struct tuning *t, struct agent_tuned *out) {
    uint32_t interval = 0;
    double arrives = 0, longest = 0, own[AGENT_CLUSTERS_MAX];
    for (int32_t i = 0; i < t->p->n; i++)
        interval = t->plans[i][0].interval > interval ? t->plans[i][0].interval : interval;
    for (int32_t i = 0; i < t->p->n; i++) {
        struct inter_plan *plan = &t->plans[i][0];
        struct member *m = &t->m[i];
        plan->interval = interval;
        m->step_s = m->load.step_s = t->p->clusters[i].cost.step_s * makes(plan);
        inter_wan_exchange(&m->path, &m->load, t->p->codecs, codec_of(t, plan->codec),
                           (int32_t)interval, (int32_t)plan->overlap, &m->exchange);
        arrives = fmax(arrives, (m->exchange.travel_s + m->exchange.agree_s) / m->load.fragments);
    }
    for (int32_t i = 0; i < t->p->n; i++) {
        struct member *m = &t->m[i];
        out[i].plan = t->plans[i][0];
        out[i].codec = m->exchange.codec;
        out[i].steps = interval * makes(&out[i].plan);
        // The wait at the merges of all fragments.
        out[i].wait_s = m->load.fragments * fmax(0, arrives - out[i].plan.overlap * m->step_s);
        own[i] = interval * m->step_s + m->exchange.encode_s + m->exchange.merge_s + out[i].wait_s;
        longest = fmax(longest, own[i]);
    }
    for (int32_t i = 0; i < t->p->n; i++)
        out[i].wait_s += longest - own[i];
    return longest;
}

static void decide(struct tuning *t, double steps_done) {
    struct inter_tune_update u[AGENT_CLUSTERS_MAX];
    for (int32_t i = 0; i < t->p->n; i++) {
        const struct member *m = &t->m[i];
        const struct inter_wan_codec *c = &t->p->codecs[m->exchange.codec];
        double bytes = c->bits / 8 * m->load.params / m->load.fragments + m->load.counts;
        uint8_t level = t->plans[i][0].codec;
        u[i] = (struct inter_tune_update){
            .bytes = (uint32_t)fmin(bytes, UINT32_MAX),
            .steps_done = (uint64_t)steps_done,
            .took = (neb_ns)(m->exchange.travel_s / m->load.fragments * 1e9),
            .measure = {.goodput_kbps = (uint32_t)fmin(
                            inter_wan_goodput(&m->path) * 8e-3 / (m->path.members - 1), UINT32_MAX),
                        .rtt_us = (uint32_t)(m->path.rtt_s * 1e6),
                        .step_us = (uint32_t)fmax(1, t->p->clusters[i].cost.step_s * 1e6),
                        .error = (float)c->rel_error,
                        .codec = level,
                        .full = true}};
    }
    inter_tune_round(t->tuners, &t->c, u, (uint8_t)t->p->n);
    for (int32_t i = 0; i < t->p->n; i++) {
        memmove(t->plans[i], t->plans[i] + 1, (AHEAD - 1) * sizeof *t->plans[i]);
        t->plans[i][AHEAD - 1] = t->tuners[i].plan;
    }
}

void agent_planner_tune(const struct agent_job *job, const struct agent_site *sites,
                        const struct inter_wan_load *load, struct agent_planner *p) {
    static struct agent_job as; // large
    struct tuning t = {.p = p};
    struct agent_tuned now[AGENT_CLUSTERS_MAX];
    double steps = 0, s = 0;
    as = *job;
    as.sync.tune.mode = AGENT_TUNE_AUTO;
    as.sync.interval = p->wan.interval;
    as.sync.overlap = p->wan.overlap;
    memcpy(as.sync.codec, p->codecs[p->wan.codec].name, sizeof as.sync.codec);
    as.autos = 0;
    neb_log_hush(true);
    bool possible = agent_job_validate(&as, "") == NEB_OK;
    neb_log_hush(false);
    t.c = agent_tune_config(&as);
    members_of(job, sites, load, &t);
    for (int32_t i = 0; i < p->n; i++)
        for (int r = 0; r < AHEAD; r++)
            t.plans[i][r] = inter_tune_first(&t.c);
    p->tuning =
        (struct agent_tuning){.on = job->sync.tune.mode == AGENT_TUNE_AUTO, .possible = possible};
    for (int r = 0; steps < (double)job->steps; r++) {
        bool first_half = steps < (double)job->steps / 2;
        if (r < ROUNDS_MAX)
            s = play_round(&t, now);
        double interval = now[0].plan.interval,
               rounds = r < ROUNDS_MAX ? 1 : ceil(((double)job->steps - steps) / interval);
        for (int32_t i = 0; i < p->n; i++) {
            double bytes = p->tuning.of[i].sent_bytes + rounds * t.m[i].exchange.bytes;
            if (first_half)
                p->tuning.of[i] = now[i];
            p->tuning.of[i].sent_bytes = bytes;
        }
        p->tuning.wall_s += rounds * s;
        steps += rounds * interval;
        if (r < ROUNDS_MAX)
            decide(&t, steps);
    }
    for (int32_t i = 0; i < p->n; i++) {
        const struct inter_wan_plan *w = &t.m[i].exchange;
        // The last exchange still needs this time after the last step.
        p->tuning.wall_s += (w->travel_s + w->agree_s + w->merge_s + w->encode_s) / p->n;
    }
}
