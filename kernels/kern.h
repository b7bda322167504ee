// SPDX-License-Identifier: Apache-2.0
// Tensor operations behind one table of functions for each backend. kern_ref_create makes the
// readable definition: one thread, plain loops, sums in double. kern_cpu_create makes the fast
// backend: OpenBLAS or oneDNN, SIMD chosen at run time, all threads. tests/ops checks every op of
// every backend against the reference.
//
// All tensors are dense, row-major fp32 in the backend's memory (host memory for both CPU
// backends). Pointers must not overlap unless a comment allows it. "+=" in a comment means that the
// op adds to the output. An op cannot fail and asserts its shapes. It allocates only when it meets
// a larger shape than before (scratch grows).
//
// The CPU backend gives the same bits for any number of threads: it cuts work by shape alone, and
// adds partial sums in a fixed order. Bits differ between instruction sets and between releases of
// the libraries (exact.h has functions whose bits never differ). The libraries choose their own
// kernels: NEBULA_ISA does not reach them, OPENBLAS_CORETYPE and DNNL_MAX_CPU_ISA do. One thread at
// a time uses an instance. Creating one sets OpenBLAS to one thread for the whole process.
#ifndef KERN_KERN_H
#define KERN_KERN_H
#include "agent/base/status.h"
#include "kernels/pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kern_mask {
    KERN_MASK_CAUSAL = 0,    // query i sees key j if j <= i
    KERN_MASK_BIDIRECTIONAL, // a query sees all keys of the sequence
    KERN_MASK_PREFIX,        // causal, and all keys j < prefix_len of the sequence
};

enum kern_trans { KERN_N = 0, KERN_T = 1 };

// An attention call. q and out: (B, T, n_heads, head_dim). k and v: (B, T, n_kv_heads, head_dim).
// Query head h reads key-value head h / (n_heads / n_kv_heads). Scores are scaled by
// 1/sqrt(head_dim).
struct kern_attn {
    int B, T, n_heads, n_kv_heads, head_dim; // head_dim even, <= 256
    enum kern_mask mask;
    const int32_t *prefix_len; // (B), for KERN_MASK_PREFIX only
};

// Output layer and cross-entropy in one op. Logits exist only for one block of rows at a time.
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

// A teacher's soft labels for kern_ops.distill: either the k most likely tokens of each row and the
// tail (all other tokens, which count as one class), or all tokens.
struct kern_soft {
    int k; // 0: all tokens
    // loss = (1 - lambda) * cross-entropy + lambda * temperature^2 * KL(teacher || student)
    float lambda;
    float temperature;  // of the teacher's labels below, and of the student's logits in KL
    const int32_t *ids; // (n, k) distinct
    const float *logp;  // (n, k) log-probabilities; k 0: (n, V)
    const float *tail;  // (n) probability of all other tokens
    // sums of the two parts over counted targets (KL without its factor); may be NULL
    double *ce_sum, *kl_sum;
};

struct kern_adamw {
    float lr, beta1, beta2, eps, weight_decay; // decoupled decay: p -= lr * weight_decay * p
    float bias1, bias2;                        // 1 - beta^t, computed by the caller in double
    float grad_scale; // the gradient is multiplied by this first (clipping)
};

struct kern; // a backend instance

struct kern_ops {
    const char *name;

    // C (m, n) = alpha * op(A) op(B) + beta * C. op(A) is (m, k), op(B) is (k, n). ld*: row strides
    // in floats.
    void (*gemm)(struct kern *K, enum kern_trans ta, enum kern_trans tb, int m, int n, int k,
                 float alpha, const float *a, int lda, const float *b, int ldb, float beta,
                 float *c, int ldc);
    // The backward pass of y (n, out) = x (n, in) w^T: dw (out, in) += dy^T x; dx (n, in) = dy w.
    // NULL: not wanted. ld: row stride of dy.
    void (*linear_bwd)(struct kern *K, float *dx, float *dw, const float *dy, int ld,
                       const float *x, const float *w, int n, int out, int in);
    // The caller promises not to change these n parameters until the next call (n 0: no promise),
    // so that the backend may keep them packed. Results are right without this call.
    void (*weights)(struct kern *K, const float *params, size_t n);

    // out (n, d) = table[ids]; ids (n) in [0, V)
    void (*embed_fwd)(struct kern *K, float *out, const float *table, const int32_t *ids, int n,
                      int d);
    // dtable (V, d) += rows of dout at ids, in the order of ids: the result is reproducible
    void (*embed_bwd)(struct kern *K, float *dtable, const float *dout, const int32_t *ids, int n,
                      int d, int V);

    // Adds the residual and normalises: h = x + r (r NULL: h = x; h may be x),
    // y = h / sqrt(mean(h^2) + eps) * w. rstd: (n).
    void (*rmsnorm_fwd)(struct kern *K, float *y, float *rstd, float *h, const float *x,
                        const float *r, const float *w, int n, int d, float eps);
    // dh (n, d) += gradient through y; dw (d) += (NULL: frozen)
    void (*rmsnorm_bwd)(struct kern *K, float *dh, float *dw, const float *dy, const float *h,
                        const float *w, const float *rstd, int n, int d);

    // Rotary positions in place on x (n, heads, head_dim) with row stride ld in floats. Pairs are
    // (i, i + head_dim/2) as in Hugging Face's Llama. Row r has position r % T.
    // cos_sin: (T, head_dim/2, 2) from kern_rope_table. inverse: the backward pass.
    void (*rope)(struct kern *K, float *x, int ld, const float *cos_sin, int n, int T, int heads,
                 int head_dim, bool inverse);

    // lse (B, n_heads, T): log-sum-exp of the scores, for the backward pass. No (T, T) matrix is
    // formed. q, k, v, out may be slices of wider rows: ldq, ldk, ldv, ldo are row strides in
    // floats.
    void (*attn_fwd)(struct kern *K, const struct kern_attn *s, float *out, int ldo, float *lse,
                     const float *q, int ldq, const float *k, int ldk, const float *v, int ldv);
    // Overwrites dq, dk, dv, which have the strides of q, k, v. delta (B, n_heads, T): scratch.
    void (*attn_bwd)(struct kern *K, const struct kern_attn *s, float *dq, float *dk, float *dv,
                     const float *dout, const float *out, int ldo, const float *lse, const float *q,
                     int ldq, const float *k, int ldk, const float *v, int ldv, float *delta);

    // gu (n, 2*f): gate in columns [0, f), up in columns [f, 2f). y (n, f) = silu(gate) * up
    void (*swiglu_fwd)(struct kern *K, float *y, const float *gu, int n, int f);
    // Overwrites dgu (n, 2*f), which may be gu itself.
    void (*swiglu_bwd)(struct kern *K, float *dgu, const float *dy, const float *gu, int n, int f);

    void (*bias_fwd)(struct kern *K, float *x, const float *b, int n, int d); // x (n, d) += b (d)
    // db (d) += column sums of dy
    void (*bias_bwd)(struct kern *K, float *db, const float *dy, int n, int d);

    // Returns the sum of losses over counted targets, in double. *n_counted: how many targets
    // count.
    double (*head_loss)(struct kern *K, const struct kern_head *h, int64_t *n_counted);

    // head_loss with a teacher: losses are the mix of kern_soft. Optional: NULL in a backend
    // without it. Rows of ignored targets need no labels.
    double (*distill)(struct kern *K, const struct kern_head *h, const struct kern_soft *s,
                      int64_t *n_counted);

    void (*adamw)(struct kern *K, const struct kern_adamw *c, float *p, const float *g, float *m,
                  float *v, size_t n);
    // Returns the sum of squares, added in fixed blocks: it does not depend on the number of
    // threads.
    double (*sumsq)(struct kern *K, const float *x, size_t n);
    void (*add)(struct kern *K, float *y, const float *x, size_t n); // y += x
    void (*scale)(struct kern *K, float *y, float a, size_t n);      // y *= a
    void (*zero)(struct kern *K, float *y, size_t n);
};

struct kern {
    const struct kern_ops *ops;
    struct kern_pool *pool; // owned; the reference has one thread
    void *ctx;              // the backend's own
    void (*destroy)(struct kern *K);
};

// n_threads as in kern_pool_create. NEBULA_ISA=sse2|avx2|avx512 lowers the instruction set of
// kern_cpu_create (tests). NEB_ERR_NOMEM; NEB_ERR_UNSUPPORTED: NEBULA_ISA names no known set.
NEB_MUST_CHECK enum neb_status kern_ref_create(struct kern **out);
NEB_MUST_CHECK enum neb_status kern_cpu_create(int n_threads, struct kern **out);
void kern_destroy(struct kern **K);

// bf16: products round their operands to nearest even and sum in fp32. All else stays as it is. A
// product with a side below KERN_BF16_LEAST stays in fp32, since bf16 gains nothing there.
enum { KERN_BF16_LEAST = 16 };
// Makes a backend of kern_cpu_create multiply in bf16; a second call changes nothing.
// NEB_ERR_NOMEM; NEB_ERR_UNSUPPORTED: this processor cannot, and the log says what to do.
// NEBULA_BF16=plain computes the same on any machine, slowly (tests).
NEB_MUST_CHECK enum neb_status kern_cpu_bf16(struct kern *K);
// The same, but if this processor cannot, returns false and logs nothing.
bool kern_cpu_bf16_possible(struct kern *K);
// The same for the reference.
void kern_ref_bf16(struct kern *K);
// "fp32", "bf16 by AMX", "bf16 by AVX-512"
const char *kern_cpu_products(const struct kern *K);
// Measures how many times as fast a product is in bf16 as in fp32, with packing: 384 x 384 x 384 on
// the calling thread, for some milliseconds. Returns 1 for a backend in fp32.
double kern_cpu_bf16_gain(struct kern *K);

// The library of fp32 products: "oneDNN 2.6", "OpenBLAS SkylakeX". NEBULA_SGEMM=openblas|onednn
// overrides the choice.
const char *kern_cpu_library(void);
// c = a b, (n, n) each, by that library on the calling thread and without the backend's tiles:
// shows what a core can do (benchmarks). Call it after kern_cpu_create.
void kern_cpu_product(int n, const float *a, const float *b, float *c);

const char *kern_cpu_isa(void); // what kern_cpu_create picks: "avx512", "avx2" or "sse2"

// How the frequencies theta^(-2i/head_dim) of rotary positions are scaled, for sequences that are
// longer than those of a model's first training. All fields 0: not scaled.
enum kern_rope_type {
    KERN_ROPE_DEFAULT = 0, // not scaled
    KERN_ROPE_LINEAR,      // divided by factor (position interpolation, arXiv 2306.15595)
    // A frequency that turns fewer than `low` times in `original` positions is divided by factor,
    // one that turns more than `high` times is kept, and between them the result is interpolated
    // linearly (Llama 3.1; rope_type llama3 of transformers).
    KERN_ROPE_LLAMA3,
};
struct kern_rope_scaling {
    enum kern_rope_type type;
    float factor;
    float low, high;  // llama3: turns
    int32_t original; // llama3: positions
};

// cos_sin (T, head_dim/2, 2) = cos and sin of t * theta^(-2i/head_dim), computed in double.
// scaling NULL: not scaled.
void kern_rope_table(float *cos_sin, int T, int head_dim, double theta,
                     const struct kern_rope_scaling *scaling);

#endif
