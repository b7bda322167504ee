// SPDX-License-Identifier: Apache-2.0
// `nebula bench codec` on a small array: one line for every codec and direction, with limit, size
// and error.
#include "agent/bench/bench.h"
#include "compress/ops.h"
#include "tests/unit/bench_fixture.h"

// The codec of a line, from "int8 encode t1".
static struct cmp_codec codec_of(const char *what) {
    struct cmp_codec c;
    char name[32];
    assert_int_equal(sscanf(what, "%31s", name), 1);
    assert_int_equal(cmp_codec_parse(name, &c), NEB_OK);
    return c;
}

// Codecs that send whole floats are encoded and decoded. All others also run with feedback and with
// an outer step.
static int stages(const struct cmp_codec *c) {
    return cmp_codec_sparse(c) || cmp_codec_code_bytes(c) > 0 ? 6 : 2;
}

static void test_lines(void **state) {
    (void)state;
    FILE *f = tmpfile();
    assert_non_null(f);
    int was = print_to(f);
    enum neb_status st = bench_codec(true, 300001, 2, NULL, NULL);
    print_to_end(f, was);
    assert_int_equal(st, NEB_OK);
    char line[1024];
    int lines = 0, exact = 0;
    while (fgets(line, sizeof line, f)) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        const char *what = json_string_value(json_object_get(o, "case"));
        assert_non_null(what);
        assert_string_equal(json_string_value(json_object_get(o, "bench")), "codec");
        struct cmp_codec c = codec_of(what);
        bool sparse = cmp_codec_sparse(&c), zeroing = sparse && strstr(what, " decode t");
        assert_string_equal(json_string_value(json_object_get(o, "limit_is")),
                            zeroing ? "zeroing" : "memcpy");
        assert_true(number(o, "value") > 0 && number(o, "limit") > 0);
        assert_true(fabs(number(o, "ratio") - number(o, "value") / number(o, "limit")) <
                    1e-3 * number(o, "ratio") + 1e-9);
        double bits = number(o, "bits_per_param"), error = number(o, "rel_error");
        const json_t *socket = json_object_get(o, "socket_bits_per_param");
        assert_true((socket != NULL) == sparse);
        if (socket) // the socket adds headers and encryption, which are small beside a chunk
            assert_true(json_number_value(socket) > bits && json_number_value(socket) < 1.2 * bits);
        bool fp32 = !strncmp(what, "fp32", 4);
        assert_true(bits > 0.05 && bits < 32.1 && error < 1);
        assert_true(fp32 == (error == 0));
        exact += fp32;
        json_decref(o);
        lines++;
    }
    fclose(f);
    int expected = 0;
    for (int i = 0; cmp_variant(i, CMP_BENCHED); i++) {
        struct cmp_codec c = codec_of(cmp_variant(i, CMP_BENCHED)->name);
        expected += 2 * stages(&c); // with one thread and with two
    }
    assert_int_equal(lines, expected);
    assert_int_equal(exact, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
