// SPDX-License-Identifier: Apache-2.0
// bfloat16: the upper half of an fp32.
#ifndef KERN_BF16_H
#define KERN_BF16_H
#include <stdint.h>
#include <string.h>

// Bits of the nearest bf16, ties to even; NaN stays NaN. Without branches, so that loops of it become vectors.
static inline uint32_t kern_bf16_bits(uint32_t u) {
    uint32_t nearest = u + 0x7fff + ((u >> 16) & 1);
    return ((u & 0x7fffffff) > 0x7f800000 ? u | 0x400000 : nearest) >> 16;
}
static inline uint16_t kern_bf16_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)kern_bf16_bits(u);
}
static inline float kern_bf16_round(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = kern_bf16_bits(u) << 16;
    memcpy(&x, &u, sizeof u);
    return x;
}

#endif
