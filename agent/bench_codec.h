// `nebula bench codec`: speed, size and error of every codec on synthetic pseudo-gradients.
#ifndef AGENT_BENCH_CODEC_H
#define AGENT_BENCH_CODEC_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_CODEC_PARAMS = 50 << 20 };

// Encodes and decodes params elements (0: BENCH_CODEC_PARAMS) in units as the outer optimiser cuts them, with one thread
// and with all (threads 0: as many as this process may use). Values are heavy-tailed: 1e-3·z·|z|, z normal, seeded. Needs
// 8 bytes an element. Speeds are GB/s of fp32; limit is a memcpy of the same array with the same threads in the same call;
// lines carry bits_per_param and rel_error = ‖x − D(C(x))‖ / ‖x‖. input: an update's file (a ledger's .blob; of a run with
// `codec: fp32` for the true pseudo-gradients), whose elements are used instead; NULL: synthetic.
NEB_MUST_CHECK enum neb_status bench_codec(bool json, size_t params, int threads,
                                           const char *input);

#endif
