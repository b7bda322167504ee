// SPDX-License-Identifier: Apache-2.0
// `nebula bench seal`: the cost of sealing files, beside the same work in clear in the same call.
#ifndef AGENT_BENCH_SEAL_H
#define AGENT_BENCH_SEAL_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_SEAL_PARAMS = 32 << 20 };

// First the sealed stream alone, in memory, beside memcpy. Then a checkpoint of `params` fp32
// values (0: BENCH_SEAL_PARAMS) in $TMPDIR (or /tmp), written with fsync and read back, in clear
// and sealed. All in GB/s.
NEB_MUST_CHECK enum neb_status bench_seal(bool json, size_t params);

#endif
