// SPDX-License-Identifier: Apache-2.0
// The driver of fake_cuda.h: contexts, memory areas and the calls of libcuda.so.1.
#include "tests/unit/fake_cuda.h"

#include <string.h>

enum { INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, UNKNOWN = 999 };
enum { DEVICES = 4, AREAS = 16, DEPTH = 8 };

struct context {
    int device, primary;
};
static struct context own[DEVICES], primary[DEVICES];
static int held[DEVICES], depth, synchronized;
static struct context *stack[DEPTH];
static struct area {
    char *p;
    size_t bytes;
    enum fake_kind kind;
    int device;
} areas[AREAS];
static const char *failing;

static int fails(const char *name) { return failing && !strcmp(failing, name); }

static struct area *find(unsigned long long p) {
    for (int i = 0; i < AREAS; i++)
        if (areas[i].p && p >= (unsigned long long)(size_t)areas[i].p &&
            p < (unsigned long long)(size_t)areas[i].p + areas[i].bytes)
            return &areas[i];
    return NULL;
}
static struct context *current(void) { return depth ? stack[depth - 1] : NULL; }

void fake_cuda_add(void *p, size_t bytes, enum fake_kind kind, int device) {
    for (int i = 0; i < AREAS; i++)
        if (!areas[i].p) {
            areas[i] = (struct area){p, bytes, kind, device};
            return;
        }
}
void fake_cuda_forget(void *p) {
    for (int i = 0; i < AREAS; i++)
        if (areas[i].p == p)
            areas[i].p = NULL;
}
void fake_cuda_make_current(int device) {
    depth = device >= 0;
    if (depth)
        (stack[0] = &own[device])->device = device;
}
int fake_cuda_current(void) {
    struct context *c = current();
    return !c ? 0 : 1 + c->device + 100 * c->primary;
}
int fake_cuda_held(int device) { return held[device]; }
void fake_cuda_fail(const char *name) { failing = name; }

// ---- the driver's calls

int cuPointerGetAttribute(void *data, int attribute, unsigned long long p);
int cuPointerGetAttribute(void *data, int attribute, unsigned long long p) {
    struct area *a = find(p);
    void *context = NULL;
    if (fails("cuPointerGetAttribute"))
        return UNKNOWN;
    if (!a)
        return INVALID_VALUE;
    switch (attribute) {
    case 1: // CONTEXT
        if (a->kind == FAKE_OF_CONTEXT)
            (context = &own[a->device], own[a->device].device = a->device);
        memcpy(data, &context, sizeof context);
        return 0;
    case 2: // MEMORY_TYPE
        memcpy(data, &(unsigned){a->kind == FAKE_PINNED ? 1 : 2}, sizeof(unsigned));
        return 0;
    case 9: // DEVICE_ORDINAL
        memcpy(data, &a->device, sizeof a->device);
        return 0;
    default: return INVALID_VALUE;
    }
}
int cuCtxPushCurrent_v2(void *context);
int cuCtxPushCurrent_v2(void *context) {
    struct context *c = context;
    if (fails("cuCtxPushCurrent_v2"))
        return UNKNOWN;
    if (!c || depth == DEPTH || (c->primary && !held[c->device]))
        return INVALID_CONTEXT;
    stack[depth++] = c;
    return 0;
}
int cuCtxPopCurrent_v2(void **context);
int cuCtxPopCurrent_v2(void **context) {
    if (!depth)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return 0;
}
int cuCtxSynchronize(void);
int cuCtxSynchronize(void) {
    synchronized += current() != NULL;
    return current() ? 0 : INVALID_CONTEXT;
}
struct side { // CUDA_MEMCPY2D
    size_t x_bytes, y;
    int type; // 1: host, 2: device
    char *host;
    unsigned long long device;
    void *array;
    size_t pitch;
};
struct copy_2d {
    struct side from, to;
    size_t width_bytes, height;
};
int cuMemcpy2DUnaligned_v2(const struct copy_2d *c);
int cuMemcpy2DUnaligned_v2(const struct copy_2d *c) {
    const struct side *there = c->from.type == 2 ? &c->from : &c->to;
    struct area *a = find(there->device);
    size_t end = c->height ? (c->height - 1) * there->pitch + c->width_bytes : 0;
    if (fails("cuMemcpy2DUnaligned_v2"))
        return UNKNOWN;
    if (!current())
        return INVALID_CONTEXT;
    if (!synchronized || c->from.type == c->to.type || !a || a->kind == FAKE_PINNED ||
        a->device != current()->device ||
        there->device + end > (unsigned long long)(size_t)a->p + a->bytes ||
        (c->height > 1 && (c->from.pitch < c->width_bytes || c->to.pitch < c->width_bytes)))
        return INVALID_VALUE;
    for (size_t r = 0; r < c->height; r++) {
        char *from = c->from.type == 2 ? (char *)(size_t)c->from.device : c->from.host,
             *to = c->to.type == 2 ? (char *)(size_t)c->to.device : c->to.host;
        memcpy(to + r * c->to.pitch, from + r * c->from.pitch, c->width_bytes);
    }
    synchronized = 0;
    return 0;
}
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGet(int *device, int ordinal) {
    *device = 70 + ordinal; // a handle, not an ordinal
    return ordinal >= 0 && ordinal < DEVICES ? 0 : INVALID_DEVICE;
}
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (fails("cuDevicePrimaryCtxRetain"))
        return UNKNOWN;
    if (device < 70 || device >= 70 + DEVICES)
        return INVALID_DEVICE;
    held[device - 70]++;
    primary[device - 70] = (struct context){device - 70, 1};
    *context = &primary[device - 70];
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxRelease_v2(int device) {
    if (device < 70 || device >= 70 + DEVICES || !held[device - 70])
        return INVALID_DEVICE;
    held[device - 70]--;
    return 0;
}
int cuGetErrorName(int error, const char **name);
int cuGetErrorName(int error, const char **name) {
    *name = error == UNKNOWN ? "CUDA_ERROR_UNKNOWN" : "CUDA_ERROR_OTHER";
    return 0;
}
