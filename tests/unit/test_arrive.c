// SPDX-License-Identifier: Apache-2.0
// inter/service/arrive.c: chunks of an update arrive in any order, over restarts, sealed or not.
// The verdict equals that of a check of the full update, and covers only the signed bytes.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "compress/update.h"
#include "inter/service/state.h"
#include "security/seal_key.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(x) assert_int_equal((x), NEB_OK)

enum { ROWS = 1000, COLS = 1000, CHUNK = INTER_CHUNK_MIN, COLUMNS_AT = 12 };

static char root[64], dir[96]; // dir: the ledger's, in root
static struct neb_buf blob;    // an update
static struct cmp_update_stats whole;
static struct inter_manifest manifest;
static struct sec_seal_key *seal;

static struct inter_service *open_service(bool sealed) {
    struct inter_service *s = calloc(1, sizeof *s); // only the fields that arrivals use are set
    assert_non_null(s);
    OK(inter_ledger_open(dir, &s->ledger));
    OK(inter_node_create(&s->crypto, &s->node)); // no job is open
    inter_ledger_seal(s->ledger, sealed ? seal : NULL);
    return s;
}

static void close_service(struct inter_service *s) {
    inter_ledger_close(&s->ledger);
    inter_node_destroy(&s->node);
    service_arrivals_free(s);
    free(s);
}

static void begin(struct inter_service *s, const struct inter_manifest *m) {
    struct inter_bitmap got = {0};
    OK(inter_ledger_put_manifest(s->ledger, m));
    OK(inter_bitmap_init(&got, inter_chunks(m->bytes, m->chunk_bytes)));
    OK(inter_ledger_part_open(s->ledger, m, &got));
    inter_bitmap_free(&got);
    service_arrival_begin(s, m);
}

static void chunk(struct inter_service *s, const struct inter_manifest *m, uint32_t i) {
    uint64_t at = (uint64_t)i * CHUNK;
    size_t n = inter_chunk_length(m->bytes, CHUNK, i);
    if (inter_ledger_part_has(s->ledger, &m->key, i))
        return;
    OK(inter_ledger_part_write(s->ledger, &m->key, at, blob.p + at, n));
    service_arrival_chunk(s, &m->key, at, blob.p + at, n);
}

static void finish(struct inter_service *s, const struct inter_manifest *m) {
    struct cmp_update_stats stats;
    enum neb_status st;
    assert_true(service_arrival_whole(s, m));
    inter_ledger_part_hashed(s->ledger, m);
    OK(inter_ledger_part_finish(s->ledger, m));
    assert_true(service_arrival_verdict(s, m, &st, &stats));
    OK(st);
    assert_memory_equal(&stats.norm, &whole.norm, sizeof stats.norm);
    assert_memory_equal(stats.shapes, whole.shapes, sizeof stats.shapes);
    assert_int_equal(stats.elements, whole.elements);
    service_arrival_end(s, &m->key);
    assert_false(service_arrival_verdict(s, m, &st, &stats));
    struct neb_map map;
    OK(inter_ledger_map_blob(s->ledger, &m->key, &map));
    assert_int_equal(map.len, blob.len);
    assert_memory_equal(map.p, blob.p, blob.len);
    neb_map_close(&map);
}

static void shuffle(uint32_t *order, uint32_t n, struct neb_rng *r) {
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = (uint32_t)neb_rng_below(r, i), t = order[k];
        order[k] = order[i - 1];
        order[i - 1] = t;
    }
}

static uint32_t next_round = 1;
static struct inter_manifest of_round(void) {
    struct inter_manifest m = manifest;
    m.key.round = next_round++;
    return m;
}

static void in_any_order(bool sealed, bool restart) {
    struct neb_rng r = neb_rng_make(3, sealed);
    for (int repeat = 0; repeat < 4; repeat++) {
        struct inter_manifest m = of_round();
        uint32_t n = inter_chunks(m.bytes, CHUNK), order[64];
        struct inter_service *s = open_service(sealed);
        assert_true(n > 4 && n <= 64);
        begin(s, &m);
        shuffle(order, n, &r);
        for (uint32_t i = 0; i < n; i++) {
            chunk(s, &m, order[repeat ? i : n - 1 - i]);
            if (restart && i == n / 2) { // chunks arrive again that were not yet recorded
                close_service(s);
                s = open_service(sealed);
                begin(s, &m);
                for (uint32_t k = 0; k <= i; k++)
                    chunk(s, &m, order[repeat ? k : n - 1 - k]);
            }
        }
        finish(s, &m);
        close_service(s);
    }
}

static void test_any_order(void **state) {
    (void)state;
    in_any_order(false, false);
    in_any_order(true, false);
}

static void test_restart(void **state) {
    (void)state;
    in_any_order(false, true);
    in_any_order(true, true);
}

// Bytes that do not match the digest get no verdict, even if they are a valid update.
static void test_wrong_digest(void **state) {
    (void)state;
    struct inter_manifest m = of_round();
    struct inter_service *s = open_service(false);
    struct cmp_update_stats stats;
    enum neb_status st;
    uint32_t n = inter_chunks(m.bytes, CHUNK);
    begin(s, &m);
    neb_log_set_sink(testing_drop, NULL);
    blob.p[CHUNK + 5] ^= 1;
    for (uint32_t i = 0; i < n; i++)
        chunk(s, &m, i);
    assert_false(service_arrival_whole(s, &m));
    assert_false(service_arrival_verdict(s, &m, &st, &stats));
    assert_int_equal(inter_ledger_part_finish(s->ledger, &m), NEB_ERR_CORRUPT);
    blob.p[CHUNK + 5] ^= 1;
    neb_log_set_sink(NULL, NULL);
    service_arrival_begin(s, &m);
    for (uint32_t i = 0; i < n; i++)
        chunk(s, &m, i);
    finish(s, &m);
    close_service(s);
}

// Signed bytes that are no valid update get the verdict NEB_ERR_FORMAT.
static void test_signed_but_invalid(void **state) {
    (void)state;
    struct inter_manifest m = of_round();
    struct inter_service *s = open_service(false);
    struct cmp_update_stats stats;
    enum neb_status st;
    OK(cmp_work_create(&s->gate));
    neb_log_set_sink(testing_drop, NULL);
    blob.p[COLUMNS_AT] ^= 1;
    neb_sha256(blob.p, blob.len, m.sha256);
    begin(s, &m);
    for (uint32_t i = inter_chunks(m.bytes, CHUNK); i-- > 0;)
        chunk(s, &m, i);
    assert_true(service_arrival_whole(s, &m));
    if (cmp_update_check_max(s->gate, blob.p, blob.len, UINT64_MAX, &stats) == NEB_OK)
        fail_msg("the altered update is still valid");
    assert_true(service_arrival_verdict(s, &m, &st, &stats));
    assert_int_equal(st, NEB_ERR_FORMAT);
    blob.p[COLUMNS_AT] ^= 1;
    neb_log_set_sink(NULL, NULL);
    cmp_work_destroy(&s->gate);
    close_service(s);
}

// With more arrivals than the limit, the oldest are dropped and get no verdict here. The others get
// a verdict.
static void test_too_many_arrivals(void **state) {
    (void)state;
    struct inter_service *s = open_service(false);
    struct inter_manifest m[ARRIVALS_MAX + 2];
    uint32_t n = inter_chunks(manifest.bytes, CHUNK);
    for (int k = 0; k < ARRIVALS_MAX + 2; k++) {
        m[k] = of_round();
        m[k].key.fragment = (uint32_t)k; // only the newest arrival of a member and fragment is kept
        begin(s, &m[k]);
    }
    for (uint32_t i = 0; i < n; i++)
        for (int k = 0; k < ARRIVALS_MAX + 2; k++)
            chunk(s, &m[k], i);
    for (int k = 0; k < ARRIVALS_MAX + 2; k++) {
        if (k >= 2) {
            finish(s, &m[k]);
            continue;
        }
        assert_false(service_arrival_whole(s, &m[k]));
        OK(inter_ledger_part_finish(s->ledger, &m[k]));
    }
    close_service(s);
}

static int set_up(void **state) {
    (void)state;
    struct neb_rng r = neb_rng_make(1, 0);
    struct cmp_work *w = NULL;
    struct cmp_codec codec;
    struct cmp_unit_shape shape = {0, ROWS, COLS, true};
    float *x = malloc(sizeof *x * ROWS * COLS);
    uint64_t counts[ROWS];
    for (size_t i = 0; i < (size_t)ROWS * COLS; i++)
        x[i] = neb_rng_normal(&r);
    for (size_t i = 0; i < ROWS; i++)
        counts[i] = i;
    bool good = cmp_work_create(&w) == NEB_OK && cmp_codec_parse("int4", &codec) == NEB_OK;
    codec.zstd_level = 1;
    cmp_update_begin(&blob, 1);
    good =
        good &&
        cmp_update_add(w, &blob, &shape, &codec, &(struct cmp_source){.x = x}, counts) == NEB_OK &&
        cmp_update_check_max(w, blob.p, blob.len, UINT64_MAX, &whole) == NEB_OK;
    cmp_work_destroy(&w);
    free(x);
    manifest = (struct inter_manifest){.key = {.job = {1, 2, 3}, .member = 1, .attempt = 1},
                                       .bytes = (uint32_t)blob.len,
                                       .chunk_bytes = CHUNK,
                                       .tokens = 1000,
                                       .steps = 10,
                                       .step = 10};
    neb_sha256(blob.p, blob.len, manifest.sha256);
    snprintf(root, sizeof root, "/tmp/nebula-arrive-XXXXXX");
    if (!good || !mkdtemp(root))
        return -1;
    char key[96];
    snprintf(dir, sizeof dir, "%s/ledger", root);
    snprintf(key, sizeof key, "%s/seal.key", root);
    return sec_seal_key_make(key, NULL, &seal) == NEB_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    neb_buf_free(&blob);
    sec_seal_key_destroy(&seal);
    return neb_fs_remove_tree(root) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order), cmocka_unit_test(test_restart),
        cmocka_unit_test(test_wrong_digest), cmocka_unit_test(test_signed_but_invalid),
        cmocka_unit_test(test_too_many_arrivals)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
