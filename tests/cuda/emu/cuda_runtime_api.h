// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime calls of kernels/cuda and intra/ranks/comm_nccl.c, over host memory (see
// cuda_runtime.h).
#ifndef EMU_CUDA_RUNTIME_API_H
#define EMU_CUDA_RUNTIME_API_H
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNoDevice = 100,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorCapturedEvent = 907,
    cudaErrorUnknown = 999,
} cudaError_t;
typedef struct emu_stream *cudaStream_t;
typedef struct emu_event *cudaEvent_t;
typedef struct emu_graph *cudaGraph_t;
typedef struct emu_graph_exec *cudaGraphExec_t;
typedef struct emu_graph_node *cudaGraphNode_t;
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2,
};
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
};
enum cudaDeviceAttr {
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrReservedSharedMemoryPerBlock = 111
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3,
};
struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0 };
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount;
};

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr a, int device);
cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int value);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out);
// nodes NULL: only their number is returned
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x);
cudaError_t cudaGraphDestroy(cudaGraph_t g);

cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p);

// Only in nccl_runtime.c, which runs intra/ranks/comm_nccl.c; runtime.c does not have these.
cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t s);
cudaError_t cudaFreeAsync(void *p, cudaStream_t s);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority);

// The emulator's queue of a stream (emu.cc); NULL: the default stream. emu_position: number of ops
// ever enqueued. emu_run_until: runs up to a position (no op may wait for other ranks). emu_run_all:
// all streams. emu_passed: runs as far as possible; 1: the position is reached. emu_busy: true if
// ops are left. emu_goes_on: lets some time pass. emu_follow: s waits for a position of another
// stream. emu_forget: the stream ends.
size_t emu_position(cudaStream_t s);
void emu_run_until(cudaStream_t s, size_t position);
void emu_run_all(void);
int emu_passed(cudaStream_t s, size_t position);
int emu_busy(cudaStream_t s);
void emu_goes_on(cudaStream_t s);
cudaError_t emu_follow(cudaStream_t s, cudaStream_t other, size_t position);
void emu_forget(cudaStream_t s);
// How often the host has waited for a device in calls of this thread.
long emu_blocked(void);
// Enqueues an operation of emu_stream.h.
size_t emu_push(cudaStream_t s, int (*run)(void *op), void *op);
cudaError_t emu_enqueue(cudaStream_t s, void (*run)(const void *job), const void *job,
                        size_t bytes);
// The limit of dynamic shared memory of a kernel, by its address: from cudaFuncSetAttribute, or 48
// KiB.
size_t emu_dynamic_shared_of(const void *kernel);
// graph.cc: true during a capture. emu_capture_spoils: the error of a call that a capture forbids,
// and which spoils it; cudaSuccess if there is no capture.
int emu_capturing(void);
cudaError_t emu_forbidden(void);

#ifdef __cplusplus
}
#endif
#endif
