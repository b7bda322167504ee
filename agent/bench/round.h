// SPDX-License-Identifier: Apache-2.0
// `nebula bench round`: a full exchange of two members in one process, and where its time goes.
#ifndef AGENT_BENCH_ROUND_H
#define AGENT_BENCH_ROUND_H
#include "kernels/exact.h"
#include "kernels/pool.h"

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_ROUND_PARAMS = 16 << 20 };

// Takes seeded synthetic parameters (params; 0: BENCH_ROUND_PARAMS; 20 bytes each) through one
// member's part of a round: encode the progress with error feedback; check the other's update as
// the gate does; unpack and check both; then, strip by strip, weighted sum, outer step, residual,
// rebase and digest.
//
// A line per stage, and one for the whole: GB/s of all bytes that the stage must read and write
// (fp32 arrays and frames, each once), beside memcpy counted alike in the same call; its
// milliseconds (processor time over threads) and its share of the round.
//
// Then the protection (agent/bench/security.h), at 1 Gbit/s in chunks for a round trip of 20 ms: a
// line per stage with its processor time and the part that the round waits for; one for all
// together ("added", beside "target"); and two by the clock: one way, each member on its own
// processors, and both ways, two members sharing these. Here a round is compute, store and
// transfer, without round trips and inner steps, which would make "added" smaller.
//
// *digest: of the new parameters; depends only on params and codec, never on threads.
NEB_MUST_CHECK enum neb_status bench_round(bool json, size_t params, int threads, const char *codec,
                                           struct kern_digest *digest);

#endif
