// SPDX-License-Identifier: Apache-2.0
// inter/ledger: messages that wait for other members, and which messages of other members were
// taken.
#include "tests/unit/ledger_each.h"

struct seen {
    uint64_t seq[8], n;
    char text[64];
};

static bool on_message(void *user, uint64_t seq, uint32_t kind, const uint8_t *p, size_t n) {
    struct seen *s = user;
    s->seq[s->n++ & 7] = seq;
    size_t at = strlen(s->text);
    snprintf(s->text + at, sizeof s->text - at, "%u:%.*s ", kind, (int)n, (const char *)p);
    return s->n < 7;
}

static struct seen pending(const char *peer) {
    struct seen s = {.n = 0};
    OK(inter_ledger_pending(l, peer, on_message, &s));
    return s;
}

static void on_peer(void *user, const char *peer, uint64_t messages, uint64_t bytes) {
    char *text = user;
    size_t at = strlen(text);
    snprintf(text + at, 64 - at, "%s %d %d;", peer, (int)messages, (int)bytes);
}

static void test_messages_out(void **state) {
    (void)state;
    uint64_t a, b, c, d, previous;
    char text[64] = "";
    OK(inter_ledger_post(l, "anna", 1, "one", 3, NULL, &a, &previous));
    assert_int_equal(previous, 0);
    OK(inter_ledger_post(l, "bert", 2, "", 0, NULL, &b, &previous));
    assert_int_equal(previous, 0);
    OK(inter_ledger_post(l, "anna", 3, "two", 3, NULL, &c, &previous));
    assert_int_equal(previous, a);
    reopen();
    struct seen s = pending("anna");
    assert_string_equal(s.text, "1:one 3:two ");
    assert_true(s.seq[0] == a && s.seq[1] == c && a < b && b < c);
    OK(inter_ledger_outbox(l, on_peer, text));
    assert_string_equal(text, "anna 2 6;bert 1 0;");
    OK(inter_ledger_posted(l, "anna", a));
    OK(inter_ledger_posted(l, "anna", a));
    assert_string_equal(pending("anna").text, "3:two ");
    OK(inter_ledger_post(l, "anna", 9, "stop", 4, NULL, &d, &previous));
    // another kind, body or peer: both messages are kept
    OK(inter_ledger_post(l, "anna", 8, "stop", 4, NULL, &d, &previous));
    OK(inter_ledger_post(l, "anna", 9, "stops", 5, NULL, &d, &previous));
    OK(inter_ledger_unpost(l, "bert", 9, "stop", 4));
    assert_string_equal(pending("anna").text, "3:two 9:stop 8:stop 9:stops ");
    OK(inter_ledger_unpost(l, "anna", 9, "stop", 4));
    OK(inter_ledger_unpost(l, "anna", 9, "stop", 4));
    assert_string_equal(pending("anna").text, "3:two 8:stop 9:stops ");
    OK(inter_ledger_posted(l, "anna", UINT64_MAX));
    OK(inter_ledger_posted(l, "bert", c));
    reopen();
    assert_int_equal(pending("anna").n, 0);
    assert_int_equal(pending("bert").n, 0);
    OK(inter_ledger_post(l, "anna", 1, "x", 1, NULL, &d, &previous)); // a number is never reused
    assert_true(d > c);
    assert_int_equal(previous, 0);
}

// Messages and bytes are limited for each peer and in total. Acknowledged messages make room.
static void test_outbox_limits(void **state) {
    (void)state;
    static const struct inter_outbox_limit most = {2, 10, 4, 14};
    uint64_t a, b, previous;
    OK(inter_ledger_post(l, "anna", 1, "one", 3, &most, &a, &previous));
    assert_int_equal(inter_ledger_post(l, "anna", 1, "12345678", 8, &most, &b, &previous),
                     NEB_ERR_LIMIT);
    OK(inter_ledger_post(l, "anna", 1, "1234567", 7, &most, &b, &previous));
    assert_int_equal(inter_ledger_post(l, "anna", 1, "", 0, &most, &b, &previous), NEB_ERR_LIMIT);
    assert_int_equal(inter_ledger_post(l, "bert", 1, "12345", 5, &most, &b, &previous),
                     NEB_ERR_LIMIT);
    OK(inter_ledger_post(l, "bert", 1, "1", 1, &most, &b, &previous));
    OK(inter_ledger_post(l, "carl", 1, "1", 1, &most, &b, &previous));
    assert_int_equal(inter_ledger_post(l, "dora", 1, "", 0, &most, &b, &previous), NEB_ERR_LIMIT);
    assert_string_equal(pending("anna").text, "1:one 1:1234567 ");
    OK(inter_ledger_posted(l, "anna", a));
    OK(inter_ledger_post(l, "dora", 1, "", 0, &most, &b, &previous));
}

static bool is_bert_or_dora(void *user, const char *peer) {
    ++*(int *)user;
    return !strcmp(peer, "bert") || !strcmp(peer, "dora");
}

// Messages for peers that are no longer members are removed.
static void test_outbox_sweep(void **state) {
    (void)state;
    static const char *const peers[] = {"dora", "anna", "bert", "", "carl", "anna", "zeno"};
    static const struct inter_outbox_limit most = {9, 90, 7, 90};
    uint64_t seq, previous;
    char text[64] = "";
    int asked = 0;
    OK(inter_ledger_outbox_sweep(l, is_bert_or_dora, &asked));
    assert_int_equal(asked, 0);
    for (int i = 0; i < 7; i++)
        OK(inter_ledger_post(l, peers[i], 1, "x", 1, &most, &seq, &previous));
    assert_int_equal(inter_ledger_post(l, "bert", 1, "y", 1, &most, &seq, &previous),
                     NEB_ERR_LIMIT);
    OK(inter_ledger_outbox_sweep(l, is_bert_or_dora, &asked));
    assert_int_equal(asked, 6); // the function asked once for each peer
    reopen();
    OK(inter_ledger_outbox(l, on_peer, text));
    assert_string_equal(text, "bert 1 1;dora 1 1;");
    OK(inter_ledger_post(l, "bert", 1, "y", 1, &most, &seq, &previous));
}

static uint64_t taken(const char *peer, uint64_t epoch) {
    uint64_t seq = 99;
    OK(inter_ledger_taken(l, peer, epoch, &seq));
    return seq;
}

static void test_messages_in(void **state) {
    (void)state;
    const uint64_t old = 0xffffffffffffffffull, new = 3;
    OK(inter_ledger_take(l, "anna", old, 7));
    assert_int_equal(taken("anna", old), 7);
    assert_int_equal(taken("anna", new), 0); // her ledger is new
    assert_int_equal(taken("bert", old), 0);
    OK(inter_ledger_take(l, "anna", new, 1));
    OK(inter_ledger_take(l, "anna", old, 6)); // the number never falls
    reopen();
    assert_int_equal(taken("anna", old), 7);
    assert_int_equal(taken("anna", new), 1);
    assert_int_equal(inter_ledger_take(l, "anna", new, UINT64_MAX), NEB_ERR_INVALID);
    // epochs that a peer invents displace only its own
    OK(inter_ledger_take(l, "bert", 5, 50));
    for (uint64_t e = 100; e < 116; e++)
        OK(inter_ledger_take(l, "anna", e, 1));
    assert_int_equal(taken("anna", old), 0);
    assert_int_equal(taken("anna", new), 0);
    assert_int_equal(taken("anna", 100), 1);
    assert_int_equal(taken("bert", 5), 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_messages_out), TEST(test_outbox_limits),
                                       TEST(test_outbox_sweep), TEST(test_messages_in)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
