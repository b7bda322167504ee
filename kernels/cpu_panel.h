// SPDX-License-Identifier: Apache-2.0
// Products in bf16 by panels (panel.h): operands are packed by all threads, parameters once while they rest, and the result is
// multiplied in tiles. Part of cpu_bf16.c.
#ifndef KERN_CPU_PANEL_H
#define KERN_CPU_PANEL_H
#include "kernels/cpu.h"
#include "kernels/panel.h"

// A matrix in memory, rows of ld floats.
struct cpu_matrix {
    const float *x;
    int rows, cols, ld;
};

struct cpu_panels;
// NULL: out of memory. Freed by cpu_panels_destroy, NULL-safe.
struct cpu_panels *cpu_panels_create(const struct panel_isa *v);
void cpu_panels_destroy(struct cpu_panels *p);

// These n parameters rest from now on (kern_ops.weights); n 0: none do.
void cpu_panels_weights(struct cpu_panels *p, const float *params, size_t n);

// kern_ops.gemm and kern_ops.linear_bwd.
void cpu_panels_gemm(struct kern *K, struct cpu_panels *p, enum kern_trans ta, enum kern_trans tb,
                     int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                     int ldb, float beta, float *c, int ldc);
void cpu_panels_linear_bwd(struct kern *K, struct cpu_panels *p, float *dx, float *dw,
                           const float *dy, int ld, const float *x, const float *w, int n, int out,
                           int in);

// Attention (cpu_panel_attn.c): what a says, with products in bf16.
void cpu_panels_attn_fwd(struct kern *K, const struct panel_isa *v, const struct cpu_attn *a);
void cpu_panels_attn_bwd(struct kern *K, const struct panel_isa *v, const struct cpu_attn *a);

#endif
