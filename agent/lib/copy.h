// SPDX-License-Identifier: Apache-2.0
// Between a foreign trainer's memory and fp32 on the host: dtype and place of a registered range.
#ifndef AGENT_LIB_COPY_H
#define AGENT_LIB_COPY_H
#include "agent/base/status.h"
#include "agent/lib/libnebula.h"

#include <stdbool.h>

struct lib_copy; // scratch, and the CUDA driver once it is needed
NEB_MUST_CHECK enum neb_status lib_copy_create(struct lib_copy **out);
void lib_copy_destroy(struct lib_copy **c);
// Of NEBULA_CUDA, when it is registered: the driver library is loaded. NEB_ERR_UNSUPPORTED: there is none. NEB_ERR_INVALID: data is no memory of
// a device. NEB_ERR_IO: the driver refused.
NEB_MUST_CHECK enum neb_status lib_copy_check(struct lib_copy *c, const void *data);
bool lib_copy_known(int dtype, int place); // NEBULA_F32 …, NEBULA_HOST … of libnebula.h
// n elements of dtype at a foreign place, from and to fp32 on the host, on whatever thread and with whatever CUDA context current, which stays.
// NEB_ERR_NOMEM; NEB_ERR_INVALID: it is no device's memory any more; NEB_ERR_IO: the driver refused (its word is in the message).
NEB_MUST_CHECK enum neb_status lib_copy_read(struct lib_copy *c, float *dst, const void *src,
                                             size_t n, int dtype, int place);
NEB_MUST_CHECK enum neb_status lib_copy_write(struct lib_copy *c, void *dst, const float *src,
                                              size_t n, int dtype, int place);

#endif
