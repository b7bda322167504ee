// SPDX-License-Identifier: Apache-2.0
// The exact path: arithmetic whose bits must be the same on every member of a federation, on any
// processor.
//
// It uses only + - * / and checked conversions in fp32, in a fixed order for each element: no libm,
// no fused multiply-add (the build sets -ffp-contract=off), no flush to zero. Each element is
// computed alone, so vector width does not matter. Each function sets the rounding state that it
// needs and restores the caller's. Other exact code (codecs) calls kern_exact_enter first and
// kern_exact_leave last.
//
// The bits of a NaN are not promised: inf - inf is 0xffc00000 on x86, 0x7fc00000 on ARM and
// 0x7fffffff in CUDA. Encoders refuse values that are not finite, and decoders return only finite
// values. But sums of finite values can overflow (updates of a Byzantine member, or of one whose
// training has diverged), and inf - inf follows, at the same elements on every member. So the
// digest counts every NaN as the same value: otherwise a member could look like an equivocator
// because of its processor.
#ifndef KERN_EXACT_H
#define KERN_EXACT_H
#include <stddef.h>
#include <stdint.h>

// For this thread: round to nearest even, keep denormals, trap nothing. kern_exact_leave restores
// what kern_exact_enter returned.
unsigned kern_exact_enter(void);
void kern_exact_leave(unsigned was);

// acc[i] += w * x[i]
void kern_exact_add_scaled(float *acc, const float *x, float w, size_t n);
// acc[r][c] += w[r] * x[r][c], for rows of `cols` elements
void kern_exact_add_rows(float *acc, const float *x, const float *w, size_t rows, size_t cols);
// Outer Nesterov step (DiLoCo, arXiv 2311.08105):
// v = mu*v + delta; theta = theta - eta*(delta + mu*v)
void kern_exact_outer_step(float *theta, float *v, const float *delta, float eta, float mu,
                           size_t n);

// u[i] = beta * u[i] + (theta[i] - theta_m[i]): the residual becomes what a member has to send
void kern_exact_pseudo_gradient(float *u, const float *theta, const float *theta_m, float beta,
                                size_t n);
// u[i] = u[i] - d[i]: the residual that is left after d was sent
void kern_exact_residual(float *u, const float *d, size_t n);
// theta_m[i] = theta[i] + (theta_m[i] - sent[i]): local progress since the send moves onto the new
// global value
void kern_exact_rebase(float *theta_m, const float *theta, const float *sent, size_t n);

// A 128-bit digest of (theta, v): the sum over elements of two independent 64-bit mixes of (global
// index, bits). It does not depend on how tensors are cut, or on the order in which kern_digest_add
// adds parts. Every NaN counts as KERN_DIGEST_NAN.
enum { KERN_DIGEST_NAN = 0x7fc00000 };
struct kern_digest {
    uint64_t lo, hi;
};
// theta, v: (n), the elements from first_index on
struct kern_digest kern_digest_part(const float *theta, const float *v, uint64_t first_index,
                                    size_t n);
static inline struct kern_digest kern_digest_add(struct kern_digest a, struct kern_digest b) {
    struct kern_digest sum = {a.lo + b.lo, a.hi + b.hi}; // C++ includes this file too
    return sum;
}

#endif
