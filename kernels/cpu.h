// SPDX-License-Identifier: Apache-2.0
// Inside the fast CPU backend: the table of inner loops that exists once per instruction set, the
// backend's context, and the drivers that split an op over the pool. Not for callers outside
// kernels/ and its tests.
//
// Drivers split an op's work by its shape alone, so that its bits do not depend on the number of threads:
//   - cpu.c: create, instruction set, element and row ops
//   - cpu_gemm.c: tiles of products, output layer with cross-entropy; cpu_bf16.c: products in bf16; blas.c: whose products
//   - cpu_attn.c: attention
//
// Inner loops: cpu_sse2.c, cpu_avx2.c and cpu_avx512.c are one table each, from the templates cpu_simd.inc.h (vectors, exp),
// cpu_rows.inc.h (rows) and cpu_attn.inc.h (attention tiles).
#ifndef KERN_CPU_H
#define KERN_CPU_H
#include "kernels/kern.h"

#include <stdatomic.h>

// One attention call, shared by all its work items.
struct cpu_attn {
    struct kern_attn s;
    const float *q, *k, *v, *out, *dout;
    int ldq, ldk, ldv, ldo;
    float *o, *lse;      // forward
    float *dq, *dk, *dv; // backward
    const float *lse_in; // backward
    float *delta;        // backward
};

// Backward: where dk and dv of one key-value head are summed over the blocks of queries of all its query heads. Several threads may
// be at them; to each block of keys the blocks of queries add in their order, so that the bits do not depend on who computes them.
struct cpu_attn_sums {
    float *dk, *dv;    // (T, head_dim padded to CPU_LANES_MAX)
    atomic_int *added; // of each block of keys: blocks of queries that have added
};

enum {
    CPU_ATTN_BLOCK = 64, // queries in the lanes of a tile, and keys in its rows
    CPU_LANES_MAX = 16,  // widest vector in floats; tiles are padded to it
    CPU_HEAD_DIM_MAX = 256,
};

// Inner loops of one instruction set. Lengths are in floats and need not be multiples of the
// vector.
struct cpu_isa {
    const char *name;
    // One row of RMSNorm; returns rstd.
    float (*rms_fwd)(float *y, float *h, const float *x, const float *r, const float *w, int d,
                     float eps);
    void (*rms_bwd)(float *dh, float *dw, const float *dy, const float *h, const float *w,
                    float rstd, int d);
    // All heads of one row; cs: (head_dim/2, 2)
    void (*rope)(float *x, const float *cs, int heads, int head_dim, bool inverse);
    void (*swiglu_fwd)(float *y, const float *gate, const float *up, size_t n);
    void (*swiglu_bwd)(float *dgate, float *dup, const float *dy, const float *gate,
                       const float *up, size_t n);
    // z = exp(z - max z); returns the sum
    double (*exp_row)(float *z, size_t n, float *max);
    void (*adamw)(const struct kern_adamw *c, float *p, const float *g, float *m, float *v,
                  size_t n);
    double (*sumsq)(const float *x, size_t n);
    void (*add)(float *y, const float *x, size_t n);
    void (*scale)(float *y, float a, size_t n);
    // y = exp(x): for tests of its accuracy
    void (*exp)(float *y, const float *x, size_t n);
    // One block of queries of one head
    void (*attn_fwd)(const struct cpu_attn *a, int b, int h, int block, float *scratch);
    void (*attn_bwd)(const struct cpu_attn *a, int b, int h, int block,
                     const struct cpu_attn_sums *sums, float *scratch);
    // Of one tile of scores st (keys, CPU_ATTN_BLOCK queries), for attention whose products are elsewhere. The running softmax: st
    // becomes P^T, and the sums and ot (D, CPU_ATTN_BLOCK) so far are scaled to the new maximum. P^T = exp(S^T - lse) and
    // dS^T = P^T (dP^T - delta), in place.
    void (*attn_softmax)(float *st, int keys, int queries, float *max, float *sum, float *ot, int D,
                         bool first);
    void (*attn_grad)(float *st, float *dst, const float *lse, const float *delta, int keys,
                      int queries);
    // to (cols, rows; stride ldt) = by * from (rows, cols; stride ldf) transposed; columns of `to` up to pad become 0
    void (*transpose)(float *to, size_t ldt, const float *from, size_t ldf, size_t rows,
                      size_t cols, size_t pad, float by);
    float (*dot)(const float *x, const float *y, int n);
};
extern const struct cpu_isa cpu_isa_sse2, cpu_isa_avx2, cpu_isa_avx512;

// Keys that the block of queries [i0, i0 + nq) of sequence b sees: [0, return value).
int cpu_attn_keys_end(const struct kern_attn *s, int b, int i0, int nq);
// Sets the hidden scores of a tile (keys from j0, queries from i0) to -inf: in row j the queries before j, unless j is in the prefix.
void cpu_attn_mask(const struct kern_attn *s, int b, float *st, int i0, int j0, int nk, int lanes);

// The backward pass over the pool: block(arg, ...) for each block of queries, with per_task floats of scratch. room: what
// cpu_attn_bwd_room says, in floats, aligned to 64 bytes.
typedef void cpu_attn_bwd_block(const void *arg, int b, int h, int block,
                                const struct cpu_attn_sums *sums, float *scratch);
size_t cpu_attn_bwd_room(const struct kern *K, const struct kern_attn *s, size_t per_task);
void cpu_attn_bwd_run(struct kern *K, const struct kern_attn *s, size_t per_task, float *room,
                      cpu_attn_bwd_block *block, const void *arg);
// Around what a block of queries adds to the sums of the keys from j0 on. cpu_attn_wait_turn waits until those before it have added; the
// first one finds zeros. cpu_attn_end_turn lets the next one; true: that was the last, and the sums are whole.
void cpu_attn_wait_turn(const struct kern_attn *s, const struct cpu_attn_sums *sums, int b, int h,
                        int block, int j0);
bool cpu_attn_end_turn(const struct kern_attn *s, const struct cpu_attn_sums *sums, int b, int j0);

struct cpu_buf { // grows once, 64-byte aligned
    float *p;
    size_t n;
};
struct cpu_bf16;
struct cpu_ctx {
    const struct cpu_isa *isa;
    struct cpu_bf16 *bf16;                                   // products in it; NULL: in fp32
    struct cpu_buf attn, partial, logits, soft, rows, drows; // scratch of single ops
    int32_t *picked;                                         // (picked_n) rows with a target
    size_t picked_n;
};
static inline struct cpu_ctx *cpu_of(struct kern *K) { return K->ctx; }
// at least n floats; content is lost when it grows
float *cpu_buf_need(struct cpu_buf *b, size_t n);

// NULL when this machine or build cannot run it.
const struct cpu_isa *cpu_isa_find(const char *name);
// kern_cpu_create with a chosen table: NULL picks as kern_cpu_isa() says.
NEB_MUST_CHECK enum neb_status cpu_create_isa(const char *isa, int n_threads, struct kern **out);

extern const struct kern_ops cpu_ops;

// How a product's result (m, n) is cut for the pool: by its shape alone.
struct cpu_tiles {
    int m, n, tile_m, tile_n;
};
struct cpu_tile {
    int row, col, rows, cols;
};
struct cpu_tiles cpu_tiles(int m, int n, int k);
size_t cpu_tiles_count(const struct cpu_tiles *t);
struct cpu_tile cpu_tile(const struct cpu_tiles *t, size_t i);

// Once in a process, before the first product: which library multiplies (blas.c).
void cpu_blas_choose(void);
// A product in fp32 by it, on the calling thread: c (m, n) = alpha * op(a) op(b) + beta * c, row-major as in kern_ops.gemm.
void cpu_sgemm(enum kern_trans ta, enum kern_trans tb, int m, int n, int k, float alpha,
               const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

void cpu_gemm(struct kern *K, enum kern_trans ta, enum kern_trans tb, int m, int n, int k,
              float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c,
              int ldc);
void cpu_linear_bwd(struct kern *K, float *dx, float *dw, const float *dy, int ld, const float *x,
                    const float *w, int n, int out, int in);
void cpu_weights(struct kern *K, const float *params, size_t n);
// cpu_bf16.c: what the two above do where it takes the shape
bool cpu_bf16_takes(const struct kern *K, int m, int n, int k);
void cpu_bf16_gemm(struct kern *K, enum kern_trans ta, enum kern_trans tb, int m, int n, int k,
                   float alpha, const float *a, int lda, const float *b, int ldb, float beta,
                   float *c, int ldc);
void cpu_bf16_linear_bwd(struct kern *K, float *dx, float *dw, const float *dy, int ld,
                         const float *x, const float *w, int n, int out, int in);
// false: not theirs
bool cpu_bf16_attn_fwd(struct kern *K, const struct cpu_attn *a);
bool cpu_bf16_attn_bwd(struct kern *K, const struct cpu_attn *a);
void cpu_bf16_destroy(struct cpu_bf16 *h); // NULL-safe

double cpu_head_loss(struct kern *K, const struct kern_head *h, int64_t *n_counted);
double cpu_distill(struct kern *K, const struct kern_head *h, const struct kern_soft *s,
                   int64_t *n_counted);
void cpu_attn_fwd(struct kern *K, const struct kern_attn *s, float *out, int ldo, float *lse,
                  const float *q, int ldq, const float *k, int ldk, const float *v, int ldv);
void cpu_attn_bwd(struct kern *K, const struct kern_attn *s, float *dq, float *dk, float *dv,
                  const float *dout, const float *out, int ldo, const float *lse, const float *q,
                  int ldq, const float *k, int ldk, const float *v, int ldv, float *delta);

#endif
