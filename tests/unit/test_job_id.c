// SPDX-License-Identifier: Apache-2.0
// A job's id is made of every key that is not a place, the submitter, the federation and the nonce.
// Keys of masked sums, manifests, records, votes and reveals depend on the id.
#include "agent/job/config_options.h"
#include "agent/job/id.h"
#include "inter/round/sums.h"
#include "security/identity.h"
#include "tests/sum_mask.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 3, COUNT = 16 };
static const uint8_t federation[SEC_FEDERATION_BYTES] = {5};

// A job of three clusters; the first has every key that a cluster can have.
static json_t *spec_of(const char *gate, const char *cluster) {
    static struct agent_job job;
    char text[2048];
    int n = snprintf(
        text, sizeof text,
        "job: t\nsteps: 40\nmodel: {vocab: 16, n_layers: 2, d_model: 8, n_heads: 2, d_ff: 16}\n"
        "data: {corpus: /c, seq_len: 8, batch: 4, accumulate: 2}\noptim: {lr: 0.1}\nsync: "
        "{interval: "
        "10%s}\nclusters:\n  - {name: anna, %s}\n  - {name: bert}\n  - {name: carol}\n",
        gate, cluster);
    assert_int_equal(agent_job_parse(text, (size_t)n, "t.yaml", &job), NEB_OK);
    assert_int_equal(agent_job_draw_nonce(&job), NEB_OK);
    snprintf(job.nonce, sizeof job.nonce, "%032x", 7);
    return agent_job_to_json(&job);
}

static const char private_gate[] = ", gate: private, codec: bf16, row_weights: false",
                  all_keys[] = "threads: 2, corpus: /a, sources: {en: 1, de: 2}, mesh: {dp: 2}, "
                               "launcher: mpirun, device: cpu, precision: fp32, outer_state: host, "
                               "cuda_graphs: off, recompute: true";

static void id_of(const json_t *spec, uint8_t id[AGENT_JOB_ID_BYTES]) {
    assert_int_equal(agent_job_id(federation, "anna", spec, id), NEB_OK);
}

static bool same_id(const json_t *a, const json_t *b) {
    uint8_t x[AGENT_JOB_ID_BYTES], y[AGENT_JOB_ID_BYTES];
    id_of(a, x);
    id_of(b, y);
    return !memcmp(x, y, sizeof x);
}

// Another value of the same type.
static json_t *flipped(const json_t *v) {
    char text[256];
    if (json_is_boolean(v))
        return json_boolean(!json_is_true(v));
    if (json_is_integer(v))
        return json_integer(json_integer_value(v) + 1);
    if (json_is_real(v))
        return json_real(json_real_value(v) * 1.0000001 + 1e-9);
    if (json_is_array(v)) {
        json_t *a = json_copy((json_t *)(uintptr_t)v);
        json_array_append_new(a, json_string("k"));
        return a;
    }
    if (json_is_object(v)) {
        json_t *o = json_copy((json_t *)(uintptr_t)v);
        json_object_set_new(o, "fr", json_real(1));
        return o;
    }
    snprintf(text, sizeof text, "%sx", json_string_value(v));
    return json_string(text);
}

// ---- keys

static json_t *attached_spec(void) {
    static const char text[] = "job: t\nsteps: 40\nmodel: attached\nsync: {interval: 10}\n"
                               "clusters: [{name: anna, launcher: attach}, "
                               "{name: bert, launcher: attach}]\n";
    static struct agent_job job;
    assert_int_equal(agent_job_parse(text, sizeof text - 1, "t.yaml", &job), NEB_OK);
    assert_int_equal(agent_job_draw_nonce(&job), NEB_OK);
    return agent_job_to_json(&job);
}

// A key is in the JSON of some kind of job, and there it is in the id.
static void test_every_option(void **state) {
    (void)state;
    bool seen[AGENT_KEYS_MAX] = {false};
    for (int kind = 0; kind < 3; kind++) {
        json_t *spec = kind == 2 ? attached_spec() : spec_of(kind ? private_gate : "", all_keys);
        for (int i = 0; i < config_n_options; i++) {
            const char *key = config_options[i].path;
            json_t *other = json_deep_copy(spec), *was = json_object_get(spec, key);
            if (was) {
                seen[i] = true;
                json_object_set_new(other, key, flipped(was));
                if (same_id(spec, other))
                    fail_msg("%s is not in the id", key);
                const char *differs = agent_job_differs(spec, other);
                assert_string_equal(differs, key);
            }
            json_decref(other);
        }
        json_decref(spec);
    }
    for (int i = 0; i < config_n_options; i++)
        if (!seen[i])
            fail_msg("%s is in the JSON of no job", config_options[i].path);
}

// Every cluster key has a row here. A new key is part of the id unless this table and the code make
// it a place (a key that says where and how a cluster runs).
static const struct {
    const char *key;
    bool open, masked; // whether it is a place; the same with sync.gate: private
} cluster_keys[] = {
    {"name", false, false},
    {"witness", false, false},
    {"threads", true, true},
    {"corpus", false, false},
    {"sources", false, false},
    {"role", false, false},
    {"mesh", true, true},
    {"launcher", true, true},
    {"device", true, true},
    {"precision", true, false},
    {"outer_state", false, false},
    {"cuda_graphs", true, true},
    {"recompute", true, true},
    {"batch", true, false},
    {"init", false, false},
    {"weight", false, false},
    {"of_another_version", false, false},
};
enum { KEYS = sizeof cluster_keys / sizeof *cluster_keys };

static int row_of(const char *key) {
    int i = 0;
    while (i < KEYS && strcmp(cluster_keys[i].key, key) != 0)
        i++;
    return i;
}

static void test_every_cluster_key(void **state) {
    (void)state;
    for (int private = 0; private < 2; private ++) {
        json_t *spec = spec_of(private ? private_gate : "", all_keys), *v;
        json_t *cluster = json_array_get(json_object_get(spec, "clusters"), 0);
        const char *key;
        json_object_set_new(cluster, "role", json_string("none"));
        json_object_set_new(cluster, "batch", json_integer(2));
        json_object_set_new(cluster, "init", json_string("/teacher.ckpt"));
        json_object_set_new(cluster, "weight", json_real(2));
        json_object_set_new(cluster, "of_another_version", json_true());
        assert_int_equal(json_object_size(cluster), KEYS);
        json_object_foreach(cluster, key, v) {
            int row = row_of(key);
            if (row == KEYS)
                fail_msg("clusters.%s has no row in cluster_keys: add one", key);
            bool place = private ? cluster_keys[row].masked : cluster_keys[row].open;
            for (int gone = 0; gone < 2; gone++) { // another value, or none
                json_t *other = json_deep_copy(spec),
                       *c = json_array_get(json_object_get(other, "clusters"), 0);
                if (gone)
                    json_object_del(c, key);
                else
                    json_object_set_new(c, key, flipped(v));
                if (same_id(spec, other) != place)
                    fail_msg("clusters.%s is%s in the id", key, place ? "" : " not");
                assert_true(!agent_job_differs(spec, other) == place);
                assert_true(!agent_job_differs(other, spec) == place);
                json_decref(other);
            }
        }
        json_decref(spec);
    }
    for (int i = 0; i < config_n_cluster_options; i++) {
        const struct config_cluster_option *o = &config_cluster_options[i];
        int row = row_of(o->option.path + CONFIG_CLUSTER_PREFIX);
        assert_true((row < KEYS) == (o->in_json != CONFIG_NEVER));
        assert_true(row == KEYS || cluster_keys[row].open == (o->place != CONFIG_SHARED));
    }
}

// An attached trainer is not a place; the launchers of nebula's own trainer are.
static void test_attach(void **state) {
    (void)state;
    json_t *a = spec_of("", "launcher: local, mesh: {dp: 2}"), *b = spec_of("", "launcher: slurm"),
           *c = spec_of("", "launcher: attach");
    assert_true(same_id(a, b));
    assert_false(same_id(a, c));
    assert_false(same_id(b, c));
    assert_string_equal(agent_job_differs(b, c), "clusters.launcher");
    json_decref(a);
    json_decref(b);
    json_decref(c);
}

// A signature over sorted text does not cover the order.
static void test_order_of_sources(void **state) {
    (void)state;
    json_t *a = spec_of("", "sources: {en: 1, de: 2}"), *b = spec_of("", "sources: {de: 2, en: 1}");
    assert_false(same_id(a, b));
    assert_string_equal(agent_job_differs(a, b), "the order of clusters.sources");
    json_decref(a);
    json_decref(b);
}

static void test_submitter_and_federation(void **state) {
    (void)state;
    uint8_t x[AGENT_JOB_ID_BYTES], y[AGENT_JOB_ID_BYTES], elsewhere[SEC_FEDERATION_BYTES] = {6};
    json_t *a = spec_of("", "threads: 1"), *b = json_deep_copy(a);
    id_of(a, x);
    assert_int_equal(agent_job_id(federation, "bert", a, y), NEB_OK);
    assert_memory_not_equal(x, y, sizeof x);
    assert_int_equal(agent_job_id(elsewhere, "anna", a, y), NEB_OK);
    assert_memory_not_equal(x, y, sizeof x);
    json_object_set_new(b, "nonce", json_string("00000000000000000000000000000008"));
    assert_false(same_id(a, b));
    assert_string_equal(agent_job_differs(a, b), "nonce");
    json_decref(a);
    json_decref(b);
}

// The nonce survives JSON; malformed ones are refused; two draws differ.
static void test_nonce(void **state) {
    (void)state;
    static struct agent_job x, y;
    json_t *a = spec_of("", "threads: 1");
    assert_int_equal(agent_job_from_json(a, &x), NEB_OK);
    assert_string_equal(x.nonce, "00000000000000000000000000000007");
    json_t *b = agent_job_to_json(&x);
    assert_true(json_equal(a, b));
    json_object_set_new(b, "nonce", json_string("0000000000000000000000000000000x"));
    assert_int_equal(agent_job_from_json(b, &y), NEB_ERR_FORMAT);
    json_object_set_new(b, "nonce", json_integer(7));
    assert_int_equal(agent_job_from_json(b, &y), NEB_ERR_FORMAT);
    json_object_del(b, "nonce");
    assert_int_equal(agent_job_from_json(b, &y), NEB_ERR_FORMAT);
    assert_int_equal(agent_job_draw_nonce(&x), NEB_OK);
    assert_int_equal(agent_job_draw_nonce(&y), NEB_OK);
    assert_string_not_equal(x.nonce, y.nonce);
    json_decref(a);
    json_decref(b);
}

// ---- what depends on the id

// Two ids that differ only in the last byte, so that the test notices if only a part of the id is
// used.
static void ids(uint8_t a[INTER_ID_BYTES], uint8_t b[INTER_ID_BYTES]) {
    json_t *spec = spec_of("", "threads: 1");
    id_of(spec, a);
    memcpy(b, a, INTER_ID_BYTES);
    b[INTER_ID_BYTES - 1] ^= 1;
    json_decref(spec);
}

static void test_pair_keys(void **state) {
    (void)state;
    uint8_t secret[2][32], public[2][32], a[INTER_ID_BYTES], b[INTER_ID_BYTES], x[32], y[32], z[32];
    ids(a, b);
    for (int k = 0; k < 2; k++) {
        randombytes_buf(secret[k], 32);
        assert_int_equal(crypto_scalarmult_base(public[k], secret[k]), 0);
    }
    assert_int_equal(sec_sum_pair_key(secret[0], public[0], public[1], a, x), NEB_OK);
    assert_int_equal(sec_sum_pair_key(secret[1], public[1], public[0], a, y), NEB_OK);
    assert_int_equal(sec_sum_pair_key(secret[1], public[1], public[0], b, z), NEB_OK);
    assert_memory_equal(x, y, 32);
    assert_memory_not_equal(x, z, 32);
}

// The id is part of a record's hash. So it is part of the chain, and of all bytes that are signed.
static void test_records(void **state) {
    (void)state;
    static struct inter_record r;
    struct inter_manifest m = {.bytes = 1, .chunk_bytes = INTER_CHUNK_MIN};
    struct inter_promise p = {.term = 1};
    uint8_t id[2][INTER_ID_BYTES], hash[2][INTER_SHA_BYTES];
    struct neb_buf body[4][2] = {0};
    ids(id[0], id[1]);
    r = (struct inter_record){.n = 1, .entries = {{.clip = 1}}};
    for (int k = 0; k < 2; k++) {
        memcpy(r.job, id[k], sizeof r.job);
        memcpy(m.key.job, id[k], sizeof m.key.job);
        inter_record_hash(&r, hash[k]);
        inter_record_put_body(&body[0][k], &r);
        inter_manifest_put_body(&body[1][k], &m);
        inter_accept_put_body(&body[2][k], &r, hash[0], 1);
        inter_promise_put_body(&body[3][k], id[k], 0, &p);
    }
    assert_memory_not_equal(hash[0], hash[1], sizeof hash[0]);
    for (int i = 0; i < 4; i++) { // the bytes that are signed
        assert_int_equal(body[i][0].len, body[i][1].len);
        assert_memory_not_equal(body[i][0].p, body[i][1].p, body[i][0].len);
        neb_buf_free(&body[i][0]);
        neb_buf_free(&body[i][1]);
    }
}

static struct neb_buf revealed; // the bytes that were signed last
static bool sign(void *user, const char *context, const void *msg, size_t len,
                 uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)context;
    neb_buf_clear(&revealed);
    neb_buf_add(&revealed, msg, len);
    memset(sig, 0, INTER_SIG_BYTES);
    return true;
}
static bool verify(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                   const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)peer, (void)context, (void)msg, (void)len, (void)sig;
    return true;
}
static void on_send(void *user, uint8_t member, const void *p, size_t n) {
    (void)user, (void)member, (void)p, (void)n;
}
static enum neb_status on_keep(void *user, const struct inter_record *r) {
    (void)user, (void)r;
    return NEB_OK;
}

static void on_ready(void *user, uint32_t fragment, uint32_t round, const void *p, size_t n) {
    (void)user, (void)fragment, (void)round, (void)p, (void)n;
}
static void on_look_up(void *user, uint8_t member, uint32_t fragment, uint32_t round) {
    (void)user, (void)member, (void)fragment, (void)round;
}

// Members with two different ids sign different bytes over what they reveal.
static void test_reveals(void **state) {
    (void)state;
    static struct inter_record r;
    const struct inter_node_crypto crypto = {NULL, sign, verify};
    uint8_t id[2][INTER_ID_BYTES], secret[N][32], public[N][32], keys[N][SEC_SUM_KEY_BYTES] = {{0}};
    struct inter_sums_blob blobs[NEB_MEMBERS_MAX];
    struct neb_buf masked[N] = {0}, said[2] = {0};
    struct sec_sum *sums[N];
    struct inter_sums *s = NULL;
    const int16_t values[COUNT] = {1, 2, 3};
    ids(id[0], id[1]);
    for (int k = 0; k < N; k++) {
        randombytes_buf(secret[k], 32);
        assert_int_equal(crypto_scalarmult_base(public[k], secret[k]), 0);
    }
    r = (struct inter_record){.n = N};
    for (uint8_t i = 0; i < N; i++) {
        for (uint8_t k = 0; k < N; k++)
            if (k != i)
                assert_int_equal(sec_sum_pair_key(secret[i], public[i], public[k], id[0], keys[k]),
                                 NEB_OK);
        assert_int_equal(sec_sum_create(N, i, (const uint8_t(*)[SEC_SUM_KEY_BYTES])keys, &sums[i]),
                         NEB_OK);
        assert_int_equal(sum_mask(sums[i], 0, 0, values, COUNT, &masked[i]), NEB_OK);
        r.entries[i] = (struct inter_entry){.member = i, .tokens = 512, .clip = 1};
        blobs[i] = (struct inter_sums_blob){masked[i].p, masked[i].len};
    }
    for (int k = 0; k < 2; k++) {
        struct inter_sums_config c = {.n = N,
                                      .crypto = &crypto,
                                      .sum = sums[0],
                                      .colluders = 1,
                                      .ops = {NULL, on_send, on_keep, on_ready, on_look_up}};
        memcpy(c.job, id[k], sizeof c.job);
        assert_int_equal(inter_sums_create(&c, &s), NEB_OK);
        assert_int_equal(inter_sums_commit(s, NEB_S, &r, blobs, NULL, 0), NEB_OK);
        neb_buf_add(&said[k], revealed.p, revealed.len);
        inter_sums_destroy(&s);
    }
    assert_int_equal(said[0].len, said[1].len);
    assert_memory_not_equal(said[0].p, said[1].p, said[0].len);
    for (int k = 0; k < N; k++) {
        sec_sum_destroy(&sums[k]);
        neb_buf_free(&masked[k]);
    }
    neb_buf_free(&said[0]);
    neb_buf_free(&said[1]);
    neb_buf_free(&revealed);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_option),
                                       cmocka_unit_test(test_every_cluster_key),
                                       cmocka_unit_test(test_attach),
                                       cmocka_unit_test(test_order_of_sources),
                                       cmocka_unit_test(test_submitter_and_federation),
                                       cmocka_unit_test(test_nonce),
                                       cmocka_unit_test(test_pair_keys),
                                       cmocka_unit_test(test_records),
                                       cmocka_unit_test(test_reveals)};
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
