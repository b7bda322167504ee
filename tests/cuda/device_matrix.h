// SPDX-License-Identifier: Apache-2.0
// The op matrix for an accelerator: every op of kernels/device.h against the reference on the host, with a bound for each
// element type, guards around every array on the device, odd sizes and unaligned operands; codecs and the exact path bit by
// bit against the CPU's. Run over the emulated device (tests/cuda/test_emulated.c) and over a real one (tests/gpu).
#ifndef TESTS_DEVICE_MATRIX_H
#define TESTS_DEVICE_MATRIX_H
#include "kernels/device.h"

#include <stdbool.h>
#include <stdio.h>

struct device_checks {
    struct kern_device *D; // not NULL; another one after a failure, NULL when there is none
    // Called when the device has failed, and was closed: another one, or the run ends there.
    enum neb_status (*reopen)(struct kern_device **D);
    bool large;   // sizes for a real device too
    FILE *report; // one line of Markdown a case (NULL: none)
    // Cases have numbers, through both functions below.
    int from;  // those before it are left out
    int next;  // the one behind the last that has run, or was left out
    bool gone; // the device failed, and there is no other: `next` is yet to run
};
// Returns how many cases failed, each told on stdout; *n: how many were run.
int device_matrix_run(struct device_checks *c, int *n);
// The same for exact.h, quant.h and the codecs; *n counts comparisons. A NaN is equal to every other.
int device_exact_run(struct device_checks *c, int *n);

#endif
