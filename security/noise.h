// SPDX-License-Identifier: Apache-2.0
// Noise for differential privacy: integers of the discrete Gaussian distribution, P(x) ∝ exp(−x² /
// 2V), drawn from a key stream.
//
// The sampler is exact. It draws and compares integers, so no floating-point rounding shows in a
// tail:
//
//     1  y ← discrete Laplace of scale t, a power of two near √V: exp(−u/t) for u below t, plus a
//        geometric number of whole t
//     2  y is kept with probability exp(−(|y| − V/t)² / 2V), which leaves exp(−y² / 2V) times a
//        constant
//
// V is a multiple of t, so the exponent is a quotient of integers. Each block of 256 integers has
// its own key stream, so any part can be made alone, again, and by any thread.
//
// Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (arXiv
// 2004.00010), algorithms 1 to 3.
#ifndef SEC_NOISE_H
#define SEC_NOISE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SEC_NOISE_SEED_BYTES = 32,
    SEC_NOISE_BLOCK = 256,
    SEC_NOISE_VARIANCE_MIN = 16, // from here on the sum of several is close to one (privacy.h)
    SEC_NOISE_VARIANCE_MAX = 1 << 26,
};

// The smallest V that the sampler supports and that is not below `least`.
uint32_t sec_noise_variance(double least);
// acc ± integers [at, at + count) of the noise of this seed, modulo 2^16. Use a seed for one vector
// only.
void sec_noise_add(const uint8_t seed[SEC_NOISE_SEED_BYTES], uint32_t variance, size_t at,
                   size_t count, bool minus, int16_t *acc);

#endif
