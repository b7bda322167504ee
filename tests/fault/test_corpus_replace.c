// SPDX-License-Identifier: Apache-2.0
// A build replaces a corpus. The builder is killed, or fails, at every write, sync and rename in
// turn. The folder has the old or the new corpus, and it is complete. The same holds if the file
// system cannot exchange two names. Then the old corpus may lie beside the folder for a moment, and
// the next build restores it.
#include "agent/base/fault.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "intra/data/data.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64], corpus[128], aside[160];
static struct intra_build_spec spec;

static void quiet(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
}

static void write_text(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(neb_fs_write(path, text, strlen(text), 0644), NEB_OK);
}

// Version 0 has few tokens, version 1 many.
static enum neb_status build(int version) {
    bool skipped;
    snprintf(spec.sources[0].path, sizeof spec.sources[0].path, "%s/%s", dir,
             version ? "many.jsonl" : "few.jsonl");
    return intra_corpus_build(&spec, corpus, quiet, NULL, &skipped);
}

// -1: no corpus.
static int version_at(const char *where) {
    struct intra_corpus *c = NULL;
    if (!neb_fs_exists(where))
        return -1;
    assert_int_equal(intra_corpus_open(where, true, &c), NEB_OK); // checked to the last byte
    int version = intra_corpus_tokens(c, 0, INTRA_TRAIN) > 40;
    intra_corpus_close(&c);
    return version;
}

// Builds `version` with this fault armed. True: the build succeeded.
static bool with_fault(int version, const char *fault) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        neb_fault_arm(fault);
        _exit(build(version) == NEB_OK ? 0 : 3);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL
                                    : WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void sweep(const char *before, const char *how, bool exchanges) {
    int version = 1, k = 1, failed = 0, beside = 0;
    for (bool whole = false; !whole; k++) {
        char fault[64];
        assert_true(k < 200);
        snprintf(fault, sizeof fault, "%sfs.*:%d%s", before, k, how);
        int old = version_at(corpus);
        version = !old;
        whole = with_fault(version, fault);
        int now = version_at(corpus);
        if (now < 0) {
            assert_false(exchanges);
            assert_int_equal(version_at(aside), old);
            beside++;
            assert_int_equal(neb_fs_mend_dir(corpus), NEB_OK);
            now = version_at(corpus);
        }
        assert_true(now == old || now == version);
        assert_true(!whole || now == version);
        failed += !whole;
    }
    assert_true(failed >= 6); // sync and rename of files and folders, then the exchange
    // the fault hit the moment between the two renames
    assert_int_equal(beside > 0, !exchanges && *how);
    assert_false(neb_fs_exists(aside));
}

static void test_killed_at_every_operation(void **state) {
    (void)state;
    sweep("", ":kill", true);
    sweep("fs.exchange:1,", ":kill", false);
}

static void test_every_operation_fails(void **state) {
    (void)state;
    sweep("", "", true);
    sweep("fs.exchange:1,", "", false);
}

static void test_trailing_slash(void **state) {
    (void)state;
    bool skipped;
    size_t n = strlen(corpus);
    assert_int_equal(build(0), NEB_OK);
    corpus[n] = '/', corpus[n + 1] = 0;
    assert_int_equal(build(1), NEB_OK);
    corpus[n] = 0;
    assert_int_equal(version_at(corpus), 1);
    assert_int_equal(intra_corpus_build(&spec, corpus, quiet, NULL, &skipped), NEB_OK);
    assert_true(skipped);
}

static int set_up(void **state) {
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    strcpy(dir, "/tmp/nebula-corpus-replace-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(corpus, sizeof corpus, "%s/corpus", dir);
    snprintf(aside, sizeof aside, "%s.nebula-old", corpus);
    write_text("few.jsonl", "{\"text\": \"a few words of text\"}\n");
    struct neb_buf b = {0};
    for (int i = 0; i < 60; i++) {
        char line[96];
        int n = snprintf(line, sizeof line, "{\"text\": \"line %d of the larger text\"}\n", i);
        neb_buf_add(&b, line, (size_t)n);
    }
    neb_buf_u8(&b, 0);
    write_text("many.jsonl", (const char *)b.p);
    neb_buf_free(&b);
    spec = (struct intra_build_spec){.name = "t",
                                     .seed = 1,
                                     .vocab = 290,
                                     .type = "bpe",
                                     .character_coverage = 1,
                                     .byte_fallback = true,
                                     .train_lines = 2000,
                                     .threads = 1,
                                     .n_sources = 1};
    snprintf(spec.sources[0].name, sizeof spec.sources[0].name, "one");
    spec.sources[0].format = INTRA_JSONL;
    snprintf(spec.sources[0].field, sizeof spec.sources[0].field, "text");
    if (build(1) != NEB_OK)
        return -1;
    char model[256];
    snprintf(model, sizeof model, "%s/tokenizer.model", dir); // the model is trained only once
    snprintf(spec.tokenizer, sizeof spec.tokenizer, "%s/tokenizer.model", corpus);
    if (neb_fs_copy(spec.tokenizer, model, 0644) != NEB_OK)
        return -1;
    snprintf(spec.tokenizer, sizeof spec.tokenizer, "%s", model);
    return build(0) == NEB_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    neb_log_set_sink(NULL, NULL);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_killed_at_every_operation, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_every_operation_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_trailing_slash, set_up, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
