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
// Copy n elements of dtype from and to fp32 on the host. They work on any thread and with any
// current CUDA context, which they keep. NEB_ERR_NOMEM; NEB_ERR_INVALID: it is no longer the memory
// of a device; NEB_ERR_IO: the driver failed (the message contains its error).
NEB_MUST_CHECK enum neb_status lib_copy_read(struct lib_copy *c, float *dst, const void *src,
                                             size_t n, int dtype, int place);
NEB_MUST_CHECK enum neb_status lib_copy_write(struct lib_copy *c, void *dst, const float *src,
                                              size_t n, int dtype, int place);

#endif
