// SPDX-License-Identifier: Apache-2.0
// Inner loops for AVX2 and FMA.
#if defined(__x86_64__)
#include <immintrin.h>
#define V_LANES 8
#define V_TABLE cpu_isa_avx2
#define V_NAME  "avx2"
#include "kernels/cpu_simd.inc.h"

#include "kernels/cpu_rows.inc.h"

#include "kernels/cpu_attn.inc.h"

#include "kernels/cpu_table.inc.h"
#else
typedef int cpu_nothing_here; // ISO C requires a declaration in every file
#endif
