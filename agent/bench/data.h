// SPDX-License-Identifier: Apache-2.0
// `nebula bench data`: the cost of drawing windows of a corpus from memory and from the disk, and
// of skipping draws.
#ifndef AGENT_BENCH_DATA_H
#define AGENT_BENCH_DATA_H
#include "agent/base/status.h"

#include <stdbool.h>

// Uses a corpus of 64 Mi tokens in 256 shards, in a new folder in dir (NULL: $TMPDIR), which is
// removed at the end. Lines: windows of 1024 in memory (GB/s of what is filled, beside a memcpy by
// one thread); requesting one ahead; windows on disk, drawn at once and drawn 50 ms after a
// request; skipped draws of a mixture.
NEB_MUST_CHECK enum neb_status bench_data(bool json, const char *dir);

#endif
