// SPDX-License-Identifier: Apache-2.0
// agent/policy: what may leave a site. Updates of few tokens, counts of tokens, labels, losses.
#include "tests/testing.h"
#include "tests/unit/policy_fixture.h"

// Two clusters that exchange rounds, as a job file describes them.
static struct agent_job federated_job(void) {
    struct agent_job j = small_job();
    j.n_clusters = 2;
    j.clusters[1] = j.clusters[0];
    snprintf(j.clusters[1].name, sizeof j.clusters[1].name, "rome");
    j.sync = (struct agent_sync){.scheme = AGENT_SCHEME_FEDERATED,
                                 .interval = 10,
                                 .early_interval = 10,
                                 .fragments = 1,
                                 .row_weights = true,
                                 .row_counts = AGENT_ROWS_COARSE};
    j.eval_windows = 64;
    return j; // 512 tokens a step, 5120 tokens an update
}

static struct agent_job one_token(void) {
    struct agent_job j = federated_job();
    j.seq_len = j.batch = j.accumulate = j.sync.interval = 1;
    return j;
}
static struct agent_job early(void) {
    struct agent_job j = federated_job();
    j.sync.early_interval = 2;
    j.sync.early_steps = 20;
    return j;
}
static struct agent_job odd_steps(void) { // the last update has one step
    struct agent_job j = federated_job();
    j.steps = 101;
    return j;
}
static struct agent_job few_steps(void) {
    struct agent_job j = federated_job();
    j.steps = 2;
    return j;
}
static struct agent_job fragments(void) { // the second fragment's first update has one step
    struct agent_job j = federated_job();
    j.sync.fragments = 10;
    return j;
}
static struct agent_job balanced(void) { // a leader may let a cluster skip seven of eight steps
    struct agent_job j = federated_job();
    j.sync.tune.mode = AGENT_TUNE_AUTO;
    j.sync.tune.balance = true;
    return j;
}
static struct agent_job wide(void) {
    struct agent_job j = federated_job();
    j.model.d_ff = 1281;
    return j;
}
static struct agent_job one_step(void) {
    struct agent_job j = federated_job();
    j.sync.scheme = AGENT_SCHEME_SYNCHRONOUS;
    return j;
}
static struct agent_job one_token_bitfit(void) {
    struct agent_job j = one_token();
    j.trainable.mode = INTRA_TRAIN_BITFIT;
    return j;
}
static struct agent_job one_token_last(void) {
    struct agent_job j = one_token();
    j.trainable = (struct intra_trainable){.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1};
    return j;
}
static struct agent_job one_token_private(void) {
    struct agent_job j = one_token();
    j.sync.gate = AGENT_GATE_PRIVATE;
    return j;
}
static struct agent_job one_token_alone(void) {
    struct agent_job j = one_token();
    j.sync.scheme = AGENT_SCHEME_NONE;
    return j;
}
static struct agent_job witness(void) {
    struct agent_job j = one_token();
    j.clusters[0].witness = true;
    return j;
}
static struct agent_job exact(void) {
    struct agent_job j = federated_job();
    j.sync.row_counts = AGENT_ROWS_EXACT;
    return j;
}
static struct agent_job exact_without_weights(void) {
    struct agent_job j = exact();
    j.sync.row_weights = false;
    return j;
}
static struct agent_job exact_lora(void) {
    struct agent_job j = exact();
    j.trainable = (struct intra_trainable){.mode = INTRA_TRAIN_LORA, .lora_rank = 2};
    return j;
}
static struct agent_job exact_output(void) { // a separate output layer learns with the last layers
    struct agent_job j = exact();
    j.model.tied = false;
    j.trainable = (struct intra_trainable){.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1};
    return j;
}
static struct agent_job exact_private(void) {
    struct agent_job j = exact();
    j.sync.gate = AGENT_GATE_PRIVATE;
    return j;
}
static struct agent_job robust(void) {
    struct agent_job j = federated_job();
    j.sync.gate = AGENT_GATE_ROBUST;
    return j;
}
static struct agent_job of_roles(enum agent_mode mode, enum agent_role role) {
    struct agent_job j = federated_job();
    j.mode = mode;
    j.clusters[0].role = role;
    j.rtd.generator_steps = j.rtd.discriminator_steps = 1;
    return j;
}
static struct agent_job teacher(void) { return of_roles(AGENT_MODE_DISTILL, AGENT_ROLE_TEACHER); }
static struct agent_job teacher_of_others(void) { // the text comes from others
    struct agent_job j = teacher();
    j.distill.pushed = true;
    return j;
}
static struct agent_job student(void) { return of_roles(AGENT_MODE_DISTILL, AGENT_ROLE_STUDENT); }
static struct agent_job generator(void) { return of_roles(AGENT_MODE_RTD, AGENT_ROLE_GENERATOR); }
static struct agent_job discriminator(void) {
    return of_roles(AGENT_MODE_RTD, AGENT_ROLE_DISCRIMINATOR);
}
static struct agent_job shared_rows(void) { // embeddings are sent every second step
    struct agent_job j = discriminator();
    j.rtd.share_embeddings = 2;
    return j;
}
static struct agent_job attached(void) {
    struct agent_job j = federated_job();
    j.clusters[0].launcher = AGENT_LAUNCHER_ATTACH;
    return j;
}
static struct agent_job by_mpirun(void) {
    struct agent_job j = federated_job();
    j.clusters[0].launcher = AGENT_LAUNCHER_MPIRUN;
    return j;
}

// What each key admits, and what a policy without it admits.
static void test_what_leaves(void **state) {
    (void)state;
    static const char few[] = "would rest on as few as", words[] = "sends counts of the tokens";
    static const struct {
        const char *keys; // "": only format
        struct agent_job (*job)(void);
        const char *why;
    } cases[] = {{"", federated_job, NULL},
                 {"", one_token, few},
                 {"", one_token_bitfit, few},
                 {"", one_token_last, few},
                 {"", one_token_private, few},
                 {"", one_token_alone, NULL},
                 {"", witness, NULL},
                 {"", early, few},
                 {"", odd_steps, few},
                 {"", few_steps, few},
                 {"", fragments, few},
                 {"", balanced, few},
                 {"", one_step, few},
                 {"", wide, "5124 are required (\"tokens_per_update\", which the policy does not"},
                 {"", shared_rows, few},
                 {"\"tokens_per_update\": 1", one_token, NULL},
                 {"\"tokens_per_update\": 5120", federated_job, NULL},
                 {"\"tokens_per_update\": 5120", wide, NULL},
                 {"\"tokens_per_update\": 5121", federated_job, "as few as 5120 tokens"},
                 {"\"tokens_per_update\": 1024", early, NULL},
                 {"\"tokens_per_update\": 512", odd_steps, NULL},
                 {"\"tokens_per_update\": 512", fragments, NULL},
                 {"\"tokens_per_update\": 640", balanced, NULL},
                 {"\"tokens_per_update\": 512", one_step, NULL},
                 {"\"tokens_per_update\": 1024", shared_rows, NULL},
                 {"", exact, words},
                 {"", exact_output, words},
                 {"", exact_without_weights, NULL},
                 {"", exact_lora, NULL},
                 {"", exact_private, NULL},
                 {"\"row_counts\": \"exact\"", exact, NULL},
                 {"\"row_counts\": \"coarse\"", exact, words},
                 {"\"row_counts\": \"never\"", federated_job, words},
                 {"\"row_counts\": \"never\"", exact_without_weights, NULL},
                 {"\"gates\": [\"private\"]", federated_job, "sync.gate: trusted"},
                 {"\"gates\": [\"private\"]", robust, "sync.gate: robust"},
                 {"\"gates\": [\"private\"]", exact_private, NULL},
                 {"\"gates\": [\"private\"]", one_token_alone, NULL}, // no text leaves the site
                 {"\"gates\": [\"trusted\", \"robust\"]", robust, NULL},
                 {"", teacher, "a teacher's labels"},
                 {"", teacher_of_others, NULL},
                 {"", student, NULL},
                 {"", generator, "a generator's draws"},
                 {"", discriminator, NULL},
                 {"\"labels\": true", teacher, NULL},
                 {"\"labels\": true", generator, NULL},
                 {"\"labels\": false", teacher, "a teacher's labels"},
                 {"", attached, NULL},
                 {"\"launchers\": [\"local\", \"mpirun\"]", attached, "\"launchers\""},
                 {"\"launchers\": [\"local\", \"mpirun\"]", by_mpirun, NULL},
                 {"\"launchers\": [\"attach\"]", by_mpirun, "\"launchers\""}};
    running = (struct agent_policy_load){0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        struct agent_job j = cases[i].job();
        snprintf(text, sizeof text, "{\"format\": 1%s%s}", *cases[i].keys ? ", " : "",
                 cases[i].keys);
        struct agent_policy p = parse(text), none = agent_policy_none();
        const char *why = cases[i].why;
        if (admits(&p, &j, "hub", why ? why : "") != !why)
            fail_msg("case %zu, %s: expected %s", i, text, why ? why : "to be admitted");
        assert_true(admits(&none, &j, "hub", "")); // a site without a policy
    }
}

static void test_refused_keys(void **state) {
    (void)state;
    static const char *const bad[] = {"\"gates\": []",
                                      "\"gates\": [\"open\"]",
                                      "\"gates\": \"private\"",
                                      "\"launchers\": [\"ssh\"]",
                                      "\"tokens_per_update\": 0",
                                      "\"tokens_per_update\": 1.5",
                                      "\"row_counts\": true",
                                      "\"row_counts\": \"rough\"",
                                      "\"losses\": \"none\"",
                                      "\"loss_every\": -1",
                                      "\"labels\": 1",
                                      "\"attach\": \"hub\"",
                                      "\"attach\": [\"\"]",
                                      "\"hours_without_progress\": 0",
                                      "\"hours_without_progress\": \"week\"",
                                      "\"gate\": [\"private\"]",
                                      "\"Gates\": [\"private\"]"};
    neb_log_set_sink(testing_drop, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[128];
        struct agent_policy p;
        snprintf(text, sizeof text, "{\"format\": 1, %s}", bad[i]);
        if (agent_policy_parse(text, strlen(text), "policy.json", &p) != NEB_ERR_FORMAT)
            fail_msg("%s was accepted", text);
    }
    neb_log_set_sink(NULL, NULL);
}

// The terms of a running job, with a policy and without one.
static void test_terms(void **state) {
    (void)state;
    struct agent_job j = federated_job(), small = one_token();
    struct agent_policy p = parse("{\"format\": 1}"), none = agent_policy_none(),
                        own = parse("{\"format\": 1, \"tokens_per_update\": 9, \"loss_every\": 3, "
                                    "\"losses\": \"exact\", \"hours_without_progress\": 0.5, "
                                    "\"attach\": [\"hub\", \"rome\"]}");
    struct agent_terms t;
    agent_policy_terms(&p, &j, 0, &t);
    assert_true(t.update_tokens == AGENT_UPDATE_TOKENS && t.idle_s == 7 * 24 * 3600);
    assert_true(t.told.losses == AGENT_LOSSES_ROUNDED && t.told.every == AGENT_DISCLOSED_STEPS);
    assert_true(t.told.held_out);
    // a reported loss covers at least this many tokens, however small a step is
    agent_policy_terms(&p, &small, 0, &t);
    assert_int_equal(t.told.every, AGENT_DISCLOSED_TOKENS);
    assert_false(t.told.held_out);
    agent_policy_terms(&none, &small, 0, &t);
    assert_true(t.update_tokens == 0 && t.idle_s == 0);
    assert_true(t.told.losses == AGENT_LOSSES_ROUNDED && !t.told.held_out);
    agent_policy_terms(&own, &j, 0, &t);
    assert_true(t.update_tokens == 9 && t.idle_s == 1800 && t.told.every == 3);
    assert_int_equal(t.told.losses, AGENT_LOSSES_EXACT);
    assert_true(agent_policy_attaches(&own, "rome") && !agent_policy_attaches(&own, "roma"));
    assert_false(agent_policy_attaches(&p, "hub") || agent_policy_attaches(&none, "hub"));
    char text[1024];
    agent_policy_describe(&own, text, sizeof text);
    assert_non_null(strstr(text, "an update rests on at least 9 tokens;"));
    assert_non_null(strstr(text, "jobs of hub, rome"));
    agent_policy_describe(&none, text, sizeof text);
    assert_non_null(strstr(text, "its readers can read them"));
    agent_policy_describe(&p, text, 8); // the text is cut to the size of the buffer
    assert_true(strlen(text) < 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_leaves),
                                       cmocka_unit_test(test_refused_keys),
                                       cmocka_unit_test(test_terms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
