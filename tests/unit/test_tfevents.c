// SPDX-License-Identifier: Apache-2.0
// agent/tfevents and agent/tensorboard: the bytes are as the formats describe them.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/show/tensorboard.h"
#include "agent/show/tfevents.h"
#include "tests/testing.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <setjmp.h>

#include <cmocka.h>

// RFC 3720, B.4, and the check value of common CRC catalogues.
static void test_crc(void **state) {
    (void)state;
    uint8_t b[32];
    memset(b, 0, sizeof b);
    assert_int_equal(agent_tf_crc32c(b, sizeof b), 0x8a9136aau);
    memset(b, 0xff, sizeof b);
    assert_int_equal(agent_tf_crc32c(b, sizeof b), 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        b[i] = (uint8_t)i;
    assert_int_equal(agent_tf_crc32c(b, sizeof b), 0x46dd794eu);
    assert_int_equal(agent_tf_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(agent_tf_crc32c("", 0), 0);
    assert_int_equal(agent_tf_mask(0), 0xa282ead8u);
}

// Every event file of TensorFlow begins with these twelve bytes: length 24 and its masked CRC.
static void test_version(void **state) {
    (void)state;
    static const uint8_t begin[] = {24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22};
    struct neb_buf event = {0}, file = {0};
    agent_tf_put_version(&event, 1700000000.5);
    agent_tf_put_record(&file, &event);
    assert_int_equal(neb_buf_check(&file), NEB_OK);
    assert_int_equal(file.len, 40);
    assert_memory_equal(file.p, begin, sizeof begin);
    assert_int_equal(file.p[12], 1 << 3 | 1);
    assert_memory_equal(file.p + 21,
                        "\x1a\x0d"
                        "brain.Event:2",
                        15);
    neb_buf_free(&event);
    neb_buf_free(&file);
}

static void test_scalars(void **state) {
    (void)state;
    const struct agent_tf_scalar s[] = {{"a", 1.0}, {"nan", NAN}, {"huge", 1e300}, {"bc", -2.0}};
    static const uint8_t want[] = {
        0x09, 0,    0,    0, 0,   0,    0,    0xf0, 0x3f,       // wall_time 1.0
        0x10, 0xac, 0x02,                                       // step 300
        0x2a, 21,                                               // summary
        0x0a, 8,    0x0a, 1, 'a', 0x15, 0,    0,    0x80, 0x3f, // the first value
        0x0a, 9,    0x0a, 2, 'b', 'c',  0x15, 0,    0,    0x00, 0xc0};
    static const uint8_t start[] = {0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 7, 0x3a, 2, 0x08, 1};
    struct neb_buf event = {0};
    agent_tf_put_scalars(&event, 1.0, 300, s, 4);
    assert_int_equal(neb_buf_check(&event), NEB_OK);
    assert_int_equal(event.len, sizeof want);
    assert_memory_equal(event.p, want, sizeof want);
    neb_buf_clear(&event);
    agent_tf_put_start(&event, 1.0, 7);
    assert_int_equal(event.len, sizeof start);
    assert_memory_equal(event.p, start, sizeof start);
    neb_buf_free(&event);
}

// ---- files ----

static int files_in(const char *dir, char last[NEB_PATH_MAX]) {
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') {
            n++;
            assert_int_equal(neb_path(last, NEB_PATH_MAX, dir, e->d_name), NEB_OK);
        }
    closedir(d);
    return n;
}

static size_t size_of(const char *path) {
    struct neb_buf b = {0};
    assert_int_equal(neb_fs_read(path, 1 << 20, &b), NEB_OK);
    size_t n = b.len;
    neb_buf_free(&b);
    return n;
}

static void feed(struct agent_tensorboard *tb, const char *json) {
    json_t *line = json_loads(json, 0, NULL);
    assert_non_null(line);
    agent_tensorboard_line(tb, 0, line, 5 * NEB_S);
    json_decref(line);
}

static void test_lines(void **state) {
    (void)state;
    char root[] = "/tmp/nebula-tf-XXXXXX", dir[NEB_PATH_MAX], path[NEB_PATH_MAX];
    struct agent_job *job = calloc(1, sizeof *job);
    struct agent_tensorboard *tb = NULL;
    struct rlimit before, small;
    assert_non_null(job);
    assert_non_null(mkdtemp(root));
    snprintf(job->clusters[0].name, sizeof job->clusters[0].name, "paris");
    assert_int_equal(agent_tensorboard_create(root, job, 1, false, &tb), NEB_OK);
    snprintf(dir, sizeof dir, "%s/tensorboard/paris", root);
    assert_int_equal(files_in(dir, path), 1);
    assert_int_equal(size_of(path), 40);
    // Lines come from other agents: unknown kinds and values that are not numbers are ignored.
    static const char *const ignored[] = {"{}",
                                          "[]",
                                          "{\"kind\":7}",
                                          "{\"kind\":\"step\",\"step\":\"x\",\"loss\":null}",
                                          "{\"kind\":\"note\",\"loss\":1}",
                                          "{\"kind\":\"step\",\"step\":-5}"};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        feed(tb, ignored[i]);
    agent_tensorboard_line(tb, 7, NULL, 0);
    agent_tensorboard_line(NULL, 0, NULL, 0);
    assert_int_equal(size_of(path), 40);
    feed(tb, "{\"kind\":\"step\",\"step\":10,\"loss\":2.5,\"lr\":0.1}");
    size_t one = size_of(path);
    assert_true(one > 40);
    feed(tb, "{\"kind\":\"link\",\"sent_bytes\":10}");
    size_t two = size_of(path);
    assert_true(two > one);
    feed(tb, "{\"kind\":\"link\",\"sent_bytes\":11}"); // no step since
    assert_int_equal(size_of(path), two);
    // A full disk (here a limit of the process): the half record is removed, and no more is
    // written.
    neb_log_set_sink(testing_drop, NULL);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){two + 20, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    feed(tb, "{\"kind\":\"step\",\"step\":20,\"loss\":2.5,\"lr\":0.1}");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    feed(tb, "{\"kind\":\"step\",\"step\":30,\"loss\":2.5,\"lr\":0.1}");
    neb_log_set_sink(NULL, NULL);
    assert_int_equal(size_of(path), two);
    agent_tensorboard_destroy(&tb);
    assert_int_equal(agent_tensorboard_create(root, job, 1, true, &tb), NEB_OK);
    assert_int_equal(files_in(dir, path), 2);
    agent_tensorboard_destroy(&tb);
    agent_tensorboard_destroy(&tb);
    assert_int_equal(neb_fs_remove_tree(root), NEB_OK);
    free(job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
