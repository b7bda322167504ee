// SPDX-License-Identifier: Apache-2.0
// A training loop that waits at a site holds the site's text and parameters. It takes a job that
// was submitted here. It takes another member's job only if the loop names that job or member, or
// if policy.json lists its submitter. A job that is passed over does not hide the right one.
#include "agent/base/log.h"
#include "agent/daemon/attach.h"
#include "agent/lib/libnebula.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct agent_jobrun jobs[AGENT_JOBS_MAX];
static const char own[] = "11111111111111111111111111111111"
                          "11111111111111111111111111111111",
                  hubs[] = "22222222222222223333333333333333"
                           "33333333333333333333333333333333",
                  mallorys[] = "22222222222222224444444444444444"
                               "44444444444444444444444444444444";

static void offer(int i, const char *hex, const char *name, const char *owner) {
    struct agent_jobrun *j = &jobs[i];
    *j = (struct agent_jobrun){.state = AGENT_JOB_RUNNING, .job = {.n_clusters = 1}};
    memcpy(j->hex, hex, sizeof j->hex);
    snprintf(j->job.clusters[0].name, sizeof j->job.clusters[0].name, "paris");
    j->job.clusters[0].launcher = AGENT_LAUNCHER_ATTACH;
    snprintf(j->job.name, sizeof j->job.name, "%s", name);
    snprintf(j->owner, sizeof j->owner, "%s", owner);
}

// The job that a loop gets if it asks for `job` and `from` (NULL: it names none), at a site whose
// policy lists `list` (NULL: nobody). "-": it waits.
static const char *given(const char *job, const char *from, const char *list) {
    static char text[512];
    for (int i = 0; i < AGENT_JOBS_MAX; i++) // as the agent does from its policy
        jobs[i].attach.listed = list && !strcmp(jobs[i].owner, list);
    struct agent_ipc_msg m = {.head = json_pack("{s:s,s:i,s:i}", "op", "attachable", "api",
                                                NEBULA_API, "protocol", agent_ipc_protocol())};
    if (job)
        json_object_set_new(m.head, "job", json_string(job));
    if (from)
        json_object_set_new(m.head, "from", json_string(from));
    json_t *a = agent_attach_find(jobs, &m);
    const char *code = json_string_value(json_object_get(a, "code"));
    bool ok = json_is_true(json_object_get(a, "ok"));
    snprintf(text, sizeof text, "%s", json_string_value(json_object_get(a, "text")));
    assert_true(ok || !strcmp(code, "wait") || !strcmp(code, "many")); // the loop keeps waiting
    if (!ok && strcmp(code, "many") != 0)
        snprintf(text, sizeof text, "-");
    else if (!ok)
        snprintf(text, sizeof text, "many");
    json_decref(a);
    json_decref(m.head);
    return text;
}

static void test_a_members_job_takes_no_loop(void **state) {
    (void)state;
    memset(jobs, 0, sizeof jobs);
    offer(0, mallorys, "train", "mallory");
    const char *const loops[][2] = {{NULL, NULL},
                                    {"", ""},
                                    {"train", NULL},    // the submitter chooses the name
                                    {"22222222", NULL}, // so few digits can be found by trial
                                    {"222222222222222", NULL}, // 15 of them
                                    {NULL, "hub"},             // another submitter
                                    {NULL, "paris"},           // this site
                                    {own, NULL},
                                    {hubs, NULL}, // half of the id is the same
                                    {mallorys, "hub"}};
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++)
        if (strcmp(given(loops[i][0], loops[i][1], NULL), "-") != 0)
            fail_msg("loop %zu was given a job, but should wait", i);
    assert_string_equal(given(NULL, NULL, "hub"), "-");
    assert_string_equal(given(NULL, NULL, "mallory"), mallorys);
    assert_string_equal(given(NULL, "mallory", NULL), mallorys);
    assert_string_equal(given("train", "mallory", NULL), mallorys);
    assert_string_equal(given(mallorys, NULL, NULL), mallorys);
    assert_string_equal(given("2222222222222222", NULL, NULL), mallorys);
}

static void test_the_right_one_is_found_beside_it(void **state) {
    (void)state;
    memset(jobs, 0, sizeof jobs);
    offer(0, mallorys, "train", "mallory");
    offer(1, own, "train", "");
    offer(2, hubs, "train", "hub");
    assert_string_equal(given(NULL, NULL, NULL), own);
    assert_string_equal(given("train", NULL, NULL), own);
    assert_string_equal(given(NULL, "paris", NULL), own);
    assert_string_equal(given(NULL, "hub", NULL), hubs);
    assert_string_equal(given(NULL, NULL, "hub"), "many"); // two jobs fit
    assert_string_equal(given("train", "hub", "mallory"), hubs);
    jobs[1].state = AGENT_JOB_DONE;
    assert_string_equal(given("train", NULL, NULL), "-");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_members_job_takes_no_loop),
                                       cmocka_unit_test(test_the_right_one_is_found_beside_it)};
    neb_log_set_sink(testing_drop, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
