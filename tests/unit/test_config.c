// agent/config: what a wrong job file is told, and that YAML, --set and JSON agree.
#include "agent/base/log.h"
#include "agent/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char message[1024];
static void capture(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    snprintf(message, sizeof message, "%s", text);
}

static const char good[] = "job: first-light\n"
                           "steps: 300\n"
                           "model: {n_layers: 4, d_model: 128, n_heads: 4, n_kv_heads: 2, d_ff: 384}\n"
                           "data: {corpus: /tmp/corpus, seq_len: 128, batch: 4}\n"
                           "optim: {lr: 2e-3, warmup: 20}\n"
                           "clusters:\n"
                           "  - {name: paris, sources: {fr: 1, es: 0.5}, threads: 2}\n"
                           "  - {name: berlin, sources: {en: 1, de: 1}}\n";

static enum neb_status parse(const char *text, struct agent_job *j) { return agent_job_parse(text, strlen(text), "dir/job.yaml", j); }

static void test_good(void **state) {
    (void)state;
    struct agent_job j;
    assert_int_equal(parse(good, &j), NEB_OK);
    assert_int_equal(j.steps, 300);
    assert_int_equal(j.model.n_kv_heads, 2);
    assert_true(j.model.tied && j.optim.schedule.lr == 2e-3f && j.sync.eta == 0.9f && j.optim.clip.kind == INTRA_CLIP_GLOBAL_NORM);
    assert_int_equal(j.n_clusters, 2);
    assert_string_equal(j.clusters[0].sources[1].name, "es");
    assert_true(j.clusters[0].sources[1].weight == 0.5f);
    assert_int_equal(j.trainable.lora_targets, INTRA_LORA_Q | INTRA_LORA_V);
}

static void test_complaints(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *expect; // `from` in the good file becomes `to`
    } cases[] = {
        {"n_heads: 4,", "n_heads: eight,", "job.yaml:3: model.n_heads: \"eight\" is not an integer"},
        {"n_heads: 4,", "n_heads: 0,", "job.yaml:3: model.n_heads: 0 is not in 1..1024"},
        {"model:", "modle:", "job.yaml:3: modle: unknown key (did you mean 'model'?)"},
        {"warmup:", "warmpu:", "job.yaml:5: optim.warmpu: unknown key (did you mean 'optim.warmup'?)"},
        {"steps: 300\n", "", "job.yaml: steps: is missing (inner steps of every cluster)"},
        {"steps: 300\n", "steps: [3]\n", "job.yaml:2: steps: must be a single value"},
        {"steps: 300\n", "steps: 300\nsteps: 301\n", "job.yaml:3: steps: given twice"},
        {"name: berlin", "name: paris", "job.yaml: clusters.name: \"paris\" is given to two clusters"},
        {"threads: 2", "thread: 2", "job.yaml:7: clusters: unknown key 'thread'; allowed: name, threads, corpus, sources"},
        {"fr: 1", "fr: -1", "job.yaml:7: clusters.sources: weight of fr must be a number above 0"},
        {"name: paris, ", "", "job.yaml:7: clusters.name: is missing"},
        {"lr: 2e-3", "lr: nan", "job.yaml:5: optim.lr: \"nan\" is not a number"},
        {"steps: 300\n", "steps: 300\nmode: rdt\n", "job.yaml:3: mode: \"rdt\" is not one of: replicas"},
        {"steps: 300\n", "steps: 300\nsync: {overlap: 30}\n", "job.yaml: sync.overlap: 30 must be below sync.interval 30"},
        {"steps: 300\n", "steps: 300\ntrainable: {mode: lora, targets: [q, x]}\n",
         "job.yaml:3: trainable.targets: \"x\" is not one of: q, k, v, o, gate, up, down"},
        {"steps: 300\n", "steps: 300\ntrainable: lora\n", "job.yaml: trainable.rank: lora needs a rank of 1 or more and at least one target"},
        {"job: first-light", "job: ../evil", "job.yaml:1: job: \"../evil\" is not a name (letters, digits, '-', '_', '.')"},
    };
    struct agent_job j;
    neb_log_set_sink(capture, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048];
        const char *at = strstr(good, cases[i].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, cases[i].to, at + strlen(cases[i].from));
        assert_int_equal(parse(text, &j), NEB_ERR_INVALID);
        assert_string_equal(message, cases[i].expect);
    }
    assert_int_equal(parse("job: [a\n", &j), NEB_ERR_FORMAT);
    assert_non_null(strstr(message, "job.yaml:2: not valid YAML"));
    assert_int_equal(parse("", &j), NEB_ERR_INVALID);
    assert_string_equal(message, "job.yaml: job file: is empty");
    neb_log_set_sink(NULL, NULL);
}

static void test_set(void **state) {
    (void)state;
    struct agent_job j;
    assert_int_equal(parse(good, &j), NEB_OK);
    assert_int_equal(agent_job_set(&j, "sync.interval=10"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "trainable=lora"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "trainable.rank=4"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "trainable.targets=[q, down]"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "sync.codec=topk:64/4096"), NEB_OK);
    assert_true(j.sync.interval == 10 && j.trainable.mode == INTRA_TRAIN_LORA &&
                j.trainable.lora_targets == (INTRA_LORA_Q | INTRA_LORA_DOWN));
    neb_log_set_sink(capture, NULL);
    assert_int_equal(agent_job_set(&j, "sync.interval=x"), NEB_ERR_INVALID);
    assert_string_equal(message, "--set: sync.interval: \"x\" is not an integer");
    assert_int_equal(agent_job_set(&j, "sync.intervall=1"), NEB_ERR_INVALID);
    assert_string_equal(message, "--set: sync.intervall: unknown key (did you mean 'sync.interval'?)");
    assert_int_equal(agent_job_set(&j, "steps"), NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
}

static void test_json_round_trip(void **state) {
    (void)state;
    struct agent_job j, k;
    assert_int_equal(parse(good, &j), NEB_OK);
    assert_int_equal(agent_job_set(&j, "optim.lr=0.0017"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "trainable.freeze=[embeddings]"), NEB_OK);
    json_t *json = agent_job_to_json(&j);
    assert_int_equal(agent_job_from_json(json, &k), NEB_OK);
    json_t *again = agent_job_to_json(&k);
    assert_true(json_equal(json, again));
    assert_memory_equal(&j.optim, &k.optim, sizeof j.optim); // floats to the bit
    json_object_set_new(json, "extra", json_integer(1));
    neb_log_set_sink(capture, NULL);
    assert_int_equal(agent_job_from_json(json, &k), NEB_ERR_FORMAT);
    neb_log_set_sink(NULL, NULL);
    json_decref(json);
    json_decref(again);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_complaints),
                                       cmocka_unit_test(test_set), cmocka_unit_test(test_json_round_trip)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
