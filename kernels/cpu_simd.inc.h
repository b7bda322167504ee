// SPDX-License-Identifier: Apache-2.0
// Vectors for the templates. The including file defines V_LANES (floats in a vector) and includes
// its intrinsics. Arithmetic uses GCC's vector extension. Intrinsics are used only for what that
// lacks: fused multiply-add, min, max, square root. All is static: each instruction set gets its
// own copy.
#include "kernels/cpu.h"
#include "kernels/unroll.h"

#include <math.h>
#include <string.h>

typedef float vf __attribute__((vector_size(V_LANES * 4)));
typedef int32_t vi __attribute__((vector_size(V_LANES * 4)));
typedef float vf_mem __attribute__((vector_size(V_LANES * 4), aligned(4), may_alias));
// half a vector
typedef float vh_mem __attribute__((vector_size(V_LANES * 2), aligned(4), may_alias));
typedef double vd __attribute__((vector_size(V_LANES * 4))); // doubles

#define V_INLINE static inline __attribute__((always_inline, unused))

V_INLINE vf v_load(const float *p) { return *(const vf_mem *)p; }
V_INLINE void v_store(float *p, vf x) { *(vf_mem *)p = x; }
V_INLINE vf v_set(float x) { return x - (vf){0}; }  // x in every lane
V_INLINE vf v_load_part(const float *p, size_t n) { // n < V_LANES; the other lanes are 0
    vf x = {0};
    memcpy(&x, p, n * sizeof *p);
    return x;
}
V_INLINE void v_store_part(float *p, vf x, size_t n) { memcpy(p, &x, n * sizeof *p); }

#if V_LANES == 16
V_INLINE vf v_fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
V_INLINE vf v_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
V_INLINE vf v_min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
V_INLINE vf v_sqrt(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }
#elif V_LANES == 8
V_INLINE vf v_fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
V_INLINE vf v_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
V_INLINE vf v_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
V_INLINE vf v_sqrt(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
#else // any machine with vectors of four floats
V_INLINE vf v_pick(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return a * b + c; }
V_INLINE vf v_max(vf a, vf b) { return v_pick(a > b, a, b); }
V_INLINE vf v_min(vf a, vf b) { return v_pick(a < b, a, b); }
V_INLINE vf v_sqrt(vf a) {
    for (int i = 0; i < V_LANES; i++)
        a[i] = __builtin_sqrtf(a[i]);
    return a;
}
#endif
// If an operand is a NaN, v_min and v_max return the second operand, as the instructions do. So the
// data must be the second operand.

V_INLINE float v_sum(vf x) {
    float s[V_LANES];
    memcpy(s, &x, sizeof x);
    for (int w = V_LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            s[i] += s[i + w];
    return s[0];
}
V_INLINE float v_top(vf x) {
    float s[V_LANES];
    memcpy(s, &x, sizeof x);
    for (int i = 1; i < V_LANES; i++)
        s[0] = s[i] > s[0] || s[i] != s[i] ? s[i] : s[0];
    return s[0];
}

// exp to about 1 ulp on [-87, 88]; 0 below, exp(88) above, NaN for NaN. The argument is reduced to
// |r| <= ln2/2 with ln2 in two parts (Cody and Waite). A polynomial of degree 5 gives
// (exp(r) - 1 - r) / r^2: a least-squares fit at Chebyshev nodes.
V_INLINE vf v_exp(vf x) {
    // 1.5 * 2^23: adding it rounds to an integer, which the low bits then hold
    const vf magic = v_set(12582912.0f);
    vf c = v_min(v_set(88.0f), v_max(v_set(-87.0f), x));
    vf t = v_fma(c, v_set(1.44269504f), magic), n = t - magic;
    vf r = v_fma(n, v_set(-0.693359375f), c);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vf p = v_fma(r, v_set(1.982631700e-4f), v_set(1.394659015e-3f));
    p = v_fma(p, r, v_set(8.333431976e-3f));
    p = v_fma(p, r, v_set(4.166626236e-2f));
    p = v_fma(p, r, v_set(1.666666615e-1f));
    p = v_fma(p, r, v_set(5.000000080e-1f));
    p = v_fma(p, r * r, r) + 1.0f;
    vf y = (vf)((vi)p + ((vi)t << 23)); // the low bits of t are n: this multiplies by 2^n
    return (vf)((vi)y & ~(vi)(x < -87.0f));
}
