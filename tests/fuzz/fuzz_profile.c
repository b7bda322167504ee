// SPDX-License-Identifier: Apache-2.0
// Profiles of other sites: an accepted one is the same after a round trip, and planning with it
// ends.
#include "agent/plan/profile.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct agent_profile p, back;
    if (agent_profile_parse((const char *)data, size, "profile", &p) != NEB_OK)
        return 0;
    json_t *o = agent_profile_to_json(&p);
    char *text = json_dumps(o, JSON_REAL_PRECISION(17));
    NEB_ASSERT(text && agent_profile_parse(text, strlen(text), "back", &back) == NEB_OK);
    NEB_ASSERT(back.sync_s == p.sync_s && back.rates.step[0][0] == p.rates.step[0][0] &&
               back.rates.processors == p.rates.processors && !strcmp(back.host, p.host));
    struct intra_cost_job j = {.model = {.vocab = 64,
                                         .d_model = 16,
                                         .n_layers = 2,
                                         .n_heads = 2,
                                         .n_kv_heads = 2,
                                         .head_dim = 8,
                                         .d_ff = 32},
                               .seq_len = 8,
                               .ranks_a_host = 1,
                               .share = 1,
                               .batch = 1,
                               .micros = 4,
                               .mesh = {1, 1, 1}};
    struct intra_cost_choice c = {.ranks = 4, .memory = p.rates.memory};
    struct intra_cost cost;
    (void)intra_cost_choose(&c, &p.rates, &j, &cost);
    NEB_ASSERT(cost.step_s >= 0 && cost.host_bytes > 0);
    if (p.rates.device.count) {
        j.device = true;
        j.type = KERN_BF16;
        c.device_memory = p.rates.device.memory;
        (void)intra_cost_choose(&c, &p.rates, &j, &cost);
        NEB_ASSERT(back.rates.device.update[1] == p.rates.device.update[1] && cost.step_s >= 0 &&
                   cost.device_bytes > 0);
    }
    free(text);
    json_decref(o);
    return 0;
}
