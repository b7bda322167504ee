// SPDX-License-Identifier: Apache-2.0
// The exact path: arithmetic whose bits must be the same on every member of a federation, whatever its processor.
//
// Only + - * / and checked conversions in fp32, in a fixed order per element; no libm, no fused multiply-add (the build
// sets -ffp-contract=off), no flush to zero. Wider vectors change nothing, since every element is computed alone.
// Each function sets the rounding state it needs and restores the caller's; code that computes exactly without them
// (codecs) brackets itself with kern_exact_enter and kern_exact_leave.
//
// A NaN's bits are not promised: inf - inf is 0xffc00000 on x86, 0x7fc00000 on ARM and 0x7fffffff in CUDA. Encoders refuse what is not
// finite and decoders give nothing else, so no NaN is ever sent; but sums of finite values can pass the largest float (updates of
// a member that means harm, or whose training has diverged), and inf - inf follows. That happens at the same elements on every member. So that
// none of them is taken for an equivocator because of its processor, the digest takes every NaN for the same one.
#ifndef KERN_EXACT_H
#define KERN_EXACT_H
#include <stddef.h>
#include <stdint.h>

// Round to nearest even, keep denormals, trap nothing: for this thread, until leave(what enter gave).
unsigned kern_exact_enter(void);
void kern_exact_leave(unsigned was);

// acc[i] += w * x[i]
void kern_exact_add_scaled(float *acc, const float *x, float w, size_t n);
// Rows of `cols` elements: acc[r][c] += w[r] * x[r][c]
void kern_exact_add_rows(float *acc, const float *x, const float *w, size_t rows, size_t cols);
// Outer Nesterov step (design of DiLoCo, arXiv 2311.08105): v = mu*v + delta; theta = theta - eta*(delta + mu*v)
void kern_exact_outer_step(float *theta, float *v, const float *delta, float eta, float mu,
                           size_t n);

// u[i] = beta * u[i] + (theta[i] - theta_m[i]): what a member has to send, in place of its residual.
void kern_exact_pseudo_gradient(float *u, const float *theta, const float *theta_m, float beta,
                                size_t n);
// e[i] = u[i] - d[i], in place of u
void kern_exact_residual(float *u, const float *d, size_t n);
// theta_m[i] = theta[i] + (theta_m[i] - sent[i]): local progress since the send moves onto the new global value
void kern_exact_rebase(float *theta_m, const float *theta, const float *sent, size_t n);

// Canonical 128-bit digest of (theta, v): a sum over elements of two independent 64-bit mixes of (global index, bits), so
// that it does not depend on how tensors are cut or in which order parts are added. Parts add with kern_digest_add. Every NaN counts as
// KERN_DIGEST_NAN.
enum { KERN_DIGEST_NAN = 0x7fc00000 };
struct kern_digest {
    uint64_t lo, hi;
};
// theta, v: (n) elements first_index and on.
struct kern_digest kern_digest_part(const float *theta, const float *v, uint64_t first_index,
                                    size_t n);
static inline struct kern_digest kern_digest_add(struct kern_digest a, struct kern_digest b) {
    return (struct kern_digest){a.lo + b.lo, a.hi + b.hi};
}

#endif
