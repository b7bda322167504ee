// SPDX-License-Identifier: Apache-2.0
// Copies between host memory of an attached trainer and fp32, for each dtype. device.h's kernels do
// the same for memory of a device, with the same bits.
#ifndef AGENT_LIB_COPY_H
#define AGENT_LIB_COPY_H
#include "agent/lib/libnebula.h"

#include <stdbool.h>
#include <stddef.h>

bool lib_copy_known(int dtype, int place); // NEBULA_F32 …, NEBULA_HOST … of libnebula.h
// fp32 of a dtype's value, rounded as a write rounds.
float lib_copy_rounded(float x, int dtype);

// `runs` runs of `len` elements. Elements of a run are `step` elements apart in the trainer's
// memory, and without gaps in fp32. Runs are `pitch` elements apart in the trainer's memory, and
// `host_pitch` in fp32.
struct lib_copy_block {
    size_t len, runs, step, pitch, host_pitch;
    int dtype;
};
// Copy from and to fp32. Memory that is the same on both sides is left as it is.
void lib_copy_read(const struct lib_copy_block *b, float *dst, const void *src);
void lib_copy_write(const struct lib_copy_block *b, void *dst, const float *src);

#endif
