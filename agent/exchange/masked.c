// SPDX-License-Identifier: Apache-2.0
// The worker's part of the gate `private`: the agent gives it keys at the attach, and the seeds of
// each sum with the commit. Updates are masked before they leave this process.
#include "agent/exchange/exchange.h"
#include "agent/job/private.h"

#include <string.h>

enum neb_status exchange_masked_keys(struct agent_exchange *x, const void *keys, size_t len) {
    if (x->job.sync.gate != AGENT_GATE_PRIVATE || x->job.sync.scheme != AGENT_SCHEME_FEDERATED)
        return NEB_OK;
    if (len != (size_t)x->job.n_clusters * SEC_SUM_KEY_BYTES)
        return neb_fail(NEB_ERR_FORMAT, "the agent sent no keys for sync.gate: private");
    return sec_sum_create((uint8_t)x->job.n_clusters, (uint8_t)x->cluster,
                          (const uint8_t(*)[SEC_SUM_KEY_BYTES])keys, &x->sum);
}

enum neb_status exchange_masked_seeds(const struct agent_exchange *x, struct agent_flight *t,
                                      const json_t *text) {
    uint8_t bytes[SEC_SUM_SEEDS_MAX];
    const char *hex = json_string_value(text);
    size_t n = hex ? strlen(hex) / 2 : 0;
    if (!x->sum || !t->n)
        return NEB_OK;
    if (!n || n > sizeof bytes || !neb_unhex(hex, bytes, n) ||
        !sec_sum_seeds_get(bytes, n, &t->seeds))
        return neb_fail(NEB_ERR_FORMAT, "the agent sent malformed seeds of a masked sum");
    return NEB_OK;
}

void exchange_masked_config(const struct agent_exchange *x, struct inter_outer_config *c) {
    if (!x->sum)
        return;
    c->sum = x->sum;
    c->sum_members = (uint8_t)x->job.n_clusters;
    c->sum_scale = agent_private_scale(&x->job);
    struct sec_privacy noise;
    if (agent_private_noised(&x->job) && agent_private_noise(&x->job, &noise)) {
        c->sum_squared = noise.squared;
        c->sum_variance = noise.variance;
    }
}
