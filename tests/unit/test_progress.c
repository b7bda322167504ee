// SPDX-License-Identifier: Apache-2.0
// agent/progress: what people and programs see of a running job.
#include "agent/show/progress.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

struct screen { // a progress display that writes to memory
    char *text;
    size_t n;
    FILE *f;
    struct agent_progress *p;
};

static void begin(struct screen *s, enum agent_progress_kind kind) {
    *s = (struct screen){0};
    s->f = open_memstream(&s->text, &s->n);
    assert_int_equal(agent_progress_create(kind, s->f, 2, 300, 10 * NEB_S, &s->p), NEB_OK);
    snprintf(agent_progress_sample(s->p, 0)->name, 64, "paris");
    snprintf(agent_progress_sample(s->p, 1)->name, 64, "berlin");
}

static void end(struct screen *s) {
    agent_progress_destroy(&s->p);
    assert_null(s->p);
    fclose(s->f);
    free(s->text);
}

static void step(struct screen *s, int cluster, int n, double loss) {
    json_t *line = json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f}", "kind", "step", "step", n,
                             "tokens", 2048 * n, "loss", loss, "tokens_per_s", 20480.0, "stall_s",
                             0.1 * n / 10, "train_s", 0.9 * n / 10);
    agent_progress_metrics(s->p, cluster, line);
    json_decref(line);
}

static void link_state(struct screen *s, int cluster, bool up) {
    json_t *line = json_pack("{s:s, s:i, s:i, s:f, s:b}", "kind", "link", "sent_bytes", 1234567,
                             "recv_bytes", 998, "goodput_bps", 94.2e6, "up", up);
    agent_progress_metrics(s->p, cluster, line);
    json_decref(line);
}

static void test_human(void **state) {
    (void)state;
    static const struct {
        double v;
        const char *bytes, *rate, *time;
    } cases[] = {
        {0, "0 B", "0 bit/s", "0:00"},
        {59.6, "60 B", "60 bit/s", "1:00"},
        {999.4, "999 B", "999 bit/s", "16:39"},
        {999.6, "1.00 kB", "1.0 kbit/s", "16:40"},
        {3725, "3.73 kB", "3.7 kbit/s", "1:02:05"},
        {123456, "123 kB", "123 kbit/s", "34:17:36"},
        {12.3e6, "12.3 MB", "12.3 Mbit/s", "3416:40:00"},
        {1e9, "1.00 GB", "1.0 Gbit/s", "--:--"},
        {7.5e15, "7500 TB", "7500000 Gbit/s", "--:--"},
    };
    char buf[32];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(agent_human_bytes(cases[i].v, buf, sizeof buf), cases[i].bytes);
        assert_string_equal(agent_human_rate(cases[i].v, buf, sizeof buf), cases[i].rate);
        assert_string_equal(agent_human_time(cases[i].v, buf, sizeof buf), cases[i].time);
    }
    assert_string_equal(agent_human_time(-1, buf, sizeof buf), "--:--");
}

static void test_plain(void **state) {
    (void)state;
    static const char expect[] = "[0:05, --:-- left] paris      step   10/300  loss  7.125    "
                                 "20480 tok/s  sent  1.23 MB  recv    998 B  94.2 Mbit/s  "
                                 "stall 10.0%  round 0\n"
                                 "[0:05, --:-- left] berlin     step    0/300  loss      -        "
                                 "0 tok/s  sent      0 B  recv      0 B            -  "
                                 "stall  0.0%  round 0\n"
                                 "berlin: link down\n"
                                 "[0:10, --:-- left] paris      step  110/300  loss  5.200    "
                                 "20480 tok/s  sent  1.23 MB  recv    998 B  94.2 Mbit/s  "
                                 "stall 10.0%  round 0\n"
                                 "[0:10, --:-- left] berlin     step  110/300  loss  5.600    "
                                 "20480 tok/s  sent      0 B  recv      0 B            -  "
                                 "stall 10.0%  round 0\n"
                                 "[0:20, 0:28 left] paris      step  160/300  loss  5.000    20480 "
                                 "tok/s  sent  1.23 MB  recv    998 B  94.2 Mbit/s  "
                                 "stall 10.0%  round 0\n"
                                 "[0:20, 0:28 left] berlin     step  160/300  loss  5.500    20480 "
                                 "tok/s  sent  1.23 MB  recv    998 B  94.2 Mbit/s  "
                                 "stall 10.0%  round 3  LINK DOWN\n";
    struct screen s;
    begin(&s, AGENT_PROGRESS_PLAIN);
    step(&s, 0, 10, 7.125);
    link_state(&s, 0, true);
    agent_progress_draw(s.p, 12 * NEB_S, false); // too early
    fflush(s.f);
    assert_int_equal(s.n, 0);
    agent_progress_draw(s.p, 15 * NEB_S, false);
    agent_progress_note(s.p, "berlin: link down");
    // The run resumed at step 110. Only the 50 steps in the 10 seconds since then count, so 140
    // more steps take 28 s.
    step(&s, 0, 110, 5.2);
    step(&s, 1, 110, 5.6);
    agent_progress_draw(s.p, 20 * NEB_S, true);
    step(&s, 0, 160, 5);
    step(&s, 1, 160, 5.5);
    link_state(&s, 1, false);
    json_t *round = json_pack("{s:s, s:i}", "kind", "round", "round", 3);
    agent_progress_metrics(s.p, 1, round);
    json_decref(round);
    agent_progress_draw(s.p, 30 * NEB_S, true);
    assert_string_equal(s.text, expect);
    end(&s);
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (; (text = strstr(text, what)); text++)
        n++;
    return n;
}

// A site can hold its losses back: then the line shows none, and not 0.
static void test_no_loss(void **state) {
    struct screen s;
    char line[200];
    (void)state;
    begin(&s, AGENT_PROGRESS_PLAIN);
    json_t *o = json_pack("{s:s, s:i, s:n}", "kind", "step", "step", 10, "loss");
    agent_progress_metrics(s.p, 1, o);
    json_decref(o);
    agent_progress_line(agent_progress_sample(s.p, 1), 300, 150, line, sizeof line);
    assert_non_null(strstr(line, "step   10/300  loss      -  "));
    end(&s);
}

// The time left does not depend on a failed or removed cluster, until it trains again.
static void test_without_a_failed_cluster(void **state) {
    (void)state;
    struct screen s;
    begin(&s, AGENT_PROGRESS_PLAIN);
    step(&s, 0, 100, 5);
    step(&s, 1, 50, 5);
    agent_progress_draw(s.p, 20 * NEB_S, true);
    agent_progress_sample(s.p, 1)->out = true;
    agent_progress_draw(s.p, 22 * NEB_S, true);
    step(&s, 0, 200, 5);
    agent_progress_draw(s.p, 32 * NEB_S, true);
    fflush(s.f);
    assert_non_null(strstr(s.text, "[0:22, 0:10 left] paris"));
    step(&s, 1, 60, 5);
    agent_progress_draw(s.p, 34 * NEB_S, true);
    step(&s, 0, 300, 5);
    step(&s, 1, 80, 5);
    agent_progress_draw(s.p, 44 * NEB_S, true);
    fflush(s.f);
    assert_null(strstr(s.text, "[0:34, 0:00 left]"));
    end(&s);
}

// Three rows are drawn, and each drawing first erases exactly the rows of the one before.
static void test_terminal(void **state) {
    (void)state;
    struct screen s;
    begin(&s, AGENT_PROGRESS_TERMINAL);
    step(&s, 0, 10, 7);
    agent_progress_draw(s.p, 11 * NEB_S, false);
    assert_int_equal(count(s.text, "\n"), 3);
    assert_int_equal(count(s.text, "\033[1A\033[2K"), 0);
    agent_progress_draw(s.p, 12 * NEB_S, false);
    assert_int_equal(count(s.text, "\n"), 6);
    assert_int_equal(count(s.text, "\033[1A\033[2K"), 3);
    agent_progress_note(s.p, "link up");
    agent_progress_draw(s.p, 13 * NEB_S, false);
    assert_int_equal(count(s.text, "\033[1A\033[2K"), 6); // the note stays
    assert_int_equal(count(s.text, "\n"), 10);
    assert_int_equal(count(s.text, "\033["), 12); // no other escape sequence
    end(&s);
}

static void test_json(void **state) {
    (void)state;
    struct screen s;
    begin(&s, AGENT_PROGRESS_JSON);
    step(&s, 0, 10, 7);
    agent_progress_note(s.p, "berlin: \"gone\"");
    agent_progress_draw(s.p, 99 * NEB_S, true);
    json_t *note = json_loads(s.text, 0, NULL); // lines of metrics.jsonl are printed elsewhere
    assert_string_equal(json_string_value(json_object_get(note, "text")), "berlin: \"gone\"");
    assert_int_equal(count(s.text, "\n"), 1);
    json_decref(note);
    end(&s);
}

static void test_narrow(void **state) {
    (void)state;
    struct agent_sample s = {.name = "paris",
                             .step = 120,
                             .loss = 5.25,
                             .tokens_per_s = 20480,
                             .stall_s = 1,
                             .train_s = 9,
                             .sent_bytes = 5000000,
                             .goodput_bps = 9e7,
                             .link_known = true,
                             .link_up = false};
    char line[512];
    for (int width = 1; width < 160; width++) {
        agent_progress_line(&s, 300, width, line, sizeof line);
        assert_true(strlen(line) <= (size_t)width);
        if (width >= 40)
            assert_non_null(strstr(line, "LINK DOWN"));
        if (width >= 52)
            assert_non_null(strstr(line, "loss  5.250"));
    }
    agent_progress_line(&s, 300, 80, line, sizeof line);
    assert_string_equal(
        line, "paris      step  120/300  loss  5.250  sent  5.00 MB  stall 10.0%  LINK DOWN");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_human),    cmocka_unit_test(test_plain),
        cmocka_unit_test(test_no_loss),  cmocka_unit_test(test_without_a_failed_cluster),
        cmocka_unit_test(test_terminal), cmocka_unit_test(test_json),
        cmocka_unit_test(test_narrow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
