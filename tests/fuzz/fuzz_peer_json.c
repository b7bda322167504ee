// SPDX-License-Identifier: Apache-2.0
// JSON from another agent: a job, a metrics line for watchers, and a message about tensors. An
// accepted job is unchanged after a round trip; every line leaves a history that is JSON.
#include "agent/daemon/tensor_list.h"
#include "agent/web/view.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

// Adds keys that are younger than the seeds of the corpus, so that a seed stays a job that agents
// accept.
static void add_new_keys(json_t *json) {
    static const char yaml[] =
        "job: t\nsteps: 4\nmodel: {n_layers: 1, d_model: 8, n_heads: 2, d_ff: 16}\n"
        "data: {corpus: c, seq_len: 8, batch: 1}\noptim: {lr: 1e-3}\nclusters: [{name: a}]\n";
    static json_t *all; // every key, with a default
    static struct agent_job job;
    if (!all) {
        NEB_ASSERT(agent_job_parse(yaml, sizeof yaml - 1, "t.yaml", &job) == NEB_OK);
        NEB_ASSERT((all = agent_job_to_json(&job)) != NULL);
    }
    if (json_object_get(json, "clusters"))
        json_object_update_missing(json, all);
}

// As a question, and as an answer to each question in turn.
static void about_tensors(const json_t *json) {
    static const struct exchange_tensor list[] = {{.name = "a", .dims = 1, .shape = {3}},
                                                  {.name = "b", .dims = 2, .shape = {2, 3}},
                                                  {.name = "c"}};
    struct agent_tensor_list t = {0};
    struct exchange_manifest *m = NULL;
    enum agent_tensors_result result;
    char text[AGENT_TENSORS_TEXT];
    NEB_ASSERT(exchange_manifest_create(list, 3, &m) == NEB_OK &&
               agent_tensors_take(&t, m) == NEB_OK);
    json_decref(agent_tensors_answer(&t, json, "x", "y", &result, text));
    for (int i = 0; i < 4; i++) {
        json_t *q = agent_tensors_question(&t);
        NEB_ASSERT(q && t.low >= 0 && t.high <= t.n + 1 && (!t.high || t.low < t.high));
        (void)agent_tensors_learn(&t, json, "x", "y", text);
        json_decref(q);
    }
    agent_tensors_clear(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static struct agent_job job, back; // large
    struct agent_view *v = NULL;
    json_t *json =
        n > 1 << 16 ? NULL : json_loadb((const char *)data, n, JSON_REJECT_DUPLICATES, NULL);
    if (!json)
        return 0;
    about_tensors(json);
    if (agent_job_from_json(json, &job) != NEB_OK)
        add_new_keys(json);
    if (agent_job_from_json(json, &job) == NEB_OK) {
        json_t *again = agent_job_to_json(&job);
        NEB_ASSERT(again && agent_job_from_json(again, &back) == NEB_OK);
        NEB_ASSERT(!memcmp(&job, &back, sizeof job));
        json_decref(again);
    }
    NEB_ASSERT(agent_view_create(&v) == NEB_OK);
    for (int i = 0; i < 3; i++)
        agent_view_line(v, i ? "job" : "other", 10, json, 1e9 + i, 1e6 + i);
    char *history = agent_view_history(v);
    json_t *clusters = agent_view_clusters(v, "job", 1e9), *events = agent_view_events(v),
           *read = history ? json_loads(history, 0, NULL) : NULL;
    NEB_ASSERT(clusters && events && read);
    json_decref(read);
    json_decref(clusters);
    json_decref(events);
    free(history);
    agent_view_destroy(&v);
    json_decref(json);
    return 0;
}
