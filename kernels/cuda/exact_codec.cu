// The codecs' arithmetic on the device (kernels/quant.h, compress/codec.h), with the CPU's bits in both directions; built
// with the exact path's options (exact.cu). Streams' layout, entropy stage and headers stay with the host (compress/device.c).
//
//     encode_blocks   a warp a block: largest magnitude (or root mean square), scale byte, codes
//     decode_blocks   a thread four elements
//     topk            a block a chunk: the k-th magnitude by radix selection, then the chosen in order
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, GRID_MOST = 1 << 16, FAST_BLOCK = 128 };

#define EACH(i, n)                                                                                 \
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < (n);                           \
         i += (size_t)gridDim.x * THREADS)

// ---- scales ---------------------------------------------------------------------------------------------------

// The eight steps of an octave, as in quant.c.
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
    int j = 0;
    while (j < 8 && grid_steps[j] < mantissa)
        j++;
    int code = slot * 8 + j;
    return (uint32_t)(code < 1 ? 1 : code > 255 ? 255 : code);
}
__device__ static inline int quantise(float x, float inverse, float limit) {
    float q = x * inverse;
    q = q > limit ? limit : q;
    q = q < -limit ? -limit : q;
    float r = q + 12582912.0f;
    return (int)(r - 12582912.0f);
}

// ---- magnitudes -----------------------------------------------------------------------------------------------

__device__ static inline uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ static inline uint32_t warp_max_bits(uint32_t x) {
#pragma unroll
    for (int by = WARP / 2; by; by /= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, x, by);
        x = other > x ? other : x;
    }
    return x;
}

__global__ void absmax(uint32_t *bits, const float *x, size_t n) {
    uint32_t max = 0;
    EACH(i, n) {
        uint32_t u = magnitude(x[i]);
        max = u > max ? u : max;
    }
    max = warp_max_bits(max);
    if (threadIdx.x % WARP == 0)
        atomicMax(bits, max);
}

cudaError_t kern_cu_absmax(uint32_t *bits, const float *x, size_t n, cudaStream_t s) {
    cudaError_t e = cudaMemsetAsync(bits, 0, sizeof *bits, s);
    if (e != cudaSuccess || n == 0)
        return e;
    KERN_LAUNCH(absmax, blocks_for(n, THREADS * 8, 1 << 12), THREADS, 0, s, bits, x, n);
    return cudaGetLastError();
}

// ---- blocks ---------------------------------------------------------------------------------------------------

// Root mean square as kern_rms: sixteen lanes, lane j takes j, j + 16, …, then halves.
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

// Blocks of FAST_BLOCK with x aligned to 16 bytes: four elements a lane, read once.
template <bool FOUR>
__global__ void encode_fast(uint8_t *scales, uint8_t *codes, const float *x, struct block_args a) {
    uint32_t lane = threadIdx.x % WARP;
    float limit = (float)a.levels;
    for (size_t b = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP; b < a.blocks;
         b += (size_t)gridDim.x * WARPS) {
        size_t at = b * FAST_BLOCK + lane * 4;
        float v[4];
        load<float, 4>(v, x + at);
        uint32_t max = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t u = magnitude(v[i]);
            max = u > max ? u : max;
        }
        uint32_t code =
            scale_code(step_of(__uint_as_float(warp_max_bits(max)), 0, a.levels), a.top);
        float scale = scale_value(code, a.top), inverse = scale == 0 ? 0.0f : 1.0f / scale;
        if (lane == 0)
            scales[b] = (uint8_t)code;
        int q[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            q[i] = scale == 0 ? 0 : quantise(v[i], inverse, limit);
        if (FOUR) {
            Vec<uint8_t, 2> out;
            out.x[0] = (uint8_t)((q[0] + 8) | (q[1] + 8) << 4);
            out.x[1] = (uint8_t)((q[2] + 8) | (q[3] + 8) << 4);
            *reinterpret_cast<Vec<uint8_t, 2> *>(codes + at / 2) = out;
        } else {
            Vec<uint8_t, 4> out;
#pragma unroll
            for (int i = 0; i < 4; i++)
                out.x[i] = (uint8_t)(int8_t)q[i];
            *reinterpret_cast<Vec<uint8_t, 4> *>(codes + at) = out;
        }
    }
}

// Any block. With four bits `block` is even, or there is one block, so that no byte belongs to two.
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
        max = warp_max_bits(max);
        float rms = a.levels == 1 ? warp_rms(p, len) : 0.0f;
        uint32_t code = scale_code(step_of(__uint_as_float(max), rms, a.levels), a.top);
        float scale = scale_value(code, a.top), inverse = scale == 0 ? 0.0f : 1.0f / scale;
        if (lane == 0)
            scales[b] = (uint8_t)code;
        for (uint32_t i = lane; FOUR && i < (len + 1) / 2; i += WARP) {
            int lo = scale == 0 ? 0 : quantise(p[2 * i], inverse, limit),
                hi = scale == 0 || 2 * i + 1 == len ? 0 : quantise(p[2 * i + 1], inverse, limit);
            codes[at / 2 + i] = (uint8_t)((lo + 8) | (hi + 8) << 4);
        }
        for (uint32_t i = lane; !FOUR && i < len; i += WARP)
            codes[at + i] = (uint8_t)(int8_t)(scale == 0 ? 0 : quantise(p[i], inverse, limit));
    }
}

template <bool FOUR>
static cudaError_t encode_t(uint8_t *scales, uint8_t *codes, const float *x, struct block_args a,
                            cudaStream_t s) {
    size_t whole = 0; // blocks for the fast kernel
    if (a.block == FAST_BLOCK && a.levels != 1 && aligned_to(x, 16) && aligned_to(codes, 4))
        whole = a.n / FAST_BLOCK;
    if (whole) {
        struct block_args w = a;
        w.blocks = whole;
        KERN_LAUNCH(encode_fast<FOUR>, blocks_for(whole, WARPS, GRID_MOST), THREADS, 0, s, scales,
                    codes, x, w);
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

// V elements a thread; with V 4 the block is a multiple of 4, so that one scale serves them.
template <bool FOUR, int V>
__global__ void decode_blocks(float *out, const uint8_t *scales, const uint8_t *codes,
                              struct block_args a, uint32_t *bad) {
    bool wrong = false;
    EACH(t, (a.n + V - 1) / V) {
        size_t at = t * V;
        float v[V];
        uint32_t raw[V];
#pragma unroll
        for (int i = 0; i < V; i++) {
            size_t e = at + i < a.n ? at + i : a.n - 1;
            raw[i] = FOUR ? (uint32_t)codes[e / 2] >> e % 2 * 4 & 15 : codes[e];
            wrong |= FOUR ? raw[i] == 0 : raw[i] == 0x80;
        }
        size_t of;
        uint32_t in;
        split(at, a.block, of, in);
        float scale = scale_value(scales[of], a.top);
#pragma unroll
        for (int i = 0; i < V; i++)
            v[i] = (float)(FOUR ? (int)raw[i] - 8 : (int)(int8_t)raw[i]) * scale;
        if (at + V <= a.n)
            store<float, V>(out + at, v);
        else
            for (size_t i = at; i < a.n; i++)
                out[i] = v[i - at];
    }
    if (FOUR && a.n % 2 && blockIdx.x == 0 && threadIdx.x == 0)
        wrong |= codes[a.n / 2] >> 4 != 8; // the padding is code 0
    if (wrong)
        atomicOr(bad, 1);
}

template <bool FOUR>
static void decode_t(float *out, const uint8_t *scales, const uint8_t *codes, struct block_args a,
                     uint32_t *bad, cudaStream_t s) {
    if (a.block % 4 == 0 && aligned_to(out, 16))
        KERN_LAUNCH((decode_blocks<FOUR, 4>), blocks_for((a.n + 3) / 4, THREADS, GRID_MOST),
                    THREADS, 0, s, out, scales, codes, a, bad);
    else
        KERN_LAUNCH((decode_blocks<FOUR, 1>), blocks_for(a.n, THREADS, GRID_MOST), THREADS, 0, s,
                    out, scales, codes, a, bad);
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

// ---- bfloat16 planes ------------------------------------------------------------------------------------------

__global__ void bf16_split(uint8_t *high, uint8_t *low, const float *x, size_t n) {
    EACH(i, n) {
        uint32_t u = __float_as_uint(x[i]);
        u += 0x7fffu + (u >> 16 & 1);
        u -= (u & 0x7f800000u) == 0x7f800000u ? 0x10000u : 0; // the largest finite value
        high[i] = (uint8_t)(u >> 24);
        low[i] = (uint8_t)(u >> 16);
    }
}
__global__ void bf16_join(float *out, const uint8_t *high, const uint8_t *low, size_t n) {
    EACH(i, n)
    out[i] = __uint_as_float((uint32_t)high[i] << 24 | (uint32_t)low[i] << 16);
}

cudaError_t kern_cu_bf16_split(uint8_t *high, uint8_t *low, const float *x, size_t n,
                               cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    KERN_LAUNCH(bf16_split, blocks_for(n, THREADS, GRID_MOST), THREADS, 0, s, high, low, x, n);
    return cudaGetLastError();
}
cudaError_t kern_cu_bf16_join(float *out, const uint8_t *high, const uint8_t *low, size_t n,
                              cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    KERN_LAUNCH(bf16_join, blocks_for(n, THREADS, GRID_MOST), THREADS, 0, s, out, high, low, n);
    return cudaGetLastError();
}

// ---- top-k ----------------------------------------------------------------------------------------------------

enum { RADIX = 256 };

// By warp 0, with count full: the bin, from the top, in which the need-th largest lies; *left: how many of that bin.
__device__ static void find_bin(const unsigned *count, uint32_t need, uint32_t *bin,
                                uint32_t *left) {
    const int per = RADIX / WARP;
    int lane = (int)threadIdx.x, high = RADIX - 1 - lane * per; // this lane's bins, downwards
    uint32_t mine = 0;
    for (int i = 0; i < per; i++)
        mine += count[high - i];
    uint32_t upto = mine;
#pragma unroll
    for (int by = 1; by < WARP; by *= 2) {
        uint32_t other = __shfl_up_sync(ALL_LANES, upto, by);
        upto += lane >= by ? other : 0;
    }
    uint32_t before = upto - mine;
    if (before < need && need <= upto) // one lane
        for (int i = 0; i < per; i++) {
            uint32_t c = count[high - i];
            if (need <= before + c) {
                *bin = (uint32_t)(high - i);
                *left = need - before;
                return;
            }
            before += c;
        }
}

__global__ void topk(uint16_t *idx, float *values, const float *x, size_t n, uint32_t chunk,
                     uint32_t k_full, uint32_t k_last) {
    __shared__ unsigned count[RADIX];
    __shared__ uint32_t bin, left, sums[2][WARPS];
    uint32_t tid = threadIdx.x, warp = tid / WARP, lane = tid % WARP;
    size_t at = (size_t)blockIdx.x * chunk;
    uint32_t len = (uint32_t)(n - at < chunk ? n - at : chunk),
             k = blockIdx.x + 1 == gridDim.x ? k_last : k_full;
    const float *p = x + at;
    // of the k-th largest: its upper bits so far, its rank among those with them
    uint32_t prefix = 0, need = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        count[tid] = 0; // THREADS == RADIX
        __syncthreads();
        for (uint32_t i = tid; i < len; i += THREADS) {
            uint32_t u = magnitude(p[i]);
            if ((uint64_t)u >> (shift + 8) == prefix)
                atomicAdd(&count[u >> shift & (RADIX - 1)], 1u);
        }
        __syncthreads();
        if (warp == 0)
            find_bin(count, need, &bin, &left);
        __syncthreads();
        prefix = prefix << 8 | bin;
        need = left; // written again only after two more barriers
    }
    // All above prefix are chosen, and the first `need` that equal it.
    uint32_t done_above = 0, done_equal = 0;
    for (uint32_t from = 0; from < len; from += THREADS) {
        uint32_t i = from + tid, u = i < len ? magnitude(p[i]) : 0;
        bool above = i < len && u > prefix, equal = i < len && u == prefix;
        unsigned a = __ballot_sync(ALL_LANES, above), e = __ballot_sync(ALL_LANES, equal);
        if (lane == 0) {
            sums[0][warp] = (uint32_t)__popc(a);
            sums[1][warp] = (uint32_t)__popc(e);
        }
        __syncthreads();
        uint32_t before_above = done_above, before_equal = done_equal;
        for (uint32_t w = 0; w < WARPS; w++) {
            before_above += w < warp ? sums[0][w] : 0;
            before_equal += w < warp ? sums[1][w] : 0;
            done_above += sums[0][w];
            done_equal += sums[1][w];
        }
        unsigned below = (1u << lane) - 1;
        before_above += (uint32_t)__popc(a & below);
        before_equal += (uint32_t)__popc(e & below);
        uint32_t equal_taken = before_equal < need ? before_equal : need;
        if (above || (equal && before_equal < need)) {
            size_t to = (size_t)blockIdx.x * k_full + before_above + equal_taken;
            idx[to] = (uint16_t)i;
            values[to] = p[i];
        }
        __syncthreads(); // sums are read
    }
}

cudaError_t kern_cu_topk(uint16_t *idx, float *values, const float *x, size_t n, uint32_t chunk,
                         uint32_t k, uint32_t k_last, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    size_t chunks = (n + chunk - 1) / chunk, last = n - (chunks - 1) * chunk;
    if (chunk > 65536 || k < 1 || k > chunk || k_last < 1 || k_last > last ||
        (chunks > 1 && k > chunk) || chunks > 0x7fffffff)
        return cudaErrorInvalidValue;
    KERN_LAUNCH(topk, (unsigned)chunks, THREADS, 0, s, idx, values, x, n, chunk, k, k_last);
    return cudaGetLastError();
}

__global__ void scatter(float *out, const uint32_t *at, const float *x, size_t m) {
    EACH(i, m)
    out[at[i]] = x[i];
}

cudaError_t kern_cu_scatter(float *out, size_t n, const uint32_t *at, const float *x, size_t m,
                            cudaStream_t s) {
    cudaError_t e = n ? cudaMemsetAsync(out, 0, n * sizeof *out, s) : cudaSuccess;
    if (e != cudaSuccess || m == 0)
        return e;
    KERN_LAUNCH(scatter, blocks_for(m, THREADS, GRID_MOST), THREADS, 0, s, out, at, x, m);
    return cudaGetLastError();
}
