// SPDX-License-Identifier: Apache-2.0
// Checkpoints written by a thread have the bytes of the state at the copy, whatever happens to the
// state later. A failure is returned once and keeps older generations. Destroy waits.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "intra/ckpt/checkpoint_async.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 3000001 }; // floats: several pieces, the last one short

struct fixture {
    char dir[64];
    struct kern_pool *pool;
    struct intra_ckpt_async *a;
    float *x;
};

static int set_up(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    *state = f;
    strcpy(f->dir, "/tmp/nebula-ckpt-async-XXXXXX");
    f->x = malloc(N * sizeof *f->x);
    for (int i = 0; f->x && i < N; i++)
        f->x[i] = (float)i * 0.5f;
    neb_log_set_sink(testing_drop, NULL);
    return mkdtemp(f->dir) && f->x && kern_pool_create(2, &f->pool) == NEB_OK &&
                   intra_ckpt_async_create(NULL, f->pool, 1000, 0, &f->a) == NEB_OK
               ? 0
               : -1; // the buffer is too small at the start, and grows
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    neb_fault_arm(NULL);
    intra_ckpt_async_destroy(&f->a);
    kern_pool_destroy(&f->pool);
    free(f->x);
    neb_log_set_sink(NULL, NULL);
    int rc = neb_fs_remove_tree(f->dir) == NEB_OK ? 0 : -1;
    free(f);
    return rc;
}

static void fill(struct fixture *f, struct intra_ckpt_writer *w) {
    assert_int_equal(intra_ckpt_add(w, "x", INTRA_F32, N, 1, f->x), NEB_OK);
    assert_int_equal(intra_ckpt_add(w, "none", INTRA_BYTES, 0, 1, ""), NEB_OK);
    assert_int_equal(intra_ckpt_add(w, "note", INTRA_BYTES, 5, 1, "hello"), NEB_OK);
    assert_int_equal(intra_ckpt_bytes(w), N * sizeof(float) + 5);
}

static void submit(struct fixture *f, int64_t step) {
    struct intra_ckpt_writer *w = NULL;
    char path[NEB_PATH_MAX];
    assert_int_equal(intra_ckpt_step_path(f->dir, step, path, sizeof path), NEB_OK);
    assert_int_equal(intra_ckpt_async_begin(f->a, &w), NEB_OK);
    fill(f, w);
    assert_int_equal(intra_ckpt_async_submit(f->a, &w, f->dir, path, 2), NEB_OK);
    assert_null(w);
}

static enum neb_status outcome(struct fixture *f) {
    struct intra_ckpt_async_result r = {0};
    intra_ckpt_async_wait(f->a);
    enum neb_status st = intra_ckpt_async_result(f->a, &r);
    assert_true(st != NEB_OK || r.bytes == N * sizeof(float) + 5);
    return st;
}

static void test_same_bytes_as_direct_write(void **state) {
    struct fixture *f = *state;
    struct intra_ckpt_writer *w = NULL;
    struct neb_buf now = {0}, aside = {0};
    char path[NEB_PATH_MAX];
    struct intra_ckpt_async_result r;
    assert_int_equal(intra_ckpt_async_result(f->a, &r), NEB_ERR_NOT_FOUND);
    assert_int_equal(neb_path(path, sizeof path, f->dir, "now.ckpt"), NEB_OK);
    assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
    fill(f, w);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
    assert_int_equal(neb_fs_read(path, 1 << 26, &now), NEB_OK);
    for (int64_t step = 1; step <= 3; step++) { // the buffer of the copy is reused
        submit(f, step);
        for (int i = 0; i < N; i++)
            f->x[i] += 1; // training goes on
        assert_int_equal(outcome(f), NEB_OK);
        assert_int_equal(intra_ckpt_async_result(f->a, &r), NEB_ERR_NOT_FOUND); // reported once
        assert_int_equal(intra_ckpt_step_path(f->dir, step, path, sizeof path), NEB_OK);
        assert_int_equal(neb_fs_read(path, 1 << 26, &aside), NEB_OK);
        assert_true(aside.len == now.len);
        assert_true((memcmp(aside.p, now.p, now.len) == 0) == (step == 1));
    }
    assert_int_equal(intra_ckpt_step_path(f->dir, 1, path, sizeof path), NEB_OK);
    assert_false(neb_fs_exists(path)); // two generations are kept
    neb_buf_free(&now);
    neb_buf_free(&aside);
}

static void test_failure_is_reported_once(void **state) {
    struct fixture *f = *state;
    struct intra_ckpt *c = NULL;
    char text[1024];
    submit(f, 1);
    assert_int_equal(outcome(f), NEB_OK);
    neb_fault_arm("fs.write:2");
    submit(f, 2);
    assert_int_equal(outcome(f), NEB_ERR_NOSPC);
    neb_fault_arm(NULL);
    neb_last_error(text, sizeof text);
    assert_non_null(strstr(text, "step-000000000002.ckpt"));
    assert_int_equal(intra_ckpt_open_latest_in(NULL, f->dir, &c), NEB_OK);
    assert_non_null(strstr(intra_ckpt_path(c), "step-000000000001.ckpt"));
    intra_ckpt_close(&c);
    submit(f, 3); // the disk has room again
    assert_int_equal(outcome(f), NEB_OK);
}

static void test_destroy_waits(void **state) {
    struct fixture *f = *state;
    struct intra_ckpt *c = NULL;
    submit(f, 7);
    intra_ckpt_async_destroy(&f->a);
    assert_int_equal(intra_ckpt_open_latest_in(NULL, f->dir, &c), NEB_OK);
    assert_non_null(strstr(intra_ckpt_path(c), "step-000000000007.ckpt"));
    intra_ckpt_close(&c);
}

static void test_dropped_copy(void **state) {
    struct fixture *f = *state;
    struct intra_ckpt_writer *w = NULL;
    assert_int_equal(intra_ckpt_async_begin(f->a, &w), NEB_OK);
    fill(f, w);
    intra_ckpt_writer_destroy(&w); // the caller failed before submit
    submit(f, 1);
    assert_int_equal(outcome(f), NEB_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_bytes_as_direct_write, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_failure_is_reported_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_destroy_waits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_dropped_copy, set_up, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
