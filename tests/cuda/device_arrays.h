// SPDX-License-Identifier: Apache-2.0
// Arrays of one case of the op matrix on host and device, and their transfers (device_matrix.c,
// device_heads.c).
#ifndef TESTS_DEVICE_ARRAYS_H
#define TESTS_DEVICE_ARRAYS_H
#include "agent/base/rng.h"
#include "tests/cuda/device_case.h"

enum { ARRAYS = 20 };

// One array on both sides. host: fp32, read and written by the reference. The device's copy has
// type t and lies between guards.
struct array {
    enum kern_type t;
    size_t n, bytes, shift; // shift: elements from the aligned address
    float *host, *got;
    unsigned char *room; // the device's memory, with guards
    bool out;
};

struct op_case;
struct run {
    struct device_case k;
    const struct op_case *op;
    struct kern *D;
    struct kern *ref;
    struct neb_rng rng;
    enum kern_type t;
    const int *d;
    struct array a[ARRAYS];
    int n;
    int shift;
    bool whole; // true if no guard was touched
};

float round_to(enum kern_type t, float x);
// Allocates n elements of type t between guards; host: zeros. out: the array is an output, and all
// of it is compared with the device's.
struct array *array(struct run *r, enum kern_type t, size_t n, bool out);
void to_device(struct run *r, struct array *a);
void *dev(const struct array *a); // NULL for NULL
// Fills with normal random numbers times `size`, rounded to t.
struct array *input(struct run *r, enum kern_type t, size_t n, float size);
// An array that the op must write completely: it starts as NaN.
struct array *written(struct run *r, enum kern_type t, size_t n);
struct array *added(struct run *r, enum kern_type t, size_t n);
// Integers on the device, aligned, as an array of fp32 bits.
struct array *ints(struct run *r, const int32_t *x, size_t n);
struct array *number(struct run *r, float x);
int32_t *ids(struct run *r, int n, int V); // host: in [0, V)
// Adds a number that the op has already compared as one more output.
void verdict(struct run *r, float got, float want);
void collect(struct run *r); // reads all arrays back from the device

// ---- device_heads.c ----
void op_distill(struct run *r);
void op_vocab_soft(struct run *r);
void op_rtd(struct run *r);
void op_sample(struct run *r);
void op_labels(struct run *r);

#endif
