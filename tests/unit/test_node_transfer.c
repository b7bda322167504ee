// Which update of a member a node has, seeks and asks for, where there are several: its owner lost its disk, went back to an older one, or signed two.
#include "tests/unit/node_fixture.h"

static struct fragment *fragment(void) { return &node_find_job(node, job_id)->fragments[0]; }

// Seconds without a word. By member: who was asked for an update meanwhile; this node itself: its own disk.
static uint16_t ask(int seconds) {
    uint16_t from = 0;
    for (int i = 0; i < 5 * seconds; i++) {
        now += NEB_S / 5;
        step(&(struct inter_event){.kind = INTER_EV_TICK});
        for (size_t k = 0; k < actions.n; k++) {
            const struct inter_action *a = &actions.list[k];
            bool want = a->kind == INTER_ACT_SEND && actions.bytes.p[a->at] == MSG_WANT;
            if (want || a->kind == INTER_ACT_SERVE)
                from |= (uint16_t)BIT(a->peer);
        }
    }
    return from;
}

static void submit(uint32_t attempt) {
    struct inter_manifest m = update(node_find_job(node, job_id)->c.self, attempt, 0);
    m.tokens = 1;
    m.steps = 1;
    m.step = 1;
    step(&(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &m, .norm = 1});
}

// The round is decided with these updates.
static void decide(const struct inter_manifest *m, uint8_t n) {
    struct fragment *g = fragment();
    g->decided = true;
    g->decision = (struct inter_record){.n = n, .eta = 1};
    memcpy(g->decision.job, job_id, sizeof job_id);
    for (uint8_t i = 0; i < n; i++) {
        struct inter_entry *e = &g->decision.entries[i];
        *e = (struct inter_entry){.member = m[i].key.member,
                                  .attempt = m[i].key.attempt,
                                  .bytes = m[i].bytes,
                                  .tokens = m[i].tokens,
                                  .verdict = INTER_ACCEPTED,
                                  .clip = 1};
        memcpy(e->sha256, m[i].sha256, sizeof e->sha256);
    }
}

// An older one takes the place of a newer one that nobody has any more: its owner may have voted for it before its disk was lost. Not of one that
// somebody has, and not of another digest under the same key, which is no older one.
static void test_goes_back(void **state) {
    (void)state;
    const struct inter_manifest older = update(0, 5, 1), newer = update(0, 7, 2),
                                same = update(0, 7, 3);
    const struct slot *t;
    begin_of(3, 0, 1, 0, true);
    t = &fragment()->slots[0];
    say_manifest(0, &older);
    assert_true(t->known && t->m.key.attempt == 5);
    say_manifest(2, &newer);
    assert_int_equal(t->m.key.attempt, 7);
    say_manifest(0, &older); // its owner is thought to have the newer one
    assert_int_equal(t->m.key.attempt, 7);
    say_holding(0, &newer, INTER_HOLD_PART);
    say_holding(2, &newer, INTER_HOLD_WHOLE);
    say_manifest(0, &older);
    assert_int_equal(t->m.key.attempt, 7);
    say_holding(2, &newer, INTER_HOLD_PART);
    say_manifest(0, &same);
    assert_int_equal(t->m.sha256[0], 2);
    say_manifest(0, &older);
    assert_true(t->m.key.attempt == 5 && t->m.sha256[0] == 1);
}

// A record lists an own update of before: it is on this disk, under its own key, or with others. The newer one counts again once another leader
// has taken over, as no vote for the older one binds there.
static void test_own_of_before(void **state) {
    (void)state;
    const struct inter_manifest older = update(0, 5, 1);
    for (int kept = 0; kept < 2; kept++) {
        begin_of(3, 0, 0, 0, true);
        struct job *j = node_find_job(node, job_id);
        struct fragment *g = fragment();
        const struct slot *t = &g->slots[0];
        submit(9);
        assert_true(t->whole && t->m.key.attempt == 9);
        decide(&older, 1);
        assert_true(ask(7) & 1);
        step(&(struct inter_event){
            .kind = INTER_EV_SERVE, .peer = 0, .key = older.key, .manifest = kept ? &older : NULL});
        assert_true(t->m.key.attempt == (kept ? 5 : 9) && !t->whole == kept);
        if (!kept) {
            assert_int_equal(ask(4), 6); // the others, and not this disk again
            continue;
        }
        assert_true(g->has_own && g->own.key.attempt == 9);
        g->decided = false; // as if it had been proposed, and this node had voted for it
        g->voted = true;
        g->vote = g->decision;
        g->vote.term = j->standing.term = 3;
        ask(2);
        assert_true(t->m.key.attempt == 5 && g->has_own);
        j->standing.term = 4;
        ask(2);
        assert_true(t->m.key.attempt == 9 && !g->has_own);
    }
}

// Of a liar's two updates under one key one was committed. Who brings the other has not that one, and whoever said before that it had none is asked
// again: this node is not behind all others.
static void test_second_digest(void **state) {
    (void)state;
    const struct inter_manifest right = update(3, 1, 1), wrong = update(3, 1, 2);
    begin_of(4, 0, 1, 0, true);
    struct fragment *g = fragment();
    const struct slot *t = &g->slots[3];
    step(&(struct inter_event){.kind = INTER_EV_PEER_DOWN, .peer = 3}); // revoked
    say_manifest(0, &wrong);
    say_holding(0, &wrong, INTER_HOLD_WHOLE);
    assert_true(t->known && t->m.sha256[0] == 2);
    decide(&right, 1);
    say_gone(2, &right); // before it had it
    assert_int_equal(ask(3), 1);
    for (int i = 0; i < 2; i++) {
        say_manifest(0, &wrong);
        say_holding(0, &wrong, INTER_HOLD_WHOLE);
        ask(1);
    }
    assert_int_equal(ask(8) & 4, 4);
    assert_int_equal(faults[INTER_FAULT_BEHIND], 0);
    say_manifest(2, &right);
    assert_int_equal(t->m.sha256[0], 1);
    // Where the right one is gone everywhere, it is.
    begin_of(4, 0, 1, 0, true);
    step(&(struct inter_event){.kind = INTER_EV_PEER_DOWN, .peer = 3});
    say_manifest(0, &wrong);
    decide(&right, 1);
    for (int i = 0; i < 12 && !faults[INTER_FAULT_BEHIND]; i++) {
        uint16_t asked_now = ask(2);
        if (asked_now & 1)
            say_manifest(0, &wrong);
        if (asked_now & 4)
            say_gone(2, &right);
        assert_true(i > 3 || !faults[INTER_FAULT_BEHIND]); // not before all were asked anew
    }
    assert_true(faults[INTER_FAULT_BEHIND] > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_goes_back, done),
                                       cmocka_unit_test_teardown(test_own_of_before, done),
                                       cmocka_unit_test_teardown(test_second_digest, done)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
