// SPDX-License-Identifier: Apache-2.0
// A fragment of a snapshot is read directly into the memory of the exchange. The other fragments
// stay, and no extra memory is used.
#include "agent/base/fs.h"
#include "agent/exchange/shards.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 4096, COLS = 512, UNITS = 3, ELEMENTS = ROWS * COLS, HEADER = 13 };

static float theta_at(size_t i) { return (float)(i % 1000003); }
static float v_at(size_t i) { return -0.5f * (float)(i % 999983); }

static void write_snapshot(const char *path) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fwrite("thirteen byte", 1, HEADER, f);
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < (size_t)UNITS * ELEMENTS; i++) {
            float x = k ? v_at(i) : theta_at(i);
            assert_int_equal(fwrite(&x, sizeof x, 1, f), 1);
        }
    assert_int_equal(fclose(f), 0);
}

static uint64_t address_space(void) {
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_true(f && fscanf(f, "%llu", &pages) == 1);
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static enum neb_status move_nothing(void *user, const struct agent_move *moves, int32_t n) {
    (void)user, (void)moves, (void)n; // the units are in the memory of the trainer
    return NEB_OK;
}
static enum neb_status write_nothing(void *user, const struct agent_move *moves, int32_t n,
                                     bool there) {
    assert_false(there);
    return move_nothing(user, moves, n);
}

static void test_adopt(void **state) {
    (void)state;
    char dir[] = "/tmp/nebula-outer-XXXXXX", path[64];
    static const struct agent_trainer_ops ops = {.read = move_nothing, .write = write_nothing};
    struct kern_pool *pool = NULL;
    struct agent_unit own[UNITS];
    struct agent_shards *shards = NULL;
    int32_t fragment[UNITS] = {0, 1, 0};
    struct inter_outer_config c = {.beta = 1, .fragments = 2};
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    struct neb_file *file = NULL;
    struct rlimit limit, before;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/snapshot.bin", dir);
    write_snapshot(path);
    assert_int_equal(kern_pool_create(1, &pool), NEB_OK);
    for (int i = 0; i < UNITS; i++) {
        own[i] = (struct agent_unit){.tensor = "t",
                                     .rows = ROWS,
                                     .cols = COLS,
                                     .counter = {-1, -1},
                                     .data = calloc(ELEMENTS, sizeof(float))};
        assert_non_null(own[i].data);
    }
    const struct agent_trainer trainer = {
        .ops = &ops, .units = own, .n_units = UNITS, .pool = pool};
    assert_int_equal(agent_shards_create(&trainer, &c, fragment, false, &shards), NEB_OK);
    inter_outer_arrays(agent_shards_outer(shards), arrays);
    assert_int_equal(neb_file_open(path, NULL, &file), NEB_OK);
    // Memory for half of the snapshot: a large model leaves even less.
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limit = before;
    limit.rlim_cur = address_space() + (rlim_t)UNITS * ELEMENTS * sizeof(float);
#ifdef TESTING_SANITIZED
    puts("memory is not checked in this build: its shadow memory exceeds any limit");
    limit = before;
#endif
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    assert_int_equal(agent_shards_adopt(shards, 1, 40, file, HEADER), NEB_OK);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(inter_outer_version(agent_shards_outer(shards), 1), 40);
    for (size_t i = 0; i < (size_t)UNITS * ELEMENTS; i++) {
        bool taken = i / ELEMENTS == 1;
        assert_true(arrays[0].p[i] == (taken ? theta_at(i) : 0));
        assert_true(arrays[1].p[i] == (taken ? v_at(i) : 0));
        assert_true(own[i / ELEMENTS].data[i % ELEMENTS] == (taken ? theta_at(i) : 0));
    }
    neb_file_close(&file);
    agent_shards_destroy(&shards);
    kern_pool_destroy(&pool);
    for (int i = 0; i < UNITS; i++)
        free(own[i].data);
    assert_int_equal(neb_fs_remove_tree(dir), NEB_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_adopt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
