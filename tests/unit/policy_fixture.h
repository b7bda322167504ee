// SPDX-License-Identifier: Apache-2.0
// Shared by test_policy.c and test_policy_leaves.c: policies and jobs.
#ifndef TESTS_POLICY_FIXTURE_H
#define TESTS_POLICY_FIXTURE_H
#include "agent/base/log.h"
#include "agent/daemon/policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct agent_policy parse(const char *text) {
    struct agent_policy p;
    assert_int_equal(agent_policy_parse(text, strlen(text), "policy.json", &p), NEB_OK);
    return p;
}

static struct agent_policy_load running; // runs beside the job that is judged

static bool admits(const struct agent_policy *p, const struct agent_job *j, const char *from,
                   const char *reason) {
    char why[512] = "";
    bool ok = agent_policy_admits(p, j, 0, from, &running, why, sizeof why);
    if (!ok)
        assert_non_null(strstr(why, reason));
    return ok;
}

static struct agent_job job_of(const char *corpus) {
    struct agent_job j = {.n_clusters = 1};
    snprintf(j.clusters[0].name, sizeof j.clusters[0].name, "paris");
    snprintf(j.corpus, sizeof j.corpus, "%s", corpus);
    j.clusters[0].threads = 2;
    return j;
}

static struct agent_job small_job(void) {
    struct agent_job j = job_of("/data");
    j.model = (struct intra_model_config){.vocab = 1000,
                                          .n_layers = 4,
                                          .d_model = 64,
                                          .n_heads = 4,
                                          .n_kv_heads = 2,
                                          .d_ff = 128,
                                          .tied = true};
    j.batch = 4;
    j.accumulate = 2;
    j.seq_len = 64;
    j.steps = 100;
    j.checkpoint_keep = 2;
    j.clusters[0].device = AGENT_DEVICE_CPU;
    return j;
}

#endif
