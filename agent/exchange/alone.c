// SPDX-License-Identifier: Apache-2.0
// The outer step of a synchronous run: one process has the batches of all clusters, so nothing is
// sent. What it learned in an interval is the update, in fp32.
#include "agent/exchange/exchange.h"
#include "agent/job/groups.h"

enum neb_status exchange_alone(struct agent_exchange *x) {
    struct cmp_codec fp32;
    bool last = x->step >= x->job.steps;
    NEB_TRY(cmp_codec_parse("fp32", &fp32));
    for (int32_t f = 0; f < exchange_fragments(x); f++) {
        if (!last && !agent_schedule_due(&x->schedule, f, x->step))
            continue;
        NEB_TRY(exchange_encode(x, f, &fp32));
        const struct neb_buf *blob = &x->flight[f].blob;
        const struct inter_outer_part part = {
            .blob = blob->p, .len = blob->len, .tokens = 1, .clip = 1, .mine = true};
        const struct inter_outer_round r = {.parts = &part,
                                            .n = 1,
                                            .eta = agent_job_fragment_eta(&x->job, f),
                                            .mu = agent_job_fragment_mu(&x->job, f),
                                            .last = last};
        NEB_TRY(agent_shards_merge(x->shards, f, false, &r, &x->kept[f].last_digest));
    }
    return NEB_OK;
}
