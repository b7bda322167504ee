// security/seal_stream: what is sealed opens to the same bytes with its key, and to nothing when cut, changed, reordered, extended or
// tried with another key; key files that others can read or that are links are refused.
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "security/seal_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { BIG = 3 * SEC_STREAM_CHUNK + 777, SEALED_CHUNK = SEC_STREAM_CHUNK + 17 };
static char dir[] = "/tmp/nebula-seal-XXXXXX";
static uint8_t plain[BIG];
static struct sec_seal_key *key;

static enum neb_status put(void *user, const void *p, size_t n) {
    neb_buf_add(user, p, n);
    return NEB_OK;
}

static void seal(size_t len, size_t piece, struct neb_buf *out) {
    struct sec_stream_writer *w = NULL;
    neb_buf_clear(out);
    assert_int_equal(sec_stream_create(key, put, out, &w), NEB_OK);
    for (size_t at = 0; at < len; at += piece)
        assert_int_equal(sec_stream_add(w, plain + at, len - at < piece ? len - at : piece), NEB_OK);
    assert_int_equal(sec_stream_end(w), NEB_OK);
    assert_int_equal(sec_stream_end(w), NEB_ERR_STATE);
    assert_int_equal(sec_stream_add(w, plain, 1), NEB_ERR_STATE);
    sec_stream_destroy(&w);
}

static void test_round_trip(void **state) {
    (void)state;
    static const size_t lens[] = {0, 1, SEC_STREAM_CHUNK - 1, SEC_STREAM_CHUNK, SEC_STREAM_CHUNK + 1,
                                  2 * SEC_STREAM_CHUNK, BIG};
    struct neb_buf sealed = {0}, back = {0};
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++)
        for (size_t piece = 1000; piece <= BIG; piece *= 7) {
            seal(lens[i], piece, &sealed);
            assert_int_equal(sec_stream_open(key, sealed.p, sealed.len, &back), NEB_OK);
            assert_int_equal(back.len, lens[i]);
            assert_true(!lens[i] || !memcmp(back.p, plain, lens[i]));
            assert_true(lens[i] < 64 || !memmem(sealed.p, sealed.len, plain, 32));
        }
    neb_buf_free(&sealed);
    neb_buf_free(&back);
}

static void refused(const uint8_t *p, size_t len) {
    struct neb_buf back = {0};
    enum neb_status st = sec_stream_open(key, p, len, &back);
    assert_true(st == NEB_ERR_DENIED || st == NEB_ERR_FORMAT);
    assert_int_equal(back.len, 0);
    neb_buf_free(&back);
}

static void test_tampering(void **state) {
    (void)state;
    struct neb_buf sealed = {0};
    seal(BIG, 5000, &sealed);
    uint8_t *p = malloc(2 * sealed.len);
    assert_non_null(p);
    size_t n = sealed.len;
    memcpy(p, sealed.p, n);
    for (size_t at = 0; at < n; at += at < 100 ? 1 : 9973) { // every byte of the front, many behind
        p[at] ^= 0x10;
        refused(p, n);
        p[at] ^= 0x10;
    }
    for (size_t cut = 0; cut < n; cut += cut < 100 ? 1 : 9973)
        refused(p, cut);
    for (size_t chunks = 1; chunks <= 3; chunks++) // cut between two chunks
        refused(p, SEC_STREAM_FRONT + chunks * SEALED_CHUNK);
    memcpy(p + n, p + SEC_STREAM_FRONT, SEALED_CHUNK);
    refused(p, n + SEALED_CHUNK); // a chunk behind the end
    memcpy(p + SEC_STREAM_FRONT, sealed.p + SEC_STREAM_FRONT + SEALED_CHUNK, SEALED_CHUNK);
    memcpy(p + SEC_STREAM_FRONT + SEALED_CHUNK, sealed.p + SEC_STREAM_FRONT, SEALED_CHUNK);
    refused(p, n); // two chunks in the other order
    free(p);
    neb_buf_free(&sealed);
}

static void test_keys(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], link[NEB_PATH_MAX];
    struct sec_seal_key *again = NULL, *other = NULL, *words = NULL, *same = NULL;
    struct neb_buf sealed = {0}, back = {0};
    enum sec_key_kind kind;
    uint8_t salt[SEC_SEAL_SALT_BYTES];
    snprintf(path, sizeof path, "%s/seal.key", dir);
    snprintf(link, sizeof link, "%s/link.key", dir);
    assert_int_equal(sec_seal_key_load(path, false, &again), NEB_OK);
    seal(1000, 1000, &sealed);
    assert_int_equal(sec_stream_open(again, sealed.p, sealed.len, &back), NEB_OK);
    assert_int_equal(sec_seal_key_passphrase("short", NULL, &other), NEB_ERR_INVALID);
    assert_int_equal(sec_seal_key_passphrase("a longer passphrase", NULL, &words), NEB_OK);
    assert_int_equal(sec_stream_open(words, sealed.p, sealed.len, &back), NEB_ERR_DENIED);
    struct sec_seal_key *file_key = key;
    key = words;
    seal(1000, 1000, &sealed);
    key = file_key;
    assert_int_equal(sec_stream_front(sealed.p, sealed.len, &kind, salt), NEB_OK);
    assert_int_equal(kind, SEC_KEY_PASSPHRASE);
    assert_int_equal(sec_seal_key_passphrase("a longer passphrase", salt, &same), NEB_OK);
    assert_int_equal(sec_stream_open(same, sealed.p, sealed.len, &back), NEB_OK);
    assert_memory_equal(back.p, plain, 1000);
    assert_int_equal(sec_seal_key_passphrase("another passphrase", salt, &other), NEB_OK);
    assert_int_equal(sec_stream_open(other, sealed.p, sealed.len, &back), NEB_ERR_DENIED);
    sec_seal_key_destroy(&again);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(sec_seal_key_load(link, true, &again), NEB_ERR_DENIED);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(sec_seal_key_load(path, true, &again), NEB_ERR_DENIED);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 31), 0);
    assert_int_equal(sec_seal_key_load(path, true, &again), NEB_ERR_FORMAT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(sec_seal_key_load(path, false, &again), NEB_ERR_NOT_FOUND);
    sec_seal_key_destroy(&words);
    sec_seal_key_destroy(&same);
    sec_seal_key_destroy(&other);
    neb_buf_free(&sealed);
    neb_buf_free(&back);
}

static int setup(void **state) {
    char path[NEB_PATH_MAX];
    struct neb_rng rng = neb_rng_make(1, 2);
    (void)state;
    for (size_t i = 0; i < BIG; i++)
        plain[i] = (uint8_t)neb_rng_below(&rng, 256);
    unsetenv("CREDENTIALS_DIRECTORY");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/seal.key", dir);
    return sec_seal_key_load(path, true, &key) == NEB_OK ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    sec_seal_key_destroy(&key);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip),
                                       cmocka_unit_test(test_tampering), cmocka_unit_test(test_keys)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
