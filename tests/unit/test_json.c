// SPDX-License-Identifier: Apache-2.0
// JSON of other programs (intra/read/json.h): text that Python's json module accepts gives the same
// values here, and other text is refused.
#include "agent/base/log.h"
#include "intra/read/json.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char message[2048];

static void keep(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    snprintf(message, sizeof message, "%s", text);
}

static char *compact(const json_t *v) {
    return v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) : NULL;
}

static char *parse(const char *text, size_t len) {
    json_t *v;
    char *exact = malloc(len + 1), *out; // at the end of its block, for the sanitizers
    memcpy(exact, text, len);
    enum neb_status st = intra_json_parse(exact, len, "FILE", &v);
    assert_true((st == NEB_OK) == (v != NULL));
    out = compact(v);
    json_decref(v);
    free(exact);
    return out;
}

#define FLOAT(name) "{\"__float__\":\"" name "\"}"

static void test_values(void **state) {
    (void)state;
    static const struct {
        const char *text, *value;
    } all[] = {
        {"null", "null"},
        {" {\"a\" : [ 1 , -2.5 , true ] } \r\n\t", "{\"a\":[1,-2.5,true]}"},
        // integers of any size
        {"9223372036854775807", "9223372036854775807"},
        {"-9223372036854775807", "-9223372036854775807"},
        {"9223372036854775808", "9.2233720368547758e18"},
        {"-9223372036854775809", "-9.2233720368547758e18"},
        {"[1000000000000000019884624838656]", "[1e30]"},
        {"[18446744073709551616,3]", "[1.8446744073709552e19,3]"},
        {"[0,-0,10,-10]", "[0,0,10,-10]"},
        // NaN, infinities, and numbers beyond a double
        {"[NaN,Infinity,-Infinity]",
         "[" FLOAT("NaN") "," FLOAT("Infinity") "," FLOAT("-Infinity") "]"},
        {"{\"a\":1e999,\"b\":-1E+400}",
         "{\"a\":" FLOAT("Infinity") ",\"b\":" FLOAT("-Infinity") "}"},
        {"[1e99999999999999999999]", "[" FLOAT("Infinity") "]"},
        {"[1e308,-1.7976931348623157e308,0.17976931348623157E309]",
         "[1e308,-1.7976931348623157e308,1.7976931348623157e308]"},
        {"[1.7976931348623159e308,2e308,1797693134862315807937e287]",
         "[" FLOAT("Infinity") "," FLOAT("Infinity") "," FLOAT("Infinity") "]"},
        {"[0e99999999999999999999,-0.0E5]", "[0.0,-0.0]"},
        {"[1e-99999999999999999999]", "[0.0]"},
        {"[100000e303]", "[1e308]"},
        {"[0.00001e312]", "[9.9999999999999999e306]"},
        {"[0.00001e313]", "[1e308]"},
        {"[0.00001e314]", "[" FLOAT("Infinity") "]"},
        {"[1e307]", "[9.9999999999999999e306]"},
        // strings
        {"\"cut \\ud83d\"", "\"cut \xef\xbf\xbd\""},
        {"\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\""},
        {"\"\\uD83D\\uDE00\"", "\"\xf0\x9f\x98\x80\""},
        {"\"\\ude00\\ud83d\"", "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\"\\ud83d\\ud83d\\ude00\"", "\"\xef\xbf\xbd\xf0\x9f\x98\x80\""},
        {"\"\\ud83d\\n\\ud83dx\\ud83d\\u0041\"", "\"\xef\xbf\xbd\\n\xef\xbf\xbdx\xef\xbf\xbd"
                                                 "A\""},
        {"\"\\\\ud83d\\\"\\\\\"", "\"\\\\ud83d\\\"\\\\\""}, // a backslash, not an escape
        {"\"NaN 1e999 99999999999999999999 -Infinity\"",
         "\"NaN 1e999 99999999999999999999 -Infinity\""},
        {"\"a\\u0000b\"", "\"a\xef\xbf\xbd"
                          "b\""},
        {"{\"a\\u0000b\":1,\"\\udc00\":2}", "{\"a\xef\xbf\xbd"
                                            "b\":1,\"\xef\xbf\xbd\":2}"},
        // duplicate keys: the last one counts
        {"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\":3,\"b\":2}"},
        {"{\"a\":{\"x\":1},\"a\":{}}", "{\"a\":{}}"},
        // a byte order mark
        {"\xef\xbb\xbf{\"a\":NaN}", "{\"a\":" FLOAT("NaN") "}"},
        {"\xef\xbb\xbf[1]", "[1]"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char *got = parse(all[i].text, strlen(all[i].text));
        if (!got || strcmp(got, all[i].value))
            fail_msg("%s: %s, expected %s (%s)", all[i].text, got, all[i].value, message);
        free(got);
    }
}

static void test_no_json(void **state) {
    (void)state;
    static const char *const all[] = {
        "",
        " ",
        "\xef\xbb\xbf",
        "\xef\xbb\xbf\xef\xbb\xbf{}",
        "{",
        "}",
        "{} {}",
        "[1,]",
        "{\"a\":1,}",
        "{a:1}",
        "{'a':1}",
        "nan",
        "infinity",
        "+Infinity",
        "-NaN",
        "NaNs",
        "Infinity1",
        "1NaN",
        "- 1",
        "-",
        "--1",
        "01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x10",
        "1_000",
        "[1 2]",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"a",
        "\"\t\"",
        "\"\n\"",
        "\"\xed\xa0\xbd\"",
        "\"\xff\"",
        "\"\xc0\x80\"",
        "{NaN:1}",
        "{1e999:1}",
        "[99999999999999999999x]",
        "tru",
        "// a\n{}",
        "\"\\ud83d\\\"",
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        message[0] = 0;
        char *got = parse(all[i], strlen(all[i]));
        if (got || strncmp(message, "FILE:1: ", 8))
            fail_msg("%s: %s (%s)", all[i], got, message);
    }
    // the reported line number is right, also after an odd value
    assert_null(parse("{\n\"a\": NaN,\n\"b\" 1}", 18));
    assert_non_null(strstr(message, "FILE:3: "));
    assert_null(parse("[1]\0", 4));
    char deep[6000];
    memset(deep, '[', sizeof deep);
    assert_null(parse(deep, sizeof deep));
    assert_non_null(strstr(message, "depth"));
}

// In a line of a corpus NUL becomes a blank, because vocabularies have no piece for it.
static void test_line(void **state) {
    (void)state;
    static const char text[] = "{\"t\":\"a\\u0000\\ud800b\",\"n\":1e999}";
    json_error_t why;
    json_t *v = intra_json_line(text, sizeof text - 1, &why);
    assert_string_equal(json_string_value(json_object_get(v, "t")), "a \xef\xbf\xbd"
                                                                    "b");
    json_decref(v);
    assert_null(intra_json_line("{\"t\":", 5, &why));
    assert_true(why.text[0] != 0);
    assert_null(intra_json_line("{\"t\":", 5, NULL));
}

static void test_set(void **state) {
    (void)state;
    static const struct {
        const char *text, *out;
    } all[] = {
        {"{}", "{\"k\": \"v\"}"},
        {" { } ", " { \"k\": \"v\"} "},
        {"{\"a\":1e999}\n", "{\"a\":1e999,\"k\": \"v\"}\n"},
        {"\xef\xbb\xbf{\"k\" : 1 , \"b\":2}", "{\"k\" : \"v\" , \"b\":2}"},
        {"{\"a\":{\"k\":1},\"k\":{\"k\":[1,\"}\\\"]\"]},\"z\":\"k\"}",
         "{\"a\":{\"k\":1},\"k\":\"v\",\"z\":\"k\"}"},
        {"{\"k\":1,\"k\":NaN\n}", "{\"k\":\"v\",\"k\":\"v\"\n}"},
        {"{\"b\":1000000000000000019884624838656, \"k\": \"old\"}",
         "{\"b\":1000000000000000019884624838656, \"k\": \"v\"}"},
        {"{\"\\u006b\":1}", "{\"\\u006b\":1,\"k\": \"v\"}"}, // the last one counts
    };
    struct neb_buf b = {0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_int_equal(intra_json_set(all[i].text, strlen(all[i].text), "FILE", "k", "\"v\"", &b),
                         NEB_OK);
        if (b.len != strlen(all[i].out) || memcmp(b.p, all[i].out, b.len))
            fail_msg("%s: %.*s, expected %s", all[i].text, (int)b.len, (const char *)b.p,
                     all[i].out);
    }
    assert_int_equal(intra_json_set("[1]", 3, "FILE", "k", "1", &b), NEB_ERR_FORMAT);
    assert_int_equal(intra_json_set("{", 1, "FILE", "k", "1", &b), NEB_ERR_FORMAT);
    assert_int_equal(intra_json_set(" NaN", 4, "FILE", "k", "1", &b), NEB_ERR_FORMAT);
    neb_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_no_json),
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_set),
    };
    neb_log_set_sink(keep, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
