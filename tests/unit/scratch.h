// SPDX-License-Identifier: Apache-2.0
// A folder for the files of one test program, and the last error in its log.
#ifndef SCRATCH_H
#define SCRATCH_H
#include "agent/base/fs.h"
#include "agent/base/log.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static char dir[96];       // absolute; exists from scratch_make to scratch_remove
static char message[2048]; // the last error that scratch_keep has seen

// A sink for neb_log_set_sink.
static inline void scratch_keep(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    if (level == NEB_LOG_ERROR)
        snprintf(message, sizeof message, "%s", text);
}

// For cmocka_run_group_tests. A set-up and a tear-down that do more may call them too.
static inline int scratch_make(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/nebula-%.40s-XXXXXX", program_invocation_short_name);
    return mkdtemp(dir) ? 0 : -1;
}

static inline int scratch_remove(void **state) {
    (void)state;
    neb_log_set_sink(NULL, NULL);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

#endif
