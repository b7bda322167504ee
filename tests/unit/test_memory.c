// SPDX-License-Identifier: Apache-2.0
// Large arrays: aligned, zero where asked for, and on huge pages where the kernel offers them.
#include "agent/base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_sizes(void **state) {
    (void)state;
    const size_t sizes[] = {0, 1, 63, 64, 65, 1000, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, 9999999};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *p = neb_large_zeroed(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(p[k], 0);
        memset(p, 1, sizes[i]);
        free(p);
    }
    assert_null(neb_large_alloc(SIZE_MAX)); // must not overflow when it is rounded up
    assert_null(neb_large_zeroed(SIZE_MAX - (1 << 20)));
}

// 1 if huge pages were asked for in the mapping that holds p (flag hg of /proc/self/smaps), else 0;
// -1 if the kernel does not show it.
static int asked(const void *p) {
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[4096];
    unsigned long from, to, at = (unsigned long)(uintptr_t)p;
    int here = 0, found = -1;
    if (!f)
        return -1;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = at >= from && at < to;
        else if (here && !strncmp(line, "VmFlags:", 8))
            found = strstr(line, " hg") != NULL;
    }
    fclose(f);
    return found;
}

static void test_huge_pages(void **state) {
    (void)state;
    char *p = neb_large_zeroed(64 << 20);
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    assert_non_null(p);
    if (f)
        fclose(f);
    int is = asked(p + (32 << 20));
    free(p);
    if (!f || is < 0)
        skip(); // the kernel has no huge pages or shows no VmFlags
    assert_int_equal(is, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_huge_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
