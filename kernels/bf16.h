// SPDX-License-Identifier: Apache-2.0
// bfloat16 (bf16): the upper 16 bits of an fp32.
#ifndef KERN_BF16_H
#define KERN_BF16_H
#include <stdint.h>
#include <string.h>

// Returns the bits of the nearest bf16. A tie goes to the even one, and a NaN stays a NaN. There
// are no branches, so that the compiler can vectorise a loop of calls.
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
