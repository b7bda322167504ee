// SPDX-License-Identifier: Apache-2.0
// Long work on files reports its progress (reading, writing, verifying and removing checkpoints,
// waiting for a writer or for the parts of other ranks), and a standstill is noticed.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/moved.h"
#include "agent/base/sha256.h"
#include "intra/ckpt/checkpoint_async.h"
#include "intra/ckpt/checkpoint_parts.h"
#include "tests/testing.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SECTIONS = 8, WORDS = 1 << 20 }; // 8 MiB each: two pieces

static char dir[64], path[128];
static uint64_t *words; // (WORDS)

struct heard {
    int n;
    neb_ns last, longest; // time of the last call; longest silence
};

static void hear(void *user) {
    struct heard *h = user;
    neb_ns now = neb_now();
    h->longest = now - h->last > h->longest ? now - h->last : h->longest;
    h->last = now;
    h->n++;
    neb_moved_add(0); // must not call hear() from within itself
}

static struct heard listen(void) { return (struct heard){.last = neb_now()}; }

static void write_it(void) {
    struct intra_ckpt_writer *w = NULL;
    char name[16];
    assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
    for (int i = 0; i < SECTIONS; i++) {
        snprintf(name, sizeof name, "s%d", i);
        words[0] = (uint64_t)i;
        assert_int_equal(intra_ckpt_add(w, name, INTRA_U64, WORDS, 1, words), NEB_OK);
    }
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
}

// On a disk that takes 150 ms a piece, the work takes seconds. But no silence lasts much longer
// than a piece.
static void test_checkpoint_on_slow_disk(void **state) {
    (void)state;
    struct intra_ckpt *c = NULL;
    uint64_t before = neb_moved(), bytes = (uint64_t)SECTIONS * WORDS * sizeof *words;
    struct heard h = listen();
    neb_moved_listen(hear, &h);
    neb_fault_arm("fs.write:+150");
    write_it();
    neb_fault_arm(NULL);
    assert_true(neb_moved() - before >= bytes);
    assert_true(h.n >= 2 * SECTIONS);
    assert_true(h.longest < 1200 * NEB_MS);
    h = listen();
    before = neb_moved();
    neb_fault_arm("file.read:+150");
    neb_ns start = neb_now();
    assert_int_equal(intra_ckpt_open(path, true, &c), NEB_OK);
    assert_true(neb_now() - start > 2 * NEB_S);
    assert_true(h.n >= 2 * SECTIONS && h.longest < 1200 * NEB_MS);
    h = listen();
    assert_int_equal(intra_ckpt_read(c, "s7", INTRA_U64, WORDS, 1, words), NEB_OK);
    assert_int_equal(words[0], 7);
    assert_true(h.n >= 2);
    neb_fault_arm(NULL);
    intra_ckpt_close(&c);
    neb_moved_listen(NULL, NULL);
    assert_true(neb_moved() - before >= bytes + WORDS * sizeof *words);
}

// A digest over pieces equals the digest over the whole.
static void test_digest_by_pieces(void **state) {
    (void)state;
    struct neb_sha256 *sha = NULL;
    uint8_t whole[NEB_SHA256_BYTES], pieces[NEB_SHA256_BYTES];
    size_t n = WORDS * sizeof *words - 3;
    for (size_t i = 0; i < WORDS; i++)
        words[i] = i * 0x9e3779b97f4a7c15u;
    assert_int_equal(neb_sha256_create(&sha), NEB_OK);
    neb_sha256_add(sha, words, n);
    neb_sha256_finish(sha, pieces);
    neb_sha256_destroy(&sha);
    neb_sha256(words, n, whole);
    assert_memory_equal(whole, pieces, sizeof whole);
}

static char said[8][256];
static int n_said;
static void keep(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    if (n_said < 8)
        snprintf(said[n_said++], sizeof said[0], "%s", text);
}

static void test_progress_line(void **state) {
    (void)state;
    struct neb_moving m = {.what = "verifying", .path = "x", .total = 4000000000u};
    neb_log_set_sink(keep, NULL);
    neb_moving_add(&m, 1);
    assert_int_equal(n_said, 0); // work of a few seconds is not logged
    m.start -= 20 * NEB_S;
    m.said -= 20 * NEB_S;
    neb_moving_add(&m, 999999999u);
    neb_moving_add(&m, 1000000);
    neb_log_set_sink(NULL, NULL);
    assert_int_equal(n_said, 1);
    assert_string_equal(said[0], "verifying x: 25 %, 1.0 of 4.0 GB, 50 MB/s, 60 s left");
}

// A background thread writes; the waiting thread reports progress, and no bytes are left at the
// end.
static void test_wait_for_writer(void **state) {
    (void)state;
    struct kern_pool *pool = NULL;
    struct intra_ckpt_async *a = NULL;
    struct intra_ckpt_writer *w = NULL;
    struct intra_ckpt_async_result r;
    struct heard h = listen();
    const uint64_t bytes = WORDS * sizeof *words;
    assert_int_equal(kern_pool_create(2, &pool), NEB_OK);
    assert_int_equal(intra_ckpt_async_create(NULL, pool, bytes, bytes, &a), NEB_OK);
    assert_int_equal(intra_ckpt_async_left(a), 0);
    assert_int_equal(intra_ckpt_async_begin(a, &w), NEB_OK);
    assert_int_equal(intra_ckpt_add(w, "x", INTRA_U64, WORDS, 1, words), NEB_OK);
    neb_fault_arm("fs.write:+900");
    assert_int_equal(intra_ckpt_async_submit(a, &w, dir, path, 0), NEB_OK);
    assert_int_equal(intra_ckpt_async_left(a), bytes);
    neb_moved_listen(hear, &h);
    intra_ckpt_async_wait(a);
    neb_moved_listen(NULL, NULL);
    neb_fault_arm(NULL);
    assert_true(h.n >= 1);
    assert_int_equal(intra_ckpt_async_left(a), 0);
    assert_int_equal(intra_ckpt_async_result(a, &r), NEB_OK);
    intra_ckpt_async_destroy(&a);
    kern_pool_destroy(&pool);
}

// ---- parts of other ranks ----

enum { TOKEN = 7 };
static const neb_ns idle = 1200 * NEB_MS;

struct rank { // the rank that writes its part
    int pieces;
    bool whole;
};

static void *grow(void *arg) {
    const struct rank *r = arg;
    char part[NEB_PATH_MAX], half[NEB_PATH_MAX + 8];
    assert_int_equal(intra_part_path(path, TOKEN, 1, part, sizeof part), NEB_OK);
    snprintf(half, sizeof half, "%s.tmp", part);
    FILE *f = fopen(half, "w");
    assert_non_null(f);
    for (int i = 0; i < r->pieces; i++) {
        neb_sleep(100 * NEB_MS);
        fputs("a piece", f);
        fflush(f);
    }
    fclose(f);
    if (r->whole)
        assert_int_equal(rename(half, part), 0);
    return NULL;
}

static enum neb_status wait_for(struct rank r, double *seconds) {
    pthread_t thread;
    neb_ns start = neb_now();
    assert_int_equal(pthread_create(&thread, NULL, grow, &r), 0);
    enum neb_status st = intra_parts_wait(path, TOKEN, 1, idle);
    *seconds = neb_seconds(neb_now() - start);
    pthread_join(thread, NULL);
    assert_int_equal(intra_parts_prune(NULL, dir), NEB_OK);
    return st;
}

// Removing a folder of checkpoints calls the listener for each file.
static void test_remove_folder(void **state) {
    (void)state;
    enum { FILES = 5, BYTES = 1000 };
    char sub_dir[300], file[320], text[BYTES] = "x";
    struct heard h = listen();
    snprintf(sub_dir, sizeof sub_dir, "%s/gone", dir);
    assert_int_equal(neb_fs_mkdirs(sub_dir, 0700), NEB_OK);
    for (int i = 0; i < FILES; i++) {
        snprintf(file, sizeof file, "%s/%d", sub_dir, i);
        assert_int_equal(neb_fs_write(file, text, sizeof text, 0600), NEB_OK);
    }
    uint64_t before = neb_moved();
    neb_moved_listen(hear, &h);
    assert_int_equal(neb_fs_remove_tree(sub_dir), NEB_OK);
    neb_moved_listen(NULL, NULL);
    assert_int_equal(h.n, FILES);
    assert_true(neb_moved() - before >= FILES * BYTES);
    assert_false(neb_fs_exists(sub_dir));
}

// The wait lasts as long as the part grows. It ends once the part stands still for the idle limit.
static void test_wait_for_part(void **state) {
    (void)state;
    double s;
    uint64_t before = neb_moved();
    assert_int_equal(unlink(path), 0);
    assert_int_equal(wait_for((struct rank){.pieces = 40, .whole = true}, &s), NEB_OK);
    assert_true(s > 3 * neb_seconds(idle));
    assert_true(neb_moved() > before); // the waiter itself reports progress to its own waiters
    n_said = 0;
    neb_log_set_sink(keep, NULL);
    assert_int_equal(wait_for((struct rank){.pieces = 3, .whole = false}, &s), NEB_ERR_TIMEOUT);
    neb_log_set_sink(NULL, NULL);
    assert_non_null(strstr(said[0], "no missing part has grown for 1 s"));
    assert_true(s < 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_on_slow_disk), cmocka_unit_test(test_progress_line),
        cmocka_unit_test(test_digest_by_pieces),        cmocka_unit_test(test_wait_for_writer),
        cmocka_unit_test(test_wait_for_part),           cmocka_unit_test(test_remove_folder)};
    strcpy(dir, "/tmp/nebula-moved-XXXXXX");
    if (!mkdtemp(dir) || !(words = calloc(WORDS, sizeof *words)))
        return 1;
    snprintf(path, sizeof path, "%s/step-000000000001.ckpt", dir);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(words);
    if (neb_fs_remove_tree(dir) != NEB_OK)
        return 1;
    return failed;
}
