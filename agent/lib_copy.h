// Between a foreign trainer's memory and fp32 on the host: dtype and place of a registered range.
#ifndef AGENT_LIB_COPY_H
#define AGENT_LIB_COPY_H
#include "agent/base/status.h"
#include "agent/libnebula.h"

#include <stdbool.h>

struct lib_copy; // scratch, and the CUDA driver once it is needed
NEB_MUST_CHECK enum neb_status lib_copy_create(struct lib_copy **out);
void lib_copy_destroy(struct lib_copy **c);
// The driver library is loaded here, so that a machine without one says so at registration. NEB_ERR_UNSUPPORTED.
NEB_MUST_CHECK enum neb_status lib_copy_need_cuda(struct lib_copy *c);
bool lib_copy_known(int dtype, int place); // NEBULA_F32 …, NEBULA_HOST … of libnebula.h
// n elements of dtype at a foreign place, from and to fp32 on the host. NEB_ERR_NOMEM; NEB_ERR_IO: the driver refused (its code
// is in the message).
NEB_MUST_CHECK enum neb_status lib_copy_read(struct lib_copy *c, float *dst, const void *src,
                                             size_t n, int dtype, int place);
NEB_MUST_CHECK enum neb_status lib_copy_write(struct lib_copy *c, void *dst, const float *src,
                                              size_t n, int dtype, int place);

#endif
