// `nebula bench round`: a full exchange of two members in one process, and where its time goes.
#ifndef AGENT_BENCH_ROUND_H
#define AGENT_BENCH_ROUND_H
#include "compress/exact.h"

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_ROUND_PARAMS = 16 << 20 };

// Seeded synthetic parameters (params; 0: BENCH_ROUND_PARAMS; 24 bytes each) through one member's part of a round: gradient
// with error feedback, encode, the gate's check, decode and weighted sum of two updates, outer step, residual, rebase,
// digest. A line a stage: GB/s of every byte that the stage must read and write (fp32 arrays and frames, each once),
// beside memcpy counted alike in the same call, with its milliseconds and its share of the round; a line for the whole; and one
// for what protects it (bench_security.h): ms with it beside ms without, at 1 Gbit/s, "added" is the part that it adds.
// *digest: of the new parameters; depends on params and codec only, never on threads.
NEB_MUST_CHECK enum neb_status bench_round(bool json, size_t params, int threads, const char *codec,
                                           struct kern_digest *digest);

#endif
