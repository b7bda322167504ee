// Softmax cross-entropy on rows of logits, in place: logits in, their gradient out; no other copy of them exists. A block
// owns a row and goes over it twice: the maximum and the sum of exponentials together (each thread keeps its own pair and
// corrects the sum when its maximum grows), then the gradient. What a NaN or an infinity among the logits makes of the sum
// reaches the loss. The gap between the end of a row and the next (ld > V) is read and masked, and with learn zeroed.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, SUM_THREADS = 256 };

struct peak { // sum of exp(z - max)
    float max, sum;
};

__device__ static inline struct peak peak_join(struct peak a, struct peak b) {
    struct peak out = {fmaxf(a.max, b.max), 0.0f};
    // nothing on either side, or only minus infinities: their sum is 0, or NaN as it was
    if (out.max == -INFINITY) {
        out.sum = a.sum + b.sum;
        return out;
    }
    out.sum = a.sum * expf(a.max - out.max) + b.sum * expf(b.max - out.max);
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
    if (top == -INFINITY) { // only minus infinities so far, or NaN, which must not be lost
#pragma unroll
        for (int i = 0; i < V; i++)
            if (z[i] != z[i])
                p.sum = z[i];
        return;
    }
    float sum = p.sum * expf(p.max - top);
#pragma unroll
    for (int i = 0; i < V; i++)
        sum += expf(z[i] - top);
    p.max = top;
    p.sum = sum;
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
    for (int j = (int)threadIdx.x * V; j < n_vocab; j += THREADS * V) {
        float x[V];
        load<T, V>(x, z + j);
#pragma unroll
        for (int i = 1; i < V; i++) // beyond the row is whatever was there
            x[i] = j + i < n_vocab ? x[i] : -INFINITY;
        peak_add<V>(p, x);
    }
    p = block_peak(p, room);
    if (threadIdx.x == 0)
        losses[row] = p.max + logf(p.sum) - wide(z[target]);
    __syncthreads(); // the target's logit is read before it is overwritten
    if (!learn)
        return;
    float by = *grad_scale, factor = by / p.sum;
    for (int j = (int)threadIdx.x * V; j < ld; j += THREADS * V) {
        float x[V];
        load<T, V>(x, z + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            x[i] = j + i < n_vocab ? expf(x[i] - p.max) * factor - (j + i == target ? by : 0.0f)
                                   : 0.0f;
        store<T, V>(z + j, x);
    }
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
