// The op matrix for an accelerator: every op of kernels/device.h against the reference on the host, with a bound for each
// element type, guards around every array on the device, odd sizes and unaligned operands; codecs and the exact path bit by
// bit against the CPU's. Run over the emulated device (tests/cuda/test_emulated.c) and over a real one (tests/gpu).
#ifndef TESTS_DEVICE_MATRIX_H
#define TESTS_DEVICE_MATRIX_H
#include "kernels/device.h"

#include <stdio.h>

// Returns how many cases failed, each told on stdout; *n: how many there were. large: sizes for a real device too.
// report: one line of Markdown a case (NULL: none).
int device_matrix_run(struct kern_device *D, bool large, FILE *report, int *n);
// The same for exact.h, quant.h and the codecs.
int device_exact_run(struct kern_device *D, bool large, FILE *report, int *n);

#endif
