// SPDX-License-Identifier: Apache-2.0
// `nebula bench data`: what drawing windows of a corpus costs, in memory and from the disk, and what passing draws over costs.
#ifndef AGENT_BENCH_DATA_H
#define AGENT_BENCH_DATA_H
#include "agent/base/status.h"

#include <stdbool.h>

// A corpus of 64 Mi tokens in 256 shards, in a new folder in dir (NULL: $TMPDIR), which goes with the call. Lines: windows of 1024 that are
// in memory, in GB/s of what is filled, beside a memcpy of as much by one thread; to ask for one ahead; windows that are on the disk,
// drawn at once and drawn 50 ms after they were asked for; draws of a mixture that are passed over.
NEB_MUST_CHECK enum neb_status bench_data(bool json, const char *dir);

#endif
