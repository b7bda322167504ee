// SPDX-License-Identifier: Apache-2.0
// agent/show/export: which models OUT/checkpoint gets, under which names, and the hint that tells
// where the other models are.
#include "agent/base/bytes.h"
#include "agent/show/export.h"
#include "tests/testing.h"
#include "tests/unit/scratch.h"

#include <string.h>

static char warned[512];

static void on_log(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    if (level == NEB_LOG_WARN)
        snprintf(warned, sizeof warned, "%s", text);
}

static void put(const char *folder, const char *name, const char *text) {
    char path[NEB_PATH_MAX];
    assert_int_equal(neb_fs_mkdirs(folder, 0700), NEB_OK);
    assert_int_equal(neb_path(path, sizeof path, folder, name), NEB_OK);
    assert_int_equal(neb_fs_write(path, text, strlen(text), 0600), NEB_OK);
}

// The content of a file of OUT/checkpoint; "": the file does not exist.
static void got(const char *out, const char *name, char text[64]) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    snprintf(path, sizeof path, "%s/checkpoint/%s", out, name);
    text[0] = 0;
    if (neb_fs_exists(path)) {
        assert_int_equal(neb_fs_read(path, 63, &b), NEB_OK);
        snprintf(text, 64, "%.*s", (int)b.len, (const char *)b.p);
    }
    neb_buf_free(&b);
}

enum { G = AGENT_ROLE_GENERATOR, D = AGENT_ROLE_DISCRIMINATOR };
enum { T = AGENT_ROLE_TEACHER, S = AGENT_ROLE_STUDENT };
enum { WITNESS = 100, ATTACH };

struct row {
    enum agent_mode mode;
    enum agent_scheme scheme;
    int clusters[3]; // roles, or one of the two above, for clusters a, b, c
    int n;
    const char *here; // clusters whose folders are here
    // the cluster whose model each file holds; c: c.ckpt
    const char *model, *generator, *teacher, *c;
    // the cluster whose corpus is there; the cluster that the log names as owner of model.ckpt
    const char *vocabulary, *who;
};

static const struct row rows[] = {
    // --local: all clusters are here
    {AGENT_MODE_REPLICAS, 0, {0, 0}, 2, "ab", "a", "", "", "", "a", ""},
    {AGENT_MODE_REPLICAS, 0, {ATTACH, 0}, 2, "ab", "a", "", "", "", "b", ""},
    {AGENT_MODE_RTD, 0, {G, D}, 2, "ab", "b", "a", "", "", "a", ""},
    {AGENT_MODE_DISTILL, 0, {T, S, S}, 3, "abc", "b", "", "a", "c", "a", ""},
    // one of several sites: only its own clusters are here
    {AGENT_MODE_REPLICAS, 0, {0, 0}, 2, "b", "b", "", "", "", "b", ""},
    {AGENT_MODE_REPLICAS, 0, {0, 0, WITNESS}, 3, "c", "", "", "", "", "", "a"},
    {AGENT_MODE_RTD, 0, {G, D}, 2, "b", "b", "", "", "", "b", ""},
    {AGENT_MODE_RTD, 0, {G, D}, 2, "a", "", "a", "", "", "a", "b"},
    {AGENT_MODE_RTD, 0, {D, G}, 2, "a", "a", "", "", "", "a", ""},
    {AGENT_MODE_DISTILL, 0, {T, S, S}, 3, "a", "", "", "a", "", "a", "b"},
    {AGENT_MODE_DISTILL, 0, {T, S, S}, 3, "b", "b", "", "", "", "b", ""},
    {AGENT_MODE_DISTILL, 0, {T, S, S}, 3, "c", "c", "", "", "", "c", ""},
    // one process made everything
    {AGENT_MODE_RTD, AGENT_SCHEME_SYNCHRONOUS, {D, G}, 2, "a", "a+d", "a", "", "", "a", ""},
    {AGENT_MODE_DISTILL, AGENT_SCHEME_SYNCHRONOUS, {T, S}, 2, "a", "a", "", "a+t", "", "a", ""},
};

static void run(const struct row *r, const char *out) {
    static struct agent_job j; // large
    char dirs[AGENT_CLUSTERS_MAX][NEB_PATH_MAX] = {{0}}, text[64], want[64];
    memset(&j, 0, sizeof j);
    j.mode = r->mode;
    j.sync.scheme = r->scheme ? r->scheme : AGENT_SCHEME_FEDERATED;
    j.distill.learn = true;
    j.n_clusters = r->n;
    for (int i = 0; i < r->n; i++) {
        struct agent_cluster *k = &j.clusters[i];
        snprintf(k->name, sizeof k->name, "%c", 'a' + i);
        snprintf(k->corpus, sizeof k->corpus, "%s/corpus-%c", dir, 'a' + i);
        k->witness = r->clusters[i] == WITNESS;
        k->launcher = r->clusters[i] == ATTACH ? AGENT_LAUNCHER_ATTACH : k->launcher;
        k->role = r->clusters[i] < WITNESS ? (enum agent_role)r->clusters[i] : AGENT_ROLE_NONE;
        if (strchr(r->here, 'a' + i))
            snprintf(dirs[i], sizeof dirs[i], "%s/job-%c", dir, 'a' + i);
    }
    warned[0] = 0;
    assert_int_equal(agent_export_models(&j, "ID0", dirs, out), NEB_OK);
    const struct {
        const char *file, *of;
    } files[] = {{"model.ckpt", r->model},
                 {"generator.ckpt", r->generator},
                 {"teacher.ckpt", r->teacher},
                 {"c.ckpt", r->c},
                 {"tokenizer.model", r->vocabulary}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        got(out, files[i].file, text);
        assert_string_equal(text, files[i].of);
    }
    if (r->who[0])
        snprintf(want, sizeof want, "cluster %s has it as HOME/jobs/ID0/model.ckpt", r->who);
    assert_true(r->who[0] ? strstr(warned, want) != NULL : !warned[0]);
}

static void test_rows(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    for (char c = 'a'; c <= 'c'; c++) {
        char name[2] = {c}, more[4];
        snprintf(path, sizeof path, "%s/job-%c", dir, c);
        put(path, "model.ckpt", name);
        snprintf(more, sizeof more, "%c+d", c);
        put(path, "discriminator.ckpt", more);
        snprintf(more, sizeof more, "%c+t", c);
        put(path, "teacher.ckpt", more);
        snprintf(path, sizeof path, "%s/corpus-%c", dir, c);
        put(path, "tokenizer.model", name);
    }
    neb_log_set_sink(on_log, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(path, sizeof path, "%s/out-%zu", dir, i);
        run(&rows[i], path);
    }
    neb_log_set_sink(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
