// SPDX-License-Identifier: Apache-2.0
// The exact path (exact.h).
#include "kernels/exact.h"
#include "agent/base/rng.h"
#include "kernels/clones.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
enum { MXCSR_DEFAULT = 0x1f80 }; // round to nearest even, all exceptions masked, denormals kept
unsigned kern_exact_enter(void) {
    unsigned was = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
    return was;
}
void kern_exact_leave(unsigned was) { _mm_setcsr(was); }
#else
unsigned kern_exact_enter(void) { return 0; }
void kern_exact_leave(unsigned was) { (void)was; }
#endif

KERN_CLONES static void add_scaled(float *restrict acc, const float *restrict x, float w,
                                   size_t n) {
    for (size_t i = 0; i < n; i++) {
        float p = w * x[i];
        acc[i] = acc[i] + p;
    }
}

void kern_exact_add_scaled(float *acc, const float *x, float w, size_t n) {
    unsigned was = kern_exact_enter();
    add_scaled(acc, x, w, n);
    kern_exact_leave(was);
}

void kern_exact_add_rows(float *acc, const float *x, const float *w, size_t rows, size_t cols) {
    unsigned was = kern_exact_enter();
    for (size_t r = 0; r < rows; r++)
        add_scaled(acc + r * cols, x + r * cols, w[r], cols);
    kern_exact_leave(was);
}

KERN_CLONES static void outer_step(float *restrict theta, float *restrict v,
                                   const float *restrict delta, float eta, float mu, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float mv = mu * v[i];
        float nv = mv + delta[i];
        float look = mu * nv;
        float step = delta[i] + look;
        float move = eta * step;
        v[i] = nv;
        theta[i] = theta[i] - move;
    }
}

void kern_exact_outer_step(float *theta, float *v, const float *delta, float eta, float mu,
                           size_t n) {
    unsigned was = kern_exact_enter();
    outer_step(theta, v, delta, eta, mu, n);
    kern_exact_leave(was);
}

KERN_CLONES static void pseudo_gradient(float *restrict u, const float *restrict theta,
                                        const float *restrict theta_m, float beta, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float d = theta[i] - theta_m[i];
        float b = beta * u[i];
        u[i] = b + d;
    }
}

void kern_exact_pseudo_gradient(float *u, const float *theta, const float *theta_m, float beta,
                                size_t n) {
    unsigned was = kern_exact_enter();
    pseudo_gradient(u, theta, theta_m, beta, n);
    kern_exact_leave(was);
}

KERN_CLONES static void residual(float *restrict u, const float *restrict d, size_t n) {
    for (size_t i = 0; i < n; i++)
        u[i] = u[i] - d[i];
}

void kern_exact_residual(float *u, const float *d, size_t n) {
    unsigned was = kern_exact_enter();
    residual(u, d, n);
    kern_exact_leave(was);
}

KERN_CLONES static void rebase(float *restrict theta_m, const float *restrict theta,
                               const float *restrict sent, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float progress = theta_m[i] - sent[i];
        theta_m[i] = theta[i] + progress;
    }
}

void kern_exact_rebase(float *theta_m, const float *theta, const float *sent, size_t n) {
    unsigned was = kern_exact_enter();
    rebase(theta_m, theta, sent, n);
    kern_exact_leave(was);
}

static inline uint32_t one_nan(uint32_t u) {
    return (u & 0x7fffffffu) > 0x7f800000u ? (uint32_t)KERN_DIGEST_NAN : u;
}

KERN_CLONES struct kern_digest kern_digest_part(const float *theta, const float *v,
                                                uint64_t first_index, size_t n) {
    uint64_t lo = 0, hi = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t a, b;
        memcpy(&a, &theta[i], sizeof a);
        memcpy(&b, &v[i], sizeof b);
        a = one_nan(a);
        b = one_nan(b);
        uint64_t bits = (uint64_t)a << 32 | b,
                 where = (first_index + i + 1) * 0x9e3779b97f4a7c15ull;
        lo += neb_mix64(bits ^ where);
        hi += neb_mix64((bits + where) * 0xd1342543de82ef95ull + 0x2545f4914f6cdd1dull);
    }
    return (struct kern_digest){lo, hi};
}
