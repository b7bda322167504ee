// SPDX-License-Identifier: Apache-2.0
// agent/base/quota: the processors that control groups of version 1 and 2 let a process use.
#include "agent/base/fs.h"
#include "agent/base/quota.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char root[] = "/tmp/nebula-quota-XXXXXX";

static void put(const char *path, const char *text) {
    char whole[NEB_PATH_MAX], *slash;
    snprintf(whole, sizeof whole, "%s/%s", root, path);
    slash = strrchr(whole, '/');
    *slash = 0;
    assert_int_equal(neb_fs_mkdirs(whole, 0700), NEB_OK);
    *slash = '/';
    assert_int_equal(neb_fs_write(whole, text, strlen(text), 0600), NEB_OK);
}

static void check_quota(double quota) {
    double q = neb_cpu_quota(root);
    assert_true(q > quota - 1e-9 && q < quota + 1e-9);
}

static void test_version_2(void **state) {
    (void)state;
    check_quota(0); // there are no control groups
    put("proc/self/cgroup", "0::/a/b\n");
    check_quota(0);
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    check_quota(0);
    put("sys/fs/cgroup/a/b/cpu.max", "250000 100000\n");
    check_quota(2.5);
    put("sys/fs/cgroup/a/cpu.max", "150000 100000\n"); // the outer group has less
    check_quota(1.5);
    put("proc/self/cgroup", "0::/../elsewhere\n"); // the group is in another namespace
    check_quota(0);
    put("sys/fs/cgroup/cpu.max", "400000 100000\n");
    check_quota(4);
    put("sys/fs/cgroup/cpu.max", "nonsense\n");
    check_quota(0);
}

static void test_version_1(void **state) {
    (void)state;
    put("proc/self/cgroup", "11:cpuset:/x\n4:cpu,cpuacct:/docker/1\n0::/\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us", "100000\n");
    check_quota(0);
    put("sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us", "50000\n");
    check_quota(0.5);
    put("proc/self/cgroup", "11:cpuset:/docker/1\n"); // the only line is that of another controller
    check_quota(0);
}

static int setup(void **state) {
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    return neb_fs_remove_tree(root) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_version_2),
                                       cmocka_unit_test(test_version_1)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
