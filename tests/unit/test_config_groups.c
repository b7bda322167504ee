// SPDX-License-Identifier: Apache-2.0
// Jobs whose tensors come from the loop; groups of tensors: messages, JSON, fragments, patterns.
#include "agent/base/log.h"
#include "agent/job/config_options.h"
#include "agent/job/tune.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char message[1024], warnings[4096];
static void capture(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    size_t at = strlen(warnings);
    if (level == NEB_LOG_WARN)
        snprintf(warnings + at, sizeof warnings - at, "%s\n", text);
    else
        snprintf(message, sizeof message, "%s", text);
}

static const char attached[] = "job: trunk\n"
                               "steps: 300\n"
                               "model: attached\n"
                               "sync: {interval: 50, overlap: 2, fragments: 2}\n"
                               "groups:\n"
                               "  - {match: \"*.experts.*\", exchange: never}\n"
                               "  - {match: \"*.norm.*\", exchange: {every: 4}, codec: bf16}\n"
                               "  - {match: router.*, exchange: {owner: berlin}, eta: 0.5, mu: 0}\n"
                               "clusters:\n"
                               "  - {name: paris, launcher: attach}\n"
                               "  - {name: berlin, launcher: attach}\n";

static enum neb_status parse(const char *text, struct agent_job *j) {
    return agent_job_parse(text, strlen(text), "job.yaml", j);
}

static void replace(const char *of, const char *from, const char *to, char *out, size_t cap) {
    const char *at = strstr(of, from);
    assert_non_null(at);
    snprintf(out, cap, "%.*s%s%s", (int)(at - of), of, to, at + strlen(from));
}

static void test_attached(void **state) {
    (void)state;
    struct agent_job j;
    assert_int_equal(parse(attached, &j), NEB_OK);
    assert_true(j.attached && j.init == AGENT_INIT_FROM && agent_job_init_cluster(&j) == 0);
    assert_int_equal(agent_job_step_tokens(&j), 1048576);
    assert_false(j.sync.row_weights);
    // norms every fourth round, router and the rest in each: two fragments a group
    assert_true(agent_tune_config(&j).fragments == 2 / 4.0 + 2 + 2);
    assert_int_equal(agent_job_set(&j, "data.step_tokens=4096"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "init.from=berlin"), NEB_OK);
    assert_int_equal(agent_job_step_tokens(&j), 4096);
    assert_int_equal(agent_job_init_cluster(&j), 1);
    assert_int_equal(agent_job_set(&j, "init.from="), NEB_OK);
    assert_int_equal(agent_job_set(&j, "init=equal"), NEB_OK);
    assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_OK);
    assert_int_equal(agent_job_init_cluster(&j), -1);
}

static void test_groups(void **state) {
    (void)state;
    struct agent_job j;
    assert_int_equal(parse(attached, &j), NEB_OK);
    assert_int_equal(agent_job_groups(&j), 4); // and "*"
    assert_int_equal(agent_job_fragments(&j), 6);
    static const int32_t group[] = {1, 1, 2, 2, 3, 3};
    for (int32_t f = 0; f < 6; f++)
        assert_int_equal(agent_job_fragment_group(&j, f), group[f]);
    assert_int_equal(agent_job_group_fragments(&j, 0), 0);
    assert_int_equal(agent_job_group_first(&j, 2), 2);
    assert_string_equal(agent_job_fragment_codec(&j, 0), "bf16");
    assert_string_equal(agent_job_fragment_codec(&j, 5), "int4");
    assert_true(agent_job_fragment_eta(&j, 2) == 0.5f && agent_job_fragment_mu(&j, 2) == 0 &&
                agent_job_fragment_eta(&j, 5) == 1);
    assert_int_equal(agent_job_fragment_every(&j, 1), 4);
    assert_int_equal(agent_job_fragment_every(&j, 4), 1);
    assert_int_equal(agent_job_fragment_owner(&j, 3), 1);
    assert_int_equal(agent_job_fragment_owner(&j, 4), -1);
    static const struct {
        const char *tensor;
        int32_t group;
    } of[] = {{"h.0.experts.3.w", 0}, {"h.0.experts.3.norm.w", 0},
              {"h.0.norm.w", 1},      {"router.norm.w", 1},
              {"router.w", 2},        {"a.router.w", 3},
              {"h.0.norm", 3},        {"", 3}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        assert_int_equal(agent_job_group_of(&j, of[i].tensor), of[i].group);
    j.n_groups = 0;
    assert_int_equal(agent_job_groups(&j), 1);
    assert_int_equal(agent_job_fragments(&j), 2);
    assert_int_equal(agent_job_group_of(&j, "any"), 0);
}

static void test_patterns(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool matches;
    } of[] = {
        {"*", "", true},
        {"*", "a.b/c", true},
        {"", "", true},
        {"", "a", false},
        {"a", "", false},
        {"a?c", "abc", true},
        {"a?c",
         "a\xc3\xa9"
         "c",
         true},
        {"a?c", "ac", false},
        {"?", "\xe2\x82\xac", true},
        {"*.w", "a.w.w", true},
        {"*.w", "a.wx", false},
        {"a*b*c", "axbxbxc", true},
        {"a*b*c", "axbxb", false},
        {"[ab]x", "bx", true},
        {"[!ab]x", "bx", false},
        {"[^ab]x", "cx", true},
        {"h.[0-3].w", "h.2.w", true},
        {"h.[0-3].w", "h.4.w", false},
        {"[]]", "]", true},
        {"[!]]", "]", false},
        {"[a-]", "-", true},
        {"*[0-9]", "a12", true},
        {"**a", "ba", true},
        {".*", ".a", true},
        {"a\\*", "a\\b", true},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (agent_pattern_matches(of[i].pattern, of[i].name) != of[i].matches)
            fail_msg("%s: %s", of[i].pattern, of[i].name);
    assert_null(agent_pattern_wrong("*.[a-z]?"));
    static const char *const wrong[] = {"", "a[b", "[]", "[!]", "[\xc3\xa9]", "["};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_non_null(agent_pattern_wrong(wrong[i]));
    char many[255], stars[128]; // many stars take no exponential time
    memset(many, 'a', sizeof many - 1);
    many[sizeof many - 1] = 0;
    for (size_t i = 0; i < 126; i += 2)
        memcpy(stars + i, "*a", 2);
    memcpy(stars + 126, "b", 2);
    assert_false(agent_pattern_matches(stars, many));
}

static void test_messages(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *expect; // `from` in the attached job becomes `to`
    } cases[] = {
        {"model: attached", "model: mine", "job.yaml:3: model.mode: \"mine\" is not one of: "},
        {"model: attached", "model: attached\nmode: distill", "job.yaml:4: mode: model: attached"},
        {"interval: 50", "scheme: none", "job.yaml:6: groups: need mode: replicas"},
        {"interval: 50", "interval: auto", "job.yaml:4: sync.interval: auto needs a built-in"},
        {"overlap: 2", "overlap: auto", "job.yaml:4: sync.overlap: auto needs a built-in"},
        {"overlap: 2", "codec: auto", "job.yaml:4: sync.codec: auto needs a built-in"},
        {"interval: 50", "interval: 5",
         "job.yaml:6: groups: 6 fragments in all groups must not be above sync.interval 5"},
        {"berlin, launcher: attach", "berlin",
         "job.yaml:11: clusters.launcher: \"berlin\" must have launcher: attach"},
        {"berlin, launcher: attach", "berlin, launcher: attach, corpus: /tmp/x",
         "job.yaml:11: clusters.corpus: cluster berlin: an attached trainer reads its own data"},
        {"steps: 300", "steps: 300\ninit: {from: rome}",
         "job.yaml:3: init.from: \"rome\" is not a cluster that trains"},
        {"steps: 300", "steps: 300\ninit: seed", "job.yaml:3: init: seed needs a built-in model"},
        {"steps: 300", "steps: 300\ninit: {mode: equal, from: paris}",
         "job.yaml:3: init: equal and from exclude each other"},
        {"steps: 300", "steps: 300\ngroups: []", "job.yaml:6: groups: given twice"},
        {"match: router.*", "match: \"\"", "job.yaml:8: groups.match: is empty"},
        {"match: router.*", "match: \"router[\"",
         "job.yaml:8: groups.match: \"router[\" has a [ without ]"},
        {"match: router.*", "match: \"*.norm.*\"",
         "job.yaml:8: groups.match: two groups have the pattern \"*.norm.*\""},
        {"\"*.norm.*\"", "\"*\"",
         "job.yaml:8: groups.match: \"router.*\" comes after \"*\", which matches everything"},
        {"match: router.*", "mach: router.*",
         "job.yaml:8: groups: unknown key 'mach' (did you mean 'match'?); allowed: match, "},
        {"exchange: never", "exchange: sometimes",
         "job.yaml:6: groups.exchange: \"sometimes\" is not one of: every, never, {every: "},
        {"{every: 4}", "{every: 0}", "job.yaml:7: groups.exchange.every: 0 is not in 1.."},
        {"{every: 4}", "{evry: 4}", "job.yaml:7: groups.exchange: unknown key 'evry'"},
        {"{every: 4}", "{every: 4, owner: paris}", "job.yaml:7: groups.exchange: must be one of"},
        {"{owner: berlin}", "{owner: rome}",
         "job.yaml:8: groups.exchange: owner: \"rome\" is not one of the clusters"},
        {"exchange: never", "exchange: never, codec: int8",
         "job.yaml:6: groups.codec: does nothing: \"*.experts.*\" is never exchanged"},
        {"exchange: never", "exchange: never, mu: 0", "job.yaml:6: groups.mu: does nothing"},
        {"eta: 0.5", "eta: 11", "job.yaml:8: groups.eta: 11 is not in 0..10"},
        {"eta: 0.5", "fragments: 61", "job.yaml:6: groups: have 65 fragments in all; the limit"},
        {"codec: bf16", "codec: int99", "job.yaml:7: groups.codec: \"int99\" is not one of"},
        {"overlap: 2", "tune: auto", "job.yaml:7: groups.codec: does not work with sync.tune"},
    };
    neb_log_set_sink(capture, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[2048];
        struct agent_job j;
        replace(attached, cases[i].from, cases[i].to, text, sizeof text);
        message[0] = 0;
        assert_int_equal(parse(text, &j), NEB_ERR_INVALID);
        if (strncmp(message, cases[i].expect, strlen(cases[i].expect)) != 0)
            fail_msg("%s: %s", cases[i].to, message);
    }
    neb_log_set_sink(NULL, NULL);
}

static void test_all_never(void **state) {
    (void)state;
    char text[2048];
    struct agent_job j;
    replace(attached, "\"*.norm.*\", exchange: {every: 4}, codec: bf16}",
            "\"*\", exchange: never}\n#", text, sizeof text);
    char *owner = strstr(text, "  - {match: router");
    owner[0] = '#';
    neb_log_set_sink(capture, NULL);
    assert_int_equal(parse(text, &j), NEB_ERR_INVALID);
    assert_non_null(strstr(message, "groups: nothing is exchanged"));
    neb_log_set_sink(NULL, NULL);
}

// In private jobs an update that travels alone is not hidden.
static void test_private(void **state) {
    (void)state;
    struct agent_job j;
    assert_int_equal(parse(attached, &j), NEB_OK);
    j.clusters[2] = j.clusters[1];
    snprintf(j.clusters[2].name, sizeof j.clusters[2].name, "rome");
    j.n_clusters = 3;
    neb_log_set_sink(capture, NULL);
    static const char *const sets[] = {"sync.gate=private", "sync.codec=bf16",
                                       "sync.private_range=0.1"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        assert_int_equal(agent_job_set(&j, sets[i]), NEB_OK);
    assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_ERR_INVALID);
    assert_non_null(strstr(message, "owner does not work with sync.gate: private"));
    j.n_groups = 2;
    assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_OK);
    snprintf(j.groups[1].codec, sizeof j.groups[1].codec, "int8");
    assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_ERR_INVALID);
    assert_non_null(strstr(message, "must be bf16 with sync.gate: private"));
    neb_log_set_sink(NULL, NULL);
}

static void test_json(void **state) {
    (void)state;
    struct agent_job j, back;
    assert_int_equal(parse(attached, &j), NEB_OK);
    json_t *o = agent_job_to_json(&j), *again;
    assert_null(json_object_get(o, "model.n_layers"));
    assert_null(json_object_get(o, "data.corpus"));
    assert_string_equal(json_string_value(json_object_get(o, "model.mode")), "attached");
    assert_string_equal(json_string_value(json_object_get(o, "init.mode")), "from");
    assert_int_equal(agent_job_from_json(o, &back), NEB_OK);
    assert_true(back.attached && back.n_groups == 3 && back.groups[1].every == 4 &&
                isnan(back.groups[1].eta) && back.groups[2].eta == 0.5f &&
                back.groups[2].owner == 1);
    again = agent_job_to_json(&back);
    assert_true(json_equal(o, again));
    assert_null(agent_job_differs(o, again));
    json_object_set_new(json_array_get(json_object_get(again, "groups"), 1), "eta", json_real(0.5));
    assert_string_equal(agent_job_differs(o, again), "groups");

    static const char *const bad[] = {
        "[]",
        "{}",
        "[3]",
        "[{}]",
        "[{\"match\": 3}]",
        "[{\"match\": \"a\", \"what\": 1}]",
        "[{\"match\": \"a\", \"exchange\": {\"owner\": \"rome\"}}]",
        "[{\"match\": \"a\", \"exchange\": {\"owner\": \"paris\", \"every\": 2}}]",
        "[{\"match\": \"a\", \"exchange\": {\"every\": []}}]",
        "[{\"match\": \"a\", \"exchange\": {\"every\": 1e9}}]",
        "[{\"match\": \"a\", \"eta\": null}]"};
    neb_log_set_sink(capture, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_object_set_new(o, "groups", json_loads(bad[i], 0, NULL));
        if (agent_job_from_json(o, &back) == NEB_OK)
            fail_msg("%s", bad[i]);
    }
    json_object_del(o, "groups");
    assert_int_equal(agent_job_from_json(o, &back), NEB_OK);
    json_object_set_new(o, "model.mode", json_string("built-in"));
    assert_int_equal(agent_job_from_json(o, &back), NEB_ERR_FORMAT);
    neb_log_set_sink(NULL, NULL);
    json_decref(o);
    json_decref(again);
}

// A built-in model: neither its JSON nor its id may change, and the keys of attached jobs are
// refused.
static void test_built_in(void **state) {
    (void)state;
    static const char text[] = "job: a\nsteps: 3\n"
                               "model: {n_layers: 4, d_model: 128, n_heads: 4, d_ff: 384}\n"
                               "data: {corpus: /tmp/corpus, seq_len: 128, batch: 4}\n"
                               "optim: {lr: 2e-3}\n"
                               "clusters: [{name: paris}, {name: berlin}]\n";
    struct agent_job j, back;
    assert_int_equal(parse(text, &j), NEB_OK);
    json_t *o = agent_job_to_json(&j);
    static const char *const absent[] = {"model.mode", "data.step_tokens", "init.mode", "init.from",
                                         "groups"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_null(json_object_get(o, absent[i]));
    json_decref(o);
    neb_log_set_sink(capture, NULL);
    assert_int_equal(agent_job_set(&j, "init=equal"), NEB_OK);
    assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_ERR_INVALID);
    assert_non_null(strstr(message, "init: needs model: attached"));
    char grouped[1024];
    snprintf(grouped, sizeof grouped, "%sgroups: [{match: \"*.bias\", exchange: never}]\n", text);
    assert_int_equal(parse(grouped, &j), NEB_OK);
    o = agent_job_to_json(&j);
    assert_int_equal(agent_job_from_json(o, &back), NEB_OK);
    assert_int_equal(back.n_groups, 1);
    json_decref(o);
    // keys that do nothing
    snprintf(grouped, sizeof grouped, "%soptim: {lr: 2e-3}\ndata: {batch: 4}\n", attached);
    assert_int_equal(parse(grouped, &j), NEB_OK);
    warnings[0] = 0;
    agent_job_warn_idle(&j, "job.yaml");
    assert_non_null(strstr(warnings, "optim.lr does nothing: model.mode is attached"));
    assert_non_null(strstr(warnings, "data.batch does nothing: model.mode is attached"));
    neb_log_set_sink(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attached),  cmocka_unit_test(test_groups),
        cmocka_unit_test(test_patterns),  cmocka_unit_test(test_messages),
        cmocka_unit_test(test_all_never), cmocka_unit_test(test_private),
        cmocka_unit_test(test_json),      cmocka_unit_test(test_built_in)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
