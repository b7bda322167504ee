// Softmax cross-entropy on rows of logits, in place: logits in, their gradient out; no other copy of them exists. A block
// owns a row and goes over it twice: the maximum and the sum of exponentials together (each thread keeps its own pair and
// corrects the sum when its maximum grows), then the gradient. The second time it has the row in shared memory, as far as two
// blocks of a multiprocessor have room: a logit is then read once and written once. What a NaN or an infinity among the logits
// makes of the sum reaches the loss. The gap between the end of a row and the next (ld > V) is read and masked, and with learn zeroed.
//
// What differs between logits of one row is kept out of the loops, so that their threads go one way: vectors that reach beyond the row come
// behind them, and the target's logit is written once more by the thread that wrote it.
//
// In bf16 powers are ex2's, of numbers that are powers of two by then: 2^-22 relative, and results are rounded to 2^-9.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"

enum { THREADS = 512, WARPS = THREADS / WARP, BLOCKS = 2, SUM_THREADS = 256 };

struct peak { // sum of exp(z - max)
    float max, sum;
};

// e^(z - max) as power(z, base(max)). Of nothing, or of minus infinities alone, whose sum is then 0, or NaN as it was: base 0.
template <class T> struct Powers;
template <> struct Powers<float> {
    __device__ static inline float base(float max) { return max == -INFINITY ? 0.0f : max; }
    __device__ static inline float power(float z, float base) { return expf(z - base); }
};
template <> struct Powers<bf16> {
    __device__ static inline float base(float max) {
        return max == -INFINITY ? 0.0f : max * LOG2_E;
    }
    __device__ static inline float power(float z, float base) {
        return fast_exp2(z * LOG2_E - base);
    }
};

template <class T> __device__ static inline struct peak peak_join(struct peak a, struct peak b) {
    struct peak out = {fmaxf(a.max, b.max), 0.0f};
    float base = Powers<T>::base(out.max);
    out.sum = a.sum * Powers<T>::power(a.max, base) + b.sum * Powers<T>::power(b.max, base);
    return out;
}

template <class T> __device__ static struct peak block_peak(struct peak p, struct peak *room) {
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int by = WARP / 2; by; by /= 2) {
        struct peak other;
        other.max = __shfl_xor_sync(ALL_LANES, p.max, by);
        other.sum = __shfl_xor_sync(ALL_LANES, p.sum, by);
        p = lane & by ? peak_join<T>(other, p) : peak_join<T>(p, other); // one order for both lanes
    }
    if (lane == 0)
        room[warp] = p;
    __syncthreads();
    p = room[0];
    for (int i = 1; i < WARPS; i++)
        p = peak_join<T>(p, room[i]);
    return p;
}

// One turn of a thread: V logits.
template <class T, int V> __device__ static inline void peak_add(struct peak &p, const T *z) {
    float x[V], top = p.max;
    load<T, V>(x, z);
#pragma unroll
    for (int i = 0; i < V; i++)
        top = fmaxf(top, x[i]);
    float base = Powers<T>::base(top), sum = p.sum * Powers<T>::power(p.max, base);
#pragma unroll
    for (int i = 0; i < V; i++)
        sum += Powers<T>::power(x[i], base);
    p.max = top;
    p.sum = sum;
}

// A vector at j of which only some are of the row; beyond is whatever was there.
template <class T, int V>
__device__ static inline void peak_add_end(struct peak &p, const T *z, int j, int n_vocab) {
    T x[V];
#pragma unroll
    for (int i = 0; i < V; i++)
        x[i] = j + i < n_vocab ? z[j + i] : Narrow<T>::of(-INFINITY);
    struct peak end = {-INFINITY, 0.0f};
#pragma unroll
    for (int i = 0; i < V; i++)
        peak_add<T, 1>(end, x + i);
    p = peak_join<T>(p, end);
}

// The gradient of a turn.
template <class T, int V>
__device__ static inline void learn_from(T *to, const T *z, float base, float factor) {
    float x[V];
    load<T, V>(x, z);
#pragma unroll
    for (int i = 0; i < V; i++)
        x[i] = Powers<T>::power(x[i], base) * factor;
    store<T, V>(to, x);
}

// A fraction of the turns that are kept, which arrive one behind the other.
enum { FRACTIONS = 4 };
__device__ static inline int turns_before(int fraction, int turns) {
    return turns * fraction / FRACTIONS;
}
template <class T, int V>
__device__ static inline void peak_fraction(struct peak &p, const T *kept, int fraction,
                                            int turns) {
    for (int t = turns_before(fraction, turns); t < turns_before(fraction + 1, turns); t++)
        peak_add<T, V>(p, kept + ((size_t)t * THREADS + threadIdx.x) * V);
}

// turns: of V * THREADS logits, all of the row, that are kept in shared memory. A thread reads there only what it has brought.
template <class T, int V>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    loss_rows(T *logits, int n_vocab, int ld, int turns, const int32_t *targets,
              const float *grad_scale, bool learn, float *losses) {
    KERN_DYNAMIC_SHARED(bytes);
    __shared__ struct peak room[WARPS];
    T *kept = reinterpret_cast<T *>(bytes);
    size_t row = blockIdx.x;
    T *z = logits + row * ld;
    int32_t target = targets[row];
    int own = (int)threadIdx.x * V, step = THREADS * V;
    if (target < 0) { // the whole block
        if (threadIdx.x == 0)
            losses[row] = 0;
        float none[V] = {0};
        for (int j = own; learn && j < ld; j += step)
            store<T, V>(z + j, none);
        return;
    }
    float wanted = wide(z[target]); // before it is overwritten, which is behind a barrier
    for (int f = 0; f < FRACTIONS; f++) {
        for (int t = turns_before(f, turns); t < turns_before(f + 1, turns); t++)
            cp_async16(kept + t * step + own, z + t * step + own, true);
        cp_async_commit();
    }
    struct peak p = {-INFINITY, 0.0f};
    int j = turns * step + own;
    for (; j + V <= n_vocab; j += step)
        peak_add<T, V>(p, z + j);
    if (j < n_vocab) // of one thread
        peak_add_end<T, V>(p, z, j, n_vocab);
    cp_async_wait<3>();
    peak_fraction<T, V>(p, kept, 0, turns);
    cp_async_wait<2>();
    peak_fraction<T, V>(p, kept, 1, turns);
    cp_async_wait<1>();
    peak_fraction<T, V>(p, kept, 2, turns);
    cp_async_wait<0>();
    peak_fraction<T, V>(p, kept, 3, turns);
    p = block_peak<T>(p, room);
    if (threadIdx.x == 0)
        losses[row] = p.max + logf(p.sum) - wanted;
    if (!learn)
        return;
    float by = *grad_scale, factor = by / p.sum, base = Powers<T>::base(p.max);
    for (int t = 0; t < turns; t++)
        learn_from<T, V>(z + t * step + own, kept + t * step + own, base, factor);
    for (j = turns * step + own; j + V <= n_vocab; j += step)
        learn_from<T, V>(z + j, z + j, base, factor);
    for (; j < ld; j += step) {
        float x[V];
        load<T, V>(x, z + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            x[i] = j + i < n_vocab ? Powers<T>::power(x[i], base) * factor : 0.0f;
        store<T, V>(z + j, x);
    }
    if ((int)threadIdx.x == target / V % THREADS)
        z[target] = Narrow<T>::of(Powers<T>::power(wanted, base) * factor - by);
}

// What a block may keep so that BLOCKS fit, of which each loses what the system reserves.
static cudaError_t room_of(size_t *bytes) {
    int device = 0, all = 0, reserved = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device);
    *bytes = e == cudaSuccess
                 ? (size_t)all / BLOCKS - (size_t)reserved - WARPS * sizeof(struct peak)
                 : 0;
    return e;
}

template <class T, int V>
static cudaError_t loss_rows_v(T *z, int n, int n_vocab, int ld, int turns, const int32_t *targets,
                               const float *grad_scale, bool learn, float *losses, cudaStream_t s) {
    size_t shared = (size_t)turns * THREADS * V * sizeof(T);
    KERN_LAUNCH((loss_rows<T, V>), (unsigned)n, THREADS, shared, s, z, n_vocab, ld, turns, targets,
                grad_scale, learn, losses);
    return cudaGetLastError();
}

template <class T>
static cudaError_t loss_rows_t(T *z, int n, int n_vocab, int ld, const int32_t *targets,
                               const float *grad_scale, bool learn, float *losses, cudaStream_t s) {
    const int V = 16 / (int)sizeof(T);
    size_t bytes = 0;
    if (ld % V != 0 || !aligned_to(z, 16))
        return loss_rows_v<T, 1>(z, n, n_vocab, ld, 0, targets, grad_scale, learn, losses, s);
    cudaError_t e = learn ? room_of(&bytes) : cudaSuccess;
    if (e == cudaSuccess && learn) // always as much: no call's limit is lowered by another
        e = cudaFuncSetAttribute((const void *)loss_rows<T, V>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    int whole = n_vocab / (THREADS * V), fit = (int)(bytes / (THREADS * 16));
    return loss_rows_v<T, V>(z, n, n_vocab, ld, whole < fit ? whole : fit, targets, grad_scale,
                             learn, losses, s);
}

cudaError_t kern_cu_loss_rows(enum kern_type t, void *z, int n, int V, int ld,
                              const int32_t *targets, const float *grad_scale, bool learn,
                              float *losses, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    return t == KERN_BF16
               ? loss_rows_t((bf16 *)z, n, V, ld, targets, grad_scale, learn, losses, s)
               : loss_rows_t((float *)z, n, V, ld, targets, grad_scale, learn, losses, s);
}

// One block, so that the order is one.
template <class S> __global__ void add_sum(S *to, const float *x, int n) {
    __shared__ double room[SUM_THREADS];
    double sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += SUM_THREADS)
        sum += (double)x[i];
    room[threadIdx.x] = sum;
    for (int half = SUM_THREADS / 2; half; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            room[threadIdx.x] += room[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *to += (S)room[0];
}

cudaError_t kern_cu_loss_total(double *total, const float *losses, int n, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    KERN_LAUNCH(add_sum<double>, 1, SUM_THREADS, 0, s, total, losses, n);
    return cudaGetLastError();
}
cudaError_t kern_cu_add_sum(float *to, const float *x, int n, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    KERN_LAUNCH(add_sum<float>, 1, SUM_THREADS, 0, s, to, x, n);
    return cudaGetLastError();
}
