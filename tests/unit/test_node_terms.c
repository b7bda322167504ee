// SPDX-License-Identifier: Apache-2.0
// Who may move a node's term, and whom it takes for its leader.
#include "inter/record/weights.h"
#include "tests/unit/node_fixture.h"

static void test_one_voice(void **state) {
    (void)state;
    begin(0, 0, true);
    pass(3, (const uint32_t[]){0, 0, 0, 0, 0}, all_follow);
    // One claims more and more, then two; the rest are a majority.
    for (uint32_t i = 0; i < 8; i++)
        pass(2, (const uint32_t[]){0, 1u << 2 * i, 0, 0, 0},
             (const uint8_t[]){0, JOINED | LEADS, JOINED | FOLLOWS, JOINED | FOLLOWS,
                               JOINED | FOLLOWS});
    pass(20, (const uint32_t[]){0, 6, 6, 0, 0}, all_follow);
    assert_true(status().leads && status().term == 0);
    // Three of five: nothing that it proposes can be accepted. It does not ask at once: they hear the other one.
    pass(2, (const uint32_t[]){0, 6, 6, 6, 0}, all_follow);
    assert_true(!status().leads && status().term == 0 && !asked);
}

// Some are beyond, and of the others too many are not there: the leader asks for a term above.
static void test_too_few(void **state) {
    (void)state;
    const uint32_t terms[] = {0, 61, 7, 0, 0};
    begin(0, 0, true);
    pass(3, (const uint32_t[]){0, 0, 0, 0, 0}, all_follow);
    pass(6, terms, (const uint8_t[]){0, JOINED, JOINED, JOINED | FOLLOWS, 0});
    assert_true(status().leads); // 4 was just here
    pass(8, terms, (const uint8_t[]){0, JOINED, JOINED, JOINED, 0});
    assert_false(status().leads);
    assert_true(asked);
    assert_int_equal(status().term, 10); // 0's next beyond 7: 61 is not needed for three of five
}

static void test_unfollowed(void **state) {
    (void)state;
    const uint32_t terms[MEMBERS] = {0};
    begin(0, 0, true);
    pass(3, terms, all_follow);
    pass(7, terms, (const uint8_t[]){0, JOINED | FOLLOWS, JOINED, JOINED, JOINED});
    assert_true(status().leads); // it may be a hiccup
    pass(3, terms, (const uint8_t[]){0, JOINED | FOLLOWS, JOINED, JOINED, JOINED});
    assert_true(asked && status().term == MEMBERS);
    // With too few to lead at all there is nobody to give way to.
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

// The leader's update, the only one there is: it is proposed at once.
static void propose(void) {
    submit(5);
    assert_true(node->jobs[0].fragments[0].voted);
}

// A run that is repeated may send less than what is committed of it: the data cursor, behind which another life goes on, does not go back.
static void test_cursor_stays(void **state) {
    (void)state;
    for (uint64_t former = 0; former <= 50; former += 50) {
        begin_of(MEMBERS, 30, 0, 0, true);
        struct fragment *g = &node->jobs[0].fragments[0];
        g->cursors[0] = former;
        propose(); // of an update behind step 1
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

// Of a record with all accepts this member, whose disk is new, can check those of two: a majority. Of one more it knows no key any more.
static void test_key_of_before(void **state) {
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

// A byzantine, 2, was promised a later term by some who did not hear the leader for a while. It tells the leader that it follows, and does not
// vote: with theirs captured there is no majority. Once a proposal is that old, a term above theirs.
static void test_captured_votes(void **state) {
    (void)state;
    const uint8_t three[MEMBERS] = {0, JOINED, JOINED | FOLLOWS},
                  five[] = {0, JOINED | FOLLOWS, JOINED | FOLLOWS, JOINED, JOINED};
    begin_of(3, 6, 0, 0, true);
    pass(3, (const uint32_t[MEMBERS]){0}, all_follow);
    pass(60, (const uint32_t[MEMBERS]){0, 2, 0}, three); // a slow round: nothing is to be voted for
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
    promise(3, TERM_PROMISE, 10); // those that were freed
    promise(4, TERM_PROMISE, 10);
    assert_true(status().leads);
    accept(3);
    accept(4);
    assert_int_equal(round_now(), 1);
}

// It leads on where nobody is bound elsewhere, where those that are follow somebody, or would not be enough, and where it gets its majority.
static void test_not_in_vain(void **state) {
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

// A data member whose worker never came (it waits for hosts, or for a trainer) proposes nothing, and keeps nobody from leading.
static void test_without_worker(void **state) {
    (void)state;
    const uint32_t terms[MEMBERS] = {0};
    const uint8_t unled[] = {0, JOINED, JOINED, JOINED, JOINED};
    begin(0, 0, true);
    node->jobs[0].judges = false;
    pass(30, terms, unled);
    assert_true(status().leader == -1 && !status().leads && !asked);
    elect(1, 1);
    assert_true(promised && status().term == 1);
    begin(0, 0, true); // it comes before anybody has asked
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

    // A witness has none to wait for: it leaves the term to those that have until there is something to lead, and then to them first.
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

// What somebody may have accepted rejects an own update of before, of which nothing is here any more: this node cannot tell whether it did right
// to. A data member leads for half a minute, as others may bring it, a witness for some seconds; then others have their turn.
static void test_cannot_tell(void **state) {
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

// What it repeats was voted for in two terms, and its promises tell of one of them: behind these come the promises of that one.
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
        g->promised = 7;
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

// ---- who is believed ------------------------------------------------------------------------------------------

static void test_false_leader(void **state) {
    (void)state;
    begin(1, 0, true);
    const uint32_t terms[] = {0, 0, 502, 0, 0};
    const uint8_t flags[] = {JOINED | LEADS | FOLLOWS, 0, JOINED | LEADS, JOINED | FOLLOWS,
                             JOINED | FOLLOWS};
    pass(10, terms, flags);
    assert_true(status().leader == 0 && status().term == 0 && !asked);
    // Nor does it keep others from electing when the leader is gone: most hear none.
    pass(9, terms, (const uint8_t[]){0, 0, JOINED | LEADS, JOINED, JOINED});
    assert_true(asked && status().term == 1);
}

// 2 was promised its term by this member, and says that it leads: it does not, where most others stay in another one.
static void test_unled(void **state) {
    (void)state;
    const uint8_t flags[] = {JOINED | LEADS | FOLLOWS, 0, JOINED | LEADS | FOLLOWS,
                             JOINED | FOLLOWS, 0};
    begin_of(4, 0, 1, 2, true);
    pass(7, (const uint32_t[MEMBERS]){0, 0, 2, 0}, flags);
    elect(0, 4);
    assert_int_equal(status().term, 2); // they may not have promised yet
    pass(3, (const uint32_t[MEMBERS]){0, 0, 2, 0}, flags);
    assert_false(asked); // they hear the other one
    elect(0, 4);
    assert_true(status().term == 4 && promised == 1);
    pass(2, (const uint32_t[MEMBERS]){4, 0, 2, 0}, flags);
    elect(3, 7); // the term is another one, and its leader heard
    assert_int_equal(status().term, 4);
    // With the vote of 3 it has a majority; one voice does not undo that.
    begin_of(4, 0, 1, 2, true);
    pass(30, (const uint32_t[MEMBERS]){0, 0, 2, 2}, flags);
    elect(0, 4);
    assert_int_equal(status().term, 2);
}

// Whoever does not hear the leader asks for nothing while most others do.
static void test_alone(void **state) {
    (void)state;
    begin(1, 0, true);
    pass(60, (const uint32_t[]){0, 0, 0, 0, 0},
         (const uint8_t[]){0, 0, JOINED | FOLLOWS, JOINED | FOLLOWS, JOINED});
    assert_true(!asked && status().term == 0);
}

// Whoever was away while the others promised is asked by the leader, until it has promised; not who is beyond.
static void test_left_out(void **state) {
    (void)state;
    begin(0, 6, true);
    pass(9, (const uint32_t[]){0, 6, 6, 6, 0}, (const uint8_t[]){0, JOINED, JOINED, JOINED, 0});
    assert_int_equal(status().term, 10);
    promise(1, TERM_PROMISE, 10);
    promise(2, TERM_PROMISE, 11); // no promise of this term
    assert_false(status().leads);
    promise(2, TERM_PROMISE, 10);
    assert_true(status().leads);
    asked = 0;
    heartbeat(1, 10, JOINED | FOLLOWS);
    heartbeat(4, 12, JOINED);
    heartbeat(4, 0, 0); // its ledger is new: it collects first
    assert_int_equal(asked, 0);
    heartbeat(3, 6, JOINED);
    heartbeat(3, 6, JOINED);
    assert_int_equal(asked, 2);
}

// ---- promises -------------------------------------------------------------------------------------------------

static void test_promises(void **state) {
    (void)state;
    const uint32_t none[MEMBERS] = {0}, last = INTER_TERMS_AHEAD + 4; // the clock says 1970
    begin(1, 0, true);
    pass(1, none, (const uint8_t[]){JOINED | LEADS, 0, JOINED, JOINED, JOINED});
    elect(2, 2);
    assert_int_equal(status().term, 0);                             // it hears the leader
    pass(3, none, (const uint8_t[]){0, 0, JOINED, JOINED, JOINED}); // and does not yet ask itself
    asked = promised = 0;
    elect(2, last - last % MEMBERS + 7); // beyond the last
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
    elect(2, 12); // it has made nothing of that one yet
    assert_int_equal(status().term, 7);
    elect(3, 13);
    assert_int_equal(status().term, 13);
    now += 4 * NEB_S;
    elect(2, 17);
    assert_int_equal(status().term, 17);
    elect(2, 7); // terms do not fall
    assert_int_equal(status().term, 17);
}

// What a member without a memory is told is its own from then on.
static void test_recovery(void **state) {
    (void)state;
    const uint32_t none[MEMBERS] = {0};
    begin(1, 0, false);
    pass(2, none, (const uint8_t[]){4, 0, 4, 4, 4}); // they know a former disk
    assert_true(status().lost && asked);
    promise(0, RECOVERY_PROMISE, 20);
    promise(2, RECOVERY_PROMISE, INTER_TERM_MAX);
    assert_int_equal(faults[INTER_FAULT_MALFORMED], 1);
    promise(2, RECOVERY_PROMISE, INTER_TERMS_AHEAD + 1000); // nor this
    promise(3, RECOVERY_PROMISE, 21);
    promise(4, RECOVERY_PROMISE, 20);
    pass(2, none, (const uint8_t[]){JOINED, 0, JOINED, JOINED, JOINED});
    assert_true(!status().votes && status().term == 0);
    promise(2, RECOVERY_PROMISE, 22);
    pass(1, none, (const uint8_t[]){JOINED, 0, JOINED, JOINED, JOINED});
    assert_true(status().votes && status().term == 22);
}

// A promise that tells of a later round than records have shown is a word: it does not count, and keeps nobody from leading.
static void test_far_promise(void **state) {
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
    // One that shows the record before its round counts.
    begin(0, 0, true);
    pass(3, (const uint32_t[MEMBERS]){0}, all_follow);
    pass(10, (const uint32_t[]){0, 1, 1, 1, 0}, flags);
    promise_at(2, TERM_PROMISE, 5, 8);
    show_record(2, 7);
    promise_at(2, TERM_PROMISE, 5, 8); // it is asked again each second
    promise(1, TERM_PROMISE, 5);
    assert_true(status().leads);
    assert_int_equal(node->jobs[0].fragments[0].floor, 8);
}

// Nor does it keep a member without a memory waiting once its author is no member any more; nor does a round that only that one had.
static void test_far_recovery(void **state) {
    (void)state;
    const uint32_t none[MEMBERS] = {0};
    const uint8_t flags[] = {JOINED, 0, JOINED, JOINED, JOINED};
    for (int proven = 0; proven < 2; proven++) {
        begin(1, 0, false);
        pass(2, none, (const uint8_t[]){4, 0, 4, 4, 4}); // they know a former disk
        if (proven)
            show_record(2, 7);
        promise_at(2, RECOVERY_PROMISE, 3, proven ? 8 : 1000000000);
        for (uint8_t m = 0; m < MEMBERS; m++)
            if (m != 1 && m != 2)
                promise(m, RECOVERY_PROMISE, 3);
        pass(4, none, flags);
        assert_false(status().votes);
        inter_node_job_revoked(node, job_id, 1 << 2);
        pass(1, none, flags);
        for (uint8_t m = 0; m < MEMBERS; m++)
            if (m != 1 && m != 2)
                promise(m, RECOVERY_PROMISE, 3);
        pass(1, none, flags);
        assert_true(status().votes);
    }
}

// That a lost disk had accepted a record which lists what was sent since it was lost is a lie: it is not accepted again. One with an
// update of before is.
static void test_vote_of_before(void **state) {
    (void)state;
    static const uint8_t sig[INTER_SIG_BYTES];
    const uint32_t none[MEMBERS] = {0}, attempts[] = {5, 9};
    for (int before = 0; before < 2; before++) {
        begin_of(MEMBERS, 30, 0, 0, true);
        propose();
        struct inter_record r = node->jobs[0].fragments[0].vote;
        r.entries[0].member = 1; // of the one that starts, and 0 is a witness that leads
        r.cursors[1] = r.cursors[0];
        r.cursors[0] = 0;
        begin_of(MEMBERS, 29, 1, 0, false);
        inter_weights_fill(&r, node->jobs[0].fragments[0].absences);
        pass(2, none, (const uint8_t[]){4, 0, 4, 4, 4}); // they know a former disk
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

// An answer is a signature for each fragment, the question thirty bytes: who asks without end is not answered each time.
static void test_asked_without_end(void **state) {
    (void)state;
    begin(0, 0, true);
    for (int i = 0; i < 1000; i++) {
        elect_of(1, RECOVERY_PROMISE, 0);
        elect_of(2, RECOVERY_PROMISE, 0);
        now += 2 * NEB_MS;
    }
    assert_int_equal(promised, 6);
}

// A new ledger, made by a clock that is behind: the others know this member under a later epoch, and drop what it says under its own.
static void test_clock_behind(void **state) {
    (void)state;
    const uint64_t former = 1800000000ull * NEB_S;
    begin(1, 0, false);
    struct job *j = node_find_job(node, job_id);
    heartbeat_known(0, 0, JOINED, 0, former);
    heartbeat_known(2, 0, JOINED, 0, former + 5);
    heartbeat_known(3, 0, JOINED, 0, former);
    heartbeat_known(4, 0, JOINED, 0, EPOCH);
    assert_int_equal(j->standing.epoch, EPOCH); // it may be three that lie
    heartbeat_known(4, 0, JOINED, 0, UINT64_MAX);
    assert_int_equal(j->standing.epoch, EPOCH);
    heartbeat_known(4, 0, JOINED, 0, former);
    assert_true(status().lost && j->standing.epoch > former + 5);
    assert_true(status().attempts > inter_attempt_first(former + 5));
    assert_int_equal(actions.list[0].kind, INTER_ACT_STORE_STANDING);
    assert_int_equal(actions.list[0].standing.epoch, j->standing.epoch);
    begin(1, 0, true); // it has a history
    for (uint8_t m = 0; m < MEMBERS; m++)
        if (m != 1)
            heartbeat_known(m, 0, JOINED, 0, former);
    assert_int_equal(node_find_job(node, job_id)->standing.epoch, EPOCH);
}

// No term is left: nothing is stored, nothing wraps, and it is said, once.
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_voice),      cmocka_unit_test(test_too_few),
        cmocka_unit_test(test_unfollowed),     cmocka_unit_test(test_key_of_before),
        cmocka_unit_test(test_captured_votes), cmocka_unit_test(test_not_in_vain),
        cmocka_unit_test(test_without_worker), cmocka_unit_test(test_false_leader),
        cmocka_unit_test(test_unled),          cmocka_unit_test(test_alone),
        cmocka_unit_test(test_left_out),       cmocka_unit_test(test_promises),
        cmocka_unit_test(test_recovery),       cmocka_unit_test(test_far_promise),
        cmocka_unit_test(test_far_recovery),   cmocka_unit_test(test_asked_without_end),
        cmocka_unit_test(test_clock_behind),   cmocka_unit_test(test_no_term),
        cmocka_unit_test(test_vote_of_before), cmocka_unit_test(test_cannot_tell),
        cmocka_unit_test(test_cursor_stays),   cmocka_unit_test(test_repeats_with_promises)};
    return cmocka_run_group_tests(tests, NULL, done);
}
