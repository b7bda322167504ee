// SPDX-License-Identifier: Apache-2.0
// nebula ledger: its output, the faults that it finds with the members' real keys, and its exit
// status.
#include "tests/unit/ledger_fixture.h"

#include "agent/cli/commands.h"
#include "agent/daemon/jobs.h"
#include "inter/record/evidence.h"
#include "security/members.h"

#include <jansson.h>
#include <sqlite3.h>

static char root[] = "/tmp/nebula-ledgercmd-XXXXXX";
static char home[64], out_file[64];
static struct sec_identity *ids[2];
static const char spec[] =
    "{\"job\": \"two\", \"clusters\": [{\"name\": \"anna\"}, {\"name\": \"bert\"}]}";

static void sign_as(uint8_t member, const char *context, struct neb_buf *body, uint8_t *sig) {
    OK(sec_sign(ids[member], context, body->p, body->len, sig));
    neb_buf_free(body);
}

static struct inter_manifest manifest(uint32_t round, uint8_t member) {
    struct inter_key k = fx_key(0, round, member);
    struct inter_manifest m = fx_manifest(&k);
    struct neb_buf b = {0};
    inter_manifest_put_body(&b, &m);
    sign_as(member, SEC_CONTEXT_MANIFEST, &b, m.sig);
    return m;
}

static void commit(struct inter_ledger *l, uint32_t round, uint8_t previous[INTER_SHA_BYTES]) {
    uint8_t blob[FX_PEER_BYTES];
    for (uint8_t i = 0; i < 2; i++) {
        struct inter_manifest m = manifest(round, i);
        OK(inter_ledger_put_blob(l, &m.key, blob, fx_blob(&m.key, blob)));
        OK(inter_ledger_put_manifest(l, &m));
    }
    struct inter_record r = fx_record(0, round, previous);
    struct neb_buf b = {0};
    inter_record_put_body(&b, &r);
    sign_as(0, SEC_CONTEXT_RECORD, &b, r.sig);
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_hash(&r, hash);
    for (uint8_t i = 0; i < 2; i++) {
        inter_accept_put_body(&b, &r, hash, r.accepts[i].epoch);
        sign_as(i, SEC_CONTEXT_ACCEPT, &b, r.accepts[i].sig);
    }
    OK(inter_ledger_put_vote(l, &r));
    OK(inter_ledger_put_commit(l, &r));
    inter_record_hash(&r, previous);
}

static int make_home(void **state) {
    (void)state;
    static int made;
    static const char *const names[] = {"anna", "bert"};
    struct sec_members list = {.n = 0};
    struct inter_ledger *l = NULL;
    uint8_t previous[INTER_SHA_BYTES] = {0};
    uint64_t seq, before;
    char path[96];
    snprintf(home, sizeof home, "%s/%d", root, made++);
    snprintf(out_file, sizeof out_file, "%s/out", root);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/keys-%s", home, names[i]);
        OK(neb_fs_mkdirs(path, 0700));
        OK(sec_identity_create(path, names[i], &ids[i]));
        struct sec_member m = {.pub = *sec_identity_public(ids[i])};
        OK(sec_members_add(&list, &m));
    }
    snprintf(path, sizeof path, "%s/members.json", home);
    OK(sec_members_save(path, &list));
    OK(inter_ledger_open(home, &l));
    OK(inter_ledger_put_job(l, fx_job, spec, "{\"state\": \"running\"}"));
    for (uint32_t r = 0; r < 3; r++)
        commit(l, r, previous);
    OK(inter_ledger_prune(l, fx_job, 0, 1));
    OK(inter_ledger_post(l, "bert", 1, "hello", 5, NULL, &seq, &before));
    inter_ledger_close(&l);
    return 0;
}

static int drop_home(void **state) {
    (void)state;
    sec_identity_destroy(&ids[0]);
    sec_identity_destroy(&ids[1]);
    return 0;
}

// Runs the command; returns its output in a buffer that ends with NUL.
static int run(const char *action, bool json, struct neb_buf *out) {
    const char *const argv[] = {"ledger", action, home, "--json", NULL};
    fflush(stdout);
    int was = dup(STDOUT_FILENO);
    assert_non_null(freopen(out_file, "w", stdout));
    int rc = agent_command_run(&cmd_ledger, json ? 4 : 3, (char **)(uintptr_t)argv);
    fflush(stdout);
    assert_true(dup2(was, STDOUT_FILENO) >= 0);
    close(was);
    OK(neb_fs_read(out_file, 1 << 20, out));
    return rc;
}

static void expect_text(const char *action, int rc, const char *want) {
    struct neb_buf out = {0};
    assert_int_equal(run(action, false, &out), rc);
    if (!strstr((const char *)out.p, want))
        fail_msg("'%s' is not in: %s", want, (const char *)out.p);
    neb_buf_free(&out);
}

static json_t *expect_json(const char *action, int rc) {
    struct neb_buf out = {0};
    assert_int_equal(run(action, true, &out), rc);
    json_t *o = json_loadb((const char *)out.p, out.len, 0, NULL);
    assert_true(json_is_object(o));
    neb_buf_free(&out);
    return o;
}

static long long number(const json_t *o, const char *key) {
    assert_true(json_is_integer(json_object_get(o, key)));
    return (long long)json_integer_value(json_object_get(o, key));
}

static void sql(const char *text) {
    char path[96];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/ledger.db", home);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void test_intact(void **state) {
    (void)state;
    expect_text("verify", AGENT_EXIT_OK, "all well");
    json_t *o = expect_json("verify", AGENT_EXIT_OK);
    assert_true(json_is_true(json_object_get(o, "ok")));
    assert_int_equal(number(o, "records"), 3);
    assert_int_equal(number(o, "manifests"), 4);
    assert_int_equal(number(o, "votes"), 2);
    assert_int_equal(number(o, "signatures"), 15);
    assert_int_equal(number(o, "blob_bytes"), 2 * (FX_OWN_BYTES + FX_PEER_BYTES));
    assert_int_equal(json_array_size(json_object_get(o, "damages")), 0);
    json_decref(o);
}

static void test_show(void **state) {
    (void)state;
    expect_text("show", AGENT_EXIT_OK, "job: two (ab010203");
    expect_text("show", AGENT_EXIT_OK, "state: running");
    expect_text("show", AGENT_EXIT_OK, "fragment 0: commits 0 to 2, blobs from 1 on, newest ");
    expect_text("show", AGENT_EXIT_OK, "waiting for bert: 1 messages, 5 bytes");
    json_t *o = expect_json("show", AGENT_EXIT_OK),
           *c = json_array_get(json_object_get(o, "chains"), 0);
    assert_int_equal(number(c, "next"), 3);
    assert_int_equal(number(c, "kept"), 1);
    assert_int_equal(number(json_object_get(json_object_get(o, "outbox"), "bert"), "bytes"), 5);
    assert_int_equal(strlen(json_string_value(json_object_get(o, "epoch"))), 16);
    json_decref(o);
}

// If bert signed two updates under one key, and two votes, `show` prints both with their proofs.
static void test_evidence(void **state) {
    (void)state;
    struct inter_ledger *l = NULL;
    struct inter_manifest first = manifest(2, 1), other = first;
    struct inter_evidence e = {{.kind = INTER_STATEMENT_ACCEPT, .fragment = 0, .term = 4}, {0}};
    struct neb_buf b = {0};
    char hex[2 * INTER_SHA_BYTES + 1], want[128];
    json_t *o = expect_json("show", AGENT_EXIT_OK);
    assert_int_equal(json_array_size(json_object_get(o, "second_updates")), 0);
    assert_int_equal(json_array_size(json_object_get(o, "evidence")), 0);
    json_decref(o);

    other.sha256[0] ^= 1;
    inter_manifest_put_body(&b, &other);
    sign_as(1, SEC_CONTEXT_MANIFEST, &b, other.sig);
    OK(inter_ledger_open(home, &l));
    OK(inter_ledger_replace_manifest(l, &other));
    memcpy(e.a.job, fx_job, sizeof e.a.job);
    e.a.promise = (struct inter_promise){.member = 1, .round = 2, .epoch = 9, .vote_hash = {'x'}};
    e.b = e.a;
    e.b.promise.vote_hash[0] = 'y';
    OK(inter_ledger_put_evidence(l, &e));
    inter_ledger_close(&l);

    neb_hex(first.sha256, 8, hex);
    snprintf(want, sizeof want, "bert signed a second update for round 2 of fragment 0: %s", hex);
    expect_text("show", AGENT_EXIT_OK, want);
    expect_text("show", AGENT_EXIT_OK,
                "evidence against bert: it signed two records or votes of one term for round 2 of "
                "fragment 0: 78");
    o = expect_json("show", AGENT_EXIT_OK);
    const json_t *s = json_array_get(json_object_get(o, "second_updates"), 0),
                 *p = json_array_get(json_object_get(o, "evidence"), 0),
                 *said = json_object_get(p, "statements");
    assert_int_equal(number(s, "member"), 1);
    assert_int_equal(number(s, "round"), 2);
    assert_string_equal(json_string_value(json_object_get(s, "name")), "bert");
    neb_hex(first.sha256, INTER_SHA_BYTES, hex);
    assert_string_equal(json_string_value(json_object_get(s, "sha256")), hex);
    neb_hex(other.sha256, INTER_SHA_BYTES, hex);
    assert_string_equal(json_string_value(json_object_get(s, "instead_sha256")), hex);
    assert_int_equal(strlen(json_string_value(json_object_get(s, "signature"))),
                     2 * INTER_SIG_BYTES);
    assert_int_equal(number(p, "member"), 1);
    assert_string_equal(json_string_value(json_object_get(p, "name")), "bert");
    assert_int_equal(json_array_size(said), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(said, 0), "kind")),
                        "accept");
    assert_int_equal(number(json_array_get(said, 1), "term"), 4);
    json_decref(o);
}

static void test_damaged(void **state) {
    (void)state;
    sql("UPDATE manifest SET body=(SELECT body FROM manifest WHERE round=2 AND member=1) WHERE "
        "round=1 AND member=1");
    expect_text("verify", AGENT_EXIT_FAILED, "fragment 0, round 1: under the key of member 1");
    expect_text("verify", AGENT_EXIT_FAILED, "DAMAGED");
    json_t *o = expect_json("verify", AGENT_EXIT_FAILED),
           *d = json_array_get(json_object_get(o, "damages"), 0);
    assert_true(json_is_false(json_object_get(o, "ok")));
    assert_int_equal(number(d, "round"), 1);
    assert_int_equal(number(d, "fragment"), 0);
    assert_int_equal(number(d, "member"), 1);
    assert_string_equal(json_string_value(json_object_get(d, "kind")), "manifest");
    assert_int_equal(strlen(json_string_value(json_object_get(d, "job"))), 2 * INTER_ID_BYTES);
    json_decref(o);
}

// A record that fits the chain but was not signed by its leader is found.
static void test_forged(void **state) {
    (void)state;
    char path[96];
    sqlite3 *db;
    sqlite3_stmt *put;
    uint8_t previous[INTER_SHA_BYTES] = {0}, hash[INTER_SHA_BYTES];
    struct inter_record r;
    struct neb_buf b = {0}, body = {0};
    for (uint32_t i = 0; i < 2; i++) {
        r = fx_record(0, i, previous);
        inter_record_hash(&r, previous);
    }
    r = fx_record(0, 2, previous);
    r.mu = 0.25f;
    inter_record_put_body(&body, &r);
    sign_as(1, SEC_CONTEXT_RECORD, &body, r.sig); // signed by the other member
    inter_record_put(&b, &r);
    inter_record_hash(&r, hash);
    snprintf(path, sizeof path, "%s/ledger.db", home);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_prepare_v2(db, "UPDATE record SET body=? WHERE round=2", -1, &put, NULL),
        SQLITE_OK);
    sqlite3_bind_blob(put, 1, b.p, (int)b.len, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(put), SQLITE_DONE);
    sqlite3_finalize(put);
    assert_int_equal(sqlite3_prepare_v2(db, "UPDATE chain SET head=?", -1, &put, NULL), SQLITE_OK);
    sqlite3_bind_blob(put, 1, hash, sizeof hash, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(put), SQLITE_DONE);
    sqlite3_finalize(put);
    sqlite3_close(db);
    neb_buf_free(&b);
    json_t *o = expect_json("verify", AGENT_EXIT_FAILED), *list = json_object_get(o, "damages");
    assert_int_equal(json_array_size(list), 3); // the leader's signature and two votes
    assert_int_equal(number(json_array_get(list, 0), "round"), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "kind")),
                        "signature");
    json_decref(o);
}

static void test_unknown_signers(void **state) {
    (void)state;
    char path[96];
    struct neb_buf out = {0};
    sql("UPDATE job SET id=zeroblob(16)"); // a job whose members are unknown
    expect_text("verify", AGENT_EXIT_FAILED, "the signer of the record, member 0, is not known");
    snprintf(path, sizeof path, "%s/members.json", home);
    OK(neb_fs_remove(path));
    assert_int_equal(run("verify", false, &out), AGENT_EXIT_FAILED);
    snprintf(home, sizeof home, "%s/none", root);
    assert_int_equal(run("verify", false, &out), AGENT_EXIT_FAILED);
    assert_int_equal(run("show", false, &out), AGENT_EXIT_FAILED);
    assert_false(neb_fs_exists(home));
    neb_buf_free(&out);
}

// `nebula stop`, `resume` and `rejoin` accept the unambiguous beginning of a job's id.
static void test_choose_job(void **state) {
    (void)state;
    static const uint8_t other[INTER_ID_BYTES] = {0xab, 9}, far[INTER_ID_BYTES] = {0xac, 9};
    struct inter_ledger *l = NULL;
    struct agent_job_record r;
    char why[512] = "";
    OK(inter_ledger_open(home, &l));
    OK(inter_ledger_put_job(l, far, spec, "{\"state\": \"stopped\", \"home\": \"\"}"));
    OK(inter_ledger_put_job(l, other, spec, "{\"state\": \"stopped\", \"home\": \"\"}"));
    OK(agent_jobs_choose(l, "ab09", &r, why, sizeof why));
    assert_string_equal(r.hex, "ab09000000000000000000000000000000000000000000000000000000000000");
    assert_string_equal(r.state, "stopped");
    agent_job_record_clear(&r);
    assert_int_equal(agent_jobs_choose(l, "ab", &r, why, sizeof why), NEB_ERR_INVALID);
    assert_non_null(strstr(why, "more than one job id begins with \"ab\": "));
    assert_non_null(
        strstr(why, "ab01020300000000000000000000000000000000000000000000000000000000 (two, "));
    assert_non_null(strstr(
        why, "ab09000000000000000000000000000000000000000000000000000000000000 (two, stopped)"));
    assert_null(strstr(why, "ac09")); // not a candidate
    assert_int_equal(agent_jobs_choose(l, "ad", &r, why, sizeof why), NEB_ERR_NOT_FOUND);
    assert_non_null(strstr(why, "no job id begins with \"ad\""));
    assert_int_equal(agent_jobs_choose(l, "", &r, why, sizeof why), NEB_ERR_NOT_FOUND);
    inter_ledger_close(&l);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_home, drop_home)

static void put_ended(struct inter_ledger *l, uint8_t n, const char *text) {
    uint8_t id[INTER_ID_BYTES] = {0xee, n};
    OK(inter_ledger_put_job(l, id, "{}", text));
}

// The oldest ended jobs of each other member are dropped. Jobs that run or are held stay, and so do
// this site's jobs.
static void test_ended_jobs(void **state) {
    (void)state;
    struct inter_ledger *l = NULL;
    struct agent_ended_job *gone = NULL;
    size_t n = 0;
    OK(inter_ledger_open(home, &l));
    put_ended(l, 1, "{\"state\": \"done\", \"home\": \"bert\", \"at\": 10}");
    put_ended(l, 2, "{\"state\": \"stopped\", \"home\": \"bert\"}"); // without a time
    put_ended(l, 3, "{\"state\": \"failed\", \"home\": \"bert\", \"at\": 30}");
    put_ended(l, 4, "{\"state\": \"done\", \"home\": \"bert\", \"at\": 20}");
    put_ended(l, 5, "{\"state\": \"running\", \"home\": \"bert\", \"at\": 1}");
    put_ended(l, 6, "{\"state\": \"held\", \"home\": \"bert\", \"at\": 1}");
    put_ended(l, 7, "{\"state\": \"done\", \"home\": \"carl\", \"at\": 2}");
    put_ended(l, 8, "{\"state\": \"done\", \"home\": \"carl\", \"at\": 1}");
    for (uint8_t i = 9; i < 19; i++)
        put_ended(l, i, "{\"state\": \"done\", \"home\": \"\", \"at\": 1}");
    put_ended(l, 19, "{\"state\": \"done\", \"home\": \"bert\", \"at\": 1, \"adopted\": true}");
    put_ended(l, 20, "no state");
    OK(agent_jobs_ended(l, 2, &gone, &n));
    assert_int_equal(n, 2);
    assert_int_equal(gone[0].id[1], 1);
    assert_int_equal(gone[1].id[1], 2);
    free(gone);
    OK(agent_jobs_ended(l, 4, &gone, &n));
    assert_true(n == 0 && !gone);
    inter_ledger_close(&l);
}

// Status and alerts list jobs that are held or have failed; if there are many, they list those that
// were written last.
static void test_held_and_failed_jobs(void **state) {
    (void)state;
    struct inter_ledger *l = NULL;
    json_t *list = NULL, *o;
    size_t i;
    OK(inter_ledger_open(home, &l));
    OK(inter_ledger_put_job(l, (const uint8_t[INTER_ID_BYTES]){0xcc, 1},
                            "{\"job\": \"one\", \"steps\": 70}",
                            "{\"state\": \"held\", \"why\": \"no member\", \"at\": 100}"));
    put_ended(l, 1, "{\"state\": \"failed\", \"at\": 1}");
    put_ended(l, 2, "{\"state\": \"done\", \"at\": 90}");
    put_ended(l, 3, "{\"state\": \"running\", \"at\": 90}");
    put_ended(l, 4, "no state");
    OK(agent_jobs_attention(l, &list));
    assert_int_equal(json_array_size(list), 2);
    json_array_foreach(list, i, o) {
        const char *name = json_string_value(json_object_get(o, "job"));
        bool held = !strcmp(name, "one");
        assert_string_equal(json_string_value(json_object_get(o, "state")),
                            held ? "held" : "ended");
        assert_string_equal(json_string_value(json_object_get(o, "why")), held ? "no member" : "");
        assert_int_equal(json_integer_value(json_object_get(o, "steps")), held ? 70 : 0);
        assert_true(json_is_null(json_object_get(o, "step")));
        assert_int_equal(json_array_size(json_object_get(o, "clusters")), 0);
        const char *outcome = json_string_value(json_object_get(o, "outcome"));
        assert_true(held ? !outcome : !strcmp(outcome, "failed"));
    }
    json_decref(list);
    // two jobs too many, with the held job and job 1
    for (uint8_t n = 10; n < 10 + AGENT_ASIDE_MAX; n++) {
        char text[64];
        snprintf(text, sizeof text, "{\"state\": \"failed\", \"at\": %d}", n);
        put_ended(l, n, text);
    }
    OK(agent_jobs_attention(l, &list));
    assert_int_equal(json_array_size(list), AGENT_ASIDE_MAX);
    json_array_foreach(list, i, o) {
        const char *hex = json_string_value(json_object_get(o, "id"));
        assert_true(strncmp(hex, "ee01", 4) && strncmp(hex, "ee0a", 4)); // the oldest are left out
    }
    json_decref(list);
    inter_ledger_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_intact),     TEST(test_held_and_failed_jobs),
                                       TEST(test_ended_jobs), TEST(test_show),
                                       TEST(test_evidence),   TEST(test_damaged),
                                       TEST(test_forged),     TEST(test_unknown_signers),
                                       TEST(test_choose_job)};
    if (!mkdtemp(root) || sec_init() != NEB_OK)
        return 1;
    neb_log_set_sink(testing_drop, NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return neb_fs_remove_tree(root) != NEB_OK || failed;
}
