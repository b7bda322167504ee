// SPDX-License-Identifier: Apache-2.0
// Products in bf16 by panels (panel.h), for cpu_bf16.c. All threads pack the operands; a parameter
// is packed once while it does not change. The result is multiplied in tiles.
#ifndef KERN_CPU_PANEL_H
#define KERN_CPU_PANEL_H
#include "kernels/cpu.h"
#include "kernels/panel.h"

// A matrix in memory. ld: row stride in floats.
struct cpu_matrix {
    const float *x;
    int rows, cols, ld;
};

struct cpu_panels;
// Returns NULL if memory runs out. cpu_panels_destroy frees it and accepts NULL.
struct cpu_panels *cpu_panels_create(const struct panel_isa *v);
void cpu_panels_destroy(struct cpu_panels *p);

// These n parameters do not change until the next call (kern_ops.weights). n 0: none is fixed.
void cpu_panels_weights(struct cpu_panels *p, const float *params, size_t n);

// As kern_ops.gemm and kern_ops.linear_bwd.
void cpu_panels_gemm(struct kern *K, struct cpu_panels *p, const struct kern_gemm *g);
void cpu_panels_linear_bwd(struct kern *K, struct cpu_panels *p, const struct kern_linear_bwd *l);

// Compute the attention call a with products in bf16 (cpu_panel_attn.c).
void cpu_panels_attn_fwd(struct kern *K, const struct panel_isa *v, const struct cpu_attn *a);
void cpu_panels_attn_bwd(struct kern *K, const struct panel_isa *v, const struct cpu_attn *a);

#endif
