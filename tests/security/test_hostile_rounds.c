// SPDX-License-Identifier: Apache-2.0
// Mallory sends different updates to different members, or attempt after attempt. All members use
// the updates that the record lists, and continue. She also claims any terms she likes. No member
// gives way, and no member comes near the last term.
#include "tests/security/hostile_fixture.h"

#include "agent/base/clock.h"

#include <dirent.h>

static size_t files_of(int who) {
    char path[NEB_PATH_MAX];
    size_t n = 0;
    OK(neb_path(path, sizeof path, sites[who].dir, "blobs"));
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strstr(e->d_name, "-m2-") != NULL; // mallory's
    closedir(d);
    return n;
}

// ---- attempts -----------------------------------------------------------------------------------

// Each attempt replaces the one before and removes what arrived of it, up to a limit.
static void test_many_attempts(void **state) {
    (void)state;
    struct neb_buf blob = {0};
    become_bare();
    make_update(GOOD, 5, &blob);
    for (int round = 0; round < 2; round++) {
        size_t before[2] = {files_of(ANNA), files_of(BERT)};
        for (uint32_t i = 1; i <= 200; i++) {
            struct inter_manifest m = manifest_of(&blob, UINT32_MAX - 300 + i);
            for (int to = ANNA; to <= BERT; to++) {
                say_manifest(to, &m);
                if (i % 7 == 0)
                    say_chunk(to, &m, &blob, 0);
            }
        }
        go_for(NEB_S);
        for (int to = ANNA; to <= BERT; to++) {
            assert_true(files_of(to) <= before[to] + 2); // one .part, perhaps a .map
            UNTIL(sites[to].faults[INTER_FAULT_FORGED] >= 150);
        }
        honest_round();
    }
    for (int k = ANNA; k <= BERT; k++) { // also after a restart with what is left on disk
        inter_service_destroy(&sites[k].s);
        start(&sites[k]);
        open_job(&sites[k]);
    }
    honest_round();
    expect_sound(&sites[ANNA]);
    expect_sound(&sites[BERT]);
    neb_buf_free(&blob);
}

// The manifest claims more missed intervals than its steps allow. If they were accepted, every
// round would become a merge round.
static void test_missed(void **state) {
    (void)state;
    struct neb_buf blob = {0};
    become_bare();
    make_update(GOOD, 6, &blob);
    struct inter_manifest m = manifest_of(&blob, UINT32_MAX - 9);
    m.missed = 100;
    sign_manifest(&m);
    say_manifest(ANNA, &m);
    say_manifest(BERT, &m);
    UNTIL(sites[ANNA].faults[INTER_FAULT_FORGED] == 1 &&
          sites[BERT].faults[INTER_FAULT_FORGED] == 1);
    honest_round();
    assert_int_equal(sites[ANNA].last.flags, 0);
    neb_buf_free(&blob);
}

// ---- two digests under one key ------------------------------------------------------------------

// Bert gets another update of mallory's than anna, completely or in part. Anna and mallory are a
// majority, so the record lists anna's.
static void two_digests(uint32_t chunks, bool restart) {
    struct neb_buf x = {0}, y = {0};
    struct inter_manifest former, there;
    uint32_t before = sites[ANNA].commits;
    make_update(GOOD, 100 + before, &x);
    make_update(GOOD, 900 + before, &y);
    struct inter_manifest mx = manifest_of(&x, UINT32_MAX - 7),
                          my = manifest_of(&y, UINT32_MAX - 7);
    announce(ANNA, &my);
    announce(BERT, &mx);
    give(BERT, &mx, &x, chunks);
    give(ANNA, &my, &y, 2);
    uint64_t second = sites[BERT].faults[INTER_FAULT_SECOND];
    submit(&sites[ANNA], GOOD);
    submit(&sites[BERT], GOOD);
    UNTIL(sites[ANNA].commits == before + 1);
    const struct inter_entry *e = entry_of(&sites[ANNA].last, MALLORY);
    assert_true(e && e->verdict == INTER_ACCEPTED);
    assert_memory_equal(e->sha256, my.sha256, sizeof e->sha256);
    if (restart && sites[BERT].commits == before) { // bert forgets what was decided
        inter_service_destroy(&sites[BERT].s);
        start(&sites[BERT]);
        open_job(&sites[BERT]);
    }
    UNTIL(sites[BERT].commits == before + 1);
    assert_true(sites[BERT].faults[INTER_FAULT_SECOND] > second);
    OK(inter_ledger_find_manifest(inter_service_ledger(sites[BERT].s), &my.key, &there));
    assert_memory_equal(there.sha256, my.sha256, sizeof my.sha256);
    // Both of mallory's signatures are kept.
    OK(inter_ledger_replaced(inter_service_ledger(sites[BERT].s), &mx.key, &former));
    assert_memory_equal(former.sha256, mx.sha256, sizeof mx.sha256);
    assert_memory_equal(former.sig, mx.sig, sizeof mx.sig);
    assert_int_equal(inter_ledger_replaced(inter_service_ledger(sites[ANNA].s), &mx.key, &former),
                     NEB_ERR_NOT_FOUND);
    neb_buf_free(&x);
    neb_buf_free(&y);
}

static void test_two_digests(void **state) {
    (void)state;
    become_bare();
    two_digests(2, false);
    two_digests(1, false);
    two_digests(0, false);
    two_digests(2, true);
    two_digests(1, true);
    honest_round();
    expect_sound(&sites[ANNA]);
    expect_sound(&sites[BERT]);
}

// ---- terms --------------------------------------------------------------------------------------

static neb_ns next_lie;
static uint32_t lies;

static uint32_t hers(uint32_t term) { return term - term % SITES - SITES + MALLORY; }

static void say_elect(int to, uint32_t term) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_ELECT);
    neb_buf_add(&b, job, sizeof job);
    neb_buf_u8(&b, 0); // she asks for it
    neb_buf_u32(&b, term);
    neb_buf_u64(&b, standing.epoch);
    say(index_of[to], INTER_CONTROL, b.p, b.len);
    neb_buf_free(&b);
}

static void say_promise(int to, uint32_t term) {
    struct inter_promise p = {
        .member = MALLORY, .term = term, .epoch = standing.epoch, .round = sites[to].commits};
    struct neb_buf b = {0};
    inter_promise_put_body(&b, job, 0, &p);
    OK(sec_sign(ids[MALLORY], SEC_CONTEXT_PROMISE, b.p, b.len, p.sig));
    neb_buf_clear(&b);
    neb_buf_u8(&b, MSG_PROMISE);
    neb_buf_add(&b, job, sizeof job);
    neb_buf_u8(&b, 0);
    neb_buf_u32(&b, p.term);
    neb_buf_u64(&b, p.epoch);
    neb_buf_u32(&b, 0); // fragment
    neb_buf_u32(&b, p.round);
    neb_buf_u8(&b, 0); // she has accepted nothing
    neb_buf_add(&b, p.sig, sizeof p.sig);
    say(index_of[to], INTER_CONTROL, b.p, b.len);
    neb_buf_free(&b);
}

static void say_accept(int to, uint32_t term) {
    struct inter_record r = {.round = sites[to].commits, .term = term};
    uint8_t hash[INTER_SHA_BYTES] = {1}, sig[INTER_SIG_BYTES];
    struct neb_buf b = {0};
    memcpy(r.job, job, sizeof job);
    neb_buf_u8(&b, MSG_ACCEPT);
    inter_accept_put_body(&b, &r, hash, standing.epoch);
    OK(sec_sign(ids[MALLORY], SEC_CONTEXT_ACCEPT, b.p + 1, b.len - 1, sig));
    neb_buf_add(&b, sig, sizeof sig);
    say(index_of[to], INTER_CONTROL, b.p, b.len);
    neb_buf_free(&b);
}

static void say_proposal(int to, uint32_t term) { // the last record again, in one of her terms
    struct inter_record r = sites[to].last;
    struct neb_buf b = {0};
    r.term = term;
    r.leader = MALLORY;
    inter_record_put_body(&b, &r);
    OK(sec_sign(ids[MALLORY], SEC_CONTEXT_RECORD, b.p, b.len, r.sig));
    neb_buf_clear(&b);
    neb_buf_u8(&b, MSG_PROPOSE);
    inter_record_put(&b, &r);
    neb_buf_u64(&b, standing.epoch);
    neb_buf_u8(&b, 0); // no manifests
    say(index_of[to], INTER_CONTROL, b.p, b.len);
    neb_buf_free(&b);
}

static struct inter_job_status status_of(int who) {
    struct inter_job_status st;
    assert_true(inter_service_job_status(sites[who].s, job, &st));
    return st;
}

// Claims terms: huge ones, the last of all, the last for this time of day, a little more each time.
// Mallory claims to lead, asks, promises and votes. Anna stays leader, and no term changes.
static void lie(void) {
    if (neb_now() < next_lie)
        return;
    next_lie = neb_now() + 50 * NEB_MS;
    const uint32_t last = inter_term_last((uint64_t)neb_wall_now());
    const uint32_t terms[] = {UINT32_MAX, 2,        INTER_TERM_MAX, last, INTER_TERM_MAX + 1,
                              1,          3 * lies, last + 1000,    0,    INTER_TERM_MAX - 9};
    uint32_t term = terms[lies++ % (sizeof terms / sizeof terms[0])], own = hers(term + SITES);
    for (int to = ANNA; to <= BERT; to++) {
        say_heartbeat(to, lies & 1 ? term : own,
                      HEARTBEAT_JOINED | (lies & 2 ? HEARTBEAT_LEADS : 0));
        say_elect(to, own);
        say_promise(to, own);
        say_accept(to, own);
        say_proposal(to, own);
        say_heartbeat(to, 0, HEARTBEAT_JOINED | HEARTBEAT_FOLLOWS); // she is present
        assert_int_equal(status_of(to).term, 0);
    }
    assert_true(status_of(ANNA).leads && status_of(BERT).leader == ANNA);
}

static void test_terms(void **state) {
    (void)state;
    become_bare();
    UNTIL(status_of(BERT).leader == ANNA);
    next_lie = lies = 0;
    each_pass = lie;
    honest_round();
    honest_round();
    UNTIL(lies > 40);
    each_pass = NULL;
    // One by one: a term beyond the last is malformed in every kind of message.
    static void (*const says[])(int, uint32_t) = {say_elect, say_promise, say_accept, say_proposal};
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++) {
        go_for(50 * NEB_MS); // what is in flight
        uint64_t before = sites[BERT].faults[INTER_FAULT_MALFORMED];
        says[i](BERT, hers(INTER_TERM_MAX));
        says[i](BERT, hers(INTER_TERM_MAX + 4));
        UNTIL(sites[BERT].faults[INTER_FAULT_MALFORMED] == before + (i < 2 ? 2 : 1));
    }
    expect_sound(&sites[ANNA]);
    expect_sound(&sites[BERT]);
}

// Anna is away, so bert hears no leader. Any member that asks gets a promise, but not for terms
// later than the time of day allows. Mallory cannot use it. When anna is back, she and bert
// continue in a higher term.
static void test_terms_leaderless(void **state) {
    (void)state;
    become_bare();
    inter_service_destroy(&sites[ANNA].s);
    uint64_t before = sites[BERT].faults[INTER_FAULT_MALFORMED];
    uint32_t last = inter_term_last((uint64_t)neb_wall_now()), highest = hers(last);
    say_heartbeat(BERT, 0, HEARTBEAT_JOINED);
    say_elect(BERT, hers(INTER_TERM_MAX));
    say_elect(BERT, hers(last + 2 * INTER_TERMS_AHEAD));
    UNTIL(sites[BERT].faults[INTER_FAULT_MALFORMED] == before + 2);
    for (neb_ns next = 0, end = neb_now() + 60 * NEB_S;
         status_of(BERT).term < highest && neb_now() < end; go())
        if (neb_now() > next) { // until bert no longer hears anna
            next = neb_now() + 100 * NEB_MS;
            say_elect(BERT, hers(last + INTER_TERMS_AHEAD)); // not allowed yet
            say_elect(BERT, highest);
        }
    assert_int_equal(status_of(BERT).term, highest);
    start(&sites[ANNA]);
    open_job(&sites[ANNA]);
    honest_round();
    assert_true(sites[ANNA].last.term > highest &&
                sites[ANNA].last.term <= inter_term_last((uint64_t)neb_wall_now()));
    expect_sound(&sites[ANNA]);
    expect_sound(&sites[BERT]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_many_attempts, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_missed, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_two_digests, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_terms, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_terms_leaderless, open_sites, close_sites)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
