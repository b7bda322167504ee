// Who may move a node's term, and whom it takes for its leader; and whose chunks take a path's window: one member of the job as a pure state machine, the others by hand, time as
// it is told. Keys fit, but for those of one who has others since; what signatures prove is in test_evidence.c, whole federations are in tests/sim.
#include "inter/node_state.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define OK(x) assert_int_equal((x), NEB_OK)

enum { LEADS = 1, JOINED = 2, FOLLOWS = 8, EPOCH = 70, MEMBERS = 5 };
enum { TERM_PROMISE, RECOVERY_PROMISE };

static const uint8_t job_id[INTER_ID_BYTES] = {7};
static struct inter_node *node;
static struct inter_actions actions;
static neb_ns now;
static uint32_t faults[INTER_FAULTS], asked, promised; // messages said since the last look
static uint32_t unknown_key = INTER_PEER_NONE;         // what this member signed cannot be checked

static bool sign(void *user, const char *context, const void *msg, size_t len,
                 uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)context, (void)msg, (void)len;
    memset(sig, 0, INTER_SIG_BYTES);
    return true;
}
static bool verify(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                   const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)context, (void)msg, (void)len, (void)sig;
    return peer != unknown_key;
}

static void step(const struct inter_event *e) {
    OK(inter_node_step(node, now, e, &actions));
    for (size_t i = 0; i < actions.n; i++) {
        const struct inter_action *a = &actions.list[i];
        uint8_t type = a->kind == INTER_ACT_SEND ? actions.bytes.p[a->at] : 0;
        if (a->kind == INTER_ACT_FAULT)
            faults[a->fault]++;
        asked += type == MSG_ELECT;
        promised += type == MSG_PROMISE;
    }
}

// Member `self` of n, which has promised `term`, all links up.
static void begin_of(uint8_t n, uint16_t witnesses, uint8_t self, uint32_t term, bool joined) {
    const struct inter_node_crypto crypto = {NULL, sign, verify};
    struct inter_job_config c = {.n_members = n,
                                 .witnesses = witnesses,
                                 .self = self,
                                 .fragments = 1,
                                 .epoch = EPOCH,
                                 .merge_after = 3,
                                 .eta = 1,
                                 .tune = {.start_interval = 10}};
    struct inter_standing st = {.term = term, .joined = joined, .epoch = EPOCH};
    memcpy(c.id, job_id, sizeof job_id);
    memcpy(st.job, job_id, sizeof job_id);
    for (uint8_t m = 0; m < n; m++) {
        c.peers[m] = m;
        st.epochs[m] = m == self ? 0 : EPOCH;
    }
    now = NEB_S;
    memset(faults, 0, sizeof faults);
    inter_node_destroy(&node);
    OK(inter_node_create(&crypto, &node));
    OK(inter_node_job_open(node, &c));
    inter_node_restore_standing(node, &st);
    for (uint8_t m = 0; m < n; m++)
        if (m != self)
            step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = m});
    asked = promised = 0;
}

static void begin(uint8_t self, uint32_t term, bool joined) {
    begin_of(MEMBERS, 0, self, term, joined);
}

static struct inter_job_status status(void) {
    struct inter_job_status st;
    assert_true(inter_node_job_status(node, job_id, now, &st));
    return st;
}

static void message(uint8_t from, struct neb_buf *b) {
    assert_false(b->oom);
    step(
        &(struct inter_event){.kind = INTER_EV_MESSAGE, .peer = from, .data = b->p, .len = b->len});
    neb_buf_free(b);
}

static void beat_known(uint8_t from, uint32_t term, uint8_t flags, uint32_t round,
                       uint64_t known) { // known: this node's epoch, as that one knows it
    static const uint8_t head[HEAD_BYTES];
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_BEAT);
    neb_buf_add(&b, job_id, sizeof job_id);
    neb_buf_u32(&b, term);
    neb_buf_u8(&b, flags);
    neb_buf_u64(&b, EPOCH);
    neb_buf_u64(&b, known);
    neb_buf_u16(&b, (1 << MEMBERS) - 1);
    neb_buf_u32(&b, 1);
    neb_buf_u16(&b, 0);
    neb_buf_u32(&b, round);
    neb_buf_add(&b, head, sizeof head);
    message(from, &b);
}
static void beat_at(uint8_t from, uint32_t term, uint8_t flags, uint32_t round) {
    // not joined: it knew this node's former disk
    beat_known(from, term, flags, round, flags & JOINED ? EPOCH : EPOCH - 1);
}
static void beat(uint8_t from, uint32_t term, uint8_t flags) { beat_at(from, term, flags, 0); }

static void elect_of(uint8_t from, uint8_t kind, uint32_t term) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_ELECT);
    neb_buf_add(&b, job_id, sizeof job_id);
    neb_buf_u8(&b, kind);
    neb_buf_u32(&b, term);
    neb_buf_u64(&b, EPOCH);
    message(from, &b);
}
static void elect(uint8_t from, uint32_t term) { elect_of(from, TERM_PROMISE, term); }

static void promise_at(uint8_t from, uint8_t kind, uint32_t term, uint32_t round) {
    static const uint8_t sig[INTER_SIG_BYTES];
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_PROMISE);
    neb_buf_add(&b, job_id, sizeof job_id);
    neb_buf_u8(&b, kind);
    neb_buf_u32(&b, term);
    neb_buf_u64(&b, EPOCH);
    neb_buf_u32(&b, 0); // fragment
    neb_buf_u32(&b, round);
    neb_buf_u8(&b, 0); // it has accepted nothing
    neb_buf_add(&b, sig, sizeof sig);
    message(from, &b);
}
static void promise(uint8_t from, uint8_t kind, uint32_t term) { promise_at(from, kind, term, 0); }

// A record with the accepts of all.
static void show_record(uint8_t from, uint32_t round) {
    struct inter_record r = {.round = round, .n = 1, .eta = 1, .n_plans = MEMBERS};
    struct neb_buf b = {0};
    memcpy(r.job, job_id, sizeof r.job);
    r.entries[0] = (struct inter_entry){.bytes = 1, .clip = 1};
    for (r.n_accepts = 0; r.n_accepts < MEMBERS; r.n_accepts++)
        r.accepts[r.n_accepts] = (struct inter_accept){.member = r.n_accepts, .epoch = EPOCH};
    neb_buf_u8(&b, MSG_COMMIT);
    inter_record_put(&b, &r);
    message(from, &b);
}

// Some seconds, in which the others say this each second: by member, of all but this one.
static void pass(int seconds, const uint32_t terms[MEMBERS], const uint8_t flags[MEMBERS]) {
    for (int i = 0; i < 5 * seconds; i++) {
        now += NEB_S / 5;
        step(&(struct inter_event){.kind = INTER_EV_TICK});
        for (uint8_t m = 0; m < MEMBERS && i % 5 == 0; m++)
            if (flags[m])
                beat(m, terms[m], flags[m]);
    }
}

// ---- leaders --------------------------------------------------------------------------------------------------

static const uint8_t all_follow[] = {0, JOINED | FOLLOWS, JOINED | FOLLOWS, JOINED | FOLLOWS,
                                     JOINED | FOLLOWS};

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

// The leader's update, the only one there is: it is proposed at once.
static void propose(void) {
    struct inter_manifest m = {
        .bytes = 1 << 10, .chunk_bytes = INTER_CHUNK_MIN, .tokens = 1, .steps = 1, .step = 1};
    memcpy(m.key.job, job_id, sizeof job_id);
    step(&(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &m, .norm = 1});
    assert_true(node->jobs[0].fragments[0].voted);
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

// A liar, 2, was promised a later term by some who did not hear the leader for a while. It tells the leader that it follows, and does not
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
    beat(1, 10, JOINED | FOLLOWS);
    beat(4, 12, JOINED);
    beat(4, 0, 0); // its ledger is new: it collects first
    assert_int_equal(asked, 0);
    beat(3, 6, JOINED);
    beat(3, 6, JOINED);
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
    beat(2, UINT32_MAX, JOINED);
    beat(2, INTER_TERM_MAX, JOINED);
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
        inter_node_job_gone(node, job_id, 1 << 2);
        pass(1, none, flags);
        for (uint8_t m = 0; m < MEMBERS; m++)
            if (m != 1 && m != 2)
                promise(m, RECOVERY_PROMISE, 3);
        pass(1, none, flags);
        assert_true(status().votes);
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
    beat_known(0, 0, JOINED, 0, former);
    beat_known(2, 0, JOINED, 0, former + 5);
    beat_known(3, 0, JOINED, 0, former);
    beat_known(4, 0, JOINED, 0, EPOCH);
    assert_int_equal(j->standing.epoch, EPOCH); // it may be three that lie
    beat_known(4, 0, JOINED, 0, UINT64_MAX);
    assert_int_equal(j->standing.epoch, EPOCH);
    beat_known(4, 0, JOINED, 0, former);
    assert_true(status().lost && j->standing.epoch > former + 5);
    assert_true(status().attempts > inter_attempt_first(former + 5));
    assert_int_equal(actions.list[0].kind, INTER_ACT_STORE_STANDING);
    assert_int_equal(actions.list[0].standing.epoch, j->standing.epoch);
    begin(1, 0, true); // it has a history
    for (uint8_t m = 0; m < MEMBERS; m++)
        if (m != 1)
            beat_known(m, 0, JOINED, 0, former);
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

// ---- whom rounds wait for -------------------------------------------------------------------------------------

// Masked sums need all members but one.
static void test_waits_private(void **state) {
    (void)state;
    begin(0, 0, true);
    node->jobs[0].c.masked = true;
    pass(3, (const uint32_t[MEMBERS]){0}, all_follow);
    pass(6, (const uint32_t[MEMBERS]){0},
         (const uint8_t[]){0, JOINED | FOLLOWS, JOINED | FOLLOWS, JOINED | FOLLOWS, 0});
    assert_int_equal(status().waits, 0);
    pass(6, (const uint32_t[MEMBERS]){0},
         (const uint8_t[]){0, JOINED | FOLLOWS, JOINED | FOLLOWS, 0, 0});
    assert_int_equal(status().waits, 1 << 3 | 1 << 4);
    inter_node_job_gone(node, job_id, 1 << 4);
    assert_int_equal(status().waits, 1 << 3);
}

static void has_update(uint8_t m, uint8_t flags) {
    struct slot *t = &node->jobs[0].fragments[0].slots[m];
    t->known = true;
    t->m.flags = flags;
    t->holders = 3;
    t->began = now;
}

// Who is heard but sends nothing: where a record cannot do without its update, and for longer than a slow one is waited for.
static void test_owing(void **state) {
    (void)state;
    enum { TRUSTED, ALL, PRIVATE, LAST, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        begin(0, 0, true);
        struct job *j = &node->jobs[0];
        j->leads = false;
        j->c.grace = 5 * NEB_S;
        j->c.commit_all = kind == ALL;
        j->c.masked = kind == PRIVATE;
        pass(9, (const uint32_t[MEMBERS]){0}, all_follow);
        assert_int_equal(status().owing, 0); // nobody has sent anything
        for (uint8_t m = 0; m < 3; m++)
            has_update(m, kind == LAST ? INTER_FINAL : 0);
        pass(4, (const uint32_t[MEMBERS]){0}, all_follow);
        assert_int_equal(status().owing, 0);
        pass(2, (const uint32_t[MEMBERS]){0}, all_follow);
        assert_int_equal(status().owing, kind == TRUSTED ? 0 : 1 << 3 | 1 << 4);
        inter_node_job_gone(node, job_id, 1 << 3);
        assert_int_equal(status().owing, kind == TRUSTED ? 0 : 1 << 4);
        has_update(4, 0);
        assert_int_equal(status().owing, 0);
    }
}

// ---- limits of jobs -------------------------------------------------------------------------------------------

static const uint8_t other_id[INTER_ID_BYTES] = {8};

// Behind is who was so when it last said its round: not by the rounds that were made since.
static void test_catching_up(void **state) {
    (void)state;
    begin(0, 0, true);
    uint32_t *round = &node_find_job(node, job_id)->fragments[0].round;
    beat(1, 0, JOINED | FOLLOWS);
    *round = 20;
    assert_false(inter_node_catching_up(node, job_id, now));
    beat(1, 0, JOINED | FOLLOWS);
    assert_true(inter_node_catching_up(node, job_id, now));
    beat_at(1, 0, JOINED | FOLLOWS, 18);
    assert_false(inter_node_catching_up(node, job_id, now));
    beat_at(1, 0, JOINED | FOLLOWS, 17);
    assert_true(inter_node_catching_up(node, job_id, now));
    beat_at(1, 0, JOINED | FOLLOWS, UINT32_MAX);
    assert_false(inter_node_catching_up(node, job_id, now));
}

// Busy for longer than a silent member counts as here: what the others said meanwhile has yet to be read.
static void test_busy(void **state) {
    (void)state;
    begin(0, 0, true);
    struct job *j = node_find_job(node, job_id);
    pass(3, (const uint32_t[]){0, 0, 0, 0, 0}, all_follow);
    j->fragments[0].round = 20;
    j->fragments[0].ready_since = now - NEB_S;
    beat(1, 0, JOINED | FOLLOWS); // behind
    now += 30 * NEB_S;
    step(&(struct inter_event){.kind = INTER_EV_TICK});
    assert_true(inter_node_catching_up(node, job_id, now));
    assert_true(status().leads && !asked);
    assert_in_range(now - j->fragments[0].ready_since, 1, 3 * NEB_S);
    pass(4, (const uint32_t[MEMBERS]){0}, (const uint8_t[MEMBERS]){0});
    assert_true(inter_node_catching_up(node, job_id, now));
    pass(4, (const uint32_t[MEMBERS]){0}, (const uint8_t[MEMBERS]){0});
    assert_false(inter_node_catching_up(node, job_id, now));
}

// An update of this member, of which member 1 has nothing yet.
static void offer(const uint8_t id[INTER_ID_BYTES]) {
    struct inter_manifest m = {.key = {.member = 0},
                               .bytes = 8 << 20, // more than the window of a path that is not known
                               .chunk_bytes = INTER_CHUNK_MIN,
                               .tokens = 1,
                               .steps = 1,
                               .step = 1};
    uint32_t bits = (inter_chunks(m.bytes, m.chunk_bytes) + 7) / 8;
    struct neb_buf b = {0};
    memcpy(m.key.job, id, sizeof m.key.job);
    step(&(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &m, .norm = 1});
    neb_buf_u8(&b, MSG_STATE);
    inter_key_put(&b, &m.key);
    neb_buf_add(&b, m.sha256, STATE_DIGEST);
    neb_buf_u64(&b, EPOCH);
    neb_buf_u8(&b, INTER_HOLD_PART);
    neb_buf_u32(&b, bits);
    for (uint32_t i = 0; i < bits; i++)
        neb_buf_u8(&b, 0);
    neb_buf_u32(&b, 0);
    neb_buf_u8(&b, 0);
    message(1, &b);
}

// As the service does: a limit lets no chunk of job_id go. Returns how many of the other job's left.
static int carry_out(void) {
    struct inter_event failed[256];
    size_t n = 0;
    int left = 0;
    for (size_t k = 0; k <= n; k++) {
        for (size_t i = 0; i < actions.n; i++) {
            const struct inter_action *a = &actions.list[i];
            if (a->kind != INTER_ACT_SEND_CHUNK)
                continue;
            left += memcmp(a->key.job, job_id, sizeof job_id) != 0;
            assert_true(n < sizeof failed / sizeof *failed);
            if (!memcmp(a->key.job, job_id, sizeof job_id))
                failed[n++] = (struct inter_event){.kind = INTER_EV_SEND_FAILED,
                                                   .peer = a->peer,
                                                   .key = a->key,
                                                   .chunk = a->chunk,
                                                   .ok = true};
        }
        if (k < n)
            step(&failed[k]);
    }
    return left;
}

// What its own limit holds back of one job takes no window from the other one, which goes the same way.
static void test_held(void **state) {
    (void)state;
    struct inter_job_config c = {.n_members = 2,
                                 .peers = {0, 1},
                                 .fragments = 1,
                                 .epoch = EPOCH,
                                 .merge_after = 3,
                                 .eta = 1,
                                 .tune = {.start_interval = 10}};
    int left = 0;
    begin(0, 0, true);
    memcpy(c.id, other_id, sizeof other_id);
    OK(inter_node_job_open(node, &c));
    step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = 1});
    offer(job_id);
    left += carry_out();
    offer(other_id);
    for (int i = 0; i < 10; i++) {
        left += carry_out();
        now += NEB_S / 5;
        step(&(struct inter_event){.kind = INTER_EV_TICK});
    }
    assert_true(left > 4);
}

static void gone(uint32_t attempt) { // member 0 has none of its updates with this one
    struct inter_key k = {.member = 0, .attempt = attempt};
    struct neb_buf b = {0};
    memcpy(k.job, job_id, sizeof k.job);
    neb_buf_u8(&b, MSG_GONE);
    inter_key_put(&b, &k);
    message(0, &b);
    for (int i = 0; i < 40; i++) {
        now += NEB_S / 5;
        step(&(struct inter_event){.kind = INTER_EV_TICK});
    }
}

// Whoever was asked for any update of a member, and has gone on by then, says that there is none. That is no word of the one which the record
// lists, though it comes behind the record: this node is not behind all others.
static void test_gone(void **state) {
    (void)state;
    begin_of(2, 0, 1, 0, true);
    struct fragment *g = &node_find_job(node, job_id)->fragments[0];
    g->decided = true;
    g->decision.n = 1;
    g->decision.entries[0] = (struct inter_entry){.attempt = 5, .verdict = INTER_ACCEPTED};
    gone(ANY_ATTEMPT);
    assert_int_equal(faults[INTER_FAULT_BEHIND], 0);
    gone(5);
    assert_int_equal(faults[INTER_FAULT_BEHIND], 1);
}

// Of rounds that are over a member asks for one at a time: what it was being sent of another one is given up.
static void test_wants_all(void **state) {
    (void)state;
    begin_of(3, 0, 1, 0, true);
    struct job *j = node_find_job(node, job_id);
    j->fragments[0].round = 100;
    for (uint32_t i = 0; i < 100; i++) {
        struct inter_manifest m = {.key = {.round = i, .member = (uint8_t)(i % 3)},
                                   .bytes = 1 << 10,
                                   .chunk_bytes = INTER_CHUNK_MIN};
        memcpy(m.key.job, job_id, sizeof job_id);
        for (uint8_t to = 0; to < 3; to += 2)
            step(&(struct inter_event){
                .kind = INTER_EV_SERVE, .peer = to, .key = m.key, .manifest = &m});
    }
    assert_int_equal(j->n_serves, 2 * 3);
    for (size_t i = 0; i < j->n_serves; i++)
        assert_in_range(j->serves[i].m.key.round, 97, 99);
}

static int done(void **state) {
    (void)state;
    inter_node_destroy(&node);
    inter_actions_free(&actions);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_voice),
                                       cmocka_unit_test(test_too_few),
                                       cmocka_unit_test(test_captured_votes),
                                       cmocka_unit_test(test_not_in_vain),
                                       cmocka_unit_test(test_unled),
                                       cmocka_unit_test(test_unfollowed),
                                       cmocka_unit_test(test_false_leader),
                                       cmocka_unit_test(test_alone),
                                       cmocka_unit_test(test_left_out),
                                       cmocka_unit_test(test_promises),
                                       cmocka_unit_test(test_recovery),
                                       cmocka_unit_test(test_far_promise),
                                       cmocka_unit_test(test_far_recovery),
                                       cmocka_unit_test(test_no_term),
                                       cmocka_unit_test(test_waits_private),
                                       cmocka_unit_test(test_owing),
                                       cmocka_unit_test(test_catching_up),
                                       cmocka_unit_test(test_busy),
                                       cmocka_unit_test(test_held),
                                       cmocka_unit_test(test_gone),
                                       cmocka_unit_test(test_asked_without_end),
                                       cmocka_unit_test(test_wants_all),
                                       cmocka_unit_test(test_key_of_before),
                                       cmocka_unit_test(test_without_worker),
                                       cmocka_unit_test(test_clock_behind)};
    return cmocka_run_group_tests(tests, NULL, done);
}
