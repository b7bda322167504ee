// SPDX-License-Identifier: Apache-2.0
// The checkpoint container. The cases: every flipped bit and every cut of a small file, every
// failing write, versions, folders.
#include "agent/base/fault.h"
#include "agent/base/sha256.h"
#include "intra/ckpt/checkpoint_array.h"
#include "intra/ckpt/checkpoint_parts.h"
#include "tests/unit/scratch.h"

#include <string.h>
#include <unistd.h>

enum { TRAILER_BYTES = 96 };

static char path[NEB_PATH_MAX];
static const float weights[15] = {1, -2, 3.5f, 0, 1e-30f};
static const uint64_t cursor[3] = {7, 8, UINT64_MAX};

static enum neb_status write_one(const char *to) {
    enum neb_status st = NEB_OK;
    struct intra_ckpt_writer *w = NULL;
    NEB_TRY(intra_ckpt_create(to, &w));
    NEB_TRY_GOTO(intra_ckpt_add(w, "weights", INTRA_F32, 5, 3, weights), out);
    NEB_TRY_GOTO(intra_ckpt_add(w, "empty", INTRA_BYTES, 0, 1, NULL), out);
    NEB_TRY_GOTO(intra_ckpt_add(w, "cursor", INTRA_U64, 3, 1, cursor), out);
    NEB_TRY_GOTO(intra_ckpt_commit(w), out);
out:
    intra_ckpt_writer_destroy(&w);
    return st;
}

// Writes without fsync, which neb_fs_write does: the tests make thousands of damaged files.
static void overwrite(const void *p, size_t n) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void check_content(struct intra_ckpt *c) {
    float f[15];
    uint64_t u[3];
    assert_int_equal(intra_ckpt_read(c, "weights", INTRA_F32, 5, 3, f), NEB_OK);
    assert_int_equal(intra_ckpt_read(c, "empty", INTRA_BYTES, 0, 1, NULL), NEB_OK);
    assert_int_equal(intra_ckpt_read(c, "cursor", INTRA_U64, 3, 1, u), NEB_OK);
    assert_memory_equal(f, weights, sizeof f);
    assert_memory_equal(u, cursor, sizeof u);
}

static void test_round_trip(void **state) {
    (void)state;
    struct intra_ckpt *c = NULL;
    float f[15];
    assert_int_equal(write_one(path), NEB_OK);
    assert_int_equal(intra_ckpt_open(path, true, &c), NEB_OK);
    check_content(c);
    const struct intra_ckpt_section *s = intra_ckpt_find(c, "weights");
    assert_true((uintptr_t)intra_ckpt_data(c, s) % 64 == 0);
    assert_int_equal(intra_ckpt_read(c, "absent", INTRA_F32, 5, 3, f), NEB_ERR_NOT_FOUND);
    // the same bytes with another shape
    assert_int_equal(intra_ckpt_read(c, "weights", INTRA_F32, 3, 5, f), NEB_ERR_FORMAT);
    assert_int_equal(intra_ckpt_read(c, "weights", INTRA_U32, 5, 3, f), NEB_ERR_FORMAT);
    intra_ckpt_close(&c);
}

// Writes an array in one section, and the same array in pieces between other sections.
static void test_arrays(void **state) {
    (void)state;
    struct intra_ckpt_writer *w = NULL;
    struct intra_ckpt *c = NULL;
    struct intra_ckpt_array *a = NULL;
    float x[100], y[100];
    for (int i = 0; i < 100; i++)
        x[i] = (float)i;
    assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
    assert_int_equal(intra_ckpt_add(w, "whole", INTRA_F32, 100, 1, x), NEB_OK);
    assert_int_equal(intra_ckpt_add(w, "cut/1", INTRA_F32, 0, 1, x), NEB_OK); // in any order
    assert_int_equal(intra_ckpt_add(w, "cut/3", INTRA_F32, 61, 1, x + 39), NEB_OK);
    assert_int_equal(intra_ckpt_add(w, "cut/0", INTRA_F32, 32, 1, x), NEB_OK);
    assert_int_equal(intra_ckpt_add(w, "cut/2", INTRA_F32, 7, 1, x + 32), NEB_OK);
    assert_int_equal(intra_ckpt_add(w, "gap/0", INTRA_F32, 50, 1, x), NEB_OK);
    assert_int_equal(intra_ckpt_add(w, "gap/2", INTRA_F32, 50, 1, x + 50), NEB_OK);
    assert_int_equal(intra_ckpt_add(w, "words/0", INTRA_U32, 100, 1, x), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
    assert_int_equal(intra_ckpt_open(path, true, &c), NEB_OK);
    static const char *const names[] = {"whole", "cut"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(intra_ckpt_array_open(c, names[i], 100, &a), NEB_OK);
        assert_int_equal(intra_ckpt_array_len(a), 100);
        for (uint64_t at = 0; at <= 100; at++)
            for (size_t n = 0; at + n <= 100; n += 9) {
                memset(y, 0xff, sizeof y);
                assert_int_equal(intra_ckpt_array_read(a, at, y, n), NEB_OK);
                for (size_t k = 0; k < n; k++)
                    assert_true(y[k] == x[at + k]);
                assert_true(n == 100 || y[n] != y[n]); // nothing is written past n
            }
        uint8_t b[150];
        assert_int_equal(intra_ckpt_array_bytes(a, 101, b, sizeof b), NEB_OK);
        assert_memory_equal(b, (const uint8_t *)x + 101, sizeof b);
        intra_ckpt_array_close(&a);
    }
    neb_log_set_sink(scratch_keep, NULL);
    assert_int_equal(intra_ckpt_array_open(c, "gap", 100, &a), NEB_ERR_FORMAT);
    assert_non_null(strstr(message, "gap has 50 elements; it must have 100"));
    assert_int_equal(intra_ckpt_array_open(c, "nothing", 0, &a), NEB_ERR_NOT_FOUND);
    assert_int_equal(intra_ckpt_array_open(c, "words", 0, &a), NEB_ERR_FORMAT);
    neb_log_set_sink(NULL, NULL);
    assert_null(a);
    intra_ckpt_close(&c);
}

// Ranks write a section for each unit.
static void test_many_sections(void **state) {
    (void)state;
    enum { MANY = 3000 };
    struct intra_ckpt_writer *w = NULL;
    struct intra_ckpt *c = NULL;
    char name[32];
    assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
    for (uint64_t i = 0; i < MANY; i++) { // in no order
        uint64_t k = i * 7 % MANY;
        if (i == MANY / 3)
            continue;
        snprintf(name, sizeof name, "s/%d", (int)k);
        assert_int_equal(intra_ckpt_add(w, name, INTRA_U64, 1, 1, &k), NEB_OK);
    }
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
    assert_int_equal(intra_ckpt_open(path, true, &c), NEB_OK);
    for (uint64_t i = 0; i < MANY; i++) {
        uint64_t k = i * 7 % MANY, got = 0;
        snprintf(name, sizeof name, "s/%d", (int)k);
        const struct intra_ckpt_section *s = intra_ckpt_find(c, name);
        assert_int_equal(s != NULL, i != MANY / 3);
        if (s)
            assert_int_equal(intra_ckpt_read(c, name, INTRA_U64, 1, 1, &got), NEB_OK);
        assert_int_equal(got, s ? k : 0);
    }
    assert_null(intra_ckpt_find(c, ""));
    assert_null(intra_ckpt_find(c, "z"));
    intra_ckpt_close(&c);
}

static void test_every_bit(void **state) {
    (void)state;
    struct neb_buf file = {0};
    struct intra_ckpt *c = NULL;
    assert_int_equal(write_one(path), NEB_OK);
    assert_int_equal(neb_fs_read(path, 1 << 20, &file), NEB_OK);
    size_t passed = 0;
    for (size_t bit = 0; bit < 8 * file.len; bit++) {
        file.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
        overwrite(file.p, file.len);
        file.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (intra_ckpt_open(path, true, &c) == NEB_OK) {
            check_content(c); // the flipped bit wrong in padding
            intra_ckpt_close(&c);
            passed++;
        }
        assert_null(c);
    }
    // only bits of the padding after the two sections pass
    assert_int_equal(passed, 8 * ((64 - 60) + (64 - 24)));
    for (size_t cut = 0; cut < file.len; cut++) {
        overwrite(file.p, cut);
        assert_int_equal(intra_ckpt_open(path, true, &c), NEB_ERR_CORRUPT);
        assert_non_null(strstr(message, path));
    }
    // damage in a section is reported with its place, but only if the digests are checked
    file.p[64] ^= 1;
    overwrite(file.p, file.len);
    assert_int_equal(intra_ckpt_open(path, true, &c), NEB_ERR_CORRUPT);
    assert_non_null(strstr(message, "section 'weights' at offset 64"));
    assert_int_equal(intra_ckpt_open(path, false, &c), NEB_OK);
    intra_ckpt_close(&c);
    file.p[64] ^= 1;
    file.p[8] = 2; // a later version is reported as such, whatever the rest contains
    overwrite(file.p, file.len);
    assert_int_equal(intra_ckpt_open(path, true, &c), NEB_ERR_UNSUPPORTED);
    neb_buf_free(&file);
}

// Wrong index fields under a correct digest are refused: a hostile writer can make them, a flipped
// bit cannot.
static void test_wrong_index(void **state) {
    (void)state;
    struct neb_buf file = {0};
    struct intra_ckpt *c = NULL;
    assert_int_equal(write_one(path), NEB_OK);
    assert_int_equal(neb_fs_read(path, 1 << 20, &file), NEB_OK);
    size_t tail = file.len - TRAILER_BYTES;
    struct neb_rd r = neb_rd_make(file.p + tail + 16, 16);
    size_t index = neb_rd_u64(&r), len = neb_rd_u64(&r), entry = index + 2 + strlen("weights");
    const struct {
        size_t at, bytes;
        uint64_t value;
    } wrong[] = {
        {entry, 1, 4},                                // dtype
        {entry + 1, 8, UINT64_MAX},                   // rows
        {entry + 1, 8, 1ull << 62},                   // rows x 4 wraps
        {entry + 9, 8, 1ull << 62},                   // cols
        {entry + 1, 8, 6},                            // one row too many
        {entry + 17, 8, 63},                          // at: unaligned
        {entry + 17, 8, 0},                           // in the header
        {entry + 17, 8, UINT64_MAX - 63},             // wraps
        {entry + 17, 8, (index + 63) / 64 * 64 + 64}, // behind the index
        {index, 2, 65535},                            // name longer than the index
        {index, 2, 200},                              // name longer than allowed
        {tail + 12, 4, 2},                            // fewer sections than entries
        {tail + 12, 4, 4},                            // more sections than entries
        {tail + 12, 4, 65536},                        // far more sections: no memory for them
        {tail + 16, 8, UINT64_MAX},                   // index at
        {tail + 24, 8, len + 1},                      // index length
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint8_t keep[8];
        memcpy(keep, file.p + wrong[i].at, wrong[i].bytes);
        for (size_t k = 0; k < wrong[i].bytes; k++)
            file.p[wrong[i].at + k] = (uint8_t)(wrong[i].value >> 8 * k);
        neb_sha256(file.p + index, len + 64, file.p + file.len - 32);
        overwrite(file.p, file.len);
        enum neb_status st = intra_ckpt_open(path, false, &c);
        // five rows of three and 4 bytes of padding: six rows of three still lie inside the file
        bool good = i == 4;
        if (good && st == NEB_OK) {
            intra_ckpt_close(&c);
            st = intra_ckpt_open(path, true, &c); // but the digest does not match
        }
        if (st != NEB_ERR_CORRUPT)
            fail_msg("wrong[%zu]: status %d", i, st);
        memcpy(file.p + wrong[i].at, keep, wrong[i].bytes);
    }
    neb_buf_free(&file);
}

// Any failing step of writing is reported, keeps the older file of the same name, and leaves no
// other file.
static void test_failing_disk(void **state) {
    (void)state;
    static const char *const points[] = {"fs.write", "fs.fsync", "fs.rename"};
    struct intra_ckpt *c = NULL;
    // larger than the writer's buffer: several writes
    float *large = calloc(3 << 20, sizeof *large);
    assert_int_equal(write_one(path), NEB_OK);
    for (size_t p = 0; p < 3; p++)
        for (int k = 1;; k++) {
            char spec[64], tmp[NEB_PATH_MAX + 8];
            struct intra_ckpt_writer *w = NULL;
            snprintf(spec, sizeof spec, "%s:%d", points[p], k);
            neb_fault_arm(spec);
            assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
            enum neb_status st = intra_ckpt_add(w, "large", INTRA_F32, 1 << 20, 3, large), again;
            again = intra_ckpt_add(w, "cursor", INTRA_U64, 3, 1, cursor);
            assert_true(st == NEB_OK || again == st); // a failure is not forgotten
            if (st == NEB_OK)
                st = again;
            again = intra_ckpt_commit(w);
            assert_true(st == NEB_OK || again == st);
            neb_fault_arm(NULL);
            intra_ckpt_writer_destroy(&w);
            snprintf(tmp, sizeof tmp, "%s.tmp", path);
            assert_false(neb_fs_exists(tmp));
            assert_int_equal(intra_ckpt_open(path, true, &c), NEB_OK);
            if (again == NEB_OK) { // fewer than k such steps: every step has failed once
                assert_true(k > 1);
                assert_non_null(intra_ckpt_find(c, "large"));
                intra_ckpt_close(&c);
                assert_int_equal(write_one(path), NEB_OK);
                break;
            }
            assert_int_equal(again, p == 0 ? NEB_ERR_NOSPC : NEB_ERR_IO);
            check_content(c);
            intra_ckpt_close(&c);
        }
    free(large);
}

static void put(const char *name, bool whole) {
    char p[NEB_PATH_MAX];
    assert_int_equal(neb_path(p, sizeof p, dir, name), NEB_OK);
    assert_int_equal(whole ? write_one(p) : neb_fs_write(p, "x", 1, 0600), NEB_OK);
}

static bool there(const char *name) {
    char p[NEB_PATH_MAX];
    return neb_path(p, sizeof p, dir, name) == NEB_OK && neb_fs_exists(p);
}

// A checkpoint of two files. One of the files is missing.
static void put_without_part(const char *name) {
    const struct intra_part part = {.token = 7, .number = 1, .n = 1};
    const uint64_t parts[2] = {part.token, part.n};
    char file[NEB_PATH_MAX], lost[NEB_PATH_MAX];
    struct intra_ckpt_writer *w = NULL;
    assert_int_equal(neb_path(file, sizeof file, dir, name), NEB_OK);
    assert_int_equal(intra_part_create(NULL, file, &part, &w), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
    assert_int_equal(intra_ckpt_create(file, &w), NEB_OK);
    assert_int_equal(intra_ckpt_add(w, INTRA_PARTS_SECTION, INTRA_U64, 2, 1, parts), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
    assert_int_equal(intra_part_path(file, part.token, part.number, lost, sizeof lost), NEB_OK);
    assert_int_equal(neb_fs_remove(lost), NEB_OK);
}

static void test_folder(void **state) {
    (void)state;
    struct intra_ckpt *c = NULL;
    assert_int_equal(neb_fs_remove(path), NEB_OK);
    assert_int_equal(intra_ckpt_open_latest_in(NULL, dir, &c), NEB_ERR_NOT_FOUND);
    assert_int_equal(intra_ckpt_open_latest_in(NULL, "/nonexistent-folder", &c), NEB_ERR_NOT_FOUND);
    put("step-000000000010.ckpt", true);
    put("step-000000000020.ckpt", true);
    put("step-000000000030.ckpt", false);     // cut short
    put("step-000000000040.ckpt.tmp", false); // its writer was killed
    put("step-of-the-day.ckpt", false);  // another program's file with a name of the same length
    put("step-99999999999.ckpt", false); // one digit too few
    assert_int_equal(intra_ckpt_open_latest_in(NULL, dir, &c), NEB_OK);
    assert_non_null(strstr(intra_ckpt_path(c), "step-000000000020.ckpt"));
    intra_ckpt_close(&c);
    assert_int_equal(intra_ckpt_prune(NULL, dir, 2), NEB_OK);
    assert_true(!there("step-000000000010.ckpt") && there("step-000000000020.ckpt") &&
                there("step-000000000030.ckpt"));
    assert_true(!there("step-000000000040.ckpt.tmp") && there("step-of-the-day.ckpt") &&
                there("step-99999999999.ckpt"));
    put("step-000000000020.ckpt", false);
    // all are damaged: an error, not a fresh start
    assert_int_equal(intra_ckpt_open_latest_in(NULL, dir, &c), NEB_ERR_CORRUPT);
    put_without_part("step-000000000020.ckpt");
    assert_int_equal(intra_ckpt_open_latest_in(NULL, dir, &c), NEB_ERR_CORRUPT);
    char file[NEB_PATH_MAX];
    assert_int_equal(neb_path(file, sizeof file, dir, "step-of-the-day.ckpt"), NEB_OK);
    // if a folder cannot be read, it does not count as empty
    assert_int_equal(intra_ckpt_open_latest_in(NULL, file, &c), NEB_ERR_IO);
    assert_int_equal(intra_ckpt_prune(NULL, file, 2), NEB_ERR_IO);
}

// A damaged checkpoint counts as missing. Pruning keeps a good one instead of it. A checkpoint of
// another key or version is not damaged.
static void test_damaged_counts_as_missing(void **state) {
    (void)state;
    struct intra_ckpt *c = NULL;
    put("step-000000000050.ckpt", true);
    put_without_part("step-000000000060.ckpt");
    put("step-000000000070.ckpt", false);
    put("step-000000000080.ckpt", true);
    char file[NEB_PATH_MAX];
    assert_int_equal(neb_path(file, sizeof file, dir, "step-000000000080.ckpt"), NEB_OK);
    assert_int_equal(truncate(file, 0), 0);
    assert_int_equal(intra_ckpt_take_latest_in(NULL, dir, &c), NEB_OK);
    assert_non_null(strstr(intra_ckpt_path(c), "step-000000000050.ckpt"));
    intra_ckpt_close(&c);
    assert_true(there("step-000000000080.ckpt.damaged") && !there("step-000000000080.ckpt"));
    assert_true(there("step-000000000060.ckpt.damaged") && there("step-000000000070.ckpt.damaged"));
    put("step-000000000055.ckpt", true);
    assert_int_equal(intra_ckpt_prune(NULL, dir, 2), NEB_OK);
    assert_true(there("step-000000000050.ckpt") && there("step-000000000055.ckpt"));
    assert_false(there("step-000000000080.ckpt.damaged") ||
                 there("step-000000000060.ckpt.damaged"));
    put("step-000000000050.ckpt", false);
    put("step-000000000055.ckpt", false);
    assert_int_equal(intra_ckpt_take_latest_in(NULL, dir, &c), NEB_ERR_NOT_FOUND);
    assert_int_equal(intra_ckpt_prune(NULL, dir, 2), NEB_OK);
    put("step-000000000055.ckpt", true);
    struct neb_buf b = {0};
    assert_int_equal(neb_path(file, sizeof file, dir, "step-000000000055.ckpt"), NEB_OK);
    assert_int_equal(neb_fs_read(file, 1 << 20, &b), NEB_OK);
    b.p[8] = 99; // the version, behind the magic
    assert_int_equal(neb_fs_write(file, b.p, b.len, 0600), NEB_OK);
    neb_buf_free(&b);
    assert_int_equal(intra_ckpt_take_latest_in(NULL, dir, &c), NEB_ERR_UNSUPPORTED);
    assert_true(there("step-000000000055.ckpt"));
    assert_int_equal(neb_fs_remove(file), NEB_OK);
}

static int set_up(void **state) {
    neb_log_set_sink(scratch_keep, NULL);
    return scratch_make(state) == 0 && neb_path(path, sizeof path, dir, "one.ckpt") == NEB_OK ? 0
                                                                                              : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_many_sections),
        cmocka_unit_test(test_every_bit),
        cmocka_unit_test(test_wrong_index),
        cmocka_unit_test(test_failing_disk),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_damaged_counts_as_missing),
        cmocka_unit_test(test_arrays),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_remove);
}
