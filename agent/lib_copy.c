// CUDA memory is copied through the driver that the trainer has loaded itself (libcuda.so.1): it needs no toolkit here, and
// works whatever CUDA runtime the trainer brings along. The copy runs in the context that owns the pointer and waits for the
// device first: kernels of the last optimiser step may still write to it.
#include "agent/lib_copy.h"
#include "agent/base/bytes.h"
#include "intra/safetensors_half.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { POINTER_ATTRIBUTE_CONTEXT = 1 }; // CU_POINTER_ATTRIBUTE_CONTEXT of cuda.h

struct lib_copy {
    struct neb_buf scratch;
    void *cuda;
    int (*pointer_attribute)(void *data, int attribute, unsigned long long p);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*synchronize)(void);
    int (*to_host)(void *dst, unsigned long long src, size_t bytes);
    int (*to_device)(unsigned long long dst, const void *src, size_t bytes);
};

enum neb_status lib_copy_create(struct lib_copy **out) {
    *out = calloc(1, sizeof **out);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory attaching");
}

void lib_copy_destroy(struct lib_copy **c) {
    if (*c) {
        neb_buf_free(&(*c)->scratch);
        if ((*c)->cuda)
            dlclose((*c)->cuda);
    }
    free(*c);
    *c = NULL;
}

bool lib_copy_known(int dtype, int place) {
    return (dtype == NEBULA_F32 || dtype == NEBULA_BF16) &&
           (place == NEBULA_HOST || place == NEBULA_CUDA);
}

enum neb_status lib_copy_need_cuda(struct lib_copy *c) {
    static const char *const names[] = {"cuPointerGetAttribute", "cuCtxPushCurrent_v2",
                                        "cuCtxPopCurrent_v2",    "cuCtxSynchronize",
                                        "cuMemcpyDtoH_v2",       "cuMemcpyHtoD_v2"};
    void *at[6];
    if (c->cuda)
        return NEB_OK;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuda)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "a CUDA tensor is registered, but there is no CUDA driver here: %s",
                        dlerror());
    for (int i = 0; i < 6; i++)
        if (!(at[i] = dlsym(cuda, names[i]))) {
            dlclose(cuda);
            return neb_fail(NEB_ERR_UNSUPPORTED, "the CUDA driver lacks %s", names[i]);
        }
    // POSIX: a symbol's address is a function's
    memcpy(&c->pointer_attribute, &at[0], sizeof at[0]);
    memcpy(&c->push, &at[1], sizeof at[1]);
    memcpy(&c->pop, &at[2], sizeof at[2]);
    memcpy(&c->synchronize, &at[3], sizeof at[3]);
    memcpy(&c->to_host, &at[4], sizeof at[4]);
    memcpy(&c->to_device, &at[5], sizeof at[5]);
    c->cuda = cuda;
    return NEB_OK;
}

static enum neb_status cuda_copy(struct lib_copy *c, void *host, void *device, size_t bytes,
                                 bool read) {
    unsigned long long p = (unsigned long long)(uintptr_t)device;
    void *context = NULL, *was;
    int e = c->pointer_attribute(&context, POINTER_ATTRIBUTE_CONTEXT, p);
    if (e == 0)
        e = c->push(context);
    if (e)
        return neb_fail(NEB_ERR_IO,
                        "a registered pointer is not CUDA memory any more (CUDA error %d)", e);
    e = c->synchronize();
    if (e == 0)
        e = read ? c->to_host(host, p, bytes) : c->to_device(p, host, bytes);
    c->pop(&was);
    return e ? neb_fail(NEB_ERR_IO, "copying %zu bytes of a CUDA tensor: CUDA error %d", bytes, e)
             : NEB_OK;
}

static enum neb_status scratch(struct lib_copy *c, size_t bytes) {
    neb_buf_clear(&c->scratch);
    return neb_buf_reserve(&c->scratch, bytes) == NEB_OK
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "out of memory copying a tensor of %zu bytes", bytes);
}

enum neb_status lib_copy_read(struct lib_copy *c, float *dst, const void *src, size_t n, int dtype,
                              int place) {
    size_t bytes = n * (dtype == NEBULA_F32 ? sizeof(float) : sizeof(uint16_t));
    const void *host = src;
    if (place == NEBULA_CUDA) {
        void *to = dst;
        if (dtype != NEBULA_F32) {
            NEB_TRY(scratch(c, bytes));
            to = c->scratch.p;
        }
        NEB_TRY(cuda_copy(c, to, (void *)(uintptr_t)src, bytes, true));
        host = to;
    }
    if (dtype == NEBULA_F32 && host != dst)
        memcpy(dst, host, bytes);
    const unsigned char *half = host;
    for (size_t i = 0; dtype == NEBULA_BF16 && i < n; i++) {
        uint16_t h;
        memcpy(&h, half + i * sizeof h, sizeof h);
        dst[i] = intra_f32_of_bf16(h);
    }
    return NEB_OK;
}

enum neb_status lib_copy_write(struct lib_copy *c, void *dst, const float *src, size_t n, int dtype,
                               int place) {
    size_t bytes = n * (dtype == NEBULA_F32 ? sizeof(float) : sizeof(uint16_t));
    const void *host = src;
    unsigned char *half = dst;
    if (dtype == NEBULA_BF16) {
        if (place == NEBULA_CUDA) {
            NEB_TRY(scratch(c, bytes));
            half = c->scratch.p;
        }
        for (size_t i = 0; i < n; i++) {
            uint16_t h = intra_bf16_of_f32(src[i]);
            memcpy(half + i * sizeof h, &h, sizeof h);
        }
        host = half;
    }
    if (place == NEBULA_CUDA)
        return cuda_copy(c, (void *)(uintptr_t)host, dst, bytes, false);
    if (dtype == NEBULA_F32)
        memcpy(dst, src, bytes);
    return NEB_OK;
}
