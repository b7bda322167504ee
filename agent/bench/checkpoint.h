// SPDX-License-Identifier: Apache-2.0
// `nebula bench checkpoint`: how long training stands still for one checkpoint.
#ifndef AGENT_BENCH_CHECKPOINT_H
#define AGENT_BENCH_CHECKPOINT_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_CHECKPOINT_PARAMS = 8 << 20 };

// Writes the state of `params` parameters (0: BENCH_CHECKPOINT_PARAMS), 28 bytes each as a worker
// has, to a new folder in dir (NULL: $TMPDIR), which is removed at the end. Twice: while training
// waits, and copied aside and then written by a thread (intra/ckpt/checkpoint_async.h), in turn.
//
// Lines have the median of several runs: both stalls in ms (that of the copy beside a memcpy of the
// same bytes by one thread), and the time until the copied state is on disk.
NEB_MUST_CHECK enum neb_status bench_checkpoint(bool json, size_t params, int threads,
                                                const char *dir);

#endif
