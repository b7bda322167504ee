// SPDX-License-Identifier: Apache-2.0
// Copies between an attached trainer's memory and fp32 on the host, for each dtype and place.
#ifndef AGENT_LIB_COPY_H
#define AGENT_LIB_COPY_H
#include "agent/base/status.h"
#include "agent/lib/libnebula.h"

#include <stdbool.h>

struct lib_copy; // scratch memory, and the CUDA driver once it is needed
NEB_MUST_CHECK enum neb_status lib_copy_create(struct lib_copy **out);
void lib_copy_destroy(struct lib_copy **c);
// Call it when NEBULA_CUDA memory is registered: it loads the driver. NEB_ERR_UNSUPPORTED: there is
// no driver. NEB_ERR_INVALID: data is not the memory of a device. NEB_ERR_IO: the driver failed.
NEB_MUST_CHECK enum neb_status lib_copy_check(struct lib_copy *c, const void *data);
bool lib_copy_known(int dtype, int place); // NEBULA_F32 …, NEBULA_HOST … of libnebula.h
// fp32 of a dtype's value, rounded as a write rounds.
float lib_copy_rounded(float x, int dtype);

// `runs` runs of `len` elements. Elements of a run are `step` elements apart in the trainer's
// memory, and without gaps on the host. Runs are `pitch` elements apart in the trainer's memory,
// and `host_pitch` on the host.
struct lib_copy_block {
    size_t len, runs, step, pitch, host_pitch;
    int dtype, place;
};
// Copy from and to fp32 on the host. They work on any thread and with any current CUDA context,
// which they keep. Host memory that is the same on both sides is left as it is. NEB_ERR_NOMEM;
// NEB_ERR_INVALID: it is no longer the memory of a device; NEB_ERR_IO: the driver failed (the
// message contains its error).
NEB_MUST_CHECK enum neb_status lib_copy_read(struct lib_copy *c, const struct lib_copy_block *b,
                                             float *dst, const void *src);
NEB_MUST_CHECK enum neb_status lib_copy_write(struct lib_copy *c, const struct lib_copy_block *b,
                                              void *dst, const float *src);

#endif
