// SPDX-License-Identifier: Apache-2.0
// Opens a CUDA device: finds it, checks that it can run these kernels, and creates its stream.
#include "kernels/cuda/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum neb_status status_of(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? NEB_ERR_NOMEM : NEB_ERR_IO;
}

static enum neb_status set_up(struct cuda *c, const char **wrong) {
    cudaError_t e = cudaStreamCreateWithFlags(&c->s, cudaStreamNonBlocking);
    for (int i = 0; i < KERN_MARKS && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&c->marks[i], 0);
    if (e == cudaSuccess)
        e = cudaEventCreateWithFlags(&c->joint, cudaEventDisableTiming);
    if (e == cudaSuccess)
        return kern_cu_gemm_create(&c->gemm, wrong);
    *wrong = cudaGetErrorString(e);
    return status_of(e);
}

// Finds the device, and checks that it can run these kernels.
static enum neb_status look_at(int index, int *device, int *count, struct cudaDeviceProp *p,
                               char *text, size_t cap) {
    int n = 0;
    NEB_ASSERT(index >= 0);
    cudaError_t e = cudaGetDeviceCount(&n);
    *count = n;
    if (e != cudaSuccess || n < 1) {
        snprintf(text, cap,
                 "no CUDA device: %s (check with nvidia-smi whether the driver is loaded)",
                 e != cudaSuccess ? cudaGetErrorString(e) : "the driver lists no device");
        return NEB_ERR_NOT_FOUND;
    }
    *device = index %= n; // as many processes as devices get one device each
    if ((e = cudaSetDevice(index)) != cudaSuccess ||
        (e = cudaGetDeviceProperties(p, index)) != cudaSuccess) {
        snprintf(text, cap, "CUDA device %d: %s (nvidia-smi shows who uses it)", index,
                 cudaGetErrorString(e));
        return status_of(e);
    }
    if (p->major < 8) {
        snprintf(text, cap,
                 "CUDA device %d (%s) has compute capability %d.%d; Nebula needs 8.0 (Ampere) "
                 "or higher",
                 index, p->name, p->major, p->minor);
        return NEB_ERR_UNSUPPORTED;
    }
    return NEB_OK;
}

kern_device_opener kern_cuda_open;
enum neb_status kern_cuda_open(int version, int index, struct kern **out, char *text,
                               size_t text_cap) {
    struct cudaDeviceProp p;
    const char *wrong = NULL;
    int count;
    if (version != KERN_DEVICE_VERSION) {
        snprintf(text, text_cap, "the CUDA kernels belong to another build; build again");
        return NEB_ERR_UNSUPPORTED;
    }
    NEB_TRY(look_at(index, &index, &count, &p, text, text_cap));
    struct kern *D = calloc(1, sizeof *D);
    struct cuda *c = calloc(1, sizeof *c);
    if (!D || !c) {
        free(D);
        free(c);
        snprintf(text, text_cap, "out of host memory for CUDA device %d", index);
        return NEB_ERR_NOMEM;
    }
    D->ops = &kern_cu_ops;
    D->ctx = c;
    D->index = index;
    D->count = count;
    snprintf(D->name, sizeof D->name, "%.63s", p.name);
    D->total_bytes = p.totalGlobalMem;
    D->tensor_cores_bf16 = true;
    const char *attn = getenv("NEBULA_ATTN"); // mma: as on other GPUs, for tests
    c->hopper = p.major == 9 && p.minor == 0 && !(attn && !strcmp(attn, "mma"));
    D->norm_most = (int)(p.sharedMemPerBlockOptin / sizeof(float));
    enum neb_status st = set_up(c, &wrong);
    if (st == NEB_OK) {
        *out = D;
        return NEB_OK;
    }
    snprintf(text, text_cap, "CUDA device %d (%s): %s (nvidia-smi shows who uses it)", index,
             p.name, wrong);
    kern_cu_ops.destroy(D);
    return st;
}

kern_device_finder kern_cuda_find;
bool kern_cuda_find(const void *p, int *index, int *current) {
    struct cudaPointerAttributes a;
    bool found = cudaPointerGetAttributes(&a, p) == cudaSuccess &&
                 (a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged) &&
                 cudaGetDevice(current) == cudaSuccess;
    (void)cudaGetLastError(); // otherwise the next launch would report an error
    *index = found ? a.device : -1;
    return found;
}
