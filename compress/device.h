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

// Bytes of device memory that it has now.
size_t cmp_device_bytes(const struct cmp_device *c);

// As cmp_encode and cmp_decode, with x and out (n) on the device. After a failure of decode, out is
// undefined.
NEB_MUST_CHECK enum neb_status cmp_device_encode(struct cmp_device *c, struct cmp_work *w,
                                                 const struct cmp_codec *codec, const float *x,
                                                 size_t n, struct neb_buf *out);
NEB_MUST_CHECK enum neb_status cmp_device_decode(struct cmp_device *c, struct cmp_work *w,
                                                 const uint8_t *frame, size_t len, float *out,
                                                 size_t n);

// A frame whose streams stay on the device: its elements can be read again without the host.
struct cmp_device_frame {
    struct cmp_codec codec;
    int top;          // of its head
    uint8_t *streams; // (cmp_device_frame_bytes) borrowed
    size_t n;
};
// Bytes of device memory for the streams of a frame of n elements, by its codec, and of one that
// is here. NEB_ERR_FORMAT.
size_t cmp_device_kept_bytes(const struct cmp_codec *codec, size_t n);
NEB_MUST_CHECK enum neb_status cmp_device_frame_bytes(const uint8_t *frame, size_t len, size_t n,
                                                      size_t *out);
// As cmp_device_decode, and *kept is set to the frame with its streams at `streams`, which has at
// least cmp_device_frame_bytes. frame is not needed afterwards.
NEB_MUST_CHECK enum neb_status cmp_device_keep(struct cmp_device *c, struct cmp_work *w,
                                               const uint8_t *frame, size_t len, float *out,
                                               size_t n, uint8_t *streams,
                                               struct cmp_device_frame *kept);
// Enqueues the decoding of a kept frame to out (n). The host does not wait.
void cmp_device_read(struct cmp_device *c, const struct cmp_device_frame *kept, float *out);

#endif
