// SPDX-License-Identifier: Apache-2.0
// `nebula bench round`: a full exchange of two members in one process, and where its time goes.
#ifndef AGENT_BENCH_ROUND_H
#define AGENT_BENCH_ROUND_H
#include "kernels/exact.h"
#include "kernels/pool.h"

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_ROUND_PARAMS = 16 << 20 };

// Seeded synthetic parameters (params; 0: BENCH_ROUND_PARAMS; 20 bytes each) through one member's part of a round: what was
// learned encoded with error feedback; the other's update through the gate's check; both unpacked and checked; then, strip by strip, their
// weighted sum, outer step, residual, rebase and digest. A line a stage: GB/s of every byte that the stage must read and write (fp32 arrays and frames, each once),
// beside memcpy counted alike in the same call, with its milliseconds (processor time over threads) and its share of the round; a line for the whole.
//
// Then what protects it (bench_security.h), at 1 Gbit/s in chunks as for a round trip of 20 ms: a line a stage with its processor time
// and what of it the round waits for, one for all together ("added", beside "target"), and two by the clock: one way, where each member has
// its own processors, and both ways, where two members share these. A round is compute, store and transfer: no round trips and no inner
// steps, which would make "added" smaller.
// *digest: of the new parameters; depends on params and codec only, never on threads.
NEB_MUST_CHECK enum neb_status bench_round(bool json, size_t params, int threads, const char *codec,
                                           struct kern_digest *digest);

#endif
