// SPDX-License-Identifier: Apache-2.0
// security/identity and security/sign: key files, the public line, signatures. security/zap: its
// shutdown (test_link*.c tests the rest).
#include "agent/base/clock.h"
#include "security/sign.h"
#include "security/zap.h"
#include "tests/testing.h"
#include "tests/unit/scratch.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

static void path_of(char out[NEB_PATH_MAX], const char *home, const char *file) {
    assert_int_equal(neb_path(out, NEB_PATH_MAX, home, file), NEB_OK);
}

// A fresh home with keys.
static struct sec_identity *fresh(char home[NEB_PATH_MAX], const char *name) {
    struct sec_identity *id = NULL;
    path_of(home, dir, name);
    assert_int_equal(sec_identity_create(home, name, &id), NEB_OK);
    return id;
}

static void refused(const char *home, enum neb_status expect) {
    struct sec_identity *id = NULL;
    assert_int_equal(sec_identity_load(home, &id), expect);
    assert_null(id);
}

static void test_round_trip(void **state) {
    (void)state;
    char home[NEB_PATH_MAX], path[NEB_PATH_MAX];
    struct sec_identity *a = fresh(home, "round"), *b = NULL, *c = NULL;
    assert_int_equal(sec_identity_load(home, &b), NEB_OK);
    assert_memory_equal(sec_identity_public(a), sec_identity_public(b), sizeof(struct sec_public));
    assert_memory_equal(sec_identity_curve_secret(a), sec_identity_curve_secret(b), 32);
    assert_memory_equal(sec_identity_sign_secret(a), sec_identity_sign_secret(b), 64);
    assert_int_equal(sec_identity_create(home, "again", &c), NEB_ERR_EXISTS);
    static const char *const files[] = {"keys/curve.key", "keys/sign.key"};
    struct stat sb;
    for (int i = 0; i < 2; i++) {
        path_of(path, home, files[i]);
        assert_int_equal(stat(path, &sb), 0);
        assert_int_equal(sb.st_mode & 07777, 0600);
    }
    path_of(path, home, "keys");
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 07777, 0700);
    sec_identity_destroy(&a);
    sec_identity_destroy(&b);
    assert_null(b);
    sec_identity_destroy(&b);
    path_of(path, dir, "nobody");
    refused(path, NEB_ERR_NOT_FOUND);
    assert_int_equal(sec_identity_create(path, "No Such Name", &c), NEB_ERR_INVALID);
}

// Several processes use a home for the first time: one makes the keys, and all get the same.
static void test_first_use_at_once(void **state) {
    (void)state;
    enum { PROCESSES = 6, ROUNDS = 4 };
    for (int round = 0; round < ROUNDS; round++) {
        char home[NEB_PATH_MAX], name[16];
        struct sec_identity *id = NULL;
        struct sec_public got;
        int at[2], start[2], makers = 0;
        bool made;
        snprintf(name, sizeof name, "first-%d", round);
        path_of(home, dir, name);
        assert_true(pipe(at) == 0 && pipe(start) == 0);
        for (int i = 0; i < PROCESSES; i++)
            if (fork() == 0) {
                close(start[1]);
                (void)!read(start[0], name, 1); // all at the same time
                snprintf(name, sizeof name, "name-%d", i);
                if (sec_identity_first(home, name, &id, &made) != NEB_OK)
                    _exit(1);
                _exit(write(at[1], sec_identity_public(id), sizeof got) != sizeof got ? 1
                      : made                                                          ? 2
                                                                                      : 0);
            }
        close(start[0]), close(start[1]), close(at[1]);
        for (int i = 0, status; i < PROCESSES; i++) {
            assert_true(wait(&status) > 0 && WIFEXITED(status));
            assert_int_not_equal(WEXITSTATUS(status), 1);
            makers += WEXITSTATUS(status) == 2;
        }
        assert_int_equal(makers, 1);
        assert_int_equal(sec_identity_first(home, "another", &id, &made), NEB_OK);
        assert_false(made);
        for (int i = 0; i < PROCESSES; i++) {
            assert_int_equal(read(at[0], &got, sizeof got), sizeof got);
            assert_memory_equal(&got, sec_identity_public(id), sizeof got);
        }
        close(at[0]);
        sec_identity_destroy(&id);
    }
}

// A key file that others may read, or that is a link, is refused for both keys.
static void test_exposed_key_files(void **state) {
    (void)state;
    static const char *const files[] = {"keys/curve.key", "keys/sign.key"};
    static const mode_t wide[] = {0640, 0604, 0620, 0602, 0610, 0601, 0644, 0666};
    char home[NEB_PATH_MAX], path[NEB_PATH_MAX], real[NEB_PATH_MAX];
    struct sec_identity *id = fresh(home, "files");
    sec_identity_destroy(&id);
    for (int i = 0; i < 2; i++) {
        path_of(path, home, files[i]);
        path_of(real, home, "moved");
        for (size_t k = 0; k < sizeof wide / sizeof wide[0]; k++) {
            assert_int_equal(chmod(path, wide[k]), 0);
            refused(home, NEB_ERR_DENIED);
        }
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(rename(path, real), 0);
        refused(home, NEB_ERR_CORRUPT); // an identity without its keys is damaged
        assert_int_equal(symlink(real, path), 0);
        refused(home, NEB_ERR_DENIED);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkfifo(path, 0600), 0);
        refused(home, NEB_ERR_DENIED); // and the check does not block
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rename(real, path), 0);
        assert_int_equal(sec_identity_load(home, &id), NEB_OK);
        sec_identity_destroy(&id);
    }
}

static void test_damaged_files(void **state) {
    (void)state;
    static const char *const files[] = {"keys/curve.key", "keys/sign.key"};
    char home[NEB_PATH_MAX], path[NEB_PATH_MAX], other[NEB_PATH_MAX];
    struct sec_identity *id = fresh(home, "damage");
    struct neb_buf good = {0}, b = {0};
    sec_identity_destroy(&id);
    for (int i = 0; i < 2; i++) {
        path_of(path, home, files[i]);
        path_of(other, home, files[1 - i]);
        assert_int_equal(neb_fs_read(path, 1000, &good), NEB_OK);
        for (size_t n = 0; n < good.len; n += 7) {
            assert_int_equal(neb_fs_write(path, good.p, n, 0600), NEB_OK);
            refused(home, NEB_ERR_FORMAT);
        }
        for (size_t k = 0; k < good.len; k++) { // any flipped bit
            good.p[k] ^= 0x10;
            assert_int_equal(neb_fs_write(path, good.p, good.len, 0600), NEB_OK);
            refused(home, k < 8 ? NEB_ERR_FORMAT : NEB_ERR_CORRUPT);
            good.p[k] ^= 0x10;
        }
        neb_buf_u8(&good, 0);
        assert_int_equal(neb_fs_write(path, good.p, good.len, 0600), NEB_OK);
        refused(home, NEB_ERR_FORMAT); // too long
        assert_int_equal(neb_fs_read(other, 1000, &b), NEB_OK);
        assert_int_equal(neb_fs_write(path, b.p, b.len, 0600), NEB_OK);
        refused(home, NEB_ERR_FORMAT); // the other kind of key
        assert_int_equal(neb_fs_write(path, good.p, good.len - 1, 0600), NEB_OK);
        assert_int_equal(sec_identity_load(home, &id), NEB_OK);
        sec_identity_destroy(&id);
    }
    // without a valid public line a used home does not become a new one: the line is restored from
    // the keys
    char members[NEB_PATH_MAX];
    struct sec_public was;
    bool mended;
    assert_int_equal(sec_identity_load(home, &id), NEB_OK);
    was = *sec_identity_public(id);
    sec_identity_destroy(&id);
    path_of(path, home, "identity");
    path_of(members, home, "members.json");
    assert_int_equal(neb_fs_write(members, "{}", 2, 0600), NEB_OK);
    for (size_t n = 0; n < 3; n++) {
        if (n)
            assert_int_equal(neb_fs_write(path, "nebid1:da", n == 1 ? 0 : 9, 0600), NEB_OK);
        else
            assert_int_equal(unlink(path), 0);
        refused(home, NEB_ERR_CORRUPT);
        assert_int_equal(sec_identity_first(home, "damage", &id, NULL), NEB_ERR_CORRUPT);
        assert_int_equal(sec_identity_mend(home, "damage", &mended), NEB_OK);
        assert_true(mended);
        assert_int_equal(sec_identity_load(home, &id), NEB_OK);
        assert_memory_equal(sec_identity_public(id), &was, sizeof was);
        sec_identity_destroy(&id);
        assert_int_equal(sec_identity_mend(home, "other", &mended), NEB_OK);
        assert_false(mended); // an intact line keeps its name
    }
    // another identity's line beside these keys
    char stranger[NEB_PATH_MAX];
    id = fresh(stranger, "stranger");
    sec_identity_destroy(&id);
    path_of(path, stranger, "identity");
    path_of(other, home, "identity");
    assert_int_equal(neb_fs_read(path, 1000, &b), NEB_OK);
    assert_int_equal(neb_fs_write(other, b.p, b.len, 0644), NEB_OK);
    refused(home, NEB_ERR_CORRUPT);
    neb_buf_free(&good);
    neb_buf_free(&b);
}

static void test_public_line(void **state) {
    (void)state;
    char home[NEB_PATH_MAX], line[SEC_ID_TEXT], bad[SEC_ID_TEXT + 200];
    struct sec_identity *id = fresh(home, "a-name_of.exactly.32-bytes.12345");
    struct sec_public p, same;
    assert_int_equal(strlen(sec_identity_public(id)->name), SEC_NAME_MAX - 1);
    assert_int_equal(sec_public_format(sec_identity_public(id), line, sizeof line), NEB_OK);
    assert_int_equal(sec_public_parse(line, &p), NEB_OK);
    assert_memory_equal(&p, sec_identity_public(id), sizeof p);
    assert_int_equal(sec_public_format(&p, bad, 20), NEB_ERR_INVALID); // no room
    same = p;
    size_t n = strlen(line);
    for (size_t k = 0; k < n; k++) { // cut anywhere, or one character changed
        memcpy(bad, line, n + 1);
        bad[k] = 0;
        assert_int_equal(sec_public_parse(bad, &p), NEB_ERR_FORMAT);
        memcpy(bad, line, n + 1);
        bad[k] = bad[k] == 'A' ? 'B' : 'A';
        enum neb_status st = sec_public_parse(bad, &p);
        assert_true(st == NEB_ERR_FORMAT || st == NEB_ERR_CORRUPT);
    }
    memcpy(bad, line, n + 1);
    bad[7] = 'b'; // valid except for its checksum
    assert_int_equal(sec_public_parse(bad, &p), NEB_ERR_CORRUPT);
    static const char *const tails[] = {" ", "\n", "=", ":", "A"};
    for (int i = 0; i < 5; i++) {
        snprintf(bad, sizeof bad, "%s%s", line, tails[i]);
        assert_int_equal(sec_public_parse(bad, &p), NEB_ERR_FORMAT);
    }
    memset(bad, 'x', sizeof bad - 1);
    bad[sizeof bad - 1] = 0;
    assert_int_equal(sec_public_parse(bad, &p), NEB_ERR_FORMAT);
    assert_memory_equal(&p, &same, sizeof p); // failures leave it unchanged
    sec_identity_destroy(&id);
    static const char *const names[] = {"", "A", "-a", ".a", "a b", "a/b", "a:b", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_false(sec_name_valid(names[i]));
    assert_false(sec_name_valid("a23456789012345678901234567890123"));
    assert_true(sec_name_valid("0"));
}

static void test_signatures(void **state) {
    (void)state;
    char home[NEB_PATH_MAX], msg[] = "all-reduce round 7", long_context[300];
    struct sec_identity *a = fresh(home, "signer"), *b = fresh(home, "other");
    const uint8_t *pub = sec_identity_public(a)->sign;
    uint8_t sig[SEC_SIGN_BYTES];
    const size_t n = sizeof msg;
    assert_int_equal(sec_sign(a, SEC_CONTEXT_RECORD, msg, n, sig), NEB_OK);
    assert_int_equal(sec_verify(pub, SEC_CONTEXT_RECORD, msg, n, sig), NEB_OK);
    assert_int_equal(sec_verify(pub, SEC_CONTEXT_ACCEPT, msg, n, sig), NEB_ERR_DENIED);
    assert_int_equal(sec_verify(sec_identity_public(b)->sign, SEC_CONTEXT_RECORD, msg, n, sig),
                     NEB_ERR_DENIED);
    assert_int_equal(sec_verify(pub, SEC_CONTEXT_RECORD, msg, n - 1, sig), NEB_ERR_DENIED);
    for (size_t k = 0; k < n * 8; k++) {
        msg[k / 8] = (char)(msg[k / 8] ^ 1 << k % 8);
        assert_int_equal(sec_verify(pub, SEC_CONTEXT_RECORD, msg, n, sig), NEB_ERR_DENIED);
        msg[k / 8] = (char)(msg[k / 8] ^ 1 << k % 8);
    }
    for (size_t k = 0; k < sizeof sig * 8; k++) {
        sig[k / 8] = (uint8_t)(sig[k / 8] ^ 1 << k % 8);
        assert_int_equal(sec_verify(pub, SEC_CONTEXT_RECORD, msg, n, sig), NEB_ERR_DENIED);
        sig[k / 8] = (uint8_t)(sig[k / 8] ^ 1 << k % 8);
    }
    // ("ab", "c") and ("a", "bc") are different messages. An empty message is a message too
    assert_int_equal(sec_sign(a, "ab", "c", 1, sig), NEB_OK);
    assert_int_equal(sec_verify(pub, "a", "bc", 2, sig), NEB_ERR_DENIED);
    assert_int_equal(sec_sign(a, "a", NULL, 0, sig), NEB_OK);
    assert_int_equal(sec_verify(pub, "a", NULL, 0, sig), NEB_OK);
    memset(long_context, 'c', sizeof long_context);
    long_context[256] = 0;
    assert_int_equal(sec_sign(a, long_context, msg, n, sig), NEB_ERR_INVALID);
    assert_int_equal(sec_sign(a, "", msg, n, sig), NEB_ERR_INVALID);
    assert_int_equal(sec_verify(pub, "", msg, n, sig), NEB_ERR_INVALID);
    long_context[255] = 0;
    assert_int_equal(sec_sign(a, long_context, msg, n, sig), NEB_OK);
    assert_int_equal(sec_verify(pub, long_context, msg, n, sig), NEB_OK);
    sec_identity_destroy(&a);
    sec_identity_destroy(&b);
}

// Destroying a handler does not wait for its poll interval, and frees its address for the next one.
static void test_handler_ends_at_once(void **state) {
    (void)state;
    void *context = zmq_ctx_new();
    struct sec_zap *z = NULL, *second = NULL;
    int soon = 0;
    assert_non_null(context);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(sec_zap_create(context, "test", &z), NEB_OK);
        neb_sleep(5 * NEB_MS); // the thread waits by now
        neb_ns begin = neb_now();
        sec_zap_destroy(&z);
        soon += neb_now() - begin < 50 * NEB_MS;
        assert_null(z);
    }
    // a handler that polls every 100 ms would hardly ever end so soon; a busy machine delays some
    assert_true(soon >= 10);
    assert_int_equal(sec_zap_create(context, "test", &z), NEB_OK);
    // one handler per context
    assert_int_equal(sec_zap_create(context, "test", &second), NEB_ERR_IO);
    sec_zap_destroy(&z);
    zmq_ctx_term(context);
}

static int setup(void **state) {
    neb_log_set_sink(testing_drop, NULL);
    return scratch_make(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),           cmocka_unit_test(test_first_use_at_once),
        cmocka_unit_test(test_exposed_key_files),    cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_public_line),          cmocka_unit_test(test_signatures),
        cmocka_unit_test(test_handler_ends_at_once),
    };
    return cmocka_run_group_tests(tests, setup, scratch_remove);
}
