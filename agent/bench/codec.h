// SPDX-License-Identifier: Apache-2.0
// `nebula bench codec`: speed, size and error of every codec on synthetic pseudo-gradients.
#ifndef AGENT_BENCH_CODEC_H
#define AGENT_BENCH_CODEC_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_CODEC_PARAMS = 50 << 20 };

// params elements (0: BENCH_CODEC_PARAMS) in units, with one thread and with all (threads 0: as many as this process may use).
// Values are heavy-tailed: 1e-3·z·|z|, z normal, seeded. Needs 12 bytes an element. Lines of a codec, each with its limit, which
// takes turns with it in slices of a unit a thread:
//
//     feedback + quantise    θ, θ_m and e read; e and codes written, not packed    GB/s of all these bytes  of memcpy's, both ways
//     feedback + encode      the same with the entropy stage                       likewise
//     encode, decode         a frame of an array, and back                         GB/s of fp32             of memcpy's
//                            (decode of top-k: of zeroing the array)
//     decode + outer step    a frame; θ and v read and written                     GB/s of all these bytes  of memcpy's, both ways
//     read + outer step      the same without the entropy stage                    likewise
//
// Times are the threads' processor time; limit is the task's speed over the median of the ratios. Lines of top-k carry
// socket_bits_per_param, what those bytes became on an encrypted link over loopback (agent/bench/socket.h; absent where none
// can be had). All lines carry bits_per_param and rel_error = ‖x − D(C(x))‖ / ‖x‖.
// input: an update's file (a ledger's .blob; of a run with `codec: fp32` for the true pseudo-gradients), whose elements are used
// instead; NULL: synthetic. codec: this one only; NULL: a list of usual ones.
NEB_MUST_CHECK enum neb_status bench_codec(bool json, size_t params, int threads, const char *input,
                                           const char *codec);

#endif
