// SPDX-License-Identifier: Apache-2.0
// The op matrix for an accelerator: every op of kernels/device.h against the reference on the host,
// with a bound per element type, guards around every array, odd sizes and unaligned operands;
// codecs and the exact path bit by bit. It runs on the emulated device (test_emulated.c) and on a
// real one (tests/gpu).
#ifndef TESTS_DEVICE_MATRIX_H
#define TESTS_DEVICE_MATRIX_H
#include "kernels/device.h"

#include <stdbool.h>
#include <stdio.h>

struct device_checks {
    struct kern *D; // not NULL at the start; reopened after a failure, NULL when that fails
    // Opens the device again after a failure closed it. If this returns NULL, the run ends.
    enum neb_status (*reopen)(struct kern **D);
    bool large;        // with the sizes for a real device
    bool no_attention; // without its cases, which take most of an emulator's time
    bool per_card;     // only cases with other kernels on an older card: attention in bf16
    FILE *report;      // one line of Markdown per case, or NULL
    // Cases are numbered through both functions below.
    int from;  // earlier cases are skipped
    int next;  // the case after the last one that ran or was skipped
    bool gone; // the device failed and cannot be reopened: `next` has not run
};
// Returns the number of failed cases, prints each on stdout; *n: number of cases that ran.
int device_matrix_run(struct device_checks *c, int *n);
// The same for exact.h, quant.h and the codecs; *n counts comparisons. All NaNs are equal.
int device_exact_run(struct device_checks *c, int *n);

#endif
