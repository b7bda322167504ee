// SPDX-License-Identifier: Apache-2.0
// `nebula bench checkpoint`: how long training stands still for one checkpoint.
#ifndef AGENT_BENCH_CHECKPOINT_H
#define AGENT_BENCH_CHECKPOINT_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_CHECKPOINT_PARAMS = 8 << 20 };

// The state of `params` parameters (0: BENCH_CHECKPOINT_PARAMS), 28 bytes each as a worker's, to a new folder in dir (NULL:
// $TMPDIR), which goes with the call: written while training waits, then copied aside and written by the thread (intra/ckpt/checkpoint_async.h),
// the median of several in turn. Lines: both stalls in ms, the copy's beside that of a memcpy of as many bytes by one thread; and the
// time until the copied one is on disk.
NEB_MUST_CHECK enum neb_status bench_checkpoint(bool json, size_t params, int threads,
                                                const char *dir);

#endif
