// SPDX-License-Identifier: Apache-2.0
// Which of several updates of one member a node holds, seeks and asks for. The owner may have lost
// its disk, returned to an older disk, or signed two updates (equivocation).
#include "agent/base/sha256.h"
#include "tests/unit/node_fixture.h"

static struct fragment *fragment(void) { return &node_find_job(node, job_id)->fragments[0]; }

// Lets seconds pass without a message. Returns the members that were asked for an update; this
// node's own bit stands for a read from its disk.
static uint16_t ask(int seconds) {
    uint16_t from = 0;
    for (int i = 0; i < 5 * seconds; i++) {
        now += NEB_S / 5;
        step(&(struct inter_event){.kind = INTER_EV_TICK});
        for (size_t k = 0; k < actions.n; k++) {
            const struct inter_action *a = &actions.list[k];
            bool want = a->kind == INTER_ACT_SEND && actions.bytes.p[a->at] == MSG_WANT;
            if (want || a->kind == INTER_ACT_SERVE)
                from |= (uint16_t)(1u << a->peer);
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

// Decides the round with these updates.
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

// An older update replaces a newer one that nobody holds any more: its owner may have voted for it
// before it lost its disk. It does not replace an update that somebody holds. Another digest under
// the same key replaces nothing.
static void test_older_replaces_newer(void **state) {
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
    say_manifest(0, &older); // this node believes that the owner holds the newer one
    assert_int_equal(t->m.key.attempt, 7);
    say_holding(0, &newer, INTER_HOLD_PART);
    say_holding(2, &newer, INTER_HOLD_COMPLETE);
    say_manifest(0, &older);
    assert_int_equal(t->m.key.attempt, 7);
    say_holding(2, &newer, INTER_HOLD_PART);
    say_manifest(0, &same);
    assert_int_equal(t->m.sha256[0], 2);
    say_manifest(0, &older);
    assert_true(t->m.key.attempt == 5 && t->m.sha256[0] == 1);
}

// A record lists an older update of this member. It is on this disk under its own key, or other
// members have it. Under another leader no vote for the older update binds, and the newer one
// counts again.
static void test_own_older_update(void **state) {
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
            // asks the other members, but does not read this disk again
            assert_int_equal(ask(4), 6);
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

// One of an equivocator's two updates was committed. A peer that sends the other update does not
// have the committed one. A peer that reported GONE is asked again. So this node is not behind.
static void test_second_digest(void **state) {
    (void)state;
    const struct inter_manifest right = update(3, 1, 1), wrong = update(3, 1, 2);
    begin_of(4, 0, 1, 0, true);
    struct fragment *g = fragment();
    const struct slot *t = &g->slots[3];
    step(&(struct inter_event){.kind = INTER_EV_PEER_DOWN, .peer = 3}); // member 3 is revoked
    say_manifest(0, &wrong);
    say_holding(0, &wrong, INTER_HOLD_COMPLETE);
    assert_true(t->known && t->m.sha256[0] == 2);
    decide(&right, 1);
    say_gone(2, &right); // sent before it had the update
    assert_int_equal(ask(3), 1);
    for (int i = 0; i < 2; i++) {
        say_manifest(0, &wrong);
        say_holding(0, &wrong, INTER_HOLD_COMPLETE);
        ask(1);
    }
    assert_int_equal(ask(8) & 4, 4);
    assert_int_equal(faults[INTER_FAULT_BEHIND], 0);
    say_manifest(2, &right);
    assert_int_equal(t->m.sha256[0], 1);
    // This node is behind once the committed update is gone everywhere.
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
        // not before all members were asked again
        assert_true(i > 3 || !faults[INTER_FAULT_BEHIND]);
    }
    assert_true(faults[INTER_FAULT_BEHIND] > 0);
}

static const struct inter_action *find(enum inter_action_kind kind) {
    for (size_t i = 0; i < actions.n; i++)
        if (actions.list[i].kind == kind)
            return &actions.list[i];
    return NULL;
}

static bool sends(enum message type, uint8_t to) {
    for (size_t i = 0; i < actions.n; i++)
        if (actions.list[i].kind == INTER_ACT_SEND && actions.list[i].peer == to &&
            actions.bytes.p[actions.list[i].at] == type)
            return true;
    return false;
}

static void lose(const struct inter_manifest *m) {
    step(&(struct inter_event){.kind = INTER_EV_BLOB_LOST, .key = m->key, .manifest = m});
}

static void chunk_of(uint8_t from, const struct inter_manifest *m) {
    uint8_t bytes[100] = {0}, sha[INTER_SHA_BYTES];
    struct neb_buf b = {0};
    neb_sha256(bytes, sizeof bytes, sha);
    neb_buf_u8(&b, MSG_CHUNK);
    inter_key_put(&b, &m->key);
    neb_buf_u32(&b, 0);
    neb_buf_add(&b, sha, 8);
    neb_buf_add(&b, bytes, sizeof bytes);
    step(&(struct inter_event){
        .kind = INTER_EV_MESSAGE, .peer = from, .bulk = true, .data = b.p, .len = b.len});
    neb_buf_free(&b);
}

// Member 1 of three, with round 1 open.
static void begin_second_round(void) {
    struct inter_record r = {.n = 1, .eta = 1, .n_plans = 3};
    memcpy(r.job, job_id, sizeof job_id);
    r.entries[0] = (struct inter_entry){.bytes = 100, .attempt = 5, .clip = 1};
    for (uint8_t m = 0; m < 3; m++)
        r.plans[m].interval = 10;
    begin_of(3, 0, 1, 0, true);
    inter_node_restore_commit(node, &r);
    assert_int_equal(fragment()->round, 1);
}

// An update of a past round is lost. The other members are asked one by one. A snapshot is needed
// only after all members that can be reached have reported GONE.
static void test_lost_of_past_round(void **state) {
    (void)state;
    const struct inter_manifest m = update(0, 5, 1);
    begin_second_round();
    lose(&m);
    assert_non_null(find(INTER_ACT_BLOB_OPEN));
    lose(&m); // repeated
    assert_null(find(INTER_ACT_BLOB_OPEN));
    assert_int_equal(ask(1), 4);
    say_gone(2, &m);
    assert_int_equal(ask(5), 1);
    assert_int_equal(faults[INTER_FAULT_BEHIND], 0);
    say_manifest(0, &m);
    assert_true(sends(MSG_STATE, 0));
    chunk_of(0, &m);
    assert_non_null(find(INTER_ACT_BLOB_WRITE));
    assert_non_null(find(INTER_ACT_BLOB_FINISH));
    assert_int_equal(ask(3), 0); // no request while the update is verified
    step(&(struct inter_event){.kind = INTER_EV_BLOB_DONE, .key = m.key, .ok = true});
    assert_non_null(find(INTER_ACT_FOUND));
    assert_int_equal(find(INTER_ACT_FOUND)->key.round, 0);
    assert_int_equal(ask(8), 0);
    // A chunk that was not requested is dropped: its round is over here.
    chunk_of(0, &m);
    assert_null(find(INTER_ACT_BLOB_WRITE));
    assert_int_equal(faults[INTER_FAULT_BEHIND], 0);
}

static void test_lost_everywhere(void **state) {
    (void)state;
    const struct inter_manifest m = update(0, 5, 1);
    begin_second_round();
    step(&(struct inter_event){.kind = INTER_EV_PEER_DOWN, .peer = 0});
    step(&(struct inter_event){.kind = INTER_EV_PEER_DOWN, .peer = 2});
    lose(&m);
    ask(30); // no member that may have it is connected
    assert_int_equal(faults[INTER_FAULT_BEHIND], 0);
    step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = 0});
    step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = 2});
    assert_int_equal(ask(4), 5);
    say_gone(0, &m);
    ask(8);
    assert_int_equal(faults[INTER_FAULT_BEHIND], 0);
    say_gone(2, &m);
    ask(8);
    assert_int_equal(faults[INTER_FAULT_BEHIND], 1);
    assert_int_equal(ask(3), 5); // both are asked again: one may have got the update meanwhile
}

// An update of the open round is lost. This copy no longer counts, and the update is fetched again.
static void test_lost_of_open_round(void **state) {
    (void)state;
    const struct inter_manifest m = update(0, 5, 1);
    begin_of(3, 0, 1, 0, true);
    say_manifest(0, &m);
    step(&(struct inter_event){.kind = INTER_EV_BLOB_DONE, .key = m.key, .ok = true, .norm = 1});
    const struct slot *t = &fragment()->slots[0];
    assert_true(t->whole && mset_bits(t->holders) == 3);
    lose(&m);
    assert_false(t->whole);
    assert_int_equal(mset_bits(t->holders), 1);
    assert_true(sends(MSG_STATE, 0) && sends(MSG_STATE, 2));
    assert_int_equal(ask(1), 1);
    chunk_of(0, &m);
    assert_non_null(find(INTER_ACT_BLOB_FINISH));
}

// An update of this member is lost. Its worker submits the update again. This completes a round
// that waits for it.
static void test_lost_own(void **state) {
    (void)state;
    begin_of(2, 0, 1, 0, true);
    submit(9);
    const struct slot *t = &fragment()->slots[1];
    const struct inter_manifest own = t->m;
    assert_true(t->whole);
    lose(&own);
    assert_false(t->whole);
    decide(&own, 1);
    fragment()->decision.n_plans = 2;
    for (int i = 0; i < 2; i++)
        fragment()->decision.plans[i].interval = 10;
    submit(9);
    assert_non_null(find(INTER_ACT_STORE_COMMIT));
    assert_int_equal(fragment()->round, 1);
}

static void say_part(uint8_t from, const struct inter_manifest *m) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_STATE);
    inter_key_put(&b, &m->key);
    neb_buf_add(&b, m->sha256, STATE_DIGEST);
    neb_buf_u64(&b, EPOCH);
    neb_buf_u8(&b, INTER_HOLD_PART);
    neb_buf_u32(&b, 1);
    neb_buf_u8(&b, 0); // its one chunk is missing
    neb_buf_u32(&b, 0);
    neb_buf_u8(&b, 0);
    message(from, &b);
}

static void say_ack(uint8_t from, const struct inter_manifest *m) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_ACK);
    inter_key_put(&b, &m->key);
    neb_buf_u32(&b, 0);
    message(from, &b);
}

// A peer acknowledged all chunks and asks for all of them again. So it got wrong bytes. They are
// read and hashed before they are resent.
static void test_verified_before_resent(void **state) {
    (void)state;
    begin_of(2, 0, 1, 0, true);
    submit(9);
    assert_null(find(INTER_ACT_SEND_CHUNK)); // nothing was heard of the peer: it gets a MANIFEST
    const struct inter_manifest own = fragment()->slots[1].m;
    say_part(0, &own);
    assert_null(find(INTER_ACT_VERIFY));
    assert_non_null(find(INTER_ACT_SEND_CHUNK));
    say_ack(0, &own);
    say_part(0, &own);
    assert_non_null(find(INTER_ACT_VERIFY));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_older_replaces_newer, done),
                                       cmocka_unit_test_teardown(test_lost_of_past_round, done),
                                       cmocka_unit_test_teardown(test_lost_everywhere, done),
                                       cmocka_unit_test_teardown(test_lost_of_open_round, done),
                                       cmocka_unit_test_teardown(test_lost_own, done),
                                       cmocka_unit_test_teardown(test_verified_before_resent, done),
                                       cmocka_unit_test_teardown(test_own_older_update, done),
                                       cmocka_unit_test_teardown(test_second_digest, done)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
