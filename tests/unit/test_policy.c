// agent/policy: what a site's operator admits, and files that must not be believed.
#include "agent/base/fs.h"
#include "agent/policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/nebula-policy-XXXXXX";

static struct agent_policy parse(const char *text) {
    struct agent_policy p;
    assert_int_equal(agent_policy_parse(text, strlen(text), "policy.json", &p), NEB_OK);
    return p;
}

static bool admits(const struct agent_policy *p, const struct agent_job *j, const char *from,
                   const char *reason) {
    char why[512] = "";
    bool ok = agent_policy_admits(p, j, 0, from, why, sizeof why);
    if (!ok)
        assert_non_null(strstr(why, reason));
    return ok;
}

static struct agent_job job_of(const char *corpus) {
    struct agent_job j = {.n_clusters = 1};
    snprintf(j.clusters[0].name, sizeof j.clusters[0].name, "paris");
    snprintf(j.corpus, sizeof j.corpus, "%s", corpus);
    j.clusters[0].threads = 2;
    return j;
}

static void test_admits(void **state) {
    (void)state;
    char inside[NEB_PATH_MAX], outside[NEB_PATH_MAX], link[NEB_PATH_MAX], sly[NEB_PATH_MAX],
        text[4 * NEB_PATH_MAX];
    snprintf(inside, sizeof inside, "%s/data/corpus", dir);
    snprintf(outside, sizeof outside, "%s/data2", dir);
    snprintf(link, sizeof link, "%s/data/link", dir);
    snprintf(sly, sizeof sly, "%s/data/../data2", dir);
    assert_int_equal(neb_fs_mkdirs(inside, 0700), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(outside, 0700), NEB_OK);
    assert_int_equal(symlink(outside, link), 0);
    snprintf(text, sizeof text,
             "{\"format\": 1, \"members\": [\"hub\"], \"data\": [\"%s/data\"], \"trainable\": "
             "[\"lora\"], \"threads\": 2, \"ranks\": 1}",
             dir);
    struct agent_policy p = parse(text), none = {.present = false};
    struct agent_job j = job_of(inside);
    j.trainable.mode = INTRA_TRAIN_LORA;
    assert_true(admits(&p, &j, "hub", ""));
    assert_true(admits(&none, &j, "rome", ""));
    assert_false(admits(&p, &j, "rome", "\"rome\" is not among"));
    const char *const bad[] = {outside, link, sly, "/nowhere", "/"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct agent_job other = j;
        snprintf(other.corpus, sizeof other.corpus, "%s", bad[i]);
        assert_false(admits(&p, &other, "hub", "not below a folder"));
        other = j;
        snprintf(other.init_from, sizeof other.init_from, "%s", bad[i]);
        assert_false(admits(&p, &other, "hub", "not below a folder"));
        other = j;
        snprintf(other.clusters[0].corpus, sizeof other.corpus, "%s", bad[i]);
        assert_false(admits(&p, &other, "hub", "not below a folder"));
    }
    struct agent_job full = j, wide = j, all = j, ranks = j;
    full.trainable.mode = INTRA_TRAIN_FULL;
    wide.clusters[0].threads = 3;
    all.clusters[0].threads = 0;
    ranks.clusters[0].mesh.dp = 2;
    assert_false(admits(&p, &full, "hub", "trainable"));
    assert_false(admits(&p, &wide, "hub", "threads"));
    assert_false(admits(&p, &all, "hub", "threads"));
    assert_false(admits(&p, &ranks, "hub", "ranks"));
}

static void test_strict(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "[]",
                                      "{}",
                                      "{\"format\": 2}",
                                      "{\"format\": 1, \"member\": [\"hub\"]}",
                                      "{\"format\": 1, \"members\": []}",
                                      "{\"format\": 1, \"members\": \"hub\"}",
                                      "{\"format\": 1, \"members\": [1]}",
                                      "{\"format\": 1, \"data\": [\"\"]}",
                                      "{\"format\": 1, \"trainable\": [\"everything\"]}",
                                      "{\"format\": 1, \"threads\": 0}",
                                      "{\"format\": 1, \"threads\": -1}",
                                      "{\"format\": 1, \"ranks\": \"4\"}",
                                      "{\"format\": 1, \"format\": 1}",
                                      "{\"format\": 1} x"};
    struct agent_policy p;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(agent_policy_parse(bad[i], strlen(bad[i]), "policy.json", &p),
                         NEB_ERR_FORMAT);
}

static void test_file(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct agent_policy p;
    const char *text = "{\"format\": 1, \"threads\": 4}";
    assert_int_equal(agent_policy_load(dir, &p), NEB_OK);
    assert_false(p.present);
    snprintf(path, sizeof path, "%s/policy.json", dir);
    assert_int_equal(neb_fs_write(path, text, strlen(text), 0600), NEB_OK);
    assert_int_equal(agent_policy_load(dir, &p), NEB_OK);
    assert_true(p.present && p.threads == 4 && p.n_members == -1);
    assert_int_equal(chmod(path, 0622), 0);
    assert_int_equal(agent_policy_load(dir, &p), NEB_ERR_DENIED);
}

// What is signed differs with federation, id and every value; not with the order of keys.
static void test_signed_bytes(void **state) {
    (void)state;
    uint8_t fed[SEC_FEDERATION_BYTES] = {1}, id[AGENT_JOB_ID_BYTES] = {2};
    struct neb_buf a = {0}, b = {0};
    json_t *x = json_pack("{s:i,s:i}", "steps", 10, "seed", 1),
           *y = json_pack("{s:i,s:i}", "seed", 1, "steps", 10);
    assert_int_equal(agent_job_signed_bytes(fed, id, x, &a), NEB_OK);
    assert_int_equal(agent_job_signed_bytes(fed, id, y, &b), NEB_OK);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.p, b.p, a.len);
    json_object_set_new(y, "steps", json_integer(11));
    assert_int_equal(agent_job_signed_bytes(fed, id, y, &b), NEB_OK);
    assert_memory_not_equal(a.p, b.p, a.len);
    id[0]++;
    assert_int_equal(agent_job_signed_bytes(fed, id, x, &b), NEB_OK);
    assert_memory_not_equal(a.p, b.p, a.len);
    json_decref(x);
    json_decref(y);
    neb_buf_free(&a);
    neb_buf_free(&b);
}

static int setup(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_admits), cmocka_unit_test(test_strict),
                                       cmocka_unit_test(test_file),
                                       cmocka_unit_test(test_signed_bytes)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
