// SPDX-License-Identifier: Apache-2.0
// Linked into every target. Drops the log lines about refused bytes, which would be gigabytes an
// hour.
#include "agent/base/log.h"
#include "tests/testing.h"

__attribute__((constructor)) static void be_quiet(void) { neb_log_set_sink(testing_drop, NULL); }
