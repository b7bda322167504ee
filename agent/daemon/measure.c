// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/measure.h"

static uint32_t clamp_u32(double x) {
    return x > 0 ? x < (double)UINT32_MAX ? (uint32_t)x : UINT32_MAX : 0;
}

void agent_measure(struct inter_service *s, const struct agent_jobrun *j, const json_t *worker,
                   struct inter_measure *out) {
    json_int_t codec = json_integer_value(json_object_get(worker, "codec"));
    double error = json_number_value(json_object_get(worker, "error"));
    *out = (struct inter_measure){
        .step_us = clamp_u32((double)json_integer_value(json_object_get(worker, "step_us"))),
        .error = error >= 0 && error <= 1e6 ? (float)error : 0,
        .codec = codec > 0 && codec <= CMP_LEVELS_MAX && cmp_level((int)codec) ? (uint8_t)codec
                                                                               : CMP_LEVEL_JOB};
    double slowest = 0;
    for (int k = 0; k < j->job.n_clusters; k++) {
        struct inter_peer_stats p;
        if (!agent_job_has_peer(j, k) || j->job.clusters[k].witness ||
            inter_service_stats(s, j->peers[k], &p) != NEB_OK || !(p.path.goodput_bps > 0))
            continue;
        // All members take the update over one uplink; the estimate of each path shows its share of
        // it.
        if (slowest > 0 && p.path.goodput_bps >= slowest)
            continue;
        slowest = p.path.goodput_bps;
        out->goodput_kbps = clamp_u32(slowest / 1e3);
        out->full = p.path.full;
        // A ping may wait behind bulk data, and a chunk needs time on the line: the smaller value
        // is closer to the distance.
        neb_ns rtt = p.link.rtt && p.link.rtt < p.path.rtt ? p.link.rtt : p.path.rtt;
        out->rtt_us = clamp_u32(neb_seconds(rtt) * 1e6);
    }
}

json_t *agent_plan_json(const struct inter_record *r, int member) {
    if (member < 0 || member >= r->n_plans)
        return json_object();
    const struct inter_plan plan = inter_tune_planned(r, (uint8_t)member), *p = &plan;
    return json_pack("{s:I,s:I,s:i,s:i,s:i}", "interval", (json_int_t)p->interval, "overlap",
                     (json_int_t)p->overlap, "codec", p->codec, "reason", p->reason, "left_out",
                     p->left_out);
}
