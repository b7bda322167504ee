// SPDX-License-Identifier: Apache-2.0
// agent/exchange/manifest.h: one text for one list of tensors, its first difference from another
// one, and units that cover every element once.
#include "agent/base/log.h"
#include "agent/exchange/manifest.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct exchange_tensor matrix(const char *name, int64_t rows, int64_t cols) {
    return (struct exchange_tensor){.name = name, .dims = 2, .shape = {rows, cols}};
}

static struct exchange_manifest *made(const struct exchange_tensor *t, int32_t n) {
    struct exchange_manifest *m;
    assert_int_equal(exchange_manifest_create(t, n, &m), NEB_OK);
    return m;
}

static void check_text(const struct exchange_manifest *m, const char *want) {
    struct neb_buf b = {0};
    assert_int_equal(exchange_manifest_write(m, &b), NEB_OK);
    neb_buf_u8(&b, 0);
    assert_string_equal((const char *)b.p, want);
    neb_buf_free(&b);
}

static void test_one_text(void **state) {
    (void)state;
    struct exchange_tensor t[] = {
        matrix("z.\"é\\", 3, 4), {.name = "b", .group = 2}, matrix("a", 5, 6)};
    static const char want[] = "{\"tensors\":[{\"name\":\"a\",\"shape\":[5,6],\"group\":0},"
                               "{\"name\":\"b\",\"shape\":[],\"group\":2,\"buffer\":true},"
                               "{\"name\":\"z.\\\"é\\\\\",\"shape\":[3,4],\"group\":0}]}";
    t[1].buffer = true;
    t[2].dtype = EXCHANGE_BF16;
    struct exchange_manifest *m = made(t, 3), *again;
    check_text(m, want);
    assert_int_equal(exchange_manifest_read(want, strlen(want), &again), NEB_OK);
    check_text(again, want);
    uint8_t a[NEB_SHA256_BYTES], b[NEB_SHA256_BYTES];
    neb_sha256(want, strlen(want), a);
    assert_int_equal(exchange_manifest_sha(again, b), NEB_OK);
    assert_memory_equal(a, b, sizeof a);
    exchange_manifest_destroy(&m);
    exchange_manifest_destroy(&again);
}

// A frozen tensor has a digest, and neither units nor a size.
static void test_frozen(void **state) {
    (void)state;
    struct exchange_tensor t[] = {matrix("a", 5, 6), matrix("base", 2000, 1000)};
    static const char want[] =
        "{\"tensors\":[{\"name\":\"a\",\"shape\":[5,6],\"group\":0},{\"name\":\"base\",\"shape\":"
        "[2000,1000],\"group\":0,\"frozen\":\"00000000000000ab8000000000000000\"}]}";
    static const char *const bad[] = {"00AB", "00000000000000AB8000000000000000", ""};
    struct exchange_group_size size;
    struct agent_unit *units = NULL;
    int32_t n = 0;
    char text[256];
    t[1].frozen = true;
    t[1].digest[0] = 0xab;
    t[1].digest[1] = (uint64_t)1 << 63;
    struct exchange_manifest *m = made(t, 2), *other;
    check_text(m, want);
    assert_int_equal(exchange_manifest_read(want, strlen(want), &other), NEB_OK);
    assert_false(exchange_manifest_differ(m, "x", other, "y", text, sizeof text));
    exchange_manifest_destroy(&other);
    assert_int_equal(exchange_manifest_sizes(m, &size, 1), NEB_OK);
    assert_int_equal(size.parameters, 30);
    assert_int_equal(exchange_manifest_units(m, 0, &units, &n), NEB_OK);
    assert_int_equal(n, 1);
    free(units);
    t[1].digest[0]++;
    other = made(t, 2);
    assert_true(exchange_manifest_differ(m, "x", other, "y", text, sizeof text));
    assert_string_equal(text, "tensor \"base\": cluster x has 2000×1000 in group 0, frozen, with "
                              "digest 00000000000000ab8000000000000000, cluster y has 2000×1000 in "
                              "group 0, frozen, with digest 00000000000000ac8000000000000000");
    exchange_manifest_destroy(&other);
    exchange_manifest_destroy(&m);
    neb_log_set_sink(testing_drop, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char json[256];
        snprintf(json, sizeof json,
                 "{\"tensors\":[{\"name\":\"a\",\"shape\":[5],\"group\":0,\"frozen\":\"%s\"}]}",
                 bad[i]);
        assert_int_not_equal(exchange_manifest_read(json, strlen(json), &other), NEB_OK);
        assert_null(other);
    }
    neb_log_set_sink(NULL, NULL);
}

static void refused(struct exchange_tensor t, enum neb_status want) {
    const struct exchange_tensor two[] = {matrix("twice", 1, 1), t};
    struct exchange_manifest *m;
    assert_int_equal(exchange_manifest_create(two, 2, &m), want);
    assert_null(m);
}

static void test_bad_lists_are_refused(void **state) {
    (void)state;
    char longest[EXCHANGE_TENSOR_NAME_MAX + 2];
    struct exchange_tensor t = matrix("t", 1, 1);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    neb_log_set_sink(testing_drop, NULL);
    refused(matrix("twice", 2, 2), NEB_ERR_INVALID);
    refused(matrix("", 2, 2), NEB_ERR_INVALID);
    refused(matrix("\xff", 2, 2), NEB_ERR_INVALID);
    refused(matrix("\xed\xa0\x80", 2, 2), NEB_ERR_INVALID); // half of a surrogate pair
    refused(matrix("\xc0\x80", 2, 2), NEB_ERR_INVALID);     // overlong
    refused(matrix("a\nb", 2, 2), NEB_ERR_INVALID);
    refused(matrix(longest, 2, 2), NEB_ERR_INVALID);
    refused(matrix("t", 0, 2), NEB_ERR_INVALID);
    refused(matrix("t", -1, 2), NEB_ERR_INVALID);
    refused(matrix("t", INT64_MAX, INT64_MAX), NEB_ERR_INVALID);
    refused(matrix("t", (int64_t)1 << 44, 1), NEB_ERR_LIMIT); // units
    t.dims = EXCHANGE_DIMS_MAX + 1;
    refused(t, NEB_ERR_INVALID);
    t.dims = 1;
    t.group = EXCHANGE_GROUPS_MAX;
    refused(t, NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
    longest[EXCHANGE_TENSOR_NAME_MAX] = '\0';
    t = matrix(longest, 1, 1);
    struct exchange_manifest *m = made(&t, 1);
    exchange_manifest_destroy(&m);
}

static void test_other_texts_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        "[]",
        "{\"tensors\":[]}",
        "{\"tensors\":{}}",
        "{\"tensors\":[1]}",
        "{\"tensors\":[{\"name\":\"a\",\"shape\":[1]}]}",
        "{\"tensors\":[{\"name\":\"a\",\"shape\":[1.0],\"group\":0}]}",
        "{\"tensors\":[{\"name\":\"a\",\"shape\":[1],\"group\":0,\"buffer\":false}]}",
        "{\"tensors\":[{\"name\":\"a\",\"shape\":[1], \"group\":0}]}",
        "{\"tensors\":[{\"name\":\"\\u0061\",\"shape\":[1],\"group\":0}]}",
        "{\"tensors\":[{\"name\":\"a\",\"shape\":[1],\"group\":4294967296}]}",
        "{\"tensors\":[{\"name\":\"a\",\"shape\":[1],\"group\":0}],\"more\":1}",
        "{\"tensors\":[{\"name\":\"b\",\"shape\":[1],\"group\":0},"
        "{\"name\":\"a\",\"shape\":[1],\"group\":0}]}"};
    neb_log_set_sink(testing_drop, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct exchange_manifest *m;
        assert_int_equal(exchange_manifest_read(bad[i], strlen(bad[i]), &m), NEB_ERR_FORMAT);
        assert_null(m);
    }
    neb_log_set_sink(NULL, NULL);
}

static void check_difference(struct exchange_tensor a[2], struct exchange_tensor b[2],
                             const char *want) {
    struct exchange_manifest *x = made(a, 2), *y = made(b, 2);
    char text[512];
    assert_true(exchange_manifest_differ(x, "east", y, "west", text, sizeof text));
    assert_string_equal(text, want);
    assert_false(exchange_manifest_differ(x, "east", x, "west", text, sizeof text));
    exchange_manifest_destroy(&x);
    exchange_manifest_destroy(&y);
}

static void test_first_difference(void **state) {
    (void)state;
    struct exchange_tensor a[2] = {matrix("a", 2, 3), matrix("c", 4, 5)}, b[2];
    memcpy(b, a, sizeof b);
    b[1].shape[1] = 6;
    check_difference(a, b,
                     "tensor \"c\": cluster east has 4×5 in group 0, cluster west has 4×6 in "
                     "group 0");
    b[1] = matrix("b", 4, 5);
    check_difference(a, b,
                     "tensor \"b\": cluster east has no such tensor, cluster west has 4×5 in "
                     "group 0");
    b[1] = matrix("d", 4, 5);
    check_difference(a, b,
                     "tensor \"c\": cluster east has 4×5 in group 0, cluster west has no such "
                     "tensor");
    b[1] = a[1];
    b[1].dims = 0;
    b[1].group = 1;
    b[1].buffer = true;
    check_difference(a, b,
                     "tensor \"c\": cluster east has 4×5 in group 0, cluster west has a scalar "
                     "in group 1, a buffer");
    b[1] = a[1];
    b[1].dtype = EXCHANGE_F16; // may differ
    struct exchange_manifest *x = made(a, 2), *y = made(b, 2);
    char text[64];
    assert_false(exchange_manifest_differ(x, "east", y, "west", text, sizeof text));
    exchange_manifest_destroy(&x);
    exchange_manifest_destroy(&y);
}

// Units of a tensor follow each other: through its rows, and through the columns of a long row.
static void check_units_of(const struct exchange_tensor *t, const struct agent_unit *u, int32_t *at,
                           int32_t index) {
    int64_t rows = t->dims < 2 ? 1 : t->shape[0], cols = 1, row = 0, col = 0;
    for (int32_t d = t->dims < 2 ? 0 : 1; d < t->dims; d++)
        cols *= t->shape[d];
    for (; row < rows; (*at)++) {
        assert_string_equal(u[*at].tensor, t->name);
        assert_true(u[*at].row0 == row && u[*at].col0 == col);
        assert_true(agent_unit_size(&u[*at]) <= EXCHANGE_UNIT_MAX);
        assert_int_equal(u[*at].group, index);
        assert_true(!agent_unit_counts_rows(&u[*at]) && !u[*at].data);
        if (u[*at].cols < cols) {
            assert_int_equal(u[*at].rows, 1);
            col += u[*at].cols;
        } else
            row += u[*at].rows;
        if (u[*at].cols < cols && col == cols)
            row++, col = 0;
    }
}

static void test_units(void **state) {
    (void)state;
    struct exchange_tensor t[] = {{.name = "a", .dims = 0},
                                  {.name = "b", .dims = 1, .shape = {EXCHANGE_UNIT_MAX + 1}},
                                  {.name = "c", .dims = 3, .shape = {3, 700, 1500}, .group = 2},
                                  {.name = "d", .dims = 2, .shape = {300000, 7}, .group = 1},
                                  {.name = "e", .dims = 4, .shape = {64, 3, 7, 7}}};
    struct exchange_manifest *m = made(t, 5);
    struct agent_unit *u;
    int32_t n, at = 0;
    assert_int_equal(exchange_manifest_units(m, 0, &u, &n), NEB_OK);
    for (int32_t i = 0; i < 5; i++)
        check_units_of(&t[i], u, &at, i);
    assert_int_equal(at, n);
    assert_int_equal(n, 1 + 2 + 6 + 3 + 1);
    free(u);
    assert_int_equal(exchange_manifest_units(m, 1u << 2, &u, &n), NEB_OK); // without c
    assert_int_equal(n, 7);
    assert_string_equal(u[3].tensor, "d");
    free(u);
    struct exchange_group_size sizes[3];
    assert_int_equal(exchange_manifest_sizes(m, sizes, 3), NEB_OK);
    assert_true(sizes[0].tensors == 3 && sizes[2].tensors == 1);
    assert_true(sizes[1].parameters == 2100000 && sizes[2].parameters == 3150000);
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(exchange_manifest_sizes(m, sizes, 2), NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
    exchange_manifest_destroy(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_text),
                                       cmocka_unit_test(test_frozen),
                                       cmocka_unit_test(test_bad_lists_are_refused),
                                       cmocka_unit_test(test_other_texts_are_refused),
                                       cmocka_unit_test(test_first_difference),
                                       cmocka_unit_test(test_units)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
