// SPDX-License-Identifier: Apache-2.0
// One case of the op matrix or of the exact path: owns its memory on both sides, and ends the case
// when the device fails. A device error is permanent, so the next case opens the device again. If
// that fails (an illegal access destroys the process's context), the run ends and another process
// continues with the next case (gpu_check ops FROM).
#ifndef TESTS_DEVICE_CASE_H
#define TESTS_DEVICE_CASE_H
#include "tests/cuda/device_matrix.h"

#include <setjmp.h>

enum { CASE_HELD = 512 };
struct device_case {
    struct device_checks *all;
    struct kern *D;
    jmp_buf out;
    void *host[CASE_HELD], *room[CASE_HELD];
    int n_host, n_room;
};

// True if the next case is to run. It is counted either way.
bool device_case_due(struct device_checks *all);
// Runs the case; false when the device failed (a log line has the cause). device_case_end frees the
// memory and reopens a failed device.
bool device_case_run(struct device_case *k, struct device_checks *all, void (*run)(void *ctx),
                     void *ctx);
void device_case_end(struct device_case *k, bool well);

// These calls are for use inside `run`. They do not return when the device fails. Host memory is
// zeroed.
void *device_case_host(struct device_case *k, size_t bytes);
void *device_case_room(struct device_case *k, size_t bytes);
void device_case_wait(struct device_case *k); // until the queue is empty

#endif
