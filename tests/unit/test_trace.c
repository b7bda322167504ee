// SPDX-License-Identifier: Apache-2.0
// nebula trace: the events of a run that this test writes. Every event has the fields that Chrome's
// trace format asks for; slices of a thread do not overlap; stretches and flows are closed; a wait
// names the cluster that it was for.
#include "agent/show/trace.h"
#include "tests/unit/scratch.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const char lines[] =
    // berlin sends 4 s after paris; its update travels 1 s
    "{\"t\":1,\"kind\":\"step\",\"cluster\":\"paris\",\"step\":10,\"loss\":5}\n"
    "{\"t\":1,\"kind\":\"step\",\"cluster\":\"berlin\",\"step\":5,\"loss\":5}\n"
    "{\"t\":2,\"kind\":\"link\",\"cluster\":\"paris\",\"sent_bytes\":1000,\"recv_bytes\":0,"
    "\"rtt_ms\":80,\"links\":{\"berlin\":{\"sent_bytes\":1000,\"recv_bytes\":0}}}\n"
    "{\"t\":4,\"kind\":\"link\",\"cluster\":\"paris\",\"sent_bytes\":3000,\"recv_bytes\":500,"
    "\"rtt_ms\":81,\"links\":{\"berlin\":{\"sent_bytes\":2000,\"recv_bytes\":500}}}\n"
    "{\"t\":10,\"kind\":\"round\",\"cluster\":\"paris\",\"round\":0,\"fragment\":1,\"step\":20,"
    "\"encode_s\":0.5,\"travel_s\":5,\"held_s\":0,\"apply_s\":0.25,\"stall_s\":3,"
    "\"payload_bytes\":777,\"codec\":\"int4\"}\n"
    "{\"t\":10.5,\"kind\":\"round\",\"cluster\":\"berlin\",\"round\":0,\"fragment\":1,\"step\":9,"
    "\"encode_s\":0.5,\"travel_s\":1,\"held_s\":0.5,\"apply_s\":0.25,\"stall_s\":0,"
    "\"payload_bytes\":777,\"codec\":\"int4\"}\n"
    "{\"t\":11,\"kind\":\"step\",\"cluster\":\"paris\",\"step\":20,\"loss\":4,"
    "\"tokens_per_s\":9}\n"
    "{\"t\":12,\"kind\":\"step\",\"cluster\":\"paris\",\"step\":15,\"loss\":4}\n" // resumed
    "{\"t\":13,\"kind\":\"checkpoint\",\"cluster\":\"berlin\",\"step\":9,\"write_ms\":250}\n"
    "{\"t\":14,\"kind\":\"fault\",\"cluster\":\"berlin\",\"text\":\"odd \\u001b[31m\"}\n"
    "{\"t\":15,\"kind\":\"eval\",\"cluster\":\"berlin\",\"loss\":null}\n"
    // hostile or unknown
    "{\"t\":\"x\",\"kind\":\"step\",\"cluster\":\"paris\"}\n{\"kind\":\"step\"}\n[1]\nnonsense\n"
    "{\"t\":1e300,\"kind\":\"round\",\"cluster\":\"paris\",\"travel_s\":1e300,"
    "\"round\":1e300}\n"
    "{\"t\":1e308,\"kind\":\"link\",\"cluster\":\"oslo\",\"sent_bytes\":1e308}\n"
    "{\"t\":1e308,\"kind\":\"link\",\"cluster\":\"oslo\",\"sent_bytes\":0,\"recv_bytes\":1e308,"
    "\"links\":{\"\":{\"sent_bytes\":1e308}}}\n"
    "{\"t\":16,\"kind\":\"link\",\"cluster\":\"paris\",\"links\":[1],\"sent_bytes\":\"x\"}\n"
    "{\"t\":17,\"kind\":\"new kind\",\"cluster\":7}\n{\"t\":18,\"kind\":\"step\",\"cl";

static json_t *trace_of(const char *text) {
    char path[NEB_PATH_MAX], *out = NULL;
    size_t n = 0;
    int64_t events;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    assert_int_equal(neb_fs_write(path, text, strlen(text), 0644), NEB_OK);
    FILE *f = open_memstream(&out, &n);
    assert_non_null(f);
    assert_int_equal(agent_trace_write(path, "job \"1\"", f, &events), NEB_OK);
    fclose(f);
    json_error_t why;
    json_t *o = json_loadb(out, n, 0, &why);
    if (!o)
        fail_msg("not JSON: %s in %s", why.text, out);
    free(out);
    json_t *list = json_incref(json_object_get(o, "traceEvents"));
    json_decref(o);
    assert_int_equal(json_array_size(list), events);
    return list;
}

static const char *text(const json_t *e, const char *key) {
    const char *s = json_string_value(json_object_get(e, key));
    return s ? s : "";
}
static double number(const json_t *e, const char *key) {
    return json_number_value(json_object_get(e, key));
}

static void check_schema(const json_t *events) {
    size_t i, k;
    json_t *e, *x;
    json_array_foreach(events, i, e) {
        const char *ph = text(e, "ph");
        assert_true(strlen(ph) == 1 && strchr("XMCibesf", *ph));
        assert_true(number(e, "pid") >= 1 && *text(e, "name"));
        assert_null(strstr(text(e, "name"), "-9223372036854775808")); // 1e300 is no round
        assert_true(*ph == 'M' ||
                    (json_is_number(json_object_get(e, "ts")) && number(e, "ts") >= 0));
        if (*ph == 'X')
            assert_true(number(e, "dur") > 0 && number(e, "tid") >= 1);
        if (*ph == 'C')
            assert_true(json_is_object(json_object_get(e, "args")));
        if (*ph == 'i')
            assert_string_equal(text(e, "s"), "p");
        int partners = 0;
        if (strchr("bs", *ph))
            json_array_foreach(events, k, x) partners +=
                *text(x, "ph") == (*ph == 'b' ? 'e' : 'f') &&
                json_equal(json_object_get(x, "id"), json_object_get(e, "id")) &&
                number(x, "ts") >= number(e, "ts");
        if (strchr("bs", *ph))
            assert_int_equal(partners, 1);
        int inside = 0; // a flow binds to the slice around it
        if (strchr("sf", *ph))
            json_array_foreach(events, k, x) inside +=
                *text(x, "ph") == 'X' && number(x, "pid") == number(e, "pid") &&
                number(x, "tid") == number(e, "tid") && number(x, "ts") <= number(e, "ts") &&
                number(e, "ts") <= number(x, "ts") + number(x, "dur");
        if (strchr("sf", *ph))
            assert_int_equal(inside, 1);
    }
}

// The one event of this name; NULL: none.
static const json_t *find(const json_t *events, const char *name, int pid, const char *ph) {
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e) if (!strcmp(text(e, "name"), name) &&
                                         (int)number(e, "pid") == pid &&
                                         !strcmp(text(e, "ph"), ph)) return e;
    return NULL;
}

static int count(const json_t *events, const char *ph) {
    int n = 0;
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e) n += !strcmp(text(e, "ph"), ph);
    return n;
}

static void near(const json_t *e, double from_s, double until_s) {
    assert_non_null(e);
    assert_true(fabs(number(e, "ts") - from_s * 1e6) < 1);
    assert_true(fabs(number(e, "dur") - (until_s - from_s) * 1e6) < 1);
}

static void test_run(void **state) {
    json_t *events = trace_of(lines);
    (void)state;
    check_schema(events);
    assert_string_equal(text(json_object_get(find(events, "process_name", 2, "M"), "args"), "name"),
                        "berlin");
    near(find(events, "steps 11-20", 1, "X"), 1, 11);
    assert_null(find(events, "steps 21-15", 1, "X"));
    near(find(events, "encode 0.1", 1, "X"), 4.25, 4.75);
    near(find(events, "merge 0.1", 1, "X"), 9.75, 10);
    near(find(events, "encode 0.1", 2, "X"), 8.25, 8.75);
    near(find(events, "waits for berlin: it has not sent its update yet", 1, "X"), 6.75, 8.75);
    near(find(events, "waits for the line: updates and votes travel", 1, "X"), 8.75, 9.75);
    near(find(events, "write a checkpoint", 2, "X"), 12.75, 13);
    assert_true(number(find(events, "send 0.1", 2, "e"), "ts") == 9.75e6);
    const json_t *rate = json_object_get(find(events, "link to berlin", 1, "C"), "args");
    assert_true(number(rate, "sent_bit_s") == 4000 && number(rate, "received_bit_s") == 2000);
    assert_non_null(find(events, "fault", 2, "i"));
    assert_int_equal(count(events, "f"), 2);
    json_decref(events);
}

// Paris waits for rome, the last that had sent when its commit came; oslo sends after that, and so
// nobody merges its update. A sum of bytes that falls has begun again.
static void test_late(void **state) {
    (void)state;
    json_t *events =
        trace_of("{\"t\":1,\"kind\":\"link\",\"cluster\":\"paris\",\"sent_bytes\":1000}\n"
                 "{\"t\":2,\"kind\":\"link\",\"cluster\":\"paris\",\"sent_bytes\":0}\n"
                 "{\"t\":20,\"kind\":\"round\",\"cluster\":\"paris\",\"round\":5,\"encode_s\":0.5,"
                 "\"travel_s\":6,\"apply_s\":0.5,\"stall_s\":4}\n"
                 "{\"t\":20,\"kind\":\"round\",\"cluster\":\"rome\",\"round\":5,\"encode_s\":0.5,"
                 "\"travel_s\":2.5,\"apply_s\":0.5}\n"
                 "{\"t\":20,\"kind\":\"round\",\"cluster\":\"berlin\",\"round\":5,\"encode_s\":0.5,"
                 "\"travel_s\":4.5,\"apply_s\":0.5}\n"
                 "{\"t\":40,\"kind\":\"round\",\"cluster\":\"oslo\",\"round\":5,\"encode_s\":0.5,"
                 "\"travel_s\":9.5,\"apply_s\":0.5}\n");
    check_schema(events);
    near(find(events, "waits for rome: it has not sent its update yet", 1, "X"), 15.5, 17);
    near(find(events, "waits for the line: updates and votes travel", 1, "X"), 17, 19.5);
    assert_int_equal(count(events, "f"), 3 * 2 + 3);
    const json_t *rate = json_object_get(find(events, "link", 1, "C"), "args");
    assert_true(json_is_number(json_object_get(rate, "sent_bit_s")));
    assert_true(number(rate, "sent_bit_s") == 0);
    json_decref(events);
}

static void test_empty(void **state) {
    (void)state;
    json_t *events = trace_of("");
    assert_int_equal(json_array_size(events), 0);
    json_decref(events);
}

// A round of 16 clusters gives 16 x 15 flows; a seventeenth cluster is left out.
static void test_many(void **state) {
    struct neb_buf b = {0};
    (void)state;
    for (int i = 0; i < 17; i++) {
        char line[256];
        int n = snprintf(line, sizeof line,
                         "{\"t\":%d,\"kind\":\"round\",\"cluster\":\"c%d\",\"round\":3,"
                         "\"encode_s\":0.1,\"travel_s\":30,\"apply_s\":0.1,\"stall_s\":1}\n",
                         100 + i, i);
        neb_buf_add(&b, line, (size_t)n);
    }
    neb_buf_u8(&b, 0);
    json_t *events = trace_of((const char *)b.p);
    check_schema(events);
    assert_int_equal(count(events, "s"), 16 * 15);
    json_decref(events);
    neb_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_run), cmocka_unit_test(test_late),
                                       cmocka_unit_test(test_empty), cmocka_unit_test(test_many)};
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
