// SPDX-License-Identifier: Apache-2.0
// Internals of the fast CPU backend, for kernels/ and its tests only: the table of inner loops (one
// for each instruction set), the context, and the drivers that divide an op over the thread pool.
//
// Drivers divide an op by its shape alone, so that its bits do not depend on the number of threads:
//   - cpu.c: creation, instruction set, element and row ops
//   - cpu_gemm.c: tiles of products
//   - cpu_heads.c: losses, draws and labels on logits
//   - host.c: the memory of processors
//   - cpu_bf16.c, cpu_panel*.c: products and attention in bf16
//   - blas.c: the library for fp32 products
//   - cpu_attn.c: attention
//
// cpu_sse2.c, cpu_avx2.c and cpu_avx512.c each compile one table of inner loops from the templates
// cpu_simd.inc.h (vectors, exp), cpu_rows.inc.h (rows) and cpu_attn.inc.h (attention tiles).
#ifndef KERN_CPU_H
#define KERN_CPU_H
#include "kernels/kern.h"

#include <stdatomic.h>

// One attention call. All its work items share this.
struct cpu_attn {
    struct kern_attn s;
    const float *q, *k, *v, *out, *dout;
    int ldq, ldk, ldv, ldo;
    float *o, *lse;      // forward
    float *dq, *dk, *dv; // backward
    const float *lse_in; // backward
    float *delta;        // backward
};

// The sums dk and dv of one key-value head in the backward pass, over the blocks of queries of all
// its query heads. Several threads may add. Blocks of queries add to a block of keys in a fixed
// order, so that the bits do not depend on which thread computes what.
struct cpu_attn_sums {
    float *dk, *dv;    // (T, head_dim padded to CPU_LANES_MAX)
    atomic_int *added; // for each block of keys: how many blocks of queries have added
};

enum {
    CPU_ATTN_BLOCK = 64, // queries (lanes) and keys (rows) of a tile
    CPU_LANES_MAX = 16,  // floats of the widest vector; tiles are padded to it
    CPU_HEAD_DIM_MAX = 256,
};

// Inner loops of one instruction set. A length counts floats and need not be a multiple of the
// vector.
struct cpu_isa {
    const char *name;
    // One row of RMSNorm. Returns rstd.
    float (*rms_fwd)(float *y, float *h, const float *x, const float *r, const float *w, int d,
                     float eps);
    void (*rms_bwd)(float *dh, float *dw, const float *dy, const float *h, const float *w,
                    float rstd, int d);
    // Rotates all heads of one row. cs: (head_dim/2, 2)
    void (*rope)(float *x, const float *cs, int heads, int head_dim, bool inverse);
    void (*swiglu_fwd)(float *y, const float *gate, const float *up, size_t n);
    void (*swiglu_bwd)(float *dgate, float *dup, const float *dy, const float *gate,
                       const float *up, size_t n);
    // z = exp(z - max z). Returns the sum of z.
    double (*exp_row)(float *z, size_t n, float *max);
    // by: g is multiplied by this first
    void (*adamw)(const struct kern_adamw *c, float by, float *p, const float *g, float *m,
                  float *v, size_t n);
    // kern_chunk.momentum; p = keep p - step x
    void (*momentum)(float b, float by, float *g, float *m, size_t n);
    void (*step_by)(float *p, const float *x, float keep, float step, size_t n);
    double (*sumsq)(const float *x, size_t n);
    void (*add)(float *y, const float *x, size_t n);
    void (*scale)(float *y, float a, size_t n);
    // y = exp(x), for tests of accuracy
    void (*exp)(float *y, const float *x, size_t n);
    // One block of queries of one head.
    void (*attn_fwd)(const struct cpu_attn *a, int b, int h, int block, float *scratch);
    void (*attn_bwd)(const struct cpu_attn *a, int b, int h, int block,
                     const struct cpu_attn_sums *sums, float *scratch);
    // For attention whose products are computed elsewhere: one tile of scores st (keys,
    // CPU_ATTN_BLOCK queries). attn_softmax is the running softmax: st becomes P^T, and sum and ot
    // (D, CPU_ATTN_BLOCK) are rescaled to the new maximum. attn_grad: st = P^T = exp(S^T - lse),
    // dst = dS^T = P^T (dP^T - delta).
    void (*attn_softmax)(float *st, int keys, int queries, float *max, float *sum, float *ot, int D,
                         bool first);
    void (*attn_grad)(float *st, float *dst, const float *lse, const float *delta, int keys,
                      int queries);
    // to (cols, rows; stride ldt) = by * transpose of from (rows, cols; stride ldf). If pad > rows,
    // columns [rows, pad) of `to` become 0.
    void (*transpose)(float *to, size_t ldt, const float *from, size_t ldf, size_t rows,
                      size_t cols, size_t pad, float by);
    float (*dot)(const float *x, const float *y, int n);
};
extern const struct cpu_isa cpu_isa_sse2, cpu_isa_avx2, cpu_isa_avx512;

// The queries [i0, i0 + nq) of sequence b see keys [0, return value) at most.
int cpu_attn_keys_end(const struct kern_attn *s, int b, int i0, int nq);
// Sets the hidden scores of a tile (keys from j0, queries from i0) to -inf. A key outside the
// prefix is hidden from the queries before it.
void cpu_attn_mask(const struct kern_attn *s, int b, float *st, int i0, int j0, int nk, int lanes);

// Runs the backward pass over the pool: calls block(arg, ...) for each block of queries, with
// per_task floats of scratch. room must hold as many floats as cpu_attn_bwd_room returns, aligned
// to 64 bytes.
typedef void cpu_attn_bwd_block(const void *arg, int b, int h, int block,
                                const struct cpu_attn_sums *sums, float *scratch);
size_t cpu_attn_bwd_room(const struct kern *K, const struct kern_attn *s, size_t per_task);
void cpu_attn_bwd_run(struct kern *K, const struct kern_attn *s, size_t per_task, float *room,
                      cpu_attn_bwd_block *block, const void *arg);
// A block of queries calls these before and after it adds to the sums of the keys from j0 on.
// cpu_attn_wait_turn waits until the earlier blocks have added; the first block finds zeros.
// cpu_attn_end_turn admits the next block. It returns true to the last one: the sums are complete.
void cpu_attn_wait_turn(const struct kern_attn *s, const struct cpu_attn_sums *sums, int b, int h,
                        int block, int j0);
bool cpu_attn_end_turn(const struct kern_attn *s, const struct cpu_attn_sums *sums, int b, int j0);

struct cpu_buf { // aligned to 64 bytes
    float *p;
    size_t n;
};
struct cpu_bf16;
struct cpu_ctx {
    const struct cpu_isa *isa;
    struct cpu_bf16 *bf16;                                   // NULL: products are in fp32
    struct cpu_buf attn, partial, logits, soft, rows, drows; // scratch; nothing outlives an op
    int32_t *picked;                                         // (picked_n) rows with a target
    size_t picked_n;
};
static inline struct cpu_ctx *cpu_of(struct kern *K) { return K->ctx; }
// Returns room for at least n floats. The content is lost when the buffer grows.
float *cpu_buf_need(struct cpu_buf *b, size_t n);

// NULL: this machine or this build cannot run it.
const struct cpu_isa *cpu_isa_find(const char *name);
// As kern_cpu_create, with a chosen table. isa NULL: as kern_cpu_isa() picks.
NEB_MUST_CHECK enum neb_status cpu_create_isa(const char *isa, int n_threads, struct kern **out);

extern const struct kern_ops cpu_ops;

// How the result (m, n) of a product is cut for the pool: by its shape alone.
struct cpu_tiles {
    int m, n, tile_m, tile_n;
};
struct cpu_tile {
    int row, col, rows, cols;
};
struct cpu_tiles cpu_tiles(int m, int n, int k);
size_t cpu_tiles_count(const struct cpu_tiles *t);
struct cpu_tile cpu_tile(const struct cpu_tiles *t, size_t i);

// Chooses the fp32 library (blas.c). The first call in a process does the work.
// NEB_ERR_UNSUPPORTED: OpenBLAS is missing.
NEB_MUST_CHECK enum neb_status cpu_blas_choose(void);
// Computes a product in fp32 on the calling thread, without its bias.
void cpu_sgemm(const struct kern_gemm *g);
// The same for a symmetric product (kern_gemm.symmetric), but only on and below the diagonal.
void cpu_ssyrk(const struct kern_gemm *g);

void cpu_gemm(struct kern *K, const struct kern_gemm *g);
void cpu_linear_bwd(struct kern *K, const struct kern_linear_bwd *l);
void cpu_weights(struct kern *K, const float *params, size_t n);
// cpu_bf16.c: cpu_gemm and cpu_linear_bwd call these if cpu_bf16_takes the shape.
bool cpu_bf16_takes(const struct kern *K, int m, int n, int k);
void cpu_bf16_gemm(struct kern *K, const struct kern_gemm *g);
void cpu_bf16_linear_bwd(struct kern *K, const struct kern_linear_bwd *l);
// Return false and do nothing if this call stays in fp32.
bool cpu_bf16_attn_fwd(struct kern *K, const struct cpu_attn *a);
bool cpu_bf16_attn_bwd(struct kern *K, const struct cpu_attn *a);
void cpu_bf16_destroy(struct cpu_bf16 *h); // accepts NULL

void cpu_bias_fwd(struct kern *K, float *x, int ld, const float *b, int n, int d);
void cpu_bias_bwd(struct kern *K, enum kern_type t, float *db, const void *dy, int n, int d);
void cpu_rope(struct kern *K, enum kern_type t, void *x, int ld, const float *cos_sin, int n, int T,
              int heads, int head_dim, bool inverse);
void cpu_attn_fwd(struct kern *K, enum kern_type t, const struct kern_attn *s, void *out, int ldo,
                  float *lse, const void *q, int ldq, const void *k, int ldk, const void *v,
                  int ldv);
void cpu_attn_bwd(struct kern *K, enum kern_type t, const struct kern_attn *s, void *dq, void *dk,
                  void *dv, const void *dout, const void *out, int ldo, const float *lse,
                  const void *q, int ldq, const void *k, int ldk, const void *v, int ldv,
                  float *delta, const float *cos_sin);
// cpu_cache.c
void cpu_cache_put(struct kern *K, enum kern_type t, const struct kern_cache *c, int B, int T,
                   const int32_t *slot, const int32_t *at, const void *k, const void *v, int ld);
void cpu_cache_copy(struct kern *K, enum kern_type t, const struct kern_cache *c,
                    const int32_t *pairs, int m, int n);
void cpu_cache_attn(struct kern *K, enum kern_type t, const struct kern_cache *c, int B,
                    const int32_t *slot, const int32_t *at, void *out, int ldo, const void *q,
                    int ldq);
// cpu_heads.c
void cpu_head_loss(struct kern *K, enum kern_type t, const struct kern_head *h,
                   const struct kern_soft *soft);
void cpu_vocab_max(struct kern *K, enum kern_type t, const struct kern_vocab *v);
void cpu_vocab_sum(struct kern *K, enum kern_type t, const struct kern_vocab *v);
void cpu_vocab_loss(struct kern *K, enum kern_type t, const struct kern_vocab *v);
void cpu_rtd_loss(struct kern *K, enum kern_type t, const struct kern_rtd *h);
void cpu_sample_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, float temperature,
                     const double *u, int32_t *ids);
void cpu_label_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, int k,
                    float temperature, int32_t *ids, float *logp, float *tail);

#endif
