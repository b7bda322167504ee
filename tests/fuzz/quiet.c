// SPDX-License-Identifier: Apache-2.0
// Part of every target: what a parser says of the bytes that it refuses is dropped. An hour of it would be gigabytes.
#include "agent/base/log.h"
#include "tests/testing.h"

__attribute__((constructor)) static void be_quiet(void) { neb_log_set_sink(testing_drop, NULL); }
