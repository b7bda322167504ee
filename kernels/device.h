// SPDX-License-Identifier: Apache-2.0
// Accelerators. The CUDA implementation of the op table (kern.h) is a separate object
// (libnebula_cuda.so, sources in kernels/cuda). kern_device_open loads it when a job asks for it,
// so that one build serves machines with and without a GPU.
#ifndef KERN_DEVICE_H
#define KERN_DEVICE_H
#include "agent/base/log.h"
#include "kernels/exact.h"
#include "kernels/kern.h"

// Gives the number of this process among those of its job on this machine: LOCAL_RANK, else the
// variable of Open MPI or Slurm; 0 if none is set. With of_several (one rank of several) LOCAL_RANK
// comes last, since whatever started the launcher may have set it for all ranks. NEB_ERR_INVALID:
// not a number.
NEB_MUST_CHECK enum neb_status kern_device_index(bool of_several, int *out);
// Opens device `index` modulo the number of devices that this process sees. The reason of a failure
// goes to `why`; if that is NULL, it goes to the log, with a hint. NEB_ERR_UNSUPPORTED: no object,
// driver or device, or the device is too old. NEB_ERR_IO: a device is there and cannot be opened.
// NEB_ERR_NOMEM: the device or the host has too little memory left.
NEB_MUST_CHECK enum neb_status kern_device_open(int index, char why[KERN_WHY_MAX],
                                                struct kern **out);
// True if there is an object and, for CUDA, a driver, so that opening a device may succeed. Opens
// none.
bool kern_device_likely(void);

// Finds the device that has the memory p of another part of this process, without opening it. was:
// the calling thread's current device. NEB_ERR_INVALID: p is not the memory of a device;
// NEB_ERR_UNSUPPORTED: no object or driver. why has the reason.
NEB_MUST_CHECK enum neb_status kern_device_find(const void *p, int *index, int *was,
                                                char why[KERN_WHY_MAX]);

// What the object calls in the program that loads it: its kern_cuda_meet gets them first.
struct kern_device_host {
    enum neb_status (*fail)(enum neb_status s, const char *fmt, ...)
        __attribute__((format(printf, 2, 3)));
    void (*log)(enum neb_log_level level, const char *fmt, ...)
        __attribute__((format(printf, 2, 3)));
    void (*assert_failed)(const char *cond, const char *file, int line, const char *func);
};
typedef void kern_device_meet(const struct kern_device_host *h);
// The type of the object's kern_cuda_find. False: not the memory of a device.
typedef bool kern_device_finder(const void *p, int *index, int *current);
// The type of the object's kern_cuda_open. NEB_ERR_NOT_FOUND: the driver lists no device or does
// not answer. text receives the reason of a failure.
enum { KERN_DEVICE_VERSION = 13 };
typedef enum neb_status kern_device_opener(int version, int index, struct kern **out, char *text,
                                           size_t text_cap);

#endif
