// SPDX-License-Identifier: Apache-2.0
// Codecs whose arrays are in a device's memory (kernels/device.h): the arithmetic runs there, bit-equal to the processor's in
// both directions; headers and the entropy stage stay on the host. What crosses the bus is streams, 4 to 64 times smaller
// than the array. Frames are those of codec.h, whoever made them.
#ifndef CMP_DEVICE_H
#define CMP_DEVICE_H
#include "compress/codec.h"
#include "kernels/device_stage.h"

struct cmp_device;
// Room on the device grows to the largest array and stays. D is borrowed.
NEB_MUST_CHECK enum neb_status cmp_device_create(struct kern_device *D, struct cmp_device **out);
void cmp_device_destroy(struct cmp_device **c); // NULL-safe

// As cmp_encode and cmp_decode, with x and out (n) on the device. A decode that fails leaves out undefined.
NEB_MUST_CHECK enum neb_status cmp_device_encode(struct cmp_device *c, struct cmp_work *w,
                                                 const struct cmp_codec *codec, const float *x,
                                                 size_t n, struct neb_buf *out);
NEB_MUST_CHECK enum neb_status cmp_device_decode(struct cmp_device *c, struct cmp_work *w,
                                                 const uint8_t *frame, size_t len, float *out,
                                                 size_t n);

#endif
