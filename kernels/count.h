// SPDX-License-Identifier: Apache-2.0
// A device that computes nothing and counts: memory that is asked for, and FLOPs of products and
// attention. It needs no GPU. `nebula plan` runs the real set-up and micro-batch of a model on it
// (intra/cost/count.c). Its memory has no content; pinned memory is memory of the host.
#ifndef KERN_COUNT_H
#define KERN_COUNT_H
#include "kernels/kern.h"

struct kern_counts {
    double flops;
    size_t bytes, peak; // of device memory, without what products need (KERN_WORKSPACE_BYTES)
};
// Device memory that the library of products takes at its first call (cuda/gemm.c).
enum { KERN_WORKSPACE_BYTES = 32 << 20 };

// total_bytes: the memory of the device that it stands for; it gives out more, if asked.
NEB_MUST_CHECK enum neb_status kern_counting_create(size_t total_bytes, struct kern **out);
struct kern_counts *kern_counts(const struct kern *K); // of a counting device

// FLOPs of attention over all sequences, forward; backward takes KERN_ATTN_BACKWARD times that. A
// block of keys that the causal mask cuts counts in full, because it is computed in full.
double kern_attn_flops(const struct kern_attn *s);
// Backward computes the scores again, and the gradients of q, k, v and scores.
#define KERN_ATTN_BACKWARD 2.5

#endif
