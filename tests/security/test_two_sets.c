// SPDX-License-Identifier: Apache-2.0
// Mallory leads a job of five with masked sums. She proposes different sets of updates to different
// members, because reveals for both sets would unmask one update. Two records of a round must never
// both get enough votes. A member reveals for one record a round, and sends one masked update a
// round.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "agent/job/private.h"
#include "inter/ledger/ledger.h"
#include "inter/record/weights.h"
#include "inter/round/sums.h"
#include "tests/sum_mask.h"
#include "tests/unit/node_fixture.h"

#include <sodium.h>
#include <stdlib.h>

enum { COUNT = 8192, ROUND = 0, VICTIM = 4 };

static uint8_t secrets[NEB_MEMBERS_MAX][32], publics[NEB_MEMBERS_MAX][32];
static struct sec_sum *keys[MEMBERS];
static struct neb_buf blobs[MEMBERS];
static struct sec_sum_head heads[MEMBERS];
static int16_t values[MEMBERS][COUNT];
static struct inter_manifest manifests[MEMBERS];

static void mask_all(void) {
    struct neb_rng rng = neb_rng_make(5, 5);
    const uint8_t *body;
    for (uint8_t m = 0; m < MEMBERS; m++) {
        uint8_t pair[MEMBERS][SEC_SUM_KEY_BYTES] = {{0}};
        for (uint8_t k = 0; k < MEMBERS; k++)
            if (k != m)
                OK(sec_sum_pair_key(secrets[m], publics[m], publics[k], job_id, pair[k]));
        OK(sec_sum_create(MEMBERS, m, (const uint8_t(*)[SEC_SUM_KEY_BYTES])pair, &keys[m]));
        for (int i = 0; i < COUNT; i++)
            values[m][i] = (int16_t)((int)neb_rng_below(&rng, 2001) - 1000);
        OK(sum_mask(keys[m], 0, ROUND, values[m], COUNT, &blobs[m]));
        OK(sec_sum_open(blobs[m].p, blobs[m].len, &heads[m], &body));
        manifests[m] = update(m, 1, 0);
        manifests[m].bytes = (uint32_t)blobs[m].len;
        manifests[m].step = manifests[m].steps = 10;
        manifests[m].tokens = 512;
        neb_sha256(blobs[m].p, blobs[m].len, manifests[m].sha256);
    }
}

static void forget_all(void) {
    for (uint8_t m = 0; m < MEMBERS; m++) {
        sec_sum_destroy(&keys[m]);
        neb_buf_free(&blobs[m]);
    }
}

// Member `self` of n, with all updates on its disk.
static void begin_masked_of(uint8_t n, uint8_t self, uint8_t colluders) {
    begin_of(n, 0, self, 0, true);
    struct job *j = &node->jobs[0];
    j->c.masked = j->judges = true;
    j->c.colluders = colluders;
    for (uint8_t m = 0; m < n; m++) {
        struct slot *t = &j->fragments[0].slots[m];
        t->known = t->whole = true;
        t->m = manifests[m];
        t->holders = mset_first(n);
    }
}
static void begin_masked(uint8_t self, uint8_t colluders) {
    begin_masked_of(MEMBERS, self, colluders);
}

static struct inter_record record_of(uint16_t set) {
    static const struct inter_absence absences[NEB_MEMBERS_MAX];
    struct inter_record r = {.round = ROUND, .eta = 1, .n_plans = MEMBERS};
    memcpy(r.job, job_id, sizeof r.job);
    for (uint8_t m = 0; m < MEMBERS; m++) {
        if (!(set >> m & 1))
            continue;
        struct inter_entry *e = &r.entries[r.n++];
        *e = (struct inter_entry){
            .member = m, .attempt = 1, .bytes = manifests[m].bytes, .tokens = 512, .clip = 1};
        memcpy(e->sha256, manifests[m].sha256, sizeof e->sha256);
        r.cursors[m] = manifests[m].step;
    }
    inter_weights_fill(&r, absences);
    return r;
}

static void with_votes(struct inter_record *r, uint16_t voters) {
    r->n_accepts = 0;
    for (uint8_t m = 0; m < MEMBERS; m++)
        if (voters >> m & 1)
            r->accepts[r->n_accepts++] = (struct inter_accept){.member = m, .epoch = EPOCH};
}

static void say_proposal(const struct inter_record *r) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_PROPOSE);
    inter_record_put(&b, r);
    neb_buf_u64(&b, EPOCH);
    neb_buf_u8(&b, 0); // no manifests: the member has them
    message(r->leader, &b);
}

// True if the member delivers the record. Then it also reveals.
static bool say_commit(uint8_t from, const struct inter_record *r) {
    struct neb_buf b = {0};
    bool delivered = false;
    inter_node_commit_message(&b, r);
    message(from, &b);
    for (size_t i = 0; i < actions.n; i++)
        delivered |= actions.list[i].kind == INTER_ACT_DELIVER;
    return delivered;
}

// ---- the attack ---------------------------------------------------------------------------------

static void take_off(int16_t *q, const uint8_t seed[SEC_SUM_SEED_BYTES], bool minus) {
    static const uint8_t nonce[crypto_stream_chacha20_NONCEBYTES];
    static uint8_t stream[2 * COUNT];
    crypto_stream_chacha20(stream, sizeof stream, nonce, seed);
    for (int i = 0; i < COUNT; i++) {
        uint16_t m = (uint16_t)(stream[2 * i] | stream[2 * i + 1] << 8);
        q[i] = (int16_t)(minus ? (uint16_t)q[i] - m : (uint16_t)q[i] + m);
    }
}

// How many of the victim's integers mallory can read, if these honest members (a bit each) reveal
// for the two sets.
static int read_victim(const uint16_t sets[2], const uint16_t revealed[2]) {
    const uint8_t *body;
    struct sec_sum_head h;
    struct sec_sum_reveal r;
    static int16_t q[COUNT];
    int right = 0;
    OK(sec_sum_open(blobs[VICTIM].p, blobs[VICTIM].len, &h, &body));
    for (int i = 0; i < COUNT; i++)
        q[i] = (int16_t)(body[2 * i] | body[2 * i + 1] << 8);
    for (int s = 0; s < 2; s++)
        for (uint8_t m = 0; m < MEMBERS; m++) {
            // Mallory knows the seed that she shares with the victim.
            bool hers = m == 0 && !(sets[s] >> VICTIM & 1);
            if (!hers && !(revealed[s] >> m & 1))
                continue;
            OK(sec_sum_reveal(keys[m], mset_from_bits(sets[s]), heads, &r));
            if (m == VICTIM)
                take_off(q, r.own, true);
            for (uint8_t k = 0; k < MEMBERS; k++)
                if (!(sets[s] >> k & 1) && (m == VICTIM || k == VICTIM) && sets[s] >> m & 1)
                    take_off(q, r.pair, VICTIM < (m == VICTIM ? k : m));
        }
    for (int i = 0; i < COUNT; i++)
        right += q[i] == values[VICTIM][i];
    return right;
}

// A sum needs 4 of 5; a majority is three votes. With majorities alone the attack would read
// everything.
static void test_two_sets_of_one_round(void **state) {
    (void)state;
    // one set without member 4, the victim; one without member 3
    const uint16_t sets[2] = {0x0f, 0x17};
    const uint16_t sides[2] = {1 << 1 | 1 << 2, 1 << 3 | 1 << 4};
    uint16_t revealed[2] = {0, 0}, denied = 0;
    mask_all();
    for (int s = 0; s < 2; s++)
        for (uint8_t m = 1; m < MEMBERS; m++) {
            if (!(sides[s] >> m & 1))
                continue;
            struct inter_record r = record_of(sets[s]);
            begin_masked(m, 1);
            with_votes(&r, 1);
            say_proposal(&r);
            assert_true(node->jobs[0].fragments[0].voted);
            with_votes(&r, (uint16_t)(1 | sides[s])); // mallory's, and those of this side
            if (say_commit(0, &r))
                revealed[s] |= (uint16_t)(1 << m);
            denied |= (uint16_t)(faults[INTER_FAULT_DENIED] ? 1 << m : 0);
        }
    assert_true(read_victim(sets, revealed) < COUNT / 100);
    assert_int_equal(revealed[0] | revealed[1], 0);
    assert_int_equal(denied,
                     0x1e); // not enough votes: half of a majority may be equivocators
    // The reveals of both sides would have shown all of it.
    assert_int_equal(read_victim(sets, sides), COUNT);
    // Four votes are enough to reveal.
    struct inter_record r = record_of(sets[0]);
    begin_masked(1, 1);
    with_votes(&r, 1);
    say_proposal(&r);
    with_votes(&r, 0x0f);
    assert_true(say_commit(0, &r));
    forget_all();
}

// A set needs two members that are not colluders.
static void test_too_small_a_set(void **state) {
    (void)state;
    mask_all();
    for (uint8_t f = 1; f <= 3; f++) {
        struct inter_record r = record_of(0x0f);
        begin_masked(1, f);
        with_votes(&r, 1);
        say_proposal(&r);
        assert_int_equal(node->jobs[0].fragments[0].voted, f < 3);
        assert_int_equal(faults[INTER_FAULT_DENIED], f == 3);
    }
    forget_all();
}

// ---- votes --------------------------------------------------------------------------------------

static void test_quorums(void **state) {
    (void)state;
    for (uint8_t n = 3; n <= NEB_MEMBERS_MAX; n++)
        for (uint8_t f = 1; f + 2 <= n; f++) {
            struct inter_job_config c = {.n_members = n, .masked = true, .colluders = f};
            struct agent_job j = {.n_clusters = n};
            int q = inter_job_quorum(&c), least = inter_sums_least(n, f);
            j.sync.gate = AGENT_GATE_PRIVATE;
            j.sync.private_colluders = f;
            assert_true(2 * q - n > f && 2 * (q - 1) - n <= f && q <= n);
            assert_true(least >= f + 2 && least >= n - 1 && least <= n);
            assert_int_equal(agent_private_needs(&j), q > least ? q : least);
            // One member may be away if more than two members are not colluders.
            assert_int_equal(n - agent_private_needs(&j), f + 2 < n);
        }
}

static struct inter_promise told(uint8_t member, uint32_t vote_term, const struct inter_record *r) {
    struct inter_promise p = {.member = member, .term = 5, .epoch = EPOCH, .voted = r != NULL};
    if (r) {
        p.vote_term = vote_term;
        inter_record_hash(r, p.vote_hash);
    }
    return p;
}

// Mallory proposed x and y in term 0, and y may be committed. A leader of a later term that hears
// of both must not propose x, whoever reports it, unless enough members report x that y cannot have
// been committed.
static void test_the_other_value_again(void **state) {
    (void)state;
    mask_all();
    struct inter_record x = record_of(0x0f), y = record_of(0x17), r = x;
    begin_masked(2, 1);
    struct job *j = &node->jobs[0];
    r.term = 5;
    r.n_promises = 4;
    r.promises[0] = told(0, 0, &x);
    r.promises[1] = told(2, 0, &y);
    r.promises[2] = told(3, 0, &y);
    r.promises[3] = told(4, 0, NULL);
    assert_false(
        node_justified(node, j, &r)); // with 1 (not asked) and one false report, y has four
    r.promises[2] = told(3, 0, &x);
    assert_true(node_justified(node, j, &r)); // y has at most three
    j->c.colluders = 2;
    assert_false(node_justified(node, j, &r)); // or four, if 0 and 4 report falsely
    j->equivocators =
        mset_from_bits(1 << 1); // evidence: 1 is one of the two that may report falsely
    assert_true(node_justified(node, j, &r));
    j->equivocators = mset_from_bits(0);
    j->c.masked = false;
    assert_true(node_justified(node, j, &r));
    // A value that nobody reports leaves the choice free. A single report binds.
    j->c.masked = true;
    j->c.colluders = 1;
    r.promises[0] = told(0, 0, NULL);
    r.promises[1] = told(2, 0, NULL);
    r.promises[2] = told(3, 0, NULL);
    assert_true(node_justified(node, j, &r));
    r.promises[2] = told(3, 0, &y);
    assert_false(node_justified(node, j, &r));
    forget_all();
}

// Each value has more reports than there are members that can report falsely. So both values were
// proposed, and the proposer is the false one. Then no member that reports can have voted for both.
static void test_who_must_be_lying(void **state) {
    (void)state;
    mask_all();
    struct inter_record x = record_of(0x0f), y = record_of(0x17), r = x;
    begin_masked(2, 1);
    struct job *j = &node->jobs[0];
    r.term = 5;
    r.n_promises = 4;
    for (uint8_t m = 1; m < MEMBERS; m++)
        r.promises[m - 1] = told(m, 0, m < 3 ? &x : &y);
    assert_true(node_justified(node, j, &r)); // y has at most three
    // member 4 does not count; then member 3 may be the false one
    j->c.gone = mset_from_bits(1 << 4);
    assert_false(node_justified(node, j, &r));
    j->c.gone = mset_from_bits(0);
    j->c.colluders = 2; // both that report y may report falsely
    assert_false(node_justified(node, j, &r));
    forget_all();
}

// A member with a new disk and the first term does not lead in a term in which it may have led
// before.
static void test_first_term_once(void **state) {
    (void)state;
    for (int masked = 0; masked < 2; masked++) {
        begin_of(MEMBERS, 0, 0, 0, false);
        node->jobs[0].c.masked = masked;
        node->jobs[0].c.colluders = 1;
        node->jobs[0].judges = true;
        for (uint8_t m = 1; m < MEMBERS; m++)
            heartbeat(m, 0, 0); // knows the previous incarnation
        step(&(struct inter_event){.kind = INTER_EV_TICK});
        for (uint8_t m = 1; m < MEMBERS; m++)
            promise(m, RECOVERY_PROMISE, 0);
        now += NEB_S;
        step(&(struct inter_event){.kind = INTER_EV_TICK});
        assert_true(node->jobs[0].standing.joined);
        assert_int_equal(status().leads, !masked);
        assert_int_equal(status().term, masked);
    }
}

// ---- a new leader, and several values of the previous term -------------------------------------

static void promise_vote(uint8_t from, uint32_t term, const struct inter_record *r) {
    static const uint8_t sig[INTER_SIG_BYTES];
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_PROMISE);
    neb_buf_add(&b, job_id, sizeof job_id);
    neb_buf_u8(&b, TERM_PROMISE);
    neb_buf_u32(&b, term);
    neb_buf_u64(&b, EPOCH);
    neb_buf_u32(&b, 0);
    neb_buf_u32(&b, ROUND);
    neb_buf_u8(&b, 1);
    inter_record_put(&b, r);
    neb_buf_add(&b, sig, sizeof sig);
    message(from, &b);
}

static void has_voted(const struct inter_record *r) {
    struct fragment *g = &node->jobs[0].fragments[0];
    g->voted = true;
    g->vote = *r;
    inter_record_hash(r, g->vote_hash);
}

static bool proposes(uint32_t term, const struct inter_record *r) {
    const struct fragment *g = &node->jobs[0].fragments[0];
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_hash(r, hash);
    return status().leads && g->voted && g->vote.term == term &&
           !memcmp(hash, g->vote_hash, sizeof hash);
}

// Mallory proposed three values, and one may be committed, in whatever order they are reported.
static void test_three_values(void **state) {
    (void)state;
    static const uint8_t orders[3][3] = {{3, 4, 1}, {1, 3, 4}, {3, 1, 4}};
    static const uint8_t alone[] = {0, JOINED, 0, JOINED, JOINED};
    mask_all();
    struct inter_record three[] = {record_of(0x0f), record_of(0x17), record_of(0x1e)};
    for (int k = 0; k < 3; k++) {
        begin_masked(2, 2);
        node->jobs[0].equivocators =
            mset_from_bits(1); // by evidence; another member may report falsely
        has_voted(&three[0]);
        pass(9, (const uint32_t[MEMBERS]){0}, alone);
        assert_true(asked && status().term == 2);
        for (int i = 0; i < 3; i++)
            promise_vote(orders[k][i], 2, &three[orders[k][i] == 1 ? 1 : 2]);
        assert_true(proposes(2, &three[2]));
    }
    forget_all();
}

// Two values with two members each, mallory in both. The fourth member knows which may be
// committed, but has promised a later term that it does not lead. The leader asks it for a term
// beyond that.
static void test_who_could_tell_is_bound(void **state) {
    (void)state;
    const uint32_t terms[MEMBERS] = {1, 0, 1, 3, 0};
    static const uint8_t unled[MEMBERS] = {JOINED, 0, JOINED, JOINED, 0},
                         led[MEMBERS] = {JOINED | FOLLOWS, 0, JOINED | FOLLOWS, JOINED, 0};
    mask_all();
    struct inter_record x = record_of(0x07), y = record_of(0x0b);
    x.n_plans = y.n_plans = 4;
    begin_masked_of(4, 1, 1);
    has_voted(&x);
    pass(5, (const uint32_t[MEMBERS]){0}, unled);
    assert_true(asked && status().term == 1);
    promise_vote(0, 1, &y);
    promise_vote(2, 1, &y);
    asked = 0;
    pass(7, terms, led);
    assert_true(status().leads && node->jobs[0].fragments[0].vote.term == 0);
    pass(2, terms, led);
    assert_true(asked && status().term == 5);
    promise_vote(0, 5, &y);
    promise_vote(2, 5, &y);
    assert_true(status().leads && !proposes(5, &x) && !proposes(5, &y));
    promise_vote(3, 5, &x);
    step(&(struct inter_event){.kind = INTER_EV_TICK});
    assert_true(proposes(5, &x));
    forget_all();
}

// A chain of promises that is too long for a record proves nothing to a member that has not voted
// for the value.
static void test_a_chain_that_is_cut(void **state) {
    (void)state;
    mask_all();
    struct inter_record x = record_of(0x0f), y = record_of(0x17), r = x;
    begin_masked(2, 1);
    struct job *j = &node->jobs[0];
    r.n_promises = 0;
    for (uint32_t term = 100; r.n_promises + 4 <= INTER_PROMISES_MAX; term -= 5)
        for (uint8_t m = 0; m < 4; m++) {
            struct inter_promise *p = &r.promises[r.n_promises++];
            *p = told(m == 0 ? 0 : m + 1, term - 5, m == 0 ? &x : &y);
            p->term = term;
            p->vote_term = m == 0 ? term - 5 : 0; // only mallory's vote is new in each term
        }
    r.term = 100;
    assert_false(node_justified(node, j, &r));
    struct fragment *g = &j->fragments[0];
    g->voted = true;
    g->vote = x;
    g->vote.term = 99;
    inter_record_hash(&x, g->vote_hash);
    assert_true(node_justified(node, j, &r));
    inter_record_hash(&y, g->vote_hash);
    assert_false(node_justified(node, j, &r));
    j->c.masked = false;
    assert_true(node_justified(node, j, &r));
    forget_all();
}

// ---- one update, one set ------------------------------------------------------------------------

static bool submits(uint32_t attempt) {
    struct inter_manifest m = manifests[1];
    bool stored = false;
    m.key.attempt = attempt;
    m.sha256[0] = (uint8_t)attempt;
    step(&(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &m, .norm = 1});
    for (size_t i = 0; i < actions.n; i++)
        stored |= actions.list[i].kind == INTER_ACT_STORE_MANIFEST;
    return stored;
}

// Two masked updates in one round would share the masks of the pairs.
static void test_one_update_a_round(void **state) {
    (void)state;
    mask_all();
    for (int masked = 0; masked < 2; masked++) {
        begin_masked(1, 1);
        node->jobs[0].c.masked = masked;
        node_clear_slot(&node->jobs[0].fragments[0].slots[1]);
        assert_true(submits(7));
        assert_int_equal(submits(8), !masked);
        assert_int_equal(node->jobs[0].fragments[0].slots[1].m.key.attempt, masked ? 7 : 8);
    }
    forget_all();
}

struct site {
    struct inter_ledger *ledger;
    struct neb_buf said; // the last message, to any member
    int sent;
    bool full; // its disk is full
};
static void on_send(void *user, uint8_t to, const void *p, size_t n) {
    struct site *m = user;
    (void)to;
    m->sent++;
    neb_buf_clear(&m->said);
    neb_buf_add(&m->said, p, n);
}
static enum neb_status on_keep(void *user, const struct inter_record *r) {
    struct site *m = user;
    return m->full ? NEB_ERR_NOSPC : inter_ledger_put_reveal(m->ledger, r, 1);
}
static void on_ready(void *user, uint32_t f, uint32_t round, const void *p, size_t n) {
    (void)user, (void)f, (void)round, (void)p, (void)n;
}
static void on_look_up(void *user, uint8_t m, uint32_t f, uint32_t round) {
    (void)user, (void)m, (void)f, (void)round;
}

static enum neb_status commit(struct site *m, const struct inter_record *r) {
    static const struct inter_node_crypto crypto = {NULL, sign, verify};
    struct inter_sums_config c = {.n = MEMBERS,
                                  .self = 1,
                                  .colluders = 1,
                                  .crypto = &crypto,
                                  .sum = keys[1],
                                  .ops = {m, on_send, on_keep, on_ready, on_look_up}};
    struct inter_sums_blob views[MEMBERS];
    struct inter_sums *s = NULL;
    memcpy(c.job, job_id, sizeof job_id);
    OK(inter_sums_create(&c, &s)); // each time as after a restart
    m->sent = 0;
    for (uint8_t i = 0; i < r->n; i++)
        views[i] = (struct inter_sums_blob){blobs[r->entries[i].member].p,
                                            blobs[r->entries[i].member].len};
    enum neb_status st = inter_sums_commit(s, NEB_S, r, views, NULL, 0);
    inter_sums_destroy(&s);
    return st;
}

static void test_revealed_once(void **state) {
    (void)state;
    char dir[] = "/tmp/nebula-sets-XXXXXX";
    struct site m = {.full = true};
    mask_all();
    struct inter_record x = record_of(0x0f), y = record_of(0x17);
    assert_non_null(mkdtemp(dir));
    OK(inter_ledger_open(dir, &m.ledger));
    assert_int_equal(commit(&m, &x), NEB_ERR_NOSPC); // sends nothing before it is on disk
    assert_int_equal(m.sent, 0);
    m.full = false;
    OK(commit(&m, &x));
    assert_int_equal(m.sent, MEMBERS - 1);
    struct neb_buf first = {0};
    neb_buf_add(&first, m.said.p, m.said.len);
    for (int start = 0; start < 2;
         start++) { // after reopening the ledger, and after a restart of its rounds
        inter_ledger_close(&m.ledger);
        OK(inter_ledger_open(dir, &m.ledger));
        assert_int_equal(commit(&m, &y), NEB_ERR_DENIED);
        assert_int_equal(m.sent, 0);
        OK(commit(&m, &x)); // the same again
        assert_int_equal(m.sent, MEMBERS - 1);
        assert_int_equal(m.said.len, first.len);
        assert_memory_equal(m.said.p, first.p, first.len);
        struct inter_standing st = {.epoch = 9};
        memcpy(st.job, job_id, sizeof job_id);
        OK(inter_ledger_reset_job(m.ledger, &st));
    }
    OK(inter_ledger_drop_job(m.ledger, job_id, false)); // the id could be used again
    assert_int_equal(commit(&m, &y), NEB_ERR_DENIED);
    x.round = y.round = 1; // nothing was revealed in another round
    assert_int_equal(inter_ledger_put_reveal(m.ledger, &y, 1), NEB_OK);
    assert_int_equal(inter_ledger_put_reveal(m.ledger, &x, 1), NEB_ERR_EXISTS);
    inter_ledger_close(&m.ledger);
    OK(neb_fs_remove_tree(dir));
    neb_buf_free(&first);
    neb_buf_free(&m.said);
    forget_all();
}

static int set_up(void **state) {
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    testing_key_pairs(NEB_MEMBERS_MAX, secrets, publics);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_two_sets_of_one_round, done),
        cmocka_unit_test_teardown(test_too_small_a_set, done),
        cmocka_unit_test(test_quorums),
        cmocka_unit_test_teardown(test_the_other_value_again, done),
        cmocka_unit_test_teardown(test_who_must_be_lying, done),
        cmocka_unit_test_teardown(test_first_term_once, done),
        cmocka_unit_test_teardown(test_three_values, done),
        cmocka_unit_test_teardown(test_who_could_tell_is_bound, done),
        cmocka_unit_test_teardown(test_a_chain_that_is_cut, done),
        cmocka_unit_test_teardown(test_one_update_a_round, done),
        cmocka_unit_test(test_revealed_once)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
