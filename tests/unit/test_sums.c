// SPDX-License-Identifier: Apache-2.0
// inter/sums on a simulated network that loses, repeats and reorders messages, with members that
// drop out, fall silent, restart or are Byzantine. Members that are present read the plain sum, and
// no seed is revealed for another set.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "inter/round/sums.h"
#include "tests/sum_mask.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 300, MAIL = 4096 };
struct mail {
    uint8_t from, to;
    struct neb_buf b;
};
struct member {
    uint8_t id;
    bool down, knows, noted;       // knows: has the record
    uint8_t hash[INTER_SHA_BYTES]; // the record that it reveals for, if noted
    struct sec_sum *sum;
    struct inter_sums *s;
    struct neb_buf blob, kept;
    bool ready;
    int asked;
};
static struct member members[NEB_MEMBERS_MAX];
static struct mail mail[MAIL];
static size_t n_mail;
static int16_t values[NEB_MEMBERS_MAX][COUNT];
static struct inter_record record;
static uint8_t n, secrets[NEB_MEMBERS_MAX][32], publics[NEB_MEMBERS_MAX][32];
static const uint8_t job[INTER_ID_BYTES] = {7};
static neb_ns now;
static struct neb_rng rng;

// ---- the network ----

static void seal(uint32_t who, const char *context, const void *msg, size_t len,
                 uint8_t sig[INTER_SIG_BYTES]) {
    crypto_generichash_state h;
    crypto_generichash_init(&h, (const uint8_t *)&who, 0, INTER_SIG_BYTES);
    crypto_generichash_update(&h, (const uint8_t *)&who, sizeof who);
    crypto_generichash_update(&h, (const uint8_t *)context, strlen(context));
    crypto_generichash_update(&h, msg, len);
    crypto_generichash_final(&h, sig, INTER_SIG_BYTES);
}
static bool sign(void *user, const char *context, const void *msg, size_t len,
                 uint8_t sig[INTER_SIG_BYTES]) {
    seal(100u + *(uint8_t *)user, context, msg, len, sig);
    return true;
}
static bool verify(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                   const uint8_t sig[INTER_SIG_BYTES]) {
    uint8_t is[INTER_SIG_BYTES];
    (void)user;
    seal(peer, context, msg, len, is);
    return !memcmp(is, sig, sizeof is);
}
static struct inter_node_crypto crypto[NEB_MEMBERS_MAX];

static void on_send(void *user, uint8_t to, const void *p, size_t len) {
    const struct member *m = user;
    // a message is lost, or sent once or twice
    for (uint64_t copies = neb_rng_below(&rng, 3); copies > 0 && n_mail < MAIL; copies--) {
        struct mail *x = &mail[n_mail++];
        *x = (struct mail){.from = m->id, .to = to};
        neb_buf_add(&x->b, p, len);
    }
}
// As the ledger does this (tests/security/test_two_sets.c).
static enum neb_status on_keep(void *user, const struct inter_record *r) {
    struct member *m = user;
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_hash(r, hash);
    if (m->noted && memcmp(hash, m->hash, sizeof hash) != 0)
        return NEB_ERR_EXISTS;
    m->noted = true;
    memcpy(m->hash, hash, sizeof hash);
    return NEB_OK;
}
static void on_ready(void *user, uint32_t fragment, uint32_t round, const void *p, size_t len) {
    struct member *m = user;
    assert_true(fragment == record.fragment && round == record.round);
    assert_true(len <= INTER_SUMS_MESSAGE_MAX);
    neb_buf_clear(&m->kept);
    neb_buf_add(&m->kept, p, len);
    m->ready = true;
}

static void commit(struct member *m) {
    struct inter_sums_blob blobs[NEB_MEMBERS_MAX];
    for (uint8_t i = 0; i < record.n; i++)
        blobs[i] = (struct inter_sums_blob){members[record.entries[i].member].blob.p,
                                            members[record.entries[i].member].blob.len};
    assert_int_equal(inter_sums_commit(m->s, now, &record, blobs, m->kept.p, m->kept.len), NEB_OK);
    m->knows = true;
}
static void on_look_up(void *user, uint8_t from, uint32_t fragment, uint32_t round) {
    struct member *m = user;
    (void)from;
    m->asked++;
    if (m->knows && fragment == record.fragment && round == record.round)
        commit(m);
}

static void open_member(struct member *m) {
    struct inter_sums_config c = {.colluders = 1,
                                  .n = n,
                                  .self = m->id,
                                  .crypto = &crypto[m->id],
                                  .sum = m->sum,
                                  .ops = {m, on_send, on_keep, on_ready, on_look_up}};
    memcpy(c.job, job, sizeof job);
    for (uint8_t k = 0; k < n; k++)
        c.peers[k] = 100u + k;
    assert_int_equal(inter_sums_create(&c, &m->s), NEB_OK);
}

static void start(uint8_t how_many, uint64_t seed, uint16_t set) {
    n = how_many;
    rng = neb_rng_make(seed, 3);
    now = NEB_S;
    n_mail = 0;
    record = (struct inter_record){.round = 4, .fragment = 1, .term = 1};
    memcpy(record.job, job, sizeof job);
    for (uint8_t k = 0; k < n; k++) {
        struct member *m = &members[k];
        uint8_t keys[NEB_MEMBERS_MAX][SEC_SUM_KEY_BYTES] = {{0}};
        *m = (struct member){.id = k};
        crypto[k] = (struct inter_node_crypto){&m->id, sign, verify};
        for (uint8_t j = 0; j < n; j++)
            if (j != k)
                assert_int_equal(sec_sum_pair_key(secrets[k], publics[k], publics[j], job, keys[j]),
                                 NEB_OK);
        assert_int_equal(sec_sum_create(n, k, (const uint8_t(*)[SEC_SUM_KEY_BYTES])keys, &m->sum),
                         NEB_OK);
        for (int i = 0; i < COUNT; i++)
            values[k][i] = (int16_t)((int32_t)neb_rng_below(&rng, 2000) - 1000);
        assert_int_equal(sum_mask(m->sum, 1, 4, values[k], COUNT, &m->blob), NEB_OK);
        if (set >> k & 1) {
            record.entries[record.n] = (struct inter_entry){
                .tokens = 512, .member = k, .bytes = (uint32_t)m->blob.len, .clip = 1};
            neb_sha256(m->blob.p, m->blob.len, record.entries[record.n++].sha256);
        }
        open_member(m);
    }
}
static void stop(void) {
    for (size_t i = 0; i < n_mail; i++)
        neb_buf_free(&mail[i].b);
    for (uint8_t k = 0; k < n; k++) {
        inter_sums_destroy(&members[k].s);
        sec_sum_destroy(&members[k].sum);
        neb_buf_free(&members[k].blob);
        neb_buf_free(&members[k].kept);
    }
}

// Delivers random messages in flight, then lets time pass; `turns` times.
static void go(int turns) {
    for (int t = 0; t < turns; t++) {
        for (uint64_t k = neb_rng_below(&rng, 64); k > 0 && n_mail; k--) {
            size_t i = (size_t)neb_rng_below(&rng, n_mail);
            struct mail x = mail[i];
            mail[i] = mail[--n_mail];
            if (!members[x.to].down && !members[x.from].down)
                inter_sums_message(members[x.to].s, now, x.from, x.b.p, x.b.len);
            neb_buf_free(&x.b);
        }
        now += 100 * NEB_MS;
        for (uint8_t k = 0; k < n; k++)
            if (!members[k].down)
                inter_sums_tick(members[k].s, now);
    }
}

static void check_read(const struct member *m, uint16_t set) {
    struct sec_sum_seeds seeds;
    struct sec_sum_head head;
    const uint8_t *bodies[NEB_MEMBERS_MAX] = {NULL};
    int16_t sum[COUNT];
    assert_true(m->ready && inter_sums_seeds(m->s, 1, 4, &seeds));
    for (uint8_t k = 0; k < n; k++)
        assert_int_equal(sec_sum_open(members[k].blob.p, members[k].blob.len, &head, &bodies[k]),
                         NEB_OK);
    assert_int_equal(mset_bits(seeds.set), set);
    assert_int_equal(sec_sum_unmask(&seeds, bodies, 0, COUNT, sum), NEB_OK);
    for (int i = 0; i < COUNT; i++) {
        int32_t plain = 0;
        for (uint8_t k = 0; k < n; k++)
            plain += set >> k & 1 ? values[k][i] : 0;
        assert_int_equal(sum[i], plain);
    }
}

// ---- tests ----

static void test_all_there(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        uint8_t how_many = (uint8_t)(3 + seed % 14);
        uint16_t all = (uint16_t)((1u << how_many) - 1);
        start(how_many, seed, all);
        for (uint8_t k = 0; k < n; k++) {
            go((int)neb_rng_below(&rng, 4));
            commit(&members[k]);
            commit(&members[k]); // delivered twice
        }
        go(200);
        for (uint8_t k = 0; k < n; k++)
            check_read(&members[k], all);
        stop();
    }
}

// With four or more members, one may be missing in the record, or be in it and stay silent. The
// others do not need the missing one.
static void test_one_member_missing(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        uint8_t how_many = (uint8_t)(4 + seed % 13), lost = (uint8_t)(seed % how_many);
        uint16_t all = (uint16_t)((1u << how_many) - 1),
                 set = (uint16_t)(seed % 2 ? all : all & ~(1u << lost));
        start(how_many, seed, set);
        members[lost].down = true;
        for (uint8_t k = 0; k < n; k++)
            if (k != lost)
                commit(&members[k]);
        go(200);
        for (uint8_t k = 0; k < n; k++)
            if (k != lost)
                check_read(&members[k], set);
        members[lost].down = false; // it is back, catches up, and reads the same sum
        commit(&members[lost]);
        go(200);
        check_read(&members[lost], set);
        stop();
    }
}

// A member that restarts knows its record and keys, and reveals the same again. If it had read the
// sum before, it needs no other member for it.
static void test_restarts(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        start(5, seed, 0x1f);
        for (uint8_t k = 0; k < n; k++)
            commit(&members[k]);
        for (int t = 0; t < 60; t++) {
            struct member *m = &members[neb_rng_below(&rng, n)];
            inter_sums_destroy(&m->s);
            open_member(m);
            if (neb_rng_below(&rng, 2))
                commit(m); // otherwise another member's question triggers it
            go(5);
        }
        for (uint8_t k = 0; k < n; k++)
            commit(&members[k]);
        go(200);
        for (uint8_t k = 0; k < n; k++)
            check_read(&members[k], 0x1f);
        for (uint8_t k = 0; k < n; k++)
            members[k].down = k != 2;
        inter_sums_destroy(&members[2].s);
        open_member(&members[2]);
        commit(&members[2]);
        check_read(&members[2], 0x1f);
        inter_sums_forget(members[2].s, 1, 4);
        check_read(&members[2], 0x1f);
        inter_sums_forget(members[2].s, 1, 5);
        struct sec_sum_seeds seeds;
        assert_false(inter_sums_seeds(members[2].s, 1, 4, &seeds));
        assert_true(inter_sums_waits(members[2].s) == 0);
        stop();
    }
}

// Seeds are refused if they are forged, for another record, or not the announced ones. The members
// read the sum without the author of these seeds.
static void test_byzantine(void **state) {
    (void)state;
    start(4, 9, 0xf);
    commit(&members[0]);
    struct mail forged = {0};
    struct inter_record other = record;
    other.entries[0].tokens++; // a record that the others do not hold
    struct inter_sums_blob blobs[NEB_MEMBERS_MAX];
    for (uint8_t i = 0; i < 4; i++)
        blobs[i] = (struct inter_sums_blob){members[i].blob.p, members[i].blob.len};
    assert_int_equal(inter_sums_commit(members[3].s, now, &other, blobs, NULL, 0), NEB_OK);
    go(50);
    uint64_t faults = inter_sums_faults(members[0].s);
    assert_true(faults > 0); // these seeds are signed for another record
    assert_false(members[0].ready);
    assert_true(inter_sums_waits(members[0].s) > 0);
    for (size_t i = 0; i < n_mail; i++)
        neb_buf_free(&mail[i].b);
    n_mail = 0;
    members[3].down = true;
    commit(&members[1]);
    commit(&members[2]);
    // A seed that is not the announced one, though its owner signed it.
    uint8_t hash[INTER_SHA_BYTES], sig[INTER_SIG_BYTES];
    struct sec_sum_head heads[4];
    struct sec_sum_reveal r;
    const uint8_t *body;
    struct neb_buf b = {0};
    inter_record_hash(&record, hash);
    for (int k = 0; k < 4; k++)
        assert_int_equal(sec_sum_open(members[k].blob.p, members[k].blob.len, &heads[k], &body),
                         NEB_OK);
    assert_int_equal(sec_sum_reveal(members[3].sum, mset_first(4), heads, &r), NEB_OK);
    r.own[0] ^= 1;
    neb_buf_add(&b, job, sizeof job);
    neb_buf_u32(&b, 1);
    neb_buf_u32(&b, 4);
    neb_buf_add(&b, hash, sizeof hash);
    sec_sum_reveal_put(&b, &r);
    seal(103, "nebula reveal v1", b.p, b.len, sig);
    neb_buf_u8(&forged.b, 2);
    neb_buf_add(&forged.b, job, sizeof job);
    neb_buf_u32(&forged.b, 1);
    neb_buf_u32(&forged.b, 4);
    neb_buf_u8(&forged.b, 1);
    sec_sum_reveal_put(&forged.b, &r);
    neb_buf_add(&forged.b, sig, sizeof sig);
    faults = inter_sums_faults(members[0].s);
    inter_sums_message(members[0].s, now, 3, forged.b.p, forged.b.len);
    assert_int_equal(inter_sums_faults(members[0].s), faults + 1);
    for (size_t cut = 0; cut < forged.b.len; cut++) // a truncated message is refused
        inter_sums_message(members[0].s, now, 3, forged.b.p, cut);
    assert_true(inter_sums_faults(members[0].s) >= faults + forged.b.len);
    go(100);
    for (uint8_t k = 0; k < 3; k++)
        check_read(&members[k], 0xf);
    neb_buf_free(&b);
    neb_buf_free(&forged.b);
    stop();
}

// Members without new training send zeros: f + 2 updates of a sum must come from training.
// Otherwise no member reveals.
static void test_drained(void **state) {
    (void)state;
    for (uint8_t how_many = 3; how_many <= 8; how_many++)
        for (uint8_t fresh = 0; fresh <= how_many; fresh++) {
            struct inter_sums_blob blobs[NEB_MEMBERS_MAX];
            start(how_many, 1, (uint16_t)((1u << how_many) - 1));
            for (uint8_t i = 0; i < record.n; i++) {
                blobs[i] = (struct inter_sums_blob){members[i].blob.p, members[i].blob.len};
                record.entries[i].tokens = i < fresh ? 512 : 0;
            }
            assert_true(inter_sums_allowed(&record, how_many, 1));
            for (uint8_t f = 1; f + 2 <= how_many; f++)
                assert_int_equal(inter_sums_readable(&record, how_many, f), fresh >= f + 2);
            assert_int_equal(inter_sums_commit(members[0].s, now, &record, blobs, NULL, 0),
                             fresh >= 3 ? NEB_OK : NEB_ERR_DENIED);
            assert_true(fresh >= 3 || !n_mail); // the network may lose all messages
            stop();
        }
}

// No member reveals for a record with too few members, whoever signed the record.
static void test_too_few(void **state) {
    (void)state;
    struct inter_sums_blob blobs[NEB_MEMBERS_MAX];
    for (uint8_t how_many = 3; how_many <= 6; how_many++) {
        uint16_t set = (uint16_t)((1u << (how_many < 4 ? 2 : how_many - 2)) - 1);
        start(how_many, 1, set);
        for (uint8_t i = 0; i < record.n; i++)
            blobs[i] = (struct inter_sums_blob){members[i].blob.p, members[i].blob.len};
        assert_false(inter_sums_allowed(&record, how_many, 1));
        assert_int_equal(inter_sums_commit(members[0].s, now, &record, blobs, NULL, 0),
                         NEB_ERR_DENIED);
        assert_int_equal(n_mail, 0);
        stop();
    }
    start(4, 1, 0xf); // the update of one of four was rejected, so it counts as missing
    record.entries[2].verdict = INTER_REJECTED;
    assert_true(inter_sums_allowed(&record, 4, 1));
    for (uint8_t k = 0; k < 4; k++)
        commit(&members[k]);
    go(100);
    for (uint8_t k = 0; k < 4; k++)
        check_read(&members[k], 0xb);
    record.entries[1].verdict = INTER_REJECTED;
    assert_false(inter_sums_allowed(&record, 4, 1));
    stop();
    start(4, 1, 0xf); // an entry names another member's update
    for (uint8_t i = 0; i < 4; i++)
        blobs[i] = (struct inter_sums_blob){members[i ? i : 1].blob.p, members[i ? i : 1].blob.len};
    assert_int_equal(inter_sums_commit(members[0].s, now, &record, blobs, NULL, 0), NEB_ERR_FORMAT);
    assert_int_equal(n_mail, 0);
    stop();
}

static int setup(void **state) {
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    testing_key_pairs(NEB_MEMBERS_MAX, secrets, publics);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_there), cmocka_unit_test(test_one_member_missing),
        cmocka_unit_test(test_restarts),  cmocka_unit_test(test_byzantine),
        cmocka_unit_test(test_drained),   cmocka_unit_test(test_too_few)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
