// SPDX-License-Identifier: Apache-2.0
// A round of two members says only what the other cannot compute: the update brings its manifest,
// the proposal leaves out what follows from the manifests, and the second member needs no COMMIT.
// Where the two expect different records, the proposal follows in full.
#include "agent/base/sha256.h"
#include "tests/unit/node_fixture.h"

enum { BYTES = 100, TYPES = MSG_AGREE + 1 };

static struct two {
    struct inter_node *node;
    uint8_t blob[BYTES];
    struct inter_record commit;
    bool committed;
} two[2];
static uint32_t said[TYPES];
static void (*tamper)(uint8_t *p, size_t len); // with a SHORT before it arrives

static void give(uint8_t to, struct inter_event e);

// Carries out what a node asks for, in order. Messages arrive at once.
static void carry_out(uint8_t who, struct inter_actions *a) {
    for (size_t i = 0; i < a->n; i++) {
        const struct inter_action *x = &a->list[i];
        uint8_t m[4096];
        if (x->kind == INTER_ACT_STORE_COMMIT) {
            two[who].commit = x->record;
            two[who].committed = true;
        } else if (x->kind == INTER_ACT_BLOB_FINISH) {
            give(who,
                 (struct inter_event){
                     .kind = INTER_EV_BLOB_DONE, .key = x->manifest.key, .ok = true, .norm = 1});
        } else if (x->kind == INTER_ACT_SEND || x->kind == INTER_ACT_SEND_CHUNK) {
            bool bulk = x->kind == INTER_ACT_SEND_CHUNK;
            size_t len = x->size;
            memcpy(m, a->bytes.p + x->at, len);
            if (bulk) {
                uint8_t sha[INTER_SHA_BYTES];
                neb_sha256(two[who].blob, BYTES, sha);
                memcpy(m + len - 8, sha, 8);
                memcpy(m + len, two[who].blob, BYTES);
                len += BYTES;
            }
            said[m[0]]++;
            if (m[0] == MSG_SHORT && tamper)
                tamper(m, len);
            give(!who,
                 (struct inter_event){
                     .kind = INTER_EV_MESSAGE, .peer = who, .bulk = bulk, .data = m, .len = len});
        }
        if (x->kind == INTER_ACT_SEND_COMMIT) {
            struct neb_buf b = {0};
            inter_node_commit_message(&b, &two[who].commit);
            give(!who, (struct inter_event){
                           .kind = INTER_EV_MESSAGE, .peer = who, .data = b.p, .len = b.len});
            neb_buf_free(&b);
        }
        if (x->kind == INTER_ACT_FAULT)
            faults[x->fault]++;
    }
}

static void give(uint8_t to, struct inter_event e) {
    struct inter_actions a = {0};
    OK(inter_node_step(two[to].node, now, &e, &a));
    carry_out(to, &a);
    inter_actions_free(&a);
}

static struct fragment *of(uint8_t who) {
    return &node_find_job(two[who].node, job_id)->fragments[0];
}

static void begin_two(void) {
    const struct inter_node_crypto crypto = {NULL, sign, verify};
    now = NEB_S;
    memset(faults, 0, sizeof faults);
    for (uint8_t i = 0; i < 2; i++) {
        struct inter_job_config c = {.n_members = 2,
                                     .self = i,
                                     .fragments = 1,
                                     .epoch = EPOCH + i,
                                     .merge_after = 3,
                                     .eta = 1,
                                     .peers = {0, 1},
                                     .tune = {.start_interval = 10}};
        struct inter_standing st = {
            .joined = true, .epoch = EPOCH + i, .epochs = {EPOCH, EPOCH + 1}};
        memcpy(c.id, job_id, sizeof job_id);
        memcpy(st.job, job_id, sizeof job_id);
        st.epochs[i] = 0;
        inter_node_destroy(&two[i].node);
        two[i].committed = false;
        memset(two[i].blob, 7 + i, BYTES);
        OK(inter_node_create(&crypto, &two[i].node));
        OK(inter_node_job_open(two[i].node, &c));
        inter_node_restore_standing(two[i].node, &st);
    }
    for (uint8_t i = 0; i < 2; i++)
        give(i, (struct inter_event){.kind = INTER_EV_PEER_UP, .peer = !i});
    memset(said, 0, sizeof said);
}

static void submit(uint8_t who) {
    struct inter_manifest m = {.key = {.member = who, .attempt = 1},
                               .bytes = BYTES,
                               .chunk_bytes = INTER_CHUNK_MIN,
                               .tokens = 512,
                               .step = 1,
                               .steps = 1};
    memcpy(m.key.job, job_id, sizeof job_id);
    neb_sha256(two[who].blob, BYTES, m.sha256);
    give(who, (struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &m, .norm = 1});
}

static void assert_same_commit(void) {
    uint8_t hash[2][INTER_SHA_BYTES];
    for (uint8_t i = 0; i < 2; i++) {
        assert_true(two[i].committed);
        assert_int_equal(of(i)->round, 1);
        assert_int_equal(two[i].commit.n_accepts, 2);
        inter_record_hash(&two[i].commit, hash[i]);
    }
    assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
}

static void test_a_round_in_short(void **state) {
    (void)state;
    for (uint8_t first = 0; first < 2; first++) {
        begin_two();
        submit(first);
        submit(!first);
        assert_same_commit();
        assert_int_equal(said[MSG_UPDATE], 2);
        assert_int_equal(said[MSG_SHORT], 1);
        assert_int_equal(said[MSG_AGREE], 1);
        assert_int_equal(said[MSG_STATE], 1u + first); // a proposal at once makes one needless
        assert_int_equal(said[MSG_MANIFEST] + said[MSG_CHUNK] + said[MSG_ACK], 0);
        assert_int_equal(said[MSG_PROPOSE] + said[MSG_ACCEPT] + said[MSG_COMMIT], 0);
        for (int f = 0; f < INTER_FAULTS; f++)
            assert_int_equal(faults[f], 0);
    }
}

static size_t spoilt;
static void spoil(uint8_t *p, size_t len) {
    if (1 + spoilt < len)
        p[1 + spoilt] ^= 0x11;
}

// A SHORT with one byte changed gives the record that the leader signed, or none: then the proposal
// follows in full.
static void test_another_expectation(void **state) {
    (void)state;
    tamper = spoil;
    uint32_t in_full = 0;
    for (spoilt = 0; spoilt < 240; spoilt++) {
        begin_two();
        submit(1);
        submit(0);
        for (int i = 0; i < 20 && !(two[0].committed && two[1].committed); i++) {
            now += NEB_S / 4;
            give(0, (struct inter_event){.kind = INTER_EV_TICK, .peer = 1});
            give(1, (struct inter_event){.kind = INTER_EV_TICK, .peer = 0});
        }
        if (!two[0].committed || !two[1].committed)
            fail_msg("no commit after byte %zu was changed", spoilt);
        assert_same_commit();
        in_full += said[MSG_PROPOSE];
    }
    tamper = NULL;
    assert_true(in_full >= 10); // the fields before the signatures, which this test does not check
}

static int done_two(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        inter_node_destroy(&two[i].node);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_round_in_short, done_two),
        cmocka_unit_test_teardown(test_another_expectation, done_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
