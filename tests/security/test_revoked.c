// SPDX-License-Identifier: Apache-2.0
// A member is revoked, or gets new keys, during a round. One of the others already has its update
// and vote, the other does not. The second one must still be able to check them, or the round would
// never end. No member accepts what the old key signs after that. The file that keeps such keys is
// tested too.
#define HOSTILE_ORDER ANNA, BERT, MALLORY // mallory is honest here, and is revoked
#include "tests/security/hostile_fixture.h"

#include "agent/daemon/sums.h"
#include "inter/round/sums.h"
#include "inter/service/state.h"
#include "security/members.h"
#include "security/secure_sum.h"
#include "tests/sum_mask.h"

static uint32_t waiting; // set by a reload

// Everybody but mallory, as the next version.
static struct sec_members without_mallory(void) {
    struct sec_members m = {.version = list.version + 1};
    for (uint32_t i = 0; i < list.n; i++)
        if (i != index_of[MALLORY])
            m.m[m.n++] = list.m[i];
    return m;
}

static bool by_mallorys_former_key(void *user, const char *name, const char *context,
                                   const void *msg, size_t len,
                                   const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user;
    return !strcmp(name, "mallory") &&
           sec_verify(sec_identity_public(ids[MALLORY])->sign, context, msg, len, sig) == NEB_OK;
}

// Mallory has new keys, and the overlap is over. Bert accepts the update that she signed before,
// but no envelope that the old key signs now.
static void test_rotated(void **state) {
    (void)state;
    struct sec_members renewed = list;
    struct inter_manifest there = {.key = {.round = 1, .member = MALLORY}}, held;
    struct inter_service *bert;
    uint8_t sig[INTER_SIG_BYTES];
    memcpy(there.key.job, job, sizeof job);
    all_three();
    inter_service_destroy(&sites[BERT].s);
    submit(&sites[MALLORY], GOOD);
    submit(&sites[ANNA], GOOD);
    UNTIL(inter_ledger_get_manifest(inter_service_ledger(sites[ANNA].s), &there.key, &held) ==
              NEB_OK &&
          inter_ledger_has_blob(inter_service_ledger(sites[ANNA].s), &held.key));
    inter_service_destroy(&sites[MALLORY].s);
    renewed.version++;
    renewed.m[index_of[MALLORY]].pub.sign[0] ^= 1;
    renewed.m[index_of[MALLORY]].pub.curve[0] ^= 1;
    signed_before = by_mallorys_former_key;
    start(&sites[BERT]);
    signed_before = NULL;
    bert = sites[BERT].s;
    open_job(&sites[BERT]);
    OK(inter_service_reload(sites[ANNA].s, &renewed, NULL, 0, &waiting));
    OK(inter_service_reload(bert, &renewed, NULL, 0, &waiting));
    OK(sec_sign(ids[MALLORY], INTER_CONTEXT_FORWARD, "x", 1, sig));
    assert_false(service_verify(bert, index_of[MALLORY], INTER_CONTEXT_FORWARD, "x", 1, sig));
    submit(&sites[BERT], GOOD);
    UNTIL(sites[BERT].commits == 2);
    assert_non_null(entry_of(&sites[BERT].last, MALLORY));
    assert_int_equal(sites[BERT].faults[INTER_FAULT_DENIED], 0);
}

// ---- masked sums --------------------------------------------------------------------------------

static bool sign_by(void *user, const char *context, const void *msg, size_t len,
                    uint8_t sig[INTER_SIG_BYTES]) {
    return sec_sign(user, context, msg, len, sig) == NEB_OK;
}
static bool verify_none(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                        const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)peer, (void)context, (void)msg, (void)len, (void)sig;
    return false;
}
static void keep_seeds(void *user, uint8_t member, const void *p, size_t n) {
    (void)member;
    neb_buf_clear(user);
    neb_buf_add(user, p, n);
}

static void sum_of(int who, struct sec_sum **out) {
    uint8_t keys[SITES][SEC_SUM_KEY_BYTES] = {{0}};
    for (int k = 0; k < SITES; k++)
        if (k != who)
            OK(sec_sum_pair_key(sec_identity_curve_secret(ids[who]),
                                sec_identity_public(ids[who])->curve,
                                sec_identity_public(ids[k])->curve, job, keys[k]));
    OK(sec_sum_create(SITES, (uint8_t)who, (const uint8_t(*)[SEC_SUM_KEY_BYTES])keys, out));
}

static enum neb_status note(void *user, const struct inter_record *r) {
    (void)user, (void)r;
    return NEB_OK;
}

// What a member reveals in a round, signed with the keys that it had.
static void reveal(int who, struct sec_sum *sum, const struct inter_record *r,
                   const struct inter_sums_blob *blobs, struct neb_buf *out) {
    const struct inter_node_crypto crypto = {ids[who], sign_by, verify_none};
    struct inter_sums_config c = {.n = SITES,
                                  .self = (uint8_t)who,
                                  .crypto = &crypto,
                                  .sum = sum,
                                  .ops = {.user = out, .send = keep_seeds, .keep = note}};
    struct inter_sums *s = NULL;
    memcpy(c.job, job, sizeof job);
    OK(inter_sums_create(&c, &s));
    OK(inter_sums_commit(s, neb_now(), r, blobs, NULL, 0));
    inter_sums_destroy(&s);
}

// Bert restarts from an old checkpoint after mallory's rotation. The seeds of an earlier round are
// still valid for him.
static void test_seeds_of_before(void **state) {
    (void)state;
    enum { COUNT = 16 };
    static struct agent_jobrun run;
    static const int16_t values[COUNT] = {3, -5};
    struct sec_members renewed = list;
    struct sec_sum *sums[SITES];
    struct neb_buf masked[SITES] = {{0}}, seeds = {0};
    struct inter_sums_blob blobs[SITES];
    struct neb_map maps[SITES] = {{0}};
    struct inter_record r = {.n = SITES, .eta = 1};
    struct agent_sums *bert = NULL;
    json_t *all = NULL;
    char dir[128];
    snprintf(dir, sizeof dir, "%s/sums", root);
    memcpy(r.job, job, sizeof job);
    run.self = BERT;
    run.job.n_clusters = SITES;
    run.job.sync.fragments = 1;
    memcpy(run.id, job, sizeof run.id);
    for (int k = 0; k < SITES; k++) {
        run.peers[k] = index_of[k];
        sum_of(k, &sums[k]);
        OK(sum_mask(sums[k], 0, 0, values, COUNT, &masked[k]));
        blobs[k] = (struct inter_sums_blob){masked[k].p, masked[k].len};
        maps[k].p = masked[k].p;
        maps[k].len = masked[k].len;
        r.entries[k] = (struct inter_entry){
            .member = (uint8_t)k, .tokens = 512, .bytes = (uint32_t)masked[k].len, .clip = 1};
        neb_sha256(masked[k].p, masked[k].len, r.entries[k].sha256);
    }
    inter_service_destroy(&sites[BERT].s);
    signed_before = by_mallorys_former_key;
    start(&sites[BERT]);
    signed_before = NULL;
    OK(agent_sums_open(&(struct agent_sums_config){&sites[BERT].s, ids[BERT], &list, &run, dir},
                       &bert));
    renewed.version++;
    renewed.m[index_of[MALLORY]].pub.sign[0] ^= 1;
    renewed.m[index_of[MALLORY]].pub.curve[0] ^= 1;
    OK(inter_service_reload(sites[BERT].s, &renewed, NULL, 0, &waiting));
    assert_false(agent_sums_commit(bert, &r, maps, &all));
    for (int k = 0; k < SITES; k++)
        if (k != BERT) {
            reveal(k, sums[k], &r, blobs, &seeds);
            agent_sums_message(bert, index_of[k], seeds.p, seeds.len);
        }
    assert_int_equal(agent_sums_refused(bert), 0);
    assert_true(agent_sums_commit(bert, &r, maps, &all));
    json_decref(all);
    agent_sums_close(&bert);
    // Without the file, bert cannot make his state again: one member is no longer on the list.
    OK(neb_fs_remove_tree(dir));
    run.peers[MALLORY] = NEB_MEMBERS_MAX;
    assert_int_equal(
        agent_sums_open(&(struct agent_sums_config){&sites[BERT].s, ids[BERT], &list, &run, dir},
                        &bert),
        NEB_ERR_NOT_FOUND);
    for (int k = 0; k < SITES; k++) {
        sec_sum_destroy(&sums[k]);
        neb_buf_free(&masked[k]);
    }
    neb_buf_free(&seeds);
}

// Anna has mallory's update; bert was away. Mallory is revoked, and bert comes back: with the old
// list, which then changes, or (restarted) after the change. knows: he has mallory's key in his own
// files. Without it he refuses what he cannot check, and nothing is committed.
static void meets_update(bool anew, bool knows) {
    struct sec_members rest = without_mallory();
    struct inter_manifest there = {.key = {.round = 1, .member = MALLORY}};
    uint32_t indices[SITES];
    memcpy(indices, index_of, sizeof indices);
    memcpy(there.key.job, job, sizeof job);
    all_three(); // each has heard from each
    inter_service_destroy(&sites[BERT].s);
    submit(&sites[MALLORY], GOOD);
    submit(&sites[ANNA], GOOD);
    struct inter_manifest held;
    UNTIL(inter_ledger_get_manifest(inter_service_ledger(sites[ANNA].s), &there.key, &held) ==
              NEB_OK &&
          inter_ledger_has_blob(inter_service_ledger(sites[ANNA].s), &held.key));
    inter_service_destroy(&sites[MALLORY].s);
    if (anew) {
        struct sec_members all = list;
        OK(inter_service_reload(sites[ANNA].s, &rest, NULL, 0, &waiting));
        list = rest;
        for (uint32_t i = 0; i < rest.n; i++)
            for (int k = 0; k < SITES; k++)
                if (!memcmp(&rest.m[i].pub, sec_identity_public(ids[k]), sizeof rest.m[i].pub))
                    index_of[k] = i;
        start(&sites[BERT]);
        index_of[MALLORY] = INTER_PEERS_MAX - 1;
        if (knows)
            OK(inter_service_removed_member(sites[BERT].s, "mallory",
                                            sec_identity_public(ids[MALLORY])->sign,
                                            &index_of[MALLORY]));
        open_job(&sites[BERT]);
        list = all;
    } else {
        start(&sites[BERT]);
        open_job(&sites[BERT]);
        OK(inter_service_reload(sites[ANNA].s, &rest, NULL, 0, &waiting));
        OK(inter_service_reload(sites[BERT].s, &rest, NULL, 0, &waiting));
    }
    submit(&sites[BERT], GOOD);
    if (knows) {
        UNTIL(sites[ANNA].commits == 2 && sites[BERT].commits == 2);
        assert_non_null(entry_of(&sites[BERT].last, MALLORY)); // what she signed stays valid
        honest_round();                                        // and the job continues
        assert_null(entry_of(&sites[BERT].last, MALLORY));
        expect_sound(&sites[ANNA]);
    } else {
        UNTIL(sites[BERT].faults[INTER_FAULT_DENIED] > 0);
        assert_int_equal(sites[BERT].commits, 1);
    }
    memcpy(index_of, indices, sizeof indices);
}

static void test_under_the_agent(void **state) {
    (void)state;
    meets_update(false, true);
}
static void test_agent_anew(void **state) {
    (void)state;
    meets_update(true, true);
}
static void test_nobodys_key(void **state) {
    (void)state;
    meets_update(true, false);
}

// The file holds keys of revoked members and keys from before a rotation, each once, the newest
// last.
static void test_file(void **state) {
    (void)state;
    static struct sec_former all[SEC_FORMER_MAX];
    char dir[128], path[160];
    size_t n;
    struct sec_list a = {.members = {.version = 1, .n = 3}},
                    b = {.members = {.version = 2, .n = 2}};
    for (int i = 0; i < 3; i++)
        a.members.m[i].pub = *sec_identity_public(ids[i]);
    b.members.m[0] = a.members.m[0];
    b.members.m[1] = a.members.m[1];
    b.members.m[1].pub.sign[0] ^= 1; // rotated
    snprintf(dir, sizeof dir, "%s/former", root);
    snprintf(path, sizeof path, "%s/former.json", dir);
    OK(neb_fs_mkdirs(dir, 0700));
    OK(sec_former_load(dir, all, &n));
    assert_int_equal(n, 0);
    OK(sec_former_keep(dir, &a, &a));
    assert_false(neb_fs_exists(path));
    OK(sec_former_keep(dir, &a, &b));
    OK(sec_former_load(dir, all, &n));
    assert_int_equal(n, 2);
    assert_null(sec_former_find(all, n, a.members.m[0].pub.name));
    for (int i = 1; i < 3; i++) {
        const struct sec_former *f = sec_former_find(all, n, a.members.m[i].pub.name);
        assert_non_null(f);
        assert_memory_equal(f->sign, a.members.m[i].pub.sign, SEC_KEY_BYTES);
        assert_int_equal(f->until, 2);
    }
    a.members.version = 3; // the member is back, and leaves again
    b.members.version = 4;
    OK(sec_former_keep(dir, &a, &b));
    OK(sec_former_load(dir, all, &n));
    assert_int_equal(n, 2);
    assert_int_equal(all[n - 1].until, 4);
    OK(neb_fs_write(path, "{\"format\": 1, \"former\": [{}]}", 29, 0600));
    assert_int_equal(sec_former_load(dir, all, &n), NEB_ERR_FORMAT);
    assert_int_equal(n, 0);
}

// Many keys of one member do not push out keys of others. If there are too many in all, the oldest
// are removed.
static void test_many_keys(void **state) {
    (void)state;
    static struct sec_former all[SEC_FORMER_MAX];
    char dir[128];
    size_t n;
    struct sec_list before = {.members = {.n = 1}}, after = {.issued = 0};
    struct sec_public *p = &before.members.m[0].pub;
    *p = *sec_identity_public(ids[0]);
    snprintf(dir, sizeof dir, "%s/many", root);
    OK(neb_fs_mkdirs(dir, 0700));
    after.members.version = 1;
    OK(sec_former_keep(dir, &before, &after));
    *p = *sec_identity_public(ids[1]);
    for (after.members.version = 2; after.members.version < 2 + SEC_FORMER_MAX;
         after.members.version++) {
        p->sign[1] = (uint8_t)after.members.version;
        p->sign[2] = (uint8_t)(after.members.version >> 8);
        OK(sec_former_keep(dir, &before, &after));
    }
    OK(sec_former_load(dir, all, &n));
    assert_int_equal(n, 1 + SEC_FORMER_OF_ONE);
    assert_non_null(sec_former_find(all, n, sec_identity_public(ids[0])->name));
    assert_memory_equal(sec_former_find(all, n, p->name)->sign, p->sign, SEC_KEY_BYTES);
    for (unsigned i = 0; i < SEC_FORMER_MAX; i++, after.members.version++) {
        snprintf(p->name, sizeof p->name, "m%u", i);
        OK(sec_former_keep(dir, &before, &after));
    }
    OK(sec_former_load(dir, all, &n));
    assert_int_equal(n, SEC_FORMER_MAX);
    assert_int_equal(all[n - 1].until, after.members.version - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_under_the_agent, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_agent_anew, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_nobodys_key, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_rotated, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_seeds_of_before, open_sites, close_sites),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_many_keys)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
