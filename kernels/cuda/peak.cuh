// SPDX-License-Identifier: Apache-2.0
// Maximum and sum of exponentials of a row of logits, in one pass (loss.cu, choose.cu). Each thread
// keeps its own pair, and corrects the sum when its maximum grows.
#ifndef KERN_CUDA_PEAK_CUH
#define KERN_CUDA_PEAK_CUH
#include "kernels/cuda/prim.cuh"

// Sums of exp(z - max), and with a teacher (SOFT) of exp((z - max) / temperature).
template <bool SOFT> struct peak { float max, sum[1 + SOFT]; };

// power(z, base(max)) is e^(z - max), and at(z, base(max), rate) is e^((z - max) * rate). If there
// are no logits, or only minus infinities, max is -infinity. Base 0 then leaves a sum of 0, or a
// NaN that was there.
template <class T> struct Powers;
template <> struct Powers<float> {
    __device__ static inline float base(float max) { return max == -INFINITY ? 0.0f : max; }
    __device__ static inline float power(float z, float base) { return expf(z - base); }
    __device__ static inline float at(float z, float base, float rate) {
        return expf((z - base) * rate);
    }
};
template <> struct Powers<bf16> {
    __device__ static inline float base(float max) {
        return max == -INFINITY ? 0.0f : max * LOG2_E;
    }
    __device__ static inline float power(float z, float base) {
        return fast_exp2(z * LOG2_E - base);
    }
    __device__ static inline float at(float z, float base, float rate) {
        return fast_exp2((z * LOG2_E - base) * rate);
    }
};

// The term that z adds to the s-th sum.
template <class T> __device__ static inline float power_of(int s, float z, float base, float rate) {
    return s == 0 ? Powers<T>::power(z, base) : Powers<T>::at(z, base, rate);
}

template <class T, bool SOFT>
__device__ static inline struct peak<SOFT> peak_join(struct peak<SOFT> a, struct peak<SOFT> b,
                                                     float rate) {
    struct peak<SOFT> out;
    out.max = fmaxf(a.max, b.max);
    float base = Powers<T>::base(out.max);
#pragma unroll
    for (int s = 0; s <= SOFT; s++)
        out.sum[s] = a.sum[s] * power_of<T>(s, a.max, base, rate) +
                     b.sum[s] * power_of<T>(s, b.max, base, rate);
    return out;
}

// Joins the pairs of a warp. The result is the same in every lane.
template <class T, bool SOFT>
__device__ static inline struct peak<SOFT> warp_peak(struct peak<SOFT> p, float rate) {
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int by = WARP / 2; by; by /= 2) {
        struct peak<SOFT> other;
        other.max = __shfl_xor_sync(ALL_LANES, p.max, by);
#pragma unroll
        for (int s = 0; s <= SOFT; s++)
            other.sum[s] = __shfl_xor_sync(ALL_LANES, p.sum[s], by);
        p = lane & by ? peak_join<T>(other, p, rate)
                      : peak_join<T>(p, other, rate); // both lanes join in the same order
    }
    return p;
}

// Adds one turn of a thread: V logits.
template <class T, int V, bool SOFT>
__device__ static inline void peak_add(struct peak<SOFT> &p, const T *z, float rate) {
    float x[V], top = p.max;
    load<T, V>(x, z);
#pragma unroll
    for (int i = 0; i < V; i++)
        top = fmaxf(top, x[i]);
    float base = Powers<T>::base(top);
#pragma unroll
    for (int s = 0; s <= SOFT; s++) {
        float sum = p.sum[s] * power_of<T>(s, p.max, base, rate);
#pragma unroll
        for (int i = 0; i < V; i++)
            sum += power_of<T>(s, x[i], base, rate);
        p.sum[s] = sum;
    }
    p.max = top;
}

// Adds the vector at j, in which the row ends. What lies beyond the row is ignored.
template <class T, int V, bool SOFT>
__device__ static inline void peak_add_end(struct peak<SOFT> &p, const T *z, int j, int n_vocab,
                                           float rate) {
    T x[V];
#pragma unroll
    for (int i = 0; i < V; i++)
        x[i] = j + i < n_vocab ? z[j + i] : Narrow<T>::of(-INFINITY);
    struct peak<SOFT> end = {
        - INFINITY, {
            0.0f
        }
    };
#pragma unroll
    for (int i = 0; i < V; i++)
        peak_add<T, 1>(end, x + i, rate);
    p = peak_join<T>(p, end, rate);
}

#endif
