// SPDX-License-Identifier: Apache-2.0
// Sealing at rest: streams, files of chunks, vaults and keys. A sealed file opens with its key to
// the same bytes. It does not open if it was cut, changed, reordered or extended, or with a key of
// another site or job. Key files that are links or open to others are refused.
#include "agent/base/file.h"
#include "agent/base/rng.h"
#include "security/seal_chunks.h"
#include "security/seal_key.h"
#include "security/seal_stream.h"
#include "security/vault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { BIG = 37 * SEC_STREAM_CHUNK + 777, SEALED_CHUNK = SEC_STREAM_CHUNK + 17 };
static char dir[] = "/tmp/nebula-seal-XXXXXX";
static uint8_t *plain, *back;
static struct sec_seal_key *key;
static const uint8_t none[SEC_SEAL_CONTEXT_BYTES], job[SEC_SEAL_CONTEXT_BYTES] = {1, 2, 3},
                                                   other_job[SEC_SEAL_CONTEXT_BYTES] = {1, 2, 4};

static const char *at(char *out, const char *name) {
    snprintf(out, NEB_PATH_MAX, "%s/%s", dir, name);
    return out;
}

static enum neb_status put(void *user, const void *p, size_t n) {
    neb_buf_add(user, p, n);
    return NEB_OK;
}

static void seal_with(const struct sec_seal_key *k, const uint8_t *context, size_t len,
                      size_t piece, struct neb_buf *out) {
    struct sec_stream_writer *w = NULL;
    neb_buf_clear(out);
    assert_int_equal(sec_stream_create(k, context, put, out, &w), NEB_OK);
    for (size_t i = 0; i < len; i += piece)
        assert_int_equal(sec_stream_add(w, plain + i, len - i < piece ? len - i : piece), NEB_OK);
    assert_int_equal(sec_stream_end(w), NEB_OK);
    assert_int_equal(sec_stream_end(w), NEB_ERR_STATE);
    assert_int_equal(sec_stream_add(w, plain, 1), NEB_ERR_STATE);
    sec_stream_destroy(&w);
}

static void seal(size_t len, size_t piece, struct neb_buf *out) {
    seal_with(key, none, len, piece, out);
}

static enum neb_status opens(const struct sec_seal_key *k, const uint8_t *p, size_t len) {
    struct sec_stream_reader *r = NULL;
    enum neb_status st = sec_stream_open(k, "a test", p, len, &r);
    assert_true((st == NEB_OK) == (r != NULL));
    sec_stream_close(&r);
    return st;
}

static void test_round_trip(void **state) {
    (void)state;
    static const size_t lens[] = {
        0,  1, SEC_STREAM_CHUNK - 1, SEC_STREAM_CHUNK, SEC_STREAM_CHUNK + 1, 16 * SEC_STREAM_CHUNK,
        BIG};
    struct neb_buf sealed = {0};
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++)
        for (size_t piece = 1000; piece <= BIG; piece *= 49) {
            struct sec_stream_reader *r = NULL;
            seal(lens[i], piece, &sealed);
            assert_int_equal(sec_stream_open(key, "a test", sealed.p, sealed.len, &r), NEB_OK);
            assert_int_equal(sec_stream_len(r), lens[i]);
            assert_int_equal(sec_stream_read(r, 0, back, lens[i]), NEB_OK);
            assert_memory_equal(back, plain, lens[i]);
            assert_true(lens[i] < 64 || !memmem(sealed.p, sealed.len, plain, 32));
            sec_stream_close(&r);
        }
    neb_buf_free(&sealed);
}

// Any range, forwards and backwards, from kept states and between them.
static void test_ranges(void **state) {
    (void)state;
    struct neb_rng rng = neb_rng_make(3, 4);
    struct neb_buf sealed = {0};
    struct sec_stream_reader *r = NULL;
    seal(BIG, 70000, &sealed);
    assert_int_equal(sec_stream_open(key, "a test", sealed.p, sealed.len, &r), NEB_OK);
    for (int i = 0; i < 300; i++) {
        size_t from = (size_t)neb_rng_below(&rng, BIG),
               n = (size_t)neb_rng_below(&rng, i % 3 ? 3000 : 300000);
        n = n > BIG - from ? BIG - from : n;
        assert_int_equal(sec_stream_read(r, from, back, n), NEB_OK);
        assert_memory_equal(back, plain + from, n);
    }
    sealed.p[SEC_STREAM_FRONT + 20 * SEALED_CHUNK + 5] ^= 1; // changed while the reader is open
    assert_int_equal(sec_stream_read(r, 3, back, 10), NEB_OK);
    assert_int_equal(sec_stream_read(r, 20ull * SEC_STREAM_CHUNK, back, 10), NEB_ERR_CORRUPT);
    assert_int_equal(sec_stream_read(r, 3, back, 10), NEB_OK);
    assert_memory_equal(back, plain + 3, 10);
    sec_stream_close(&r);
    neb_buf_free(&sealed);
}

static void refused(const uint8_t *p, size_t len) {
    assert_int_not_equal(opens(key, p, len), NEB_OK);
}

static void test_tampering(void **state) {
    (void)state;
    struct neb_buf sealed = {0};
    seal(3 * SEC_STREAM_CHUNK + 777, 5000, &sealed);
    uint8_t *p = malloc(2 * sealed.len);
    assert_non_null(p);
    size_t n = sealed.len;
    memcpy(p, sealed.p, n);
    for (size_t i = 0; i < n; i += i < 100 ? 1 : 9973) { // all bytes of the front, many after it
        p[i] ^= 0x10;
        refused(p, n);
        p[i] ^= 0x10;
    }
    for (size_t cut = 0; cut < n; cut += cut < 100 ? 1 : 9973)
        refused(p, cut);
    for (size_t chunks = 1; chunks <= 3; chunks++) // cut between two chunks
        assert_int_equal(opens(key, p, SEC_STREAM_FRONT + chunks * SEALED_CHUNK), NEB_ERR_CORRUPT);
    memcpy(p + n, p + SEC_STREAM_FRONT, SEALED_CHUNK);
    assert_int_equal(opens(key, p, n + SEALED_CHUNK), NEB_ERR_CORRUPT); // a chunk after the end
    memcpy(p + SEC_STREAM_FRONT, sealed.p + SEC_STREAM_FRONT + SEALED_CHUNK, SEALED_CHUNK);
    memcpy(p + SEC_STREAM_FRONT + SEALED_CHUNK, sealed.p + SEC_STREAM_FRONT, SEALED_CHUNK);
    assert_int_equal(opens(key, p, n), NEB_ERR_CORRUPT); // two chunks swapped
    free(p);
    neb_buf_free(&sealed);
}

static void test_chunks(void **state) {
    (void)state;
    enum { CHUNK = 5000, TOTAL = 23001, N = 5 };
    struct sec_chunks *c = NULL, *again = NULL, *second = NULL;
    uint8_t sealed[N][CHUNK + SEC_CHUNKS_EXTRA], foreign[CHUNK + SEC_CHUNKS_EXTRA], out[CHUNK];
    assert_int_equal(sec_chunks_create(key, job, CHUNK, TOTAL, &c), NEB_OK);
    assert_int_equal(sec_chunks_create(key, job, CHUNK, TOTAL, &second), NEB_OK);
    for (uint64_t i = N; i-- > 0;) // in any order
        sec_chunks_seal(c, i, plain + i * CHUNK, sealed[i]);
    sec_chunks_seal(second, 1, plain + CHUNK, foreign);
    assert_int_equal(sec_chunks_at(c, N), SEC_CHUNKS_FRONT + TOTAL + N * SEC_CHUNKS_EXTRA);
    assert_int_equal(sec_chunks_open(key, "a test", sec_chunks_front(c), &again), NEB_OK);
    for (uint64_t i = 0; i < N; i++) {
        assert_int_equal(sec_chunks_unseal(again, i, sealed[i], out), NEB_OK);
        assert_memory_equal(out, plain + i * CHUNK, sec_chunks_len(c, i));
    }
    assert_int_equal(sec_chunks_unseal(again, 1, sealed[2], out),
                     NEB_ERR_DENIED);                                            // another place
    assert_int_equal(sec_chunks_unseal(again, 1, foreign, out), NEB_ERR_DENIED); // another file
    sealed[0][100] ^= 1;
    assert_int_equal(sec_chunks_unseal(again, 0, sealed[0], out), NEB_ERR_DENIED);
    sec_chunks_destroy(&again);
    uint8_t front[SEC_CHUNKS_FRONT];
    for (size_t i = 0; i < sizeof front; i++) { // no changed front opens a chunk
        memcpy(front, sec_chunks_front(c), sizeof front);
        front[i] ^= 1;
        if (sec_chunks_open(key, "a test", front, &again) == NEB_OK &&
            sec_chunks_bytes(again) == CHUNK && sec_chunks_total(again) >= 2 * CHUNK)
            assert_int_equal(sec_chunks_unseal(again, 1, sealed[1], out), NEB_ERR_DENIED);
        sec_chunks_destroy(&again);
    }
    sec_chunks_destroy(&c);
    sec_chunks_destroy(&second);
}

// A worker has the key of its job. It opens what the site sealed for the job and nothing else. The
// site opens everything.
static void test_jobs(void **state) {
    (void)state;
    struct sec_seal_key *mine = NULL, *taken = NULL;
    struct sec_stream_writer *w = NULL;
    uint8_t handed[SEC_SEAL_HANDED_BYTES];
    struct neb_buf by_site = {0}, by_worker = {0}, other = {0};
    assert_int_equal(sec_seal_key_derive(key, job, &mine), NEB_OK);
    sec_seal_key_hand(mine, handed);
    assert_int_equal(sec_seal_key_take(handed, &taken), NEB_OK);
    seal_with(key, job, 100000, 5000, &by_site);
    seal_with(taken, job, 100000, 5000, &by_worker);
    seal_with(key, other_job, 100000, 5000, &other);
    assert_int_equal(opens(taken, by_site.p, by_site.len), NEB_OK);
    assert_int_equal(opens(taken, by_worker.p, by_worker.len), NEB_OK);
    assert_int_equal(opens(key, by_worker.p, by_worker.len), NEB_OK);
    assert_int_equal(opens(taken, other.p, other.len), NEB_ERR_DENIED);
    assert_int_equal(sec_stream_create(taken, other_job, put, &other, &w), NEB_ERR_DENIED);
    memcpy(other.p + 16, job, sizeof job); // pretends to belong to this job
    assert_int_equal(opens(taken, other.p, other.len), NEB_ERR_CORRUPT);
    sec_seal_key_destroy(&mine);
    sec_seal_key_destroy(&taken);
    neb_buf_free(&by_site);
    neb_buf_free(&by_worker);
    neb_buf_free(&other);
}

static enum neb_status say(void *user, const char *path, char *out, size_t cap) {
    (void)path;
    snprintf(out, cap, "%s", (const char *)user);
    return NEB_OK;
}

static void test_keys(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], link[NEB_PATH_MAX], words[NEB_PATH_MAX], credential[NEB_PATH_MAX];
    char right[] = "a longer passphrase", wrong[] = "another passphrase";
    struct sec_seal_key *k = NULL;
    struct neb_buf sealed = {0};
    at(path, "seal.key"), at(link, "link.key"), at(words, "words.key"),
        at(credential, "nebula-seal");
    assert_int_equal(sec_seal_key_load(path, NULL, NULL, &k), NEB_OK);
    seal(1000, 1000, &sealed);
    assert_int_equal(opens(k, sealed.p, sealed.len), NEB_OK);
    sec_seal_key_destroy(&k);
    assert_int_equal(sec_seal_key_make(path, NULL, &k), NEB_ERR_EXISTS);
    assert_int_equal(sec_seal_key_make(words, "short", &k), NEB_ERR_INVALID);
    assert_int_equal(sec_seal_key_make(words, right, &k), NEB_OK);
    assert_int_equal(opens(k, sealed.p, sealed.len), NEB_ERR_DENIED); // another key
    seal_with(k, none, 1000, 1000, &sealed);
    sec_seal_key_destroy(&k);
    assert_int_equal(sec_seal_key_load(words, say, right, &k), NEB_OK);
    assert_int_equal(opens(k, sealed.p, sealed.len), NEB_OK);
    sec_seal_key_destroy(&k);
    assert_int_equal(sec_seal_key_load(words, say, wrong, &k), NEB_ERR_DENIED);
    assert_int_equal(sec_seal_key_load(words, NULL, NULL, &k), NEB_ERR_DENIED); // nobody to ask
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(sec_seal_key_load(link, NULL, NULL, &k), NEB_ERR_DENIED);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(sec_seal_key_load(path, NULL, NULL, &k), NEB_ERR_DENIED);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(sec_seal_key_load(NULL, NULL, NULL, &k), NEB_ERR_NOT_FOUND);
    setenv("CREDENTIALS_DIRECTORY", dir, 1);
    assert_int_equal(sec_seal_key_load(NULL, NULL, NULL, &k), NEB_ERR_NOT_FOUND);
    assert_int_equal(rename(path, credential), 0);
    assert_int_equal(sec_seal_key_load(NULL, NULL, NULL, &k), NEB_OK);
    assert_memory_equal(sec_seal_key_id(k), sec_seal_key_id(key), SEC_SEAL_ID_BYTES);
    sec_seal_key_destroy(&k);
    unsetenv("CREDENTIALS_DIRECTORY");
    assert_int_equal(truncate(credential, 31), 0);
    assert_int_equal(sec_seal_key_load(credential, NULL, NULL, &k), NEB_ERR_FORMAT);
    assert_int_equal(sec_seal_key_load(path, NULL, NULL, &k), NEB_ERR_NOT_FOUND);
    assert_null(k);
    neb_buf_free(&sealed);
}

// neb_file reads what the vault writes, and a file in clear too. The sealed file holds no bytes of
// the content.
static void test_vault(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct sec_seal_key *k = NULL, *stranger = NULL;
    struct sec_vault *v = NULL, *strange = NULL;
    assert_int_equal(sec_seal_key_derive(key, job, &k), NEB_OK);
    assert_int_equal(sec_vault_create_take(&k, NULL, &v), NEB_OK);
    assert_int_equal(sec_seal_key_make(at(path, "stranger.key"), NULL, &stranger), NEB_OK);
    assert_int_equal(sec_vault_create_take(&stranger, NULL, &strange), NEB_OK);
    for (int sealed = 0; sealed < 2; sealed++) {
        struct neb_fs_writer *w = NULL;
        struct neb_file *f = NULL;
        struct neb_map map;
        at(path, sealed ? "file.sealed" : "file.clear");
        assert_int_equal(neb_fs_writer_open(path, 0600, &w), NEB_OK);
        assert_int_equal(neb_fs_writer_seal(w, sealed ? sec_vault_of(v) : NULL), NEB_OK);
        for (size_t i = 0; i < BIG; i += 100000)
            assert_int_equal(neb_fs_writer_add(w, plain + i, BIG - i < 100000 ? BIG - i : 100000),
                             NEB_OK);
        assert_int_equal(neb_fs_writer_commit(w), NEB_OK);
        neb_fs_writer_destroy(&w);
        assert_int_equal(neb_file_open(path, sec_vault_of(v), &f), NEB_OK);
        assert_int_equal(neb_file_sealed(f), sealed);
        assert_int_equal(neb_file_len(f), BIG);
        assert_true((neb_file_view(f) == NULL) == sealed);
        assert_int_equal(neb_file_read(f, 12345, back, BIG - 12345), NEB_OK);
        assert_memory_equal(back, plain + 12345, BIG - 12345);
        neb_file_close(&f);
        assert_int_equal(sec_vault_map(key, path, &map), NEB_OK);
        assert_int_equal(map.len, BIG);
        assert_memory_equal(map.p, plain, BIG);
        neb_map_close(&map);
        assert_int_equal(neb_file_open(path, NULL, &f), sealed ? NEB_ERR_DENIED : NEB_OK);
        neb_file_close(&f);
        assert_int_equal(neb_file_open(path, sec_vault_of(strange), &f),
                         sealed ? NEB_ERR_DENIED : NEB_OK);
        neb_file_close(&f);
        assert_int_equal(neb_map_open(path, &map), NEB_OK);
        assert_true((memmem(map.p, map.len, plain + 70000, 32) != NULL) != sealed);
        neb_map_close(&map);
    }
    sec_vault_destroy(&v);
    sec_vault_destroy(&strange);
}

static int setup(void **state) {
    char path[NEB_PATH_MAX];
    struct neb_rng rng = neb_rng_make(1, 2);
    (void)state;
    plain = malloc(BIG), back = malloc(BIG);
    for (size_t i = 0; plain && i < BIG; i++)
        plain[i] = (uint8_t)neb_rng_below(&rng, 256);
    unsetenv("CREDENTIALS_DIRECTORY");
    if (!plain || !back || !mkdtemp(dir))
        return -1;
    return sec_seal_key_make(at(path, "seal.key"), NULL, &key) == NEB_OK ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    sec_seal_key_destroy(&key);
    free(plain);
    free(back);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

// systemd leaves a credential as root's file that its group may read (an ACL shows so), in its own
// folder. Such a file is refused elsewhere, and there too if everybody may read it or another user
// owns it.
static void test_systemd_credential(void **state) {
    (void)state;
    char folder[NEB_PATH_MAX], path[2 * NEB_PATH_MAX], below[2 * NEB_PATH_MAX];
    uint8_t got[64];
    size_t n = 0;
    at(folder, "credentials");
    snprintf(path, sizeof path, "%s/nebula-seal", folder);
    snprintf(below, sizeof below, "%s/sub/nebula-seal", folder);
    assert_int_equal(neb_fs_mkdirs(folder, 0700), NEB_OK);
    assert_int_equal(neb_fs_write(path, plain, 32, 0440), NEB_OK);
    // not a credential
    assert_int_equal(sec_secret_read(path, got, sizeof got, &n), NEB_ERR_DENIED);
    setenv("CREDENTIALS_DIRECTORY", folder, 1);
    assert_int_equal(sec_secret_read(path, got, sizeof got, &n), NEB_OK);
    assert_int_equal(n, 32);
    assert_memory_equal(got, plain, 32);
    assert_int_equal(chmod(path, 0444), 0);
    assert_int_equal(sec_secret_read(path, got, sizeof got, &n), NEB_ERR_DENIED);
    assert_int_equal(chmod(path, 0440), 0);
    snprintf(below, sizeof below, "%s/sub", folder);
    assert_int_equal(neb_fs_mkdirs(below, 0700), NEB_OK);
    snprintf(below, sizeof below, "%s/sub/nebula-seal", folder);
    assert_int_equal(rename(path, below), 0); // below the folder, so not a credential
    assert_int_equal(sec_secret_read(below, got, sizeof got, &n), NEB_ERR_DENIED);
    assert_int_equal(rename(below, path), 0);
    if (geteuid() == 0) { // the agent runs as a user; root keeps the file
        static const uid_t agent = 65534;
        assert_int_equal(chown(path, 0, agent), 0);
        assert_int_equal(chmod(dir, 0755), 0);
        assert_int_equal(chmod(folder, 0755), 0);
        assert_int_equal(setegid(agent), 0);
        assert_int_equal(seteuid(agent), 0);
        enum neb_status st = sec_secret_read(path, got, sizeof got, &n);
        unsetenv("CREDENTIALS_DIRECTORY");
        enum neb_status elsewhere = sec_secret_read(path, got, sizeof got, &n);
        setenv("CREDENTIALS_DIRECTORY", folder, 1);
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(setegid(0), 0);
        assert_int_equal(chown(path, 1234, agent), 0); // a third user's file
        assert_int_equal(setegid(agent), 0);
        assert_int_equal(seteuid(agent), 0);
        enum neb_status third = sec_secret_read(path, got, sizeof got, &n);
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(setegid(0), 0);
        assert_int_equal(st, NEB_OK);
        assert_int_equal(elsewhere, NEB_ERR_DENIED);
        assert_int_equal(third, NEB_ERR_DENIED);
        assert_int_equal(chmod(dir, 0700), 0);
    }
    unsetenv("CREDENTIALS_DIRECTORY");
}

// A job's key goes to another rank in a box. The box alone, or another key pair, opens nothing. A
// changed box is refused.
static void test_key_handed_over(void **state) {
    (void)state;
    uint8_t ours[SEC_HAND_PUBLIC_BYTES], theirs[SEC_HAND_PUBLIC_BYTES], box[SEC_HAND_BOX_BYTES];
    uint8_t again[SEC_HAND_BOX_BYTES], plain_key[SEC_SEAL_HANDED_BYTES];
    struct sec_hand *us = NULL, *them = NULL;
    struct sec_seal_key *of_job = NULL, *got = NULL;
    struct neb_buf sealed = {0};
    assert_int_equal(sec_seal_key_derive(key, job, &of_job), NEB_OK);
    assert_int_equal(sec_hand_begin(&us, ours), NEB_OK);
    assert_int_equal(sec_hand_begin(&them, theirs), NEB_OK);
    assert_int_equal(sec_hand_give(of_job, ours, box), NEB_OK);
    assert_int_equal(sec_hand_give(of_job, ours, again), NEB_OK);
    assert_memory_not_equal(box, again, sizeof box);
    sec_seal_key_hand(of_job, plain_key);
    assert_null(memmem(box, sizeof box, plain_key + SEC_SEAL_HANDED_BYTES - SEC_SEAL_KEY_BYTES, 8));
    assert_int_equal(sec_hand_take(them, box, &got), NEB_ERR_DENIED);
    for (size_t i = 0; i < sizeof box; i += 7) {
        box[i] ^= 1;
        assert_int_equal(sec_hand_take(us, box, &got), NEB_ERR_DENIED);
        assert_null(got);
        box[i] ^= 1;
    }
    assert_int_equal(sec_hand_take(us, box, &got), NEB_OK);
    seal_with(got, job, 1000, 1000, &sealed); // both ends and the site open it
    assert_int_equal(opens(of_job, sealed.p, sealed.len), NEB_OK);
    assert_int_equal(opens(key, sealed.p, sealed.len), NEB_OK);
    assert_memory_equal(sec_seal_key_context(got), job, sizeof job);
    memset(ours, 0, sizeof ours); // a key of small order: anybody could open the box
    assert_int_equal(sec_hand_give(of_job, ours, box), NEB_ERR_DENIED);
    neb_buf_free(&sealed);
    sec_seal_key_destroy(&got);
    sec_seal_key_destroy(&of_job);
    sec_hand_destroy(&us);
    sec_hand_destroy(&them);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip),
                                       cmocka_unit_test(test_key_handed_over),
                                       cmocka_unit_test(test_ranges),
                                       cmocka_unit_test(test_tampering),
                                       cmocka_unit_test(test_chunks),
                                       cmocka_unit_test(test_jobs),
                                       cmocka_unit_test(test_vault),
                                       cmocka_unit_test(test_keys),
                                       cmocka_unit_test(test_systemd_credential)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
