// SPDX-License-Identifier: Apache-2.0
// agent/base: readers and writers, files, hashing, random numbers, log throttling.
#include "agent/base/bytes.h"
#include "agent/base/clock.h"
#include "agent/base/fault.h"
#include "agent/base/nearest.h"
#include "agent/base/number.h"
#include "agent/base/repeats.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "agent/base/throttle.h"
#include "tests/testing.h"
#include "tests/unit/scratch.h"

#include <locale.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static mode_t mode_of(const char *path) {
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    return sb.st_mode & 0777;
}

// A private file gets mode 0600 whatever the umask; an existing file that is open to others is
// closed to them, and keeps its content.
static void test_private_file(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    mode_t mask = umask(0);
    struct neb_buf b = {0};
    assert_int_equal(neb_path(path, sizeof path, dir, "private"), NEB_OK);
    assert_int_equal(neb_fs_private(path, false), NEB_OK); // missing, and not created
    assert_false(neb_fs_exists(path));
    assert_int_equal(neb_fs_private(path, true), NEB_OK);
    assert_true(neb_fs_fits(path, 0) && !neb_fs_fits(path, 1ull << 62));
    assert_int_equal(mode_of(path), 0600);
    assert_int_equal(neb_fs_write(path, "kept", 4, 0666), NEB_OK);
    assert_int_equal(mode_of(path), 0666);
    assert_int_equal(neb_fs_private(path, false), NEB_OK);
    assert_int_equal(mode_of(path), 0600);
    assert_int_equal(neb_fs_read(path, 16, &b), NEB_OK);
    assert_memory_equal(b.p, "kept", 4);
    neb_buf_free(&b);
    umask(mask);
}

// The write buffer of a 0600 file is wiped before it is freed. A file of mode 0644 is the control:
// its bytes must be found, or this test looks in the wrong place.
static void test_buffer_is_wiped(void **state) {
    (void)state;
#ifdef TESTING_SANITIZED
    puts("skipped: a sanitizer does not reuse freed memory");
    skip();
#endif
    char path[NEB_PATH_MAX];
    uint8_t key[64];
    bool left[2] = {false};
    memset(key, 0xa5, sizeof key);
    assert_int_equal(neb_path(path, sizeof path, dir, "key"), NEB_OK);
    for (int k = 0; k < 3; k++) { // in round 0 the C library learns to keep such a buffer
        assert_int_equal(neb_fs_write(path, key, sizeof key, k == 1 ? 0644 : 0600), NEB_OK);
        uint8_t *p = malloc(1 << 20);
        assert_non_null(p);
        // the compiler must let the test read memory that it has not written
        __asm__ volatile("" : : "r"(p) : "memory");
        if (k)
            left[k - 1] = memmem(p, 1 << 20, key, sizeof key / 2) != NULL;
        free(p);
    }
    if (!left[0]) {
        puts("skipped: this C library does not reuse memory that was just freed");
        skip();
    }
    assert_false(left[1]);
}

static void test_bytes_round_trip(void **state) {
    (void)state;
    struct neb_buf b = {0};
    neb_buf_u8(&b, 0xab);
    neb_buf_u16(&b, 0x1234);
    neb_buf_u32(&b, 0xdeadbeef);
    neb_buf_u64(&b, 0x0123456789abcdefull);
    neb_buf_f32(&b, -0.0f);
    neb_buf_f64(&b, 1e-300);
    neb_buf_str(&b, "naïve");
    struct neb_rd r = neb_rd_make(b.p, b.len);
    char text[16];
    assert_int_equal(neb_rd_u8(&r), 0xab);
    assert_int_equal(neb_rd_u16(&r), 0x1234);
    assert_true(neb_rd_u32(&r) == 0xdeadbeef);
    assert_true(neb_rd_u64(&r) == 0x0123456789abcdefull);
    float z = neb_rd_f32(&r);
    assert_true(z == 0 && 1 / z < 0);
    assert_true(neb_rd_f64(&r) == 1e-300);
    neb_rd_str(&r, text, sizeof text);
    assert_string_equal(text, "naïve");
    assert_true(neb_rd_done(&r));
    assert_int_equal(neb_rd_u32(&r), 0); // past the end: zero, and the error is sticky
    assert_true(r.bad);
    assert_int_equal(neb_rd_u8(&r), 0);
    neb_buf_free(&b);
}

static void test_str_bounds(void **state) {
    (void)state;
    static const uint8_t longer[] = {5, 0, 'a', 'b', 'c', 'd', 'e'}, with_nul[] = {2, 0, 'a', 0},
                         past_end[] = {9, 0, 'a'};
    char text[5];
    struct neb_rd r = neb_rd_make(longer, sizeof longer);
    neb_rd_str(&r, text, sizeof text); // five bytes and the final zero do not fit into five
    assert_true(r.bad);
    r = neb_rd_make(with_nul, sizeof with_nul);
    neb_rd_str(&r, text, sizeof text);
    assert_true(r.bad);
    r = neb_rd_make(past_end, sizeof past_end);
    neb_rd_str(&r, text, sizeof text);
    assert_true(r.bad);
}

static void test_write_is_atomic(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], tmp[NEB_PATH_MAX + 8];
    struct neb_buf b = {0};
    assert_int_equal(neb_path(path, sizeof path, dir, "state"), NEB_OK);
    assert_int_equal(neb_fs_write(path, "old", 3, 0600), NEB_OK);
    static const struct {
        const char *fault;
        enum neb_status expect;
    } cases[] = {
        {"fs.write:1", NEB_ERR_NOSPC}, {"fs.fsync:1", NEB_ERR_IO}, {"fs.rename:1", NEB_ERR_IO}};
    neb_log_set_sink(scratch_keep, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        neb_fault_arm(cases[i].fault);
        assert_int_equal(neb_fs_write(path, "newer", 5, 0600), cases[i].expect);
        neb_fault_arm(NULL);
        assert_int_equal(neb_fs_read(path, 100, &b), NEB_OK);
        assert_int_equal(b.len, 3);
        assert_memory_equal(b.p, "old", 3);
        snprintf(tmp, sizeof tmp, "%s.tmp", path);
        assert_false(neb_fs_exists(tmp));
        assert_non_null(strstr(message, path));
    }
    assert_int_equal(neb_fs_read(path, 2, &b), NEB_ERR_LIMIT);
    neb_log_set_sink(NULL, NULL);
    assert_int_equal(neb_fs_write(path, "newer", 5, 0600), NEB_OK);
    assert_int_equal(neb_fs_read(path, 100, &b), NEB_OK);
    assert_int_equal(b.len, 5);
    neb_buf_free(&b);
}

// An error names the file, even if the disk has room again when the file is closed.
static void test_close_names_the_file(void **state) {
    char text[64] = "", big[1 << 16] = "";
    (void)state;
    FILE *f = fopen("/dev/full", "w");
    assert_non_null(f);
    fputs("x", f);
    assert_int_equal(neb_fs_close(f, "here/a"), NEB_ERR_NOSPC);
    neb_last_error(text, sizeof text);
    assert_string_equal(text, "cannot write here/a: No space left on device");
    f = fopen("/dev/full", "w");
    assert_non_null(f);
    setvbuf(f, NULL, _IONBF, 0);
    assert_int_not_equal(fwrite(big, 1, sizeof big, f), sizeof big);
    assert_int_equal(neb_fs_close(f, "here/b"), NEB_ERR_IO);
    neb_last_error(text, sizeof text);
    assert_string_equal(text, "cannot write here/b: an earlier write failed");
}

static void test_slow_faults(void **state) {
    (void)state;
    neb_fault_arm("slow:+30,broken:2");
    neb_ns begin = neb_now();
    for (int i = 0; i < 3; i++)
        assert_false(neb_fault("slow"));
    assert_true(neb_now() - begin >= 90 * NEB_MS);
    assert_false(neb_fault("broken"));
    assert_true(neb_fault("broken"));
    neb_fault_arm(NULL);
}

static void test_copy_and_absolute(void **state) {
    (void)state;
    char folder[] = "/tmp/nebula-base-XXXXXX", from[NEB_PATH_MAX], to[NEB_PATH_MAX],
         dots[NEB_PATH_MAX];
    struct neb_buf b = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(from, sizeof from, "%s/from", folder);
    snprintf(to, sizeof to, "%s/to", folder);
    snprintf(dots, sizeof dots, "%s/./../%s/to", folder, strrchr(folder, '/') + 1);
    assert_int_equal(neb_fs_copy(from, to, 0600), NEB_ERR_NOT_FOUND); // and nothing is created
    assert_false(neb_fs_exists(to));
    assert_int_equal(neb_path_absolute(dots, sizeof dots, "a test"), NEB_ERR_NOT_FOUND);
    assert_int_equal(neb_fs_write(from, "text", 4, 0600), NEB_OK);
    assert_int_equal(neb_fs_copy(from, to, 0600), NEB_OK);
    assert_int_equal(neb_fs_read(to, 100, &b), NEB_OK);
    assert_true(b.len == 4 && !memcmp(b.p, "text", 4));
    assert_int_equal(neb_path_absolute(dots, sizeof dots, "a test"), NEB_OK);
    assert_string_equal(dots, to);
    assert_int_equal(neb_path_absolute(dots, 8, "a test"), NEB_ERR_LIMIT); // unchanged
    assert_string_equal(dots, to);
    neb_buf_free(&b);
    assert_int_equal(neb_fs_remove_tree(folder), NEB_OK);
}

static void test_sha256_vector(void **state) {
    (void)state;
    uint8_t d[NEB_SHA256_BYTES], d2[NEB_SHA256_BYTES];
    char hex[65];
    struct neb_sha256 *h;
    neb_sha256("abc", 3, d);
    neb_hex(d, sizeof d, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(neb_sha256_create(&h), NEB_OK);
    for (int i = 0; i < 2; i++) { // the second pass shows that finish resets the state
        neb_sha256_add(h, "a", 1);
        neb_sha256_add(h, "bc", 2);
        neb_sha256_finish(h, d2);
        assert_memory_equal(d, d2, sizeof d);
    }
    neb_sha256_destroy(&h);
    assert_true(neb_unhex(hex, d2, sizeof d2));
    assert_memory_equal(d, d2, sizeof d);
    assert_false(neb_unhex("0g", d2, 1));
    assert_false(neb_unhex("0A", d2, 1));
    assert_false(neb_unhex("00", d2, 2));
}

static void test_rng(void **state) {
    (void)state;
    struct neb_rng a = neb_rng_make(7, 1), b = neb_rng_make(7, 1), c = neb_rng_make(7, 2);
    uint64_t counts[10] = {0};
    double sum = 0, sq = 0;
    int differ = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t x = neb_rng_u64(&a);
        assert_true(x == neb_rng_u64(&b));
        differ += x != neb_rng_u64(&c);
    }
    assert_int_equal(differ, 1000);
    for (int i = 0; i < 100000; i++) {
        counts[neb_rng_below(&a, 10)]++;
        double z = (double)neb_rng_normal(&a);
        sum += z, sq += z * z;
    }
    for (int i = 0; i < 10; i++)
        assert_in_range(counts[i], 9500, 10500);
    // normal deviates are fixed to the last bit: a model starts with the same parameters on every
    // machine
    uint64_t hash = 0;
    struct neb_rng n = neb_rng_make(11, 3);
    for (int i = 0; i < 100000; i++) {
        float f = neb_rng_normal(&n);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        hash = neb_mix64(hash ^ bits);
    }
    assert_true(hash == 0xe0bbfabeca293e3eull);
    // the sequence stays the same when many numbers are drawn at once or skipped
    static const size_t counts_at_once[] = {0, 1, 63, 64, 65, 1000};
    static float some[1000];
    for (size_t i = 0; i < sizeof counts_at_once / sizeof *counts_at_once; i++) {
        struct neb_rng many = n, skip = n;
        neb_rng_normals(&many, some, counts_at_once[i]);
        neb_rng_skip_normals(&skip, counts_at_once[i]);
        for (size_t k = 0; k < counts_at_once[i]; k++) {
            float f = neb_rng_normal(&n);
            assert_memory_equal(&f, &some[k], sizeof f);
        }
        assert_memory_equal(&many, &n, sizeof n);
        assert_memory_equal(&skip, &n, sizeof n);
    }
    assert_true(sum / 1e5 > -0.02 && sum / 1e5 < 0.02 && sq / 1e5 > 0.97 && sq / 1e5 < 1.03);
}

static void test_numbers(void **state) {
    (void)state;
    static const char *const no_whole[] = {"",
                                           " 5",
                                           "5 ",
                                           "+5",
                                           "-5",
                                           "5x",
                                           "0x5",
                                           "1e3",
                                           "5.0",
                                           "nan",
                                           "11",
                                           "1",
                                           "18446744073709551616",
                                           "18446744073709551626"};
    static const char *const no_real[] = {"",      " 1",    "1 ",  "+1",  "--1",  ".",       "-",
                                          "-.",    "1e",    "1e+", "nan", "inf",  "0x1",     "1,5",
                                          "1e999", "1.5.1", "11",  "-11", "1 e1", "infinity"};
    uint64_t n = 77;
    double v = 77;
    for (size_t i = 0; i < sizeof no_whole / sizeof *no_whole; i++)
        assert_false(neb_number_whole(no_whole[i], 2, 10, &n));
    for (size_t i = 0; i < sizeof no_real / sizeof *no_real; i++)
        assert_false(neb_number_real(no_real[i], -10, 10, &v));
    assert_true(n == 77 && v == 77);
    assert_true(neb_number_whole("2", 2, 10, &n) && n == 2);
    assert_true(neb_number_whole("0010", 2, 10, &n) && n == 10);
    assert_true(neb_number_whole("18446744073709551615", 0, UINT64_MAX, &n) && n == UINT64_MAX);
    assert_true(neb_number_real("-10", -10, 10, &v) && v == -10);
    assert_true(neb_number_real("1e-3", 0, 1, &v) && v == 1e-3);
    assert_true(neb_number_real(".5E+1", 0, 10, &v) && v == 5);
    assert_true(neb_number_real("5.", 0, 10, &v) && v == 5);
    assert_string_equal(neb_number_prefix("80ms", &v), "ms");
    assert_string_equal(neb_number_prefix("2.5e", &v), "e");
    assert_true(v == 2.5);
    assert_null(neb_number_prefix("-1s", &v));
    assert_true(neb_number_size("4096", 0, UINT64_MAX, &n) && n == 4096);
    assert_true(neb_number_size("1.5G", 0, UINT64_MAX, &n) && n == 1500000000u);
    assert_true(neb_number_size("200MB", 0, UINT64_MAX, &n) && n == 200000000u);
    assert_true(neb_number_size("2KiB", 0, UINT64_MAX, &n) && n == 2048);
    assert_false(neb_number_size("2Ki", 0, UINT64_MAX, &n));
    assert_false(neb_number_size("5 G", 0, UINT64_MAX, &n));
    assert_false(neb_number_size("99999999T", 0, UINT64_MAX, &n));
    assert_false(neb_number_size("5GG", 0, UINT64_MAX, &n));
}

// A foreign trainer may have set a locale whose decimal point is a comma.
static void test_numbers_in_any_locale(void **state) {
    (void)state;
    char command[192];
    double v = 0;
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de 2>/dev/null", dir);
    setenv("LOCPATH", dir, 1);
    if (system(command) != 0 || !setlocale(LC_NUMERIC, "de"))
        skip();
    assert_true(strtod("1,5", NULL) == 1.5); // the locale is in effect
    bool good = neb_number_real("1.5", 0, 2, &v), bad = neb_number_real("1,5", 0, 2, &v);
    setlocale(LC_NUMERIC, "C");
    assert_true(good && v == 1.5 && !bad);
}

static void test_nearest(void **state) {
    (void)state;
    static const char *const known[] = {"check",  "pretrain", "status", NULL,  "jobs", "join",
                                        "rejoin", "resume",   "list",   "out", "id",   "invite"};
    static const struct {
        const char *word, *meant; // "": none
    } cases[] = {
        {"chekc", "check"},  {"chek", "check"},   {"stat", "status"}, {"train", "pretrain"},
        {"jion", "join"},    {"job", "jobs"},     {"lst", "list"},    {"output", "out"},
        {"resum", "resume"}, {"invit", "invite"}, {"", ""},           {"x", ""},
        {"di", "id"},        {"zzzzqqqq", ""},    {"42", ""},         {"check-the-whole-of-it", ""},
        {"rejion", "rejoin"}};
    char out[32], longest[200];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = neb_nearest(cases[i].word, known, sizeof known / sizeof *known);
        assert_string_equal(got ? got : "", cases[i].meant);
    }
    assert_int_equal(neb_edits("", ""), 0);
    assert_int_equal(neb_edits("", "abc"), 3);
    assert_int_equal(neb_edits("ab", "ba"), 1);
    assert_int_equal(neb_edits("kitten", "sitting"), 3);
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(neb_edits(longest, "a"), NEB_EDITS_MAX);
    assert_int_equal(neb_edits("a", longest), NEB_EDITS_MAX);
    assert_string_equal(neb_nearest_of("thread", "name, role, threads", out, sizeof out),
                        "threads");
    assert_string_equal(neb_nearest_of("weigth", "name, weight", out, sizeof out), "weight");
    assert_string_equal(neb_nearest_of("q", "dp, pp, tp", out, sizeof out), "");
}

// Seven equal lines a second for an hour give one line a minute. The others are counted, and the
// count is logged even if the line does not come again.
static void test_repeats(void **state) {
    (void)state;
    static struct neb_repeats r;
    char text[NEB_REPEATS_TEXT + 80];
    unsigned said = 0, sums = 0;
    neb_ns now = 1000 * NEB_S;
    int level;
    for (int i = 0; i < 3600 * 7; i++, now += NEB_S / 7) {
        if (neb_repeats_due(&r, now, &level, text, sizeof text)) {
            assert_non_null(strstr(text, "more identical lines in 6"));
            assert_non_null(strstr(text, "cannot dial x"));
            assert_int_equal(level, NEB_LOG_WARN);
            sums++;
        }
        said += neb_repeats_says(&r, now, NEB_LOG_WARN, "cannot dial x");
    }
    assert_int_equal(said, 1);
    assert_in_range(sums, 58, 60);
    now += 61 * NEB_S;
    assert_true(neb_repeats_due(&r, now, &level, text, sizeof text));
    assert_false(neb_repeats_due(&r, now, &level, text, sizeof text));
    // after a minute without it the line is new again
    assert_true(neb_repeats_says(&r, now + 70 * NEB_S, NEB_LOG_WARN, "cannot dial x"));
    assert_false(neb_repeats_says(&r, now + 71 * NEB_S, NEB_LOG_WARN, "cannot dial x"));
    // lines that differ only in numbers are of one kind
    now += 1000 * NEB_S;
    for (int i = said = 0; i < 500; i++) {
        snprintf(text, sizeof text, "round %d of 127.0.0.1:%d is lost", i, 7000 + i);
        said += neb_repeats_says(&r, now, NEB_LOG_WARN, text);
    }
    assert_int_equal(said, NEB_REPEATS_ALIKE);
    assert_true(neb_repeats_says(&r, now, NEB_LOG_WARN, "round 3 of paris is lost"));
    assert_true(neb_repeats_due(&r, now + 61 * NEB_S, &level, text, sizeof text));
    assert_non_null(strstr(text, "490 more similar lines in 61 s: round 10 of 127"));
    // with more kinds than places a new line is still logged
    for (int i = 0; i < 2 * NEB_REPEATS; i++) {
        snprintf(text, sizeof text, "kind %c%c", 'a' + i % 26, 'a' + i / 26);
        assert_true(neb_repeats_says(&r, now + i, NEB_LOG_WARN, text));
    }
}

static void count_line(void *user, enum neb_log_level level, const char *text) {
    (void)level, (void)text;
    ++*(unsigned *)user;
}

static void test_log_throttle(void **state) {
    (void)state;
    unsigned lines = 0;
    char last[64];
    neb_log_set_sink(count_line, &lines);
    for (int on = 0; on < 2; on++) {
        neb_log_throttle(on);
        lines = 0;
        for (int i = 0; i < 175; i++)
            assert_int_equal(neb_fail(NEB_ERR_IO, "cannot dial: Too many open files"), NEB_ERR_IO);
        assert_int_equal(lines, on ? 1 : 175);
        for (int i = 0; i < 100; i++)
            neb_info("step");
        assert_int_equal(lines, on ? 101 : 275); // only warnings and errors are throttled
        neb_warn("another");
        neb_last_error(last, sizeof last);
        assert_string_equal(last, "cannot dial: Too many open files");
    }
    neb_log_throttle(false);
    neb_log_set_sink(NULL, NULL);
}

static void test_throttled_line(void **state) {
    (void)state;
    struct neb_throttle q = {0};
    uint64_t more;
    neb_ns now = 5 * NEB_S;
    unsigned said = 0, counted = 0;
    for (int i = 0; i < 600; i++) { // ten minutes, a line a second
        if (neb_throttle_line(&q, now + i * NEB_S, &more)) {
            assert_int_equal(more, said ? 59 : 0);
            said++;
            counted += (unsigned)more;
        }
    }
    assert_int_equal(said, 10);
    assert_int_equal(counted, 9 * 59);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_round_trip),
        cmocka_unit_test(test_str_bounds),
        cmocka_unit_test(test_write_is_atomic),
        cmocka_unit_test(test_copy_and_absolute),
        cmocka_unit_test(test_sha256_vector),
        cmocka_unit_test(test_rng),
        cmocka_unit_test(test_close_names_the_file),
        cmocka_unit_test(test_slow_faults),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_numbers_in_any_locale),
        cmocka_unit_test(test_private_file),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_log_throttle),
        cmocka_unit_test(test_throttled_line),
        cmocka_unit_test(test_buffer_is_wiped),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
