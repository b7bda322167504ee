// SPDX-License-Identifier: Apache-2.0
// Which members can raise a node's term, and which one it takes for its leader.
#include "inter/record/weights.h"
#include "tests/unit/node_fixture.h"

static void test_minority_claims_terms(void **state) {
    (void)state;
    begin(0, 0, true);
    pass(3, (const uint32_t[]){0, 0, 0, 0, 0}, all_follow);
    // One member claims ever higher terms. Then two members do. The rest are a majority.
    for (uint32_t i = 0; i < 8; i++)
        pass(2, (const uint32_t[]){0, 1u << 2 * i, 0, 0, 0},
             (const uint8_t[]){0, JOINED | LEADS, JOINED | FOLLOWS, JOINED | FOLLOWS,
                               JOINED | FOLLOWS});
    pass(20, (const uint32_t[]){0, 6, 6, 0, 0}, all_follow);
    assert_true(status().leads && status().term == 0);
    // Three of five members are above its term, so none of the leader's proposals can be accepted.
    // It does not ask at once, because the three report a leader.
    pass(2, (const uint32_t[]){0, 6, 6, 6, 0}, all_follow);
    assert_true(!status().leads && status().term == 0 && !asked);
}

// Some members are at higher terms and too many others are away: the leader asks for a higher term.
static void test_too_few(void **state) {
    (void)state;
    const uint32_t terms[] = {0, 61, 7, 0, 0};
    begin(0, 0, true);
    pass(3, (const uint32_t[]){0, 0, 0, 0, 0}, all_follow);
    pass(6, terms, (const uint8_t[]){0, JOINED, JOINED, JOINED | FOLLOWS, 0});
    assert_true(status().leads); // member 4 was here a moment ago
    pass(8, terms, (const uint8_t[]){0, JOINED, JOINED, JOINED, 0});
    assert_false(status().leads);
    assert_true(asked);
    // member 0's next term above 7: three of five are enough without the member at 61
    assert_int_equal(status().term, 10);
}

static void test_unfollowed(void **state) {
    (void)state;
    const uint32_t terms[MEMBERS] = {0};
    begin(0, 0, true);
    pass(3, terms, all_follow);
    pass(7, terms, (const uint8_t[]){0, JOINED | FOLLOWS, JOINED, JOINED, JOINED});
    assert_true(status().leads); // this may be a short outage
    pass(3, terms, (const uint8_t[]){0, JOINED | FOLLOWS, JOINED, JOINED, JOINED});
    assert_true(asked && status().term == MEMBERS);
    // With too few members to lead at all, this node need not give way to anybody.
    begin(0, 0, true);
    pass(3, terms, all_follow);
    pass(30, terms, (const uint8_t[]){0, JOINED, 0, 0, 0});
    assert_true(status().leads);
}

static void submit(uint32_t attempt) {
    struct inter_manifest m = {
        .bytes = 1 << 10, .chunk_bytes = INTER_CHUNK_MIN, .tokens = 1, .steps = 1, .step = 1};
    memcpy(m.key.job, job_id, sizeof job_id);
    m.key.member = node->jobs[0].c.self;
    m.key.attempt = attempt;
    step(&(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &m, .norm = 1});
}

// Submits the leader's update. It is the only one, so it is proposed at once.
static void propose(void) {
    submit(5);
    assert_true(node->jobs[0].fragments[0].voted);
}

// A repeated run may send less than is committed. The data cursor, from which the next incarnation
// starts, does not go back.
static void test_cursor_stays(void **state) {
    (void)state;
    for (uint64_t former = 0; former <= 50; former += 50) {
        begin_of(MEMBERS, 30, 0, 0, true);
        struct fragment *g = &node->jobs[0].fragments[0];
        g->cursors[0] = former;
        propose(); // its update ends at step 1
        assert_int_equal(g->vote.cursors[0], former ? former : 1);
    }
}

static void accept(uint8_t from) {
    static const uint8_t sig[INTER_SIG_BYTES];
    const struct fragment *g = &node->jobs[0].fragments[0];
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_ACCEPT);
    inter_accept_put_body(&b, &g->vote, g->vote_hash, EPOCH);
    neb_buf_add(&b, sig, sizeof sig);
    message(from, &b);
}

static uint32_t round_now(void) { return inter_node_round(node, job_id, 0); }

// A record needs a majority of accepts under known keys: three of five are enough, two are not.
static void test_unknown_keys(void **state) {
    (void)state;
    const uint8_t signers[] = {0, 1, 3, 4};
    begin_of(MEMBERS, 30, 0, 0, true);
    propose();
    struct inter_record r = node->jobs[0].fragments[0].vote;
    r.n_accepts = 0;
    for (size_t i = 0; i < sizeof signers; i++)
        r.accepts[r.n_accepts++] = (struct inter_accept){.member = signers[i], .epoch = EPOCH};
    for (unknown_key = 4; unknown_key >= 3; unknown_key--) {
        struct neb_buf b = {0};
        begin_of(MEMBERS, 30, 2, 0, true);
        inter_node_commit_message(&b, &r);
        message(1, &b);
        assert_true(round_now() == (unknown_key == 4) &&
                    faults[INTER_FAULT_DENIED] == !round_now());
        r.n_accepts = 3;
    }
    unknown_key = INTER_PEER_NONE;
}

// Some members did not hear the leader for a while, and promised a later term to Byzantine member
// 2. Member 2 says that it follows, and does not vote. Without their votes there is no majority. So
// once a proposal is old, the leader asks for a term above theirs.
static void test_captured_votes(void **state) {
    (void)state;
    const uint8_t three[MEMBERS] = {0, JOINED, JOINED | FOLLOWS},
                  five[] = {0, JOINED | FOLLOWS, JOINED | FOLLOWS, JOINED, JOINED};
    begin_of(3, 6, 0, 0, true);
    pass(3, (const uint32_t[MEMBERS]){0}, all_follow);
    // a slow round: there is nothing to vote on
    pass(60, (const uint32_t[MEMBERS]){0, 2, 0}, three);
    propose();
    pass(7, (const uint32_t[MEMBERS]){0, 2, 0}, three);
    assert_true(status().leads && !asked);
    pass(2, (const uint32_t[MEMBERS]){0, 2, 0}, three);
    assert_true(!status().leads && asked && status().term == 3);
    promise(1, TERM_PROMISE, 3);
    assert_true(status().leads);
    accept(1);
    assert_int_equal(round_now(), 1);

    begin_of(5, 30, 0, 0, true);
    pass(3, (const uint32_t[]){0, 0, 0, 0, 0}, all_follow);
    propose();
    accept(1);
    pass(7, (const uint32_t[]){0, 0, 0, 7, 7}, five);
    assert_true(status().leads && !asked);
    pass(2, (const uint32_t[]){0, 0, 0, 7, 7}, five);
    assert_true(!status().leads && asked && status().term == 10);
    promise(3, TERM_PROMISE, 10); // the captured members
    promise(4, TERM_PROMISE, 10);
    assert_true(status().leads);
    accept(3);
    accept(4);
    assert_int_equal(round_now(), 1);
}

// A leader stays if no member is bound to a later term, if the bound members follow or are too few,
// or if it gets its majority.
static void test_leader_stays(void **state) {
    (void)state;
    const uint8_t bound[] = {0, JOINED, JOINED | FOLLOWS, JOINED | FOLLOWS, JOINED | FOLLOWS};
    begin_of(3, 6, 0, 0, true);
    pass(3, (const uint32_t[MEMBERS]){0}, all_follow);
    propose();
    pass(60, (const uint32_t[MEMBERS]){0}, (const uint8_t[MEMBERS]){0, JOINED | FOLLOWS});
    pass(60, (const uint32_t[MEMBERS]){0, 2}, all_follow);
    assert_true(status().leads && !asked);
    accept(1);
    assert_int_equal(round_now(), 1);

    begin_of(5, 30, 0, 0, true);
    pass(3, (const uint32_t[]){0, 0, 0, 0, 0}, all_follow);
    propose();
    pass(30, (const uint32_t[]){0, 6, 0, 0, 0}, bound);
    accept(2);
    accept(3);
    pass(30, (const uint32_t[]){0, 6, 0, 0, 0}, bound);
    assert_true(status().leads && !asked && round_now() == 1);
}

// A data member without a worker (no hosts or no trainer yet) proposes nothing and blocks no
// election.
static void test_without_a_worker(void **state) {
    (void)state;
    const uint32_t terms[MEMBERS] = {0};
    const uint8_t unled[] = {0, JOINED, JOINED, JOINED, JOINED};
    begin(0, 0, true);
    node->jobs[0].judges = false;
    pass(30, terms, unled);
    assert_true(status().leader == -1 && !status().leads && !asked);
    elect(1, 1);
    assert_true(promised && status().term == 1);
    begin(0, 0, true); // the worker attaches before anybody has asked
    node->jobs[0].judges = false;
    pass(30, terms, unled);
    inter_node_job_judges(node, job_id);
    pass(1, terms, unled);
    assert_true(status().leads);

    begin(1, 0, true);
    node->jobs[0].judges = false;
    pass(30, terms, (const uint8_t[]){JOINED, 0, JOINED, JOINED, JOINED});
    assert_false(asked);
    inter_node_job_judges(node, job_id);
    pass(1, terms, (const uint8_t[]){JOINED, 0, JOINED, JOINED, JOINED});
    assert_true(asked && status().term == 1);

    // A witness has no worker. It leaves the term to data members with workers until there is
    // something to lead. Then it still lets them go first.
    const uint8_t others[] = {JOINED, JOINED, JOINED, JOINED, 0};
    begin_of(MEMBERS, 1 << 4, 4, 0, true);
    pass(60, terms, others);
    assert_true(!asked && status().term == 0);
    elect(1, 1);
    assert_true(promised && status().term == 1);
    begin_of(MEMBERS, 1 << 4, 4, 0, true);
    pass(60, terms, others);
    node->jobs[0].fragments[0].slots[1].known = true;
    pass(9, terms, others);
    assert_false(asked);
    pass(9, terms, others);
    assert_true(asked && status().term == 4);
}

// A record that may have been accepted rejects an update that is no longer here, so this node
// cannot check the rejection. A data member leads for half a minute, because others may bring the
// update. A witness leads for some seconds. Then another member leads.
static void test_unverifiable_rejection(void **state) {
    (void)state;
    enum { TERM = 6 };
    const uint32_t terms[] = {TERM, TERM, TERM, TERM, TERM};
    const uint8_t follow[] = {JOINED | FOLLOWS, 0, JOINED | FOLLOWS, JOINED | FOLLOWS,
                              JOINED | FOLLOWS};
    for (int witness = 0; witness < 2; witness++) {
        begin_of(MEMBERS, witness ? 2 : 0, 1, TERM, true);
        struct job *j = &node->jobs[0];
        struct fragment *g = &j->fragments[0];
        pass(3, terms, follow);
        j->leads = true;
        j->leader = 1;
        submit(9);
        g->best = (struct inter_record){
            .n = 1, .eta = 1, .leader = 0, .n_plans = MEMBERS, .flags = INTER_MERGE};
        memcpy(g->best.job, job_id, sizeof job_id);
        g->best.entries[0] = (struct inter_entry){.member = witness ? 2 : 1,
                                                  .attempt = 5,
                                                  .bytes = 100,
                                                  .verdict = INTER_REJECTED,
                                                  .clip = 1};
        inter_weights_fill(&g->best, g->absences);
        g->has_best = true;
        g->slots[2].known = witness;
        int least = witness ? 6 : 30;
        pass(least, terms, follow);
        assert_true(status().leads && g->has_best && !g->voted);
        pass(4, terms, follow);
        assert_true(!status().leads && g->has_best && !asked);
        pass(3, terms, (const uint8_t[]){JOINED, 0, JOINED, JOINED, JOINED});
        assert_true(!asked && status().term == TERM);
        elect(3, TERM + 2);
        assert_true(promised && status().term == TERM + 2);
    }
}

// Members voted for a record in two terms. Its promises name one of the two. The promises of that
// term are added.
static void test_repeats_with_promises(void **state) {
    (void)state;
    for (uint32_t told = 2; told <= 3; told++) {
        begin(2, 5, true);
        struct job *j = &node->jobs[0];
        struct fragment *g = &j->fragments[0];
        struct inter_record r = {.term = 5, .eta = 1, .n_plans = MEMBERS};
        g->voted = g->has_best = true;
        g->vote = g->best = r;
        inter_record_hash(&r, g->vote_hash);
        g->vote.term = 2;
        g->best.term = 3;
        g->vote.n_promises = g->best.n_promises = 1;
        g->vote.promises[0] = (struct inter_promise){.member = 1, .term = 2};
        g->best.promises[0] = (struct inter_promise){.member = 1, .term = 3};
        g->promised = mset_from_bits(7);
        for (uint8_t m = 0; m < 3; m++)
            g->promises[m] = (struct inter_promise){.member = m, .term = 5};
        g->promises[2].voted = true;
        g->promises[2].vote_term = told;
        memcpy(g->promises[2].vote_hash, g->vote_hash, sizeof g->vote_hash);
        node_add_promises(j, g, &r);
        assert_int_equal(r.n_promises, 4);
        assert_int_equal(r.promises[3].term, told);
    }
}

// ---- which leader is believed ----

static void test_false_leader(void **state) {
    (void)state;
    begin(1, 0, true);
    const uint32_t terms[] = {0, 0, 502, 0, 0};
    const uint8_t flags[] = {JOINED | LEADS | FOLLOWS, 0, JOINED | LEADS, JOINED | FOLLOWS,
                             JOINED | FOLLOWS};
    pass(10, terms, flags);
    assert_true(status().leader == 0 && status().term == 0 && !asked);
    // Once the leader is gone, most members hear no leader. Then the false leader cannot keep them
    // from electing one.
    pass(9, terms, (const uint8_t[]){0, 0, JOINED | LEADS, JOINED, JOINED});
    assert_true(asked && status().term == 1);
}

// This member promised a term to 2, which claims to lead, but most others stay in another term.
static void test_false_claim_of_term(void **state) {
    (void)state;
    const uint8_t flags[] = {JOINED | LEADS | FOLLOWS, 0, JOINED | LEADS | FOLLOWS,
                             JOINED | FOLLOWS, 0};
    begin_of(4, 0, 1, 2, true);
    pass(7, (const uint32_t[MEMBERS]){0, 0, 2, 0}, flags);
    elect(0, 4);
    assert_int_equal(status().term, 2); // the other members may not have promised yet
    pass(3, (const uint32_t[MEMBERS]){0, 0, 2, 0}, flags);
    assert_false(asked); // the other members hear another leader
    elect(0, 4);
    assert_true(status().term == 4 && promised == 1);
    pass(2, (const uint32_t[MEMBERS]){4, 0, 2, 0}, flags);
    elect(3, 7); // the term is a new one, and its leader is heard
    assert_int_equal(status().term, 4);
    // With member 3 the other leader has a majority. A single request does not undo that.
    begin_of(4, 0, 1, 2, true);
    pass(30, (const uint32_t[MEMBERS]){0, 0, 2, 2}, flags);
    elect(0, 4);
    assert_int_equal(status().term, 2);
}

// A member that does not hear the leader does not ask for a term while most other members hear a
// leader.
static void test_deaf_member(void **state) {
    (void)state;
    begin(1, 0, true);
    pass(60, (const uint32_t[]){0, 0, 0, 0, 0},
         (const uint8_t[]){0, 0, JOINED | FOLLOWS, JOINED | FOLLOWS, JOINED});
    assert_true(!asked && status().term == 0);
}

// The leader asks members that were away until they promise. It does not ask members at a higher
// term.
static void test_asks_late_members(void **state) {
    (void)state;
    begin(0, 6, true);
    pass(9, (const uint32_t[]){0, 6, 6, 6, 0}, (const uint8_t[]){0, JOINED, JOINED, JOINED, 0});
    assert_int_equal(status().term, 10);
    promise(1, TERM_PROMISE, 10);
    promise(2, TERM_PROMISE, 11); // for another term
    assert_false(status().leads);
    promise(2, TERM_PROMISE, 10);
    assert_true(status().leads);
    asked = 0;
    heartbeat(1, 10, JOINED | FOLLOWS);
    heartbeat(4, 12, JOINED);
    heartbeat(4, 0, 0); // its ledger is new, so it collects promises first
    assert_int_equal(asked, 0);
    heartbeat(3, 6, JOINED);
    heartbeat(3, 6, JOINED);
    assert_int_equal(asked, 2);
}

// ---- promises ----

static void test_promises(void **state) {
    (void)state;
    const uint32_t none[MEMBERS] = {0}, last = INTER_TERMS_AHEAD + 4; // last: the clock says 1970
    begin(1, 0, true);
    pass(1, none, (const uint8_t[]){JOINED | LEADS, 0, JOINED, JOINED, JOINED});
    elect(2, 2);
    assert_int_equal(status().term, 0); // it hears the leader
    // it does not ask for a term yet
    pass(3, none, (const uint8_t[]){0, 0, JOINED, JOINED, JOINED});
    asked = promised = 0;
    elect(2, last - last % MEMBERS + 7); // the term is above the last one allowed
    assert_true(status().term == 0 && !promised && !faults[INTER_FAULT_MALFORMED]);
    elect(2, INTER_TERM_MAX - INTER_TERM_MAX % MEMBERS - 3);
    elect(2, UINT32_MAX - UINT32_MAX % MEMBERS - 3);
    assert_int_equal(faults[INTER_FAULT_MALFORMED], 2);
    heartbeat(2, UINT32_MAX, JOINED);
    heartbeat(2, INTER_TERM_MAX, JOINED);
    promise(2, TERM_PROMISE, INTER_TERM_MAX + 1);
    assert_int_equal(faults[INTER_FAULT_MALFORMED], 5);
    elect(2, 7);
    assert_true(status().term == 7 && promised == 1);
    elect(2, 12); // member 2 has not used term 7 yet
    assert_int_equal(status().term, 7);
    elect(3, 13);
    assert_int_equal(status().term, 13);
    now += 4 * NEB_S;
    elect(2, 17);
    assert_int_equal(status().term, 17);
    elect(2, 7); // terms never fall
    assert_int_equal(status().term, 17);
}

// A member without memory adopts the term that a majority reports.
static void test_recovery(void **state) {
    (void)state;
    const uint32_t none[MEMBERS] = {0};
    begin(1, 0, false);
    pass(2, none, (const uint8_t[]){4, 0, 4, 4, 4}); // they know a previous disk of this member
    assert_true(status().lost && asked);
    promise(0, RECOVERY_PROMISE, 20);
    promise(2, RECOVERY_PROMISE, INTER_TERM_MAX);
    assert_int_equal(faults[INTER_FAULT_MALFORMED], 1);
    promise(2, RECOVERY_PROMISE, INTER_TERMS_AHEAD + 1000); // too far ahead: not counted
    promise(3, RECOVERY_PROMISE, 21);
    promise(4, RECOVERY_PROMISE, 20);
    pass(2, none, (const uint8_t[]){JOINED, 0, JOINED, JOINED, JOINED});
    assert_true(!status().votes && status().term == 0);
    promise(2, RECOVERY_PROMISE, 22);
    pass(1, none, (const uint8_t[]){JOINED, 0, JOINED, JOINED, JOINED});
    assert_true(status().votes && status().term == 22);
}

// A promise may name a round later than any record shown. This is only a claim. It does not count,
// and it blocks nobody.
static void test_promise_of_later_round(void **state) {
    (void)state;
    const uint8_t flags[] = {0, JOINED, JOINED | LEADS, JOINED, 0};
    begin(0, 0, true);
    pass(3, (const uint32_t[MEMBERS]){0}, all_follow);
    pass(10, (const uint32_t[]){0, 1, 1, 1, 0}, flags);
    assert_int_equal(status().term, 5);
    promise_at(2, TERM_PROMISE, 5, 1000000000);
    promise(1, TERM_PROMISE, 5);
    assert_false(status().leads);
    promise(3, TERM_PROMISE, 5);
    assert_true(status().leads);
    assert_int_equal(node->jobs[0].fragments[0].floor, 0);
    // The promise counts once the record before its round is shown.
    begin(0, 0, true);
    pass(3, (const uint32_t[MEMBERS]){0}, all_follow);
    pass(10, (const uint32_t[]){0, 1, 1, 1, 0}, flags);
    promise_at(2, TERM_PROMISE, 5, 8);
    show_record(2, 7);
    promise_at(2, TERM_PROMISE, 5, 8); // the promise is repeated, as the leader asks each second
    promise(1, TERM_PROMISE, 5);
    assert_true(status().leads);
    assert_int_equal(node->jobs[0].fragments[0].floor, 8);
}

// A claim of this kind keeps a member without memory waiting until its author is removed. So does a
// round that only the author had.
static void test_recovery_despite_claims(void **state) {
    (void)state;
    const uint32_t none[MEMBERS] = {0};
    const uint8_t flags[] = {JOINED, 0, JOINED, JOINED, JOINED};
    for (int proven = 0; proven < 2; proven++) {
        begin(1, 0, false);
        pass(2, none, (const uint8_t[]){4, 0, 4, 4, 4}); // they know a previous disk of this member
        if (proven)
            show_record(2, 7);
        promise_at(2, RECOVERY_PROMISE, 3, proven ? 8 : 1000000000);
        for (uint8_t m = 0; m < MEMBERS; m++)
            if (m != 1 && m != 2)
                promise(m, RECOVERY_PROMISE, 3);
        pass(4, none, flags);
        assert_false(status().votes);
        inter_node_job_revoked(node, job_id, mset_from_bits(1 << 2));
        pass(1, none, flags);
        for (uint8_t m = 0; m < MEMBERS; m++)
            if (m != 1 && m != 2)
                promise(m, RECOVERY_PROMISE, 3);
        pass(1, none, flags);
        assert_true(status().votes);
    }
}

// A false report says that the lost disk had accepted a record with an update that was sent after
// the loss. That record is not accepted again. A record with an older update is.
static void test_false_vote_of_lost_disk(void **state) {
    (void)state;
    static const uint8_t sig[INTER_SIG_BYTES];
    const uint32_t none[MEMBERS] = {0}, attempts[] = {5, 9};
    for (int before = 0; before < 2; before++) {
        begin_of(MEMBERS, 30, 0, 0, true);
        propose();
        struct inter_record r = node->jobs[0].fragments[0].vote;
        r.entries[0].member = 1; // the starting member's update; the leader, 0, is a witness
        r.cursors[1] = r.cursors[0];
        r.cursors[0] = 0;
        begin_of(MEMBERS, 29, 1, 0, false);
        inter_weights_fill(&r, node->jobs[0].fragments[0].absences);
        pass(2, none, (const uint8_t[]){4, 0, 4, 4, 4}); // they know a previous disk of this member
        submit(attempts[before]);
        for (uint8_t m = 0; m < MEMBERS; m++) {
            struct neb_buf b = {0};
            if (m == 1)
                continue;
            neb_buf_u8(&b, MSG_PROMISE);
            neb_buf_add(&b, job_id, sizeof job_id);
            neb_buf_u8(&b, RECOVERY_PROMISE);
            neb_buf_u32(&b, 0);
            neb_buf_u64(&b, EPOCH);
            neb_buf_u32(&b, 0); // fragment
            neb_buf_u32(&b, 0); // round
            neb_buf_u8(&b, m == 2);
            if (m == 2)
                inter_record_put(&b, &r);
            neb_buf_add(&b, sig, sizeof sig);
            message(m, &b);
        }
        assert_int_equal(faults[INTER_FAULT_DENIED] + faults[INTER_FAULT_MALFORMED], 0);
        pass(1, none, (const uint8_t[]){JOINED, 0, JOINED, JOINED, JOINED});
        const struct fragment *g = &node->jobs[0].fragments[0];
        assert_true(status().votes && g->voted == before);
    }
}

// An answer costs a signature per fragment, and a question only thirty bytes. So a flood of
// questions gets few answers.
static void test_question_flood(void **state) {
    (void)state;
    begin(0, 0, true);
    for (int i = 0; i < 1000; i++) {
        elect_of(1, RECOVERY_PROMISE, 0);
        elect_of(2, RECOVERY_PROMISE, 0);
        now += 2 * NEB_MS;
    }
    assert_int_equal(promised, 6);
}

// A new ledger is made under a slow clock. The other members know this member by a later epoch, and
// drop messages of an earlier one.
static void test_clock_behind(void **state) {
    (void)state;
    const uint64_t former = 1800000000ull * NEB_S;
    begin(1, 0, false);
    struct job *j = node_find_job(node, job_id);
    heartbeat_known(0, 0, JOINED, 0, former);
    heartbeat_known(2, 0, JOINED, 0, former + 5);
    heartbeat_known(3, 0, JOINED, 0, former);
    heartbeat_known(4, 0, JOINED, 0, EPOCH);
    assert_int_equal(j->standing.epoch, EPOCH); // up to three reports may be false
    heartbeat_known(4, 0, JOINED, 0, UINT64_MAX);
    assert_int_equal(j->standing.epoch, EPOCH);
    heartbeat_known(4, 0, JOINED, 0, former);
    assert_true(status().lost && j->standing.epoch > former + 5);
    assert_true(status().attempts > inter_attempt_first(former + 5));
    assert_int_equal(actions.list[0].kind, INTER_ACT_STORE_STANDING);
    assert_int_equal(actions.list[0].standing.epoch, j->standing.epoch);
    begin(1, 0, true); // this ledger has a history
    for (uint8_t m = 0; m < MEMBERS; m++)
        if (m != 1)
            heartbeat_known(m, 0, JOINED, 0, former);
    assert_int_equal(node_find_job(node, job_id)->standing.epoch, EPOCH);
}

// No term is left. Nothing is stored, no number wraps, and one fault is reported.
static void test_no_term(void **state) {
    (void)state;
    const uint32_t terms[MEMBERS] = {0};
    const uint8_t lost[] = {JOINED, 0, JOINED, JOINED, JOINED};
    const uint32_t ends[] = {INTER_TERM_MAX, INTER_TERMS_AHEAD + 4};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        begin(1, ends[i], true);
        pass(9, terms, lost);
        assert_false(faults[INTER_FAULT_TERMS]);
        pass(60, terms, lost);
        assert_int_equal(faults[INTER_FAULT_TERMS], 1);
        assert_true(status().term == ends[i] && !asked);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_minority_claims_terms),
                                       cmocka_unit_test(test_too_few),
                                       cmocka_unit_test(test_unfollowed),
                                       cmocka_unit_test(test_unknown_keys),
                                       cmocka_unit_test(test_captured_votes),
                                       cmocka_unit_test(test_leader_stays),
                                       cmocka_unit_test(test_without_a_worker),
                                       cmocka_unit_test(test_false_leader),
                                       cmocka_unit_test(test_false_claim_of_term),
                                       cmocka_unit_test(test_deaf_member),
                                       cmocka_unit_test(test_asks_late_members),
                                       cmocka_unit_test(test_promises),
                                       cmocka_unit_test(test_recovery),
                                       cmocka_unit_test(test_promise_of_later_round),
                                       cmocka_unit_test(test_recovery_despite_claims),
                                       cmocka_unit_test(test_question_flood),
                                       cmocka_unit_test(test_clock_behind),
                                       cmocka_unit_test(test_no_term),
                                       cmocka_unit_test(test_false_vote_of_lost_disk),
                                       cmocka_unit_test(test_unverifiable_rejection),
                                       cmocka_unit_test(test_cursor_stays),
                                       cmocka_unit_test(test_repeats_with_promises)};
    return cmocka_run_group_tests(tests, NULL, done);
}
