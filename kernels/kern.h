// SPDX-License-Identifier: Apache-2.0
// Tensor operations: one table of functions per backend. kern_ref_create's is the readable definition (one thread, plain
// loops, double accumulation); kern_cpu_create's is the fast one (OpenBLAS or oneDNN, SIMD by run-time dispatch, all threads).
// Every op of every backend is checked against the reference (tests/ops).
//
// All tensors are dense, row-major fp32 in the backend's memory (host memory for both CPU backends). Pointers must
// not overlap unless a comment says so. "+=" in a comment means the output is accumulated into. Ops do not allocate
// after the first call with the largest shape (scratch grows once), cannot fail, and assert their shapes.
//
// What holds for kern_cpu_create's: the same bits for any number of threads, for every op, since work is cut by shape alone and
// partial sums are added in a fixed order. Not the same bits across instruction sets or releases of those libraries (the exact
// path in exact.h is). They choose their own kernels; NEBULA_ISA does not reach them, OPENBLAS_CORETYPE and DNNL_MAX_CPU_ISA do.
// One instance is used by one thread at a time; creating one sets OpenBLAS to one thread for the whole process.
#ifndef KERN_KERN_H
#define KERN_KERN_H
#include "agent/base/status.h"
#include "kernels/pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kern_mask {
    KERN_MASK_CAUSAL = 0,    // key j is visible to query i when j <= i
    KERN_MASK_BIDIRECTIONAL, // all keys of the sequence
    KERN_MASK_PREFIX,        // causal, plus all keys j < prefix_len of the sequence
};

enum kern_trans { KERN_N = 0, KERN_T = 1 };

// Attention shape; q and out: (B, T, n_heads, head_dim), k and v: (B, T, n_kv_heads, head_dim).
// Query head h reads key/value head h / (n_heads / n_kv_heads). Scores are scaled by 1/sqrt(head_dim).
struct kern_attn {
    int B, T, n_heads, n_kv_heads, head_dim; // head_dim even, <= 256
    enum kern_mask mask;
    const int32_t *prefix_len; // (B), only for KERN_MASK_PREFIX
};

// Output layer and cross-entropy in one op: logits are formed in row blocks and never kept.
// Targets equal to KERN_IGNORE do not count.
#define KERN_IGNORE (-1)
struct kern_head {
    int n, d, V;
    const float *x;         // (n, d) final hidden states
    const float *w;         // (V, d) output weight
    const int32_t *targets; // (n)
    float grad_scale;       // dx and dw carry d(sum of losses) * grad_scale
    float *dx;              // (n, d) written; NULL: loss only
    float *dw;              // (V, d) +=; NULL: weight is frozen
    float *losses;          // (n) nats, 0 where ignored; may be NULL
};

// Soft labels of a teacher for kern_ops.distill. Either the k most likely tokens of each row and what is left (the tail,
// which the student is compared with as one class), or all of them.
struct kern_soft {
    int k; // 0: all
    // loss = (1 - lambda) * cross-entropy + lambda * temperature^2 * KL(teacher || student)
    float lambda;
    float temperature;  // of the teacher's probabilities below, and of the student's in the KL
    const int32_t *ids; // (n, k) distinct
    const float *logp;  // (n, k) log-probabilities; k 0: (n, V)
    const float *tail;  // (n) probability of all others
    // the two parts, over counted targets (KL without its factor); may be NULL
    double *ce_sum, *kl_sum;
};

struct kern_adamw {
    float lr, beta1, beta2, eps, weight_decay; // decoupled decay: p -= lr * weight_decay * p
    float bias1, bias2;                        // 1 - beta^t, computed by the caller in double
    float grad_scale;                          // gradient is multiplied by this first (clipping)
};

struct kern; // a backend instance

struct kern_ops {
    const char *name;

    // C (m, n) = alpha * op(A) op(B) + beta * C; op(A) is (m, k), op(B) is (k, n); ld* are row strides.
    void (*gemm)(struct kern *K, enum kern_trans ta, enum kern_trans tb, int m, int n, int k,
                 float alpha, const float *a, int lda, const float *b, int ldb, float beta,
                 float *c, int ldc);
    // The backward of y (n, out) = x (n, in) w^T: dw (out, in) += dy^T x, and dx (n, in) = dy w. NULL: not wanted. dy has rows
    // of ld.
    void (*linear_bwd)(struct kern *K, float *dx, float *dw, const float *dy, int ld,
                       const float *x, const float *w, int n, int out, int in);
    // These parameters stay as they are until the next call (n 0: none do), so a backend may keep a form of them that its
    // products read. Right without.
    void (*weights)(struct kern *K, const float *params, size_t n);

    // out (n, d) = table[ids]; ids (n) in [0, V)
    void (*embed_fwd)(struct kern *K, float *out, const float *table, const int32_t *ids, int n,
                      int d);
    // dtable (V, d) += rows of dout at ids; the order of additions into a row is that of ids, so it is reproducible
    void (*embed_bwd)(struct kern *K, float *dtable, const float *dout, const int32_t *ids, int n,
                      int d, int V);

    // h = x + r (r may be NULL: h = x; h may be x); y = h / sqrt(mean(h^2) + eps) * w; rstd (n). Fused residual add.
    void (*rmsnorm_fwd)(struct kern *K, float *y, float *rstd, float *h, const float *x,
                        const float *r, const float *w, int n, int d, float eps);
    // dh (n, d) += gradient through y; dw (d) += (NULL: frozen)
    void (*rmsnorm_bwd)(struct kern *K, float *dh, float *dw, const float *dy, const float *h,
                        const float *w, const float *rstd, int n, int d);

    // Rotary positions in place on x (n, heads, head_dim) with row stride ld (floats); pairs are (i, i + head_dim/2) as in
    // Hugging Face Llama. Position of row r is r % T. cos_sin: (T, head_dim/2, 2) made by kern_rope_table. inverse: backward.
    void (*rope)(struct kern *K, float *x, int ld, const float *cos_sin, int n, int T, int heads,
                 int head_dim, bool inverse);

    // lse: (B, n_heads, T) log-sum-exp of the scores, kept for backward. Blocked: never a (T, T) matrix.
    // q, k, v, out may be slices of wider rows: ldq, ldk, ldv, ldo are row strides in floats.
    void (*attn_fwd)(struct kern *K, const struct kern_attn *s, float *out, int ldo, float *lse,
                     const float *q, int ldq, const float *k, int ldk, const float *v, int ldv);
    // dq, dk, dv are written (not accumulated), with the strides of q, k, v. delta: (B, n_heads, T) scratch.
    void (*attn_bwd)(struct kern *K, const struct kern_attn *s, float *dq, float *dk, float *dv,
                     const float *dout, const float *out, int ldo, const float *lse, const float *q,
                     int ldq, const float *k, int ldk, const float *v, int ldv, float *delta);

    // gu (n, 2*f): gate in columns [0, f), up in [f, 2f). y (n, f) = silu(gate) * up
    void (*swiglu_fwd)(struct kern *K, float *y, const float *gu, int n, int f);
    // dgu (n, 2*f) written; may be gu itself
    void (*swiglu_bwd)(struct kern *K, float *dgu, const float *dy, const float *gu, int n, int f);

    void (*bias_fwd)(struct kern *K, float *x, const float *b, int n, int d); // x (n, d) += b (d)
    // db (d) += column sums
    void (*bias_bwd)(struct kern *K, float *db, const float *dy, int n, int d);

    // Returns the sum of losses over counted targets in double; *n_counted = their number.
    double (*head_loss)(struct kern *K, const struct kern_head *h, int64_t *n_counted);

    // The same with a teacher: losses are of the mix. Optional: NULL in a backend without it. Rows of ignored targets need
    // no labels.
    double (*distill)(struct kern *K, const struct kern_head *h, const struct kern_soft *s,
                      int64_t *n_counted);

    void (*adamw)(struct kern *K, const struct kern_adamw *c, float *p, const float *g, float *m,
                  float *v, size_t n);
    // fixed blocks: independent of thread count
    double (*sumsq)(struct kern *K, const float *x, size_t n);
    void (*add)(struct kern *K, float *y, const float *x, size_t n); // y += x
    void (*scale)(struct kern *K, float *y, float a, size_t n);      // y *= a
    void (*zero)(struct kern *K, float *y, size_t n);
};

struct kern {
    const struct kern_ops *ops;
    struct kern_pool *pool; // owned; one thread for the reference
    void *ctx;              // the backend's own: scratch memory
    void (*destroy)(struct kern *K);
};

// n_threads as in kern_pool_create. NEB_ERR_NOMEM. NEBULA_ISA=sse2|avx2|avx512 lowers the instruction set (tests).
NEB_MUST_CHECK enum neb_status kern_ref_create(struct kern **out);
NEB_MUST_CHECK enum neb_status kern_cpu_create(int n_threads, struct kern **out);
void kern_destroy(struct kern **K);

// bf16: products whose operands are rounded to nearest even, summed in fp32; all else as before. A product with a side below
// KERN_BF16_LEAST stays in fp32: there is nothing to gain.
enum { KERN_BF16_LEAST = 16 };
// Puts the products of a backend of kern_cpu_create into bf16; those of one that has them there already stay. NEB_ERR_UNSUPPORTED:
// this machine cannot, which is logged with what to do. NEBULA_BF16=plain computes the same on any machine, slowly (tests).
// NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status kern_cpu_bf16(struct kern *K);
// The same, and nothing is logged where it cannot.
bool kern_cpu_bf16_possible(struct kern *K);
// The same of the reference.
void kern_ref_bf16(struct kern *K);
// "fp32", "bf16 by AMX", "bf16 by AVX-512"
const char *kern_cpu_products(const struct kern *K);
// How many times as fast as in fp32 a product is in bf16, its conversion included: one of 384 x 384 x 384, on one thread, in some
// milliseconds of its processor time. 1 for a backend in fp32.
double kern_cpu_bf16_gain(struct kern *K);

// Whose products in fp32 kern_cpu_create's backends use: "oneDNN 2.6", "OpenBLAS SkylakeX". NEBULA_SGEMM=openblas|onednn asks for one.
const char *kern_cpu_library(void);
// c = a b, (n, n) each, by that library on the calling thread, without the backend's tiles: what a core can do (benchmarks).
// After kern_cpu_create.
void kern_cpu_product(int n, const float *a, const float *b, float *c);

const char *kern_cpu_isa(void); // "avx512", "avx2" or "sse2": what kern_cpu_create picks here

// How the frequencies theta^(-2i/head_dim) of rotary positions are scaled, for sequences that are longer than those that a model
// first learned. All zero: not.
enum kern_rope_type {
    KERN_ROPE_DEFAULT = 0, // not scaled
    KERN_ROPE_LINEAR,      // divided by factor (position interpolation, arXiv 2306.15595)
    // Those that turn less than `low` times in `original` positions are divided by factor, those that turn more than `high`
    // times are kept, and between them lies what is proportionally between the two (Llama 3.1; transformers' rope_type llama3).
    KERN_ROPE_LLAMA3,
};
struct kern_rope_scaling {
    enum kern_rope_type type;
    float factor;
    float low, high;  // llama3: turns
    int32_t original; // llama3: positions
};

// cos_sin (T, head_dim/2, 2): cos and sin of t * theta^(-2i/head_dim), scaled (NULL: not), computed in double.
void kern_rope_table(float *cos_sin, int T, int head_dim, double theta,
                     const struct kern_rope_scaling *scaling);

#endif
