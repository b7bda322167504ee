// SPDX-License-Identifier: Apache-2.0
// `nebula bench kernels`: each op of the CPU backend at a model's shapes (width 256, sequence 256,
// 2,048 tokens). Products stand beside the machine's sgemm peak, memory-bound ops beside memcpy,
// both measured in the same call with the same threads.
#ifndef AGENT_BENCH_KERNELS_H
#define AGENT_BENCH_KERNELS_H
#include "agent/base/status.h"

#include <stdbool.h>

// n_threads as in kern_pool_create. Takes a few seconds and about 250 MB.
NEB_MUST_CHECK enum neb_status bench_kernels(int n_threads, bool json);

#endif
