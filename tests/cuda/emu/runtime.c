// The runtime calls of cuda_runtime_api.h over host memory: device memory is malloc'ed, streams are in order because
// everything runs at once. Fresh memory is full of NaN, as nothing may be read before it is written.
#include <cuda_runtime_api.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

extern cudaError_t emu_last_error;

struct emu_event {
    struct timespec at;
};
struct emu_stream {
    int unused;
};

cudaError_t cudaGetDeviceCount(int *n) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    memset(out, 0, sizeof *out);
    memcpy(out->name, "emulated", 9);
    out->major = 9;
    out->multiProcessorCount = 4;
    out->totalGlobalMem = (size_t)1 << 30;
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = *total_bytes = (size_t)1 << 30;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **out, size_t bytes) {
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!*out)
        return cudaErrorMemoryAllocation;
    memset(*out, 0xff, bytes);
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    (void)flags;
    return cudaMalloc(out, bytes);
}
cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    (void)flags;
    *out = calloc(1, sizeof **out);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    free(s);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    (void)s;
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
    (void)kind;
    (void)s;
    if (bytes)
        memcpy(dst, src, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    (void)s;
    memset(p, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    (void)flags;
    *out = calloc(1, sizeof **out);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    free(e);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    (void)s;
    clock_gettime(CLOCK_MONOTONIC, &e->at);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    (void)e;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = (float)((double)(to->at.tv_sec - from->at.tv_sec) * 1e3 +
                  (double)(to->at.tv_nsec - from->at.tv_nsec) * 1e-6);
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
    cudaError_t e = emu_last_error;
    emu_last_error = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError(void) { return emu_last_error; }
const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaSuccess                     ? "no error"
           : e == cudaErrorMemoryAllocation     ? "out of memory"
           : e == cudaErrorInvalidConfiguration ? "invalid configuration argument"
                                                : "invalid argument";
}
cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int value) {
    (void)f;
    (void)a;
    return value >= 0 && value <= 227 << 10 ? cudaSuccess : cudaErrorInvalidValue;
}
