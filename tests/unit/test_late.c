// SPDX-License-Identifier: Apache-2.0
// agent/daemon/late: lines that nobody has followed are kept in order, each once, within limits. A
// line that a power cut left incomplete costs no other line.
#include "agent/base/clock.h"
#include "agent/daemon/late.h"
#include "tests/unit/scratch.h"

#include <string.h>
#include <sys/stat.h>

static json_t *line(const char *cluster, int n, double late_s) {
    json_t *x = json_pack("{s:s,s:i}", "cluster", cluster, "step", n);
    json_t *o = agent_late_line(n, late_s, x);
    json_decref(x);
    return o;
}

static void add(json_t *some) {
    assert_int_equal(agent_late_add(dir, some), NEB_OK);
    json_decref(some);
}

static int step_of(const json_t *list, size_t i) {
    const json_t *x = json_object_get(json_array_get(list, i), "line");
    return (int)json_integer_value(json_object_get(x, "step"));
}

static void append(const char *text) {
    char path[NEB_PATH_MAX];
    assert_int_equal(neb_path(path, sizeof path, dir, "late.jsonl"), NEB_OK);
    FILE *f = fopen(path, "ae");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void test_each_once(void **state) {
    (void)state;
    assert_null(agent_late_read(dir));
    add(json_pack("[o,o]", line("beta", 10, 60), line("gamma", 5, 0.5)));
    add(json_pack("[o,o]", line("beta", 10, 60), line("beta", 11, 59))); // sent once more
    append("\n{\"n\":12,\"at\":0,\"li");                                 // a power cut
    add(json_pack("[o]", line("beta", 12, 58)));
    json_t *list = agent_late_read(dir);
    assert_int_equal(json_array_size(list), 4);
    static const int steps[] = {10, 5, 11, 12};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(step_of(list, i), steps[i]);
    double late_s = json_number_value(json_object_get(json_array_get(list, 0), "late_s"));
    assert_true(late_s > 59 && late_s < 90);
    json_decref(list);
    agent_late_drop(dir);
    assert_null(agent_late_read(dir));
    agent_late_drop(dir);
}

static void test_bounded(void **state) {
    (void)state;
    json_t *some = json_array();
    for (int i = 1; i <= 1000; i++)
        json_array_append_new(some, line("beta", i, 60));
    int n = 0;
    while (agent_late_add(dir, some) == NEB_OK)
        n++;
    char path[NEB_PATH_MAX];
    struct stat info;
    assert_int_equal(neb_path(path, sizeof path, dir, "late.jsonl"), NEB_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_true(n > 10 && info.st_size <= AGENT_LATE_BYTES_MAX && (info.st_mode & 0777) == 0600);
    json_t *list = agent_late_read(dir);
    assert_int_equal(json_array_size(list), 1000);
    json_decref(list);
    json_decref(some);
    agent_late_drop(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_once),
                                       cmocka_unit_test(test_bounded)};
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
