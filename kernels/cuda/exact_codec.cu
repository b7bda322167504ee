// SPDX-License-Identifier: Apache-2.0
// The codecs' arithmetic on the device (kernels/quant.h, compress/codec.h), with the CPU's bits in
// both directions. Built with the options of exact.cu. The host does the layout of streams, the
// entropy stage and headers (compress/device.c).
//
//   encode_fast   blocks of 128, eight lanes each: a lane computes the scale and its reciprocal
//                 once for sixteen elements
//   encode_any    any block, one warp per block
//   decode_fast   blocks of a power of two, four elements per thread
//   decode_any    any block, one element per thread
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
    GRID_MOST = 1 << 16,
    FAST_BLOCK = 128,
    LANES = 8, // lanes of a fast block
    FAST_BLOCKS = THREADS / LANES,
    TURNS = FAST_BLOCK / LANES / 4 // a lane takes four elements per turn
};

#define EACH(i, n)                                                                                 \
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < (n);                           \
         i += (size_t)gridDim.x * THREADS)

// ---- scales

// The eight steps of an octave, as in kernels/scale.h.
__constant__ float grid_steps[8] = {0x1.000000p+0f, 0x1.172b84p+0f, 0x1.306fe0p+0f, 0x1.4bfdaep+0f,
                                    0x1.6a09e6p+0f, 0x1.8ace54p+0f, 0x1.ae89fap+0f, 0x1.d5818ep+0f};

__device__ static inline float scale_value(uint32_t code, int top) {
    if (code == 0)
        return 0;
    int e = top - 31 + (int)(code >> 3);
    return __uint_as_float((uint32_t)(e + 127) << 23) * grid_steps[code & 7];
}
__device__ static inline uint32_t scale_code(float want, int top) {
    if (!(want > 0))
        return 0;
    uint32_t bits = __float_as_uint(want);
    int slot = (int)(bits >> 23) - 127 - (top - 31);
    if (slot < 0)
        return 0;
    float mantissa = __uint_as_float((bits & 0x7fffffu) | 127u << 23);
    int j = 0; // how many steps lie below the mantissa; the steps ascend
#pragma unroll
    for (int i = 0; i < 8; i++)
        j += grid_steps[i] < mantissa;
    int code = slot * 8 + j;
    return (uint32_t)(code < 1 ? 1 : code > 255 ? 255 : code);
}
// The low bits of the result hold the code in two's complement, plus 8 if FOUR. The last mantissa
// bit of the sum is worth one, so the sum rounds to nearest even; 1.5 * 2^23 keeps the exponent for
// either sign. A block without a scale has inverse 0.
template <bool FOUR>
__device__ static inline uint32_t quantise(float x, float inverse, float limit) {
    return __float_as_uint(fmaxf(fminf(x * inverse, limit), -limit) +
                           (FOUR ? 12582920.0f : 12582912.0f));
}

// ---- magnitudes

__device__ static inline uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

template <int V> __global__ void absmax(uint32_t *bits, const float *x, size_t n) {
    uint32_t max = 0;
    EACH(i, n / V) {
        float v[V];
        load<float, V>(v, x + i * V);
#pragma unroll
        for (int k = 0; k < V; k++) {
            uint32_t u = magnitude(v[k]);
            max = u > max ? u : max;
        }
    }
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < n % V) { // what vectors do not reach
        uint32_t u = magnitude(x[n / V * V + threadIdx.x]);
        max = u > max ? u : max;
    }
    max = __reduce_max_sync(ALL_LANES, max);
    if (threadIdx.x % WARP == 0)
        atomicMax(bits, max);
}

cudaError_t kern_cu_absmax(uint32_t *bits, const float *x, size_t n, cudaStream_t s) {
    cudaError_t e = cudaMemsetAsync(bits, 0, sizeof *bits, s);
    if (e != cudaSuccess || n == 0)
        return e;
    unsigned grid = blocks_for(n, THREADS * 16, 1 << 12);
    if (aligned_to(x, 16))
        KERN_LAUNCH(absmax<4>, grid, THREADS, 0, s, bits, x, n);
    else
        KERN_LAUNCH(absmax<1>, grid, THREADS, 0, s, bits, x, n);
    return cudaGetLastError();
}

// ---- blocks

// Root mean square as kern_rms: sixteen lanes, lane j takes j, j + 16, …; then halves are added.
__device__ static float warp_rms(const float *x, uint32_t n) {
    uint32_t lane = threadIdx.x % WARP;
    float sum = 0;
    for (uint32_t i = lane; lane < 16 && i < n; i += 16) {
        float p = x[i] * x[i];
        sum = sum + p;
    }
#pragma unroll
    for (int by = 8; by; by /= 2)
        sum = sum + __shfl_xor_sync(ALL_LANES, sum, by);
    sum = __shfl_sync(ALL_LANES, sum, 0);
    return sum > 1e-30f && sum < 1e30f ? sqrtf(sum / (float)n) : 0.0f;
}

__device__ static inline float step_of(float max, float rms, int levels) {
    return rms > 0 && rms < max ? rms : max / (levels == 6 ? 5.5f : (float)levels);
}

struct block_args {
    size_t n, blocks;
    uint32_t block;
    int levels, top;
};

// The maximum over the lanes of a fast block, in each of these lanes.
__device__ static inline uint32_t lanes_max(uint32_t x) {
#pragma unroll
    for (int by = 1; by < LANES; by *= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, x, by);
        x = other > x ? other : x;
    }
    return x;
}

// kern_rms of a fast block: the same sixteen sums in the same order. In turn t, lane l has elements
// 32 t + 4 l + i. Each belongs to sum 4 (l % 4) + i. That sum adds it after the element of lane
// l - 4, or before the element of lane l + 4.
__device__ static inline float lanes_rms(const float (&v)[TURNS][4]) {
    bool second = threadIdx.x & 4;
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int t = 0; t < TURNS; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float mine = v[t][i] * v[t][i], other = __shfl_xor_sync(ALL_LANES, mine, 4);
            sum[i] = sum[i] + (second ? other : mine);
            sum[i] = sum[i] + (second ? mine : other);
        }
#pragma unroll
    for (int i = 0; i < 4; i++) { // sums that are 8 apart, then 4 apart
        sum[i] = sum[i] + __shfl_xor_sync(ALL_LANES, sum[i], 2);
        sum[i] = sum[i] + __shfl_xor_sync(ALL_LANES, sum[i], 1);
    }
    float all = (sum[0] + sum[2]) + (sum[1] + sum[3]);
    return all > 1e-30f && all < 1e30f ? sqrtf(all / (float)FAST_BLOCK) : 0.0f;
}

// Blocks of FAST_BLOCK, with x aligned to 16 bytes: a lane reads its sixteen elements once. TWO:
// codes of two bits, scaled by the root mean square.
template <bool FOUR, bool TWO>
__global__ void encode_fast(uint8_t *scales, uint8_t *codes, const float *x, struct block_args a) {
    uint32_t lane = threadIdx.x % LANES;
    float limit = (float)a.levels;
    for (size_t first = (size_t)blockIdx.x * FAST_BLOCKS; first < a.blocks;
         first += (size_t)gridDim.x * FAST_BLOCKS) { // shuffles need whole warps
        size_t b = first + threadIdx.x / LANES, at = b * FAST_BLOCK + lane * 4;
        bool there = b < a.blocks;
        float v[TURNS][4];
        uint32_t max = 0;
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            if (there)
                load<float, 4>(v[t], x + at + t * LANES * 4);
            else
                v[t][0] = v[t][1] = v[t][2] = v[t][3] = 0;
        }
#pragma unroll
        for (int t = 0; t < TURNS; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t u = magnitude(v[t][i]);
                max = u > max ? u : max;
            }
        float largest = __uint_as_float(lanes_max(max)), rms = TWO ? lanes_rms(v) : 0.0f;
        uint32_t code = scale_code(step_of(largest, rms, a.levels), a.top);
        float scale = scale_value(code, a.top), inverse = scale == 0 ? 0.0f : 1.0f / scale;
        if (!there)
            continue; // after the shuffles of this turn
        if (lane == 0)
            scales[b] = (uint8_t)code;
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            uint32_t q[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[i] = quantise<FOUR>(v[t][i], inverse, limit);
            if (FOUR) {
                // the lower half of q[i] holds the code and nothing else
                *reinterpret_cast<uint16_t *>(codes + (at + t * LANES * 4) / 2) =
                    (uint16_t)(q[0] + (q[1] << 4) + (q[2] << 8) + (q[3] << 12));
            } else {
                *reinterpret_cast<uint32_t *>(codes + at + t * LANES * 4) =
                    (q[0] & 255) | (q[1] & 255) << 8 | (q[2] & 255) << 16 | q[3] << 24;
            }
        }
    }
}

// Any block. If FOUR, `block` is even or there is one block, so that no byte belongs to two blocks.
template <bool FOUR>
__global__ void encode_any(uint8_t *scales, uint8_t *codes, const float *x, struct block_args a,
                           size_t first) {
    uint32_t lane = threadIdx.x % WARP;
    float limit = (float)a.levels;
    for (size_t b = first + (size_t)blockIdx.x * WARPS + threadIdx.x / WARP; b < a.blocks;
         b += (size_t)gridDim.x * WARPS) {
        size_t at = b * a.block;
        uint32_t len = (uint32_t)(a.n - at < a.block ? a.n - at : a.block), max = 0;
        const float *p = x + at;
        for (uint32_t i = lane; i < len; i += WARP) {
            uint32_t u = magnitude(p[i]);
            max = u > max ? u : max;
        }
        max = __reduce_max_sync(ALL_LANES, max);
        float rms = a.levels == 1 ? warp_rms(p, len) : 0.0f;
        uint32_t code = scale_code(step_of(__uint_as_float(max), rms, a.levels), a.top);
        float scale = scale_value(code, a.top), inverse = scale == 0 ? 0.0f : 1.0f / scale;
        if (lane == 0)
            scales[b] = (uint8_t)code;
        for (uint32_t i = lane; FOUR && i < (len + 1) / 2; i += WARP) {
            uint32_t lo = quantise<FOUR>(p[2 * i], inverse, limit),
                     hi = 2 * i + 1 == len ? 8 : quantise<FOUR>(p[2 * i + 1], inverse, limit);
            codes[at / 2 + i] = (uint8_t)((lo & 15) | hi << 4);
        }
        for (uint32_t i = lane; !FOUR && i < len; i += WARP)
            codes[at + i] = (uint8_t)quantise<FOUR>(p[i], inverse, limit);
    }
}

template <bool FOUR>
static cudaError_t encode_t(uint8_t *scales, uint8_t *codes, const float *x, struct block_args a,
                            cudaStream_t s) {
    size_t whole = 0; // blocks for the fast kernel
    if (a.block == FAST_BLOCK && aligned_to(x, 16) && aligned_to(codes, 4))
        whole = a.n / FAST_BLOCK;
    if (whole) {
        struct block_args w = a;
        w.blocks = whole;
        unsigned grid = blocks_for(whole, FAST_BLOCKS, GRID_MOST);
        if (a.levels == 1)
            KERN_LAUNCH((encode_fast<FOUR, true>), grid, THREADS, 0, s, scales, codes, x, w);
        else
            KERN_LAUNCH((encode_fast<FOUR, false>), grid, THREADS, 0, s, scales, codes, x, w);
    }
    if (whole < a.blocks)
        KERN_LAUNCH(encode_any<FOUR>, blocks_for(a.blocks - whole, WARPS, GRID_MOST), THREADS, 0, s,
                    scales, codes, x, a, whole);
    return cudaGetLastError();
}

cudaError_t kern_cu_encode_blocks(uint8_t *scales, uint8_t *codes, const float *x, size_t n,
                                  uint32_t block, int levels, bool four_bits, int top,
                                  cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    if (block == 0 || levels < 1 || levels > (four_bits ? 7 : 127) ||
        (four_bits && block % 2 && n > block))
        return cudaErrorInvalidValue;
    struct block_args a = {n, (n + block - 1) / block, block, levels, top};
    return four_bits ? encode_t<true>(scales, codes, x, a, s)
                     : encode_t<false>(scales, codes, x, a, s);
}

// Four elements per thread. A block has 2^shift elements, at least four. n is a multiple of four.
template <bool FOUR>
__global__ void decode_fast(float *out, const uint8_t *scales, const uint8_t *codes, size_t n,
                            int shift, int top, uint32_t *bad) {
    uint32_t wrong = 0;
    EACH(t, n / 4) {
        float scale = scale_value(scales[t * 4 >> shift], top), v[4];
        if (FOUR) {
            uint32_t w = reinterpret_cast<const uint16_t *>(codes)[t];
            wrong |= (w - 0x1111u) & ~w & 0x8888u; // a nibble is 0
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = (float)((int)(w >> 4 * i & 15) - 8) * scale;
        } else {
            uint32_t w = reinterpret_cast<const uint32_t *>(codes)[t], z = w ^ 0x80808080u;
            wrong |= (z - 0x01010101u) & ~z & 0x80808080u; // a byte is -128
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = (float)(int)(int8_t)(uint8_t)(w >> 8 * i) * scale;
        }
        store<float, 4>(out + t * 4, v);
    }
    if (wrong)
        atomicOr(bad, 1);
}

// Elements from `first` on, which is even.
template <bool FOUR>
__global__ void decode_any(float *out, const uint8_t *scales, const uint8_t *codes, size_t first,
                           struct block_args a, uint32_t *bad) {
    bool wrong = false;
    EACH(t, a.n - first) {
        size_t i = first + t, of;
        uint32_t in, raw = FOUR ? (uint32_t)codes[i / 2] >> i % 2 * 4 & 15 : codes[i];
        split(i, a.block, of, in);
        wrong |= FOUR ? raw == 0 : raw == 0x80;
        out[i] = (float)(FOUR ? (int)raw - 8 : (int)(int8_t)raw) * scale_value(scales[of], a.top);
    }
    if (FOUR && a.n % 2 && blockIdx.x == 0 && threadIdx.x == 0)
        wrong |= codes[a.n / 2] >> 4 != 8; // the padding is code 0
    if (wrong)
        atomicOr(bad, 1);
}

template <bool FOUR>
static void decode_t(float *out, const uint8_t *scales, const uint8_t *codes, struct block_args a,
                     uint32_t *bad, cudaStream_t s) {
    size_t whole = 0; // elements for the fast kernel
    if (a.block >= 4 && !(a.block & (a.block - 1)) && aligned_to(out, 16) && aligned_to(codes, 4))
        whole = a.n / 4 * 4;
    int shift = 0;
    while ((uint32_t)1 << shift < a.block)
        shift++;
    if (whole)
        KERN_LAUNCH(decode_fast<FOUR>, blocks_for(whole / 4, THREADS, GRID_MOST), THREADS, 0, s,
                    out, scales, codes, whole, shift, a.top, bad);
    if (whole < a.n)
        KERN_LAUNCH(decode_any<FOUR>, blocks_for(a.n - whole, THREADS, GRID_MOST), THREADS, 0, s,
                    out, scales, codes, whole, a, bad);
}

cudaError_t kern_cu_decode_blocks(float *out, const uint8_t *scales, const uint8_t *codes, size_t n,
                                  uint32_t block, bool four_bits, int top, uint32_t *bad,
                                  cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    if (block == 0)
        return cudaErrorInvalidValue;
    struct block_args a = {n, (n + block - 1) / block, block, 0, top};
    if (four_bits)
        decode_t<true>(out, scales, codes, a, bad, s);
    else
        decode_t<false>(out, scales, codes, a, bad, s);
    return cudaGetLastError();
}

// ---- bfloat16 planes

__device__ static inline uint32_t bf16_upper(float x) { // the result is in the upper half
    uint32_t u = __float_as_uint(x);
    u += 0x7fffu + (u >> 16 & 1);
    // infinity becomes the largest finite value
    return u - ((u & 0x7f800000u) == 0x7f800000u ? 0x10000u : 0);
}

// V elements per thread: 4 or 1.
template <int V> __global__ void bf16_split(uint8_t *high, uint8_t *low, const float *x, size_t n) {
    EACH(t, n / V) {
        float v[V];
        Vec<uint8_t, V> h, l;
        load<float, V>(v, x + t * V);
#pragma unroll
        for (int i = 0; i < V; i++) {
            uint32_t u = bf16_upper(v[i]);
            h.x[i] = (uint8_t)(u >> 24);
            l.x[i] = (uint8_t)(u >> 16);
        }
        reinterpret_cast<Vec<uint8_t, V> *>(high)[t] = h;
        reinterpret_cast<Vec<uint8_t, V> *>(low)[t] = l;
    }
}
template <int V>
__global__ void bf16_join(float *out, const uint8_t *high, const uint8_t *low, size_t n) {
    EACH(t, n / V) {
        Vec<uint8_t, V> h = reinterpret_cast<const Vec<uint8_t, V> *>(high)[t],
                        l = reinterpret_cast<const Vec<uint8_t, V> *>(low)[t];
        float v[V];
#pragma unroll
        for (int i = 0; i < V; i++)
            v[i] = __uint_as_float((uint32_t)h.x[i] << 24 | (uint32_t)l.x[i] << 16);
        store<float, V>(out + t * V, v);
    }
}

// How many of n elements the kernels can take four at a time.
static size_t by_fours(const float *x, const uint8_t *high, const uint8_t *low, size_t n) {
    return aligned_to(x, 16) && aligned_to(high, 4) && aligned_to(low, 4) ? n / 4 * 4 : 0;
}

cudaError_t kern_cu_bf16_split(uint8_t *high, uint8_t *low, const float *x, size_t n,
                               cudaStream_t s) {
    size_t m = by_fours(x, high, low, n);
    if (m)
        KERN_LAUNCH(bf16_split<4>, blocks_for(m / 4, THREADS, GRID_MOST), THREADS, 0, s, high, low,
                    x, m);
    if (m < n)
        KERN_LAUNCH(bf16_split<1>, blocks_for(n - m, THREADS, GRID_MOST), THREADS, 0, s, high + m,
                    low + m, x + m, n - m);
    return cudaGetLastError();
}
cudaError_t kern_cu_bf16_join(float *out, const uint8_t *high, const uint8_t *low, size_t n,
                              cudaStream_t s) {
    size_t m = by_fours(out, high, low, n);
    if (m)
        KERN_LAUNCH(bf16_join<4>, blocks_for(m / 4, THREADS, GRID_MOST), THREADS, 0, s, out, high,
                    low, m);
    if (m < n)
        KERN_LAUNCH(bf16_join<1>, blocks_for(n - m, THREADS, GRID_MOST), THREADS, 0, s, out + m,
                    high + m, low + m, n - m);
    return cudaGetLastError();
}
