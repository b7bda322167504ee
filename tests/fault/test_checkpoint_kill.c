// SPDX-License-Identifier: Apache-2.0
// A checkpoint's writer is killed, or fails, at every write, fsync and rename in turn. The folder
// always has a generation that loads. This is the new one exactly if its writer returned success.
// The same holds for the thread that writes during training.
#include "agent/base/fault.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "intra/ckpt/checkpoint_async.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORDS = 300000 }; // several writes of the buffer

static char dir[64];

static uint64_t *words_of(int64_t step) {
    uint64_t *x = malloc(WORDS * sizeof *x);
    for (int i = 0; x && i < WORDS; i++)
        x[i] = (uint64_t)step * 1000003u + (uint64_t)i;
    return x;
}

static enum neb_status write_generation(int64_t step) {
    struct intra_ckpt_writer *w = NULL;
    char path[NEB_PATH_MAX];
    uint64_t *x = words_of(step);
    enum neb_status st = x ? intra_ckpt_step_path(dir, step, path, sizeof path) : NEB_ERR_NOMEM;
    if (st == NEB_OK)
        st = intra_ckpt_create(path, &w);
    if (st == NEB_OK)
        st = intra_ckpt_add(w, "words", INTRA_U64, WORDS, 1, x);
    if (st == NEB_OK)
        st = intra_ckpt_commit(w);
    intra_ckpt_writer_destroy(&w);
    free(x);
    return st == NEB_OK ? intra_ckpt_prune(NULL, dir, 2) : st;
}

// The thread writes a copy; the source changes at once, as in training.
static enum neb_status write_aside(int64_t step) {
    struct intra_ckpt_async *a = NULL;
    struct intra_ckpt_async_result r;
    struct kern_pool *pool = NULL;
    struct intra_ckpt_writer *w = NULL;
    char path[NEB_PATH_MAX];
    uint64_t *x = words_of(step);
    enum neb_status st = x ? intra_ckpt_step_path(dir, step, path, sizeof path) : NEB_ERR_NOMEM;
    if (st == NEB_OK)
        st = kern_pool_create(2, &pool);
    if (st == NEB_OK)
        st = intra_ckpt_async_create(NULL, pool, WORDS * sizeof *x, 0, &a);
    if (st == NEB_OK)
        st = intra_ckpt_async_begin(a, &w);
    if (st == NEB_OK)
        st = intra_ckpt_add(w, "words", INTRA_U64, WORDS, 1, x);
    if (st == NEB_OK)
        st = intra_ckpt_async_submit(a, &w, dir, path, 2);
    if (st == NEB_OK) {
        memset(x, 0, WORDS * sizeof *x);
        intra_ckpt_async_wait(a);
        st = intra_ckpt_async_result(a, &r);
    }
    intra_ckpt_writer_destroy(&w);
    intra_ckpt_async_destroy(&a);
    kern_pool_destroy(&pool);
    free(x);
    return st;
}

// Loads the newest generation and checks it to the last word.
static int64_t loads(void) {
    struct intra_ckpt *c = NULL;
    static uint64_t x[WORDS];
    assert_int_equal(intra_ckpt_open_latest_in(NULL, dir, &c), NEB_OK);
    assert_int_equal(intra_ckpt_read(c, "words", INTRA_U64, WORDS, 1, x), NEB_OK);
    intra_ckpt_close(&c);
    int64_t step = (int64_t)(x[0] / 1000003u);
    for (int i = 0; i < WORDS; i++)
        assert_true(x[i] == (uint64_t)step * 1000003u + (uint64_t)i);
    return step;
}

// Writes one generation. `how` says what its k-th operation does. True: no operation failed.
typedef enum neb_status generation_writer(int64_t step);
static bool with_fault(generation_writer *writes, int64_t step, int k, const char *how) {
    char spec[64];
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        snprintf(spec, sizeof spec, "fs.*:%d%s", k, how);
        neb_fault_arm(spec);
        _exit(writes(step) == NEB_OK ? 0 : 3);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL
                                    : WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void sweep(generation_writer *writes, const char *how) {
    int64_t step = loads();
    int k = 1, failed = 0;
    for (bool whole = false; !whole; k++) {
        assert_true(k < 500);
        whole = with_fault(writes, step + 1, k, how);
        int64_t now = loads();
        assert_true(now == step || now == step + 1);
        assert_true(!whole || now == step + 1);
        failed += !whole;
        step = now;
    }
    assert_true(failed >= 4); // writes, fsync of file and folder, rename
}

static void test_killed_at_every_operation(void **state) {
    (void)state;
    sweep(write_generation, ":kill");
    sweep(write_aside, ":kill");
}
static void test_every_operation_fails(void **state) {
    (void)state;
    sweep(write_generation, "");
    sweep(write_aside, "");
}

static int set_up(void **state) {
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    strcpy(dir, "/tmp/nebula-ckpt-kill-XXXXXX");
    return mkdtemp(dir) && write_generation(1) == NEB_OK ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    neb_log_set_sink(NULL, NULL);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_killed_at_every_operation, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_every_operation_fails, set_up, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
