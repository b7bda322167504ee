// SPDX-License-Identifier: Apache-2.0
// The runtime calls of cuda_runtime_api.h over host memory: device memory is malloc'ed, and streams
// are the emulator's queues. Fresh memory is full of NaN, because nothing may be read before it is
// written.
#include "tests/cuda/emu/emu_stream.h"

#include <cuda_runtime_api.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

extern _Thread_local cudaError_t emu_last_error;
extern int emu_lost;

struct emu_event {
    struct timespec at;
    cudaStream_t stream;
    size_t position;
    int captured; // last recorded during a capture
};
struct emu_stream {
    struct emu_stream_head head;
};
static long waits;          // waits of the host, inside calls
static const char *loading; // CUDA_MODULE_LOADING: CUDA reads it once, here at the first call
static long early;          // waits for an event behind unfinished kernels
static _Thread_local long blocked; // waits of this thread, for tests
long emu_blocked(void) { return blocked; }

static const char *own_rank(void) { // from mpirun or torchrun; default 0
    const char *mpi = getenv("OMPI_COMM_WORLD_RANK"), *rank = mpi ? mpi : getenv("RANK");
    return rank ? rank : "0";
}
static int own_rank_is(const char *name) {
    const char *rank = getenv(name);
    return rank && !strcmp(rank, own_rank());
}

// EMU_WITHOUT: the rank that has no device. EMU_REFUSES: the rank whose device cannot be opened.
// EMU_DEVICES: the reported number of devices.
cudaError_t cudaGetDeviceCount(int *n) {
    if (!loading)
        loading = getenv("CUDA_MODULE_LOADING") ? getenv("CUDA_MODULE_LOADING") : "DEFAULT";
    const char *all = getenv("EMU_DEVICES");
    *n = own_rank_is("EMU_WITHOUT") ? 0 : all ? (int)strtol(all, NULL, 10) : 1;
    return cudaSuccess;
}
static int is_there(int device) {
    int n = 0;
    (void)cudaGetDeviceCount(&n);
    return device >= 0 && device < n;
}
static _Thread_local int current; // device
cudaError_t cudaSetDevice(int device) {
    cudaError_t e = emu_lost                     ? cudaErrorIllegalAddress
                    : own_rank_is("EMU_REFUSES") ? cudaErrorUnknown
                    : is_there(device)           ? cudaSuccess
                                                 : cudaErrorInvalidValue;
    current = e == cudaSuccess ? device : current;
    return e;
}
// BYTES of a variable RANK:BYTES; 0: not set, or for another rank.
static size_t bytes_of(const char *name) {
    const char *memory = getenv(name), *rank = own_rank();
    size_t n = strlen(rank);
    return !memory || strncmp(memory, rank, n) != 0 || memory[n] != ':'
               ? 0
               : strtoull(memory + n + 1, NULL, 10);
}
// EMU_CARD=RANK:BYTES: the reported memory of that rank's device. EMU_MAJOR: its compute
// capability; Hopper's instructions exist only with 9.
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    memset(out, 0, sizeof *out);
    memcpy(out->name, "emulated", 9);
    const char *major = getenv("EMU_MAJOR");
    out->major = major ? (int)strtol(major, NULL, 10) : 9;
    out->multiProcessorCount = 4;
    out->totalGlobalMem = bytes_of("EMU_CARD") ? bytes_of("EMU_CARD") : (size_t)2 << 30;
    out->sharedMemPerBlockOptin = 227 << 10;
    return is_there(device) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr a, int device) {
    *value = a == cudaDevAttrReservedSharedMemoryPerBlock ? 1 << 10 : 228 << 10;
    return is_there(device) ? cudaSuccess : cudaErrorInvalidValue;
}

// EMU_MEMORY=RANK:BYTES: the free memory of that rank's device.
static size_t taken, most_taken;
static int fits(size_t bytes) {
    size_t most = bytes_of("EMU_MEMORY");
    return !most || taken + bytes <= most;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    size_t most = bytes_of("EMU_MEMORY");
    *total_bytes = most ? most : (size_t)2 << 30;
    *free_bytes = *total_bytes > taken ? *total_bytes - taken : 0;
    return cudaSuccess;
}

// Large blocks share the pages of one file of NaNs until they write to them: most of a workspace is
// never used, and to fill it takes longer than the rest of a program's start.
enum { PAGE = 4096, NANS = 1 << 20 };
static int nans = -1;
static void make_nans(void) {
    static char all[NANS];
    memset(all, 0xff, sizeof all);
    nans = memfd_create("nans", MFD_CLOEXEC);
    if (nans >= 0 && write(nans, all, sizeof all) != (ssize_t)sizeof all) {
        close(nans);
        nans = -1;
    }
}
static void fill_with_nans(char *p, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    size_t at = PAGE - (uintptr_t)p % PAGE;
    if (bytes < 4 * NANS)
        at = bytes;
    else
        pthread_once(&once, make_nans);
    memset(p, 0xff, at);
    for (size_t n; at < bytes; at += n) {
        n = bytes - at < NANS ? bytes - at : NANS;
        size_t pages = n / PAGE * PAGE;
        if (nans < 0 || !pages ||
            mmap(p + at, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, nans, 0) ==
                MAP_FAILED)
            pages = 0;
        memset(p + at + pages, 0xff, n - pages);
    }
}

static cudaError_t take(void **out, size_t bytes) {
    if (emu_lost || emu_forbidden())
        return emu_lost ? cudaErrorIllegalAddress : cudaErrorStreamCaptureUnsupported;
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!*out)
        return cudaErrorMemoryAllocation;
    fill_with_nans(*out, bytes);
    return cudaSuccess;
}
static struct { // memory of devices
    pthread_mutex_t lock;
    struct block {
        char *at; // NULL: free
        size_t bytes;
        int device;
    } * p;
    size_t n;
} blocks = {.lock = PTHREAD_MUTEX_INITIALIZER};

// The block that contains p, or, if p is NULL, a free one. The caller has the lock.
static struct block *block_of(const char *p) {
    for (size_t i = 0; i < blocks.n; i++)
        if (p ? p >= blocks.p[i].at && p < blocks.p[i].at + blocks.p[i].bytes : !blocks.p[i].at)
            return &blocks.p[i];
    return NULL;
}
static void note(char *at, size_t bytes) {
    struct block *b = block_of(NULL);
    if (!b) {
        blocks.p = realloc(blocks.p, (blocks.n + 1) * sizeof *blocks.p);
        b = &blocks.p[blocks.n++];
    }
    *b = (struct block){at, bytes, current};
}
cudaError_t cudaMalloc(void **out, size_t bytes) {
    *out = NULL;
    if (!fits(bytes))
        return cudaErrorMemoryAllocation;
    cudaError_t e = take(out, bytes);
    pthread_mutex_lock(&blocks.lock);
    if (e == cudaSuccess)
        note(*out, malloc_usable_size(*out));
    taken += e == cudaSuccess ? malloc_usable_size(*out) : 0;
    most_taken = taken > most_taken ? taken : most_taken;
    pthread_mutex_unlock(&blocks.lock);
    return e;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p) {
    pthread_mutex_lock(&blocks.lock);
    const struct block *b = block_of(p);
    *out = (struct cudaPointerAttributes){b ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered,
                                          b ? b->device : -1, NULL, NULL};
    pthread_mutex_unlock(&blocks.lock);
    return cudaSuccess;
}
static cudaError_t give(void *p) {
    if (emu_forbidden())
        return cudaErrorStreamCaptureUnsupported;
    blocked++;
    emu_run_all(); // as CUDA does
    free(p);
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    size_t bytes = p ? malloc_usable_size(p) : 0;
    pthread_mutex_lock(&blocks.lock);
    struct block *b = p && !emu_capturing() ? block_of(p) : NULL;
    if (b)
        b->at = NULL;
    taken -= b ? bytes : 0;
    pthread_mutex_unlock(&blocks.lock);
    return give(p);
}

enum { PINNED_MOST = 64 };
static struct {
    char *at;
    size_t bytes;
} pinned[PINNED_MOST];

// EMU_PINNED=RANK:BYTES: what that rank can pin.
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    size_t most = bytes_of("EMU_PINNED"), all = bytes;
    for (int i = 0; i < PINNED_MOST; i++)
        all += pinned[i].at ? pinned[i].bytes : 0;
    cudaError_t e = most && all > most ? cudaErrorMemoryAllocation : take(out, bytes);
    (void)flags;
    for (int i = 0; e == cudaSuccess && i < PINNED_MOST; i++)
        if (!pinned[i].at) {
            pinned[i].at = *out;
            pinned[i].bytes = bytes;
            return e;
        }
    return e == cudaSuccess ? cudaErrorMemoryAllocation : e;
}
cudaError_t cudaFreeHost(void *p) {
    for (int i = 0; p && i < PINNED_MOST; i++)
        if (pinned[i].at == p)
            pinned[i].at = NULL;
    return give(p);
}
static int is_pinned(const void *p) {
    for (int i = 0; i < PINNED_MOST; i++)
        if (pinned[i].at && (const char *)p >= pinned[i].at &&
            (const char *)p < pinned[i].at + pinned[i].bytes)
            return 1;
    return 0;
}
static size_t push(void *s, int (*run)(void *op), void *op) { return emu_push(s, run, op); }
static int passed(void *s, size_t position) { return emu_passed(s, position); }
static int busy(void *s) { return emu_busy(s); }
static void goes_on(void *s) { emu_goes_on(s); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    (void)flags;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return cudaErrorMemoryAllocation;
    (*out)->head = (struct emu_stream_head){push, passed, busy, goes_on};
    return cudaSuccess;
}
// EMU_COUNT=1: prints the number of waits, waits for unfinished kernels, the largest memory in use,
// and how kernels would be loaded.
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    const char *counts = getenv("EMU_COUNT");
    if (counts && *counts == '1')
        fprintf(stderr,
                "emulated device of rank %s: the host has waited %ld times, %ld with kernels "
                "behind, of memory %zu bytes were taken; CUDA_MODULE_LOADING %s\n",
                own_rank(), waits, early, most_taken, loading ? loading : "");
    emu_forget(s);
    free(s);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (emu_lost || emu_forbidden())
        return emu_lost ? cudaErrorIllegalAddress : cudaErrorStreamCaptureUnsupported;
    waits++;
    blocked++;
    emu_run_until(s, emu_position(s));
    return cudaSuccess;
}
// What a poll returns. Not ready is no failure, but it becomes the last error. The ranks that it
// waits for are processes of this machine, which has fewer cores: a long wait leaves them to those.
static cudaError_t polled(int ready) {
    enum { YIELDS = 20 };
    static _Thread_local int vain; // polls since something was ready
    vain = ready ? 0 : vain + 1;
    if (ready)
        return cudaSuccess;
    if (vain < YIELDS)
        sched_yield();
    else
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return emu_last_error = cudaErrorNotReady;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
    if (emu_forbidden())
        return cudaErrorStreamCaptureUnsupported;
    return polled(emu_passed(s, emu_position(s)));
}
struct transfer {
    void *dst;
    const void *src;
    void *staged; // a copy of src
    size_t bytes;
};
static void move(const void *job) {
    struct transfer t;
    memcpy(&t, job, sizeof t);
    memmove(t.dst, t.staged ? t.staged : t.src, t.bytes);
    free(t.staged);
}

struct fill {
    void *p;
    int value;
    size_t bytes;
};
static void fill(const void *job) {
    struct fill f;
    memcpy(&f, job, sizeof f);
    memset(f.p, f.value, f.bytes);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
    struct transfer t = {dst, src, NULL, bytes};
    if (!bytes)
        return cudaSuccess;
    if (emu_capturing() && ((kind == cudaMemcpyDeviceToHost && !is_pinned(dst)) ||
                            (kind == cudaMemcpyHostToDevice && !is_pinned(src))))
        return emu_forbidden();
    if (kind == cudaMemcpyDeviceToHost && !is_pinned(dst)) {
        blocked++;
        emu_run_until(s, emu_position(s)); // pageable memory: done when the call returns
    }
    // or it is read before the call returns
    if (kind == cudaMemcpyHostToDevice && !is_pinned(src)) {
        if (!(t.staged = malloc(bytes)))
            return cudaErrorMemoryAllocation;
        memcpy(t.staged, src, bytes);
    }
    if (kind == cudaMemcpyDeviceToHost && !is_pinned(dst))
        move(&t);
    else
        return emu_enqueue(s, move, &t, sizeof t);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    struct fill f = {p, value, bytes};
    return emu_enqueue(s, fill, &f, sizeof f);
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
    e->captured = emu_capturing();
    e->stream = s;
    e->position = emu_position(s);
    clock_gettime(CLOCK_MONOTONIC, &e->at);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (emu_forbidden() || e->captured)
        return e->captured ? cudaErrorCapturedEvent : cudaErrorStreamCaptureUnsupported;
    waits++;
    blocked++;
    emu_run_until(e->stream, e->position);
    early += emu_busy(e->stream);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    if (emu_forbidden() || e->captured)
        return e->captured ? cudaErrorCapturedEvent : cudaErrorStreamCaptureUnsupported;
    return polled(emu_passed(e->stream, e->position));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    (void)flags;
    if (e->captured)
        return cudaErrorCapturedEvent;
    return emu_follow(s, e->stream, e->position);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    if (from->captured || to->captured)
        return cudaErrorCapturedEvent;
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
           : e == cudaErrorIllegalAddress       ? "an illegal memory access was encountered"
           : e == cudaErrorMemoryAllocation     ? "out of memory"
           : e == cudaErrorUnknown              ? "unknown error"
           : e == cudaErrorInvalidConfiguration ? "invalid configuration argument"
           : e == cudaErrorStreamCaptureUnsupported
               ? "operation not permitted when stream is capturing"
           : e == cudaErrorStreamCaptureInvalidated
               ? "operation failed due to a previous error during capture"
               : "invalid argument";
}

enum { KERNELS_MOST = 128, SHARED_PLAIN = 48 << 10, SHARED_MOST = 227 << 10 };
static struct {
    const void *kernel;
    size_t dynamic_shared;
} given[KERNELS_MOST];

cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int value) {
    int i = 0;
    while (i < KERNELS_MOST && given[i].kernel && given[i].kernel != f)
        i++;
    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize || i == KERNELS_MOST || value < 0 ||
        value > SHARED_MOST)
        return cudaErrorInvalidValue;
    given[i].kernel = f;
    given[i].dynamic_shared = (size_t)value;
    return cudaSuccess;
}
size_t emu_dynamic_shared_of(const void *kernel) {
    for (int i = 0; i < KERNELS_MOST && given[i].kernel; i++)
        if (given[i].kernel == kernel && given[i].dynamic_shared > SHARED_PLAIN)
            return given[i].dynamic_shared;
    return SHARED_PLAIN;
}
