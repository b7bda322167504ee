// SPDX-License-Identifier: Apache-2.0
// security/members: the trust list in memory and on disk.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "security/members.h"
#include "security/refusals.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/nebula-members-XXXXXX";
static char lines[2][SEC_ID_TEXT];

// Member k. Its keys are on no curve, because a trust list never computes with them.
static struct sec_member member(unsigned k) {
    struct sec_member m = {.connect = SEC_CONNECT_AUTO};
    snprintf(m.pub.name, sizeof m.pub.name, "site%u", k);
    memset(m.pub.curve, (int)(k + 1), SEC_KEY_BYTES);
    memset(m.pub.sign, (int)(k * 37 % 101 + 1), SEC_KEY_BYTES);
    snprintf(m.endpoint, sizeof m.endpoint, "10.0.0.%u:7443", k + 1);
    return m;
}

static void add(struct sec_members *m, unsigned k) {
    struct sec_member x = member(k);
    assert_int_equal(sec_members_add(m, &x), NEB_OK);
}

static void test_order_independent(void **state) {
    (void)state;
    struct sec_members up = {.n = 0}, down = {.n = 0};
    for (unsigned k = 0; k < 5; k++) {
        add(&up, k);
        add(&down, 4 - k);
    }
    assert_int_equal(up.version, 5);
    assert_memory_equal(&up, &down, sizeof up);
    for (unsigned k = 1; k < 5; k++)
        assert_true(memcmp(up.m[k - 1].pub.sign, up.m[k].pub.sign, SEC_KEY_BYTES) < 0);
    // A changed endpoint leaves the federation id as it is; a changed key does not.
    struct sec_member x = member(2);
    snprintf(x.endpoint, sizeof x.endpoint, "elsewhere:1");
    assert_int_equal(sec_members_add(&down, &x), NEB_OK);
    assert_int_equal(down.n, 5);
    assert_int_equal(down.version, 6);
    assert_string_equal(sec_members_by_name(&down, "site2")->endpoint, "elsewhere:1");
    assert_memory_equal(up.federation, down.federation, SEC_FEDERATION_BYTES);
    assert_int_equal(sec_members_remove(&down, "site4"), NEB_OK);
    assert_memory_not_equal(up.federation, down.federation, SEC_FEDERATION_BYTES);
    add(&down, 4);
    assert_memory_equal(up.federation, down.federation, SEC_FEDERATION_BYTES);
}

static void test_add_remove(void **state) {
    (void)state;
    struct sec_members m = {.n = 0}, before;
    struct sec_member x;
    for (unsigned k = 0; k < NEB_MEMBERS_MAX; k++)
        add(&m, k);
    before = m;
    x = member(NEB_MEMBERS_MAX);
    assert_int_equal(sec_members_add(&m, &x), NEB_ERR_LIMIT);
    assert_int_equal(sec_members_remove(&m, "nobody"), NEB_ERR_NOT_FOUND);
    // Another identity that shares one field with a member.
    memcpy(x.pub.name, "site3", 6);
    assert_int_equal(sec_members_add(&m, &x), NEB_ERR_EXISTS);
    x = member(99), memcpy(x.pub.curve, member(3).pub.curve, SEC_KEY_BYTES);
    assert_int_equal(sec_members_add(&m, &x), NEB_ERR_EXISTS);
    x = member(99), memcpy(x.pub.sign, member(3).pub.sign, SEC_KEY_BYTES);
    assert_int_equal(sec_members_add(&m, &x), NEB_ERR_EXISTS);
    x = member(3), snprintf(x.endpoint, sizeof x.endpoint, "host");
    assert_int_equal(sec_members_add(&m, &x), NEB_ERR_INVALID);
    assert_memory_equal(&m, &before, sizeof m);
    assert_int_equal(sec_members_remove(&m, "site0"), NEB_OK);
    assert_null(sec_members_by_name(&m, "site0"));
    assert_null(sec_members_by_curve(&m, member(0).pub.curve));
    assert_non_null(sec_members_by_curve(&m, member(1).pub.curve));
    assert_int_equal(m.version, before.version + 1);
}

static void test_load_save(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct sec_members m = {.n = 0}, back;
    struct stat sb;
    assert_int_equal(neb_path(path, sizeof path, dir, "members.json"), NEB_OK);
    assert_int_equal(sec_members_load(path, 0, &back), NEB_ERR_NOT_FOUND);
    assert_int_equal(sec_members_save(path, &m), NEB_ERR_DENIED); // an empty list has version 0
    for (unsigned k = 0; k < 3; k++)
        add(&m, k);
    struct sec_member x = member(3);
    x.endpoint[0] = 0, x.connect = SEC_CONNECT_IN;
    memset(x.endpoint, 0, sizeof x.endpoint);
    assert_int_equal(sec_members_add(&m, &x), NEB_OK);
    assert_int_equal(sec_members_save(path, &m), NEB_OK);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 07777, 0600);
    assert_int_equal(sec_members_load(path, m.version, &back), NEB_OK);
    assert_int_equal(back.n, m.n);
    assert_int_equal(back.version, m.version);
    assert_memory_equal(back.federation, m.federation, SEC_FEDERATION_BYTES);
    for (uint32_t i = 0; i < m.n; i++) {
        assert_memory_equal(&back.m[i].pub, &m.m[i].pub, sizeof m.m[i].pub);
        assert_string_equal(back.m[i].endpoint, m.m[i].endpoint);
        assert_int_equal(back.m[i].connect, m.m[i].connect);
    }
    // Roll-back: after a newer list was in use, no older list is read, or written over it.
    assert_int_equal(sec_members_load(path, m.version + 1, &back), NEB_ERR_DENIED);
    // Only the owner of the node may be able to write the list.
    char link[NEB_PATH_MAX];
    assert_int_equal(neb_path(link, sizeof link, dir, "link.json"), NEB_OK);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(sec_members_load(link, 0, &back), NEB_ERR_DENIED);
    for (unsigned mode = 0620; mode <= 0622; mode++) {
        assert_int_equal(chmod(path, mode), 0);
        assert_int_equal(sec_members_load(path, 0, &back), NEB_ERR_DENIED);
    }
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(sec_members_load(path, 0, &back), NEB_OK);
    assert_int_equal(sec_members_save(path, &m), NEB_ERR_DENIED);
    m.version--;
    assert_int_equal(sec_members_save(path, &m), NEB_ERR_DENIED);
    m.version += 2;
    assert_int_equal(sec_members_save(path, &m), NEB_OK);
    // A list that cannot be read is not replaced.
    assert_int_equal(neb_fs_write(path, "{", 1, 0600), NEB_OK);
    m.version++;
    assert_int_equal(sec_members_save(path, &m), NEB_ERR_FORMAT);
}

#define FED "\"federation\":\"000102030405060708090a0b0c0d0e0f\""
#define TOP "\"format\":1," FED ",\"version\":3,"

static enum neb_status parse(const char *pattern) {
    char text[2048];
    struct sec_members m;
    const char *at = pattern;
    size_t n = 0;
    while (*at && n < sizeof text - SEC_ID_TEXT) {
        if (*at == '@' || *at == '#') {
            n += (size_t)snprintf(text + n, sizeof text - n, "%s", lines[*at == '#']);
            at++;
        } else {
            text[n++] = *at++;
        }
    }
    return sec_members_parse(text, n, "test", &m);
}

// '@' and '#' stand for the lines of two members.
static void test_parse_strict(void **state) {
    (void)state;
    assert_int_equal(parse("{" TOP "\"members\":[]}"), NEB_OK);
    assert_int_equal(parse("{" TOP "\"members\":[{\"id\":\"@\"},{\"id\":\"#\"}]}"), NEB_OK);
    assert_int_equal(
        parse("{" TOP "\"members\":[{\"id\":\"@\",\"endpoint\":\"[::1]:1\",\"connect\":\"in\"}]}"),
        NEB_OK);
    static const char *const bad[] = {
        "",
        "[]",
        "3",
        "{" TOP "\"members\":[]",
        "{" TOP "\"members\":[]} x",
        "{" TOP "\"members\":[],\"extra\":1}",
        "{" TOP "\"version\":4,\"members\":[]}",
        "{" TOP "\"members\":[],\"members\":[]}",
        "{" TOP "\"members\":{}}",
        "{\"format\":2," FED ",\"version\":3,\"members\":[]}",
        "{\"format\":1," FED ",\"version\":0,\"members\":[]}",
        "{\"format\":1," FED ",\"version\":-1,\"members\":[]}",
        "{\"format\":1," FED ",\"version\":\"3\",\"members\":[]}",
        "{\"format\":1," FED ",\"members\":[]}",
        "{\"format\":1,\"federation\":\"00\",\"version\":3,\"members\":[]}",
        "{\"format\":1,\"version\":3,\"members\":[]}",
        "{" TOP "\"members\":[3]}",
        "{" TOP "\"members\":[{}]}",
        "{" TOP "\"members\":[{\"id\":\"nebid1:x\"}]}",
        "{" TOP "\"members\":[{\"id\":\"@\",\"id\":\"#\"}]}",
        "{" TOP "\"members\":[{\"id\":\"@\",\"role\":\"root\"}]}",
        "{" TOP "\"members\":[{\"id\":\"@\",\"endpoint\":\"host\"}]}",
        "{" TOP "\"members\":[{\"id\":\"@\",\"endpoint\":7}]}",
        "{" TOP "\"members\":[{\"id\":\"@\",\"connect\":\"both\"}]}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (parse(bad[i]) != NEB_ERR_FORMAT)
            fail_msg("case %zu was not refused as FORMAT: %s", i, bad[i]);
    assert_int_equal(parse("{" TOP "\"members\":[{\"id\":\"@\"},{\"id\":\"@\"}]}"), NEB_ERR_EXISTS);
}

static void test_endpoints(void **state) {
    (void)state;
    static const char *const good[] = {"a:1", "host.example.org:65535", "10.0.0.1:7443", "[::1]:80",
                                       "[fe80::1%1]:80"};
    static const char *const bad[] = {"",        "a",      ":1",    "a:",    "a:0",      "a:65536",
                                      "a:99999", "a:-1",   "a:1x",  "a b:1", "::1:80",   "[]:80",
                                      "[::1:80", "[x]:80", "a/b:1", "*:1",   "a:000001", "a;b:1"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(sec_endpoint_valid(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (sec_endpoint_valid(bad[i]))
            fail_msg("accepted '%s'", bad[i]);
}

static int setup(void **state) {
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    for (unsigned k = 0; k < 2; k++) {
        struct sec_member m = member(k);
        if (sec_public_format(&m.pub, lines[k], sizeof lines[k]) != NEB_OK)
            return -1;
    }
    return sec_init() == NEB_OK && mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

// A flood of new keys, then one key again and again. The number of lines is limited, and every
// refusal is counted.
static void test_refusals(void **state) {
    (void)state;
    static struct sec_refusals r;
    uint8_t key[SEC_KEY_BYTES] = {0};
    char text[SEC_REFUSALS_TEXT];
    neb_ns now = 5 * NEB_S, end = now + 3600 * NEB_S;
    uint64_t told = 0, counted = 0, came = 0;
    unsigned sums = 0;
    for (; now < end; now += NEB_S / 10) {
        memcpy(key, &came, sizeof came);
        came++;
        told += sec_refusals_add(&r, now, key);
        if (now < sec_refusals_due(&r))
            continue;
        sec_refusals_sum(&r, now, text);
        counted += strtoull(text, NULL, 10);
        sums++;
        assert_non_null(strstr(text, "of at least 256 keys in 60 s"));
    }
    assert_true(told >= 59 * SEC_REFUSALS_LINES && told <= 61 * SEC_REFUSALS_LINES);
    assert_true(sums >= 58 && sums <= 60);
    assert_int_equal(told + counted + r.more, came);
    sec_refusals_sum(&r, now, text);
    assert_true(sec_refusals_due(&r) == INT64_MAX);
    // A site that is not on the list dials every second: one line at once, then a sum each hour.
    now += 120 * NEB_S;
    memset(key, 0xee, sizeof key);
    assert_true(sec_refusals_add(&r, now, key));
    for (int i = 1; i < 3600; i++)
        assert_false(sec_refusals_add(&r, now + i * NEB_S, key));
    assert_true(sec_refusals_due(&r) == now + 3600 * NEB_S);
    sec_refusals_sum(&r, now + 3600 * NEB_S, text);
    assert_string_equal(text, "3599 more connections of 1 key in 3599 s");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_independent), cmocka_unit_test(test_add_remove),
        cmocka_unit_test(test_load_save),         cmocka_unit_test(test_parse_strict),
        cmocka_unit_test(test_endpoints),         cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
