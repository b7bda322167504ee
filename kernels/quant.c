// SPDX-License-Identifier: Apache-2.0
// The quantisers of quant.h, and top-k selection.
#include "kernels/quant.h"
#include "agent/base/status.h"
#include "kernels/clones.h"
#include "kernels/scale.h"

#include <math.h>
#include <string.h>

// Absolute values of finite floats order like their bits. A NaN or an infinity is 0x7f800000 or
// more.
KERN_CLONES static uint32_t absmax_bits(const float *x, size_t n) {
    uint32_t max = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        u &= 0x7fffffffu;
        max = u > max ? u : max;
    }
    return max;
}

float kern_absmax(const float *x, size_t n, bool *finite) {
    uint32_t max = absmax_bits(x, n);
    *finite = max < 0x7f800000u;
    return kern_float_of(max);
}

// Lane j sums elements j, j + 16, …: the order is the same at any vector width.
enum { SQUARE_LANES = 16 };
KERN_CLONES static void add_squares(float *restrict lane, const float *restrict x, size_t n) {
    size_t i = 0;
    for (; i + SQUARE_LANES <= n; i += SQUARE_LANES)
        for (size_t j = 0; j < SQUARE_LANES; j++) {
            float p = x[i + j] * x[i + j];
            lane[j] = lane[j] + p;
        }
    for (size_t j = 0; i + j < n; j++) {
        float p = x[i + j] * x[i + j];
        lane[j] = lane[j] + p;
    }
}

float kern_rms(const float *x, size_t n) {
    float lane[SQUARE_LANES] = {0};
    add_squares(lane, x, n);
    for (size_t width = SQUARE_LANES / 2; width; width /= 2)
        for (size_t j = 0; j < width; j++)
            lane[j] = lane[j] + lane[j + width];
    return lane[0] > 1e-30f && lane[0] < 1e30f ? sqrtf(lane[0] / (float)n) : 0;
}

static int exponent_of(float positive) { return (int)(kern_bits_of(positive) >> 23) - 127; }

int kern_scale_top(float max, int qmax) {
    float want = max / (float)qmax;
    int top = exponent_of(want) + 1; // leaves room for rounding up to the next octave
    return top < -90 ? -90 : top > 120 ? 120 : top;
}

float kern_scale_value(uint8_t code, int top) {
    if (code == 0)
        return 0;
    int e = top - 31 + (code >> 3);
    return kern_float_of((uint32_t)(e + 127) << 23) * kern_grid[code & 7];
}

uint8_t kern_scale_code(float want, int top) {
    if (!(want > 0))
        return 0;
    int e = exponent_of(want), slot = e - (top - 31);
    if (slot < 0)
        return 0; // below 2^-31 of the frame's largest: the residual keeps it
    int code = slot * 8 + (int)kern_grid_above(want);
    return (uint8_t)(code < 1 ? 1 : code > 255 ? 255 : code);
}

KERN_CLONES void kern_dequantise(float *restrict out, const int8_t *restrict codes, float scale,
                                 size_t n) {
    for (size_t i = 0; i < n; i++)
        out[i] = (float)codes[i] * scale;
}

KERN_CLONES void kern_bf16_split(uint8_t *restrict high, uint8_t *restrict low,
                                 const float *restrict x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        u += 0x7fffu + (u >> 16 & 1);
        u -= (u & 0x7f800000u) == 0x7f800000u
                 ? 0x10000u
                 : 0; // rounded up to infinity: take the largest finite value
        high[i] = (uint8_t)(u >> 24);
        low[i] = (uint8_t)(u >> 16);
    }
}

KERN_CLONES void kern_bf16_join(float *restrict out, const uint8_t *restrict high,
                                const uint8_t *restrict low, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)high[i] << 24 | (uint32_t)low[i] << 16;
        memcpy(&out[i], &u, sizeof u);
    }
}

// ---- top-k

enum {
    RADIX_BITS = 8,
    RADIX = 1 << RADIX_BITS,
    LANES_PER_ENTRY = 4,
    FLOOR_SHIFT = 18, // bins of 1/32 octave
    STRIP = 16,
};

// Finds the k smallest of distances d (n) in [0, range]: all below *limit, and the first `returned`
// of those that equal *limit. A radix descent, which stops when it takes all of a bin.
static size_t nearest(const uint32_t *d, size_t n, size_t k, uint32_t range, uint32_t *limit) {
    uint32_t count[RADIX], prefix = 0;
    int bits = range ? 32 - __builtin_clz(range) : 1, width = bits < RADIX_BITS ? bits : RADIX_BITS,
        shift = bits - width;
    for (size_t need = k;;) {
        memset(count, 0, sizeof count);
        for (size_t i = 0; i < n; i++)
            if ((uint64_t)d[i] >> (shift + width) == prefix)
                count[d[i] >> shift & ((1u << width) - 1)]++;
        uint32_t b = 0;
        while (count[b] < need)
            need -= count[b++];
        prefix = prefix << width | b;
        if (count[b] == need) {
            *limit = (prefix + 1) << shift;
            return 0;
        }
        if (shift == 0) {
            *limit = prefix;
            return need;
        }
        width = shift < RADIX_BITS ? shift : RADIX_BITS;
        shift -= width;
    }
}

// max[j] = largest of |x[j]|, |x[j + lanes]|, |x[j + 2 lanes]|, …
KERN_CLONES static void lane_maxima(uint32_t *restrict max, const float *restrict x, size_t n,
                                    size_t lanes) {
    memset(max, 0, lanes * sizeof *max);
    for (size_t at = 0; at < n; at += lanes) {
        size_t len = n - at < lanes ? n - at : lanes;
        for (size_t j = 0; j < len; j++) {
            uint32_t u;
            memcpy(&u, &x[at + j], sizeof u);
            u &= 0x7fffffffu;
            max[j] = u > max[j] ? u : max[j];
        }
    }
}

// Returns a value that at least k of the n lane maxima reach. It lies close below the k-th largest.
static uint32_t floor_of(const uint32_t *maxima, size_t n, size_t k, uint32_t largest) {
    uint32_t count[RADIX], b = 0;
    memset(count, 0, sizeof count);
    for (size_t i = 0; i < n; i++) {
        uint32_t bin = (largest - maxima[i]) >> FLOOR_SHIFT;
        count[bin < RADIX ? bin : RADIX - 1]++;
    }
    for (size_t seen = count[0]; seen < k; seen += count[b])
        b++;
    uint32_t below = (b + 1) << FLOOR_SHIFT;
    return b == RADIX - 1 || below > largest ? 0 : largest - below + 1;
}

// Writes distance from `largest` and index of each element at or above floor. Returns how many
// there are.
KERN_CLONES static size_t candidates(uint32_t *restrict d, uint32_t *restrict at,
                                     const float *restrict x, size_t n, uint32_t floor,
                                     uint32_t largest) {
    size_t found = 0, i = 0;
    for (; i + STRIP <= n; i += STRIP) {
        uint32_t u[STRIP], any = 0;
        memcpy(u, x + i, sizeof u);
        for (size_t j = 0; j < STRIP; j++) {
            u[j] &= 0x7fffffffu;
            any |= u[j] >= floor;
        }
        // no branch: written always, kept if large enough
        for (size_t j = 0; any && j < STRIP; j++) {
            d[found] = largest - u[j];
            at[found] = (uint32_t)(i + j);
            found += u[j] >= floor;
        }
    }
    for (; i < n; i++) {
        uint32_t u = kern_bits_of(x[i]) & 0x7fffffffu;
        d[found] = largest - u;
        at[found] = (uint32_t)i;
        found += u >= floor;
    }
    return found;
}

// At least k lanes have a maximum at or above the floor. So at least k elements reach it, and only
// these can be chosen. In unordered data hardly more than k reach it.
void kern_topk(uint16_t *idx, const float *x, size_t n, size_t k, uint32_t *scratch) {
    uint32_t *d = scratch, *at = scratch + n, floor = 0, largest = absmax_bits(x, n), limit;
    size_t lanes = k * LANES_PER_ENTRY, out = 0;
    NEB_ASSERT(n <= 65536 && k <= n);
    if (k == 0)
        return;
    if (lanes <= n / 2) {
        lane_maxima(scratch, x, n, lanes);
        floor = floor_of(scratch, lanes, k, largest);
    }
    size_t found = candidates(d, at, x, n, floor, largest),
           ties = nearest(d, found, k, largest - floor, &limit);
    for (size_t c = 0; c < found && out < k; c++) {
        if (d[c] < limit)
            idx[out++] = (uint16_t)at[c];
        else if (d[c] == limit && ties)
            idx[out++] = (uint16_t)at[c], ties--;
    }
    NEB_ASSERT(out == k);
}
