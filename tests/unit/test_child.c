// SPDX-License-Identifier: Apache-2.0
// agent/proc/child: a program that cannot be started is an error of the start, not a child that
// ends at once.
#include "agent/proc/child.h"
#include "tests/testing.h"
#include "tests/unit/scratch.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void write_program(char path[NEB_PATH_MAX], const char *text) {
    assert_int_equal(neb_path(path, NEB_PATH_MAX, dir, "program"), NEB_OK);
    assert_int_equal(neb_fs_write(path, text, strlen(text), 0600), NEB_OK);
    assert_int_equal(chmod(path, 0700), 0);
}

static void test_starts(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], text[64] = "";
    const char *argv[] = {path, NULL};
    struct agent_child c;
    int status = -1, out = -1;
    write_program(path, "#!/bin/sh\necho here\nexit 3\n");
    assert_int_equal(agent_child_start(&c, "a test", argv, NULL, &out), NEB_OK);
    assert_int_equal(read(out, text, sizeof text), 5);
    close(out);
    for (int i = 0; i < 1000 && !agent_child_ended(&c, &status); i++)
        neb_sleep(10 * NEB_MS);
    assert_true(c.pid == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

// An executable file that is no program, or whose interpreter is missing, fails to start and leaves
// no child.
static void test_no_program(void **state) {
    (void)state;
    const char *const texts[] = {"\x7f"
                                 "ELF",
                                 "#!/no/such/shell\n"};
    const char *const causes[] = {"Exec format error", "No such file or directory"};
    for (int i = 0; i < 2; i++) {
        char path[NEB_PATH_MAX], text[512];
        const char *argv[] = {path, NULL};
        struct agent_child c;
        int out = -1;
        write_program(path, texts[i]);
        assert_int_equal(agent_child_start(&c, "a test", argv, NULL, i ? &out : NULL), NEB_ERR_IO);
        neb_last_error(text, sizeof text);
        assert_non_null(strstr(text, "cannot start a test: "));
        assert_non_null(strstr(text, causes[i]));
        assert_true(c.pid == 0 && out == -1);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); // no child exists
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_starts),
                                       cmocka_unit_test(test_no_program)};
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
