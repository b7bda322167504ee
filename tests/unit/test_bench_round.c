// `nebula bench round`: a line a stage, shares that sum to one, and the same digest whatever the threads.
#include "agent/bench_round.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PARAMS = 1100003, STAGES = 4 };

static struct kern_digest run(int threads, const char *codec, FILE *f) {
    struct kern_digest d = {0, 0};
    fflush(stdout);
    int was = dup(1);
    assert_true(was >= 0 && dup2(fileno(f), 1) == 1);
    enum neb_status st = bench_round(true, PARAMS, threads, codec, &d);
    fflush(stdout);
    assert_true(dup2(was, 1) == 1);
    close(was);
    assert_int_equal(st, NEB_OK);
    rewind(f);
    return d;
}

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static void test_lines(void **state) {
    (void)state;
    FILE *f = tmpfile();
    assert_non_null(f);
    run(1, "int4", f);
    char line[1024];
    double shares = 0;
    int lines = 0;
    for (; fgets(line, sizeof line, f); lines++) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        assert_true(number(o, "value") > 0 && number(o, "limit") > 0 && number(o, "ms") > 0);
        if (lines < STAGES)
            shares += number(o, "share");
        json_decref(o);
    }
    fclose(f);
    assert_int_equal(lines, STAGES + 1);
    assert_true(fabs(shares - 1) < 1e-3);
}

static void test_digest(void **state) {
    (void)state;
    FILE *f = tmpfile();
    assert_non_null(f);
    struct kern_digest one = run(1, "int4", f), two = run(2, "int4", f), other = run(2, "int3", f);
    fclose(f);
    assert_true(one.lo == two.lo && one.hi == two.hi);
    assert_true(one.lo != other.lo && one.hi != other.hi);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_digest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
