// SPDX-License-Identifier: Apache-2.0
// What commit records plan for this cluster, and how it follows the plan.
//
//     record r merged: its plan is for round r + 2     kept[f].plans = { for r + 1, for r + 2 }
//
// Every run of the same steps knows both plans before round r + 1 is sent, so a resume stays
// bit-identical. H and the steps to leave out come from the records of the first fragment and
// change when it is sent; codec and τ come from each fragment's own records. A snapshot contains
// only the last record. The plan of that record then starts one round earlier.
#include "agent/base/log.h"
#include "agent/exchange/exchange.h"
#include "agent/job/update_size.h"

void exchange_plan_start(struct agent_exchange *x) {
    struct inter_tune_config c = agent_tune_config(&x->job);
    for (int32_t f = 0; f < exchange_fragments(x); f++)
        x->kept[f].plans[0] = x->kept[f].plans[1] = inter_tune_first(&c);
}

// A site's policy has admitted the job for its smallest possible update (agent_schedule_least). So
// no leader may plan less work than the job allows.
static uint8_t left_out(const struct agent_exchange *x, const struct inter_plan *p) {
    const struct agent_tune *t = &x->job.sync.tune;
    return t->mode == AGENT_TUNE_AUTO && t->balance ? p->left_out : 0;
}

void exchange_plan_taken(struct agent_exchange *x, int32_t f, const struct inter_record *last) {
    struct inter_plan *p = x->kept[f].plans;
    if (x->cluster >= last->n_plans)
        return;
    p[0] = p[1] = inter_tune_planned(last, (uint8_t)x->cluster);
    if (f == 0)
        x->left_out = left_out(x, &p[0]);
}

enum neb_status exchange_plan_codec(struct agent_exchange *x, int32_t f, bool merge,
                                    struct cmp_codec *out) {
    const struct exchange_fragment *k = &x->kept[f];
    const struct agent_group *g = agent_job_group(&x->job, agent_job_fragment_group(&x->job, f));
    const struct cmp_variant *plan = *g->codec ? NULL : cmp_level(k->plans[0].codec);
    bool tuned = x->job.sync.tune.mode == AGENT_TUNE_AUTO;
    struct agent_flight *t = &x->flight[f];
    struct cmp_codec planned;
    *out = k->codec;
    // the controller learns nothing from a codec that the job fixes
    t->codec = *g->codec && tuned ? CMP_LEVEL_JOB
                                  : (uint8_t)cmp_level_of(agent_job_fragment_codec(&x->job, f));
    if (plan)
        NEB_TRY(cmp_codec_parse(plan->name, &planned));
    if (plan && agent_update_possible(&x->job, &planned, k->most_elements, k->most_units)) {
        *out = planned;
        t->codec = k->plans[0].codec;
    }
    if (merge && cmp_codec_coarse(out)) {
        *out = k->merge_codec;
        // not the planned codec: the controller learns nothing from it
        t->codec = CMP_LEVEL_JOB;
    }
    return NEB_OK;
}

// The record is signed, but its plan is still limited to what the job can do.
static int64_t overlap_of(const struct agent_exchange *x, int32_t f) {
    const struct agent_schedule *s = &x->schedule;
    int64_t most = x->step <= s->early_steps && s->early_steps ? s->early_interval : s->interval;
    int64_t want = x->kept[f].plans[0].overlap;
    return want < most ? want : most - 1;
}

void exchange_plan_sent(struct agent_exchange *x, int32_t f) {
    int64_t want = x->kept[f].plans[0].interval, most = 1 << 30;
    if (f == 0 && x->job.sync.tune.mode == AGENT_TUNE_AUTO && want >= x->job.sync.interval &&
        want <= most)
        agent_schedule_change(&x->schedule, x->step, (int32_t)want);
    if (f == 0)
        x->left_out = left_out(x, &x->kept[f].plans[0]);
    x->frags[f].merge_step = x->step + overlap_of(x, f);
}

void exchange_plan_merged(struct agent_exchange *x, int32_t f) {
    struct inter_plan *p = x->kept[f].plans, last = p[1];
    p[0] = p[1];
    if (!x->flight[f].planned)
        return;
    p[1] = x->flight[f].plan;
    x->flight[f].planned = false;
    if (p[1].codec == last.codec && p[1].overlap == last.overlap &&
        p[1].interval == last.interval && p[1].left_out == last.left_out)
        return;
    const struct cmp_variant *codec = cmp_level(p[1].codec);
    exchange_metrics(x, json_pack("{s:s,s:I,s:I,s:I,s:s,s:I,s:I,s:f,s:s,s:I}", "kind", "tune",
                                  "round", (json_int_t)x->frags[f].round, "from_round",
                                  (json_int_t)x->frags[f].round + 2, "fragment", (json_int_t)f,
                                  "plan_codec", codec ? codec->name : x->job.sync.codec, "overlap",
                                  (json_int_t)p[1].overlap, "interval", (json_int_t)p[1].interval,
                                  "left_out", (double)p[1].left_out / INTER_STEPS_CYCLE, "reason",
                                  inter_reason_text((enum inter_reason)p[1].reason), "step",
                                  (json_int_t)x->step));
}

bool exchange_leaves_out(const struct agent_exchange *x) {
    int64_t made = INTER_STEPS_CYCLE - x->left_out;
    return (x->step + 1) * made / INTER_STEPS_CYCLE == x->step * made / INTER_STEPS_CYCLE;
}

void exchange_step_took(struct agent_exchange *x, double seconds) {
    x->step_s = x->step_s > 0 ? 0.9 * x->step_s + 0.1 * seconds : seconds;
}

json_t *exchange_plan_measure(const struct agent_exchange *x, int32_t f) {
    return json_pack("{s:I,s:f,s:i}", "step_us", (json_int_t)(x->step_s * 1e6), "error",
                     (double)x->flight[f].error, "codec", x->flight[f].codec);
}
