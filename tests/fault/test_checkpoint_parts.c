// SPDX-License-Identifier: Apache-2.0
// The writer of a generation of one file and two parts is killed, or fails, at every write, fsync
// and rename in turn. The folder always has a generation that loads, and the next generation
// removes partial files. One process writes for three ranks: the parts in any order, the file last.
// The files are in clear, and sealed.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "intra/ckpt/checkpoint_async.h"
#include "intra/ckpt/checkpoint_parts.h"
#include "security/vault.h"
#include "tests/testing.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { FILES = 3, WORDS = 100000 }; // words of each file: several writes of the buffer

static char dir[64];
static struct sec_vault *sealing;      // a vault of job 1; NULL: in clear
static const struct neb_vault *vault;  // the interface of `sealing`
static const struct neb_vault *writes; // for the next files

static const uint64_t ranks[FILES - 1] = {3, 5}; // that write the parts

static uint64_t word(int64_t step, uint32_t k, int i) {
    return (uint64_t)step * 1000003u + k * 7919u + (uint64_t)i;
}

static enum neb_status write_one(const char *path, int64_t step, uint64_t token, uint32_t k) {
    static uint64_t x[WORDS];
    struct intra_ckpt_writer *w = NULL;
    char name[16];
    for (int i = 0; i < WORDS; i++)
        x[i] = word(step, k, i);
    snprintf(name, sizeof name, "words.%u", k);
    const struct intra_part part = {token, k, FILES - 1};
    enum neb_status st =
        k ? intra_part_create(writes, path, &part, &w) : intra_ckpt_create_in(writes, path, &w);
    if (st == NEB_OK)
        st = intra_ckpt_add(w, name, INTRA_U64, WORDS, 1, x);
    if (st == NEB_OK && !k)
        st = intra_parts_note(w, &part, ranks);
    if (st == NEB_OK)
        st = intra_ckpt_commit(w);
    intra_ckpt_writer_destroy(&w);
    return st;
}

static enum neb_status write_generation(int64_t step) {
    char path[NEB_PATH_MAX];
    uint64_t token = (uint64_t)getpid() << 20 | (uint64_t)step; // differs between processes
    NEB_TRY(intra_ckpt_step_path(dir, step, path, sizeof path));
    for (uint32_t k = FILES; k-- > 0;)
        NEB_TRY(write_one(path, step, token, k));
    return intra_ckpt_prune(vault, dir, 2);
}

// Loads the newest generation and checks it to the last word.
static int64_t loads(void) {
    struct intra_ckpt *c = NULL;
    static uint64_t x[WORDS];
    int64_t step = 0;
    assert_int_equal(intra_ckpt_open_latest_in(vault, dir, &c), NEB_OK);
    for (uint32_t k = 0; k < FILES; k++) {
        char name[16];
        snprintf(name, sizeof name, "words.%u", k);
        assert_int_equal(intra_ckpt_read(c, name, INTRA_U64, WORDS, 1, x), NEB_OK);
        step = k ? step : (int64_t)(x[0] / 1000003u);
        for (int i = 0; i < WORDS; i++)
            assert_true(x[i] == word(step, k, i));
    }
    intra_ckpt_close(&c);
    return step;
}

static int files_here(void) {
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

// Writes one generation. `how` says what its k-th operation does. True: no operation failed.
static bool with_fault(int64_t step, int k, const char *how) {
    char spec[64];
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        snprintf(spec, sizeof spec, "fs.*:%d%s", k, how);
        neb_fault_arm(spec);
        _exit(write_generation(step) == NEB_OK ? 0 : 3);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL
                                    : WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void sweep(const char *how) {
    int64_t step = loads();
    int k = 1, failed = 0;
    for (bool whole = false; !whole; k++) {
        assert_true(k < 500);
        whole = with_fault(step + 1, k, how);
        int64_t now = loads();
        assert_true(now == step || now == step + 1);
        assert_true(!whole || now == step + 1);
        failed += !whole;
        step = now;
    }
    assert_true(failed >= FILES * 3);          // of each file: a write, the fsync, the rename
    assert_int_equal(files_here(), 2 * FILES); // exactly two generations
}

static void test_killed_at_every_operation(void **state) {
    (void)state;
    sweep(":kill");
}
static void test_every_operation_fails(void **state) {
    (void)state;
    sweep("");
}

// A repeated run writes the same step again and is killed. The parts of the first run remain.
static void test_the_same_step_again(void **state) {
    (void)state;
    for (int k = 1; !with_fault(1, k, ":kill"); k++)
        assert_int_equal(loads(), 1);
    assert_int_equal(files_here(), FILES);
}

static void names_part(const char *path, enum neb_status status, const char *text) {
    char why[2 * NEB_PATH_MAX];
    struct intra_ckpt *c = NULL;
    assert_int_equal(intra_ckpt_open_in(vault, path, true, &c), status);
    neb_last_error(why, sizeof why);
    if (!strstr(why, text))
        fail_msg("\"%s\" does not name \"%s\"", why, text);
}

// If a part is lost, damaged or from another generation, the previous generation is used.
static void test_what_is_no_part(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], part[NEB_PATH_MAX], other[NEB_PATH_MAX];
    struct intra_ckpt *c = NULL;
    uint64_t note[2];
    assert_int_equal(write_generation(2), NEB_OK);
    assert_int_equal(intra_ckpt_step_path(dir, 2, path, sizeof path), NEB_OK);
    assert_int_equal(intra_ckpt_open_index(vault, path, &c), NEB_OK);
    assert_int_equal(intra_ckpt_read(c, INTRA_PARTS_SECTION, INTRA_U64, 2, 1, note), NEB_OK);
    intra_ckpt_close(&c);
    assert_int_equal(intra_part_path(path, note[0], 1, part, sizeof part), NEB_OK);
    assert_int_equal(intra_part_path(path, note[0], 2, other, sizeof other), NEB_OK);
    assert_int_equal(intra_ckpt_prune(vault, dir, 2), NEB_OK);
    assert_int_equal(loads(), 2); // a file's parts are not pruned
    struct neb_buf was = {0}, wrong = {0};
    assert_int_equal(neb_fs_read(part, 1 << 24, &was), NEB_OK);
    assert_int_equal(neb_fs_read(other, 1 << 24, &wrong), NEB_OK);
    // the generation is complete, but it has number 2
    assert_int_equal(neb_fs_write(part, wrong.p, wrong.len, 0600), NEB_OK);
    assert_int_equal(loads(), 1);
    was.p[was.len / 2] ^= 1;
    assert_int_equal(neb_fs_write(part, was.p, was.len, 0600), NEB_OK);
    assert_int_equal(loads(), 1);
    names_part(path, NEB_ERR_CORRUPT, vault ? "-1.part" : "-1.part (of rank 3)");
    // intact, with the right number and token, but it was written later
    if (!vault) {
        assert_int_equal(write_one(path, 7, note[0], 1), NEB_OK);
        assert_int_equal(loads(), 1);
        names_part(path, NEB_ERR_CORRUPT, "(of rank 3): its digest is not the one");
    }
    was.p[was.len / 2] ^= 1;
    assert_int_equal(neb_fs_write(part, was.p, was.len, 0600), NEB_OK);
    assert_int_equal(loads(), 2);
    assert_int_equal(neb_fs_remove(part), NEB_OK);
    assert_int_equal(loads(), 1);
    names_part(path, NEB_ERR_NOT_FOUND, "-1.part");
    assert_int_equal(neb_fs_remove(path), NEB_OK); // the next prune removes its parts
    assert_int_equal(intra_ckpt_prune(vault, dir, 2), NEB_OK);
    assert_int_equal(files_here(), FILES);
    neb_buf_free(&was);
    neb_buf_free(&wrong);
}

// If the background write of a part fails, the file that waits for it fails at once, and the next
// prune cleans up.
static void test_a_part_given_up(void **state) {
    (void)state;
    static const uint64_t words[WORDS];
    const uint64_t token = 0x5eed, name[3] = {token, 1, 1};
    char path[NEB_PATH_MAX], part[NEB_PATH_MAX];
    struct intra_ckpt_async *a = NULL;
    struct intra_ckpt_async_result r;
    struct intra_ckpt_writer *w = NULL;
    struct kern_pool *pool = NULL;
    assert_int_equal(kern_pool_create(1, &pool), NEB_OK);
    assert_int_equal(intra_ckpt_step_path(dir, 2, path, sizeof path), NEB_OK);
    assert_int_equal(intra_part_path(path, token, 1, part, sizeof part), NEB_OK);
    assert_int_equal(intra_ckpt_async_create(vault, pool, 0, sizeof words, &a), NEB_OK);
    for (int fails = 1; fails >= 0; fails--) {
        assert_int_equal(intra_ckpt_async_begin(a, &w), NEB_OK);
        assert_int_equal(intra_ckpt_add(w, INTRA_PARTS_SECTION, INTRA_U64, 3, 1, name), NEB_OK);
        assert_int_equal(intra_ckpt_add(w, "words.1", INTRA_U64, WORDS, 1, words), NEB_OK);
        neb_fault_arm(fails ? "fs.write:1" : NULL);
        assert_int_equal(intra_ckpt_async_submit(a, &w, "", part, 0), NEB_OK);
        intra_ckpt_async_wait(a);
        enum neb_status st = intra_ckpt_async_result(a, &r);
        neb_fault_arm(NULL);
        assert_true(fails ? st != NEB_OK : st == NEB_OK);
        assert_int_equal(neb_fs_exists(part), !fails);
        if (fails) {
            assert_int_equal(write_one(path, 2, token, 2), NEB_OK);
            assert_int_equal(write_one(path, 2, token, 0), NEB_ERR_IO);
            assert_false(neb_fs_exists(path));
            assert_int_equal(loads(), 1);
        }
    }
    intra_ckpt_async_destroy(&a);
    kern_pool_destroy(&pool);
    assert_int_equal(write_generation(3), NEB_OK);
    // without a file there is no mark, and there are no parts
    assert_int_equal(files_here(), 2 * FILES);
}

static void key_path(char out[64]) {
    snprintf(out, 64, "/tmp/nebula-ckpt-parts-%d.key", (int)getpid());
}

static struct sec_vault *vault_of_job(uint8_t job) {
    char path[64];
    uint8_t context[SEC_SEAL_CONTEXT_BYTES] = {job};
    struct sec_seal_key *site = NULL, *k = NULL;
    struct sec_vault *v = NULL;
    key_path(path);
    assert_int_equal(neb_fs_exists(path) ? sec_seal_key_load(path, NULL, NULL, &site)
                                         : sec_seal_key_make(path, NULL, &site),
                     NEB_OK);
    assert_int_equal(sec_seal_key_derive(site, context, &k), NEB_OK);
    assert_int_equal(sec_vault_create_take(&k, NULL, &v), NEB_OK);
    sec_seal_key_destroy(&site);
    return v;
}

// Replaces parts by others that are intact and sealed with the site's keys.
static void test_sealed_parts_are_bound(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], first[NEB_PATH_MAX], part[NEB_PATH_MAX], from[NEB_PATH_MAX];
    const uint64_t token = 77, before = (uint64_t)getpid() << 20 | 1;
    struct sec_vault *other = vault_of_job(2);
    struct neb_buf was = {0}, wrong = {0};
    assert_int_equal(intra_ckpt_step_path(dir, 1, first, sizeof first), NEB_OK);
    assert_int_equal(intra_ckpt_step_path(dir, 2, path, sizeof path), NEB_OK);
    for (uint32_t k = FILES; k-- > 0;)
        assert_int_equal(write_one(path, 2, token, k), NEB_OK);
    assert_int_equal(intra_part_path(path, token, 1, part, sizeof part), NEB_OK);
    assert_int_equal(neb_fs_read(part, 1 << 24, &was), NEB_OK);
    assert_true(neb_is_sealed(was.p, was.len));
    assert_int_equal(loads(), 2);
    assert_int_equal(intra_part_path(first, before, 1, from, sizeof from), NEB_OK); // of step 1
    assert_int_equal(neb_fs_read(from, 1 << 24, &wrong), NEB_OK);
    assert_int_equal(neb_fs_write(part, wrong.p, wrong.len, 0600), NEB_OK);
    assert_int_equal(loads(), 1);
    char why[512];
    struct intra_ckpt *c = NULL;
    assert_int_equal(intra_ckpt_open_in(vault, path, true, &c), NEB_ERR_CORRUPT);
    neb_last_error(why, sizeof why);
    assert_non_null(strstr(why, "not part 1 of 2 of its checkpoint"));
    // the header is right, but anybody could have written it
    writes = NULL;
    assert_int_equal(write_one(path, 2, token, 1), NEB_OK);
    assert_int_equal(loads(), 1);
    writes = sec_vault_of(other); // another job
    assert_int_equal(write_one(path, 2, token, 1), NEB_OK);
    assert_int_equal(loads(), 1);
    // a part of three, where a part of two is needed
    const struct intra_part of_three = {token, 1, 3};
    struct intra_ckpt_writer *w = NULL;
    assert_int_equal(intra_part_create(vault, path, &of_three, &w), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
    assert_int_equal(loads(), 1);
    assert_int_equal(neb_fs_write(part, was.p, was.len, 0600), NEB_OK);
    assert_int_equal(loads(), 2);
    // a site's key opens files of its jobs' keys; without a key nothing opens
    assert_int_equal(intra_ckpt_open(path, true, &c), NEB_ERR_DENIED);
    sec_vault_destroy(&other);
    neb_buf_free(&was);
    neb_buf_free(&wrong);
}

static int set_up(void **state) {
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    strcpy(dir, "/tmp/nebula-ckpt-parts-XXXXXX");
    writes = vault;
    return mkdtemp(dir) && write_generation(1) == NEB_OK ? 0 : -1;
}
static int set_up_sealed(void **state) {
    sealing = vault_of_job(1);
    vault = sec_vault_of(sealing);
    return set_up(state);
}
static int tear_down(void **state) {
    char path[64];
    (void)state;
    neb_log_set_sink(NULL, NULL);
    sec_vault_destroy(&sealing);
    vault = NULL;
    key_path(path);
    if (neb_fs_exists(path) && neb_fs_remove(path) != NEB_OK)
        return -1;
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_killed_at_every_operation, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_every_operation_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_same_step_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_part_given_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_no_part, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_killed_at_every_operation, set_up_sealed, tear_down),
        cmocka_unit_test_setup_teardown(test_every_operation_fails, set_up_sealed, tear_down),
        cmocka_unit_test_setup_teardown(test_the_same_step_again, set_up_sealed, tear_down),
        cmocka_unit_test_setup_teardown(test_a_part_given_up, set_up_sealed, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_no_part, set_up_sealed, tear_down),
        cmocka_unit_test_setup_teardown(test_sealed_parts_are_bound, set_up_sealed, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
