// Softmax cross-entropy on rows of logits, in place: logits in, their gradient out; no other copy of them exists. A block
// owns a row and goes over it twice: the maximum and the sum of exponentials together (each thread keeps its own pair and
// corrects the sum when its maximum grows), then the gradient. What a NaN or an infinity among the logits makes of the sum
// reaches the loss. The gap between the end of a row and the next (ld > V) is read and masked, and with learn zeroed.
//
// What differs between logits of one row is kept out of the loops, so that their threads go one way: vectors that reach beyond the row come
// behind them, and the target's logit is written once more by the thread that wrote it.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, SUM_THREADS = 256 };

struct peak { // sum of exp(z - max)
    float max, sum;
};

// What is taken off before a power. Of nothing, or of minus infinities alone, whose sum is then 0, or NaN as it was: 0.
__device__ static inline float peak_base(float max) { return max == -INFINITY ? 0.0f : max; }

__device__ static inline struct peak peak_join(struct peak a, struct peak b) {
    struct peak out = {fmaxf(a.max, b.max), 0.0f};
    float base = peak_base(out.max);
    out.sum = a.sum * expf(a.max - base) + b.sum * expf(b.max - base);
    return out;
}

__device__ static struct peak block_peak(struct peak p, struct peak *room) {
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int by = WARP / 2; by; by /= 2) {
        struct peak other;
        other.max = __shfl_xor_sync(ALL_LANES, p.max, by);
        other.sum = __shfl_xor_sync(ALL_LANES, p.sum, by);
        p = lane & by ? peak_join(other, p) : peak_join(p, other); // one order for both lanes
    }
    if (lane == 0)
        room[warp] = p;
    __syncthreads();
    p = room[0];
    for (int i = 1; i < WARPS; i++)
        p = peak_join(p, room[i]);
    return p;
}

// One turn of a thread: V logits.
template <int V> __device__ static inline void peak_add(struct peak &p, const float (&z)[V]) {
    float top = p.max;
#pragma unroll
    for (int i = 0; i < V; i++)
        top = fmaxf(top, z[i]);
    float base = peak_base(top), sum = p.sum * expf(p.max - base);
#pragma unroll
    for (int i = 0; i < V; i++)
        sum += expf(z[i] - base);
    p.max = top;
    p.sum = sum;
}

// A vector at j of which only some are of the row; beyond is whatever was there.
template <class T, int V>
__device__ static inline void load_end(float (&x)[V], const T *z, int j, int n_vocab) {
    load<T, V>(x, z + j);
#pragma unroll
    for (int i = 0; i < V; i++)
        x[i] = j + i < n_vocab ? x[i] : -INFINITY;
}

template <class T, int V>
__global__ void loss_rows(T *logits, int n_vocab, int ld, const int32_t *targets,
                          const float *grad_scale, bool learn, float *losses) {
    __shared__ struct peak room[WARPS];
    size_t row = blockIdx.x;
    T *z = logits + row * ld;
    int32_t target = targets[row];
    if (target < 0) { // the whole block
        if (threadIdx.x == 0)
            losses[row] = 0;
        float none[V] = {0};
        for (int j = (int)threadIdx.x * V; learn && j < ld; j += THREADS * V)
            store<T, V>(z + j, none);
        return;
    }
    struct peak p = {-INFINITY, 0.0f};
    int j = (int)threadIdx.x * V;
    for (; j + V <= n_vocab; j += THREADS * V) {
        float x[V];
        load<T, V>(x, z + j);
        peak_add<V>(p, x);
    }
    if (j < n_vocab) { // of one thread
        float x[V];
        load_end<T, V>(x, z, j, n_vocab);
        peak_add<V>(p, x);
    }
    p = block_peak(p, room);
    float wanted = wide(z[target]);
    if (threadIdx.x == 0)
        losses[row] = p.max + logf(p.sum) - wanted;
    __syncthreads(); // the target's logit is read before it is overwritten
    if (!learn)
        return;
    float by = *grad_scale, factor = by / p.sum;
    for (j = (int)threadIdx.x * V; j + V <= n_vocab; j += THREADS * V) {
        float x[V];
        load<T, V>(x, z + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            x[i] = expf(x[i] - p.max) * factor;
        store<T, V>(z + j, x);
    }
    for (; j < ld; j += THREADS * V) {
        float x[V];
        load<T, V>(x, z + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            x[i] = j + i < n_vocab ? expf(x[i] - p.max) * factor : 0.0f;
        store<T, V>(z + j, x);
    }
    if ((int)threadIdx.x == target / V % THREADS)
        z[target] = Narrow<T>::of(expf(wanted - p.max) * factor - by);
}

template <class T>
static void loss_rows_t(T *z, int n, int n_vocab, int ld, const int32_t *targets,
                        const float *grad_scale, bool learn, float *losses, cudaStream_t s) {
    const int V = 16 / (int)sizeof(T);
    if (ld % V == 0 && aligned_to(z, 16))
        KERN_LAUNCH((loss_rows<T, V>), (unsigned)n, THREADS, 0, s, z, n_vocab, ld, targets,
                    grad_scale, learn, losses);
    else
        KERN_LAUNCH((loss_rows<T, 1>), (unsigned)n, THREADS, 0, s, z, n_vocab, ld, targets,
                    grad_scale, learn, losses);
}

cudaError_t kern_cu_loss_rows(enum kern_type t, void *z, int n, int V, int ld,
                              const int32_t *targets, const float *grad_scale, bool learn,
                              float *losses, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    if (t == KERN_BF16)
        loss_rows_t((bf16 *)z, n, V, ld, targets, grad_scale, learn, losses, s);
    else
        loss_rows_t((float *)z, n, V, ld, targets, grad_scale, learn, losses, s);
    return cudaGetLastError();
}

// One block, so that the order is one.
__global__ void loss_total(double *total, const float *losses, int n) {
    __shared__ double room[SUM_THREADS];
    double sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += SUM_THREADS)
        sum += (double)losses[i];
    room[threadIdx.x] = sum;
    for (int half = SUM_THREADS / 2; half; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            room[threadIdx.x] += room[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *total += room[0];
}

cudaError_t kern_cu_loss_total(double *total, const float *losses, int n, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    KERN_LAUNCH(loss_total, 1, SUM_THREADS, 0, s, total, losses, n);
    return cudaGetLastError();
}
