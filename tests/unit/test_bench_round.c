// SPDX-License-Identifier: Apache-2.0
// `nebula bench round`: a line for each stage, shares that sum to one, and one digest for any
// thread count.
#include "agent/bench/bench.h"
#include "agent/bench/security.h"
#include "tests/unit/bench_fixture.h"

enum { PARAMS = 1100003, STAGES = 4 };

static struct kern_digest run(int threads, const char *codec, FILE *f) {
    struct kern_digest d = {0, 0};
    int was = print_to(f);
    enum neb_status st = bench_round(true, PARAMS, threads, codec, &d);
    print_to_end(f, was);
    assert_int_equal(st, NEB_OK);
    return d;
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
    // the stages and their total; the security stages and their total; an exchange one way and both
    // ways
    assert_int_equal(lines, STAGES + 1 + BENCH_STAGES + 3);
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

static void test_pipeline(void **state) {
    (void)state;
    enum { CHUNK = 1 << 17, CHUNKS = 32 };
    static uint8_t bytes[CHUNK * CHUNKS];
    const struct neb_buf update = {.p = bytes, .len = sizeof bytes};
    struct bench_security b = {.update = &update,
                               .chunk_bytes = CHUNK,
                               .rtt_s = 1,
                               // sending a chunk takes a millisecond
                               .rate_bps = 8.0 * CHUNK * 1000};
    struct bench_costs c = {.store_s = 0.005};
    assert_true(fabs(bench_pipeline(&b, &c, false) - 0.037) < 1e-9);
    c.s[BENCH_OWN_DIGEST] = 0.004; // the disk hides the time of the digest
    assert_true(fabs(bench_pipeline(&b, &c, true) - 0.037) < 1e-5);
    c.s[BENCH_OWN_DIGEST] = 0.006;
    assert_true(fabs(bench_pipeline(&b, &c, true) - 0.038) < 1e-5);
    c.s[BENCH_GATE] = 0.016; // not slower than the wire: only the part of the last chunk remains
    assert_true(fabs(bench_pipeline(&b, &c, true) - 0.0385) < 1e-5);
    c.s[BENCH_GATE] = 0.064; // slower than the wire: the gate waits for the first chunk only
    assert_true(fabs(bench_pipeline(&b, &c, true) - (0.006 + 0.001 + 0.064)) < 1e-5);
    c.s[BENCH_SIGNATURES] = 0.001;
    assert_true(fabs(bench_pipeline(&b, &c, true) - (0.006 + 0.001 + 0.065)) < 1e-5);
    c.s[BENCH_GATE] = 0.048; // gate and sketch run together
    c.s[BENCH_SKETCH] = 0.016;
    assert_true(fabs(bench_pipeline(&b, &c, true) - (0.006 + 0.001 + 0.065)) < 1e-5);
    // the round trip hides the costs of the own update, except the time that exceeds it
    b.rtt_s = 0.06;
    assert_true(fabs(bench_pipeline(&b, &c, true) - (0.010 + 0.001 + 0.065)) < 1e-5);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_digest),
                                       cmocka_unit_test(test_pipeline)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
