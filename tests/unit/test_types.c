// SPDX-License-Identifier: Apache-2.0
// inter/types: the bytes of manifests and records. The cases: round trips, truncation, and values
// beyond every limit.
#include "agent/base/sha256.h"
#include "inter/record/tune.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEVEL(name) ((uint8_t)cmp_level_of(name))

static struct inter_manifest a_manifest(void) {
    struct inter_manifest m = {.key = {.round = 0x01020304, .fragment = 63, .member = 15},
                               .bytes = 1 << 20,
                               .chunk_bytes = INTER_CHUNK_MIN,
                               .tokens = (1ull << 56) - 1,
                               .steps = UINT32_MAX,
                               .missed = 7,
                               .step = 1ull << 33,
                               .flags = INTER_FINAL,
                               .measure = {100000, 80000, 250000, 0.11f, LEVEL("int3"), true},
                               .digest = {UINT64_MAX, 5}};
    m.key.attempt = 0xfffffffe;
    for (size_t i = 0; i < sizeof m.key.job; i++)
        m.key.job[i] = (uint8_t)(i + 1);
    memset(m.sha256, 0xa5, sizeof m.sha256);
    memset(m.sig, 0x3c, sizeof m.sig);
    return m;
}

static struct inter_record a_record(uint8_t n) {
    struct inter_record r = {
        .round = 9,
        .fragment = 63,
        .term = 0x11223344,
        .leader = 15,
        .flags = INTER_MERGE,
        .eta = 0.9f,
        .mu = 0.6f,
        .n = n,
        .n_plans = 2,
        .plans = {{20, 3, LEVEL("int4"), INTER_REASON_LATE, 32}, {70000, 1, 0, 0, 0}},
        .cursors = {1ull << 40, 3},
        .absences = {{9, 1ull << 50}, {10, 0}},
        .n_accepts = 2};
    memset(r.job, 7, sizeof r.job);
    memset(r.previous, 0x55, sizeof r.previous);
    memset(r.sig, 0x99, sizeof r.sig);
    r.accepts[0].epoch = 12345;
    r.accepts[1].member = 3;
    for (uint8_t i = 0; i < n; i++) {
        r.entries[i] = (struct inter_entry){.member = i,
                                            .flags = INTER_FINAL,
                                            .attempt = i * 3u,
                                            .bytes = 1000u + i,
                                            .tokens = 1ull << (3 * i),
                                            .weight = 5u + i,
                                            .digest = {i + 77u, ~(uint64_t)i},
                                            .clip = 1.0f / (float)(i + 1)};
        memset(r.entries[i].sha256, i, sizeof r.entries[i].sha256);
    }
    return r;
}

static struct neb_buf manifest_bytes(const struct inter_manifest *m) {
    struct neb_buf b = {0};
    inter_manifest_put(&b, m);
    return b;
}

static struct neb_buf record_bytes(const struct inter_record *r) {
    struct neb_buf b = {0};
    inter_record_put(&b, r);
    return b;
}

static bool manifest_parses(const void *p, size_t n, struct inter_manifest *out) {
    struct neb_rd r = neb_rd_make(p, n);
    return inter_manifest_get(&r, out) && neb_rd_done(&r);
}

static bool record_parses(const void *p, size_t n, struct inter_record *out) {
    struct neb_rd r = neb_rd_make(p, n);
    return inter_record_get(&r, out) && neb_rd_done(&r);
}

static void same_bytes(struct neb_buf *a, struct neb_buf *b) {
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->p, b->p, a->len);
    neb_buf_free(b);
}

static void test_manifest_round_trip(void **state) {
    (void)state;
    struct inter_manifest m = a_manifest(), got;
    struct neb_buf b = manifest_bytes(&m), again;
    assert_true(manifest_parses(b.p, b.len, &got));
    assert_true(inter_key_equal(&m.key, &got.key));
    assert_memory_equal(m.sha256, got.sha256, sizeof m.sha256);
    assert_memory_equal(m.sig, got.sig, sizeof m.sig);
    assert_memory_equal(m.digest, got.digest, sizeof m.digest);
    assert_int_equal(got.bytes, m.bytes);
    assert_int_equal(got.chunk_bytes, m.chunk_bytes);
    assert_int_equal(got.tokens, m.tokens);
    assert_int_equal(got.steps, m.steps);
    assert_int_equal(got.missed, m.missed);
    assert_true(got.step == m.step);
    assert_int_equal(got.flags, m.flags);
    assert_int_equal(got.measure.goodput_kbps, 100000);
    assert_int_equal(got.measure.rtt_us, 80000);
    assert_int_equal(got.measure.step_us, 250000);
    assert_true(got.measure.error == 0.11f && got.measure.full);
    assert_int_equal(got.measure.codec, LEVEL("int3"));
    again = manifest_bytes(&got);
    uint8_t *level = again.p + again.len - sizeof m.sig - 2; // before `full`
    assert_int_equal(*level, 3);
    *level = 255; // no such codec level
    assert_false(manifest_parses(again.p, again.len, &m));
    *level = 3;
    same_bytes(&b, &again);
    neb_buf_free(&b);
}

static void test_record_round_trip(void **state) {
    (void)state;
    for (uint8_t n = 1; n <= NEB_MEMBERS_MAX; n++) {
        struct inter_record r = a_record(n), got;
        struct neb_buf b = record_bytes(&r), again;
        assert_true(record_parses(b.p, b.len, &got));
        assert_int_equal(got.n, n);
        assert_int_equal(got.term, r.term);
        assert_int_equal(got.leader, r.leader);
        assert_true(got.eta == r.eta && got.mu == r.mu);
        assert_int_equal(got.n_plans, 2);
        assert_int_equal(got.plans[0].interval, 20);
        assert_int_equal(got.plans[0].codec, LEVEL("int4"));
        assert_int_equal(got.plans[0].reason, INTER_REASON_LATE);
        assert_int_equal(got.plans[0].left_out, 32);
        assert_int_equal(got.plans[1].interval, 70000);
        assert_int_equal(got.plans[1].overlap, 1);
        assert_true(got.cursors[0] == 1ull << 40 && got.cursors[1] == 3);
        assert_true(got.absences[0].base == 9 && got.absences[0].others == 1ull << 50 &&
                    got.absences[1].base == 10);
        assert_int_equal(got.n_accepts, 2);
        assert_int_equal(got.accepts[0].epoch, 12345);
        assert_int_equal(got.accepts[1].member, 3);
        assert_memory_equal(got.previous, r.previous, sizeof r.previous);
        assert_int_equal(got.entries[n - 1].bytes, 999u + n);
        assert_int_equal(got.entries[n - 1].tokens, 1ull << (3 * (n - 1)));
        assert_int_equal(got.entries[n - 1].weight, 4u + n);
        assert_true(got.entries[n - 1].clip == 1.0f / (float)n);
        assert_true(got.entries[n - 1].digest[0] == n + 76u &&
                    got.entries[n - 1].digest[1] == ~(uint64_t)(n - 1));
        again = record_bytes(&got);
        same_bytes(&b, &again);
        neb_buf_free(&b);
    }
}

static void test_cut_anywhere(void **state) {
    (void)state;
    struct inter_manifest m = a_manifest(), mg;
    struct inter_record r = a_record(3), rg;
    struct neb_buf b = manifest_bytes(&m), c = record_bytes(&r);
    // A copy of the exact size lets sanitizers see reads past it.
    for (size_t n = 0; n < b.len; n++) {
        uint8_t *cut = malloc(n + 1);
        assert_non_null(cut);
        memcpy(cut, b.p, n);
        assert_false(manifest_parses(cut, n, &mg));
        free(cut);
    }
    for (size_t n = 0; n < c.len; n++) {
        uint8_t *cut = malloc(n + 1);
        assert_non_null(cut);
        memcpy(cut, c.p, n);
        assert_false(record_parses(cut, n, &rg));
        free(cut);
    }
    neb_buf_u8(&b, 0);
    neb_buf_u8(&c, 0);
    assert_false(manifest_parses(b.p, b.len, &mg)); // one byte too many
    assert_false(record_parses(c.p, c.len, &rg));
    neb_buf_free(&b);
    neb_buf_free(&c);
}

static bool manifest_ok(struct inter_manifest m) {
    struct inter_manifest got;
    struct neb_buf b = manifest_bytes(&m);
    bool ok = manifest_parses(b.p, b.len, &got);
    neb_buf_free(&b);
    return ok;
}

static void test_manifest_limits(void **state) {
    (void)state;
    struct inter_manifest m = a_manifest();
    assert_true(manifest_ok(m));
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        struct inter_manifest x = m;                                                               \
        x.field = (value);                                                                         \
        assert_false(manifest_ok(x));                                                              \
    } while (0)
    REFUSED(key.fragment, INTER_FRAGMENTS_MAX);
    REFUSED(key.member, NEB_MEMBERS_MAX);
    REFUSED(bytes, 0);
    REFUSED(bytes, INTER_BLOB_MAX + 1u);
    REFUSED(bytes, UINT32_MAX);
    REFUSED(chunk_bytes, 0); // a chunk size of zero would divide by it
    REFUSED(chunk_bytes, INTER_CHUNK_MIN - 1);
    REFUSED(chunk_bytes, INTER_CHUNK_MAX + 1);
    REFUSED(tokens, 1ull << 56);
    REFUSED(flags, INTER_FINAL + 1);
#undef REFUSED
    m.bytes = INTER_CHUNK_MIN * (uint32_t)INTER_CHUNKS_MAX; // as many chunks as a bitmap may have
    assert_int_equal(inter_chunks(m.bytes, m.chunk_bytes), INTER_CHUNKS_MAX);
    assert_true(manifest_ok(m));
    m.bytes++;
    assert_false(manifest_ok(m));
    m.bytes = INTER_BLOB_MAX;
    m.chunk_bytes = 64 << 10;
    assert_int_equal(inter_chunks(m.bytes, m.chunk_bytes), INTER_BLOB_MAX >> 16);
    assert_true(manifest_ok(m));
    m.chunk_bytes = INTER_CHUNK_MAX;
    assert_int_equal(inter_chunks(m.bytes, m.chunk_bytes), INTER_BLOB_MAX >> 20);
    assert_true(manifest_ok(m));
    m.bytes = 1;
    assert_true(manifest_ok(m));
}

static bool record_ok(const struct inter_record *r) {
    struct inter_record got;
    struct neb_buf b = record_bytes(r);
    bool ok = record_parses(b.p, b.len, &got);
    neb_buf_free(&b);
    return ok;
}

static void test_record_limits(void **state) {
    (void)state;
    struct inter_record r = a_record(3);
    assert_true(record_ok(&r));
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        struct inter_record x = r;                                                                 \
        x.field = (value);                                                                         \
        assert_false(record_ok(&x));                                                               \
    } while (0)
    REFUSED(fragment, INTER_FRAGMENTS_MAX);
    REFUSED(leader, NEB_MEMBERS_MAX);
    REFUSED(n, 0);
    REFUSED(eta, -0.1f);
    REFUSED(eta, 11);
    REFUSED(eta, NAN);
    REFUSED(mu, 1);
    REFUSED(mu, -0.5f);
    REFUSED(mu, NAN);
    REFUSED(entries[1].member, 0); // the same member twice
    REFUSED(entries[0].member, 2); // not in order
    REFUSED(entries[2].member, NEB_MEMBERS_MAX);
    REFUSED(entries[0].clip, 0);
    REFUSED(entries[0].clip, -1);
    REFUSED(entries[0].clip, 1.5f);
    REFUSED(entries[0].clip, NAN);
    REFUSED(entries[0].clip, INFINITY);
    REFUSED(entries[0].verdict, INTER_REJECTED + 1);
    REFUSED(entries[0].weight, INTER_TOKENS_MAX + 1);
    REFUSED(absences[1].others, INTER_OTHERS_MAX + 1);
    REFUSED(accepts[1].member, 0); // the same voter twice
    REFUSED(accepts[1].member, NEB_MEMBERS_MAX);
#undef REFUSED
    // A count of entries beyond the array must be refused before the first one is read.
    struct neb_buf b = record_bytes(&r);
    struct inter_record got;
    size_t at = 4 + 1 + 1 + INTER_ID_BYTES + 4 + 4 + 1 + 4 + 4 + 32;
    assert_int_equal(b.p[at], 3);
    for (int n = NEB_MEMBERS_MAX + 1; n < 256; n++) {
        b.p[at] = (uint8_t)n;
        assert_false(record_parses(b.p, b.len, &got));
    }
    b.p[at] = 3;
    assert_true(record_parses(b.p, b.len, &got));
    b.p[4 + 1] = INTER_RECORD_VERSION - 1; // another version
    assert_false(record_parses(b.p, b.len, &got));
    neb_buf_free(&b);
}

// The hash covers the value. It does not cover term and leader in front, or signature and votes at
// the end. The signed bytes include term and leader.
static void test_hash_and_body(void **state) {
    (void)state;
    const size_t front = 4 + 1;
    struct inter_record r = a_record(2), got;
    struct neb_buf b = record_bytes(&r), body = {0};
    uint8_t want[INTER_SHA_BYTES], have[INTER_SHA_BYTES], sha[INTER_SHA_BYTES];
    inter_record_hash(&r, want);
    inter_record_put_body(&body, &r);
    assert_int_equal(body.len + INTER_SIG_BYTES + 1 + 2 * (1 + 8 + INTER_SIG_BYTES), b.len);
    assert_memory_equal(body.p, b.p, body.len);
    neb_sha256(body.p + front, body.len - front, sha);
    assert_memory_equal(sha, want, sizeof want);
    unsigned parsed = 0;
    for (size_t i = 0; i < b.len; i++) {
        b.p[i] ^= 1;
        if (record_parses(b.p, b.len, &got)) {
            parsed++;
            inter_record_hash(&got, have);
            assert_int_equal(memcmp(have, want, sizeof want) == 0, i < front || i >= body.len);
        }
        b.p[i] ^= 1;
    }
    assert_true(parsed > 150);
    neb_buf_free(&b);
    neb_buf_free(&body);
}

static void test_standing(void **state) {
    (void)state;
    struct inter_standing s = {.term = 7,
                               .joined = true,
                               .epoch = 99,
                               .renewed = mset_from_bits(0x8001)},
                          got;
    struct neb_buf b = {0};
    memset(s.job, 3, sizeof s.job);
    for (int i = 0; i < NEB_MEMBERS_MAX; i++)
        s.epochs[i] = 1000u + (unsigned)i;
    inter_standing_put(&b, &s);
    struct neb_rd r = neb_rd_make(b.p, b.len);
    assert_true(inter_standing_get(&r, &got));
    assert_int_equal(got.term, 7);
    assert_true(got.joined);
    assert_int_equal(got.epoch, 99);
    assert_int_equal(mset_bits(got.renewed), 0x8001);
    assert_memory_equal(got.epochs, s.epochs, sizeof s.epochs);
    for (size_t n = 0; n < b.len; n++) {
        r = neb_rd_make(b.p, n);
        assert_false(inter_standing_get(&r, &got));
    }
    b.p[0] = 2; // another version
    r = neb_rd_make(b.p, b.len);
    assert_false(inter_standing_get(&r, &got));
    neb_buf_free(&b);
}

// No term above INTER_TERM_MAX is read anywhere, so adding members to a term never wraps.
static void test_terms(void **state) {
    (void)state;
    const uint64_t second = 1000000000, since = 1735689600;
    struct inter_standing st = {.term = INTER_TERM_MAX, .epoch = 1}, got;
    struct inter_record r = a_record(3), back;
    struct neb_buf b = {0};
    for (int beyond = 0; beyond < 5; beyond++) {
        struct inter_record x = r;
        x.term = INTER_TERM_MAX + (beyond == 1);
        x.n_promises = 1;
        x.promises[0] = (struct inter_promise){.member = 1,
                                               .voted = true,
                                               .term = INTER_TERM_MAX + (beyond == 2),
                                               .vote_term = INTER_TERM_MAX + (beyond == 3)};
        if (beyond == 4)
            x.term = x.promises[0].term = x.promises[0].vote_term = UINT32_MAX;
        neb_buf_clear(&b);
        inter_record_put(&b, &x);
        struct neb_rd in = neb_rd_make(b.p, b.len);
        assert_int_equal(inter_record_get(&in, &back), !beyond);
        st.term = INTER_TERM_MAX + (uint32_t)beyond;
        neb_buf_clear(&b);
        inter_standing_put(&b, &st);
        in = neb_rd_make(b.p, b.len);
        assert_int_equal(inter_standing_get(&in, &got), !beyond);
    }
    neb_buf_free(&b);
    assert_true(INTER_TERM_MAX <= UINT32_MAX - 2 * NEB_MEMBERS_MAX);
    // A clock before 2025 counts as the first second; each later second allows four more terms, up
    // to the last term.
    assert_int_equal(inter_term_last(0), INTER_TERMS_AHEAD + 4);
    assert_int_equal(inter_term_last(since * second), INTER_TERMS_AHEAD + 4);
    assert_int_equal(inter_term_last((since + 86400) * second), INTER_TERMS_AHEAD + 4 * 86400);
    assert_true(inter_term_last((since + 33 * 31557600ull) * second) < INTER_TERM_MAX);
    assert_int_equal(inter_term_last((since + 35 * 31557600ull) * second), INTER_TERM_MAX);
    assert_int_equal(inter_term_last(UINT64_MAX), INTER_TERM_MAX);
}

static void test_key(void **state) {
    (void)state;
    struct inter_key k = a_manifest().key, got;
    struct neb_buf b = {0};
    inter_key_put(&b, &k);
    struct neb_rd r = neb_rd_make(b.p, b.len);
    inter_key_get(&r, &got);
    assert_true(neb_rd_done(&r));
    assert_true(inter_key_equal(&k, &got));
    for (size_t i = 0; i < b.len; i++) { // every byte distinguishes two keys
        b.p[i] ^= 0x80;
        r = neb_rd_make(b.p, b.len);
        inter_key_get(&r, &got);
        assert_false(inter_key_equal(&k, &got));
        b.p[i] ^= 0x80;
    }
    neb_buf_free(&b);
    assert_int_equal(inter_chunks(1, INTER_CHUNK_MIN), 1);
    assert_int_equal(inter_chunks(INTER_CHUNK_MIN, INTER_CHUNK_MIN), 1);
    assert_int_equal(inter_chunks(INTER_CHUNK_MIN + 1, INTER_CHUNK_MIN), 2);
    assert_int_equal(inter_chunks(INTER_BLOB_MAX, INTER_CHUNK_MAX), 4095);
}

// Ledgers that begin in different seconds never have the same attempt numbers. Those of the later
// ledger are greater.
static void test_attempts(void **state) {
    (void)state;
    const uint64_t second = 1000000000u;
    const struct {
        uint64_t epoch;
        uint32_t first;
    } table[] = {
        {1, 4},                   // a clock that was never set
        {1735689600 * second, 4}, // 2025-01-01
        {1735689602 * second + 999999999, 8},
        {1763683200 * second, 111974400}, // 2025-11-21
        {(1735689600ull + (1u << 30) - 2) * second, 0xfffffff8},
        {UINT64_MAX, 0xfffffffc}, // beyond 2059
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        assert_int_equal(inter_attempt_first(table[i].epoch), table[i].first);
    for (uint64_t s = 1763683200; s < 1763683300; s++)
        assert_true(inter_attempt_first(s * second) + INTER_RETRIES_MAX <
                    inter_attempt_first((s + 1) * second));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_manifest_round_trip),
                                       cmocka_unit_test(test_record_round_trip),
                                       cmocka_unit_test(test_cut_anywhere),
                                       cmocka_unit_test(test_manifest_limits),
                                       cmocka_unit_test(test_record_limits),
                                       cmocka_unit_test(test_hash_and_body),
                                       cmocka_unit_test(test_standing),
                                       cmocka_unit_test(test_terms),
                                       cmocka_unit_test(test_key),
                                       cmocka_unit_test(test_attempts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
