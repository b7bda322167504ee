// SPDX-License-Identifier: Apache-2.0
// Mallory leads, and signs any record she likes. Anna and bert vote only for a record that follows
// from the records, manifests and bytes that they have. When mallory falls silent, the record that
// they voted for is committed.
#define HOSTILE_ORDER MALLORY, ANNA, BERT
#include "tests/security/hostile_fixture.h"

#include "inter/record/robust.h"
#include "inter/record/tune.h"
#include "inter/record/weights.h"

static neb_ns next_heartbeat;

// ---- a leader made by hand ----------------------------------------------------------------------

static void heartbeat(void) {
    if (neb_now() < next_heartbeat)
        return;
    next_heartbeat = neb_now() + 300 * NEB_MS;
    for (int to = ANNA; to <= BERT; to++)
        say_heartbeat(to, 0, HEARTBEAT_LEADS | HEARTBEAT_JOINED | HEARTBEAT_FOLLOWS);
}

static void lead(void) {
    become_bare();
    assert_int_equal(standing.term, 0);
    next_heartbeat = 0;
    each_pass = heartbeat;
}

static struct inter_manifest newest(int who) {
    struct inter_key k = {.round = sites[ANNA].commits, .member = (uint8_t)who};
    struct inter_manifest m;
    memcpy(k.job, job, sizeof job);
    OK(inter_ledger_get_manifest(inter_service_ledger(sites[ANNA].s), &k, &m));
    return m;
}

static float norm_of(const struct inter_manifest *m) {
    struct cmp_work *w = NULL;
    struct cmp_update_stats stats;
    struct neb_map map;
    OK(inter_ledger_map_blob(inter_service_ledger(sites[ANNA].s), &m->key, &map));
    OK(cmp_work_create(&w));
    OK(cmp_update_check_max(w, map.p, map.len, UINT64_MAX, &stats));
    cmp_work_destroy(&w);
    neb_map_close(&map);
    return (float)stats.norm;
}

// The record that an honest leader would propose for these members. merge: a merge round.
static struct inter_record record_of(uint16_t members, bool merge) {
    const struct inter_record *last = &sites[ANNA].last;
    const struct inter_tune_config tune = {.start_interval = STEPS};
    float norms[NEB_MEMBERS_MAX] = {0};
    struct inter_record r = {.round = sites[ANNA].commits,
                             .leader = MALLORY,
                             .flags = merge ? INTER_MERGE : 0,
                             .eta = 0.9f,
                             .mu = 0.6f,
                             .n_plans = SITES};
    memcpy(r.job, job, sizeof job);
    inter_record_hash(last, r.previous);
    memcpy(r.cursors, last->cursors, sizeof r.cursors);
    for (uint8_t m = 0; m < SITES; m++) {
        r.plans[m] = inter_tune_first(&tune);
        if (!(members >> m & 1))
            continue;
        struct inter_manifest x = newest(m);
        struct inter_entry *e = &r.entries[r.n++];
        *e = (struct inter_entry){.member = m,
                                  .flags = x.flags,
                                  .attempt = x.key.attempt,
                                  .bytes = x.bytes,
                                  .tokens = x.tokens,
                                  .digest = {x.digest[0], x.digest[1]},
                                  .clip = 1};
        memcpy(e->sha256, x.sha256, sizeof x.sha256);
        r.cursors[m] = x.step;
        norms[m] = norm_of(&x);
    }
    inter_weights_fill(&r, last->absences);
    if (robust)
        inter_robust_clip(&r, norms);
    return r;
}

// Signs the record, and adds mallory's own vote.
static void sign_record(struct inter_record *r) {
    struct neb_buf b = {0};
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_put_body(&b, r);
    OK(sec_sign(ids[MALLORY], SEC_CONTEXT_RECORD, b.p, b.len, r->sig));
    neb_buf_clear(&b);
    inter_record_hash(r, hash);
    r->n_accepts = 1;
    r->accepts[0] = (struct inter_accept){.member = MALLORY, .epoch = standing.epoch};
    inter_accept_put_body(&b, r, hash, standing.epoch);
    OK(sec_sign(ids[MALLORY], SEC_CONTEXT_ACCEPT, b.p, b.len, r->accepts[0].sig));
    neb_buf_free(&b);
}

static void propose_to(int to, struct inter_record *r) {
    struct neb_buf b = {0};
    sign_record(r);
    neb_buf_u8(&b, MSG_PROPOSE);
    inter_record_put(&b, r);
    neb_buf_u64(&b, standing.epoch);
    neb_buf_u8(&b, 0); // no manifests
    say(index_of[to], INTER_CONTROL, b.p, b.len);
    neb_buf_free(&b);
}

static void propose(struct inter_record *r) {
    propose_to(ANNA, r);
    propose_to(BERT, r);
}

static size_t accepts(int who) {
    size_t n = 0;
    for (size_t i = 0; i < n_frames; i++)
        n += frames[i].from == index_of[who] && frames[i].b.len && frames[i].b.p[0] == MSG_ACCEPT;
    return n;
}

static void refused(struct inter_record r, bool fresh) {
    uint64_t a = sites[ANNA].faults[INTER_FAULT_DENIED], b = sites[BERT].faults[INTER_FAULT_DENIED];
    if (fresh) // makes the weights agree with the forged field
        inter_weights_fill(&r, sites[ANNA].last.absences);
    propose(&r);
    UNTIL(sites[ANNA].faults[INTER_FAULT_DENIED] > a && sites[BERT].faults[INTER_FAULT_DENIED] > b);
    go_for(50 * NEB_MS);
    assert_true(!accepts(ANNA) && !accepts(BERT));
}

// Both vote for the record. So the next leader must propose and commit it.
static void taken(struct inter_record r) {
    uint32_t before = sites[ANNA].commits;
    uint8_t want[INTER_SHA_BYTES], got[INTER_SHA_BYTES];
    propose(&r);
    UNTIL(accepts(ANNA) && accepts(BERT));
    each_pass = NULL; // mallory falls silent
    UNTIL(sites[ANNA].commits == before + 1 && sites[BERT].commits == before + 1);
    inter_record_hash(&r, want);
    inter_record_hash(&sites[BERT].last, got);
    assert_memory_equal(got, want, sizeof want);
    expect_sound(&sites[ANNA]);
    expect_sound(&sites[BERT]);
}

static void everybody_sends(struct neb_buf *blob, enum kind kind) {
    make_update(kind, 4321, blob);
    struct inter_manifest m = manifest_of(blob, UINT32_MAX - 5);
    uint32_t chunks = inter_chunks(m.bytes, m.chunk_bytes);
    submit(&sites[ANNA], GOOD);
    submit(&sites[BERT], GOOD);
    announce(ANNA, &m);
    announce(BERT, &m);
    give(ANNA, &m, blob, chunks);
    give(BERT, &m, blob, chunks);
    struct inter_manifest of_anna = newest(ANNA), of_bert = newest(BERT);
    UNTIL(inter_ledger_has_blob(inter_service_ledger(sites[BERT].s), &of_anna.key) &&
          inter_ledger_has_blob(inter_service_ledger(sites[ANNA].s), &of_bert.key));
}

// ---- what a leader may not choose ---------------------------------------------------------------

static const uint16_t all = 1 << MALLORY | 1 << ANNA | 1 << BERT, two = 1 << MALLORY | 1 << ANNA;

static void test_proposals(void **state) {
    (void)state;
    struct neb_buf blob = {0};
    lead();
    everybody_sends(&blob, GOOD);
    const struct inter_record good = record_of(all, false);
    struct inter_record r = good;
    r.eta = 10;
    refused(r, false);
    r = good;
    r.mu = 0.99f;
    refused(r, false);
    refused(record_of(all, true), false); // nobody asked for a merge round
    r = good;
    r.cursors[BERT]++;
    refused(r, false);
    r = good;
    r.cursors[MALLORY] = JOB_STEPS; // more than her own manifest says
    refused(r, false);
    r = record_of(two, false);
    r.cursors[BERT] = UINT64_MAX; // an absent member could never send again
    refused(r, false);
    r = record_of(two, false);
    r.cursors[BERT] = 0;
    refused(r, false);
    r = good;
    r.entries[ANNA].clip = 0.5f;
    refused(r, false);
    r = good;
    r.entries[BERT].verdict = INTER_REJECTED; // anna and bert hold this update, and find it good
    refused(r, true);
    r = good;
    r.entries[ANNA].verdict = r.entries[BERT].verdict = INTER_REJECTED;
    refused(r, true);
    taken(good);
    neb_buf_free(&blob);
}

// Members do not accept what their own gates refuse, even if a leader does.
static void test_bad_one_accepted(void **state) {
    (void)state;
    struct neb_buf blob = {0};
    lead();
    everybody_sends(&blob, NOT_A_NUMBER);
    UNTIL(sites[ANNA].faults[INTER_FAULT_REFUSED] && sites[BERT].faults[INTER_FAULT_REFUSED]);
    struct inter_manifest m = newest(MALLORY);
    struct inter_record r = record_of(1 << ANNA | 1 << BERT, false);
    memmove(&r.entries[1], &r.entries[0], 2 * sizeof r.entries[0]);
    r.entries[0] = (struct inter_entry){.member = MALLORY,
                                        .attempt = m.key.attempt,
                                        .bytes = m.bytes,
                                        .tokens = m.tokens,
                                        .clip = 1};
    memcpy(r.entries[0].sha256, m.sha256, sizeof m.sha256);
    r.n = 3;
    r.cursors[MALLORY] = m.step;
    refused(r, true);
    r.entries[0].verdict = INTER_REJECTED;
    inter_weights_fill(&r, sites[ANNA].last.absences);
    taken(r);
    neb_buf_free(&blob);
}

// ---- robust -------------------------------------------------------------------------------------

static int open_robust(void **state) {
    robust = true;
    return open_sites(state);
}

static void test_robust(void **state) {
    (void)state;
    struct neb_buf blob = {0};
    lead();
    everybody_sends(&blob, GOOD);
    struct inter_record good = record_of(all, false), r = good;
    refused(record_of(two, false), false); // so few that nothing is trimmed
    r.entries[BERT].verdict = INTER_REJECTED;
    r.entries[ANNA].verdict = INTER_REJECTED;
    refused(r, true);
    r = good;
    for (int i = 0; i < SITES; i++)
        r.entries[i].clip = 1e-3f;
    refused(r, false);
    taken(good);
    neb_buf_free(&blob);
}

// A member asks for a norm that it does not know, and does not vote before it has it.
static void test_robust_unknown(void **state) {
    (void)state;
    struct neb_buf blob = {0};
    lead();
    make_update(GOOD, 4321, &blob);
    struct inter_manifest m = manifest_of(&blob, UINT32_MAX - 5);
    submit(&sites[ANNA], GOOD);
    submit(&sites[BERT], GOOD);
    announce(BERT, &m);
    announce(ANNA, &m);
    give(ANNA, &m, &blob, 2);
    struct inter_manifest of_bert = newest(BERT);
    UNTIL(holds_blob(ANNA, &of_bert));
    struct inter_record r = record_of(all, false);
    uint64_t denied = sites[BERT].faults[INTER_FAULT_DENIED];
    propose(&r);
    UNTIL(accepts(ANNA));
    go_for(100 * NEB_MS);
    assert_false(accepts(BERT));
    // The update comes from anna, and the proposal is repeated.
    UNTIL(inter_ledger_has_blob(inter_service_ledger(sites[BERT].s), &m.key));
    assert_int_equal(sites[BERT].faults[INTER_FAULT_DENIED], denied);
    taken(r);
    neb_buf_free(&blob);
}

// ---- two records in one term --------------------------------------------------------------------

// ACCEPT: | type | job | round | fragment | term | hash | epoch | signature |
static bool accept_of(int who, struct inter_accept *out) {
    for (size_t i = n_frames; i-- > 0;) {
        struct neb_rd r = neb_rd_make(frames[i].b.p, frames[i].b.len);
        if (frames[i].from != index_of[who] || neb_rd_u8(&r) != MSG_ACCEPT)
            continue;
        (void)neb_rd_view(&r, INTER_ID_BYTES + 3 * 4 + INTER_SHA_BYTES);
        *out = (struct inter_accept){.member = (uint8_t)who, .epoch = neb_rd_u64(&r)};
        neb_rd_copy(&r, out->sig, sizeof out->sig);
        return neb_rd_done(&r);
    }
    return false;
}

static void commit_to(int to, struct inter_record *r) {
    struct neb_buf b = {0};
    r->n_accepts = 2;
    assert_true(accept_of(to, &r->accepts[1]));
    neb_buf_u8(&b, MSG_COMMIT);
    inter_record_put(&b, r);
    say(index_of[to], INTER_CONTROL, b.p, b.len);
    neb_buf_free(&b);
}

static void expect_proof(const struct site *x) {
    struct inter_evidence e;
    OK(inter_ledger_evidence(inter_service_ledger(x->s), job, MALLORY, &e));
    assert_int_equal(inter_evidence_member(&e), MALLORY);
    assert_int_equal(e.a.kind, INTER_STATEMENT_ACCEPT);
    assert_int_equal(e.b.kind, INTER_STATEMENT_ACCEPT);
    assert_memory_not_equal(e.a.promise.vote_hash, e.b.promise.vote_hash, INTER_SHA_BYTES);
}

// Gives each member another record, and a commit with mallory's vote and that member's own vote. So
// each commit has two of three signatures. Within a heartbeat the members hear of it from each
// other. Both name mallory, and neither commits any more.
static void part(void) {
    struct neb_buf blob = {0};
    struct inter_job_status st;
    lead();
    everybody_sends(&blob, GOOD);
    struct inter_record x = record_of(all, false), y = record_of(all, false);
    y.plans[ANNA].interval++; // a value that the leader may choose
    propose_to(ANNA, &x);
    propose_to(BERT, &y);
    UNTIL(accepts(ANNA) && accepts(BERT));
    uint32_t before = sites[ANNA].commits;
    commit_to(ANNA, &x);
    commit_to(BERT, &y);
    UNTIL(sites[ANNA].commits == before + 1 && sites[BERT].commits == before + 1);
    neb_ns since = neb_now();
    UNTIL(sites[ANNA].faults[INTER_FAULT_SPLIT] && sites[BERT].faults[INTER_FAULT_SPLIT]);
    assert_true(neb_now() - since < 40 * NEB_S);
    for (int k = ANNA; k <= BERT; k++) {
        assert_int_equal(sites[k].faults[INTER_FAULT_EQUIVOCATED], 1);
        assert_true(inter_service_job_status(sites[k].s, job, &st));
        assert_true(st.split && mset_equal(st.equivocators, mset_of(MALLORY)));
        expect_proof(&sites[k]);
    }
    neb_buf_free(&blob);
}

static void test_two_records(void **state) {
    (void)state;
    part();
    uint32_t before = sites[ANNA].commits;
    submit(&sites[ANNA], GOOD);
    submit(&sites[BERT], GOOD);
    go_for(3 * NEB_S);
    assert_true(sites[ANNA].commits == before && sites[BERT].commits == before);
}

// Mallory is revoked, and anna gives up her side. She then has bert's records and votes again, and
// both continue. The proof of the equivocation stays.
static void test_diverged_meet(void **state) {
    (void)state;
    uint8_t hers[INTER_SHA_BYTES], now[INTER_SHA_BYTES];
    struct inter_record second;
    struct inter_job_status st;
    part();
    inter_record_hash(&sites[ANNA].last, hers);
    each_pass = NULL;
    inter_link_destroy(&bare);
    inter_service_job_gone(sites[BERT].s, job, mset_of(MALLORY));
    assert_int_equal(inter_service_job_renew(sites[ANNA].s, job), NEB_ERR_STATE); // the job is open
    inter_service_job_close(sites[ANNA].s, job);
    OK(inter_service_job_renew(sites[ANNA].s, job));
    sites[ANNA].commits = 0;
    open_job(&sites[ANNA]);
    inter_service_job_gone(sites[ANNA].s, job, mset_of(MALLORY));
    UNTIL(sites[ANNA].commits == sites[BERT].commits);
    honest_round();
    honest_round();
    OK(inter_ledger_get_commit(inter_service_ledger(sites[ANNA].s), job, 0, 1, &second));
    inter_record_hash(&second, now);
    assert_memory_not_equal(now, hers, sizeof now);
    for (int k = ANNA; k <= BERT; k++) {
        assert_true(inter_service_job_status(sites[k].s, job, &st));
        assert_true(!st.split && st.votes && mset_equal(st.equivocators, mset_of(MALLORY)));
        expect_proof(&sites[k]);
        expect_sound(&sites[k]);
    }
}

// Nothing is committed yet. A member that sees both proposals gives mallory no more votes, and the
// members elect another leader.
static void test_two_proposals(void **state) {
    (void)state;
    struct neb_buf blob = {0};
    lead();
    everybody_sends(&blob, GOOD);
    struct inter_record x = record_of(all, false), y = record_of(all, false);
    y.plans[ANNA].interval++;
    uint32_t before = sites[ANNA].commits;
    propose_to(ANNA, &x);
    UNTIL(accepts(ANNA));
    propose_to(ANNA, &y);
    UNTIL(sites[ANNA].faults[INTER_FAULT_EQUIVOCATED] &&
          sites[BERT].faults[INTER_FAULT_EQUIVOCATED]);
    UNTIL(sites[ANNA].commits == before + 1 &&
          sites[BERT].commits == before + 1); // she still sends heartbeats
    expect_proof(&sites[ANNA]);
    expect_proof(&sites[BERT]);
    uint8_t want[INTER_SHA_BYTES], got[INTER_SHA_BYTES];
    inter_record_hash(&x, want); // anna voted for x, so x may be committed
    inter_record_hash(&sites[BERT].last, got);
    assert_memory_equal(got, want, sizeof want);
    expect_sound(&sites[ANNA]);
    expect_sound(&sites[BERT]);
    honest_round();
    // A restarted agent still knows the equivocator.
    struct inter_job_status st;
    inter_service_destroy(&sites[BERT].s);
    start(&sites[BERT]);
    open_job(&sites[BERT]);
    assert_true(inter_service_job_status(sites[BERT].s, job, &st) &&
                mset_equal(st.equivocators, mset_of(MALLORY)));
    neb_buf_free(&blob);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_proposals, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_two_records, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_diverged_meet, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_two_proposals, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_bad_one_accepted, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_robust, open_robust, close_sites),
        cmocka_unit_test_setup_teardown(test_robust_unknown, open_robust, close_sites)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
