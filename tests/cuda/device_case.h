// SPDX-License-Identifier: Apache-2.0
// One case of the op matrix or of the exact path: what it holds of memory, on both sides, and the way out of it when the device fails. A
// device's errors stay, so the next case gets one that was opened anew. Where none can be (a kernel that touched foreign memory takes
// the process's context with it), the run ends, and another process goes on with the case behind (gpu_check ops FROM).
#ifndef TESTS_DEVICE_CASE_H
#define TESTS_DEVICE_CASE_H
#include "tests/cuda/device_matrix.h"

#include <setjmp.h>

enum { CASE_HELD = 512 };
struct device_case {
    struct device_checks *all;
    struct kern_device *D;
    jmp_buf out;
    void *host[CASE_HELD], *room[CASE_HELD];
    int n_host, n_room;
};

// Whether the next case is one to run. It is counted either way.
bool device_case_due(struct device_checks *all);
// Runs it; false when the device failed (its log line says how). Memory stays until the end, which opens the device anew then.
bool device_case_run(struct device_case *k, struct device_checks *all, void (*run)(void *ctx),
                     void *ctx);
void device_case_end(struct device_case *k, bool well);

// For `run`; they do not return when the device fails. Host memory is zeroed.
void *device_case_host(struct device_case *k, size_t bytes);
void *device_case_room(struct device_case *k, size_t bytes);
void device_case_wait(struct device_case *k); // until the queue has run

#endif
