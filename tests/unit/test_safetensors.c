// SPDX-License-Identifier: Apache-2.0
// Safetensors files. Written files are read back bit for bit, as one file and as shards. Bad files
// are refused with file, tensor and remedy.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "intra/ckpt/safetensors.h"
#include "kernels/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/nebula-st-XXXXXX", path[NEB_PATH_MAX], message[2048];

static void keep(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    if (level == NEB_LOG_ERROR)
        snprintf(message, sizeof message, "%s", text);
}

static void write_file(const char *name, const void *p, size_t n) {
    assert_int_equal(neb_path(path, sizeof path, dir, name), NEB_OK);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

// Writes a file with this header, its length before it, and this many bytes of data.
static void write_st(const char *name, const char *header, size_t data_bytes) {
    struct neb_buf b = {0};
    neb_buf_u64(&b, strlen(header));
    neb_buf_add(&b, header, strlen(header));
    for (size_t i = 0; i < data_bytes; i++)
        neb_buf_u8(&b, (uint8_t)i);
    assert_int_equal(neb_buf_check(&b), NEB_OK);
    write_file(name, b.p, b.len);
    neb_buf_free(&b);
}

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

static const struct hostile {
    const char *header;
    size_t data_bytes;
    enum neb_status status;
    const char *reason; // part of the message
} hostiles[] = {
    {"[]", 0, NEB_ERR_FORMAT, "does not begin with '{'"},
    {"{", 0, NEB_ERR_FORMAT, "header"},
    {"{}{}", 0, NEB_ERR_FORMAT, "end of file expected"},
    {"{\"a\":1}", 0, NEB_ERR_FORMAT, "tensor 'a': dtype (none)"},
    {"{\"\":1}", 0, NEB_ERR_LIMIT, "name has 0 bytes"},
    {"{\"a\\u0000b\":1}", 0, NEB_ERR_FORMAT, "header"},
    {"{\"\xff\":1}", 0, NEB_ERR_FORMAT, "header"},
    {"{" T("a", "F4", "[1]", "0", "4") "}", 4, NEB_ERR_FORMAT, "dtype F4"},
    {"{" T("a", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "4", "8") "}", 8, NEB_ERR_FORMAT,
     "duplicate"},
    {"{" T("a", "F32", "7", "0", "4") "}", 4, NEB_ERR_FORMAT, "shape is not a list"},
    {"{" T("a", "F32", "[-1]", "0", "4") "}", 4, NEB_ERR_FORMAT, "size 0 of its shape"},
    {"{" T("a", "F32", "[1.0]", "0", "4") "}", 4, NEB_ERR_FORMAT, "size 0 of its shape"},
    {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, NEB_ERR_FORMAT, "at most 8 sizes"},
    {"{" T("a", "F32", "[4294967296,4294967296]", "0", "0") "}", 0, NEB_ERR_FORMAT, "overflows"},
    {"{" T("a", "F32", "[4611686018427387904]", "0", "0") "}", 0, NEB_ERR_FORMAT, "overflows"},
    {"{" T("a", "F32", "[99999999999999999999]", "0", "0") "}", 0, NEB_ERR_FORMAT, "header"},
    {"{" T("a", "F32", "[2]", "0", "4") "}", 4, NEB_ERR_FORMAT, "dtype and shape need 8"},
    {"{" T("a", "F32", "[1]", "0", "8") "}", 8, NEB_ERR_FORMAT, "dtype and shape need 4"},
    {"{" T("a", "F32", "[1]", "4", "0") "}", 4, NEB_ERR_FORMAT, "are outside the 4 bytes"},
    {"{" T("a", "F32", "[1]", "4", "8") "}", 4, NEB_ERR_FORMAT, "are outside the 4 bytes"},
    {"{" T("a", "F32", "[1]", "-4", "0") "}", 4, NEB_ERR_FORMAT, "not [begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, NEB_ERR_FORMAT,
     "not [begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, NEB_ERR_FORMAT, "not [begin, end]"},
    {"{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "0", "4") "}", 4, NEB_ERR_FORMAT,
     "overlaps tensor"},
    {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[1]", "4", "8") "}", 8, NEB_ERR_FORMAT,
     "overlaps tensor 'a'"},
    {"{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "8", "12") "}", 12, NEB_ERR_FORMAT,
     "4 bytes before it"},
    {"{" T("a", "F32", "[1]", "4", "8") "}", 8, NEB_ERR_FORMAT, "4 bytes before it"},
    {"{" T("a", "F32", "[1]", "0", "4") "}", 5, NEB_ERR_FORMAT, "1 bytes at the end"},
    {"{" T("a", "U8", "[1]", "0", "1") "," T("b", "F32", "[1]", "1", "5") "}", 5, NEB_ERR_FORMAT,
     "not a multiple of its 4 bytes"},
    {"{\"__metadata__\":[]}", 0, NEB_ERR_FORMAT, "__metadata__"},
    {"{\"__metadata__\":{\"a\":1}}", 0, NEB_ERR_FORMAT, "__metadata__"},
};

static void refused(const char *what, enum neb_status status, const char *reason) {
    struct intra_st *s = NULL;
    message[0] = 0;
    enum neb_status st = intra_st_open(path, &s);
    if (st != status || s || !strstr(message, reason) || !strstr(message, path))
        fail_msg("%s: status %d (%s), expected %d with \"%s\"", what, st, message, status, reason);
}

static void test_hostile(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof hostiles / sizeof hostiles[0]; i++) {
        write_st("hostile.safetensors", hostiles[i].header, hostiles[i].data_bytes);
        refused(hostiles[i].header, hostiles[i].status, hostiles[i].reason);
    }
}

static void test_hostile_lengths(void **state) {
    (void)state;
    struct neb_buf b = {0};
    write_file("hostile.safetensors", "1234567", 7);
    refused("7 bytes", NEB_ERR_FORMAT, "too few");
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
    write_file("hostile.safetensors", pointer, sizeof pointer - 1);
    refused("a pointer", NEB_ERR_FORMAT, "git lfs pull");
    const uint64_t lengths[] = {0, 1, 3, UINT64_MAX, INT64_MAX, INTRA_ST_HEADER_MAX + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        neb_buf_clear(&b);
        neb_buf_u64(&b, lengths[i]);
        neb_buf_add(&b, "{}", 2);
        write_file("hostile.safetensors", b.p, b.len);
        refused("length", lengths[i] > INTRA_ST_HEADER_MAX ? NEB_ERR_LIMIT : NEB_ERR_FORMAT,
                "the header has");
    }
    char name[INTRA_ST_NAME_MAX + 2], header[512];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    snprintf(header, sizeof header, "{\"%s\":{}}", name);
    write_st("hostile.safetensors", header, 0);
    refused("name", NEB_ERR_LIMIT, "name has 256 bytes");
    neb_buf_clear(&b);
    neb_buf_add(&b, "{", 1);
    for (int i = 0; i <= INTRA_ST_TENSORS_MAX; i++) {
        int n = snprintf(name, sizeof name, "%s\"%d\":{}", i ? "," : "", i);
        neb_buf_add(&b, name, (size_t)n);
    }
    neb_buf_add(&b, "}", 2);
    assert_int_equal(neb_buf_check(&b), NEB_OK);
    write_st("hostile.safetensors", (const char *)b.p, 0);
    refused("tensors", NEB_ERR_LIMIT, "65537 tensors");
    neb_buf_free(&b);
}

static const struct hostile_index {
    const char *text;
    enum neb_status status;
    const char *reason;
} indexes[] = {
    {"", NEB_ERR_FORMAT, "index.json"},
    {"{}", NEB_ERR_FORMAT, "weight_map"},
    {"{\"weight_map\":[]}", NEB_ERR_FORMAT, "weight_map"},
    {"{\"weight_map\":{}}", NEB_ERR_FORMAT, "weight_map"},
    {"{\"weight_map\":{\"a\":1}}", NEB_ERR_DENIED, "plain name"},
    {"{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", NEB_ERR_DENIED, "plain name"},
    {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", NEB_ERR_DENIED, "plain name"},
    {"{\"weight_map\":{\"a\":\"s/x.safetensors\"}}", NEB_ERR_DENIED, "plain name"},
    {"{\"weight_map\":{\"a\":\"s\\\\x.safetensors\"}}", NEB_ERR_DENIED, "plain name"},
    {"{\"weight_map\":{\"a\":\".x.safetensors\"}}", NEB_ERR_DENIED, "plain name"},
    {"{\"weight_map\":{\"a\":\".safetensors\"}}", NEB_ERR_DENIED, "plain name"},
    {"{\"weight_map\":{\"a\":\"passwd\"}}", NEB_ERR_DENIED, "plain name"},
    {"{\"weight_map\":{\"a\":\"gone.safetensors\"}}", NEB_ERR_NOT_FOUND, "gone.safetensors"},
    {"{\"weight_map\":{\"b\":\"one.safetensors\"}}", NEB_ERR_FORMAT, "'b' is not in"},
    {"{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"gone.safetensors\"}}", NEB_ERR_NOT_FOUND,
     "gone.safetensors is missing"}, // the last one counts
    {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}", NEB_ERR_FORMAT,
     "two.safetensors"}, // two.safetensors has an "a" too
    {"{\"weight_map\":{\"b\":\"one.safetensors\",\"c\":\"two.safetensors\"}}", NEB_ERR_FORMAT,
     "tensor 'a' is in"},
    {"{\"weight_map\":{\"b\":\"three.safetensors\",\"a\":\"two.safetensors\",\"c\":\"three."
     "safetensors\"}}",
     NEB_ERR_FORMAT, "'c' is not in"}, // the tensor is in the other shard
};

static void test_hostile_index(void **state) {
    (void)state;
    write_st("one.safetensors", "{" T("a", "F32", "[1]", "0", "4") "}", 4);
    write_st("two.safetensors",
             "{" T("a", "F32", "[1]", "0", "4") "," T("c", "F32", "[1]", "4", "8") "}", 8);
    write_st("three.safetensors", "{" T("b", "F32", "[1]", "0", "4") "}", 4);
    for (size_t i = 0; i < sizeof indexes / sizeof indexes[0]; i++) {
        struct intra_st *s = NULL;
        write_file("index.safetensors.index.json", indexes[i].text, strlen(indexes[i].text));
        enum neb_status st = intra_st_open_dir(dir, "index", &s);
        if (st != indexes[i].status || s || !strstr(message, indexes[i].reason))
            fail_msg("%s: status %d (%s), expected %d with \"%s\"", indexes[i].text, st, message,
                     indexes[i].status, indexes[i].reason);
    }
    struct intra_st *s = NULL;
    static const char python[] = "\xef\xbb\xbf{\"metadata\":{\"total_size\":1e999,\"\\ud83d\":"
                                 "1000000000000000019884624838656},\"weight_map\":{\"a\":"
                                 "\"gone.safetensors\",\"a\":\"one.safetensors\"}}";
    write_file("index.safetensors.index.json", python, sizeof python - 1);
    assert_int_equal(intra_st_open_dir(dir, "index", &s), NEB_OK);
    intra_st_close(&s);
    assert_int_equal(intra_st_open_dir(dir, "nothing", &s), NEB_ERR_NOT_FOUND);
    assert_non_null(strstr(message, "save_pretrained"));
}

// Tensors that a shard holds but the index does not name are listed too: the reader must handle
// them.
static void test_unlisted(void **state) {
    (void)state;
    static const char index[] =
        "{\"weight_map\":{\"b\":\"u1.safetensors\",\"d\":\"u2.safetensors\"}}";
    struct intra_st *s = NULL;
    write_st("u1.safetensors", "{" T("b", "F32", "[1]", "0", "4") "}", 4);
    write_st("u2.safetensors",
             "{" T("a", "F32", "[1]", "0", "4") "," T("d", "F32", "[1]", "4", "8") "}", 8);
    write_file("unlisted.safetensors.index.json", index, sizeof index - 1);
    assert_int_equal(intra_st_open_dir(dir, "unlisted", &s), NEB_OK);
    assert_int_equal(intra_st_count(s), 3);
    const struct intra_st_tensor *a = intra_st_find(s, "a"), *b = intra_st_find(s, "b");
    assert_non_null(a);
    assert_non_null(b);
    assert_non_null(strstr(intra_st_file(s, a), "u2.safetensors"));
    assert_non_null(strstr(intra_st_file(s, b), "u1.safetensors"));
    intra_st_close(&s);
}

static void test_halves(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) { // every bf16 comes back; NaNs stay NaNs
        float f = kern_f32_of_bf16((uint16_t)i);
        if (isnan(f))
            assert_true(isnan(kern_f32_of_bf16(kern_bf16_of_f32(f))));
        else
            assert_int_equal(kern_bf16_of_f32(f), i);
    }
    for (uint32_t i = 0; i < 65536; i++) { // F16 against its definition
        uint32_t e = i >> 10 & 31, m = i & 1023;
        double sign = i & 0x8000 ? -1 : 1,
               v = e ? ldexp(1024.0 + m, (int)e - 25) : ldexp((double)m, -24);
        float f = kern_f32_of_f16((uint16_t)i);
        if (e == 31 && m)
            assert_true(isnan(f));
        else
            assert_true((double)f == sign * (e == 31 ? INFINITY : v) && !signbit(f) == (sign > 0));
    }
    assert_int_equal(kern_bf16_of_f32(1.0f + 0x1p-8f), 0x3f80); // a tie rounds to even
    assert_int_equal(kern_bf16_of_f32(1.0f + 0x3p-8f), 0x3f82);
    assert_int_equal(kern_bf16_of_f32(1.0f + 0x1.1p-8f), 0x3f81);
    assert_int_equal(kern_bf16_of_f32(-3.4e38f), 0xff80);
    assert_int_equal(kern_bf16_of_f32(kern_f32_of_bits(0x7f800001)), 0x7fc0);
}

static const struct intra_st_spec specs[] = {
    {"z", 2, {3, 5}}, {"empty", 2, {0, 7}}, {"scalar", 0, {0}}, {"a", 1, {70000}}, {"m", 2, {1, 4}},
};
enum { N_SPECS = sizeof specs / sizeof specs[0] };
static const uint64_t sizes[N_SPECS] = {15, 0, 1, 70000, 4};

static float value(int32_t tensor, uint64_t i) {
    return (float)tensor + 0.37f * (float)i * (i % 2 ? -1.0f : 1.0f);
}

static enum neb_status write_all(const char *stem, enum intra_st_dtype dtype, uint64_t shard_bytes,
                                 uint64_t piece) {
    enum neb_status st = NEB_OK;
    struct intra_st_writer *w = NULL;
    NEB_TRY(intra_st_writer_create(dir, stem, specs, N_SPECS, dtype, shard_bytes, &w));
    for (int32_t t = 0; t < N_SPECS; t++)
        for (uint64_t i = 0; i < sizes[t]; i += piece) {
            float x[9000];
            uint64_t n = sizes[t] - i < piece ? sizes[t] - i : piece;
            for (uint64_t k = 0; k < n; k++)
                x[k] = value(t, i + k);
            NEB_TRY_GOTO(intra_st_writer_add(w, x, n), out);
        }
    st = intra_st_writer_commit(w);
out:
    intra_st_writer_destroy(&w);
    return st;
}

static void check_all(const char *stem, enum intra_st_dtype dtype) {
    struct intra_st *s = NULL;
    static float x[70000];
    assert_int_equal(intra_st_open_dir(dir, stem, &s), NEB_OK);
    assert_int_equal(intra_st_count(s), N_SPECS);
    for (int32_t t = 0; t < N_SPECS; t++) {
        const struct intra_st_tensor *f = intra_st_find(s, specs[t].name);
        assert_non_null(f);
        assert_int_equal(f->dtype, dtype);
        assert_int_equal(f->rank, specs[t].rank);
        assert_int_equal(f->elements, sizes[t]);
        assert_memory_equal(f->shape, specs[t].shape, sizeof(uint64_t) * (size_t)f->rank);
        assert_int_equal(intra_st_read(s, f, 0, f->elements, x), NEB_OK);
        for (uint64_t i = 0; i < sizes[t]; i++) {
            float expected = value(t, i);
            if (dtype == INTRA_ST_BF16)
                expected = kern_f32_of_bf16(kern_bf16_of_f32(expected));
            assert_memory_equal(&x[i], &expected, sizeof expected);
        }
        intra_st_drop(s, f); // it can be read again
        if (sizes[t] > 2) {
            float part = 0;
            assert_int_equal(intra_st_read(s, f, 2, 1, &part), NEB_OK);
            assert_true(part == x[2]);
        }
    }
    assert_null(intra_st_find(s, "other"));
    intra_st_close(&s);
}

static void test_round_trip(void **state) {
    (void)state;
    assert_int_equal(write_all("f32", INTRA_ST_F32, 0, 9000), NEB_OK);
    check_all("f32", INTRA_ST_F32);
    assert_int_equal(write_all("bf16", INTRA_ST_BF16, 0, 777), NEB_OK);
    check_all("bf16", INTRA_ST_BF16);
    assert_int_equal(write_all("shards", INTRA_ST_F32, 64, 1), NEB_OK);
    assert_int_equal(neb_path(path, sizeof path, dir, "shards-00002-of-00003.safetensors"), NEB_OK);
    assert_true(neb_fs_exists(path)); // z + empty + scalar fill 64 bytes; a alone; m
    check_all("shards", INTRA_ST_F32);
}

static void test_types(void **state) {
    (void)state;
    struct intra_st *s = NULL;
    float x;
    write_st("types.safetensors",
             "{" T("h", "F16", "[2]", "0", "4") "," T("i", "I64", "[]", "4", "12") "}", 12);
    refused("I64 at 4", NEB_ERR_FORMAT, "not a multiple of its 8 bytes");
    write_st("types.safetensors",
             "{" T("h", "F16", "[2]", "8", "12") "," T("i", "I64", "[]", "0", "8") "}  \n", 12);
    assert_int_equal(intra_st_open(path, &s), NEB_OK);
    assert_int_equal(intra_st_read(s, intra_st_find(s, "h"), 1, 1, &x), NEB_OK);
    assert_true(x == kern_f32_of_f16(0x0b0a));
    assert_int_equal(intra_st_read(s, intra_st_find(s, "i"), 0, 1, &x), NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(message, "'i' is of type I64"));
    intra_st_close(&s);
}

// Every write, fsync and rename may fail. The result is an error, and only complete files have
// their names.
static void test_faults(void **state) {
    (void)state;
    static const char *const points[] = {"fs.write", "fs.fsync", "fs.rename"};
    char tmp[NEB_PATH_MAX];
    for (size_t p = 0; p < 3; p++)
        for (int k = 1; k <= 4; k++) { // three shards and the index
            char spec[64];
            snprintf(spec, sizeof spec, "%s:%d", points[p], k);
            neb_fault_arm(spec);
            assert_int_not_equal(write_all("fault", INTRA_ST_F32, 64, 9000), NEB_OK);
            neb_fault_arm(NULL);
            assert_int_equal(neb_path(path, sizeof path, dir, "fault.safetensors.index.json"),
                             NEB_OK);
            assert_false(neb_fs_exists(path));
            for (int i = 1; i <= 3; i++) {
                char name[64];
                struct intra_st *s = NULL;
                snprintf(name, sizeof name, "fault-%05d-of-00003.safetensors", i);
                assert_int_equal(neb_path(path, sizeof path, dir, name), NEB_OK);
                snprintf(tmp, sizeof tmp, "%.*s.tmp", NEB_PATH_MAX - 8, path);
                assert_false(neb_fs_exists(tmp));
                if (neb_fs_exists(path))
                    assert_int_equal(intra_st_open(path, &s), NEB_OK);
                intra_st_close(&s);
                assert_int_equal(neb_fs_remove(path), NEB_OK);
            }
        }
}

static int set_up(void **state) {
    (void)state;
    neb_log_set_sink(keep, NULL);
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    neb_log_set_sink(NULL, NULL);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile),       cmocka_unit_test(test_hostile_lengths),
        cmocka_unit_test(test_hostile_index), cmocka_unit_test(test_unlisted),
        cmocka_unit_test(test_halves),        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_types),         cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
