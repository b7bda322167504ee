// SPDX-License-Identifier: Apache-2.0
// Transfers between a device and host memory that is not pinned, through two pinned buffers that
// take turns: while the host copies one, the other is in flight at the link's speed. The driver
// would copy such memory through a buffer of its own while the host waits. And a GPU that reads
// pageable memory itself may still do so after the call (kernels/cuda/README.md, Order).
//
//     host      | copy in 0 | copy in 1 | wait 0, copy in 0 | …
//     queue                 | 0 ------- | 1 -------         | 0 …
//
// A copy to the host works likewise: its data is copied out at the buffer's next turn.
//
// A device has one stage for all users. Each user takes it at set-up, so that nothing is allocated
// later. One thread calls at a time. Do not call this while the queue is recorded.
#ifndef KERN_DEVICE_STAGE_H
#define KERN_DEVICE_STAGE_H
#include "kernels/device.h"

enum { KERN_STAGE_BUFFERS = 2, KERN_STAGE_BYTES = 16 << 20 };

// The first user allocates. NEB_ERR_NOMEM: no pinned memory; the stage is not taken.
NEB_MUST_CHECK enum neb_status kern_stage_acquire(struct kern *D);
// The last user waits for the queue and frees.
void kern_stage_release(struct kern *D);

// Enqueues a copy to the device. The caller may change or free host when this returns.
void kern_stage_upload(struct kern *D, void *device, const void *host, size_t bytes);
// Enqueues a copy to the host. host is written at any time until kern_stage_end returns. The caller
// must not free it before that, even after a failure.
void kern_stage_download(struct kern *D, void *host, const void *device, size_t bytes);
// Waits until the queue has run and all copies to the host are complete. Returns the device's first
// failure; after a failure the copies are undefined.
NEB_MUST_CHECK enum neb_status kern_stage_end(struct kern *D);

#endif
