// SPDX-License-Identifier: Apache-2.0
// agent/base/map.c: a mapped file is cut short. This looks like a failing disk that cannot deliver
// its pages.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 1 << 16 };
static char path[] = "/tmp/nebula-map-XXXXXX";

static struct neb_map map_and_cut(void) {
    static const uint8_t zeros[BYTES];
    struct neb_map m;
    assert_int_equal(neb_fs_write(path, zeros, sizeof zeros, 0600), NEB_OK);
    assert_int_equal(neb_map_open(path, &m), NEB_OK);
    assert_int_equal(neb_map_read(&m, path), NEB_OK);
    assert_int_equal(truncate(path, BYTES / 2), 0);
    return m;
}

static void test_cut_file_is_an_error(void **state) {
    (void)state;
    struct neb_map m = map_and_cut(), none = {0};
    assert_int_equal(neb_map_read(&m, path), NEB_ERR_IO);
    assert_int_equal(neb_map_read(&none, path), NEB_OK);
    neb_map_close(&m);
}

// A process that touches the missing page dies of SIGBUS, and its last message names the file.
static void test_signal_names_the_file(void **state) {
    (void)state;
    int status, out[2];
    char text[512] = "";
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        struct neb_map m = map_and_cut();
        dup2(out[1], STDERR_FILENO);
        neb_map_watch();
        _exit(((const volatile uint8_t *)m.p)[BYTES - 1]);
    }
    close(out[1]);
    for (size_t n = 0; n < sizeof text - 1;) {
        ssize_t got = read(out[0], text + n, sizeof text - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    assert_non_null(strstr(text, path));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cut_file_is_an_error),
                                       cmocka_unit_test(test_signal_names_the_file)};
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    neb_log_set_sink(testing_drop, NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
