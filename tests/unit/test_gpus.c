// SPDX-License-Identifier: Apache-2.0
// agent/proc/gpus: which GPUs exist, as the environment or the driver says, and which one a process
// gets.
#include "agent/base/fs.h"
#include "agent/proc/gpus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void found(const char *visible, const char *driver, const char *all) {
    struct agent_gpus g;
    char text[AGENT_GPUS_TEXT];
    agent_gpus_find(visible, driver, &g);
    agent_gpus_text(&g, ~0ull, text);
    assert_string_equal(text, all);
}

static void test_found(void **state) {
    char dir[] = "/tmp/nebula-gpus-XXXXXX", path[NEB_PATH_MAX];
    (void)state;
    assert_non_null(mkdtemp(dir));
    found(NULL, dir, "");
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/0000:%02x:00.0", dir, i);
        assert_int_equal(neb_fs_mkdirs(path, 0700), NEB_OK);
    }
    found(NULL, dir, "CUDA_VISIBLE_DEVICES=0,1,2");
    found("", dir, "");
    found("-1", dir, "");
    found("5,GPU-1f2e,-1,3", dir, "CUDA_VISIBLE_DEVICES=5,GPU-1f2e");
    found("1,,2", dir, "CUDA_VISIBLE_DEVICES=1");
    found("2,", dir, "CUDA_VISIBLE_DEVICES=2");
    assert_int_equal(neb_fs_remove_tree(dir), NEB_OK);
    found(NULL, dir, ""); // no driver
}

static void test_taken(void **state) {
    struct agent_gpus g;
    char text[AGENT_GPUS_TEXT];
    (void)state;
    agent_gpus_find("4", "/none", &g);
    assert_int_equal(agent_gpus_take(&g, 1), 0); // no choice
    agent_gpus_find("4,5,6,7", "/none", &g);
    assert_int_equal(agent_gpus_take(&g, 5), 0); // too few: the caller reports it
    assert_int_equal(agent_gpus_take(&g, 1), 1);
    assert_int_equal(agent_gpus_take(&g, 2), 6);
    uint64_t shared = agent_gpus_take(&g, 3);
    assert_int_equal(shared, 8 + 1 + 2);
    agent_gpus_text(&g, shared, text);
    assert_string_equal(text, "CUDA_VISIBLE_DEVICES=4,5,7");
    agent_gpus_give_back(&g, 1);
    agent_gpus_give_back(&g, 6);
    assert_int_equal(agent_gpus_take(&g, 1), 4);
    agent_gpus_give_back(&g, 4);
    agent_gpus_give_back(&g, shared);
    for (int i = 0; i < 4; i++)
        assert_int_equal(g.users[i], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_found), cmocka_unit_test(test_taken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
