// SPDX-License-Identifier: Apache-2.0
// The ledger under failing disks and power cuts. A fixed script runs again and again. Its k-th
// write, sync, rename, removal or truncation, also inside SQLite, fails or kills the process, for
// every k. Afterwards everything acknowledged is there, nothing is partial, and the script can go
// on to its end.
#include "agent/base/fault.h"
#include "inter/ledger/verify.h"
#include "tests/unit/ledger_fixture.h"

#include <sqlite3.h>
#include <sys/mman.h>
#include <sys/wait.h>

// ---- fault points inside SQLite: a VFS that fails the k-th write, sync or truncation ----

static sqlite3_vfs vfs;
static struct {
    const sqlite3_io_methods *real;
    sqlite3_io_methods ours;
} methods[8]; // SQLite has one table per kind of file; ours are copies with three changed entries

static const sqlite3_io_methods *real_of(sqlite3_file *f) {
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (f->pMethods == &methods[i].ours)
            return methods[i].real;
    abort();
}

static int x_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at) {
    return neb_fault("sqlite.write") ? SQLITE_FULL : real_of(f)->xWrite(f, p, n, at);
}

static int x_sync(sqlite3_file *f, int flags) {
    return neb_fault("sqlite.sync") ? SQLITE_IOERR_FSYNC : real_of(f)->xSync(f, flags);
}

static int x_truncate(sqlite3_file *f, sqlite3_int64 n) {
    return neb_fault("sqlite.truncate") ? SQLITE_IOERR_TRUNCATE : real_of(f)->xTruncate(f, n);
}

static int x_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out) {
    int rc = ((sqlite3_vfs *)v->pAppData)->xOpen(v->pAppData, name, f, flags, out);
    if (rc != SQLITE_OK || !f->pMethods)
        return rc;
    size_t i = 0;
    while (methods[i].real && methods[i].real != f->pMethods)
        if (++i == sizeof methods / sizeof methods[0])
            abort();
    if (!methods[i].real) {
        methods[i].real = f->pMethods;
        methods[i].ours = *f->pMethods;
        methods[i].ours.xWrite = x_write;
        methods[i].ours.xSync = x_sync;
        methods[i].ours.xTruncate = x_truncate;
    }
    f->pMethods = &methods[i].ours;
    return rc;
}

static int x_delete(sqlite3_vfs *v, const char *name, int sync_dir) {
    return neb_fault("sqlite.delete")
               ? SQLITE_IOERR_DELETE
               : ((sqlite3_vfs *)v->pAppData)->xDelete(v->pAppData, name, sync_dir);
}

static void install_vfs(void) {
    sqlite3_vfs *real = sqlite3_vfs_find(NULL);
    vfs = *real; // the other entries ignore their argument's table
    vfs.zName = "faults";
    vfs.pNext = NULL;
    vfs.pAppData = real;
    vfs.xOpen = x_open;
    vfs.xDelete = x_delete;
    assert_int_equal(sqlite3_vfs_register(&vfs, 1), SQLITE_OK);
}

// ---- the script ----

enum { BIG_CHUNKS = 17 }; // one more than between two writes of a bitmap

// The steps, in order. Rounds are of fragment 0 unless the name says otherwise.
// clang-format off
#define STEPS(X) \
    X(OPEN) X(JOB) X(OWN_0) X(MINE_0) X(THEIRS_0) X(PART_0) X(CHUNK_0) X(CHUNK_1) X(CHUNK_2) \
    X(FINISH_0) X(VOTE_0) X(COMMIT_0) X(POST_1) X(POST_2) X(OWN_1) X(MINE_1) X(ARRIVE_1) \
    X(VOTE_1) X(COMMIT_1) X(TAKE) X(POSTED) X(OWN_2) X(MINE_2) X(ARRIVE_2) X(COMMIT_2) \
    X(PRUNE_0) X(SAVED) X(CAP) X(BIG) X(REOPEN) X(OWN_3) X(MINE_3) X(VOTE_3) X(REVOTE) X(BEGIN_AT) \
    X(RESTART) X(JOB_DONE) X(CLOSE)
// clang-format on

#define NAME(s) S_##s,
enum step { STEPS(NAME) STEPS_N };
#undef NAME

// in memory if possible: kills and faults need no real disk
static char root[40];
static char dir[80];
static struct inter_ledger *l;

static const uint8_t base[INTER_SHA_BYTES] = {7, 7, 7}; // the hash before fragment 1's chain

static struct inter_manifest big_manifest(void) {
    static uint8_t bytes[BIG_CHUNKS * INTER_CHUNK_MIN];
    struct inter_key k = fx_key(2, 0, 1);
    struct inter_manifest m = {.key = k, .bytes = sizeof bytes, .chunk_bytes = INTER_CHUNK_MIN};
    neb_sha256(bytes, sizeof bytes, m.sha256);
    fx_sign_manifest(&m);
    return m;
}

static enum neb_status big(void) { // all but the last chunk of a large update
    static const uint8_t chunk[INTER_CHUNK_MIN];
    struct inter_manifest m = big_manifest();
    struct inter_bitmap had;
    NEB_TRY(inter_ledger_put_manifest(l, &m));
    NEB_TRY(inter_bitmap_init(&had, BIG_CHUNKS));
    enum neb_status st = inter_ledger_part_open(l, &m, &had);
    inter_bitmap_free(&had);
    for (uint64_t c = 0; c < BIG_CHUNKS - 1 && st == NEB_OK; c++)
        st = inter_ledger_part_write(l, &m.key, c * INTER_CHUNK_MIN, chunk, sizeof chunk);
    return st;
}

static enum neb_status revote(void) {
    struct inter_record r = fx_chain(0, 3);
    r.term = 2;
    fx_sign_record(&r);
    return inter_ledger_put_vote(l, &r);
}

static enum neb_status arrive_unless_here(uint32_t round) {
    struct inter_key k = fx_key(0, round, 1);
    return inter_ledger_has_blob(l, &k) ? NEB_OK : fx_arrive(l, 0, round);
}

static enum neb_status reopen(void) {
    inter_ledger_close(&l);
    return inter_ledger_open(dir, &l);
}

static enum neb_status post(const char *text) {
    uint64_t seq, previous;
    return inter_ledger_post(l, "anna", 1, text, strlen(text), NULL, &seq, &previous);
}

static enum neb_status restart(void) {
    struct inter_standing st = {.epoch = 5};
    memcpy(st.job, fx_job, sizeof st.job);
    inter_ledger_parts_close(l, fx_job);
    return inter_ledger_reset_job(l, &st);
}

static enum neb_status do_step(enum step s) {
    uint32_t got;
    if (!l) // after a failed opening, or to resume
        NEB_TRY(inter_ledger_open(dir, &l));
    switch (s) {
    case S_OPEN: return NEB_OK;
    case S_JOB: return inter_ledger_put_job(l, fx_job, "spec", "running");
    case S_OWN_0: return fx_put_own(l, 0, 0);
    case S_MINE_0: return fx_put_manifest(l, 0, 0, 0);
    case S_THEIRS_0: return fx_put_manifest(l, 0, 0, 1);
    case S_PART_0: return fx_part_open(l, 0, 0, &got);
    case S_CHUNK_0: return fx_part_write(l, 0, 0, 0);
    case S_CHUNK_1: return fx_part_write(l, 0, 0, 1);
    case S_CHUNK_2: return fx_part_write(l, 0, 0, 2);
    case S_FINISH_0: return fx_part_finish(l, 0, 0);
    case S_VOTE_0: return fx_put_vote(l, 0, 0);
    case S_COMMIT_0: return fx_put_commit(l, 0, 0);
    case S_POST_1: return post("one");
    case S_POST_2: return post("two");
    case S_OWN_1: return fx_put_own(l, 0, 1);
    case S_MINE_1: return fx_put_manifest(l, 0, 1, 0);
    case S_ARRIVE_1: return arrive_unless_here(1);
    case S_VOTE_1: return fx_put_vote(l, 0, 1);
    case S_COMMIT_1: return fx_put_commit(l, 0, 1);
    case S_TAKE: return inter_ledger_take(l, "anna", 77, 5);
    case S_POSTED: return inter_ledger_posted(l, "anna", UINT64_MAX);
    case S_OWN_2: return fx_put_own(l, 0, 2);
    case S_MINE_2: return fx_put_manifest(l, 0, 2, 0);
    case S_ARRIVE_2: return arrive_unless_here(2);
    case S_COMMIT_2: return fx_put_commit(l, 0, 2);
    case S_PRUNE_0: return inter_ledger_prune(l, fx_job, 0, 1);
    case S_SAVED: return inter_ledger_saved(l, fx_job, &(uint32_t){2}, 1);
    case S_CAP: return inter_ledger_set_cap(l, 60000); // keeps the newest commit, round 2
    case S_BIG: return big();
    case S_REOPEN: return reopen();
    case S_OWN_3: return fx_put_own(l, 0, 3);
    case S_MINE_3: return fx_put_manifest(l, 0, 3, 0);
    case S_VOTE_3: return fx_put_vote(l, 0, 3);
    case S_REVOTE: return revote();
    case S_BEGIN_AT: return inter_ledger_begin_at(l, fx_job, 1, 9, base);
    case S_RESTART: return restart();
    case S_JOB_DONE: return inter_ledger_put_job(l, fx_job, "spec", "done");
    case S_CLOSE: inter_ledger_close(&l); return NEB_OK;
    case STEPS_N: break;
    }
    return NEB_ERR_INVALID;
}

// ---- the checks ----

// `acked` is the number of acknowledged steps. The step with this number was in flight, and may
// have had its effect.
static int acked;

static bool done(enum step s) { return acked > (int)s; }
static bool begun(enum step s) { return acked >= (int)s; }

// Between the steps put and drop, the content must be there. Outside, it must not be. While one of
// them was in flight, both are allowed.
static void expect_between(bool there, enum step put, enum step drop, const char *what) {
    if (done(put) && !begun(drop) && !there)
        fail_msg("acknowledged, but lost: %s (after %d steps)", what, acked);
    if ((!begun(put) || done(drop)) && there)
        fail_msg("there, but should not be: %s (after %d steps)", what, acked);
}

static void check_blob(uint32_t round, uint8_t member, enum step put, enum step drop) {
    static uint8_t want[FX_PEER_BYTES];
    struct inter_key k = fx_key(0, round, member);
    struct neb_map m;
    bool there = inter_ledger_has_blob(l, &k);
    expect_between(there, put, drop, member ? "an arrived blob" : "an own blob");
    if (!there)
        return;
    size_t n = fx_blob(&k, want);
    OK(inter_ledger_map_blob(l, &k, &m));
    assert_int_equal(m.len, n);
    assert_memory_equal(m.p, want, n);
    neb_map_close(&m);
}

static void check_commit(uint32_t round, enum step put) {
    struct inter_record r;
    uint8_t have[INTER_SHA_BYTES], want[INTER_SHA_BYTES];
    enum neb_status st = inter_ledger_get_commit(l, fx_job, 0, round, &r);
    expect_between(st == NEB_OK, put, S_RESTART, "a commit");
    if (st != NEB_OK)
        return;
    inter_record_hash(&r, have);
    r = fx_chain(0, round);
    inter_record_hash(&r, want);
    assert_memory_equal(have, want, sizeof have);
}

static void check_vote(uint32_t round, enum step put, enum step drop, enum step again) {
    struct inter_record r;
    enum neb_status st = inter_ledger_get_vote(l, fx_job, 0, round, &r);
    expect_between(st == NEB_OK, put, drop, "a vote");
    if (st == NEB_OK && (done(again) || !begun(again)))
        assert_int_equal(r.term, done(again) ? 2 : 1);
}

static bool count_message(void *user, uint64_t seq, uint32_t kind, const uint8_t *p, size_t n) {
    (void)seq, (void)kind, (void)p;
    *(size_t *)user += n == 3;
    return true;
}

static void check_job(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                      const char *state) {
    bool *there = user;
    *there = true;
    assert_memory_equal(id, fx_job, INTER_ID_BYTES);
    assert_string_equal(spec, "spec");
    if (done(S_JOB_DONE) || !begun(S_JOB_DONE))
        assert_string_equal(state, done(S_JOB_DONE) ? "done" : "running");
}

static void check_messages(void) {
    size_t n = 0;
    uint64_t taken;
    OK(inter_ledger_pending(l, "anna", count_message, &n));
    expect_between(n > 0, S_POST_1, S_POSTED, "a message to send");
    expect_between(n > 1, S_POST_2, S_POSTED, "a second message to send");
    OK(inter_ledger_taken(l, "anna", 77, &taken));
    expect_between(taken == 5, S_TAKE, STEPS_N, "a receipt");
    assert_true(taken == 0 || taken == 5);
}

static void on_damage(void *user, const struct inter_damage *d) {
    (void)user;
    print_error("after %d steps in %s: %s\n", acked, dir, d->text);
}

static void check_all(void) {
    struct inter_ledger_counts n;
    struct inter_ledger_check c = {NULL, fx_verify, on_damage, NULL};
    struct inter_chain chain;
    struct inter_manifest m = big_manifest();
    bool there = false;
    OK(inter_ledger_verify(l, &c, &n)); // nothing is partial
    OK(inter_ledger_jobs(l, check_job, &there));
    expect_between(there, S_JOB, STEPS_N, "a job");
    check_blob(0, 0, S_MINE_0, S_PRUNE_0); // without its manifest nothing was promised
    check_blob(0, 1, S_FINISH_0, S_PRUNE_0);
    check_blob(1, 0, S_MINE_1, S_CAP);
    check_blob(1, 1, S_ARRIVE_1, S_CAP);
    check_blob(2, 0, S_MINE_2, S_RESTART);
    check_blob(2, 1, S_ARRIVE_2, S_RESTART);
    check_blob(3, 0, S_MINE_3, S_RESTART);
    check_commit(0, S_COMMIT_0);
    check_commit(1, S_COMMIT_1);
    check_commit(2, S_COMMIT_2);
    check_vote(0, S_VOTE_0, S_PRUNE_0, STEPS_N);
    check_vote(1, S_VOTE_1, S_RESTART, STEPS_N);
    check_vote(3, S_VOTE_3, S_RESTART, S_REVOTE);
    check_messages();
    expect_between(inter_ledger_get_manifest(l, &m.key, &m) == NEB_OK, S_BIG, S_RESTART,
                   "a large update's manifest");
    enum neb_status st = inter_ledger_chain(l, fx_job, 1, &chain);
    expect_between(st == NEB_OK && chain.first == 9, S_BEGIN_AT, S_RESTART, "a chain's beginning");
}

// ---- the sweep ----

static void go_on(void) { // resumes like a restarted agent
    struct inter_key k = fx_key(0, 0, 1);
    int from = acked;
    if (from > S_PART_0 && from <= S_FINISH_0)
        from = inter_ledger_has_blob(l, &k) ? S_VOTE_0 : S_PART_0;
    if (from == S_MINE_0 || from == S_MINE_1 || from == S_MINE_2 || from == S_MINE_3)
        from--; // the opening removed a blob without a manifest
    for (int s = from; s < STEPS_N; s++)
        OK(do_step((enum step)s));
    acked = STEPS_N;
}

static void fresh(const char *mode, int k) { snprintf(dir, sizeof dir, "%s/%s-%d", root, mode, k); }

static void check_and_go_on(void) {
    OK(inter_ledger_open(dir, &l));
    uint64_t epoch = inter_ledger_epoch(l);
    check_all();
    go_on();
    inter_ledger_close(&l);
    OK(inter_ledger_open(dir, &l));
    check_all();
    assert_true(inter_ledger_epoch(l) == epoch);
    inter_ledger_close(&l);
    OK(neb_fs_remove_tree(dir));
}

// Fault points of the disk, by the start of their names.
static const char *const kinds[] = {"fs", "ledger", "sqlite"};
enum { KINDS = sizeof kinds / sizeof *kinds };
static int points[KINDS]; // the number of them in the whole script

// Kills a child at the k-th point of a kind. False: it has no such point.
static bool kill_at(int kind, int k, int *shared) {
    char spec[32];
    int status;
    fresh("kill", k);
    *shared = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        snprintf(spec, sizeof spec, "%s.*:%d:kill", kinds[kind], k);
        neb_fault_arm(spec);
        for (int s = 0; s < STEPS_N; s++) {
            if (do_step((enum step)s) != NEB_OK)
                _exit(2);
            *shared = s + 1;
        }
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    acked = *shared;
    if (WIFEXITED(status))
        assert_int_equal(WEXITSTATUS(status), 0);
    check_and_go_on();
    return WIFSIGNALED(status);
}

static void test_killed_at_every_point(void **state) {
    (void)state;
    int *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    for (int i = 0; i < KINDS; i++) {
        while (kill_at(i, points[i] + 1, shared))
            points[i]++;
        print_message("%d fault points %s\n", points[i], kinds[i]);
        assert_true(points[i] > 10);
    }
    munmap(shared, sizeof *shared);
}

static bool fail_step(int s) { // true: it failed with the status of a failing disk
    enum neb_status st = do_step((enum step)s);
    if (st != NEB_OK && st != NEB_ERR_NOSPC && st != NEB_ERR_IO)
        fail_msg("step %d: %s", s, neb_status_name(st));
    return st != NEB_OK;
}

// Arms the next point of all kinds. False: there is no further one. *kind, *k: 0 before the first.
static bool arm_next(int *kind, int *k) {
    char spec[32];
    if (++*k > points[*kind]) {
        *k = 1;
        if (++*kind == KINDS)
            return false;
    }
    snprintf(spec, sizeof spec, "%s.*:%d", kinds[*kind], *k);
    neb_fault_arm(spec);
    return true;
}

static void test_fails_then_opened_again(void **state) {
    (void)state;
    int failures = 0, all = 0;
    for (int kind = 0, k = 0; fresh("fail", ++all), arm_next(&kind, &k);) {
        for (acked = 0; acked < STEPS_N && !fail_step(acked); acked++)
            ;
        neb_fault_arm(NULL);
        failures += acked < STEPS_N;
        inter_ledger_close(&l);
        check_and_go_on();
    }
    // failures at the close and in a checkpoint are silent: nothing is lost
    assert_true(failures > all / 2);
}

// The same handle goes on: the failed step is repeated and then succeeds.
static void test_fails_then_tried_again(void **state) {
    (void)state;
    for (int kind = 0, k = 0, all = 0; fresh("again", ++all), arm_next(&kind, &k);) {
        for (acked = 0; acked < STEPS_N; acked++)
            if (fail_step(acked)) {
                neb_fault_arm(NULL);
                OK(do_step((enum step)acked));
            }
        neb_fault_arm(NULL);
        acked = STEPS_N;
        OK(inter_ledger_open(dir, &l));
        // A message whose storing failed may be there twice; everything else is there once.
        check_all();
        inter_ledger_close(&l);
        OK(neb_fs_remove_tree(dir));
    }
}

// A disk that stays full: every put reports it, and older content stays readable.
static void test_stays_full(void **state) {
    (void)state;
    struct inter_record r;
    struct inter_key k = fx_key(0, 1, 0);
    fresh("full", 0);
    OK(inter_ledger_open(dir, &l));
    OK(fx_round(l, 0, 0));
    static const char *const full[] = {"fs.write:1", "ledger.write:1", "sqlite.write:1"};
    for (size_t i = 0; i < sizeof full / sizeof full[0]; i++) {
        neb_fault_arm(full[i]);
        assert_int_equal(i ? fx_put_vote(l, 0, 1) : fx_put_own(l, 0, 1), NEB_ERR_NOSPC);
        neb_fault_arm(NULL);
        assert_false(inter_ledger_has_blob(l, &k));
        assert_int_equal(inter_ledger_get_vote(l, fx_job, 0, 1, &r), NEB_ERR_NOT_FOUND);
        OK(inter_ledger_last_commit(l, fx_job, 0, &r));
        assert_int_equal(inter_ledger_used(l), FX_OWN_BYTES + FX_PEER_BYTES);
    }
    assert_false(fx_has_file(dir, 0, 1, 0, ".blob.tmp"));
    OK(fx_round(l, 0, 1));
    inter_ledger_close(&l);
}

// The bitmap of an arriving blob never claims bytes that are not synced.
static void test_bytes_before_their_bitmap(void **state) {
    (void)state;
    static const uint8_t chunk[INTER_CHUNK_MIN];
    char map[NEB_PATH_MAX];
    struct inter_manifest m = big_manifest();
    struct inter_bitmap had;
    fresh("map", 0);
    OK(inter_ledger_open(dir, &l));
    OK(inter_ledger_put_manifest(l, &m));
    OK(inter_bitmap_init(&had, BIG_CHUNKS));
    OK(inter_ledger_part_open(l, &m, &had));
    inter_bitmap_free(&had);
    fx_file(dir, &m.key, ".map", map);
    neb_fault_arm("ledger.sync:1");
    for (uint64_t c = 0; c < 15; c++)
        OK(inter_ledger_part_write(l, &m.key, c * INTER_CHUNK_MIN, chunk, sizeof chunk));
    assert_int_equal(
        inter_ledger_part_write(l, &m.key, 15 * (uint64_t)INTER_CHUNK_MIN, chunk, sizeof chunk),
        NEB_ERR_IO);
    assert_false(neb_fs_exists(map));
    neb_fault_arm(NULL);
    OK(inter_ledger_part_write(l, &m.key, 15 * (uint64_t)INTER_CHUNK_MIN, chunk, sizeof chunk));
    assert_true(neb_fs_exists(map));
    inter_ledger_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed_at_every_point),
                                       cmocka_unit_test(test_fails_then_opened_again),
                                       cmocka_unit_test(test_fails_then_tried_again),
                                       cmocka_unit_test(test_stays_full),
                                       cmocka_unit_test(test_bytes_before_their_bitmap)};
    snprintf(root, sizeof root, "%s/nebula-faults-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(root))
        return 1;
    neb_log_set_sink(testing_drop, NULL);
    install_vfs();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return neb_fs_remove_tree(root) != NEB_OK || failed;
}
