// SPDX-License-Identifier: Apache-2.0
// agent/base/map.c: a file that is cut while it is mapped, as a disk that fails gives no page of it.
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

static void test_read(void **state) {
    (void)state;
    struct neb_map m = map_and_cut(), none = {0};
    assert_int_equal(neb_map_read(&m, path), NEB_ERR_IO);
    assert_int_equal(neb_map_read(&none, path), NEB_OK);
    neb_map_close(&m);
}

// Whoever looks at it all the same ends, and says of which file.
static void test_named(void **state) {
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
    for (size_t n = 0; n < sizeof text - 1;) { // it may come in parts
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_read), cmocka_unit_test(test_named)};
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    neb_log_set_sink(testing_drop, NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
