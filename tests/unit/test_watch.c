// SPDX-License-Identifier: Apache-2.0
// agent/watch: names and fault texts of a peer cannot control the terminal on which they appear.
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/base/plain.h"
#include "agent/job/json.h"
#include "agent/show/progress.h"
#include "agent/show/watch.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

static void print_text(FILE *f, const json_t *status) {
    fprintf(f, "%s\nend\n", json_string_value(status));
}

static void test_plain(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"paris, up", "paris, up\nend\n"},
        {"a\033[2Jb\r\tc\177", "a?[2Jb??c?\nend\n"},
        {"caf\xc3\xa9 \xe2\x82\xac", "caf\xc3\xa9 \xe2\x82\xac\nend\n"},
        {"x\xc2\x9b"
         "31m\xc2\xa0y",
         "x??31m\xc2\xa0y\nend\n"}, // CSI as one character
        {"a\xe2\x80\xae"
         "b\xe2\x81\xa6"
         "c",
         "a???b???c\nend\n"}, // writes backwards
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *s = json_string(cases[i][0]);
        char *text = agent_status_text(print_text, s);
        assert_non_null(text);
        assert_string_equal(text, cases[i][1]);
        free(text);
        json_decref(s);
    }
}

// Bytes that are not UTF-8: JSON cannot hold them, but the name of a file can.
static void test_bytes(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"x\x9b"
         "31m \xe9t\xe9",
         "x?31m ?t?"}, // CSI as one byte; Latin-1
        {"\xc0\x9b\xe0\x80\x9b \xf0\x9f\x90\x8c \xe2\x82",
         "????? \xf0\x9f\x90\x8c ??"}, // overlong; truncated
        {"a\nb\xf8\x88\x80\x80\x80", "a?b?????"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", cases[i][0]);
        neb_plain(text, false);
        assert_string_equal(text, cases[i][1]);
    }
}

// A long text in parts, cut anywhere and with zero bytes, gives the same result as in one piece.
static void test_parts(void **state) {
    (void)state;
    static const char text[] = "a\tb\n\xe2\x82\xac\xf0\x9f\x90\x8c\0c\033[2J\xe2\x82 \xc3",
                      want[] = "a\tb\n\xe2\x82\xac\xf0\x9f\x90\x8c?c?[2J?? ?";
    enum { N = sizeof text - 1 };
    for (size_t step = 1; step <= N; step++) {
        char out[64], part[64];
        size_t kept = 0, n = 0;
        for (size_t at = 0; at < N; at += step) {
            size_t k = step < N - at ? step : N - at;
            memcpy(part + kept, text + at, k);
            size_t done = neb_plain_text(part, kept + k, at + k == N);
            memcpy(out + n, part, done);
            n += done;
            kept = kept + k - done;
            assert_true(kept < 4);
            memmove(part, part + done, kept);
        }
        assert_int_equal(n, N);
        assert_memory_equal(out, want, N);
    }
    assert_true(neb_is_plain("caf\xc3\xa9"));
    assert_false(neb_is_plain("a\tb"));
    assert_false(neb_is_plain("\xe2\x82"));
}

static void keep(void *user, enum neb_log_level level, const char *text) {
    (void)level;
    snprintf(user, 128, "%s", text);
}

// A log message stays one line, whatever text it includes.
static void test_log(void **state) {
    (void)state;
    char line[128];
    neb_log_set_sink(keep, line);
    neb_warn("cluster %s: %s", "paris", "gone\n2026-11-22T00:00:00Z info  all is well\033]0;x\a");
    neb_log_set_sink(NULL, NULL);
    assert_string_equal(line, "cluster paris: gone?2026-11-22T00:00:00Z info  all is well?]0;x?");
}

static void test_progress_note(void **state) {
    (void)state;
    struct agent_progress *p = NULL;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    assert_int_equal(agent_progress_create(AGENT_PROGRESS_PLAIN, f, 1, 10, neb_now(), &p), NEB_OK);
    agent_progress_note(p, "paris: \033[31mred\nrome: done");
    agent_progress_destroy(&p);
    fclose(f);
    assert_string_equal(text, "paris: ?[31mred?rome: done\n");
    free(text);
}

// JSON from a peer is cleaned before anybody sees it.
static void test_json(void **state) {
    (void)state;
    json_t *v = json_loads("{\"a\": [\"x\\u001by\", 1, {\"b\": \"caf\u00e9\"}], \"k\\u009b\": 2}",
                           0, NULL),
           *want = json_loads("{\"a\": [\"x?y\", 1, {\"b\": \"caf\u00e9\"}]}", 0, NULL);
    agent_json_plain(v);
    assert_true(json_equal(v, want));
    json_decref(v);
    json_decref(want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),         cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_parts),         cmocka_unit_test(test_log),
        cmocka_unit_test(test_progress_note), cmocka_unit_test(test_json)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
