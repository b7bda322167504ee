// SPDX-License-Identifier: Apache-2.0
// Codecs for arrays in a device's memory (kernels/device.h). The arithmetic runs there, with the
// processor's bits in both directions. Headers and the entropy stage stay on the host. Only streams
// cross the bus, mostly 4 to 64 times smaller than the array. Frames are those of codec.h.
#ifndef CMP_DEVICE_H
#define CMP_DEVICE_H
#include "compress/codec.h"
#include "kernels/device_stage.h"

struct cmp_device;
// Memory on the device grows to the largest array and stays. D is borrowed. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status cmp_device_create(struct kern *D, struct cmp_device **out);
void cmp_device_destroy(struct cmp_device **c); // *c may be NULL

// As cmp_encode and cmp_decode, with x and out (n) on the device. After a failure of decode, out is
// undefined.
NEB_MUST_CHECK enum neb_status cmp_device_encode(struct cmp_device *c, struct cmp_work *w,
                                                 const struct cmp_codec *codec, const float *x,
                                                 size_t n, struct neb_buf *out);
NEB_MUST_CHECK enum neb_status cmp_device_decode(struct cmp_device *c, struct cmp_work *w,
                                                 const uint8_t *frame, size_t len, float *out,
                                                 size_t n);

#endif
