// SPDX-License-Identifier: Apache-2.0
// Copies CUDA memory through the driver that the trainer has loaded (libcuda.so.1). So no toolkit
// is needed, and any CUDA runtime of the trainer works. The copy waits for the device first,
// because kernels of the last optimiser step may still write to the memory.
//
// The context: this thread may have none, or the context of another device. Memory of cuMemAlloc
// knows its context. Memory that belongs to a device but to no context reports NULL
// (cudaMallocAsync, and mapped memory such as PyTorch's expandable segments). Then the right
// context is the device's primary one, which a program with a CUDA runtime uses. It is held until
// the handle is closed.
#include "agent/lib/copy.h"
#include "agent/base/bytes.h"
#include "intra/ckpt/safetensors_half.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 64 };
// CU_POINTER_ATTRIBUTE_… and CU_MEMORYTYPE_HOST of cuda.h
enum { ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_MEMORY_TYPE = 2, ATTRIBUTE_DEVICE_ORDINAL = 9 };
enum { MEMORY_TYPE_HOST = 1, MEMORY_TYPE_DEVICE = 2 };

struct copy_side { // a half of CUDA_MEMCPY2D
    size_t x_bytes, y;
    int type;
    void *host;
    unsigned long long device;
    void *array;
    size_t pitch;
};
struct copy_2d { // CUDA_MEMCPY2D
    struct copy_side from, to;
    size_t width_bytes, height;
};

struct driver {
    int (*pointer_attribute)(void *data, int attribute, unsigned long long p);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*synchronize)(void);
    int (*copy)(const struct copy_2d *c);
    int (*device)(int *device, int ordinal);
    int (*primary_retain)(void **context, int device);
    int (*primary_release)(int device);
    int (*error_name)(int error, const char **name);
};

struct lib_copy {
    struct neb_buf scratch;
    void *cuda; // NULL: not loaded
    struct driver d;
    struct {
        void *context; // NULL: not held
        int device;
    } primary[DEVICES]; // by device ordinal
};

enum neb_status lib_copy_create(struct lib_copy **out) {
    *out = calloc(1, sizeof **out);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory while attaching");
}

void lib_copy_destroy(struct lib_copy **cp) {
    struct lib_copy *c = *cp;
    if (!c)
        return;
    neb_buf_free(&c->scratch);
    for (int i = 0; i < DEVICES; i++)
        if (c->primary[i].context)
            c->d.primary_release(c->primary[i].device);
    if (c->cuda)
        dlclose(c->cuda);
    free(c);
    *cp = NULL;
}

bool lib_copy_known(int dtype, int place) {
    return (dtype == NEBULA_F32 || dtype == NEBULA_BF16 || dtype == NEBULA_F16) &&
           (place == NEBULA_HOST || place == NEBULA_CUDA);
}

static enum neb_status load(struct lib_copy *c) {
    struct driver *d = &c->d;
    const struct {
        const char *name;
        void *at; // address of a function pointer
    } calls[] = {{"cuPointerGetAttribute", &d->pointer_attribute},
                 {"cuCtxPushCurrent_v2", &d->push},
                 {"cuCtxPopCurrent_v2", &d->pop},
                 {"cuCtxSynchronize", &d->synchronize},
                 {"cuMemcpy2DUnaligned_v2", &d->copy},
                 {"cuDeviceGet", &d->device},
                 {"cuDevicePrimaryCtxRetain", &d->primary_retain},
                 {"cuDevicePrimaryCtxRelease_v2", &d->primary_release},
                 {"cuGetErrorName", &d->error_name}};
    if (c->cuda)
        return NEB_OK;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuda)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "a CUDA tensor is registered, but this machine has no CUDA driver: %s",
                        dlerror());
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *at = dlsym(cuda, calls[i].name);
        if (!at) {
            dlclose(cuda);
            return neb_fail(NEB_ERR_UNSUPPORTED, "the CUDA driver lacks %s", calls[i].name);
        }
        memcpy(calls[i].at, &at, sizeof at); // POSIX: a symbol's address can be a function's
    }
    c->cuda = cuda;
    return NEB_OK;
}

static const char *name_of(const struct lib_copy *c, int error) {
    const char *name = NULL;
    return c->d.error_name(error, &name) == 0 && name ? name : "an unknown error";
}

static enum neb_status primary_of(struct lib_copy *c, int ordinal, void **context) {
    if (ordinal < 0 || ordinal >= DEVICES)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "a CUDA tensor is on device %d, but only devices 0 to %d are supported",
                        ordinal, DEVICES - 1);
    *context = c->primary[ordinal].context;
    if (*context)
        return NEB_OK;
    int device = 0, e = c->d.device(&device, ordinal);
    if (e == 0)
        e = c->d.primary_retain(context, device);
    if (e)
        return neb_fail(NEB_ERR_IO,
                        "cannot get a context of device %d of a CUDA tensor: CUDA reports %s (%d)",
                        ordinal, name_of(c, e), e);
    c->primary[ordinal].context = *context;
    c->primary[ordinal].device = device;
    return NEB_OK;
}

// The context of device memory. Any other memory is an error of the caller.
static enum neb_status context_of(struct lib_copy *c, unsigned long long p, void **context) {
    unsigned type = 0;
    int ordinal = -1, e = c->d.pointer_attribute(&type, ATTRIBUTE_MEMORY_TYPE, p);
    if (e || type == MEMORY_TYPE_HOST)
        return neb_fail(
            NEB_ERR_INVALID,
            "%#llx is registered as CUDA memory, but %s. Register host memory as NEBULA_HOST", p,
            e ? "the driver does not know it: it is host memory, or it was freed"
              : "it is pinned host memory");
    if (c->d.pointer_attribute(context, ATTRIBUTE_CONTEXT, p) == 0 && *context)
        return NEB_OK;
    if ((e = c->d.pointer_attribute(&ordinal, ATTRIBUTE_DEVICE_ORDINAL, p)))
        return neb_fail(NEB_ERR_IO, "cannot find the device of %#llx: CUDA reports %s (%d)", p,
                        name_of(c, e), e);
    return primary_of(c, ordinal, context);
}

enum neb_status lib_copy_check(struct lib_copy *c, const void *data) {
    void *context = NULL;
    NEB_TRY(load(c));
    return context_of(c, (unsigned long long)(uintptr_t)data, &context);
}

// rows of `width` bytes; pitches in bytes.
static enum neb_status cuda_copy(struct lib_copy *c, void *host, size_t host_pitch, void *device,
                                 size_t device_pitch, size_t width, size_t rows, bool read) {
    const struct driver *d = &c->d;
    unsigned long long p = (unsigned long long)(uintptr_t)device;
    struct copy_side here = {.type = MEMORY_TYPE_HOST, .host = host, .pitch = host_pitch},
                     there = {.type = MEMORY_TYPE_DEVICE, .device = p, .pitch = device_pitch};
    void *context = NULL, *was;
    NEB_ASSERT(c->cuda); // lib_copy_check has loaded the driver
    NEB_TRY(context_of(c, p, &context));
    int e = d->push(context);
    if (e == 0) {
        e = d->synchronize();
        if (e == 0)
            e = d->copy(&(struct copy_2d){read ? there : here, read ? here : there, width, rows});
        d->pop(&was);
    }
    return e ? neb_fail(NEB_ERR_IO, "cannot copy %zu bytes of a CUDA tensor: CUDA reports %s (%d)",
                        width * rows, name_of(c, e), e)
             : NEB_OK;
}

// Between device memory and rows of host memory without gaps in a row.
static enum neb_status cuda_block(struct lib_copy *c, const struct lib_copy_block *b, size_t bytes,
                                  char *host, size_t host_pitch, char *device, bool read) {
    if (b->step == 1)
        return cuda_copy(c, host, host_pitch * bytes, device, b->pitch * bytes, b->len * bytes,
                         b->runs, read);
    for (size_t r = 0; r < b->runs; r++) // each element is a row
        NEB_TRY(cuda_copy(c, host + r * host_pitch * bytes, bytes, device + r * b->pitch * bytes,
                          b->step * bytes, bytes, b->len, read));
    return NEB_OK;
}

static enum neb_status scratch(struct lib_copy *c, size_t bytes) {
    neb_buf_clear(&c->scratch);
    return neb_buf_reserve(&c->scratch, bytes) == NEB_OK
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "out of memory for a copy of a tensor of %zu bytes",
                          bytes);
}

static size_t bytes_of(int dtype) { return dtype == NEBULA_F32 ? sizeof(float) : sizeof(uint16_t); }

static float widened(uint16_t h, int dtype) {
    return dtype == NEBULA_BF16 ? intra_f32_of_bf16(h) : intra_f32_of_f16(h);
}
static uint16_t narrowed(float x, int dtype) {
    return dtype == NEBULA_BF16 ? intra_bf16_of_f32(x) : intra_f16_of_f32(x);
}
float lib_copy_rounded(float x, int dtype) {
    return dtype == NEBULA_F32 ? x : widened(narrowed(x, dtype), dtype);
}

static void read_run(float *dst, const char *src, size_t n, size_t step, int dtype) {
    uint16_t h;
    if (dtype == NEBULA_F32 && step == 1 && (const char *)dst != src)
        memcpy(dst, src, n * sizeof *dst);
    for (size_t i = 0; dtype == NEBULA_F32 && step != 1 && i < n; i++)
        memcpy(&dst[i], src + i * step * sizeof *dst, sizeof *dst);
    for (size_t i = 0; dtype != NEBULA_F32 && i < n; i++) {
        memcpy(&h, src + i * step * sizeof h, sizeof h);
        dst[i] = widened(h, dtype);
    }
}

static void write_run(char *dst, const float *src, size_t n, size_t step, int dtype) {
    if (dtype == NEBULA_F32 && step == 1 && dst != (const char *)src)
        memcpy(dst, src, n * sizeof *src);
    for (size_t i = 0; dtype == NEBULA_F32 && step != 1 && i < n; i++)
        memcpy(dst + i * step * sizeof *src, &src[i], sizeof *src);
    for (size_t i = 0; dtype != NEBULA_F32 && i < n; i++) {
        uint16_t h = narrowed(src[i], dtype);
        memcpy(dst + i * step * sizeof h, &h, sizeof h);
    }
}

enum neb_status lib_copy_read(struct lib_copy *c, const struct lib_copy_block *b, float *dst,
                              const void *src) {
    size_t bytes = bytes_of(b->dtype), pitch = b->pitch, step = b->step;
    const char *host = src;
    if (b->place == NEBULA_CUDA && b->dtype == NEBULA_F32)
        return cuda_block(c, b, bytes, (char *)dst, b->host_pitch, (char *)(uintptr_t)src, true);
    if (b->place == NEBULA_CUDA) {
        NEB_TRY(scratch(c, b->len * b->runs * bytes));
        host = (const char *)c->scratch.p;
        pitch = b->len, step = 1;
        NEB_TRY(
            cuda_block(c, b, bytes, (char *)c->scratch.p, b->len, (char *)(uintptr_t)src, true));
    }
    for (size_t r = 0; r < b->runs; r++)
        read_run(dst + r * b->host_pitch, host + r * pitch * bytes, b->len, step, b->dtype);
    return NEB_OK;
}

enum neb_status lib_copy_write(struct lib_copy *c, const struct lib_copy_block *b, void *dst,
                               const float *src) {
    size_t bytes = bytes_of(b->dtype), pitch = b->pitch, step = b->step;
    char *host = dst;
    if (b->place == NEBULA_CUDA && b->dtype == NEBULA_F32)
        return cuda_block(c, b, bytes, (char *)(uintptr_t)src, b->host_pitch, dst, false);
    if (b->place == NEBULA_CUDA) {
        NEB_TRY(scratch(c, b->len * b->runs * bytes));
        host = (char *)c->scratch.p;
        pitch = b->len, step = 1;
    }
    for (size_t r = 0; r < b->runs; r++)
        write_run(host + r * pitch * bytes, src + r * b->host_pitch, b->len, step, b->dtype);
    return b->place == NEBULA_CUDA ? cuda_block(c, b, bytes, host, b->len, dst, false) : NEB_OK;
}
