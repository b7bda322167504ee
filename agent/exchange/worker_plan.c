// SPDX-License-Identifier: Apache-2.0
// What commit records plan for this cluster, and how it follows the plan.
//
//     record r merged: its plan is for round r + 2     kept[f].plans = { for r + 1, for r + 2 }
//
// Every run of the same steps knows both plans before round r + 1 is sent, so a resume stays
// bit-identical. H and the steps to leave out come from the records of the first fragment and
// change when it is sent; codec and τ come from each fragment's own records. A snapshot contains
// its last record only, whose plan then starts one round earlier.
#include "agent/base/log.h"
#include "agent/exchange/worker.h"
#include "agent/job/update_size.h"

void worker_plan_start(struct agent_worker *w) {
    struct inter_tune_config c = agent_tune_config(&w->job);
    for (int32_t f = 0; f < w->job.sync.fragments; f++)
        w->kept[f].plans[0] = w->kept[f].plans[1] = inter_tune_first(&c);
}

// A site's policy has admitted the job for its smallest possible update (agent_schedule_least). So
// no leader may plan less work than the job allows.
static uint8_t left_out(const struct agent_worker *w, const struct inter_plan *p) {
    const struct agent_tune *t = &w->job.sync.tune;
    return t->mode == AGENT_TUNE_AUTO && t->balance ? p->left_out : 0;
}

void worker_plan_taken(struct agent_worker *w, int32_t f, const struct inter_record *last) {
    struct inter_plan *p = w->kept[f].plans;
    if (w->cluster >= last->n_plans)
        return;
    p[0] = p[1] = inter_tune_planned(last, (uint8_t)w->cluster);
    if (f == 0)
        w->left_out = left_out(w, &p[0]);
}

enum neb_status worker_plan_codec(struct agent_worker *w, int32_t f, bool merge,
                                  struct cmp_codec *out) {
    uint8_t level = w->kept[f].plans[0].codec;
    const struct cmp_variant *plan = cmp_level(level);
    struct agent_flight *t = &w->flight[f];
    *out = w->codec;
    t->codec = (uint8_t)cmp_level_of(w->job.sync.codec);
    struct cmp_codec planned;
    if (plan)
        NEB_TRY(cmp_codec_parse(plan->name, &planned));
    if (plan && agent_update_possible(&w->job, &planned, w->fragment_elements, w->fragment_units)) {
        *out = planned;
        t->codec = level;
    }
    if (merge && cmp_codec_coarse(out)) {
        *out = w->merge_codec;
        // another codec than planned: the controller learns nothing from it
        t->codec = CMP_LEVEL_JOB;
    }
    return NEB_OK;
}

// The record is signed, but its plan is still limited to what the job can do.
static int64_t overlap_of(const struct agent_worker *w, int32_t f) {
    const struct agent_schedule *s = &w->schedule;
    int64_t most = w->step <= s->early_steps && s->early_steps ? s->early_interval : s->interval;
    int64_t want = w->kept[f].plans[0].overlap;
    return want < most ? want : most - 1;
}

void worker_plan_sent(struct agent_worker *w, int32_t f) {
    int64_t want = w->kept[f].plans[0].interval, most = 1 << 30;
    if (f == 0 && w->job.sync.tune.mode == AGENT_TUNE_AUTO && want >= w->job.sync.interval &&
        want <= most)
        agent_schedule_change(&w->schedule, w->step, (int32_t)want);
    if (f == 0)
        w->left_out = left_out(w, &w->kept[f].plans[0]);
    w->frags[f].merge_step = w->step + overlap_of(w, f);
}

void worker_plan_merged(struct agent_worker *w, int32_t f) {
    struct inter_plan *p = w->kept[f].plans, last = p[1];
    p[0] = p[1];
    if (!w->flight[f].planned)
        return;
    p[1] = w->flight[f].plan;
    w->flight[f].planned = false;
    if (p[1].codec == last.codec && p[1].overlap == last.overlap &&
        p[1].interval == last.interval && p[1].left_out == last.left_out)
        return;
    const struct cmp_variant *codec = cmp_level(p[1].codec);
    worker_metrics(w, json_pack("{s:s,s:I,s:I,s:I,s:s,s:I,s:I,s:f,s:s,s:I}", "kind", "tune",
                                "round", (json_int_t)w->frags[f].round, "from_round",
                                (json_int_t)w->frags[f].round + 2, "fragment", (json_int_t)f,
                                "plan_codec", codec ? codec->name : w->job.sync.codec, "overlap",
                                (json_int_t)p[1].overlap, "interval", (json_int_t)p[1].interval,
                                "left_out", (double)p[1].left_out / INTER_STEPS_CYCLE, "reason",
                                inter_reason_text((enum inter_reason)p[1].reason), "step",
                                (json_int_t)w->step));
}

bool worker_leaves_out(const struct agent_worker *w) {
    int64_t made = INTER_STEPS_CYCLE - w->left_out;
    return (w->step + 1) * made / INTER_STEPS_CYCLE == w->step * made / INTER_STEPS_CYCLE;
}

void worker_step_took(struct agent_worker *w, double seconds) {
    w->step_s = w->step_s > 0 ? 0.9 * w->step_s + 0.1 * seconds : seconds;
}

json_t *worker_plan_measure(const struct agent_worker *w, int32_t f) {
    return json_pack("{s:I,s:f,s:i}", "step_us", (json_int_t)(w->step_s * 1e6), "error",
                     (double)w->flight[f].error, "codec", w->flight[f].codec);
}
