// SPDX-License-Identifier: Apache-2.0
// `nebula bench seal`: what sealing costs where it is paid, beside the same in clear in the same call.
#ifndef AGENT_BENCH_SEAL_H
#define AGENT_BENCH_SEAL_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_SEAL_PARAMS = 32 << 20 };

// A checkpoint of `params` fp32 values (0: BENCH_SEAL_PARAMS), written with fsync and read back whole, in clear and sealed, in the
// folder of temporary files: GB/s, the sealed lines beside the ones in clear. First the stream alone, in memory, beside memcpy.
NEB_MUST_CHECK enum neb_status bench_seal(bool json, size_t params);

#endif
