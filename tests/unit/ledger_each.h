// SPDX-License-Identifier: Apache-2.0
// For tests that each need an own ledger: `l` in `dir`, in `root`.
#ifndef LEDGER_EACH_H
#define LEDGER_EACH_H
#include "tests/unit/ledger_fixture.h"

static char root[] = "/tmp/nebula-ledger-XXXXXX";
static char dir[64]; // of the running test's ledger
static struct inter_ledger *l;

static int make_root(void **state) {
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    neb_log_set_sink(NULL, NULL);
    return neb_fs_remove_tree(root) == NEB_OK ? 0 : -1;
}

static int open_fresh(void **state) {
    (void)state;
    static int n;
    snprintf(dir, sizeof dir, "%s/%d", root, n++);
    return inter_ledger_open(dir, &l) != NEB_OK;
}

static int close_it(void **state) {
    (void)state;
    inter_ledger_close(&l);
    return 0;
}

static void reopen(void) {
    inter_ledger_close(&l);
    OK(inter_ledger_open(dir, &l));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_fresh, close_it)

#endif
