// SPDX-License-Identifier: Apache-2.0
// Host memory that is not pinned, to a device and back, through two pinned buffers that take turns: while one is copied by the host, the other
// travels at the link's speed. Given to the device as it is, such memory goes through a buffer of the driver's, and the host stands still
// meanwhile; and a GPU that reads pageable memory by itself may still do so after the call (kernels/cuda/README.md, Order).
//
//     host      | copy in 0 | copy in 1 | wait 0, copy in 0 | …            down: the same, copied out when its turn comes again
//     queue                 | 0 ------- | 1 -------         | 0 -------
//
// A device has one, for all that use it: each takes it when it is set up, so that nothing is allocated later. One thread calls at a time, as of
// the device. Not while the queue is recorded.
#ifndef KERN_DEVICE_STAGE_H
#define KERN_DEVICE_STAGE_H
#include "kernels/device.h"

enum { KERN_STAGE_BUFFERS = 2, KERN_STAGE_BYTES = 16 << 20 };

// The first allocates. NEB_ERR_NOMEM: no pinned memory; then it is not taken.
NEB_MUST_CHECK enum neb_status kern_stage_acquire(struct kern_device *D);
// The last one frees, after the queue.
void kern_stage_release(struct kern_device *D);

// Enqueued behind what is in the queue. host may be changed or freed on return.
void kern_stage_upload(struct kern_device *D, void *device, const void *host, size_t bytes);
// Enqueued likewise; host is written at any time until kern_stage_end, before which it may not be freed, whatever has failed.
void kern_stage_download(struct kern_device *D, void *host, const void *device, size_t bytes);
// All that came down is there, and the queue has run. The device's first failure, after which what came down is undefined.
NEB_MUST_CHECK enum neb_status kern_stage_end(struct kern_device *D);

#endif
