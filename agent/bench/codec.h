// SPDX-License-Identifier: Apache-2.0
// `nebula bench codec`: speed, size and error of each codec on synthetic pseudo-gradients.
#ifndef AGENT_BENCH_CODEC_H
#define AGENT_BENCH_CODEC_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_CODEC_PARAMS = 50 << 20 };

// Measures `params` elements (0: BENCH_CODEC_PARAMS) in units, with one thread and with all
// (threads 0: as many as this process may use). Values are heavy-tailed: 1e-3·z·|z|, z normal,
// seeded. Needs 12 bytes per element. Lines of a codec; each takes turns with its limit in slices
// of one unit per thread:
//
//     feedback + quantise   θ, θ_m and e read; e and codes written, not packed
//     feedback + encode     the same with the entropy stage
//     decode + outer step   a frame read; θ and v read and written
//     read + outer step     the same without the entropy stage
//         (these four: GB/s of all these bytes, beside memcpy counted both ways; not fp32, bf16)
//     encode, decode        a frame of an array, and back
//         (GB/s of fp32, beside memcpy; decode of top-k: beside zeroing the array)
//
// Times are processor time of the threads; limit is the speed of the task over the median of the
// ratios. All lines have bits_per_param and rel_error = ‖x − D(C(x))‖ / ‖x‖. Lines of top-k have
// socket_bits_per_param: the same bytes on an encrypted link over loopback (agent/bench/socket.h;
// absent if there is no link).
//
// input: the file of an update, whose elements are used (a ledger's .blob; from a run with `codec:
// fp32` it holds the true pseudo-gradients); NULL: synthetic. codec: only this one; NULL: a list of
// usual ones.
NEB_MUST_CHECK enum neb_status bench_codec(bool json, size_t params, int threads, const char *input,
                                           const char *codec);

#endif
