// SPDX-License-Identifier: Apache-2.0
// agent/daemon/tensor_list: two clusters find the first difference of their lists, on both sides.
#include "agent/daemon/tensor_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 3000 };
static char names[MOST][16];
static struct exchange_tensor list[MOST];

static void fill(struct agent_tensor_list *t, int32_t n) {
    struct exchange_manifest *m = NULL;
    assert_int_equal(exchange_manifest_create(list, n, &m), NEB_OK);
    assert_int_equal(agent_tensors_take(t, m), NEB_OK);
}

static void reset(void) {
    for (int32_t i = 0; i < MOST; i++) {
        snprintf(names[i], sizeof names[i], "t.%05d", i);
        list[i] = (struct exchange_tensor){.name = names[i], .dims = 2, .shape = {3, 2 + i % 5}};
    }
}

// Asks until it is settled. Every message passes through text, and every third answer is lost.
static enum agent_tensors_result compare(struct agent_tensor_list *asks,
                                         struct agent_tensor_list *answers,
                                         char here[AGENT_TENSORS_TEXT],
                                         char there[AGENT_TENSORS_TEXT],
                                         enum agent_tensors_result *of_answers) {
    enum agent_tensors_result result = AGENT_TENSORS_OPEN, x;
    *of_answers = AGENT_TENSORS_OPEN;
    here[0] = there[0] = 0;
    for (int i = 0; i < 64 && result == AGENT_TENSORS_OPEN; i++) {
        json_t *q = agent_tensors_question(asks);
        assert_non_null(q);
        assert_false(agent_tensors_is_answer(q));
        json_t *a = agent_tensors_answer(answers, q, "paris", "berlin", &x, there);
        *of_answers = x ? x : *of_answers;
        if (a) {
            char *text = json_dumps(a, JSON_COMPACT);
            assert_true(agent_tensors_is_answer(a) && strlen(text) < 2048);
            free(text);
        }
        if (a && i % 3 != 1)
            result = agent_tensors_learn(asks, a, "berlin", "paris", here);
        json_decref(q);
        json_decref(a);
    }
    return result;
}

static void test_same(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 2, 3, 7, MOST};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct agent_tensor_list a = {0}, b = {0};
        enum agent_tensors_result there;
        char x[AGENT_TENSORS_TEXT], y[AGENT_TENSORS_TEXT];
        reset();
        fill(&a, sizes[i]);
        fill(&b, sizes[i]);
        assert_int_equal(compare(&a, &b, x, y, &there), AGENT_TENSORS_SAME);
        assert_int_equal(there, AGENT_TENSORS_SAME);
        agent_tensors_clear(&a);
        agent_tensors_clear(&b);
    }
}

static void differ_at(int32_t n, int32_t at, bool drop, const char *expect) {
    struct agent_tensor_list a = {0}, b = {0};
    enum agent_tensors_result there;
    char x[AGENT_TENSORS_TEXT], y[AGENT_TENSORS_TEXT];
    reset();
    fill(&b, n);
    if (drop) // the same names, without one
        memmove(list + at, list + at + 1, (size_t)(n - at - 1) * sizeof *list);
    else
        list[at].shape[1] = 99;
    fill(&a, drop ? n - 1 : n);
    for (int turn = 0; turn < 2; turn++) {
        struct agent_tensor_list *asks = turn ? &a : &b, *answers = turn ? &b : &a;
        assert_int_equal(compare(asks, answers, x, y, &there), AGENT_TENSORS_DIFFER);
        assert_int_equal(there, AGENT_TENSORS_DIFFER);
        if (!strstr(x, expect) || !strstr(y, expect))
            fail_msg("%d of %d: %s / %s", at, n, x, y);
        if (turn)
            assert_non_null(
                strstr(x, drop ? "cluster berlin has no such tensor" : "cluster berlin has 3×99"));
        asks->low = asks->high = 0;
    }
    agent_tensors_clear(&a);
    agent_tensors_clear(&b);
}

static void test_differ(void **state) {
    (void)state;
    static const int32_t sizes[] = {2, 3, 8, 100, MOST};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int32_t n = sizes[i], places[] = {0, 1, n / 2, n - 1};
        for (size_t k = 0; k < 4; k++) {
            char expect[64];
            snprintf(expect, sizeof expect, "tensor \"t.%05d\": cluster ", places[k]);
            differ_at(n, places[k], false, expect);
            differ_at(n, places[k], true, expect);
        }
    }
    differ_at(1, 0, false, "tensor \"t.00000\": cluster ");
}

// The reference's trainer may attach with another list while the comparison runs.
static void test_changes(void **state) {
    (void)state;
    struct agent_tensor_list a = {0}, b = {0};
    enum agent_tensors_result there;
    char x[AGENT_TENSORS_TEXT], y[AGENT_TENSORS_TEXT];
    reset();
    fill(&a, 100);
    list[40].group = 1;
    fill(&b, 100);
    for (int i = 0; i < 64 && a.high != a.low + 1; i++) {
        json_t *q = agent_tensors_question(&a),
               *answer = agent_tensors_answer(&b, q, "paris", "berlin", &there, y);
        (void)agent_tensors_learn(&a, answer, "berlin", "paris", x);
        json_decref(q);
        json_decref(answer);
    }
    assert_int_equal(a.low, 40);
    reset();
    fill(&b, 100);
    assert_int_equal(compare(&a, &b, x, y, &there), AGENT_TENSORS_SAME);
    agent_tensors_clear(&a);
    agent_tensors_clear(&b);
}

static void test_bad(void **state) {
    (void)state;
    struct agent_tensor_list a = {0};
    enum agent_tensors_result result;
    char text[AGENT_TENSORS_TEXT];
    static const char *const questions[] = {
        "{}",
        "{\"n\": 0, \"prefix\": 1, \"sha\": \"\"}",
        "{\"n\": 3, \"prefix\": 0, \"sha\": \"\"}",
        "{\"n\": 3, \"prefix\": 1}",
        "{\"n\": 3, \"prefix\": 1e9, \"sha\": \"\"}",
        "{\"n\": 3, \"at\": -1, \"tensors\": \"\"}",
        "{\"n\": 3, \"at\": 4, \"tensors\": \"\"}",
        "{\"n\": 99999999, \"at\": 1, \"tensors\": \"\"}",
    };
    assert_null(agent_tensors_question(&a));
    reset();
    fill(&a, 3);
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        json_t *q = json_loads(questions[i], 0, NULL);
        assert_null(agent_tensors_answer(&a, q, "x", "y", &result, text));
        assert_int_equal(result, AGENT_TENSORS_OPEN);
        json_decref(q);
    }
    json_t *q = json_loads("{\"n\": 3, \"at\": 1, \"tensors\": \"{}\"}", 0, NULL),
           *answer = agent_tensors_answer(&a, q, "x", "y", &result, text);
    assert_non_null(answer);
    assert_int_equal(result, AGENT_TENSORS_OPEN);
    // an answer to another question
    assert_int_equal(agent_tensors_learn(&a, answer, "x", "y", text), AGENT_TENSORS_OPEN);
    assert_true(a.low == 0 && a.high == 0);
    json_decref(q);
    json_decref(answer);
    agent_tensors_clear(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same), cmocka_unit_test(test_differ),
                                       cmocka_unit_test(test_changes), cmocka_unit_test(test_bad)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
