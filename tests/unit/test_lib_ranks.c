// SPDX-License-Identifier: Apache-2.0
// libnebula with several ranks, as threads, against a fake agent: whatever fails on one rank fails
// the call on all ranks. Also the end of a loop whose model cannot be written, and the file of a
// state that a loop keeps.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/lib/state.h"
#include "intra/ckpt/checkpoint.h"
#include "security/seal_key.h"
#include "security/vault.h"
#include "tests/e2e/loop_ranks.h"
#include "tests/unit/lib_fixture.h"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>

static const char yaml[] = "job: t\nsteps: 1\nmodel: {vocab: 16, n_layers: 1, d_model: 8, "
                           "n_heads: 2, n_kv_heads: 1, d_ff: 16, tied: true}\n"
                           "data: {corpus: /nowhere, seq_len: 8, batch: 1}\noptim: {lr: 0.1}\n"
                           "sync: {scheme: none}\ncheckpoint: {every_steps: 0}\nclusters:\n"
                           "  - {name: a, launcher: attach, threads: 1}\n";
static int start(void **state) { return start_with(state, yaml); }
static int start_saving(void **state) {
    char text[sizeof yaml + 16], *at = strstr(strcpy(text, yaml), "every_steps: 0");
    at[strlen("every_steps: ")] = '1';
    at = strstr(text, "steps: 1");
    at[strlen("steps: ")] = '3';
    return start_with(state, text);
}

// ---- a failure on one rank ----------------------------------------------------------------------

enum { RANKS = 3 };
struct loop {
    struct loop_ranks ranks;
    const struct agent *agent;
    const char *fault; // armed by rank 0 when all ranks are attached
    pthread_barrier_t *together;
    float memory[4096];
    int status; // of the first call that failed
    bool lost;  // the ranks have lost each other
};

static int run(struct loop *l) {
    struct nebula_attach_options o = options(l->agent);
    struct nebula *n = NULL;
    int s;
    o.ranks = &l->ranks.hooks;
    assert_int_equal(nebula_attach(&o, &n), NEBULA_OK);
    register_all(n, l->memory, NULL);
    pthread_barrier_wait(l->together);
    if (l->ranks.hooks.rank == 0)
        neb_fault_arm(l->fault);
    pthread_barrier_wait(l->together);
    if ((s = nebula_begin(n)) == NEBULA_OK)
        s = nebula_checkpoint(n);
    pthread_barrier_wait(l->together); // a rank that failed is still there
    l->lost = n->world->ops->lost(n->world);
    loop_leave(&l->ranks);
    (void)nebula_close(&n, (double)NAN);
    return s;
}

static void *run_rank(void *arg) {
    struct loop *l = arg;
    l->status = run(l);
    return NULL;
}

// The number of ranks that have failed.
static int start_all(const struct agent *a, const char *fault, void *(*run_one)(void *)) {
    static struct loop loops[RANKS];
    pthread_t threads[RANKS];
    pthread_barrier_t together;
    int failed = 0;
    memset(loops, 0, sizeof loops);
    pthread_barrier_init(&together, NULL, RANKS);
    for (int x = 0; x < RANKS; x++)
        for (int y = 0; y < x; y++) {
            int pair[2];
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
            loops[x].ranks.sockets[x][y] = pair[0];
            loops[y].ranks.sockets[y][x] = pair[1];
        }
    for (int r = 0; r < RANKS; r++) {
        struct loop *l = &loops[r];
        l->agent = a;
        l->fault = fault;
        l->together = &together;
        l->ranks.hooks =
            (struct nebula_ranks){sizeof l->ranks.hooks, r, RANKS, &l->ranks, loop_send, loop_recv};
        assert_int_equal(pthread_create(&threads[r], NULL, run_one, l), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    neb_fault_arm(NULL);
    pthread_barrier_destroy(&together);
    for (int r = 0; r < RANKS; r++)
        failed += loops[r].status != NEBULA_OK || loops[r].lost;
    for (int r = 0; r < RANKS; r++)
        if (loops[r].lost)
            fail_msg("%s: rank %d has lost the others, or waited", fault ? fault : "-", r);
    return failed;
}

static void test_a_failure_is_one_of_all_ranks(void **state) {
    static const char *const points[] = {"bytes.reserve", "unlink", "fs.write", "fs.rename"};
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        int failed = RANKS, k = 1;
        for (; failed && k < 200; k++) {
            char fault[64];
            snprintf(fault, sizeof fault, "%s:%d", points[p], k);
            alarm(60); // ranks that wait for each other
            failed = start_all(*state, fault, run_rank);
            if (failed && failed != RANKS)
                fail_msg("%s: an error on %d of %d ranks", fault, failed, RANKS);
        }
        assert_in_range(k, 3, 199); // it did fail at times
    }
    alarm(0);
}

// A rank's part is copied. The disk does not hold up the step on any rank.
static void *step_on_a_slow_disk(void *arg) {
    struct loop *l = arg;
    struct nebula_attach_options o = options(l->agent);
    struct nebula *n = NULL;
    int s;
    o.ranks = &l->ranks.hooks;
    assert_int_equal(nebula_attach(&o, &n), NEBULA_OK);
    register_all(n, l->memory, NULL);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    pthread_barrier_wait(l->together);
    neb_fault_arm("fs.write:+2000");
    pthread_barrier_wait(l->together);
    neb_ns start = neb_now();
    assert_int_equal(nebula_step(n, 8, 1, &s), NEBULA_OK);
    l->lost = neb_now() - start > NEB_S;
    pthread_barrier_wait(l->together);
    neb_fault_arm(NULL);
    assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
    loop_leave(&l->ranks);
    return NULL;
}

static void test_checkpoints_are_copied(void **state) {
    struct agent *a = *state;
    char dir[96];
    assert_int_equal(start_all(a, NULL, step_on_a_slow_disk), 0);
    snprintf(dir, sizeof dir, "%s/checkpoint", a->dir);
    struct intra_ckpt *c = NULL; // close has waited for the parts
    assert_int_equal(intra_ckpt_open_latest_in(NULL, dir, &c), NEB_OK);
    assert_non_null(strstr(intra_ckpt_path(c), "step-000000000001.ckpt"));
    intra_ckpt_close(&c);
}

// ---- the end ------------------------------------------------------------------------------------

static void wait_until(const atomic_bool *what) {
    for (int i = 0; i < 20000 && !*what; i++)
        neb_sleep(NEB_MS);
    assert_true(*what);
}

static struct nebula *ended(const struct agent *a, float *memory) {
    struct nebula *n = attached(a);
    int s = NEBULA_TRAIN;
    register_all(n, memory, NULL);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    if (n->state == NEBULA_TRAIN)
        assert_int_equal(nebula_step(n, 8, 1, &s), NEBULA_OK);
    assert_int_equal(n->state, NEBULA_DONE);
    return n;
}

// The submitter hears of it, and the next loop ends the job.
static void test_final_model_cannot_be_written(void **state) {
    struct agent *a = *state;
    static float memory[4096];
    char path[96];
    snprintf(path, sizeof path, "%s/model.ckpt", a->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    struct nebula *n = ended(a, memory);
    SAYS(nebula_close(&n, 1), NEBULA_ERR_IO, "model.ckpt");
    wait_until(&a->fault);
    wait_until(&a->detached);
    assert_false(a->reported);
    assert_int_equal(rmdir(path), 0);
    n = ended(a, memory);
    assert_int_equal(nebula_close(&n, 1), NEBULA_OK);
    wait_until(&a->reported);
    assert_true(neb_fs_exists(path));
}

// The same where the checkpoint of the last step is lost after the step.
static void test_last_checkpoint_cannot_be_written(void **state) {
    struct agent *a = *state;
    static float memory[4096];
    int s;
    struct nebula *n = attached(a);
    register_all(n, memory, NULL);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    assert_int_equal(nebula_step(n, 8, 1, &s), NEBULA_OK);
    assert_int_equal(nebula_step(n, 8, 1, &s), NEBULA_OK);
    assert_int_equal(exchange_save_wait(&n->x), NEB_OK);
    neb_fault_arm("fs.write:+1000,fs.fsync:*"); // late enough that the step does not see it
    assert_int_equal(nebula_step(n, 8, 1, &s), NEBULA_OK);
    assert_int_equal(s, NEBULA_DONE);
    SAYS(nebula_close(&n, 1), NEBULA_ERR_IO, "step-000000000003.ckpt");
    neb_fault_arm(NULL);
    wait_until(&a->fault);
    wait_until(&a->detached);
    assert_false(a->reported);
}

// ---- a state that the loop keeps ----------------------------------------------------------------

// Where the site seals its files, the file through which the bytes go is sealed, too.
static void test_kept_state_is_sealed(void **state) {
    struct agent *a = *state;
    static float memory[4096];
    struct sec_seal_key *key = NULL;
    char path[96];
    int32_t parts = 0;
    assert_int_equal(sec_init(), NEB_OK);
    struct nebula *n = attached(a);
    register_all(n, memory, NULL);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    snprintf(path, sizeof path, "%s/seal.key", a->dir);
    assert_int_equal(sec_seal_key_make(path, NULL, &key), NEB_OK);
    assert_int_equal(sec_vault_create_take(&key, NULL, &n->x.vault), NEB_OK);
    neb_fault_arm("unlink:1"); // the file stays
    assert_int_equal(nebula_state_count(n, &parts), NEBULA_OK);
    neb_fault_arm(NULL);
    snprintf(path, sizeof path, "%s/state.out", a->dir);
    struct neb_buf file = {0};
    assert_int_equal(neb_fs_read(path, SIZE_MAX / 2, &file), NEB_OK);
    assert_true(neb_is_sealed(file.p, file.len));
    struct nebula_state_part part = {.size = sizeof part};
    assert_int_equal(nebula_state_at(n, 0, &part), NEBULA_OK);
    assert_true(part.count > 0);
    uint8_t *bytes = malloc((size_t)part.count);
    assert_non_null(bytes);
    assert_int_equal(nebula_state_get(n, 0, bytes), NEBULA_OK);
    assert_memory_equal(bytes, INTRA_CKPT_MAGIC,
                        sizeof INTRA_CKPT_MAGIC); // the loop gets clear text
    free(bytes);
    neb_buf_free(&file);
    assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
}

// ---- buffers ------------------------------------------------------------------------------------

static int start_buffers(void **state, const char *groups) {
    char text[1024];
    snprintf(text, sizeof text,
             "job: t\nsteps: 4\nmodel: attached\ndata: {step_tokens: 8}\n"
             "sync: {interval: 10, codec: int4, outer: {lr: 1, momentum: 0}}\n"
             "checkpoint: {every_steps: 0}\ngroups:\n%s"
             "clusters:\n  - {name: a, launcher: attach, threads: 1}\n"
             "  - {name: b, launcher: attach, threads: 1}\n",
             groups);
    return start_with(state, text);
}
static int start_coarse(void **state) {
    return start_buffers(state, "  - {match: coarse, codec: int8, eta: 1, mu: 0}\n"
                                "  - {match: slow, codec: bf16, eta: 0.5, mu: 0}\n"
                                "  - {match: heavy, codec: bf16, eta: 1, mu: 0.5}\n");
}
static int start_fine(void **state) {
    return start_buffers(state, "  - {match: fine, codec: fp32, eta: 1, mu: 0}\n"
                                "  - {match: local, exchange: never}\n");
}

static enum neb_status prepare(const struct agent *a, const char *const *buffers) {
    struct nebula *n = attached(a);
    float x[3] = {0};
    struct nebula_tensor t = {.size = sizeof t, .name = "w", .trained = 1};
    for (int k = 0; k == 0 || buffers[k - 1]; k++, t.trained = 0, t.buffer = 1) {
        if (k)
            snprintf(t.name, sizeof t.name, "%s", buffers[k - 1]);
        struct nebula_piece p = {.size = sizeof p, .name = t.name, .data = &x[k]};
        assert_int_equal(nebula_declare(n, &t), NEBULA_OK);
        assert_int_equal(nebula_register(n, &p), NEBULA_OK);
    }
    enum neb_status st = lib_prepare(n);
    assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
    return st;
}

// A running variance must not become negative.
static void test_buffers_that_are_not_averaged(void **state) {
    static const char *const names[][2] = {{"coarse"}, {"slow"}, {"heavy"}, {"other"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char why[512], want[64];
        assert_int_equal(prepare(*state, names[i]), NEB_ERR_INVALID);
        neb_last_error(why, sizeof why);
        snprintf(want, sizeof want, "buffer %s is averaged only", names[i][0]);
        if (!strstr(why, want))
            fail_msg("%s", why);
    }
}

static void test_buffers_that_are_averaged(void **state) {
    static const char *const names[] = {"fine", "local", NULL};
    assert_int_equal(prepare(*state, names), NEB_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_failure_is_one_of_all_ranks, start, stop),
        cmocka_unit_test_setup_teardown(test_checkpoints_are_copied, start_saving, stop),
        cmocka_unit_test_setup_teardown(test_final_model_cannot_be_written, start, stop),
        cmocka_unit_test_setup_teardown(test_last_checkpoint_cannot_be_written, start_saving, stop),
        cmocka_unit_test_setup_teardown(test_kept_state_is_sealed, start, stop),
        cmocka_unit_test_setup_teardown(test_buffers_that_are_not_averaged, start_coarse, stop),
        cmocka_unit_test_setup_teardown(test_buffers_that_are_averaged, start_fine, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
