// SPDX-License-Identifier: Apache-2.0
#include "agent/lib/copy.h"
#include "kernels/half.h"

#include <string.h>

bool lib_copy_known(int dtype, int place) {
    return (dtype == NEBULA_F32 || dtype == NEBULA_BF16 || dtype == NEBULA_F16) &&
           (place == NEBULA_HOST || place == NEBULA_CUDA);
}

static size_t bytes_of(int dtype) { return dtype == NEBULA_F32 ? sizeof(float) : sizeof(uint16_t); }

static float widened(uint16_t h, int dtype) {
    return dtype == NEBULA_BF16 ? kern_f32_of_bf16(h) : kern_f32_of_f16(h);
}
static uint16_t narrowed(float x, int dtype) {
    return dtype == NEBULA_BF16 ? kern_bf16_of_f32(x) : kern_f16_of_f32(x);
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

void lib_copy_read(const struct lib_copy_block *b, float *dst, const void *src) {
    for (size_t r = 0; r < b->runs; r++)
        read_run(dst + r * b->host_pitch, (const char *)src + r * b->pitch * bytes_of(b->dtype),
                 b->len, b->step, b->dtype);
}

void lib_copy_write(const struct lib_copy_block *b, void *dst, const float *src) {
    for (size_t r = 0; r < b->runs; r++)
        write_run((char *)dst + r * b->pitch * bytes_of(b->dtype), src + r * b->host_pitch, b->len,
                  b->step, b->dtype);
}
