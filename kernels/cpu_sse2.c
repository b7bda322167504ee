// SPDX-License-Identifier: Apache-2.0
// Inner loops for the baseline: vectors of four floats, on any machine.
#define V_LANES 4
#define V_TABLE cpu_isa_sse2
#define V_NAME  "sse2"
#include "kernels/cpu_simd.inc.h"

#include "kernels/cpu_rows.inc.h"

#include "kernels/cpu_attn.inc.h"

#include "kernels/cpu_table.inc.h"
