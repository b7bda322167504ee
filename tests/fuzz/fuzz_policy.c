// SPDX-License-Identifier: Apache-2.0
// A site's policy.json: any bytes give a policy or a refusal, and a policy can be asked about a job.
#include "agent/daemon/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct agent_policy p;
    static const struct intra_model_config model = {
        .vocab = 16, .n_layers = 1, .d_model = 8, .n_heads = 2, .n_kv_heads = 1, .d_ff = 16};
    struct agent_job job = {
        .n_clusters = 2, .model = model, .batch = 2, .accumulate = 1, .seq_len = 8, .steps = 4};
    struct agent_terms terms;
    struct agent_policy_load running = {1, 1};
    char why[256];
    job.sync = (struct agent_sync){
        .interval = 2, .early_interval = 1, .fragments = 1, .row_weights = true};
    if (agent_policy_parse((const char *)data, size, "policy.json", &p) == NEB_OK) {
        (void)!agent_policy_admits(&p, &job, 0, "hub", &running, why, sizeof why);
        agent_policy_terms(&p, &job, 0, &terms);
        agent_policy_describe(&p, why, sizeof why);
    }
    return 0;
}
