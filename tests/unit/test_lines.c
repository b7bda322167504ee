// SPDX-License-Identifier: Apache-2.0
// agent/daemon/lines: which lines reach the other agent through outages, in which order, and how
// many are kept.
#include "agent/base/bucket.h"
#include "agent/base/log.h"
#include "agent/base/throttle.h"
#include "agent/daemon/lines.h"
#include "compress/text.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <zstd.h>

#include <cmocka.h>

static const size_t big = 48 << 10;

static void add_kind(struct agent_lines *l, const char *kind, int step, neb_ns now) {
    json_t *line = json_pack("{s:s,s:i}", "kind", kind, "step", step);
    agent_lines_add(l, line, now, 5000 + now / NEB_MS);
    json_decref(line);
}
static void add(struct agent_lines *l, int step, neb_ns now) { add_kind(l, "step", step, now); }

// The other agent: takes what arrives and remembers the last number. Steps must rise.
struct home {
    int64_t had;
    int n, first, last, others;
    double late_s; // age of the first line since this was 0
    bool all_late; // every line must be marked as late
};
static void deliver(struct home *h, json_t *list, bool arrives) {
    const json_t *o;
    size_t i;
    json_array_foreach(list, i, o) {
        const json_t *line = json_object_get(o, "line");
        int step = (int)json_integer_value(json_object_get(line, "step"));
        if (!arrives)
            continue;
        assert_true(json_integer_value(json_object_get(o, "n")) > h->had);
        h->had = json_integer_value(json_object_get(o, "n"));
        double late_s = json_number_value(json_object_get(o, "late_s"));
        assert_true(!h->all_late || late_s > 0);
        if (h->late_s == 0)
            h->late_s = late_s;
        h->n++;
        if (strcmp(json_string_value(json_object_get(line, "kind")), "step") != 0) {
            h->others++;
            continue;
        }
        assert_true(step > h->last);
        h->first = h->first ? h->first : step;
        h->last = step;
    }
    json_decref(list);
}
static void sent(struct agent_lines *l, neb_ns now, bool arrives) {
    static uint64_t bytes;
    agent_lines_sent(l, 1, ++bytes);
    if (arrives)
        agent_lines_acked(l, 1, bytes, now);
}
static void send(struct agent_lines *l, struct home *h, neb_ns now, bool arrives) {
    json_t *list;
    while ((list = agent_lines_next(l, now, big))) {
        deliver(h, list, arrives);
        sent(l, now, arrives);
    }
}
// Lines for an agent that has none yet and says so.
static struct agent_lines *open_lines(neb_ns now) {
    struct agent_lines *l;
    assert_int_equal(agent_lines_create(true, now, &l), NEB_OK);
    agent_lines_had(l, 0);
    return l;
}
static void store(struct agent_lines *l, struct home *h, neb_ns now) {
    json_t *list;
    while ((list = agent_lines_take(l, now, 1000))) {
        deliver(h, list, true);
        agent_lines_stored(l);
    }
}

static void test_straight_through(void **state) {
    (void)state;
    struct agent_lines *l;
    struct home h = {0};
    l = open_lines(0);
    for (int i = 1; i <= 5 * AGENT_LINES_MAX; i++) { // more than are kept
        add(l, i, i * NEB_MS);
        send(l, &h, i * NEB_MS, true);
        assert_true(h.n <= i &&
                    h.n + 100 > i); // the lines of a tenth of a second are sent together
    }
    assert_true(h.late_s == 0);
    send(l, &h, 5 * AGENT_LINES_MAX * NEB_MS + NEB_S, true);
    assert_int_equal(h.n, 5 * AGENT_LINES_MAX);
    agent_lines_destroy(&l);
    assert_null(l);
    agent_lines_destroy(&l);
}

// Lines that a link did not take are kept, however old they are. When the job ends, they leave in
// another way.
static void test_not_taken(void **state) {
    (void)state;
    struct agent_lines *l;
    struct home h = {0};
    l = open_lines(0);
    for (int i = 1; i <= 100; i++)
        add(l, i, i * NEB_S); // more than is kept of sent lines
    json_t *list = agent_lines_next(l, 100 * NEB_S, 1000);
    int n = (int)json_array_size(list);
    assert_in_range(n, 2, 50);
    json_decref(list);
    agent_lines_back(l, n); // the link refused these lines
    add(l, 101, 101 * NEB_S);
    list = agent_lines_next(l, 101 * NEB_S, 1000);
    n = (int)json_array_size(list);
    deliver(&h, list, true);
    sent(l, 101 * NEB_S, true);
    assert_int_equal(h.first, 1);
    assert_int_equal(h.n, n);
    store(l, &h, 101 * NEB_S); // the job ends
    assert_int_equal(h.n, 101);
    assert_int_equal(h.last, 101);
    assert_null(agent_lines_next(l, 200 * NEB_S, 1000));
    agent_lines_back(l, 1000); // more than there are: this is harmless
    agent_lines_destroy(&l);
}

// Lines sent before the outage was noticed are sent again, and none arrives twice.
static void test_outage(void **state) {
    (void)state;
    struct agent_lines *l;
    struct home h = {0};
    neb_ns now = 0;
    l = open_lines(0);
    for (int round = 0; round < 3; round++) {
        int from = h.n;
        for (int i = 1; i <= 300; i++) {
            now += 50 * NEB_MS;
            if (i == 200)
                agent_lines_link(l, false, now);
            add(l, from + i, now);
            send(l, &h, now, i <= 120);
            assert_int_equal(h.n, from + (i <= 120 ? i : 120));
        }
        agent_lines_link(l, true, now);
        add(l, from + 301, now);
        send(l, &h, now, true); // before the other agent reports what it had
        assert_int_equal(h.n, from + 120);
        h.late_s = 0;
        h.all_late = true;
        agent_lines_had(l, h.had);
        send(l, &h, now, true);
        h.all_late = false;
        assert_int_equal(h.n, from + 301);
        assert_int_equal(h.last, from + 301);
        assert_true(h.late_s > 8.94 && h.late_s < 8.96);
    }
    agent_lines_destroy(&l);
}

// The link fails again while lines are in flight.
static void test_second_outage_in_flight(void **state) {
    (void)state;
    struct agent_lines *l;
    struct home h = {0};
    // the link is down from the beginning
    assert_int_equal(agent_lines_create(false, 0, &l), NEB_OK);
    for (int i = 1; i <= 500; i++)
        add(l, i, i * NEB_MS);
    send(l, &h, NEB_S, true);
    assert_int_equal(h.n, 0);
    agent_lines_link(l, true, NEB_S);
    agent_lines_had(l, 0);
    deliver(&h, agent_lines_next(l, NEB_S, 2000), true);
    assert_true(h.n > 5 && h.n < 100);
    sent(l, NEB_S, true);
    send(l, &h, NEB_S, false);
    agent_lines_link(l, false, NEB_S);
    agent_lines_link(l, true, 2 * NEB_S);
    agent_lines_had(l, h.had);
    send(l, &h, 2 * NEB_S, true);
    assert_int_equal(h.n, 500);
    agent_lines_destroy(&l);
}

// If the other agent restarted and forgot its number, or its report is lost, the lines of the
// outage and those that its link had not read are sent.
static void test_unknown_number(void **state) {
    (void)state;
    for (int says = 0; says < 2; says++) {
        struct agent_lines *l;
        struct home h = {0};
        l = open_lines(0);
        for (int i = 1; i <= 20; i++) {
            add(l, i, i * NEB_S);
            send(l, &h, i * NEB_S, i <= 15);
        }
        agent_lines_link(l, false, 20500 * NEB_MS);
        for (int i = 21; i <= 30; i++)
            add(l, i, 22 * NEB_S);
        agent_lines_link(l, true, 22 * NEB_S);
        if (says)
            agent_lines_had(l, 0);
        else
            send(l, &h, 31 * NEB_S, true);
        assert_int_equal(h.n, 15);
        send(l, &h, 33 * NEB_S, true);
        assert_int_equal(h.n, 30);
        agent_lines_destroy(&l);
    }
}

// Lines wait for a slow line, and then are in flight for as long. The link breaks, and the other
// agent, which has restarted, does not know which it has. It gets all that its link had not read.
static void test_slow_line(void **state) {
    (void)state;
    struct agent_lines *l = open_lines(0);
    struct home h = {0};
    for (int i = 1; i <= 20; i++)
        add(l, i, i * NEB_S);
    deliver(&h, agent_lines_next(l, 40 * NEB_S, 1), true);
    agent_lines_sent(l, 7, 100);
    deliver(&h, agent_lines_next(l, 40 * NEB_S, 1000), false);
    agent_lines_sent(l, 7, 1000);
    agent_lines_acked(l, 7, 999, 60 * NEB_S); // the first message
    agent_lines_link(l, false, 60 * NEB_S);
    agent_lines_acked(l, 0, 0, 61 * NEB_S);
    agent_lines_link(l, true, 62 * NEB_S);
    agent_lines_had(l, 0);
    send(l, &h, 62 * NEB_S, true);
    assert_int_equal(h.n, 20);
    agent_lines_destroy(&l);
}

// The job or the agent ends: lines in flight are stored too, since the link may be dead. A failure
// to store loses none.
static void test_stored_in_flight(void **state) {
    (void)state;
    struct agent_lines *l = open_lines(0);
    struct home h = {0};
    for (int i = 1; i <= 100; i++) {
        add(l, i, i * NEB_MS);
        send(l, &h, i * NEB_MS, i <= 20);
    }
    add(l, 101, NEB_S);
    assert_int_equal(h.n, 20);
    json_t *list = agent_lines_take(l, NEB_S, 1000);
    int n = (int)json_array_size(list);
    deliver(&h, list, false);
    agent_lines_back(l, n); // the disk is full
    store(l, &h, NEB_S);
    assert_int_equal(h.n, 101);
    assert_null(agent_lines_next(l, NEB_S, 1000));
    agent_lines_destroy(&l);
}

// Connections are replaced while lines are in flight on the old one.
static void test_replaced(void **state) {
    (void)state;
    struct agent_lines *l = open_lines(0);
    struct home h = {0};
    add(l, 1, NEB_S);
    deliver(&h, agent_lines_next(l, NEB_S, 1000), false);
    agent_lines_sent(l, 7, 1000);
    agent_lines_acked(l, 8, 5000, 20 * NEB_S); // of another connection
    agent_lines_link(l, false, 20 * NEB_S);
    agent_lines_had(l, 0);
    send(l, &h, 20 * NEB_S, true);
    assert_int_equal(h.n, 1);
    agent_lines_destroy(&l);
}

// Before the other agent says that it has the job, it gets nothing: it would drop the lines.
static void test_waits_first(void **state) {
    (void)state;
    struct agent_lines *l;
    struct home h = {0};
    assert_int_equal(agent_lines_create(true, NEB_S, &l), NEB_OK);
    add(l, 1, NEB_S);
    send(l, &h, 10 * NEB_S, true);
    assert_int_equal(h.n, 0);
    agent_lines_had(l, 0);
    send(l, &h, 10 * NEB_S, true);
    assert_int_equal(h.n, 1);
    agent_lines_destroy(&l);
}

// A restarted agent begins with higher numbers, so that its lines count as new.
static void test_numbers_go_on(void **state) {
    (void)state;
    struct agent_lines *l;
    struct home h = {0};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(agent_lines_create(i == 0, 0, &l), NEB_OK);
        if (i == 0)
            agent_lines_had(l, 0);
        for (int k = 1; k <= 40; k++)
            add(l, 40 * i + k, i * NEB_S + k * NEB_MS);
        if (i) {
            agent_lines_link(l, true, NEB_S);
            agent_lines_had(l, h.had);
        }
        send(l, &h, 2 * NEB_S, true);
        agent_lines_destroy(&l);
    }
    assert_int_equal(h.n, 80);
}

// An outage has ten times as many lines as are kept. Steps from its whole length are kept, and
// every round.
static void test_long_outage(void **state) {
    (void)state;
    struct agent_lines *l;
    struct home h = {0};
    int widest = 0, last = 0;
    json_t *list;
    assert_int_equal(agent_lines_create(false, 0, &l), NEB_OK);
    for (int i = 1; i <= 10 * AGENT_LINES_MAX; i++) {
        add(l, i, i * NEB_S);
        if (i % 100 == 0)
            add_kind(l, "round", i, i * NEB_S);
    }
    agent_lines_link(l, true, 0);
    agent_lines_had(l, 0);
    while ((list = agent_lines_next(l, 0, 1))) { // one at a time
        assert_int_equal(json_array_size(list), 1);
        deliver(&h, list, true);
        widest = h.last - last > widest ? h.last - last : widest;
        last = h.last;
    }
    assert_int_equal(h.others, 10 * AGENT_LINES_MAX / 100);
    assert_true(h.n > AGENT_LINES_MAX / 3 && h.n <= AGENT_LINES_MAX);
    assert_true(widest <= 32); // 10,240 steps in 1,024 places
    assert_true(10 * AGENT_LINES_MAX - h.last <= 32);
    agent_lines_destroy(&l);
}

// Lines of other kinds are not thinned out. If there are too many, or they are too long, the oldest
// are dropped.
static void test_bounded(void **state) {
    (void)state;
    struct agent_lines *l;
    struct home h = {0};
    char text[20000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    assert_int_equal(agent_lines_create(false, 0, &l), NEB_OK);
    for (int i = 0; i < 2 * AGENT_LINES_MAX; i++)
        add_kind(l, "fault", i, 0);
    agent_lines_had(l, 0);
    send(l, &h, 0, true);
    assert_int_equal(h.n, AGENT_LINES_MAX);
    agent_lines_link(l, false, 0);
    for (int i = 0; i < 100; i++) {
        json_t *line = json_pack("{s:s,s:s}", "kind", "fault", "text", text);
        agent_lines_add(l, line, 0, 0);
        json_decref(line);
    }
    agent_lines_had(l, 0);
    h = (struct home){0};
    send(l, &h, 0, true);
    assert_in_range(h.n, 50, AGENT_LINES_BYTES_MAX / 20000);
    agent_lines_destroy(&l);
}

// Waiting lines go into the ledger once, together with the lines that were sent into a dead link.
static void test_stored(void **state) {
    (void)state;
    const neb_ns tick = 100 * NEB_MS;
    struct agent_lines *l;
    struct home h = {0};
    l = open_lines(0);
    for (int i = 1; i <= 700; i++) {
        if (i == 200)
            agent_lines_link(l, false, i * tick);
        add(l, i, i * tick);
        // the link was dead for five seconds before this was noticed
        send(l, &h, i * tick, i < 150);
        if (i == 100)
            assert_null(agent_lines_take(l, i * tick, big)); // the link is up
    }
    assert_int_equal(h.n, 149);
    store(l, &h, 700 * tick);
    assert_int_equal(h.n, 700);
    agent_lines_link(l, true, 700 * tick);
    agent_lines_had(l, 0);
    send(l, &h, 700 * tick, true);
    add(l, 701, 700 * tick);
    send(l, &h, 700 * tick, true);
    assert_int_equal(h.n, 701);
    agent_lines_destroy(&l);
}

// Twelve hours with two steps and ten other lines a second: both kinds are kept, from the whole
// time.
static void test_many_of_other_kinds(void **state) {
    (void)state;
    struct agent_lines *l;
    struct home h = {0};
    assert_int_equal(agent_lines_create(false, 0, &l), NEB_OK);
    neb_ns now = 0;
    for (int s = 0; s < 12 * 3600; s++, now += NEB_S) {
        add(l, 2 * s + 1, now);
        for (int k = 0; k < 10; k++)
            add_kind(l, "link", 2 * s + 1, now);
        add(l, 2 * s + 2, now);
    }
    agent_lines_link(l, true, now);
    agent_lines_had(l, 0);
    send(l, &h, now, true);
    assert_true(h.others >= AGENT_LINES_MAX / 2 && h.others <= AGENT_LINES_MAX * 3 / 4);
    assert_true(h.n - h.others >= AGENT_LINES_MAX / 4);
    assert_true(h.first < 12 * 3600 / 2 && h.last > 2 * 12 * 3600 * 9 / 10);
    agent_lines_destroy(&l);
}

// Lines faster than the limit are thinned out over the whole time, to a rate that the other agent
// accepts. Before a report, the rest is sent at once.
static void test_too_fast(void **state) {
    (void)state;
    enum { SECONDS = 20, A_MS = 20 };
    struct agent_lines *l;
    struct home h = {0};
    struct neb_bucket taken = {0};
    int before = 0, messages = 0;
    neb_ns now = NEB_S;
    l = open_lines(now);
    for (int i = 1; i <= SECONDS * 1000 * A_MS; i++) {
        now += NEB_MS / A_MS;
        add(l, i, now);
        json_t *list;
        while ((list = agent_lines_next(l, now, big))) {
            messages++;
            deliver(&h, list, true);
            sent(l, now, true);
        }
        assert_true(neb_bucket_take(&taken, now, h.n - before,
                                    AGENT_LINES_TAKEN * AGENT_LINES_BURST,
                                    AGENT_LINES_TAKEN * AGENT_LINES_A_SECOND));
        before = h.n;
    }
    assert_in_range(h.n, SECONDS * AGENT_LINES_A_SECOND / 2,
                    SECONDS * AGENT_LINES_A_SECOND + AGENT_LINES_BURST);
    assert_true(messages <=
                AGENT_LINES_MESSAGES_BURST + SECONDS * AGENT_LINES_MESSAGES_A_SECOND + 1);
    assert_true(h.first == 1 && h.last > SECONDS * 1000 * A_MS * 9 / 10);
    store(l, &h, now);
    assert_int_equal(h.last, SECONDS * 1000 * A_MS);
    agent_lines_destroy(&l);
}

// Repeated events are logged a few times, then as a count once a minute, and again after a calm
// minute.
static void test_throttle(void **state) {
    (void)state;
    struct neb_throttle q = {0};
    neb_ns now = 5 * NEB_S;
    assert_true(neb_throttle_would_allow(&q, now, 2));
    assert_true(neb_throttle_allows(&q, now, 2) && neb_throttle_allows(&q, now, 2));
    assert_false(neb_throttle_would_allow(&q, now, 2));
    for (int i = 0; i < 100; i++)
        assert_false(neb_throttle_allows(&q, now + NEB_S, 2));
    assert_int_equal(neb_throttle_suppressed(&q, now + 30 * NEB_S), 0);
    assert_int_equal(neb_throttle_suppressed(&q, now + 61 * NEB_S), 100);
    assert_int_equal(neb_throttle_suppressed(&q, now + 130 * NEB_S), 0);
    assert_false(neb_throttle_allows(&q, now + 62 * NEB_S, 2));
    assert_int_equal(neb_throttle_suppressed(&q, now + 122 * NEB_S), 1);
    assert_false(neb_throttle_would_allow(&q, now + 181 * NEB_S, 2)); // the count was logged at 122
    assert_true(neb_throttle_would_allow(&q, now + 200 * NEB_S, 2));
    assert_true(neb_throttle_allows(&q, now + 200 * NEB_S, 2));
}

// Lines that follow each other are packed to a fraction of their text. A damaged frame, and one
// that unpacks to too much, are refused.
static void test_packed_lines(void **state) {
    (void)state;
    struct neb_buf b = {0}, room = {0};
    static char text[CMP_TEXT_MOST + 1];
    const char *back;
    size_t n = 0, len;
    for (int i = 0; i < 20; i++)
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "{\"kind\":\"step\",\"step\":%d,\"loss\":%f},", i, 7 - i * 0.1);
    assert_int_equal(cmp_text_pack(text, n, &b), NEB_OK);
    assert_true(b.len < n / 3);
    assert_int_equal(cmp_text_unpack(b.p, b.len, &room, &back, &len), NEB_OK);
    assert_int_equal(len, n);
    assert_memory_equal(back, text, n);
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(cmp_text_unpack(b.p, b.len - 1, &room, &back, &len), NEB_ERR_FORMAT);
    memset(text, 'x', sizeof text); // longer than the limit: it stays as it is
    assert_int_equal(cmp_text_pack(text, sizeof text, &b), NEB_OK);
    assert_int_equal(b.len, sizeof text);
    assert_int_equal(cmp_text_unpack(b.p, b.len, &room, &back, &len), NEB_OK);
    assert_true(len == sizeof text && back == (const char *)b.p);
    neb_buf_clear(&b);
    assert_int_equal(neb_buf_reserve(&b, ZSTD_COMPRESSBOUND(sizeof text)), NEB_OK);
    b.len = ZSTD_compress(b.p, ZSTD_COMPRESSBOUND(sizeof text), text, sizeof text, 1);
    assert_int_equal(cmp_text_unpack(b.p, b.len, &room, &back, &len), NEB_ERR_FORMAT);
    assert_int_equal(cmp_text_pack("{}", 2, &b), NEB_OK); // not worth a frame
    assert_true(b.len == 2 && !memcmp(b.p, "{}", 2));
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&b);
    neb_buf_free(&room);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_straight_through), cmocka_unit_test(test_not_taken),
        cmocka_unit_test(test_outage),           cmocka_unit_test(test_second_outage_in_flight),
        cmocka_unit_test(test_unknown_number),   cmocka_unit_test(test_numbers_go_on),
        cmocka_unit_test(test_long_outage),      cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_slow_line),        cmocka_unit_test(test_stored_in_flight),
        cmocka_unit_test(test_replaced),         cmocka_unit_test(test_waits_first),
        cmocka_unit_test(test_stored),           cmocka_unit_test(test_many_of_other_kinds),
        cmocka_unit_test(test_too_fast),         cmocka_unit_test(test_throttle),
        cmocka_unit_test(test_packed_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
